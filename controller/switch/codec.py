# SPDX-License-Identifier: Apache-2.0
"""Encodes entities as P4Runtime messages and decodes them, by the names of a p4info.

Bytestrings are canonical (P4Runtime specification, section 8.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from finsy.proto import p4i, p4r
from google.protobuf.message import DecodeError

from netfold.controller.switch.entities import Clone, Entity, Entry, MeterRate, Multicast, State, Value, state

Wanted = Mapping[str, Sequence[int] | None]
"""Cells of counters that are to be read, by name; None: all of a counter's."""


class Count(NamedTuple):
    """A cell of a counter."""

    packets: int
    bytes: int


Cells = dict[str, dict[int, Count]]
"""Cells of counters, by name and index."""


class CodecError(ValueError):
    """An entity does not fit the program; the message names the table, field or action and what was expected."""


@dataclass(frozen=True)
class _Action:
    id: int
    name: str
    params: dict[str, tuple[int, int]]
    """Id and bits of each parameter, by name."""


@dataclass(frozen=True)
class _Table:
    id: int
    name: str
    fields: dict[str, tuple[int, int, int]]
    """Id, bits and match type of each key field, by name."""
    actions: dict[int, _Action]
    const: bool
    metered: bool
    """True if each entry has a meter of its own."""


ENCODED: Final = 8192
"""Messages that are remembered: switches in like places hold many entities alike."""
DECODED: Final = 1 << 17
"""Messages of entities that were read and are remembered, about 300 bytes each."""
_EXACT: Final = p4i.MatchField.EXACT
_LPM: Final = p4i.MatchField.LPM


