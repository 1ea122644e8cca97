# SPDX-License-Identifier: Apache-2.0
"""Switches whose P4Runtime server is silent, and whether their data planes live.

A link's probes are sent and taken in by the servers at its ends (links.py): where one of them is silent, none arrives,
though the data plane may go on folding.  Such a switch's neighbours ask its data plane itself:

    neighbour --packet-out--> the silent switch, which routes it to a host elsewhere --> any neighbour, which counts it

The packets are for hosts, as datagrams with a wrong checksum, which their kernels drop.  A link passes where enough
of what was sent over it came out of the switch, and some of that at the link itself.  While a switch is silent, this
alone judges its links; nothing is written to it, and no new tree is planned over it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from ipaddress import IPv4Address
from typing import Final

from netfold.controller.health.links import Links, mac_bytes, with_checksum
from netfold.controller.switch import tables
from netfold.controller.switch.switch import SwitchError
from netfold.controller.switch.target import Target
from netfold.fabric.graph import End, Fabric

log = logging.getLogger("netfold.controller")

ANSWER: Final = 0.2
"""Seconds for a server's answer: one that is busy needs some 10 ms."""
QUESTIONS: Final = 2
"""Questions in a row without an answer that make a server silent: jobs that are just planned lose their trees by it."""
LATE: Final = 0.05
"""Seconds that a question may last beyond ANSWER.  If it lasts longer, this process was itself late, and judges no
server."""
PACKETS: Final = 8
"""Packets over a link for each link of its far switch, which spreads them over all of these."""
LEAST_SHARE: Final = 0.25
"""Share of the packets that must come out of the switch, of those that it spreads over links which are up: links may
lose some, on purpose."""
MISSES: Final = 4
"""Looks in a row at which nothing came through a link that takes it down: a busy machine is late."""
PASSAGE: Final = 0.1
"""Seconds for them to pass: a queue may be full."""
LONGEST: Final = 1.0
"""Seconds for all of that, and for all links of one look, of which the next one goes on with the rest: a neighbour may
hang, too."""
LOOK: Final = 0.01
"""Seconds between two looks at the counters."""
STALLED: Final = 1.5
"""Seconds for which ranks must report repeatedly that they wait for results, until a link without other evidence is
given up: a single late packet is reported too."""
AGAIN: Final = 2.0
"""Most seconds between two such reports; a rank sends one at least every 1.6 s (host/innet/stall_detector.py)."""
_SOURCE_PORT: Final = 0xC100
"""The first of their UDP source ports, by which a switch spreads them."""
_DISCARD: Final = 9
"""The UDP port of the discard service (RFC 863)."""
_LEAST_FRAME: Final = 60


