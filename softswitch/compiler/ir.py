# SPDX-License-Identifier: Apache-2.0
"""The typed intermediate representation between P4 and C.

Everything is inlined: a program is six straight functions over a packet's state. Expressions have no side effects;
calls, short circuits with effects and copy-in/copy-out have become statements, in the order that P4 prescribes.
Control flow is `if`, labels and gotos. `str()` of a node prints it (`softswitch compile --dump-ir`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from softswitch.compiler.diagnostics import NOWHERE, Pos
from softswitch.compiler.types import BOOL, Basic, Bits, Varbit

# ---- types -----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Rec:
    """A struct, header or union; `name` is its C name, `p4` the one in the source."""

    kind: str  # "struct", "header", "union"
    name: str
    p4: str
    fields: dict[str, Type]

    def __str__(self) -> str:
        return self.name

    @property
    def bits(self) -> int:
        """Size of a header's fixed part."""
        return sum(bits_of(t) for t in self.fields.values())


@dataclass(frozen=True)
class Arr:
    """A header stack."""

    item: Rec
    size: int

    def __str__(self) -> str:
        return f"{self.item}[{self.size}]"


Type = Bits | Basic | Varbit | Rec | Arr


def bits_of(t: Type) -> int:
    """Bits on the wire; a varbit counts 0."""
    match t:
        case Bits():
            return t.width
        case Rec():
            return t.bits
        case Varbit():
            return 0
        case Arr():
            return t.size * t.item.bits
    return 1


def is_scalar(t: Type) -> bool:
    return isinstance(t, Bits | Basic)


def scalar_fields(t: Rec) -> Iterator[tuple[tuple[str, ...], Type]]:
    """Paths and types of a record's leaves, nested structs unfolded."""
    for name, f in t.fields.items():
        if isinstance(f, Rec) and f.kind == "struct":
            for path, leaf in scalar_fields(f):
                yield (name, *path), leaf
        else:
            yield (name,), f


# ---- expressions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Expr:
    type: Type


@dataclass(frozen=True, eq=False)
class Const(Expr):
    """The value as an unsigned number of the type's width."""

    value: int

    def __str__(self) -> str:
        return str(self.value) if self.value < 1 << 32 else hex(self.value)


@dataclass(frozen=True, eq=False)
class LValue(Expr):
    pass


@dataclass(frozen=True, eq=False)
class Var(LValue):
    """A variable; storage "state" lives as long as the packet, "packet" is a member of ss_packet, "local" a C local."""

    name: str
    storage: str = "local"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Field(LValue):
    base: LValue
    name: str

    def __str__(self) -> str:
        return f"{self.base}.{self.name}"


@dataclass(frozen=True, eq=False)
class Elem(LValue):
    """An element of a stack; out of range it is a scratch element of its own."""

    base: LValue
    index: Expr

    def __str__(self) -> str:
        return f"{self.base}[{self.index}]"


@dataclass(frozen=True, eq=False)
class NextIndex(LValue):
    """A stack's nextIndex."""

    base: LValue

    def __str__(self) -> str:
        return f"{self.base}.nextIndex"


@dataclass(frozen=True, eq=False)
class Valid(Expr):
    header: LValue

    def __str__(self) -> str:
        return f"{self.header}.isValid()"


@dataclass(frozen=True, eq=False)
class Un(Expr):
    op: str
    a: Expr

    def __str__(self) -> str:
        return f"{self.op}{self.a}"


@dataclass(frozen=True, eq=False)
class Bin(Expr):
    op: str
    a: Expr
    b: Expr

    def __str__(self) -> str:
        return f"({self.a} {self.op} {self.b})"


@dataclass(frozen=True, eq=False)
class Cast(Expr):
    a: Expr

    def __str__(self) -> str:
        return f"({self.type}){self.a}"


@dataclass(frozen=True, eq=False)
class Slice(Expr):
    a: Expr
    lo: int

    def __str__(self) -> str:
        return f"{self.a}[{self.lo + bits_of(self.type) - 1}:{self.lo}]"


@dataclass(frozen=True, eq=False)
class Mux(Expr):
    c: Expr
    a: Expr
    b: Expr

    def __str__(self) -> str:
        return f"({self.c} ? {self.a} : {self.b})"


@dataclass(frozen=True, eq=False)
class PacketLength(Expr):
    def __str__(self) -> str:
        return "packet.length()"