class Codec:
    """Encodes and decodes entities of one program."""

    def __init__(self, p4info: p4i.P4Info) -> None:
        actions = {
            a.preamble.id: _Action(a.preamble.id, a.preamble.name, {p.name: (p.id, p.bitwidth) for p in a.params})
            for a in p4info.actions
        }
        metered = {meter.direct_table_id for meter in p4info.direct_meters}
        tables = [
            _Table(
                t.preamble.id,
                t.preamble.name,
                {m.name: (m.id, m.bitwidth, m.match_type) for m in t.match_fields},
                {ref.id: actions[ref.id] for ref in t.action_refs},
                t.is_const_table,
                t.preamble.id in metered,
            )
            for t in p4info.tables
        ]
        self._bits = {(action.name, name): bits for action in actions.values()
                      for name, (_, bits) in action.params.items()}
        self._by_name = {t.name: t for t in tables}
        self._by_id = {t.id: t for t in tables}
        self._counters = {c.preamble.name: c.preamble.id for c in p4info.counters}
        self._metadata = {
            header.preamble.name: {m.name: (m.id, m.bitwidth) for m in header.metadata}
            for header in p4info.controller_packet_metadata
        }
        self._encoded = lru_cache(ENCODED)(self._encode)
        self._decoded = lru_cache(DECODED)(self._decode)

    def bits(self, action: str, param: str) -> int:
        """The width of an action's parameter.  Raises KeyError."""
        return self._bits[action, param]

    # ---- entities ------------------------------------------------------------------------------------------------

    def encode(self, entity: Entity) -> p4r.Entity:
        """The P4Runtime message of an entity, which others get as well, so that it must not be changed.  Raises
        CodecError."""
        return self._encoded(entity)

    def held(self, answers: Iterable[bytes]) -> State:
        """The entities in answers to reads, by their identities; only bytes that have not been met before are decoded.
        It takes some milliseconds: to be called on another thread.  Raises CodecError and Conflict."""
        try:
            return state(self._decoded(entity.SerializeToString())
                         for answer in answers for entity in p4r.ReadResponse.FromString(answer).entities)
        except DecodeError as error:
            raise CodecError(f"entities: expected what was asked for, got {error!r}") from error

    def _decode(self, message: bytes) -> Entity:
        return self.decode(p4r.Entity.FromString(message))

    def _encode(self, entity: Entity) -> p4r.Entity:
        match entity:
            case Multicast():
                return _multicast(entity)
            case Clone():
                return _clone(entity)
            case Entry():
                return self._entry(entity)

    def decode(self, message: p4r.Entity) -> Entity:
        """The entity of a P4Runtime message.  Raises CodecError for messages that `encode` never makes."""
        if message.HasField("table_entry"):
            return self._table_entry(message.table_entry)
        session = message.packet_replication_engine_entry.clone_session_entry
        if (session.session_id and len(session.replicas) == 1
                and not session.packet_length_bytes and not session.class_of_service):
            return Clone(session.session_id, _port(session.replicas[0]))
        group = message.packet_replication_engine_entry.multicast_group_entry
        if group.multicast_group_id == 0:
            raise CodecError(f"expected a table entry, a multicast group or a clone session of whole packets to "
                             f"one port, got {message}")
        return Multicast(group.multicast_group_id, tuple(sorted(
            ((_port(replica), replica.instance) for replica in group.replicas), key=lambda replica: replica[::-1])))

    def has_table(self, name: str) -> bool:
        """True if the program has this table: one without faults (p4src/fault.p4) has fewer."""
        return name in self._by_name

    def read_table(self, name: str) -> p4r.Entity:
        """A request for all entries of a table, or for the default action of a table without a key."""
        table = self._table(name)
        message = p4r.TableEntry(table_id=table.id, is_default_action=not table.fields)
        if table.metered:
            message.meter_config.SetInParent()  # the answer has the meters of its entries (P4Runtime 9.1.2)
        return p4r.Entity(table_entry=message)

    @staticmethod
    def read_multicast() -> p4r.Entity:
        """A request for all multicast groups."""
        entity = p4r.Entity()
        entity.packet_replication_engine_entry.multicast_group_entry.SetInParent()
        return entity

    @staticmethod
    def read_clones() -> p4r.Entity:
        """A request for all clone sessions."""
        entity = p4r.Entity()
        entity.packet_replication_engine_entry.clone_session_entry.SetInParent()
        return entity

    def _entry(self, entry: Entry) -> p4r.Entity:
        table = self._table(entry.table)
        message = p4r.TableEntry(table_id=table.id, is_default_action=not table.fields)
        if [name for name, _ in entry.key] != list(table.fields):
            raise CodecError(f"{table.name}: expected the key fields {', '.join(table.fields)}, got {entry}")
        for name, value in entry.key:
            field, bits, kind = table.fields[name]
            where = f"{table.name} {name}"
            if kind == _LPM and value == (0, 0):
                continue  # a prefix of length 0 is left out (P4Runtime 9.1.1)
            match = message.match.add(field_id=field)
            if kind == _EXACT and isinstance(value, int):
                match.exact.value = _bytes(value, bits, where)
            elif kind == _LPM and isinstance(value, tuple):
                match.lpm.value, match.lpm.prefix_len = _bytes(value[0], bits, where), value[1]
            else:
                raise CodecError(f"{where}: {value!r} does not suit match type {kind}")
        action = next((a for a in table.actions.values() if a.name == entry.action), None)
        if action is None:
            have = ", ".join(a.name for a in table.actions.values())
            raise CodecError(f"{table.name}: no action {entry.action}; it has {have}")
        if [name for name, _ in entry.params] != list(action.params):
            raise CodecError(f"{action.name}: expected the parameters {', '.join(action.params)}, got {entry}")
        message.action.action.action_id = action.id
        for name, value in entry.params:
            param, bits = action.params[name]
            message.action.action.params.add(param_id=param, value=_bytes(value, bits, f"{action.name} {name}"))
        if entry.rate is not None:
            if not table.metered:
                raise CodecError(f"{table.name}: expected no rate, as its entries have no meters, got {entry}")
            config = message.meter_config
            config.cir = config.pir = entry.rate.packets
            config.cburst = config.pburst = entry.rate.burst
        return p4r.Entity(table_entry=message)

    def _table_entry(self, message: p4r.TableEntry) -> Entry:
        table = self._by_id.get(message.table_id)
        if table is None:
            raise CodecError(f"no table has the id {message.table_id:#x}")
        found: dict[int, Value] = {}
        for match in message.match:
            if match.HasField("exact"):
                found[match.field_id] = int.from_bytes(match.exact.value, "big")
            elif match.HasField("lpm"):
                found[match.field_id] = (int.from_bytes(match.lpm.value, "big"), match.lpm.prefix_len)
            else:
                raise CodecError(f"{table.name}: expected exact or longest prefix matches, got {match}")
        # a prefix of length 0 is left out on the wire
        key = tuple((name, found.get(field, (0, 0))) for name, (field, _, _) in table.fields.items())
        action = table.actions.get(message.action.action.action_id)
        if action is None:
            raise CodecError(f"{table.name}: expected a direct action of this table, got {message.action}")
        values = {p.param_id: int.from_bytes(p.value, "big") for p in message.action.action.params}
        config = message.meter_config
        rate = MeterRate(config.pir, config.pburst) if message.HasField("meter_config") else None
        return Entry(table.name, key, action.name,
                     tuple((name, values.get(param, 0)) for name, (param, _) in action.params.items()), rate)

    def _table(self, name: str) -> _Table:
        if name not in self._by_name:
            raise CodecError(f"the program has no table {name}; it has {', '.join(self._by_name)}")
        return self._by_name[name]

    # ---- counters and packets ------------------------------------------------------------------------------------

    def read_counter(self, name: str, index: int | None = None) -> p4r.Entity:
        """A request for one cell of an indirect counter, or for all.  Raises CodecError."""
        if name not in self._counters:
            raise CodecError(f"the program has no counter {name}; it has {', '.join(self._counters)}")
        message = p4r.CounterEntry(counter_id=self._counters[name])
        if index is not None:
            message.index.index = index
        return p4r.Entity(counter_entry=message)

    def read_cells(self, wanted: Wanted) -> list[p4r.Entity]:
        """A request for cells of those counters that the program has."""
        return [self.read_counter(name, index) for name, cells in wanted.items() if name in self._counters
                for index in ([None] if cells is None else cells)]

    def cells(self, answers: Iterable[bytes]) -> Cells:
        """The non-zero cells in answers to reads of counters, by name and index.  Raises CodecError."""
        names = {number: name for name, number in self._counters.items()}
        found: Cells = {}
        try:
            for answer in answers:
                for entity in p4r.ReadResponse.FromString(answer).entities:
                    entry = entity.counter_entry
                    if packets := entry.data.packet_count:
                        cell = Count(packets, entry.data.byte_count)
                        found.setdefault(names[entry.counter_id], {})[entry.index.index] = cell
        except (DecodeError, KeyError) as error:
            raise CodecError(f"counters: expected those that were asked for, got {error!r}") from error
        return found

    def packet_out(self, payload: bytes, fields: dict[str, int]) -> p4r.PacketOut:
        """A packet-out with these fields of its `packet_out` header; other fields are 0."""
        message = p4r.PacketOut(payload=payload)
        for name, (number, bits) in self._metadata["packet_out"].items():
            value = _bytes(fields.get(name, 0), bits, f"packet_out.{name}")
            message.metadata.add(metadata_id=number, value=value)
        return message

    def packet_in(self, message: p4r.PacketIn) -> dict[str, int]:
        """The fields of a packet-in's `packet_in` header, by name."""
        values = {m.metadata_id: int.from_bytes(m.value, "big") for m in message.metadata}
        return {name: values.get(number, 0) for name, (number, _) in self._metadata["packet_in"].items()}


def _multicast(entity: Multicast) -> p4r.Entity:
    message = p4r.Entity()
    group = message.packet_replication_engine_entry.multicast_group_entry
    group.multicast_group_id = entity.group
    for port, instance in entity.replicas:
        # egress_port is deprecated since P4Runtime 1.4, but every server knows it
        group.replicas.add(egress_port=port, instance=instance)
    return message


def _clone(entity: Clone) -> p4r.Entity:
    message = p4r.Entity()
    session = message.packet_replication_engine_entry.clone_session_entry
    session.session_id = entity.session
    session.replicas.add(egress_port=entity.port)
    return message


def _port(replica: p4r.Replica) -> int:
    if replica.WhichOneof("port_kind") == "port":
        return int.from_bytes(replica.port, "big")
    return int(replica.egress_port)


def _bytes(value: int, bits: int, where: str) -> bytes:
    if value < 0 or value.bit_length() > bits:
        raise CodecError(f"{where}: expected 0..2^{bits}-1, got {value}")
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")
