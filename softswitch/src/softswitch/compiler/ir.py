# SPDX-License-Identifier: Apache-2.0
"""The typed intermediate representation between P4 and C: types, values and instructions.

Everything is inlined: a program (program.py) is six functions on the state of a packet. Values have no side effects;
calls, short circuits with effects and copy-in/copy-out have become instructions, in the order that P4 prescribes.
Control flow is `if`, labels and gotos. `str()` of a node prints it (`softswitch compile --dump-ir`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from softswitch.compiler.diagnostics import NOWHERE, Pos
from softswitch.compiler.objects import TableObject
from softswitch.compiler.types import BOOL, Basic, Bits, Varbit

# ---- types -----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class RecordType:
    """A struct, header or union; `name` is its C name, `p4` its name in the source."""

    kind: str  # "struct", "header", "union"
    name: str
    p4: str
    fields: dict[str, Type]

    def __str__(self) -> str:
        return self.name

    @property
    def bits(self) -> int:
        """Bits of the fixed part of a header."""
        return sum(bits_of(t) for t in self.fields.values())

    @functools.cached_property
    def memory(self) -> int:
        """Bytes of a value in C, about."""
        return 8 + sum(memory_of(t) for t in self.fields.values())


@dataclass(frozen=True)
class StackType:
    """A header stack."""

    item: RecordType
    size: int

    def __str__(self) -> str:
        return f"{self.item}[{self.size}]"


Type = Bits | Basic | Varbit | RecordType | StackType


def bits_of(t: Type) -> int:
    """Bits of a value in a packet, without varbits."""
    match t:
        case Bits():
            return t.width
        case RecordType():
            return t.bits
        case Varbit():
            return 0
        case StackType():
            return t.size * t.item.bits
    return 1


def memory_of(t: Type) -> int:
    """Bytes of a value in C, about."""
    match t:
        case RecordType():
            return t.memory
        case StackType():
            return 8 + (t.size + 1) * t.item.memory
        case Bits() | Varbit():
            return 8 + t.width // 8
    return 8


def is_scalar(t: Type) -> bool:
    return isinstance(t, Bits | Basic)


def scalar_fields(t: RecordType) -> Iterator[tuple[tuple[str, ...], Type]]:
    """The paths and types of a record's leaves, in nested structs as well."""
    for name, f in t.fields.items():
        if isinstance(f, RecordType) and f.kind == "struct":
            for path, leaf in scalar_fields(f):
                yield (name, *path), leaf
        else:
            yield (name,), f


# ---- expressions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Value:
    """An expression without side effects, and its type."""

    type: Type


@dataclass(frozen=True, eq=False)
class Const(Value):
    """A constant, as an unsigned number of the type's width."""

    value: int

    def __str__(self) -> str:
        return str(self.value) if self.value < 1 << 32 else hex(self.value)


@dataclass(frozen=True, eq=False)
class LValue(Value):
    """A value that has a place in memory and may be assigned to."""


@dataclass(frozen=True, eq=False)
class Var(LValue):
    """A variable; storage "state" lasts as long as the packet, "packet" is a member of ss_packet, "local" a C local."""

    name: str
    storage: str = "local"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Field(LValue):
    """A field of a struct, header or union."""

    base: LValue
    name: str

    def __str__(self) -> str:
        return f"{self.base}.{self.name}"


@dataclass(frozen=True, eq=False)
class StackElement(LValue):
    """An element of a stack; an index out of range gives a separate scratch element."""

    base: LValue
    index: Value

    def __str__(self) -> str:
        return f"{self.base}[{self.index}]"


@dataclass(frozen=True, eq=False)
class NextIndex(LValue):
    """The nextIndex of a stack."""

    base: LValue

    def __str__(self) -> str:
        return f"{self.base}.nextIndex"


@dataclass(frozen=True, eq=False)
class Valid(Value):
    """The validity of a header, `header.isValid()`."""

    header: LValue

    def __str__(self) -> str:
        return f"{self.header}.isValid()"


@dataclass(frozen=True, eq=False)
class UnaryOp(Value):
    """A unary operator and its operand, in the type of the result."""

    op: str
    a: Value

    def __str__(self) -> str:
        return f"{self.op}{self.a}"


@dataclass(frozen=True, eq=False)
class BinaryOp(Value):
    """A binary operator and its operands, in the type of the result."""

    op: str
    a: Value
    b: Value

    def __str__(self) -> str:
        return f"({self.a} {self.op} {self.b})"


@dataclass(frozen=True, eq=False)
class Cast(Value):
    """A value converted to another type."""

    a: Value

    def __str__(self) -> str:
        return f"({self.type}){self.a}"


@dataclass(frozen=True, eq=False)
class Slice(Value):
    """The bits of a value from `lo` on, as many as its own type has."""

    a: Value
    lo: int

    def __str__(self) -> str:
        return f"{self.a}[{self.lo + bits_of(self.type) - 1}:{self.lo}]"


@dataclass(frozen=True, eq=False)
class Mux(Value):
    """`a` where the condition `c` holds, else `b`."""

    c: Value
    a: Value
    b: Value

    def __str__(self) -> str:
        return f"({self.c} ? {self.a} : {self.b})"


@dataclass(frozen=True, eq=False)
class PacketLength(Value):
    """The length of the packet, in bytes: `packet.length()`."""

    def __str__(self) -> str:
        return "packet.length()"


