# SPDX-License-Identifier: Apache-2.0
"""Ids and aliases of the objects that the control plane sees, the same as p4c's.

An id is the kind's prefix and 24 bits of Jenkins' one-at-a-time hash of the fully qualified name, or what @id says.
An alias is the shortest suffix of the name's parts that no other name ends in. Source: P4Runtime specification,
"ID Allocation for P4Info Objects", and p4c's output.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from softswitch.compiler import ast as A
from softswitch.compiler.diagnostics import P4Error
from softswitch.compiler.objects import Digest, ExternObject, TableObject, ValueSet
from softswitch.compiler.p4info_order import Visible, visible
from softswitch.compiler.program import LoweredProgram

PREFIX = {
    "action": 0x01, "table": 0x02, "value_set": 0x03, "controller_header": 0x04, "action_profile": 0x11,
    "action_selector": 0x11, "counter": 0x12, "direct_counter": 0x13, "meter": 0x14, "direct_meter": 0x15,
    "register": 0x16, "digest": 0x17,
}


def jenkins(name: str) -> int:
    """Jenkins' one-at-a-time hash, 32 bits."""
    h = 0
    for byte in name.encode():
        h = (h + byte) & 0xFFFFFFFF
        h = (h + (h << 10)) & 0xFFFFFFFF
        h ^= h >> 6
    h = (h + (h << 3)) & 0xFFFFFFFF
    h ^= h >> 11
    return (h + (h << 15)) & 0xFFFFFFFF


class Ids:
    """Ids and aliases of everything that the control plane sees."""

    def __init__(self, program: LoweredProgram) -> None:
        self.program = program
        self.names: set[str] = set()
        self.ids: dict[tuple[str, str], int] = {}
        wanted: dict[str, dict[str, Any]] = {}
        self.visible = visible(program)
        for kind, name, decl in _symbols(program, self.visible):
            wanted.setdefault(kind, {})[name] = decl
            self.names.add(name)
        for objects in program.externs.values():  # what no control plane sees has an id nevertheless
            for x in objects:
                wanted.setdefault(_kind(x), {}).setdefault(x.name, None)
        taken: set[int] = set()
        for kind, symbols in wanted.items():
            for name, decl in symbols.items():
                given = _prefixed(explicit_id(decl), PREFIX[kind], name, decl)
                if given is not None:
                    if given in taken:
                        raise P4Error(decl.pos, f"@id({given:#x}) of {name} is taken")
                    self.ids[kind, name] = given
                    taken.add(given)
        for kind, symbols in wanted.items():
            for name in sorted(symbols):
                if (kind, name) in self.ids:
                    continue
                value = jenkins(name)
                while (candidate := PREFIX[kind] << 24 | value & 0xFFFFFF) in taken:
                    value += 1
                self.ids[kind, name] = candidate
                taken.add(candidate)
        self.suffixes: dict[tuple[str, ...], int] = {}
        for name in self.names:
            parts = name.split(".")
            for i in range(len(parts)):
                key = tuple(parts[i:])
                self.suffixes[key] = self.suffixes.get(key, 0) + 1

    def action(self, name: str) -> int:
        return self.ids["action", name]

    def of(self, x: TableObject | ExternObject | ValueSet | Digest) -> int:
        kind = {TableObject: "table", ValueSet: "value_set", Digest: "digest"}.get(type(x))
        return self.ids[kind or _kind(x), x.name]

    def alias(self, name: str) -> str:
        parts = name.split(".")
        for i in range(len(parts) - 1, -1, -1):
            if self.suffixes.get(tuple(parts[i:])) == 1:
                return ".".join(parts[i:])
        return name  # a controller header has the name of its annotation, and the id of its type


def _kind(x: Any) -> str:
    assert isinstance(x, ExternObject)
    return "action_profile" if x.kind == "action_selector" else x.kind


def _symbols(program: LoweredProgram, seen: Visible) -> Iterable[tuple[str, str, Any]]:
    for table in seen.tables:
        yield "table", table.name, table.decl
        for x in (table.profile, table.counter, table.meter):
            if x is not None and not isinstance(x.decl, A.InstanceDecl):
                yield _kind(x), x.name, None  # made by a property of the table, whose @id means nothing
    for name, decl in program.actions.items():
        yield "action", name, decl
    for x in seen.externs:
        if isinstance(x.decl, A.InstanceDecl):
            yield _kind(x), x.name, x.decl
    for v in program.value_sets:
        yield "value_set", v.name, v.decl
    for d in program.digests:
        yield "digest", d.name, None
    for t in program.controller_headers:
        yield "controller_header", t.name, t.decl


def explicit_id(decl: Any) -> int | None:
    notes: list[A.Annotation] = getattr(decl, "annotations", None) or []
    note = next((n for n in notes if n.name == "id"), None)
    if note is None or not note.args or not isinstance(note.args[0], A.IntLit):
        return None
    return note.args[0].value


def _prefixed(given: int | None, prefix: int, name: str, decl: Any) -> int | None:
    """The id that @id(`given`) means: with the prefix of its kind, which may be left out. Raises P4Error."""
    if given is None:
        return None
    if not 0 <= given < 1 << 32:
        raise P4Error(decl.pos, f"@id({given:#x}) of {name} does not fit P4Info: expected a number of 32 bits")
    if given >> 24 not in (0, prefix):
        raise P4Error(decl.pos, f"@id({given:#x}) of {name}: expected {prefix:#04x} as its highest byte, or zero there")
    return given | prefix << 24


def numbers(nodes: list[Any]) -> list[int]:
    """Ids of fields or parameters: those of @id, and for the others the free numbers from 1 on."""
    given = [explicit_id(n) for n in nodes]
    for i, g in enumerate(given):
        if g is not None and (g == 0 or g in given[:i]):
            wrong = "0 is no id" if g == 0 else f"@id({g}) is taken"
            raise P4Error(nodes[i].pos, wrong)
    taken = {g for g in given if g is not None}
    out = []
    index = 1
    for g in given:
        if g is not None:
            out.append(g)
            index += 1
            continue
        while index in taken:
            index += 1
        taken.add(index)
        out.append(index)
    return out
