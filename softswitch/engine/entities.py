# SPDX-License-Identifier: Apache-2.0
"""What a switch program consists of and what its control plane holds: plain values, errors, and their byte forms.

Byte form (runtime/softswitch.h): each field takes ceil(bits/8) bytes, big endian, fields one after another. A match
field is a pair of integers (value, mask), whose second half depends on the kind of match:

    exact     (value, all ones)            lpm       (value, prefix mask)
    ternary   (value, mask)                optional  (value, all ones) or (0, 0) for "any"
    range     (low end, high end)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

NO_PORT = 0xFFFFFFFF


class EngineError(Exception):
    """A switch refused a request; subclasses name the kind with P4Runtime's words, `code` is the gRPC status code."""

    code = 2


class InvalidArgument(EngineError):
    """A request that no state of the switch could honour: unknown object, malformed key, value out of range."""

    code = 3


class NotFound(EngineError):
    """The entry, member, group or session is not there."""

    code = 5


class AlreadyExists(EngineError):
    """An entry with the same identity is there already."""

    code = 6


class PermissionDenied(EngineError):
    """The program declares the object constant."""

    code = 7


class ResourceExhausted(EngineError):
    """The table, group or reply is full."""

    code = 8


class FailedPrecondition(EngineError):
    """The switch's present state forbids it: a member that entries still use, a packet-out without CPU port."""

    code = 9


class OutOfRange(EngineError):
    """An index beyond the end of a register, counter or meter."""

    code = 11


class Unimplemented(EngineError):
    """The switch does not do this."""

    code = 12


class Internal(EngineError):
    """The switch broke its own rules, or died."""

    code = 13


class EngineTimeout(EngineError):
    """The switch process did not answer within the allowed time."""

    code = 4


ERRORS: dict[int, type[EngineError]] = {
    kind.code: kind
    for kind in (InvalidArgument, NotFound, AlreadyExists, PermissionDenied, ResourceExhausted, FailedPrecondition,
                 OutOfRange, Unimplemented, Internal)
}


class MatchKind(IntEnum):
    """How a key field is compared; the numbers of ss_match."""

    EXACT = 0
    LPM = 1
    TERNARY = 2
    RANGE = 3
    OPTIONAL = 4


class Unit(IntEnum):
    """What a counter or meter counts; the numbers of ss_unit."""

    PACKETS = 0
    BYTES = 1
    PACKETS_AND_BYTES = 2


def width(bits: int) -> int:
    """Bytes that a field of so many bits takes in byte form."""
    return (bits + 7) // 8


def pack_fields(values: Sequence[int], bits: Sequence[int], what: str) -> bytes:
    """Integers to byte form. Raises InvalidArgument where one does not fit or their number is wrong."""
    if len(values) != len(bits):
        raise InvalidArgument(f"{what}: expected {len(bits)} values, got {len(values)}")
    for i, (value, size) in enumerate(zip(values, bits, strict=True)):
        if value < 0 or value.bit_length() > size:
            raise InvalidArgument(f"{what}: value {i} is {value:#x}, which does not fit bit<{size}>")
    return b"".join(value.to_bytes(width(size), "big") for value, size in zip(values, bits, strict=True))


def unpack_fields(data: bytes, bits: Sequence[int]) -> list[int]:
    """Byte form to integers."""
    values, at = [], 0
    for size in bits:
        values.append(int.from_bytes(data[at : at + width(size)], "big"))
        at += width(size)
    return values


