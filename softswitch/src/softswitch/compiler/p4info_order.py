# SPDX-License-Identifier: Apache-2.0
"""Which objects the control plane sees, in the order in which p4c writes them.

p4c looks at the stages one after the other, and within a stage at its declarations in the order of the source, where
those of a control stand in the place of its instance. Before a control's own actions stand the global ones that it
uses, in the order of their first use: by tables, then by calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from softswitch.compiler import ast as A
from softswitch.compiler.elaborate import BlockInstance
from softswitch.compiler.objects import Digest, ExternObject, TableObject, ValueSet
from softswitch.compiler.program import LoweredProgram


@dataclass
class Visible:
    """The objects of a program, by kind."""

    tables: list[TableObject] = field(default_factory=list)
    actions: dict[str, A.ActionDecl] = field(default_factory=dict)
    externs: list[ExternObject] = field(default_factory=list)
    """Extern objects of declarations, and the action profiles that tables create for themselves; direct ones too."""
    value_sets: list[ValueSet] = field(default_factory=list)
    digests: list[Digest] = field(default_factory=list)


def visible(program: LoweredProgram) -> Visible:
    """The objects of a program that the control plane sees."""
    found = Visible()
    for objects in program.externs.values():
        found.externs += [x for x in objects if x.is_global]
    for name, block in zip(program.functions, program.blocks, strict=True):
        for _, member in _locals(block):
            match member:
                case TableObject() if member.index >= 0:
                    found.tables.append(member)
                    if member.profile is not None and member.profile not in found.externs and _in_place(member):
                        found.externs.append(member.profile)
                case ExternObject():
                    found.externs.append(member)
                case ValueSet():
                    found.value_sets.append(member)
        if block.decl.kind == "parser":
            continue
        for action, decl in _actions(program, name, block).items():
            found.actions.setdefault(action, decl)
        order = list(found.actions)
        here = [(order.index(action) if action else len(order), d.index, d)
                for d in program.digests for s, action in d.places if s == name]
        for _, _, digest in sorted(here, key=lambda place: place[:2]):
            if digest not in found.digests:
                found.digests.append(digest)
    return found


def _locals(block: BlockInstance) -> Iterator[tuple[A.Decl, Any]]:
    """The declarations of a block and of what is applied in it, with what they made."""
    for local in block.decl.locals:
        member = block.members.get(id(local))
        if isinstance(member, BlockInstance):
            if member.applied:
                yield from _locals(member)
        elif member is not None:
            yield local, member
    for inner in block.unnamed:
        yield from _locals(inner)


def _in_place(table: TableObject) -> bool:
    prop = table.decl.properties.get("implementation")
    return prop is not None and isinstance(prop.value, A.CallExpr)


def _actions(program: LoweredProgram, stage: str, block: BlockInstance) -> dict[str, A.ActionDecl]:
    own: dict[str, A.ActionDecl] = {}
    used: list[str] = []
    for local, member in _locals(block):
        if isinstance(local, A.ActionDecl):
            own[member] = local
        elif isinstance(member, TableObject) and member.index >= 0:
            names = [a.name for a in member.actions]
            default = local.default if isinstance(local, A.TableDecl) else None
            first = member.actions[0].refs.pos
            if default is not None and (default.pos.line, default.pos.col) < (first.line, first.col):
                names.insert(0, member.actions[member.default].name)  # default_action stands before actions
            used += names
    used += program.called.get(stage, [])
    names = [*dict.fromkeys(name for name in used if name not in own), *own]
    return {name: program.actions[name] for name in names if name in program.actions}
