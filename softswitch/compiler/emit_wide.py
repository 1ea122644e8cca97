# SPDX-License-Identifier: Apache-2.0
"""C for expressions wider than 128 bits: arrays of limbs of 64 bits, lowest first (runtime/wide.h).

Wide expressions made of & | ^ ~ + - and ?: become one loop over limbs, carries included; operands that need other
limbs (shifts, slices, concatenation, products) are computed into temporaries first.
"""

from __future__ import annotations

from softswitch.compiler import ir
from softswitch.compiler.c_text import is_wide, limbs, u64, width
from softswitch.compiler.emit_scalar import ScalarEmitter
from softswitch.compiler.types import BOOL, Bits


class WideEmitter(ScalarEmitter):
    """Writes the C of values wider than 128 bits, limb by limb."""

    def pointer(self, e: ir.Value) -> str:
        """A pointer to the limbs of a wide value: where it is stored, or a temporary."""
        if isinstance(e, ir.LValue):
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
        parts: list[ir.Value] = []

        def collect(part: ir.Value) -> None:
            if isinstance(part, ir.BinaryOp) and part.op == "++":
                collect(part.a)
                collect(part.b)
            else:
                parts.append(part)

        collect(e)
        values = [(p, self.pointer(p) if is_wide(p.type) else self.x(p)) for p in parts if width(p.type)]
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
                if e.op == "+" and top_bits_clear(e.a) and top_bits_clear(e.b):
                    return f"({a} + {b})"  # no carry can leave a limb, as where lanes are added within masks
                return self.carried("ss_addc" if e.op == "+" else "ss_subb", a, b, body, carries)
        return f"{self.pointer(e)}[i]"

    def carried(self, function: str, a: str, b: str, body: list[str], carries: list[str]) -> str:
        carry, value = self.fresh("carry"), self.fresh("l")
        carries.append(carry)
        body.append(f"uint64_t {value} = {function}({a}, {b}, &{carry});")
        return value


def top_bits_clear(e: ir.Value) -> bool:
    """Whether bit 63 of every limb of this value is known to be zero."""
    match e:
        case ir.Const():
            return all(not e.value >> (64 * i + 63) & 1 for i in range(limbs(width(e.type))))
        case ir.BinaryOp(op="&"):
            return top_bits_clear(e.a) or top_bits_clear(e.b)
        case ir.BinaryOp(op="|" | "^"):
            return top_bits_clear(e.a) and top_bits_clear(e.b)
    return False