@dataclass(frozen=True)
class KeyField:
    """One field of a table's or value set's key."""

    name: str
    match: MatchKind
    bits: int

    @property
    def ones(self) -> int:
        """The mask that matches exactly."""
        return (1 << self.bits) - 1

    @property
    def any(self) -> tuple[int, int]:
        """The (value, mask) that every packet matches; exact fields have none."""
        if self.match is MatchKind.EXACT:
            raise InvalidArgument(f"key field {self.name} is exact and must be given")
        return (0, self.ones if self.match is MatchKind.RANGE else 0)

    def prefix(self, value: int, length: int) -> tuple[int, int]:
        """The (value, mask) of value/length."""
        if not 0 <= length <= self.bits:
            raise InvalidArgument(f"key field {self.name}: prefix length {length} is not within 0..{self.bits}")
        mask = self.ones & ~((1 << (self.bits - length)) - 1)
        return (value & mask, mask)


def pack_key(keys: Sequence[KeyField], fields: Sequence[tuple[int, int]], what: str) -> tuple[bytes, bytes]:
    """(value, mask) pairs to the key and mask in byte form."""
    bits = [key.bits for key in keys]
    return (pack_fields([value for value, _ in fields], bits, f"{what} key"),
            pack_fields([mask for _, mask in fields], bits, f"{what} mask"))


def unpack_key(keys: Sequence[KeyField], key: bytes, mask: bytes) -> list[tuple[int, int]]:
    """The inverse of pack_key."""
    bits = [field.bits for field in keys]
    return list(zip(unpack_fields(key, bits), unpack_fields(mask, bits), strict=True))


@dataclass(frozen=True)
class ActionInfo:
    """An action of one table; `index` is its place in the table's list."""

    index: int
    name: str
    id: int
    param_bits: tuple[int, ...]

    def pack(self, values: Sequence[int]) -> bytes:
        """Parameters to byte form."""
        return pack_fields(values, self.param_bits, f"action {self.name}")

    def unpack(self, params: bytes) -> list[int]:
        """Parameters from byte form."""
        return unpack_fields(params, self.param_bits)


@dataclass(frozen=True)
class Named:
    """An object of the program: place in its list, p4info id, control-plane name."""

    index: int
    name: str
    id: int


@dataclass(frozen=True)
class TableInfo(Named):
    """A table; profile, direct_counter and direct_meter are indices or -1."""

    size: int
    keys: tuple[KeyField, ...]
    actions: tuple[ActionInfo, ...]
    const_default: bool
    const_entries: bool
    idle_timeout: bool
    profile: int
    direct_counter: int
    direct_meter: int

    @property
    def key_bytes(self) -> int:
        """Bytes of a key in byte form."""
        return sum(width(key.bits) for key in self.keys)

    @property
    def has_priority(self) -> bool:
        """True where entries may overlap, so that priority decides."""
        return any(key.match in (MatchKind.TERNARY, MatchKind.RANGE, MatchKind.OPTIONAL) for key in self.keys)

    def pack_key(self, fields: Sequence[tuple[int, int]]) -> tuple[bytes, bytes]:
        """(value, mask) pairs to the key and mask in byte form."""
        return pack_key(self.keys, fields, f"table {self.name}")

    def unpack_key(self, key: bytes, mask: bytes) -> list[tuple[int, int]]:
        """The inverse of pack_key."""
        return unpack_key(self.keys, key, mask)

    def action(self, name: str | int) -> ActionInfo:
        """The action of this control-plane name (its last part is enough where unique) or p4info id."""
        if isinstance(name, int):
            found = [action for action in self.actions if action.id == name]
        else:
            found = by_name(self.actions, name)
        if len(found) != 1:
            have = ", ".join(action.name for action in self.actions)
            raise InvalidArgument(f"table {self.name}: action {name} is {'ambiguous' if found else 'unknown'} "
                                  f"(it has {have})")
        return found[0]


@dataclass(frozen=True)
class RegisterInfo(Named):
    """A register array of `size` cells of `bits` bits."""

    size: int
    bits: int


@dataclass(frozen=True)
class MeteringInfo(Named):
    """A counter or meter array; `table` is the index of the table it is direct to, or -1."""

    size: int
    unit: Unit
    table: int


