# SPDX-License-Identifier: Apache-2.0
"""Which switches and links are up, from three witnesses: sessions, ports, probes; and what hosts suspect.

    session ends, port event ----------------------.
    a probe of every link, each `probe` seconds  --+--> changed: routes, paths and jobs are planned anew
    ranks without results: their trees' links, every QUICK seconds, until each has answered or is found down
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

import networkx as nx

from netfold.controller.health.links import Links
from netfold.controller.health.steadiness import Steadiness
from netfold.controller.switch.switch import SwitchError
from netfold.controller.switch.target import Target
from netfold.fabric.graph import End, Fabric

log = logging.getLogger("netfold.controller")

USUAL: Final = 0.5
"""Seconds between probes of links that are down, where the fabric wants no others."""
QUICK: Final = 0.03
"""Seconds between probes of a link that hosts suspect: more than a probe takes on a busy machine."""
DISCOVER: Final = 2.0
"""Seconds for a probe to come out somewhere, if it does."""
REPEAT: Final = 0.25
"""Seconds until it is sent again."""


class Liveness:
    """Of one fabric.

    targets  the switches by name
    changed  is called whenever something may be up or down that was not
    """

    def __init__(self, fabric: Fabric, targets: Mapping[str, Target], changed: Callable[[], None]) -> None:
        self._fabric = fabric
        self._targets = targets
        self._changed = changed
        self._links = Links(fabric)
        self._steadiness = Steadiness(fabric.steady)
        self._again: asyncio.TimerHandle | None = None
        self._miswired: set[str] = set()
        self._told_down: set[int] = set()
        self._suspects: set[int] = set()
        self._inquiry: asyncio.Task[None] | None = None

    # ---- what is up ------------------------------------------------------------------------------------------------

    def graph(self, *, steady: bool = False) -> nx.MultiGraph[str]:
        """The fabric less the switches and links that are down; ``steady``: and less those that have only just come
        back."""
        graph = self._fabric.graph()
        without = set(self._steadiness.unsteady()) if steady else set()
        lost = without | self.links_down().keys()
        graph.remove_edges_from([edge for edge in graph.edges(keys=True) if edge[2] in lost])
        down = {target.name for target in self._targets.values() if not target.is_up}
        graph.remove_nodes_from([node for node in graph if node in down or node in without])
        return graph

    def links_down(self) -> dict[int, str]:
        """Numbers of the links that are down (in the fabric's order), and why."""
        # of suspects, probes that were sent a moment ago count as lost already: only the inquiry judges them
        down = dict.fromkeys(self._links.down() - self._suspects, "its probes are lost")
        dark = {End(name, port) for name, target in self._targets.items() for port in target.ports_down}
        for number, link in enumerate(self._fabric.links):
            for end in dark.intersection(link.ends):
                down[number] = f"{end} is down"
        return down

    def tell(self) -> None:
        """Log what went down or came back since the last time, and look again when the latter is steady."""
        now = self.links_down()
        for number in sorted(now.keys() ^ self._told_down):
            link = self._fabric.links[number]
            log.warning("link %s - %s is %s", link.a, link.b, f"down: {now[number]}" if number in now else "up")
        self._told_down = set(now)
        self._steadiness.note({*now, *(target.name for target in self._targets.values() if not target.is_up)})
        if self._again is not None:
            self._again.cancel()
        wait = self._steadiness.next()
        self._again = None if wait is None else asyncio.get_running_loop().call_later(wait, self._changed)

    # ---- probes ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Probe links every so often, until cancelled: all, or only those that are down where the fabric wants no
        probes, since nothing else would tell that they are up again."""
        while True:
            await asyncio.sleep(self._fabric.probe or USUAL)
            try:
                if self._fabric.probe:
                    await self.check()
                elif down := self._links.down() - self._suspects:
                    await self._probe(down)
            except Exception:  # or nobody would notice any failure from now on
                log.exception("probing links failed")

    async def check(self) -> None:
        """One round: what came of the last probes, and the next ones."""
        await self._probe(None)

    def suspect(self, links: Collection[int]) -> None:
        """Hosts get nothing over these links: probe them at once.  Returns at once."""
        self._suspects |= set(links) & self._links.probed - self._links.down()
        if self._suspects and (self._inquiry is None or self._inquiry.done()):
            self._inquiry = asyncio.create_task(self._inquire(), name="suspect links")

    async def answer(self, links: Collection[int], within: float) -> bool:
        """Whether a probe that is sent from now on comes through all these links, both ways, within so many seconds.
        Nobody is judged by that: a queue may hold probes up."""
        self._listen()  # what has come so far does not count
        before, clock = self._links.arrived(), asyncio.get_running_loop().time
        again, end = clock(), clock() + within
        while silent := {number for number in links if not self._links.arrived_since(before, number)}:
            if clock() >= end:
                return False
            if clock() >= again:
                await self._send(silent, judged=False)
                again = clock() + REPEAT
            await asyncio.sleep(QUICK)
            self._listen()
        return True

    async def discover(self) -> dict[End, End]:
        """Where the ends of links between switches lead, asked now: by the end that sends, where it came out.  What
        does not come out anywhere within DISCOVER seconds is not in it; nobody is judged by that."""
        self._listen()  # what has come so far does not count
        self._links.seen.clear()
        clock, up = asyncio.get_running_loop().time, [t.name for t in self._targets.values() if t.is_up]
        end = again = clock()
        end += DISCOVER
        while unseen := self._links.unseen(up):
            if clock() >= again:
                if again >= end:
                    break
                await self._send(unseen, judged=False)  # some links lose packets, on purpose or not
                again = clock() + REPEAT
            await asyncio.sleep(QUICK)
            self._listen()
        return dict(self._links.seen)

    async def close(self) -> None:
        """Ends what is under way."""
        if self._again is not None:
            self._again.cancel()
        if self._inquiry is not None:
            self._inquiry.cancel()
            await asyncio.gather(self._inquiry, return_exceptions=True)

    async def _inquire(self) -> None:
        """Probe the suspects until each has answered or is down.  Where none answers, it may be us who are late: then
        none is judged, and the usual probes will tell."""
        try:
            self._listen()
            before, answered = self._links.arrived(), False
            while self._suspects:
                await self._send(self._suspects)
                await asyncio.sleep(QUICK)
                self._listen()
                answers = {number for number in self._suspects if self._links.arrived_since(before, number)}
                answered |= bool(answers)
                guilty = self._suspects & self._links.down()
                self._suspects -= answers | guilty
                if guilty and not answered:
                    log.warning("no suspect link answers: none is judged by that")
                    self._links.forget(guilty | self._suspects)
                    self._suspects.clear()
                self._compare()
        except Exception:
            log.exception("probing suspect links failed")
            self._suspects.clear()

    async def _probe(self, only: Collection[int] | None) -> None:
        self._listen()
        await self._send(only)
        self._compare()

    def _listen(self) -> None:
        for name, target in self._targets.items():
            if not target.is_up:
                continue
            packets = target.client.packets
            while not packets.empty():
                packet = packets.get_nowait()
                problem = self._links.heard(name, packet.port, packet.payload)
                if problem and problem not in self._miswired:
                    self._miswired.add(problem)
                    log.error("%s", problem)

    async def _send(self, only: Collection[int] | None, *, judged: bool = True) -> None:
        up = {target.name: target.client for target in self._targets.values() if target.is_up}
        doubtful = self._links.down() | self._suspects
        for probe in (*self._links.knocks(up, doubtful), *self._links.round(up, only, judged=judged)):
            try:
                await up[probe.switch].packet_out(probe.port, probe.frame)
            except SwitchError as error:
                log.warning("%s", error)

    def _compare(self) -> None:
        if self.links_down().keys() != self._told_down:
            self._changed()
