# SPDX-License-Identifier: Apache-2.0
"""A lowered program: its objects (objects.py) and the code of its stages (ir.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from softswitch.compiler import ir
from softswitch.compiler.objects import Digest, ExternObject, TableObject, ValueSet


@dataclass(eq=False)
class Function:
    """The function of one stage; `exit` is the label at its end, to which `exit` and parser errors go."""

    name: str
    locals: list[ir.Var] = field(default_factory=list)
    body: list[ir.Instruction] = field(default_factory=list)
    exit: str = ""
    memory: int = 0  # bytes of the locals


@dataclass(eq=False)
class LoweredProgram:
    """A program as IR: its types, objects and the function of each stage."""

    source: str
    records: list[ir.RecordType] = field(default_factory=list)
    state: list[ir.Var] = field(default_factory=list)
    extra: ir.Var | None = None  # fields of standard metadata that the switch does not know: the program's own
    standard: ir.Type | None = None  # type of the standard metadata
    port_type: Any = None  # types.Type of a port in the standard metadata, as declared
    functions: dict[str, Function] = field(default_factory=dict)
    tables: list[TableObject] = field(default_factory=list)
    externs: dict[str, list[ExternObject]] = field(default_factory=dict)
    value_sets: list[ValueSet] = field(default_factory=list)
    digests: list[Digest] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    enums: dict[str, list[str]] = field(default_factory=dict)  # the program's own enums without values, and members
    actions: dict[str, Any] = field(default_factory=dict)  # control-plane name -> ast.ActionDecl
    field_lists: dict[int, list[tuple[str, ...]]] = field(default_factory=dict)  # @field_list -> paths in user metadata
    custom_crcs: dict[tuple[str, int, int], int] = field(default_factory=dict)  # place of the call -> number
    controller_headers: list[Any] = field(default_factory=list)  # types.Struct
    annotations: list[Any] = field(default_factory=list)  # annotations of the package
    declared: dict[int, str] = field(default_factory=dict)  # id of an ir.Var -> the name it was declared by
    blocks: list[Any] = field(default_factory=list)  # elaborate.BlockInstance of each stage
    called: dict[str, list[str]] = field(default_factory=dict)  # stage -> names of the actions that it calls, in order
    evaluate: Callable[[Any], Any] = lambda _: None  # the value of a global ast expression, or None if it has none
    calls_externs: bool = False  # whether a control or an action calls a function that is extern

    def objects(self, kind: str) -> list[ExternObject]:
        return self.externs.setdefault(kind, [])

    def dump(self) -> str:
        """The whole program as text, for `softswitch compile --dump-ir`."""
        lines: list[str] = []
        for rec in self.records:
            fields = "; ".join(f"{t} {n}" for n, t in rec.fields.items())
            lines.append(f"{rec.kind} {rec.name} {{ {fields} }}")
        for name, function in self.functions.items():
            lines.append(f"\n{name}:")
            lines += (f"    var {v.type} {v.name}" for v in function.locals)
            _dump(function.body, 1, lines)
        return "\n".join(lines) + "\n"


def _dump(body: list[ir.Instruction], depth: int, lines: list[str]) -> None:
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
