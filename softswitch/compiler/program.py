# SPDX-License-Identifier: Apache-2.0
"""A lowered program: what P4 declares once (tables, actions, instances of externs), and the stages' code.

Objects are numbered within their kind, as the runtime numbers them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from softswitch.compiler import ir
from softswitch.compiler.diagnostics import Pos
from softswitch.compiler.types import Basic, Bits


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
    locals: list[ir.Var] = field(default_factory=list)
    body: list[ir.Stmt] = field(default_factory=list)
    exit: str = ""


@dataclass(eq=False)
class Program:
    source: str
    records: list[ir.Rec] = field(default_factory=list)
    state: list[ir.Var] = field(default_factory=list)
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


def _dump(body: list[ir.Stmt], depth: int, lines: list[str]) -> None:
    pad = "    " * depth
    for stmt in body:
        match stmt:
            case ir.If():
                lines.append(f"{pad}if {stmt.condition}")
                _dump(stmt.then, depth + 1, lines)
                if stmt.other:
                    lines.append(f"{pad}else")
                    _dump(stmt.other, depth + 1, lines)
            case ir.Apply():
                lines.append(f"{pad}{stmt}    // {stmt.pos}")
                for action, case in zip(stmt.table.actions, stmt.cases, strict=True):
                    lines.append(f"{pad}  on {action.name}({', '.join(map(str, case.params))})")
                    _dump(case.body, depth + 2, lines)
            case ir.Label():
                lines.append(f"{pad[:-4]}{stmt}")
            case _:
                lines.append(f"{pad}{stmt}    // {stmt.pos}")