# ---- statements ------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Stmt:
    pos: Pos = field(default=NOWHERE, kw_only=True)


@dataclass(eq=False)
class Assign(Stmt):
    dst: LValue
    src: Expr

    def __str__(self) -> str:
        return f"{self.dst} = {self.src}"


@dataclass(eq=False)
class Deposit(Stmt):
    """dst[lo + width of src - 1 : lo] = src"""

    dst: LValue
    lo: int
    src: Expr

    def __str__(self) -> str:
        return f"{self.dst}[{self.lo + bits_of(self.src.type) - 1}:{self.lo}] = {self.src}"


@dataclass(eq=False)
class Zero(Stmt):
    """All zero, headers invalid."""

    dst: LValue

    def __str__(self) -> str:
        return f"{self.dst} = 0"


@dataclass(eq=False)
class SetValid(Stmt):
    header: LValue
    valid: bool

    def __str__(self) -> str:
        return f"{self.header}.{'setValid' if self.valid else 'setInvalid'}()"


@dataclass(eq=False)
class Shift(Stmt):
    """push_front(count), or pop_front(-count)."""

    stack: LValue
    count: int

    def __str__(self) -> str:
        return f"{self.stack}.{'push' if self.count > 0 else 'pop'}_front({abs(self.count)})"


@dataclass(eq=False)
class If(Stmt):
    condition: Expr
    then: list[Stmt]
    other: list[Stmt]


@dataclass(eq=False)
class Label(Stmt):
    name: str

    def __str__(self) -> str:
        return f"{self.name}:"


@dataclass(eq=False)
class Goto(Stmt):
    """`counted`: may go backwards; counted against a bound, so that no packet runs for ever."""

    name: str
    counted: bool = False

    def __str__(self) -> str:
        return f"goto {self.name}"


@dataclass(eq=False)
class Extract(Stmt):
    """Header from the packet; `size` is the varbit's size in bits."""

    header: LValue
    size: Expr | None

    def __str__(self) -> str:
        return f"extract({self.header}{f', {self.size}' if self.size else ''})"


@dataclass(eq=False)
class Advance(Stmt):
    bits: Expr

    def __str__(self) -> str:
        return f"advance({self.bits})"


@dataclass(eq=False)
class Lookahead(Stmt):
    dst: LValue

    def __str__(self) -> str:
        return f"{self.dst} = lookahead()"


@dataclass(eq=False)
class ParserError(Stmt):
    """Sets parser_error and ends parsing."""

    error: Expr

    def __str__(self) -> str:
        return f"parser_error {self.error}"


@dataclass(eq=False)
class Emit(Stmt):
    header: LValue

    def __str__(self) -> str:
        return f"emit({self.header})"


@dataclass(eq=False)
class ActionCase:
    """What one action of a table does: `params` are its locals, filled from the entry in this order."""

    params: list[Var]
    body: list[Stmt]


@dataclass(eq=False)
class Apply(Stmt):
    """Looks the keys up, runs the entry's action. hit: bool; run: number of the action in the table's list."""

    table: Table
    keys: list[Expr]
    selectors: list[Expr]
    hit: Var
    run: Var
    entry: str  # C name of the ss_entry
    cases: list[ActionCase]

    def __str__(self) -> str:
        keys = ", ".join(map(str, self.keys))
        return f"{self.hit}, {self.run} = apply {self.table.name}({keys})"


@dataclass(eq=False)
class Extern(Stmt):
    """A call of the runtime. `op` says which (see emit_extern.py); `out` receives its result."""

    op: str
    out: LValue | None
    args: list[Expr]
    info: Any = None

    def __str__(self) -> str:
        left = f"{self.out} = " if self.out is not None else ""
        info = f" {self.info}" if self.info is not None else ""
        return f"{left}{self.op}{info}({', '.join(map(str, self.args))})"


# ---- programs --------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Action:
    """An action as a table lists it; the parameters are those that entries give."""

    name: str
    decl: Any
    params: list[tuple[str, Bits | Basic]]
    refs: Any = None


@dataclass(eq=False)
class Key:
    name: str
    match: str  # "exact", "lpm", ...
    type: Bits | Basic
    element: Any  # ast.KeyElement