def const(value: int, t: Type) -> Const:
    """A constant, wrapped to its type."""
    return Const(t, value & ((1 << bits_of(t)) - 1))


TRUE, FALSE = Const(BOOL, 1), Const(BOOL, 0)
U32 = Bits(32)


def root(lv: Value) -> Value:
    """The variable that an l-value is part of."""
    while isinstance(lv, Field | StackElement | NextIndex):
        lv = lv.base
    return lv


# ---- statements ------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Instruction:
    """One step of a function, with its place in the source."""

    pos: Pos = field(default=NOWHERE, kw_only=True)


@dataclass(eq=False)
class Assign(Instruction):
    """Copies a value of any type to an l-value."""

    dst: LValue
    src: Value

    def __str__(self) -> str:
        return f"{self.dst} = {self.src}"


@dataclass(eq=False)
class Deposit(Instruction):
    """Assigns to a slice: dst[lo + width of src - 1 : lo] = src."""

    dst: LValue
    lo: int
    src: Value

    def __str__(self) -> str:
        return f"{self.dst}[{self.lo + bits_of(self.src.type) - 1}:{self.lo}] = {self.src}"


@dataclass(eq=False)
class Zero(Instruction):
    """Sets a variable to zero, with headers invalid."""

    dst: LValue

    def __str__(self) -> str:
        return f"{self.dst} = 0"


@dataclass(eq=False)
class SetValid(Instruction):
    """Makes a header valid or invalid."""

    header: LValue
    valid: bool

    def __str__(self) -> str:
        return f"{self.header}.{'setValid' if self.valid else 'setInvalid'}()"


@dataclass(eq=False)
class Shift(Instruction):
    """push_front(count) of a stack, or pop_front(-count) where the count is negative."""

    stack: LValue
    count: int

    def __str__(self) -> str:
        return f"{self.stack}.{'push' if self.count > 0 else 'pop'}_front({abs(self.count)})"


@dataclass(eq=False)
class If(Instruction):
    """Runs one of two lists of instructions."""

    condition: Value
    then: list[Instruction]
    other: list[Instruction]


@dataclass(eq=False)
class Label(Instruction):
    """A place in a function that a Goto names."""

    name: str

    def __str__(self) -> str:
        return f"{self.name}:"


@dataclass(eq=False)
class Goto(Instruction):
    """A jump; `counted` where it may go backwards, so that the number of such jumps of a packet is limited."""

    name: str
    counted: bool = False

    def __str__(self) -> str:
        return f"goto {self.name}"


@dataclass(eq=False)
class Extract(Instruction):
    """Extracts a header from the packet; `size` is the size of its varbit in bits."""

    header: LValue
    size: Value | None

    def __str__(self) -> str:
        return f"extract({self.header}{f', {self.size}' if self.size else ''})"


@dataclass(eq=False)
class Advance(Instruction):
    """Skips so many bits of the packet: `packet.advance(bits)`."""

    bits: Value

    def __str__(self) -> str:
        return f"advance({self.bits})"


@dataclass(eq=False)
class Lookahead(Instruction):
    """Reads a value from the packet without moving on: `packet.lookahead<T>()`."""

    dst: LValue

    def __str__(self) -> str:
        return f"{self.dst} = lookahead()"


@dataclass(eq=False)
class ParserError(Instruction):
    """Sets parser_error and ends parsing."""

    error: Value

    def __str__(self) -> str:
        return f"parser_error {self.error}"


@dataclass(eq=False)
class Emit(Instruction):
    """Appends a header to the packet that leaves, if it is valid: `packet.emit(header)`."""

    header: LValue

    def __str__(self) -> str:
        return f"emit({self.header})"


@dataclass(eq=False)
class ActionCase:
    """The code of one action of a table; `params` are locals that are set from the entry in this order."""

    params: list[Var]
    body: list[Instruction]


@dataclass(eq=False)
class Apply(Instruction):
    """Looks keys up and runs the entry's action. hit: bool; run: number of the action in the table's list."""

    table: TableObject
    keys: list[Value]
    selectors: list[Value]
    hit: Var
    run: Var
    entry: str  # C name of the ss_entry
    cases: list[ActionCase]

    def __str__(self) -> str:
        keys = ", ".join(map(str, self.keys))
        return f"{self.hit}, {self.run} = apply {self.table.name}({keys})"


@dataclass(eq=False)
class Extern(Instruction):
    """A call of an operation `op` of the runtime (emit_extern.py), whose result goes to `out`."""

    op: str
    out: LValue | None
    args: list[Value]
    info: Any = None

    def __str__(self) -> str:
        left = f"{self.out} = " if self.out is not None else ""
        info = f" {self.info}" if self.info is not None else ""
        return f"{left}{self.op}{info}({', '.join(map(str, self.args))})"


@dataclass(eq=False)
class Note(Instruction):
    """A step that the packet trace shows; only in programs that are compiled for it (trace_sites.py).

    what   the kind of step: "state", "condition", "apply"...
    name   of the state, table, action..., as the control plane knows it
    text   its source
    depth  how deep it is nested within the stage: it ends what is as deep or deeper
    value  what is recorded with it
    """

    what: str
    name: str
    text: str
    depth: int
    value: Value | None = None

    def __str__(self) -> str:
        return f"note {self.what} {self.name}"
