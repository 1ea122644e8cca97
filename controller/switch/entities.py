# SPDX-License-Identifier: Apache-2.0
"""Table entries, multicast groups and clone sessions as plain values: comparable, printable, and free of any protobuf.

There are millions of them in a fabric of hundreds of switches, so they are msgspec's, whose making and comparing is C.

`State` is what one switch holds or should hold.  Two states are compared by `netfold.controller.switch.reconcile`;
`netfold.controller.switch.codec` turns entities into P4Runtime messages and back.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import msgspec

Value: TypeAlias = int | tuple[int, int]
"""An exact value, or (value, prefix length) for longest prefix match."""


class MeterRate(NamedTuple):
    """The configuration of a meter that counts packets: what exceeds it is red."""

    packets: int
    """Per second."""
    burst: int
    """Packets that may come at once."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A table entry; table and key identify it.  Keys and parameters go by name, in the program's order.

    Without a key it is the default action of a table that has none: always there, never inserted or deleted.
    """

    table: str
    key: tuple[tuple[str, Value], ...]
    action: str
    params: tuple[tuple[str, int], ...] = ()
    rate: MeterRate | None = None
    """Rate of the entry's own meter, in a table with direct meters; None: every packet is green."""

    @property
    def identity(self) -> Identity:
        """Table and key, by which a switch knows the entry."""
        return (self.table, self.key)

    @property
    def is_default(self) -> bool:
        """True if this is a table's default action."""
        return not self.key

    def __str__(self) -> str:
        key = " ".join(f"{name}={_show(name, value)}" for name, value in self.key) or "default"
        params = ", ".join(f"{name}={_show(name, value)}" for name, value in self.params)
        rate = "" if self.rate is None else f", {self.rate.packets} packets/s in bursts of {self.rate.burst}"
        return f"{self.table} {key} -> {self.action.rpartition('.')[2]}({params}){rate}"


class Multicast(msgspec.Struct, frozen=True, gc=False):
    """A multicast group; each copy has a port and an instance, which the program sees as egress_rid."""

    group: int
    replicas: tuple[tuple[int, int], ...]

    @property
    def identity(self) -> Identity:
        """The group's number, by which a switch knows it."""
        return ("multicast", (("group", self.group),))

    def __str__(self) -> str:
        return f"multicast group={self.group} -> " + " ".join(f"{port}:{rid}" for port, rid in self.replicas)


class Clone(msgspec.Struct, frozen=True, gc=False):
    """A clone session and the port to which it sends copies."""

    session: int
    port: int

    @property
    def identity(self) -> Identity:
        """The session's number, by which a switch knows it."""
        return ("clone", (("session", self.session),))

    def __str__(self) -> str:
        return f"clone session={self.session} -> {self.port}"


Identity: TypeAlias = tuple[str, tuple[tuple[str, Value], ...]]
Entity: TypeAlias = Entry | Multicast | Clone
State: TypeAlias = dict[Identity, Entity]


class Conflict(Exception):
    """Two parts of the desired state contradict each other in one entity."""


def state(entities: Iterable[Entity] | State) -> State:
    """Entities by their identities; a state is returned as it is.  Raises Conflict if two different ones have one
    identity."""
    if isinstance(entities, dict):
        return entities
    result: State = {}
    for entity in entities:
        other = result.setdefault(entity.identity, entity)
        if other != entity:
            raise Conflict(f"{entity}\n  contradicts {other}")
    return result


_ADDRESSES = frozenset({"src", "dst", "address", "fold_address"})
_MACS = frozenset({"src_mac", "dst_mac"})
_HEX = frozenset({"children", "mask", "child", "seed", "lose", "flip", "twice", "late"})


def _show(name: str, value: Value) -> str:
    if isinstance(value, tuple):
        return f"{_show(name, value[0])}/{value[1]}"
    if name in _ADDRESSES:
        return str(ipaddress.IPv4Address(value))
    if name in _MACS:
        return ":".join(f"{byte:02x}" for byte in value.to_bytes(6, "big"))
    return hex(value) if name in _HEX else str(value)