@dataclass(eq=False)
class Entry:
    """A const entry: (value, mask or high end) for each key."""

    keys: list[tuple[int, int]]
    priority: int
    action: int
    args: list[int]
    pos: Pos


@dataclass(eq=False)
class Table:
    name: str
    decl: Any
    index: int
    keys: list[Key] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    default: int = 0
    default_args: list[int] = field(default_factory=list)
    const_default: bool = False
    entries: list[Entry] = field(default_factory=list)
    const_entries: bool = False
    size: int = 1024
    idle_timeout: bool = False
    profile: ExternObject | None = None
    counter: ExternObject | None = None
    meter: ExternObject | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(eq=False)
class ExternObject:
    """An instance of an extern; `index` counts within its kind as the runtime does (direct ones with indirect)."""

    kind: str
    name: str
    decl: Any
    index: int
    size: int = 0
    type: Any = None  # of a register's cells
    unit: str = "packets"
    table: Table | None = None
    algorithm: int = 0
    max_group_size: int = 0

    def __str__(self) -> str:
        return self.name


@dataclass(eq=False)
class ValueSet:
    name: str
    decl: Any
    index: int
    size: int
    fields: list[tuple[str, str, Bits | Basic]]  # name, match kind, type

    def __str__(self) -> str:
        return self.name


@dataclass(eq=False)
class Digest:
    """`digest<T>()`: the struct's leaves, as (path, type)."""

    name: str
    index: int
    type: Any
    fields: list[tuple[str, Bits | Basic]]

    def __str__(self) -> str:
        return self.name


@dataclass(eq=False)
class Function:
    """One stage; `exit` is the label at its end, where `exit` and parser errors go."""

    name: str
    locals: list[Var] = field(default_factory=list)
    body: list[Stmt] = field(default_factory=list)
    exit: str = ""


@dataclass(eq=False)
class Program:
    source: str
    records: list[Rec] = field(default_factory=list)
    state: list[Var] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    externs: dict[str, list[ExternObject]] = field(default_factory=dict)
    value_sets: list[ValueSet] = field(default_factory=list)
    digests: list[Digest] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    actions: dict[str, Any] = field(default_factory=dict)  # control-plane name -> ast.ActionDecl
    field_lists: dict[int, list[tuple[str, ...]]] = field(default_factory=dict)  # @field_list -> paths in user metadata
    controller_headers: list[Any] = field(default_factory=list)  # types.Struct
    resubmit_lists: int = 0
    annotations: list[Any] = field(default_factory=list)  # of the package

    def objects(self, kind: str) -> list[ExternObject]:
        return self.externs.setdefault(kind, [])

    def dump(self) -> str:
        """The whole program as text."""
        lines: list[str] = []
        for rec in self.records:
            fields = "; ".join(f"{t} {n}" for n, t in rec.fields.items())
            lines.append(f"{rec.kind} {rec.name} {{ {fields} }}")
        for name, function in self.functions.items():
            lines.append(f"\n{name}:")
            lines += (f"    var {v.type} {v.name}" for v in function.locals)
            _dump(function.body, 1, lines)
        return "\n".join(lines) + "\n"


def _dump(body: list[Stmt], depth: int, lines: list[str]) -> None:
    pad = "    " * depth
    for stmt in body:
        match stmt:
            case If():
                lines.append(f"{pad}if {stmt.condition}")
                _dump(stmt.then, depth + 1, lines)
                if stmt.other:
                    lines.append(f"{pad}else")
                    _dump(stmt.other, depth + 1, lines)
            case Apply():
                lines.append(f"{pad}{stmt}    // {stmt.pos}")
                for action, case in zip(stmt.table.actions, stmt.cases, strict=True):
                    lines.append(f"{pad}  on {action.name}({', '.join(map(str, case.params))})")
                    _dump(case.body, depth + 2, lines)
            case Label():
                lines.append(f"{pad[:-4]}{stmt}")
            case _:
                lines.append(f"{pad}{stmt}    // {stmt.pos}")


def const(value: int, t: Type) -> Const:
    """A constant, wrapped to its type."""
    return Const(t, value & ((1 << bits_of(t)) - 1))


TRUE, FALSE = Const(BOOL, 1), Const(BOOL, 0)
U32 = Bits(32)


def root(lv: Expr) -> Expr:
    """The variable that an l-value is part of."""
    while isinstance(lv, Field | Elem | NextIndex):
        lv = lv.base
    return lv
