# SPDX-License-Identifier: Apache-2.0
"""C for l-values and for expressions of up to 128 bits: up to 64 bits in uint64_t, beyond in ss_u128."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from softswitch.compiler import ir
from softswitch.compiler.c_text import c_name, c_packet_field, is_wide, limbs, u64, width
from softswitch.compiler.types import BOOL, Bits, Varbit
from softswitch.compiler.wire_values import in_wire_order, size_of


class ScalarEmitter(ABC):
    """Writes the body of one C function to `lines`; `file_level` has what must precede all functions."""

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
                if in_wire_order(t):
                    return f"const uint8_t *{name}"
                return f"ss_u128 {name}" if t.width <= 128 else f"uint64_t {name}[{limbs(t.width)}]"
            case Varbit():
                return f"struct {{ uint32_t bits; uint8_t data[{max(1, (t.width + 7) // 8)}]; }} {name}"
            case ir.RecordType():
                return f"struct {c_name(t.name)} {name}"
            case ir.StackType():
                return f"struct {c_name(t.item.name)}_stack{t.size} {name}"
        return f"bool {name}"

    def declare_field(self, t: ir.Type, name: str) -> str:
        """A C declaration of a field of a struct or header, no wider than need be: it is copied with the others."""
        size = next((n for n in (8, 16, 32) if isinstance(t, Bits) and t.width <= n), 0)
        return f"uint{size}_t {name}" if size else self.declare(t, name)

    def constant(self, value: int, w: int) -> str:
        """The name of a file-level array with a wide constant."""
        key = (value, w)
        if key not in self.constants:
            name = f"wide_{len(self.constants)}"
            parts = ", ".join(u64(value >> (64 * i) & (1 << 64) - 1) for i in range(limbs(w)))
            self.file_level.append(f"static const uint64_t {name}[{limbs(w)}] = {{ {parts} }};")
            self.constants[key] = name
        return self.constants[key]

    # ---- l-values -----------------------------------------------------------------------------------------------

    def lv(self, lv: ir.Value) -> str:
        match lv:
            case ir.Var(storage="state"):
                return f"s->{c_name(lv.name)}"
            case ir.Var():
                return c_name(lv.name)
            case ir.Field(base=ir.Var(storage="packet")):
                return c_packet_field(lv.name)
            case ir.Field():
                return f"{self.lv(lv.base)}.{c_name(lv.name)}"
            case ir.StackElement():
                assert isinstance(lv.base.type, ir.StackType)
                if isinstance(lv.index, ir.Const):
                    return f"{self.lv(lv.base)}.e[{min(lv.index.value, lv.base.type.size)}]"
                return f"{self.lv(lv.base)}.e[ss_at({self.x(lv.index)}, {lv.base.type.size})]"
            case ir.NextIndex():
                return f"{self.lv(lv.base)}.next"
        raise AssertionError(lv)

    @abstractmethod
    def pointer(self, e: ir.Value) -> str:
        """A pointer to the limbs of a wide value; defined in emit_wide.py."""

    @abstractmethod
    def bytes(self, e: ir.Value, *, lasting: bool = False) -> str:
        """A pointer to the bytes of a value in wire order; defined in emit_wire.py."""

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

    def x(self, e: ir.Value) -> str:
        """A C expression for a bool or a normalised value of up to 128 bits; may write statements before it."""
        match e:
            case ir.Const():
                if e.type == BOOL:
                    return "true" if e.value else "false"
                return self.scalar_const(e.value, width(e.type))
            case ir.Field(type=Bits(width=w)) if w <= 32:
                return f"(uint64_t){self.lv(e)}"  # it may be kept in fewer bits
            case ir.LValue():
                return self.lv(e)
            case ir.Valid():
                return f"{self.lv(e.header)}._valid"
            case ir.PacketLength():
                return "((uint64_t)len)"
            case ir.UnaryOp():
                return self.unary(e)
            case ir.BinaryOp():
                return self.binary(e)
            case ir.Cast():
                return self.cast(e)
            case ir.Slice():
                return self.slice(e)
            case ir.Mux():
                return f"({self.x(e.c)} ? {self.x(e.a)} : {self.x(e.b)})"
        raise AssertionError(e)

    def unary(self, e: ir.UnaryOp) -> str:
        a = self.x(e.a)
        if e.op == "!":
            return f"!{a}"
        w = width(e.type)
        zero = "0 - " if e.op == "-" else "~"
        return self.mask(f"({zero}({self.ctype(w)}){a})", w)

    def sext(self, e: ir.Value) -> str:
        w = width(e.type)
        return f"ss_sext{64 if w <= 64 else 128}({self.x(e)}, {w})"

    def binary(self, e: ir.BinaryOp) -> str:
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

    def amount(self, b: ir.Value) -> str:
        """A shift amount as uint64_t."""
        w = width(b.type)
        if w <= 64:
            return self.x(b)
        if w <= 128:
            return f"ss_amount128({self.x(b)})"
        return f"ss_w_amount({self.pointer(b)}, {limbs(w)})"

    def shift(self, op: str, a: ir.Value, b: ir.Value, t: Bits) -> str:
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

    def compare(self, op: str, a: ir.Value, b: ir.Value) -> str:
        t = a.type
        if isinstance(t, Varbit):
            x, y = self.lv(a), self.lv(b)
            return f"({x}.bits == {y}.bits && memcmp({x}.data, {y}.data, ({x}.bits + 7) / 8) == 0)"
        if is_wide(t):
            if in_wire_order(t) and isinstance(t, Bits) and (op == "==" or not t.signed):
                return f"(memcmp({self.bytes(a)}, {self.bytes(b)}, {size_of(a)}) {op} 0)"
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
            return self.mask(self.part(a, 0, w), w)
        if w <= source.width:
            text = self.x(a)
            if self.ctype(w) != self.ctype(source.width):
                text = f"(uint64_t){text}"
            return self.mask(text, w) if w < source.width else text
        if source.signed and source.width:
            return self.mask(f"({self.ctype(w)})({'ss_i128' if w > 64 else 'int64_t'}){self.sext(a)}", w)
        return f"({self.ctype(w)}){self.x(a)}"

    def part(self, e: ir.Value, lo: int, w: int) -> str:
        """The bits of a wide value from `lo` on: w of them, and others above that do not count."""
        size = 64 if w <= 64 else 128
        if in_wire_order(e.type):
            return f"ss_b_get{size}({self.bytes(e)}, {size_of(e)}, {lo})"
        return f"ss_w_get{size}({self.pointer(e)}, {limbs(width(e.type))}, {lo})"

    def slice(self, e: ir.Slice) -> str:
        w, source = width(e.type), width(e.a.type)
        if source > 128:
            return self.mask(self.part(e.a, e.lo, w), w)
        text = self.x(e.a)
        if e.lo:
            text = f"({text} >> {e.lo})"
        if source > 64 and w <= 64:
            text = f"(uint64_t){text}"
        return text if e.lo + w == source and not (source > 64 and w <= 64) else self.mask(text, w)
