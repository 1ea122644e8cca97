# SPDX-License-Identifier: Apache-2.0
"""Why a packet was dropped, in words that name the place in the program that caused it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from softswitch.trace.program import Place
from softswitch.trace.steps import Step

DROP_PORT = 511


class DropReason(IntEnum):
    """Why the switch dropped a packet, with the numbers of ss_drop_reason (runtime/records.h)."""

    INGRESS = 1
    EGRESS = 2
    NO_GROUP = 3
    EMPTY_GROUP = 4
    QUEUE_FULL = 5
    NO_PORT = 6
    PORT_DOWN = 7
    TOO_LONG_IN = 8
    TOO_LONG_OUT = 9
    TOO_MANY_PASSES = 10
    NO_MEMORY = 11
    BAD_PORT = 12
    TRUNCATED = 13


@dataclass(frozen=True, slots=True)
class Writer:
    """The statement that last wrote a field of standard metadata, and the table by which it came to run, if any."""

    place: Place
    text: str
    table: Step | None

    def __str__(self) -> str:
        said = f"{self.text or 'assigned'} at {self.place.brief}"
        if self.table is None:
            return said
        about = self.table.about
        how = f"hit entry {about['slot']}" if about.get("hit") else "no entry matched: its default action"
        return f"{said}, in action {about.get('action')} of table {self.table.name} ({how})"


def words(reason: DropReason, detail: int, writer: Writer | None, missed: list[str]) -> str:
    """One sentence; `writer` is who wrote egress_spec or mcast_grp, `missed` are tables without a matching entry."""
    by = f" ({writer})" if writer else ""
    match reason:
        case DropReason.INGRESS | DropReason.EGRESS:
            return f"egress_spec is {DROP_PORT} at the end of {reason.name.lower()}{by}"
        case DropReason.NO_GROUP:
            return f"multicast group {detail} does not exist{by}"
        case DropReason.EMPTY_GROUP:
            return f"multicast group {detail} has no replicas{by}"
        case DropReason.QUEUE_FULL:
            return f"the queue of port {detail} is full"
        case DropReason.NO_PORT:
            return f"the switch has no port {detail}{by or never(detail, missed)}"
        case DropReason.PORT_DOWN:
            return f"the interface of port {detail} is down or gone{by}"
        case DropReason.TOO_LONG_IN:
            return f"the frame of {detail} bytes is longer than the switch takes (16384)"
        case DropReason.TOO_LONG_OUT:
            return f"the frame would leave with {detail} bytes, longer than any may be (16384)"
        case DropReason.TOO_MANY_PASSES:
            return (
                "it went round too often: resubmitted, recirculated or cloned more than 4096 times, "
                "or with more than 256 MiB of values"
            )
        case DropReason.NO_MEMORY:
            return "no memory for a copy"
        case DropReason.BAD_PORT:
            return f"there is no port {detail}: ports have 9 bits, and 511 means drop"
        case DropReason.TRUNCATED:
            return "truncate(0): no byte of it is left to send"


def never(port: int, missed: list[str]) -> str:
    """The remark for an egress_spec that was never written: it is 0 then, which is an ordinary port and no drop."""
    if port != 0:
        return ""
    tables = f"; no entry matched in {', '.join(missed)}" if missed else ""
    return f": the program never assigned egress_spec, which is port 0 then and not a drop{tables}"
