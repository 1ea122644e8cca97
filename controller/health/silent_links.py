# SPDX-License-Identifier: Apache-2.0
"""Suspect links that swallow everything, found sooner than by waiting for as long as a probe may take at worst.

A missing probe tells nothing where the machine, a switch or this controller is late.  So it counts here only if both
ends of its link are known to be in time: probes that were sent with it over other links have left its sender's switch,
and have arrived at its receiver's.  And none counts that was sent while one of the witnesses, which are other links at
the same switches, was late, since any may be.  Where as many in a row are missing as take a link down, for longer than
a probe takes over this link, the receiving switch is asked how many packets have come in at that port since the first
one was missing: if there were any, the link is slow or loses some.

Whatever is not decided here is by the usual count of probes (liveness.py).  A link that this count would take down is
asked about in the same way, and spared for a while where packets come in: on a machine that is busy with much else,
probes come late or find queues full.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from netfold.controller.health.links import Direction, Links
from netfold.controller.switch import tables
from netfold.controller.switch.switch import SwitchError
from netfold.controller.switch.target import Target
from netfold.fabric.graph import End

log = logging.getLogger("netfold.controller")

WITNESSES: Final = 2
"""Other links probed at each end of a suspect one, where there are so many: one may lose a probe."""
MOST_AT_ONCE: Final = 8
"""Most probes that a round sends over a link, each way: a lossy link may need hundreds for a verdict, and the switches'
queues hold some dozens."""
COUNT_TIMEOUT: Final = 0.1
"""Seconds that a switch has to tell how many packets came in at a port."""
LEAST_SILENCE: Final = 0.03
"""Seconds for which all probes of a link must be missing at the least.  Ranks ask after 15 ms or more without a result,
so that packets of a link may come 50 ms later at once than before."""
UNKNOWN_SILENCE: Final = 0.05
"""The same of a link over which no probe has arrived so far."""
SLOWER: Final = 2.0
"""The same is at least this many times as long as a probe takes over the link."""
REPRIEVE: Final = 2.0
"""Seconds for which a link is spared whose probes are lost or late while packets come in: about as long as the regular
probes take to find a link down."""


@dataclass
class _Silence:
    """The probes of a direction of a link that are missing in a row."""

    since: float
    """When the first one was sent."""
    probes: int = 0
    came_in: int = 0
    """Packets that had come in at the receiving port when the first one was missing."""


class SilentLinks:
    """Counts the missing probes of suspect links whose both ends are in time.

    drained  returns the numbers of links that are drained: no packet of ours is sent over them as a witness
    clock    monotonic seconds
    """

    def __init__(
        self, targets: Mapping[str, Target], links: Links, drained: Callable[[], Collection[int]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._targets = targets
        self._links = links
        self._drained = drained
        self.late = False
        """True if, after the last round of probes, one of the witnesses' probes had not arrived in time."""
        self._at: defaultdict[str, list[int]] = defaultdict(list)
        """Numbers of the probed links at each switch."""
        for number in sorted(links.probed):
            for end in links.ends(number, 0):
                self._at[end.node].append(number)
        self._missing: dict[Direction, _Silence] = {}
        self._counted: dict[Direction, int] = {}
        """Packets that had come in at the receiving port of a suspect's direction when it was looked at first."""
        self._spared: dict[int, tuple[float, Mapping[Direction, int]]] = {}
        """Spared links, with the time since when, and the probes that had arrived by then."""

    def witnesses(self, suspects: Collection[int]) -> set[int]:
        """Other links at the ends of these, to be probed with them."""
        unfit = {*self._links.down(), *suspects, *self._drained()}
        found: set[int] = set()
        for node in {end.node for number in suspects for end in self._links.ends(number, 0)}:
            found.update([n for n in self._at[node] if n not in unfit and self._can_answer(n)][:WITNESSES])
        return found

    def _can_answer(self, number: int) -> bool:
        """True if a probe over this link can arrive: both switches are up, and neither port is known to be down."""
        ends = ((self._targets[end.node], end.port) for end in self._links.ends(number, 0))
        return all(target.is_heard and port not in target.ports_down for target, port in ends)

    def is_over(
        self, suspects: Collection[int], witnesses: Collection[int], before: Mapping[Direction, int]
    ) -> bool:
        """True if a round of probes is complete: all have arrived, or all witnesses' probes have, and one that has not
        can be judged.  The parameters are those of `find`."""
        heard = self._heard(before)
        if any((number, way) not in heard for number in witnesses for way in (0, 1)):
            return False
        senders, receivers = self._in_time(heard)
        missing = [(number, way) for number in suspects for way in (0, 1) if (number, way) not in heard]
        return not missing or any(self._has_witnesses(direction, senders, receivers) for direction in missing)

    def wanted(self, suspects: Collection[int]) -> dict[int, int]:
        """The number of probes to send next over each of these links: one, and where one is missing already, all others
        that must be missing for a verdict, MOST_AT_ONCE at the most."""
        missing: dict[int, int] = {}
        for (number, _), silence in self._missing.items():
            missing[number] = max(missing.get(number, 0), silence.probes)
        return {
            number: min(max(1, self._links.allowed_misses(number) - missing[number]), MOST_AT_ONCE)
            if number in missing else 1 for number in suspects
        }

    async def find(
        self, probes: Mapping[int, int], witnesses: Collection[int], before: Mapping[Direction, int], sent: float
    ) -> set[int]:
        """The numbers of those suspect links that let no packet through, in one direction or in both.

        probes     how many were sent last over each suspect link
        witnesses  the other links that were probed with them
        before     probes that had arrived when the last ones were sent
        sent       when that was
        """
        suspects = probes.keys()
        heard = self._heard(before)
        self.late = any((number, way) not in heard for number in witnesses for way in (0, 1))
        self._missing = {direction: one for direction, one in self._missing.items()
                         if direction[0] in suspects and direction not in heard}
        if self.late:
            return set()
        senders, receivers = self._in_time(heard)
        doubtful: list[Direction] = []
        for direction in ((number, way) for number in suspects for way in (0, 1)):
            if direction not in heard and self._has_witnesses(direction, senders, receivers):
                is_first = direction not in self._missing
                missing = self._missing.setdefault(direction, _Silence(sent))
                missing.probes += 1 if is_first else probes[direction[0]]  # sent together, they may be lost together
                if is_first or self._is_long(direction):
                    doubtful.append(direction)
        counts = await self._counts(doubtful)
        return {direction[0] for direction, count in zip(doubtful, counts, strict=True)
                if self._judge(direction, count)}

    async def look(self, suspects: Collection[int]) -> None:
        """Note how many packets have come in so far at the ends of suspects that are new, and forget others."""
        self._counted = {direction: n for direction, n in self._counted.items() if direction[0] in suspects}
        new = [(number, way) for number in sorted(suspects) for way in (0, 1) if (number, way) not in self._counted]
        for direction, count in zip(new, await self._counts(new), strict=True):
            if count is not None:
                self._counted[direction] = count

    async def spare(self, lost: Collection[int]) -> set[int]:
        """The suspect links, due to go down because of missing probes, that are only slow or lossy.  For these, packets
        have arrived at the port of the missing probes since `look` first saw the link; `look` must see them again.  A
        link is spared for at most REPRIEVE without a probe that has arrived both ways, and not if only short probes
        come through."""
        ways = sorted(self._links.lost(lost))
        silent = {direction[0] for direction, count in zip(ways, await self._counts(ways), strict=True)
                  if count is None or count <= self._counted.get(direction, count)
                  or self._links.passes_short_ones(direction)}
        now, arrived = self._clock(), self._links.arrived()
        spared = set()
        for number in set(lost) - silent:
            if number not in self._spared or self._links.arrived_since(self._spared[number][1], number):
                self._spared[number] = now, {(number, way): arrived[number, way] for way in (0, 1)}
            if now < self._spared[number][0] + REPRIEVE:
                spared.add(number)
        for direction in ((number, way) for number in spared for way in (0, 1)):
            self._counted.pop(direction, None)
        return spared

    def _heard(self, before: Mapping[Direction, int]) -> set[Direction]:
        return {direction for direction, count in self._links.arrived().items() if count > before[direction]}

    def _has_witnesses(
        self, direction: Direction, senders: Mapping[str, set[int]], receivers: Mapping[str, set[int]]
    ) -> bool:
        """True if both ends of a direction of a link are in time, according to probes of other links."""
        sender, receiver = self._links.ends(*direction)
        return bool(senders[sender.node] - {direction[0]} and receivers[receiver.node] - {direction[0]})

    def _is_long(self, direction: Direction) -> bool:
        """True if enough probes are missing, for long enough, to take a link down."""
        silence, delay = self._missing[direction], self._links.delay(direction)
        least = UNKNOWN_SILENCE if delay is None else max(LEAST_SILENCE, SLOWER * delay)
        return (silence.probes >= self._links.allowed_misses(direction[0])
                and self._clock() >= silence.since + least)

    def _in_time(self, heard: Iterable[Direction]) -> tuple[defaultdict[str, set[int]], defaultdict[str, set[int]]]:
        """The links by which each switch has sent, and has received, probes that arrived."""
        senders: defaultdict[str, set[int]] = defaultdict(set)
        receivers: defaultdict[str, set[int]] = defaultdict(set)
        for direction in heard:
            sender, receiver = self._links.ends(*direction)
            senders[sender.node].add(direction[0])
            receivers[receiver.node].add(direction[0])
        return senders, receivers

    def _judge(self, direction: Direction, count: int | None) -> bool:
        """True if a direction of a link lets no packet through.

        count  packets received at its port so far; None: the switch does not tell
        """
        silence = self._missing[direction]
        if count is not None and silence.probes == 1:
            silence.came_in = count
        elif count is None or count != silence.came_in:
            del self._missing[direction]  # the next one that is missing is the first
        return direction in self._missing and self._is_long(direction)

    async def _counts(self, directions: Iterable[Direction]) -> list[int | None]:
        """Packets that have come in so far where these directions end."""
        return await asyncio.gather(*(self._packets_in(self._links.ends(*one)[1]) for one in directions))

    async def _packets_in(self, end: End) -> int | None:
        """Packets that have come in at a port so far; None where the switch does not say."""
        try:
            async with asyncio.timeout(COUNT_TIMEOUT):
                return await self._targets[end.node].client.read_cell(tables.PORT_IN, end.port)
        except (SwitchError, TimeoutError) as error:
            log.debug("packets in at %s are not known: %s", end, error or f"no answer within {COUNT_TIMEOUT:g} s")
            return None
