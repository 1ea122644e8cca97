# SPDX-License-Identifier: Apache-2.0
"""C for expressions wider than 128 bits: arrays of limbs of 64 bits, lowest first (runtime/wide.h).

Variables are such arrays where their width is no multiple of 64; others are byte strings (emit_wire.py), whose limbs
are loaded where an operator needs them.

Wide expressions made of & | ^ ~ + - and ?: become one loop over limbs, carries included; operands that need other
limbs (shifts, slices, concatenation, products) are computed into temporaries first.
"""

from __future__ import annotations

from softswitch.compiler import ir
from softswitch.compiler.c_text import is_wide, limbs, u64, width
from softswitch.compiler.emit_scalar import ScalarEmitter
from softswitch.compiler.types import BOOL, Bits
from softswitch.compiler.wire_values import in_wire_order, is_piece, parts_of, size_of


class WideEmitter(ScalarEmitter):
    """Writes the C of values wider than 128 bits, limb by limb."""

    def pointer(self, e: ir.Value) -> str:
        """A pointer to the limbs of a wide value: where it is stored, or a temporary."""
        if isinstance(e, ir.LValue) and not in_wire_order(e.type):
            return self.lv(e)
        if isinstance(e, ir.Const):
            return self.constant(e.value, width(e.type))
        if isinstance(e, ir.Cast) and isinstance(e.a.type, Bits) and e.a.type.width == width(e.type):
            return self.pointer(e.a)
        name = self.fresh("w")
        self.line(f"uint64_t {name}[{limbs(width(e.type))}];")
        self.wide(e, name)
        return name

    def wide(self, e: ir.Value, dst: str) -> None:
        """Writes statements that compute a wide value into `dst`, which must not overlap operands that are moved."""
        w = width(e.type)
        n = limbs(w)
        match e:
            case _ if is_piece(e) or (in_wire_order(e.type) and isinstance(e, ir.LValue)):
                self.line(f"ss_w_load({dst}, {n}, {self.bytes(e)}, {size_of(e)});")
            case ir.LValue() | ir.Const():
                self.line(f"ss_w_copy({dst}, {self.pointer(e)}, {n});")
            case ir.UnaryOp() | ir.Mux():
                self.fused(e, dst)
            case ir.BinaryOp(op="+" | "-" | "&" | "|" | "^"):
                self.fused(e, dst)
            case ir.BinaryOp(op="*"):
                self.line(f"ss_w_mul({dst}, {self.pointer(e.a)}, {self.pointer(e.b)}, {n});")
                self.trim(dst, w)
            case ir.BinaryOp(op="|+|" | "|-|"):
                assert isinstance(e.type, Bits)
                name = "add" if e.op == "|+|" else "sub"
                signed = str(e.type.signed).lower()
                self.line(f"ss_w_{name}_sat({dst}, {self.pointer(e.a)}, {self.pointer(e.b)}, {w}, {signed});")
            case ir.BinaryOp(op="<<" | ">>"):
                self.wide_shift(e, dst)
            case ir.BinaryOp(op="++"):
                self.concat(e, dst)
            case ir.Cast():
                self.wide_cast(e, dst)
            case ir.Slice():
                self.line(f"ss_w_get({dst}, {n}, {self.pointer(e.a)}, {limbs(width(e.a.type))}, {e.lo});")
                self.trim(dst, w)
            case _:
                raise AssertionError(e)

    def trim(self, dst: str, w: int) -> None:
        if w % 64:
            self.line(f"ss_w_trim({dst}, {w});")

    def wide_shift(self, e: ir.BinaryOp, dst: str) -> None:
        t = e.type
        assert isinstance(t, Bits)
        by = self.amount(e.b)
        a = self.pointer(e.a)
        n = limbs(t.width)
        if e.op == "<<":
            self.line(f"ss_w_shl({dst}, {a}, {n}, {by});")
            self.trim(dst, t.width)
        elif t.signed:
            self.line(f"ss_w_sar({dst}, {a}, {t.width}, {by});")
        elif isinstance(e.b, ir.Const) and 0 < e.b.value < 64:
            r = e.b.value  # an inner loop without a test for the last limb can be vectorised
            self.line(f"for (int i = 0; i < {n - 1}; i++) {dst}[i] = {a}[i] >> {r} | {a}[i + 1] << {64 - r};")
            self.line(f"{dst}[{n - 1}] = {a}[{n - 1}] >> {r};")
        else:
            self.line(f"ss_w_shr({dst}, {a}, {n}, {by});")

    def concat(self, e: ir.BinaryOp, dst: str) -> None:
        values = [(p, self.pointer(p) if is_wide(p.type) else self.x(p)) for p in parts_of(e)]
        n = limbs(width(e.type))
        self.line(f"ss_w_zero({dst}, {n});")
        lo = 0
        for part, text in reversed(values):
            w = width(part.type)
            if w > 128:
                self.line(f"ss_w_or({dst}, {n}, {lo}, {text}, {limbs(w)});")
            else:
                self.line(f"ss_w_or{64 if w <= 64 else 128}({dst}, {n}, {lo}, {text});")
            lo += w

    def wide_cast(self, e: ir.Cast, dst: str) -> None:
        w, n = width(e.type), limbs(width(e.type))
        source = e.a.type
        if source == BOOL:
            self.line(f"ss_w_set64({dst}, {n}, {self.x(e.a)});")
            return
        assert isinstance(source, Bits)
        extends = source.signed and w > source.width
        if source.width > 128:
            a = self.pointer(e.a)
            if extends:
                self.line(f"ss_w_sext({dst}, {n}, {a}, {source.width});")
            else:
                self.line(f"ss_w_get({dst}, {n}, {a}, {limbs(source.width)}, 0);")
        elif extends:
            value = self.fresh("v")
            self.line(f"ss_i128 {value} = {self.sext(e.a)};")
            self.line(f"ss_w_fill({dst}, {64 * n}, {value} < 0);")
            self.line(f"{dst}[0] = (uint64_t){value}; {dst}[1] = (uint64_t)((ss_u128){value} >> 64);")
        else:
            self.line(f"ss_w_set{64 if source.width <= 64 else 128}({dst}, {n}, {self.x(e.a)});")
        self.trim(dst, w)

    def deposit_limbs(self, text: str, s: ir.Deposit) -> None:
        """Writes a value into some bits of a wide one, whose limbs are `text`."""
        w, part = width(s.dst.type), width(s.src.type)
        if part > 128:
            source = self.pointer(s.src)
            if isinstance(s.src, ir.LValue) and not in_wire_order(s.src.type):  # it may be the value that is written to
                source = self.fresh("w")
                self.line(f"uint64_t {source}[{limbs(part)}]; ss_w_copy({source}, {self.lv(s.src)}, {limbs(part)});")
            add = f"ss_w_or({text}, {limbs(w)}, {s.lo}, {source}, {limbs(part)});"
        else:
            source = self.fresh("v")
            self.line(f"{self.ctype(part)} {source} = {self.x(s.src)};")
            add = f"ss_w_or{64 if part <= 64 else 128}({text}, {limbs(w)}, {s.lo}, {source});"
        self.line(f"ss_w_clear({text}, {s.lo}, {part});")
        self.line(add)

    # ---- one loop for a whole tree of limb-wise operators --------------------------------------------------

    def fused(self, e: ir.Value, dst: str) -> None:
        w = width(e.type)
        body: list[str] = []
        carries: list[str] = []
        value = self.limb(e, body, carries)
        if carries:
            self.line(f"uint64_t {', '.join(f'{c} = 0' for c in carries)};")
        head = f"for (int i = 0; i < {limbs(w)}; i++)"
        if body:
            with self.braces(head):
                for text in body:
                    self.line(text)
                self.line(f"{dst}[i] = {value};")
        else:
            self.line(f"{head} {dst}[i] = {value};")
        self.trim(dst, w)

    def limb(self, e: ir.Value, body: list[str], carries: list[str]) -> str:
        """An expression for limb i of a value; statements that it needs before, in the loop, are added to `body`."""
        match e:
            case ir.Const():
                w = width(e.type)
                parts = {e.value >> (64 * i) & (1 << 64) - 1 for i in range(limbs(w))}
                if len(parts) == 1:
                    return u64(parts.pop())
                return f"{self.constant(e.value, w)}[i]"
            case ir.UnaryOp(op="~"):
                return f"~{self.limb(e.a, body, carries)}"
            case ir.UnaryOp(op="-"):
                return self.carried("ss_subb", "0", self.limb(e.a, body, carries), body, carries)
            case ir.Mux():
                condition = self.fresh("c")
                self.line(f"bool {condition} = {self.x(e.c)};")
                return f"({condition} ? {self.limb(e.a, body, carries)} : {self.limb(e.b, body, carries)})"
            case ir.BinaryOp(op="&" | "|" | "^"):
                return f"({self.limb(e.a, body, carries)} {e.op} {self.limb(e.b, body, carries)})"
            case ir.BinaryOp(op="+" | "-"):
                a, b = self.limb(e.a, body, carries), self.limb(e.b, body, carries)
                if stays_in_words(e):
                    return f"({a} {e.op} {b})"
                return self.carried("ss_addc" if e.op == "+" else "ss_subb", a, b, body, carries)
        return f"{self.pointer(e)}[i]"

    def carried(self, function: str, a: str, b: str, body: list[str], carries: list[str]) -> str:
        carry, value = self.fresh("carry"), self.fresh("l")
        carries.append(carry)
        body.append(f"uint64_t {value} = {function}({a}, {b}, &{carry});")
        return value


def stays_in_words(e: ir.BinaryOp) -> bool:
    """True if no carry can leave 64 bits of a sum or difference, as when lanes are added within masks."""
    return top_bits_clear(e.b) and (top_bits_clear(e.a) if e.op == "+" else top_bits_set(e.a))


def top_bits_set(e: ir.Value) -> bool:
    """True if bit 63 of every limb of this value is known to be one."""
    match e:
        case ir.Const():
            return width(e.type) % 64 == 0 and all(e.value >> i & 1 for i in range(63, width(e.type), 64))
        case ir.BinaryOp(op="|"):
            return top_bits_set(e.a) or top_bits_set(e.b)
    return False


def top_bits_clear(e: ir.Value) -> bool:
    """True if bit 63 of every limb of this value is known to be zero."""
    match e:
        case ir.Const():
            return all(not e.value >> (64 * i + 63) & 1 for i in range(limbs(width(e.type))))
        case ir.BinaryOp(op="&"):
            return top_bits_clear(e.a) or top_bits_clear(e.b)
        case ir.BinaryOp(op="|" | "^"):
            return top_bits_clear(e.a) and top_bits_clear(e.b)
    return False
