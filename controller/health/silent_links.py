# SPDX-License-Identifier: Apache-2.0
"""Suspect links that swallow everything, found sooner than by waiting for as long as a probe may take at worst.

A missing probe tells nothing where the machine, a switch or this controller is late.  So it counts here only if both
ends of its link are known to be in time: probes that were sent with it over other links have left its sender's switch,
and have arrived at its receiver's.  And where one of the witnesses, which are other links at the same switches, is late
with a probe, all begin to count anew, since any may be.  Where as many in a row are missing as take a link down, the
receiving switch is asked how many packets have come in at that port since the first one was missing: if there were
any, the link is slow or loses some.  Whatever is not decided here is by the usual count of probes (liveness.py).
A link on which a packet takes longer than all of these probes, 50 ms by default, counts as one that swallows.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from netfold.controller.health.links import Direction, Links
from netfold.controller.switch import tables
from netfold.controller.switch.switch import SwitchError
from netfold.controller.switch.target import Target
from netfold.fabric.graph import End

log = logging.getLogger("netfold.controller")

WITNESSES: Final = 2
"""Other links probed at each end of a suspect one, where there are so many: one may lose a probe."""
COUNT_TIMEOUT: Final = 0.1
"""Seconds that a switch has to tell how many packets came in at a port."""


class SilentLinks:
    """Counts the missing probes of suspect links whose both ends are in time.

    drained  returns the numbers of links that are drained: no packet of ours is sent over them as a witness
    """

    def __init__(
        self, targets: Mapping[str, Target], links: Links, drained: Callable[[], Collection[int]] = tuple
    ) -> None:
        self._targets = targets
        self._links = links
        self._drained = drained
        self.late = False
        """Whether, after the last round of probes, one of the witnesses' probes had not arrived in time."""
        self._at: defaultdict[str, list[int]] = defaultdict(list)
        """Numbers of the probed links at each switch."""
        for number in sorted(links.probed):
            for end in links.ends(number, 0):
                self._at[end.node].append(number)
        self._missing: dict[Direction, int] = {}
        """Probes missing in a row."""
        self._came_in: dict[Direction, int] = {}
        """Packets that had come in at the receiving port when the first one of these was missing."""

    def witnesses(self, suspects: Collection[int]) -> set[int]:
        """Other links at the ends of these, to be probed with them."""
        unfit = {*self._links.down(), *suspects, *self._drained()}
        found: set[int] = set()
        for node in {end.node for number in suspects for end in self._links.ends(number, 0)}:
            found.update([n for n in self._at[node] if n not in unfit and self._can_answer(n)][:WITNESSES])
        return found

    def _can_answer(self, number: int) -> bool:
        """Whether a probe over this link can arrive: both switches are up, and neither port is known to be down."""
        ends = ((self._targets[end.node], end.port) for end in self._links.ends(number, 0))
        return all(target.is_up and port not in target.ports_down for target, port in ends)

    async def find(
        self, suspects: Collection[int], witnesses: Collection[int], before: Mapping[Direction, int]
    ) -> set[int]:
        """The numbers of those suspect links that let no packet through, in one direction or in both.

        witnesses  the other links that were probed with them
        before     probes that had arrived when the last ones were sent
        """
        heard = {direction for direction, count in self._links.arrived().items() if count > before[direction]}
        self.late = any((number, way) not in heard for number in witnesses for way in (0, 1))
        if self.late:
            self._missing.clear()
            return set()
        senders, receivers = self._in_time(heard)
        self._missing = {direction: n for direction, n in self._missing.items() if direction[0] in suspects}
        doubtful: list[Direction] = []
        for direction in ((number, way) for number in suspects for way in (0, 1)):
            sender, receiver = self._links.ends(*direction)
            if direction in heard:
                self._missing.pop(direction, None)
            elif senders[sender.node] - {direction[0]} and receivers[receiver.node] - {direction[0]}:
                missing = self._missing[direction] = self._missing.get(direction, 0) + 1
                if missing == 1 or missing >= self._links.allowed_misses(direction[0]):
                    doubtful.append(direction)
        counts = await asyncio.gather(*(self._packets_in(self._links.ends(*one)[1]) for one in doubtful))
        return {direction[0] for direction, count in zip(doubtful, counts, strict=True)
                if self._judge(direction, count)}

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
        """Whether a direction of a link lets no packet through.

        count  packets that have come in at its receiving port so far; None: the switch does not say
        """
        if count is not None and self._missing[direction] == 1:
            self._came_in[direction] = count
        elif count is None or count != self._came_in.get(direction):
            del self._missing[direction]  # the next one that is missing is the first
        return direction in self._missing and self._missing[direction] >= self._links.allowed_misses(direction[0])

    async def _packets_in(self, end: End) -> int | None:
        """Packets that have come in at a port so far; None where the switch does not say."""
        try:
            async with asyncio.timeout(COUNT_TIMEOUT):
                return await self._targets[end.node].client.read_cell(tables.PORT_IN, end.port)
        except (SwitchError, TimeoutError) as error:
            log.debug("packets in at %s are not known: %s", end, error or f"no answer within {COUNT_TIMEOUT:g} s")
            return None
