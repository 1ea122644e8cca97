# SPDX-License-Identifier: Apache-2.0
"""C for wide values in the order of the wire: immutable byte strings that are held by pointer (runtime/wire.h).

A value of bit<W> or int<W> with W > 128 and W % 64 == 0 is a `const uint8_t *` wherever it is stored. So extracting a
header, assigning, slicing at byte borders and choosing copy a pointer; what is computed goes into memory of the turn.
An expression of such a type has two forms here:

    bytes(e)     a pointer to its bytes: where they lie already, or a temporary
    wire(e, to)  statements that write its bytes to `to`

Operators that have no loop over such bytes (products, saturation, signed shifts) are computed in limbs (emit_wide.py).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from softswitch.compiler import ir
from softswitch.compiler.c_text import limbs, width
from softswitch.compiler.emit_wide import WideEmitter
from softswitch.compiler.types import BOOL, Bits
from softswitch.compiler.wire_loops import WordLoop
from softswitch.compiler.wire_values import in_wire_order, is_piece, parts_of, refers, size_of

REFERRED = 64
"""Bytes from which on a value is hashed in place, instead of being copied next to the others."""

PASSED = 256
"""Bytes from which on a value is sent in a frame from its present place, without a copy."""


class WireEmitter(WideEmitter):
    """Writes the C of wide values in the order of the wire."""

    def __init__(self) -> None:
        super().__init__()
        self.loops: dict[str, str] = {}  # body of a loop -> the function that has it

    def has_bytes(self, e: ir.Value) -> bool:
        """True if `bytes` accepts this value."""
        return in_wire_order(e.type) or (is_piece(e) and width(e.type) > 128)

    def bytes(self, e: ir.Value, *, lasting: bool = False) -> str:
        """A pointer to the bytes of a value; `lasting` where it is to outlive the statement that it is written for."""
        match e:
            case ir.LValue():
                return f"ss_bytes({self.lv(e)})"
            case ir.Const():
                return self.constant_bytes(e.value, width(e.type))
            case ir.Cast() if in_wire_order(e.a.type) and width(e.type) <= width(e.a.type):  # also an odd one
                return _behind(self.bytes(e.a, lasting=lasting), size_of(e.a) - size_of(e))
            case ir.Slice() if is_piece(e):
                return _behind(self.bytes(e.a, lasting=lasting), size_of(e.a) - e.lo // 8 - size_of(e))
            case ir.Mux() if refers(e):
                condition = self.x(e.c)
                return f"({condition} ? {self.bytes(e.a)} : {self.bytes(e.b)})"
        name = self.room(size_of(e), lasting=lasting)
        self.wire(e, name)
        return name

    def room(self, size: int, *, lasting: bool) -> str:
        """The name of fresh memory: of the turn, or of this statement."""
        name = self.fresh("t")
        self.line(f"uint8_t *{name} = ss_take(sw, {size});" if lasting else f"uint8_t {name}[{size}];")
        return name

    def constant_bytes(self, value: int, w: int) -> str:
        if not value:
            return "ss_zeros"
        swapped = int.from_bytes(value.to_bytes(w // 8, "big"), "little")
        return f"(const uint8_t *){self.constant(swapped, w)}"

    def reference(self, e: ir.Value) -> str:
        """A pointer that a variable may hold: what it leads to stays as it is."""
        match e:
            case ir.Const(value=0):
                return "NULL"
            case ir.LValue():
                return self.lv(e)
        return self.bytes(e, lasting=True)

    def assign_wire(self, dst: ir.LValue, src: ir.Value) -> None:
        text = self.lv(dst)
        self.line(f"{text} = {self.reference(src)};")

    def deposit_wire(self, s: ir.Deposit) -> None:
        """Assigns to a slice: a new value, since others may hold the old one."""
        size, part = size_of(s.dst), width(s.src.type)
        aligned = s.lo % 8 == 0 and part % 8 == 0
        old = self.bytes(s.dst)
        if aligned:
            new = self.room(size, lasting=True)
            self.line(f"ss_b_copy({new}, {old}, {size});")
            self.pack(f"({new} + {size - (s.lo + part) // 8})", [s.src])
        else:
            n = limbs(width(s.dst.type))
            whole = self.pointer(s.dst)
            self.deposit_limbs(whole, s)
            new = self.room(size, lasting=True)
            self.line(f"ss_w_store({new}, {size}, {whole}, {n});")
        self.line(f"{self.lv(s.dst)} = {new};")

    @abstractmethod
    def pack(self, base: str, values: Sequence[ir.Value]) -> None:
        """Writes values one after another to byte pointer `base`; defined in emit_packet.py."""

    # ---- computed bytes ------------------------------------------------------------------------------------------

    def wire(self, e: ir.Value, to: str) -> None:
        """Writes statements that compute the bytes of a value into `to`, which overlaps no operand."""
        size = size_of(e)
        match e:
            case _ if refers(e) or is_piece(e):
                self.line(f"ss_b_copy({to}, {self.bytes(e)}, {size});")
            case ir.UnaryOp() | ir.Mux() | ir.BinaryOp(op="+" | "-" | "&" | "|" | "^"):
                self.loop(e, to)
            case ir.BinaryOp(op="<<" | ">>") if isinstance(e.type, Bits) and not (e.op == ">>" and e.type.signed):
                a, by = self.bytes(e.a), self.amount(e.b)
                self.line(f"ss_b_sh{'l' if e.op == '<<' else 'r'}({to}, {a}, {size}, {by});")
            case ir.BinaryOp(op="++"):
                self.pack(to, parts_of(e))
            case ir.Cast() if not isinstance(e.a.type, Bits) or width(e.a.type) <= 128 or in_wire_order(e.a.type):
                self.wire_cast(e, to)
            case _:
                n = limbs(width(e.type))
                name = self.fresh("w")
                self.line(f"uint64_t {name}[{n}];")
                self.wide(e, name)
                self.line(f"ss_w_store({to}, {size}, {name}, {n});")

    def wire_cast(self, e: ir.Cast, to: str) -> None:
        size, source = size_of(e), e.a.type
        if source == BOOL:
            self.line(f"ss_b_set({to}, {size}, {self.x(e.a)}, false);")
            return
        assert isinstance(source, Bits)
        if in_wire_order(source):
            a = self.fresh("a")
            self.line(f"const uint8_t *{a} = {self.bytes(e.a)};")
            if source.width >= width(e.type):
                self.line(f"ss_b_copy({to}, {_behind(a, source.width // 8 - size)}, {size});")
            else:
                ones = f"ss_b_negative({a})" if source.signed else "false"
                self.line(f"ss_b_extend({to}, {size}, {a}, {source.width // 8}, {ones});")
        elif source.signed and source.width:
            value = self.fresh("v")
            self.line(f"ss_i128 {value} = {self.sext(e.a)};")
            self.line(f"ss_b_set({to}, {size}, (ss_u128){value}, {value} < 0);")
        else:
            self.line(f"ss_b_set({to}, {size}, {self.x(e.a)}, false);")

    def loop(self, e: ir.Value, to: str) -> None:
        """Writes the call of a function for a whole tree of operators that go word by word (wire_loops.py)."""
        made = WordLoop(e)
        name = self.loops.get(made.text)
        if name is None:
            name = self.loops[made.text] = f"loop{len(self.loops)}"
            tables = [f"const uint8_t *{c.name} = {self.constant_bytes(c.value, c.width)};" for c in made.tables]
            self.file_level += made.function(name, tables)
        arguments = [*(self.bytes(v) for v in made.leaves), *(self.x(c) for c in made.conditions)]
        self.line(f"{name}({', '.join([to, *arguments])});")


def _behind(pointer: str, n: int) -> str:
    return f"({pointer} + {n})" if n else pointer
