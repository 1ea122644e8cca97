# SPDX-License-Identifier: Apache-2.0
"""The parts of a running switch program: its tables, actions, counters and other objects, as plain values.

A match field is a pair of integers (value, mask), whose second half depends on the kind of match:

    exact     (value, all ones)            lpm       (value, prefix mask)
    ternary   (value, mask)                optional  (value, all ones) or (0, 0) for "any"
    range     (low end, high end)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from softswitch.engine.byte_form import pack_fields, unpack_fields, width
from softswitch.engine.errors import InvalidArgument


class MatchKind(IntEnum):
    """How a key field is compared; the numbers are those of ss_match."""

    EXACT = 0
    LPM = 1
    TERNARY = 2
    RANGE = 3
    OPTIONAL = 4


class Unit(IntEnum):
    """The unit that a counter or meter counts; the numbers are those of ss_unit."""

    PACKETS = 0
    BYTES = 1
    PACKETS_AND_BYTES = 2


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
        """The (value, mask) that every packet matches. Raises InvalidArgument for an exact field, which has none."""
        if self.match is MatchKind.EXACT:
            raise InvalidArgument(f"key field {self.name} is exact and must be given")
        return (0, self.ones if self.match is MatchKind.RANGE else 0)

    def prefix(self, value: int, length: int) -> tuple[int, int]:
        """The (value, mask) of the prefix value/length. Raises InvalidArgument."""
        if not 0 <= length <= self.bits:
            raise InvalidArgument(f"key field {self.name}: prefix length {length} is not within 0..{self.bits}")
        mask = self.ones & ~((1 << (self.bits - length)) - 1)
        return (value & mask, mask)


def pack_key(keys: Sequence[KeyField], fields: Sequence[tuple[int, int]], what: str) -> tuple[bytes, bytes]:
    """Encodes (value, mask) pairs as key and mask in byte form. Raises InvalidArgument."""
    bits = [key.bits for key in keys]
    return (pack_fields([value for value, _ in fields], bits, f"{what} key"),
            pack_fields([mask for _, mask in fields], bits, f"{what} mask"))


def unpack_key(keys: Sequence[KeyField], key: bytes, mask: bytes) -> list[tuple[int, int]]:
    """Decodes what `pack_key` encodes."""
    bits = [field.bits for field in keys]
    return list(zip(unpack_fields(key, bits), unpack_fields(mask, bits), strict=True))


@dataclass(frozen=True)
class ActionInfo:
    """An action of one table; `index` is its position in the table's list."""

    index: int
    name: str
    id: int
    param_bits: tuple[int, ...]

    def pack(self, values: Sequence[int]) -> bytes:
        """Encodes parameters in byte form. Raises InvalidArgument."""
        return pack_fields(values, self.param_bits, f"action {self.name}")

    def unpack(self, params: bytes) -> list[int]:
        """Decodes parameters from byte form."""
        return unpack_fields(params, self.param_bits)


@dataclass(frozen=True)
class Named:
    """An object of the program: its position in its list, control-plane name, and p4info id."""

    index: int
    name: str
    id: int


@dataclass(frozen=True)
class TableInfo(Named):
    """A table; profile, direct_counter and direct_meter are indices of these objects, or -1."""

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
        """Length of a key in byte form."""
        return sum(width(key.bits) for key in self.keys)

    @property
    def has_priority(self) -> bool:
        """True if entries may overlap, so that their priority decides."""
        return any(key.match in (MatchKind.TERNARY, MatchKind.RANGE, MatchKind.OPTIONAL) for key in self.keys)

    def pack_key(self, fields: Sequence[tuple[int, int]]) -> tuple[bytes, bytes]:
        """Encodes (value, mask) pairs as key and mask in byte form. Raises InvalidArgument."""
        return pack_key(self.keys, fields, f"table {self.name}")

    def unpack_key(self, key: bytes, mask: bytes) -> list[tuple[int, int]]:
        """Decodes what `pack_key` encodes."""
        return unpack_key(self.keys, key, mask)

    def action(self, name: str | int) -> ActionInfo:
        """The action of this control-plane name (its last part is enough where unique) or p4info id.

        Raises InvalidArgument where there is none, or several.
        """
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
    """An action profile; an action selector where `selector` is true."""

    size: int
    selector: bool
    max_group_size: int


@dataclass(frozen=True)
class DigestInfo(Named):
    """A digest, with the widths of its fields in bits."""

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
_Object = TypeVar("_Object", bound=Named)


def by_name(things: Iterable[_Thing], name: str) -> list[_Thing]:
    """The objects called `name`, or, where there is none, those whose name ends in .name."""
    things = list(things)
    return [t for t in things if t.name == name] or [t for t in things if t.name.endswith("." + name)]


def find(things: Sequence[_Object], kind: str, which: str | int) -> _Object:
    """The object of this control-plane name or p4info id; ``kind`` names it in the InvalidArgument that is raised."""
    found = [t for t in things if t.id == which] if isinstance(which, int) else by_name(things, which)
    if len(found) != 1:
        have = ", ".join(t.name for t in things) or "none"
        raise InvalidArgument(f"{kind} {which} is {'ambiguous' if found else 'unknown'} (the program has {have})")
    return found[0]