@dataclass(frozen=True)
class ProfileInfo(Named):
    """An action profile, or an action selector where `selector`."""

    size: int
    selector: bool
    max_group_size: int


@dataclass(frozen=True)
class DigestInfo(Named):
    """A digest's field widths."""

    field_bits: tuple[int, ...]


@dataclass(frozen=True)
class ValueSetInfo(Named):
    """A parser value set."""

    size: int
    keys: tuple[KeyField, ...]


@dataclass(frozen=True)
class ProgramInfo:
    """Everything the control plane can name in a running program."""

    source: str
    packet_in_bits: int
    packet_out_bits: int
    cpu_port: int
    tables: tuple[TableInfo, ...]
    registers: tuple[RegisterInfo, ...]
    counters: tuple[MeteringInfo, ...]
    meters: tuple[MeteringInfo, ...]
    profiles: tuple[ProfileInfo, ...]
    digests: tuple[DigestInfo, ...]
    value_sets: tuple[ValueSetInfo, ...]
    errors: tuple[str, ...]


_Thing = TypeVar("_Thing", bound="Named | ActionInfo")


def by_name(things: Iterable[_Thing], name: str) -> list[_Thing]:
    """Things called `name`, or, where none is, those whose name ends in .name."""
    things = list(things)
    return [t for t in things if t.name == name] or [t for t in things if t.name.endswith("." + name)]


@dataclass(frozen=True)
class DoAction:
    """Run an action (index in the table's list) with parameters in byte form."""

    action: int
    params: bytes = b""


@dataclass(frozen=True)
class DoMember:
    """Run what a member of the table's action profile says."""

    member: int


@dataclass(frozen=True)
class DoGroup:
    """Run what the member says that the selector picks from a group."""

    group: int


Do = DoAction | DoMember | DoGroup


@dataclass(frozen=True)
class Count:
    """A counter cell."""

    packets: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class MeterConfig:
    """Two-rate three-colour meter (RFC 2698): rates in units a second, bursts in units."""

    cir: int
    cburst: int
    pir: int
    pburst: int


@dataclass(frozen=True)
class Entry:
    """A table entry; (table, key, mask, priority) identifies it. The last five are read only."""

    table: TableInfo
    key: bytes
    mask: bytes
    do: Do
    priority: int = 0
    cookie: int = 0
    idle_timeout_us: int = 0
    handle: int = 0
    since_hit_us: int = 0
    count: Count = Count()
    meter: MeterConfig | None = None

    @property
    def fields(self) -> list[tuple[int, int]]:
        """The match as (value, mask) pairs."""
        return self.table.unpack_key(self.key, self.mask)


@dataclass(frozen=True)
class Default:
    """A table's default action with its direct counter and meter."""

    do: DoAction
    count: Count = Count()
    meter: MeterConfig | None = None


@dataclass(frozen=True)
class Member:
    """A member of an action profile; the action by p4info id, because tables number their actions differently."""

    member: int
    action_id: int
    params: bytes


@dataclass(frozen=True)
class Group:
    """A group of an action selector: (member, weight) pairs."""

    group: int
    members: tuple[tuple[int, int], ...]
    max_size: int = 0


@dataclass(frozen=True)
class Multicast:
    """A multicast group: (port, instance) pairs, no pair twice."""

    group: int
    replicas: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class CloneSession:
    """Where clones go: (port, instance) replicas, and those of a multicast group where `group` is not 0."""

    session: int
    replicas: tuple[tuple[int, int], ...]
    truncate_to: int = 0
    group: int = 0


class EventKind(IntEnum):
    """What a switch reports by itself; the numbers of ss_event_kind."""

    PACKET_IN = 1
    DIGEST = 2
    IDLE = 3
    LOG = 4
    PORT = 5


@dataclass(frozen=True)
class Event:
    """A report: `id` is the ingress port, digest index, table index or port; now_us counts from the switch's start."""

    kind: EventKind
    id: int
    now_us: int
    data: bytes
