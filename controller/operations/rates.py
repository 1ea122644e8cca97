# SPDX-License-Identifier: Apache-2.0
"""Rates from two statuses of a fabric, which are never above what a link can carry.

Switches are read one after the other, and so are a switch's counters: each difference is divided by the time between
its own two readings.  A switch counts a packet as it hands it to the interface, ahead of the queue that limits the
link's rate, and a reading's moment is known to half a round trip; so more may be counted within an interval than the
link carried.  What is above the link's rate is counted in the next interval, up to OWED seconds of it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from netfold.fabric.graph import bits_per_second
from netfold.wire.operator import LinkStatus, Status, SwitchStatus, Traffic

OWED: Final = 1.0
"""Most seconds of a link's rate that are carried over to the next interval: an interface's queue holds no more."""


class DirectionRate(NamedTuple):
    """The rates of one direction of a link; None: unknown, since a reading is missing or the switch counts from 0
    again."""

    bits: float | None
    """Per second, of Ethernet frames without FCS."""
    packets: float | None
    """Per second."""
    lost: float | None
    """Packets per second that injected faults dropped."""


class LinkRate(NamedTuple):
    """The rates of a link, from its first end to its second, and back."""

    there: DirectionRate
    back: DirectionRate


class SwitchRate(NamedTuple):
    """The rates of a switch; None as in DirectionRate."""

    folded: float | None
    """New contributions and results."""
    repeats: float | None


class FabricRates(NamedTuple):
    """Rates of all links and switches, in the order of the status."""

    links: list[LinkRate]
    switches: list[SwitchRate]


NOTHING: Final = DirectionRate(None, None, None)


class Rates:
    """The rates of one fabric from one status to the next.  It remembers what links still owe."""

    def __init__(self) -> None:
        self._before: Status | None = None
        self._owed: dict[tuple[int, bool], float] = {}
        """Bits that were counted above the link's rate, by number of the link, and whether it is the way back."""

    def update(self, now: Status) -> FabricRates:
        """Rates since the status before; all None for the first one, and where the fabric has changed."""
        before, self._before = self._before, now
        if before is None or [link.a for link in before.links] != [link.a for link in now.links] or [
                switch.name for switch in before.switches] != [switch.name for switch in now.switches]:
            self._owed.clear()
            return FabricRates([LinkRate(NOTHING, NOTHING)] * len(now.links),
                               [SwitchRate(None, None)] * len(now.switches))
        return FabricRates(
            [self._link(number, old, new) for number, (old, new) in
             enumerate(zip(before.links, now.links, strict=True))],
            [_switch(old, new) for old, new in zip(before.switches, now.switches, strict=True)],
        )

    def _link(self, number: int, old: LinkStatus, new: LinkStatus) -> LinkRate:
        limit = None if new.rate is None else bits_per_second(new.rate)
        return LinkRate(self._direction((number, False), old.a_to_b, new.a_to_b, limit),
                        self._direction((number, True), old.b_to_a, new.b_to_a, limit))

    def _direction(self, key: tuple[int, bool], old: Traffic, new: Traffic, limit: float | None) -> DirectionRate:
        seconds = _between(old.read, new.read)
        if seconds is None or new.bytes < old.bytes or new.packets < old.packets:
            self._owed.pop(key, None)
            return NOTHING
        bits = (new.bytes - old.bytes) * 8.0
        if limit is not None:
            bits += self._owed.get(key, 0.0)
            carried = min(bits, limit * seconds)
            self._owed[key] = min(bits - carried, limit * OWED)
            bits = carried
        return DirectionRate(bits / seconds, (new.packets - old.packets) / seconds,
                             max(0, new.lost - old.lost) / seconds)


def _switch(old: SwitchStatus, new: SwitchStatus) -> SwitchRate:
    seconds = _between(old.read, new.read)
    if seconds is None or new.folded.first < old.folded.first:
        return SwitchRate(None, None)
    return SwitchRate((new.folded.first - old.folded.first) / seconds,
                      max(0, new.folded.repeats - old.folded.repeats) / seconds)


def _between(old: float, new: float) -> float | None:
    """Seconds between two readings; None where one is missing, or they are of different controllers' clocks."""
    return new - old if old > 0 and new > old else None
