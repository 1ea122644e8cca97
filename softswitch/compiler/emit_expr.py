# SPDX-License-Identifier: Apache-2.0
"""C for expressions: up to 64 bits in uint64_t, up to 128 in ss_u128, wider in arrays of limbs (runtime/wide.h).

Wide expressions made of & | ^ ~ + - and ?: become one loop over limbs, carries included; operands that need other
limbs (shifts, slices, concatenation, products) are computed into temporaries first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from softswitch.compiler import ir
from softswitch.compiler.types import BOOL, Bits, Varbit

_C_WORDS = {
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern", "float",
    "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed", "sizeof",
    "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while", "asm", "typeof",
    "bool", "true", "false", "errno", "unix", "linux", "NULL", "_valid", "alignas", "alignof", "constexpr",
}  # fmt: skip


def c_name(name: str) -> str:
    """A P4 name as a C identifier."""
    return name + "_" if name in _C_WORDS else name


def c_string(text: str) -> str:
    """A C string literal."""
    out = []
    for byte in text.encode():
        ch = chr(byte)
        out.append(f"\\{byte:03o}" if byte < 32 or byte > 126 or ch in '"\\' or ch == "?" else ch)
    return '"' + "".join(out) + '"'


def limbs(width: int) -> int:
    return (width + 63) // 64


def is_wide(t: ir.Type) -> bool:
    return isinstance(t, Bits) and t.width > 128


def width(t: ir.Type) -> int:
    return t.width if isinstance(t, Bits) else 1


def u64(value: int) -> str:
    return f"{value}ull" if value < 1 << 16 else f"{value:#x}ull"


class ExprEmitter:
    """Writes the body of one C function; `lines` grows, `tables` holds file-level constants."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self.counter = 0
        self.constants: dict[tuple[int, int], str] = {}
        self.file_level: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def braces(self, head: str) -> Iterator[None]:
        self.line(f"{head} {{" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    def fresh(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    # ---- types --------------------------------------------------------------------------------------------------

    def declare(self, t: ir.Type, name: str) -> str:
        """A C declaration without the semicolon."""
        match t:
            case Bits():
                if t.width <= 64:
                    return f"uint64_t {name}"
                return f"ss_u128 {name}" if t.width <= 128 else f"uint64_t {name}[{limbs(t.width)}]"
            case Varbit():
                return f"struct {{ uint32_t bits; uint8_t data[{max(1, (t.width + 7) // 8)}]; }} {name}"
            case ir.Rec():
                return f"struct {t.name} {name}"
            case ir.Arr():
                return f"struct {t.item.name}_stack{t.size} {name}"
        return f"bool {name}"

    def constant(self, value: int, w: int) -> str:
        """A file-level array that holds a wide constant."""
        key = (value, w)
        if key not in self.constants:
            name = f"wide_{len(self.constants)}"
            parts = ", ".join(u64(value >> (64 * i) & (1 << 64) - 1) for i in range(limbs(w)))
            self.file_level.append(f"static const uint64_t {name}[{limbs(w)}] = {{ {parts} }};")
            self.constants[key] = name
        return self.constants[key]

    # ---- l-values -----------------------------------------------------------------------------------------------

    def lv(self, lv: ir.Expr) -> str:
        match lv:
            case ir.Var(storage="state"):
                return f"s->{c_name(lv.name)}"
            case ir.Var():
                return c_name(lv.name)
            case ir.Field(base=ir.Var(storage="packet")):
                return f"p->{lv.name}"
            case ir.Field():
                return f"{self.lv(lv.base)}.{c_name(lv.name)}"
            case ir.Elem():
                assert isinstance(lv.base.type, ir.Arr)
                if isinstance(lv.index, ir.Const):
                    return f"{self.lv(lv.base)}.e[{min(lv.index.value, lv.base.type.size)}]"
                return f"{self.lv(lv.base)}.e[ss_at({self.x(lv.index)}, {lv.base.type.size})]"
            case ir.NextIndex():
                return f"{self.lv(lv.base)}.next"
        raise AssertionError(lv)

    # ---- scalars ------------------------------------------------------------------------------------------------

    def mask(self, text: str, w: int) -> str:
        if w in (64, 128):
            return text
        if w < 64:
            return f"({text} & {u64((1 << w) - 1)})"
        return f"({text} & SS_MASK128({w}))"

    def ctype(self, w: int) -> str:
        return "uint64_t" if w <= 64 else "ss_u128"

    def scalar_const(self, value: int, w: int) -> str:
        if w <= 64:
            return u64(value)
        high, low = value >> 64, value & (1 << 64) - 1
        return f"((ss_u128){u64(high)} << 64 | {u64(low)})" if high else f"(ss_u128){u64(low)}"

    def x(self, e: ir.Expr) -> str:
        """A C expression for a bool or a value of up to 128 bits, normalised; may write statements before."""
        match e:
            case ir.Const():
                if e.type == BOOL:
                    return "true" if e.value else "false"
                return self.scalar_const(e.value, width(e.type))
            case ir.LValue():
                return self.lv(e)
            case ir.Valid():
                return f"{self.lv(e.header)}._valid"
            case ir.PacketLength():
                return "((uint64_t)len)"
            case ir.Un():
                return self.unary(e)
            case ir.Bin():
                return self.binary(e)
            case ir.Cast():
                return self.cast(e)
            case ir.Slice():
                return self.slice(e)
            case ir.Mux():
                return f"({self.x(e.c)} ? {self.x(e.a)} : {self.x(e.b)})"
        raise AssertionError(e)

    def unary(self, e: ir.Un) -> str:
        a = self.x(e.a)
        if e.op == "!":
            return f"!{a}"
        w = width(e.type)
        zero = "0 - " if e.op == "-" else "~"
        return self.mask(f"({zero}({self.ctype(w)}){a})", w)

    def sext(self, e: ir.Expr) -> str:
        w = width(e.type)
        return f"ss_sext{64 if w <= 64 else 128}({self.x(e)}, {w})"

    def binary(self, e: ir.Bin) -> str:
        op, a, b = e.op, e.a, e.b
        if op in ("&&", "||"):
            return f"({self.x(a)} {op} {self.x(b)})"
        if op in ("==", "<", "<=", ">", ">="):
            return self.compare(op, a, b)
        t = e.type
        assert isinstance(t, Bits)
        w = t.width
        size = 64 if w <= 64 else 128
        match op:
            case "+" | "-" | "*":
                return self.mask(f"({self.x(a)} {op} {self.x(b)})", w)
            case "&" | "|" | "^":
                return f"({self.x(a)} {op} {self.x(b)})"
            case "<<" | ">>":
                return self.shift(op, a, b, t)
            case "|+|" | "|-|":
                name = f"ss_{'s' if t.signed else 'u'}{'add' if op == '|+|' else 'sub'}_sat{size}"
                return f"{name}({self.x(a)}, {self.x(b)}, {w})"
            case "++":
                wb = width(b.type)
                if wb == 0:
                    return self.x(a)
                if width(a.type) == 0:
                    return self.x(b)
                return f"(({self.ctype(w)}){self.x(a)} << {wb} | {self.x(b)})"
        raise AssertionError(op)

    def amount(self, b: ir.Expr) -> str:
        """A shift amount as uint64_t."""
        w = width(b.type)
        if w <= 64:
            return self.x(b)
        if w <= 128:
            return f"ss_amount128({self.x(b)})"
        return f"ss_w_amount({self.pointer(b)}, {limbs(w)})"

    def shift(self, op: str, a: ir.Expr, b: ir.Expr, t: Bits) -> str:
        w = t.width
        size = 64 if w <= 64 else 128
        if isinstance(b, ir.Const):
            if op == ">>" and t.signed:
                return self.mask(f"({self.ctype(w)})({self.sext(a)} >> {min(b.value, size - 1)})", w)
            if b.value >= w:
                return f"({self.ctype(w)})0"
            text = f"({self.x(a)} {op} {b.value})"
            return self.mask(text, w) if op == "<<" else text
        if op == ">>" and t.signed:
            return self.mask(f"({self.ctype(w)})ss_sar{size}({self.sext(a)}, {self.amount(b)})", w)
        text = f"ss_{'shl' if op == '<<' else 'shr'}{size}({self.x(a)}, {self.amount(b)})"
        return self.mask(text, w) if op == "<<" else text

    def compare(self, op: str, a: ir.Expr, b: ir.Expr) -> str:
        t = a.type
        if isinstance(t, Varbit):
            x, y = self.lv(a), self.lv(b)
            return f"({x}.bits == {y}.bits && memcmp({x}.data, {y}.data, ({x}.bits + 7) / 8) == 0)"
        if is_wide(t):
            x, y, n = self.pointer(a), self.pointer(b), limbs(width(t))
            if op == "==":
                return f"ss_w_eq({x}, {y}, {n})"
            if op in (">", "<="):
                x, y = y, x
            assert isinstance(t, Bits)
            less = f"ss_w_slt({x}, {y}, {t.width})" if t.signed else f"ss_w_lt({x}, {y}, {n})"
            return less if op in ("<", ">") else f"!{less}"
        if isinstance(t, Bits) and t.signed and op != "==":
            return f"({self.sext(a)} {op} {self.sext(b)})"
        return f"({self.x(a)} {op} {self.x(b)})"

    def cast(self, e: ir.Cast) -> str:
        a, to = e.a, e.type
        if to == BOOL:
            return f"({self.x(a)} != 0)"
        assert isinstance(to, Bits)
        w = to.width
        if a.type == BOOL:
            return f"({self.ctype(w)}){self.x(a)}"
        assert isinstance(a.type, Bits)
        source = a.type
        if source.width > 128:
            get = f"ss_w_get{64 if w <= 64 else 128}({self.pointer(a)}, {limbs(source.width)}, 0)"
            return self.mask(get, w)
        if w <= source.width:
            text = self.x(a)
            if self.ctype(w) != self.ctype(source.width):
                text = f"(uint64_t){text}"
            return self.mask(text, w) if w < source.width else text
        if source.signed and source.width:
            return self.mask(f"({self.ctype(w)})({'ss_i128' if w > 64 else 'int64_t'}){self.sext(a)}", w)
        return f"({self.ctype(w)}){self.x(a)}"

    def slice(self, e: ir.Slice) -> str:
        w, source = width(e.type), width(e.a.type)
        if source > 128:
            get = f"ss_w_get{64 if w <= 64 else 128}({self.pointer(e.a)}, {limbs(source)}, {e.lo})"
            return self.mask(get, w)
        text = self.x(e.a)
        if e.lo:
            text = f"({text} >> {e.lo})"
        if source > 64 and w <= 64:
            text = f"(uint64_t){text}"
        return text if e.lo + w == source and not (source > 64 and w <= 64) else self.mask(text, w)

    # ---- wide values --------------------------------------------------------------------------------------------

    def pointer(self, e: ir.Expr) -> str:
        """The limbs of a wide value: where it is stored, or a temporary."""
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

    def wide(self, e: ir.Expr, dst: str) -> None:
        """Statements that compute a wide value into `dst`, which shares no storage with operands that are moved."""
        w = width(e.type)
        n = limbs(w)
        match e:
            case ir.LValue() | ir.Const():
                self.line(f"ss_w_copy({dst}, {self.pointer(e)}, {n});")
            case ir.Un() | ir.Mux():
                self.fused(e, dst)
            case ir.Bin(op="+" | "-" | "&" | "|" | "^"):
                self.fused(e, dst)
            case ir.Bin(op="*"):
                self.line(f"ss_w_mul({dst}, {self.pointer(e.a)}, {self.pointer(e.b)}, {n});")
                self.trim(dst, w)
            case ir.Bin(op="|+|" | "|-|"):
                assert isinstance(e.type, Bits)
                name = "add" if e.op == "|+|" else "sub"
                signed = str(e.type.signed).lower()
                self.line(f"ss_w_{name}_sat({dst}, {self.pointer(e.a)}, {self.pointer(e.b)}, {w}, {signed});")
            case ir.Bin(op="<<" | ">>"):
                self.wide_shift(e, dst)
            case ir.Bin(op="++"):
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

    def wide_shift(self, e: ir.Bin, dst: str) -> None:
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
            r = e.b.value  # an inner loop without a test for the last limb vectorises
            self.line(f"for (int i = 0; i < {n - 1}; i++) {dst}[i] = {a}[i] >> {r} | {a}[i + 1] << {64 - r};")
            self.line(f"{dst}[{n - 1}] = {a}[{n - 1}] >> {r};")
        else:
            self.line(f"ss_w_shr({dst}, {a}, {n}, {by});")

    def concat(self, e: ir.Bin, dst: str) -> None:
        parts: list[ir.Expr] = []

        def collect(part: ir.Expr) -> None:
            if isinstance(part, ir.Bin) and part.op == "++":
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

    def fused(self, e: ir.Expr, dst: str) -> None:
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

    def limb(self, e: ir.Expr, body: list[str], carries: list[str]) -> str:
        """Limb i of a value; `body` are statements inside the loop that it needs before."""
        match e:
            case ir.Const():
                w = width(e.type)
                parts = {e.value >> (64 * i) & (1 << 64) - 1 for i in range(limbs(w))}
                if len(parts) == 1:
                    return u64(parts.pop())
                return f"{self.constant(e.value, w)}[i]"
            case ir.Un(op="~"):
                return f"~{self.limb(e.a, body, carries)}"
            case ir.Un(op="-"):
                return self.carried("ss_subb", "0", self.limb(e.a, body, carries), body, carries)
            case ir.Mux():
                condition = self.fresh("c")
                self.line(f"bool {condition} = {self.x(e.c)};")
                return f"({condition} ? {self.limb(e.a, body, carries)} : {self.limb(e.b, body, carries)})"
            case ir.Bin(op="&" | "|" | "^"):
                return f"({self.limb(e.a, body, carries)} {e.op} {self.limb(e.b, body, carries)})"
            case ir.Bin(op="+" | "-"):
                a, b = self.limb(e.a, body, carries), self.limb(e.b, body, carries)
                if e.op == "+" and top_bits_clear(e.a) and top_bits_clear(e.b):
                    return f"({a} + {b})"  # no carry can leave a limb: lanes that are added within masks
                return self.carried("ss_addc" if e.op == "+" else "ss_subb", a, b, body, carries)
        return f"{self.pointer(e)}[i]"

    def carried(self, function: str, a: str, b: str, body: list[str], carries: list[str]) -> str:
        carry, value = self.fresh("carry"), self.fresh("l")
        carries.append(carry)
        body.append(f"uint64_t {value} = {function}({a}, {b}, &{carry});")
        return value


def top_bits_clear(e: ir.Expr) -> bool:
    """Is bit 63 of every limb of this value known to be zero?"""
    match e:
        case ir.Const():
            return all(not e.value >> (64 * i + 63) & 1 for i in range(limbs(width(e.type))))
        case ir.Bin(op="&"):
            return top_bits_clear(e.a) or top_bits_clear(e.b)
        case ir.Bin(op="|" | "^"):
            return top_bits_clear(e.a) and top_bits_clear(e.b)
    return False


def identifier(text: str) -> str:
    """Any text as part of a C identifier."""
    return re.sub(r"\W", "_", text)