class SilentControl:
    """Which switches are silent, and which of their links let nothing through.

    targets  the switches by name
    links    the links' probes
    changed  called when a switch falls silent, answers again, or a link of such a switch goes down or comes up
    sleep    waits so many seconds
    clock    monotonic seconds
    """

    def __init__(
        self, fabric: Fabric, targets: Mapping[str, Target], links: Links, changed: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fabric = fabric
        self._targets = targets
        self._links = links
        self._changed = changed
        self._sleep = sleep
        self._clock = clock
        self._busy = asyncio.Lock()
        self._of: defaultdict[str, list[tuple[int, End]]] = defaultdict(list)
        """Each switch's links to others: number, and the other one's end."""
        for number in sorted(links.probed):
            a, b = links.ends(number, 0)
            self._of[a.node].append((number, b))
            self._of[b.node].append((number, a))
        self._resuming: dict[str, asyncio.Task[None]] = {}
        """Writes under way to switches that answer again, by name of the switch."""
        self._judged_at: dict[int, float] = {}
        """When each link of a silent switch was judged last."""
        self._stalled: dict[int, tuple[float, float]] = {}
        """Link -> time since which ranks report that they wait for results over it, and time of the last report."""
        self._missing: dict[int, int] = {}
        """Number of successive checks in which each link of a silent switch has let nothing through."""
        self.dead: set[int] = set()
        """Links of silent switches that let nothing through, by number."""

    @property
    def silent(self) -> set[str]:
        """The names of the switches that are silent."""
        return {name for name, target in self._targets.items() if target.is_up and target.silence}

    @property
    def judged(self) -> set[int]:
        """Links of silent switches, which probes do not judge, by number."""
        return {number for name in self.silent for number, _ in self._of[name]}

    async def consider(
        self, doubtful: Collection[int] = (), stuck: Collection[str] = (), stalled: Collection[int] = ()
    ) -> None:
        """Ask the servers that are silent, those at the ends of these links, and those that take nothing more, and
        judge the links of those that do not answer.  One look is enough for these links, MISSES are for the others.

        doubtful  links whose probes are missing
        stuck     switches that take nothing more
        stalled   links over which ranks wait for results
        """
        doubtful = {*doubtful, *stalled}
        now = self._clock()
        self._stalled = {number: told for number, told in self._stalled.items() if now <= told[1] + AGAIN}
        self._stalled.update({number: (self._stalled.get(number, (now,))[0], now) for number in stalled})
        async with self._busy:
            before, dead = self.silent, set(self.dead)
            asked = before | set(stuck) | {end.node for number in doubtful for end in self._links.ends(number, 0)}
            await asyncio.gather(*(self._ask(name) for name in sorted(asked)))
            judged = self.judged
            self._links.reset(judged)
            passing, later = await self._passing(judged, doubtful) if judged else (set(), set())
            self._missing = {number: self._missing.get(number, 0) + (number not in later)
                             for number in judged - passing}
            self.dead = {number for number, misses in self._missing.items()
                         if number in self.dead or (number not in later and (number in doubtful or misses >= MISSES))}
            if (before, dead) != (self.silent, self.dead):
                self._changed()

    async def _ask(self, name: str) -> None:
        """Ask one server for a sign of life."""
        target = self._targets[name]
        if not target.is_up:
            return
        for left in reversed(range(1 if target.silence else QUESTIONS)):
            began = self._clock()
            try:
                async with asyncio.timeout(ANSWER):
                    await target.hear()
                break
            except (SwitchError, TimeoutError):
                if self._clock() > began + ANSWER + LATE or not target.is_up:
                    return
                if left:
                    continue
                first = not target.silence
                target.fall_silent(f"its P4Runtime server has not answered in {QUESTIONS} times {ANSWER:g} s; its jobs "
                                   "go on while its links let packets through")
                if first:
                    log.warning("%s: %s", name, target.silence)
                return
        if target.silence:
            log.warning("%s answers again", name)
            await self._resume(name)

    async def _resume(self, name: str) -> None:
        """Write what a switch lacks.  One that takes long goes on by itself: it must not hold up the others' links."""
        if (before := self._resuming.get(name)) is not None:
            before.cancel()  # this one reads what it has written
        task = self._resuming[name] = asyncio.create_task(self._targets[name].resume(), name=f"resuming {name}")
        await asyncio.wait({task}, timeout=ANSWER)
        if task.done() and not task.cancelled():
            task.result()

    async def close(self) -> None:
        """Cancel what is under way."""
        for task in self._resuming.values():
            task.cancel()
        await asyncio.gather(*self._resuming.values(), return_exceptions=True)

    async def _passing(self, judged: Collection[int], doubtful: Collection[int]) -> tuple[set[int], set[int]]:
        """Links of silent switches that let packets through, and links that the next check must judge, since LONGEST
        was over or nothing is known of them.

        A link between two silent switches counts as passing where other links of both do.  If no neighbour of one is
        heard either, as when the network of the servers has failed, nothing is known, and ranks alone can tell: those
        that wait for results all the time.
        """
        heard = {number for number in judged if self._near_and_far(number) is not None}
        # whether none passes is known sooner than of each
        some = bool(heard) and await self.passes(sorted(heard), some=True)
        passing, later, began = set[int](), set[int](), self._clock()
        # doubtful ones first, and of each kind those that the last looks had no time for
        order = sorted(heard, key=lambda number: (number not in doubtful, self._judged_at.get(number, 0.0), number))
        for number in order if some else ():
            if self._clock() > began + LONGEST:
                later.add(number)
                continue
            self._judged_at[number] = self._clock()
            if await self.passes([number]):
                passing.add(number)
        passed, hopeful, now = set(passing), passing | later, self._clock()
        stalled = {number for number, (since, _) in self._stalled.items() if now >= since + STALLED}
        for number in set(judged) - heard:
            others = [{other for other, _ in self._of[end.node]} for end in self._links.ends(number, 0)]
            if all(passed & of_end for of_end in others):
                passing.add(number)
            elif all(hopeful & of_end or (number not in stalled and not heard & of_end) for of_end in others):
                later.add(number)
        return passing, later

    def _near_and_far(self, number: int) -> tuple[End, End] | None:
        """A link's end at a switch that is heard, and the one at a silent switch."""
        a, b = self._links.ends(number, 0)
        near, far = (b, a) if self._targets[a.node].silence else (a, b)
        return (near, far) if self._is_heard(near) else None

    async def passes(self, numbers: Collection[int], *, some: bool = False) -> bool:
        """Send packets over links to silent switches.  Returns whether enough of them came out again, some by each of
        the links themselves; with ``some``, whether any did."""
        over = [ends for number in numbers if (ends := self._near_and_far(number)) is not None]
        ways = {number: end for _, far in over for number, end in self._of[far.node] if self._is_heard(end)}
        least = 0.0
        try:
            async with asyncio.timeout(LONGEST):
                before = await self._came_in(ways)
                for near, far in over:
                    links = [number for number, _ in self._of[far.node]]
                    least += LEAST_SHARE * PACKETS * sum(number in ways for number in links)
                    # one link's worth in all where any packet will do
                    share = sum(end.node == far.node for _, end in over) if some else 1
                    for frame in itertools.islice(self._frames(near, far), -(-PACKETS * len(links) // share)):
                        await self._targets[near.node].client.packet_out(near.port, frame)
                for _ in range(round(PASSAGE / LOOK)):
                    await self._sleep(LOOK)
                    now = await self._came_in(ways)
                    came = {number: now[number] - before[number] for number in ways}
                    if any(came.values()) if some else sum(came.values()) >= least and all(came[n] for n in numbers):
                        return True
        except (SwitchError, TimeoutError) as error:
            log.debug("whether links of silent switches let packets through is not known: %s", error)
        return False

    def _is_heard(self, end: End) -> bool:
        target = self._targets[end.node]
        return target.is_heard and end.port not in target.ports_down

    async def _came_in(self, ways: Mapping[int, End]) -> dict[int, int]:
        """Packets that have come in so far at these ends, by the number of each one's link.  Raises SwitchError."""
        counts = await asyncio.gather(*(self._targets[end.node].client.read_cell(tables.PORT_IN, end.port)
                                        for end in ways.values()))
        return dict(zip(ways, counts, strict=True))

    def _frames(self, near: End, far: End) -> Iterator[bytes]:
        """Datagrams for hosts that are not at the silent switch, without an end: every second one for a host at the
        near one, if it has any, since only its own link leads there."""
        at = self._fabric.leaf_of()
        others = [host for host in self._fabric.hosts if at[host.name] != far.node]
        near_ones = [host for host in others if at[host.name] == near.node] or others
        if not others:
            return
        source, to = self._fabric.switch(near.node), self._fabric.switch(far.node)
        for turn, host in enumerate(itertools.chain.from_iterable(
                zip(itertools.cycle(near_ones), itertools.cycle(others), strict=False))):
            ip = with_checksum(struct.pack(
                "!BBHHHBBH4s4s", 0x45, 0, 28, 0, 0x4000, 64, 17, 0, IPv4Address(source.address).packed,
                IPv4Address(host.address).packed))
            udp = struct.pack("!HHHH", _SOURCE_PORT + turn % 256, _DISCARD, 8, 1)
            ethernet = mac_bytes(to.mac) + mac_bytes(source.mac) + struct.pack("!H", 0x0800)
            yield (ethernet + ip + udp).ljust(_LEAST_FRAME, b"\0")
