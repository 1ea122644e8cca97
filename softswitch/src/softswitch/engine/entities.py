# SPDX-License-Identifier: Apache-2.0
"""Objects that the control plane writes into a switch program and reads back: entries, groups, counters, events.

All are plain values. Keys, masks and action parameters are in byte form (byte_form.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from softswitch.engine.program_info import TableInfo

NO_PORT = 0xFFFFFFFF


@dataclass(frozen=True)
class DoAction:
    """Runs an action (its index in the table's list) with parameters in byte form."""

    action: int
    params: bytes = b""


@dataclass(frozen=True)
class DoMember:
    """Runs the action of a member of the table's action profile."""

    member: int


@dataclass(frozen=True)
class DoGroup:
    """Runs the action of the member that the selector picks from a group."""

    group: int


Do = DoAction | DoMember | DoGroup


@dataclass(frozen=True)
class Count:
    """A counter cell."""

    packets: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class MeterConfig:
    """A two-rate three-colour meter (RFC 2698): bursts in units, rates in units a second, or (slow) in 10^6 seconds."""

    cir: int
    cburst: int
    pir: int
    pburst: int
    slow: bool = field(default=False, repr=False)


@dataclass(frozen=True)
class Entry:
    """A table entry, which (table, key, mask, priority) identify; the last four fields are results of reading.

    The lower half of the handle is its place in the table, the lowest one that was free; the upper half is how many
    entries have been removed from that place, since the table was last cleared. So BMv2 counts, too."""

    table: TableInfo
    key: bytes
    mask: bytes
    do: Do
    priority: int = 0
    cookie: int = 0
    idle_timeout_ns: int = 0
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
    """A member of an action profile; its action has the p4info id, since each table numbers its actions itself."""

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
    """A clone session: (port, instance) replicas, and those of a multicast group where `group` is not 0."""

    session: int
    replicas: tuple[tuple[int, int], ...]
    truncate_to: int = 0
    group: int = 0


class EventKind(IntEnum):
    """Kinds of events that a switch reports; the numbers are those of ss_event_kind."""

    PACKET_IN = 1
    DIGEST = 2
    IDLE = 3
    LOG = 4
    PORT = 5
    LOST = 6


@dataclass(frozen=True)
class Event:
    """An event: `id` is the ingress port, digest index, table index, port, or kind of the events that were lost; now_us
    counts from the switch's start."""

    kind: EventKind
    id: int
    now_us: int
    data: bytes


@dataclass(frozen=True)
class Stats:
    """How many frames met which end since the switch started or was last reset (ss_stats in runtime/softswitch.h)."""

    received: int
    received_bytes: int
    sent: int
    sent_bytes: int
    packet_ins: int
    dropped_ingress: int
    dropped_egress: int
    dropped_queue: int
    dropped_oversize: int
    dropped_passes: int
    parser_errors: int
    asserts_failed: int
    digests: int
