# SPDX-License-Identifier: Apache-2.0
"""p4info beside the running program: what each id means, and its index in the engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from finsy.proto import p4i

from softswitch.compiler import device_config
from softswitch.engine.engine import Engine
from softswitch.engine.errors import Internal, InvalidArgument
from softswitch.engine.program_info import (
    ActionInfo,
    DigestInfo,
    KeyField,
    MeteringInfo,
    Named,
    ProfileInfo,
    RegisterInfo,
    TableInfo,
    ValueSetInfo,
)
from softswitch.p4runtime.translation import Codec, Interfaces, Types

_N = TypeVar("_N", bound=Named)


@dataclass(frozen=True)
class ActionParam:
    """An action parameter; `place` is its index in the engine's parameter list."""

    id: int
    name: str
    codec: Codec
    place: int


@dataclass(frozen=True)
class ActionSchema:
    """An action, with parameters by id."""

    id: int
    name: str
    params: dict[int, ActionParam]


@dataclass(frozen=True)
class TableAction:
    """An action as one table may use it."""

    action: ActionSchema
    info: ActionInfo
    in_entries: bool
    as_default: bool


@dataclass(frozen=True)
class MatchField:
    """A match field; `place` is its index in the key."""

    id: int
    place: int
    key: KeyField
    codec: Codec


@dataclass(frozen=True)
class TableSchema:
    """A table: p4info names, the engine's layout."""

    id: int
    name: str
    info: TableInfo
    fields: dict[int, MatchField]
    actions: dict[int, TableAction]
    profile: ProfileInfo | None


@dataclass(frozen=True)
class Metadata:
    """One field of a controller header; an `id` of 0 says that it is @hidden from controllers, and zero in packet-outs.
    """

    id: int
    name: str
    codec: Codec


@dataclass(frozen=True)
class ControllerHeader:
    """The controller header packet_in or packet_out: its metadata in wire order."""

    fields: tuple[Metadata, ...]

    @property
    def bits(self) -> int:
        """Bits of the whole header, a multiple of 8."""
        return sum(field.codec.bits for field in self.fields)


class Schema:
    """Everything that a P4Runtime message can refer to, by id. An unknown id raises InvalidArgument, as in BMv2."""

    def __init__(
        self, p4info: p4i.P4Info, engine: Engine, *, json: str = "", interfaces: Interfaces = dict
    ) -> None:
        """Raises Internal where the compiler's p4info and program do not fit together.

        json        the program as JSON of BMv2, which has what P4Info leaves out (device_config.Control)
        interfaces  gives the numbers of the switch's ports by the names of their interfaces
        """
        info = engine.info
        self.p4info = p4info
        control = device_config.control(json)
        self.types = Types(p4info.type_info, interfaces, control.port_type)
        widths = {a.id: a.param_bits for t in info.tables for a in t.actions}
        self.actions = {a.preamble.id: self._action(a, widths.get(a.preamble.id)) for a in p4info.actions}
        self.profiles = _by_id(info.profiles)
        self.tables = {t.preamble.id: self._table(t, _by_id(info.tables)) for t in p4info.tables}
        self.counters = {i: c for i, c in _by_id(info.counters).items() if c.table < 0}
        self.meters = {i: m for i, m in _by_id(info.meters).items() if m.table < 0}
        self.registers: dict[int, RegisterInfo] = _by_id(info.registers)
        self.digests: dict[int, DigestInfo] = _by_id(info.digests)
        self.digest_types = {d.preamble.id: d.type_spec for d in p4info.digests}
        self.value_sets: dict[int, ValueSetInfo] = _by_id(info.value_sets)
        self.value_set_ids = {v.preamble.id: [m.id for m in v.match] for v in p4info.value_sets}
        self.register_types = {r.preamble.id: r.type_spec for r in p4info.registers}
        headers = {
            h.preamble.name: self._header(h, control.headers.get(h.preamble.name))
            for h in p4info.controller_packet_metadata
        }
        self.packet_in = headers.get("packet_in", ControllerHeader(()))
        self.packet_out = headers.get("packet_out", ControllerHeader(()))

    def table(self, ident: int) -> TableSchema:
        """A table. Raises InvalidArgument for an unknown id, as the following methods do."""
        return _get(self.tables, ident, "table")

    def counter(self, ident: int) -> MeteringInfo:
        """An indirect counter."""
        return _get(self.counters, ident, "counter")

    def meter(self, ident: int) -> MeteringInfo:
        """An indirect meter."""
        return _get(self.meters, ident, "meter")

    def register(self, ident: int) -> RegisterInfo:
        """A register."""
        return _get(self.registers, ident, "register")

    def register_codec(self, register: RegisterInfo) -> Codec:
        """The translation of a register's cells."""
        return self.types.codec(self.register_types[register.id].new_type.name, register.bits)

    def digest(self, ident: int) -> DigestInfo:
        """A digest."""
        return _get(self.digests, ident, "digest")

    def profile(self, ident: int) -> ProfileInfo:
        """An action profile or selector."""
        return _get(self.profiles, ident, "action profile")

    def value_set(self, ident: int) -> ValueSetInfo:
        """A parser value set."""
        return _get(self.value_sets, ident, "value set")

    def table_of_profile(self, profile: ProfileInfo) -> TableSchema:
        """A table that uses the profile, whose actions are those of the profile."""
        for table in self.tables.values():
            if table.info.profile == profile.index:
                return table
        raise InvalidArgument(f"no table uses action profile {profile.name}")

    def _table(self, t: p4i.Table, infos: dict[int, TableInfo]) -> TableSchema:
        info = infos.get(t.preamble.id)
        name = t.preamble.name
        if info is None or len(info.keys) != len(t.match_fields):
            raise Internal(f"table {name}: the program has no such table, or one with another key")
        fields = {}
        for place, (m, key) in enumerate(zip(t.match_fields, info.keys, strict=True)):
            fields[m.id] = MatchField(m.id, place, key, self.types.codec(m.type_name.name, key.bits))
        actions = {}
        for ref in t.action_refs:
            found = [a for a in info.actions if a.id == ref.id]
            if not found:
                raise Internal(f"table {name}: the program's table lacks action {self.actions[ref.id].name}")
            actions[ref.id] = TableAction(
                self.actions[ref.id],
                found[0],
                ref.scope != p4i.ActionRef.DEFAULT_ONLY,
                ref.scope != p4i.ActionRef.TABLE_ONLY,
            )
        profile = next((p for p in self.profiles.values() if p.index == info.profile), None)
        return TableSchema(t.preamble.id, name, info, fields, actions, profile)

    def _action(self, a: p4i.Action, widths: Sequence[int] | None) -> ActionSchema:
        bits = [p.bitwidth for p in a.params] if widths is None else widths  # None: no table lists it
        params = {p.id: ActionParam(p.id, p.name, self.types.codec(p.type_name.name, bits[place]), place)
                  for place, p in enumerate(a.params)}
        return ActionSchema(a.preamble.id, a.preamble.name, params)

    def _header(self, h: p4i.ControllerPacketMetadata, layout: Sequence[tuple[int, int]] | None) -> ControllerHeader:
        known = {m.id: m for m in h.metadata}
        fields = []
        for ident, bits in layout if layout is not None else [(m.id, m.bitwidth) for m in h.metadata]:
            m = known.get(ident)
            fields.append(Metadata(0, "", Codec(bits)) if m is None
                          else Metadata(ident, m.name, self.types.codec(m.type_name.name, bits)))
        return ControllerHeader(tuple(fields))


def _by_id(things: Iterable[_N]) -> dict[int, _N]:
    return {thing.id: thing for thing in things}


_T = TypeVar("_T")


def _get(things: dict[int, _T], ident: int, what: str) -> _T:
    found = things.get(ident)
    if found is None:
        if ident == 0:
            raise InvalidArgument(f"{what} id 0 names every {what}, which only a read may ask for")
        raise InvalidArgument(f"the program has no {what} with id {ident:#010x}")
    return found


def differences(given: p4i.P4Info, ours: p4i.P4Info) -> list[str]:
    """How a client's p4info differs from that of its program, where this changes the meaning of messages."""
    found = []
    for kind in (
        "tables",
        "actions",
        "action_profiles",
        "counters",
        "direct_counters",
        "meters",
        "direct_meters",
        "registers",
        "digests",
        "value_sets",
        "controller_packet_metadata",
    ):
        theirs = {o.preamble.id: o for o in getattr(given, kind)}
        mine = {o.preamble.id: o for o in getattr(ours, kind)}
        for ident in sorted(theirs.keys() | mine.keys()):
            a, b = theirs.get(ident), mine.get(ident)
            if a is None or b is None:
                name = (theirs | mine)[ident].preamble.name
                where = "the p4info" if b is None else "the program"
                found.append(f"{kind}: {name} ({ident:#010x}) is only in {where}")
            elif _meaning(a) != _meaning(b):
                found.append(f"{kind}: {a.preamble.name} ({ident:#010x}) differs")
    return found


def _meaning(o: Any) -> tuple[object, ...]:
    parts: list[object] = [o.preamble.name]
    for attribute in ("match_fields", "params", "metadata"):
        parts += [(f.id, f.bitwidth, getattr(f, "match_type", 0)) for f in getattr(o, attribute, ())]
    parts += sorted(ref.id for ref in getattr(o, "action_refs", ()))
    return tuple(parts)
