# SPDX-License-Identifier: Apache-2.0
"""Which switches and links are up, by three signs: P4Runtime sessions, port events, and probes of links.

    session ends, port event ------------------------.
    a probe of every link, every `probe` seconds  ---+--> changed: routes, paths and jobs are planned anew
    ranks without results suspect their trees' links: these are probed again and again, until each has answered or is
    found down; of those probes one in SUSPECT_INTERVAL seconds counts by itself, and all do where both ends are known
    to be in time (silent_links.py)
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, TypeVar

from netfold.controller.health.damping import FlapDamping
from netfold.controller.health.excuses import Excuses
from netfold.controller.health.links import Direction, Links, Probe
from netfold.controller.health.live_graphs import LiveGraphs
from netfold.controller.health.outages import Outages
from netfold.controller.health.silent_control import SilentControl
from netfold.controller.health.silent_links import SilentLinks
from netfold.controller.switch.switch import SwitchError
from netfold.controller.switch.target import Client, Target
from netfold.fabric.graph import End, Fabric, Up
from netfold.wire.operator import Note, unnoted

if TYPE_CHECKING:
    import networkx as nx

log = logging.getLogger("netfold.controller")
T = TypeVar("T")

AT_ONCE: Final = 256
"""Probes that are made, or processed, in one turn of the event loop, and switches that are asked: some 5 ms."""
DOWN_INTERVAL: Final = 0.5
"""Seconds between probes of links that are down, if the fabric turns other probes off."""
SUSPECT_INTERVAL: Final = 0.03
"""Seconds between probes of suspect links that count: more than a probe takes on a busy machine."""
LEAST_TICK: Final = 0.005
"""Least seconds between two probes of suspect links; the next ones are sent once the previous probes have been answered
or given up."""
LATER_TICK: Final = 0.015
"""The same once they have been probed for SOON seconds, so as not to burden switches that are busy."""
SOON: Final = 0.1
MOST_TICK: Final = 0.02
"""Seconds after which a witness is late."""
POLL: Final = 0.001
"""Seconds between two checks for arrived probes."""
ANSWER_HOLDS: Final = 0.015
"""Seconds after its answer for which a link is not probed again because further ranks suspect it."""
SEND_TIMEOUT: Final = 0.1
"""Seconds that a switch has to take one round's probes: one that stands still takes none when its window is full."""
ANSWER_TIMEOUT: Final = 0.1
"""Seconds that switches have to tell what they have heard."""
DISCOVER_TIMEOUT: Final = 2.0
"""Seconds that a probe has to arrive somewhere when cables are discovered."""
REPEAT_INTERVAL: Final = 0.25
"""Seconds until an unanswered probe is repeated."""


class Liveness:
    """Watches the switches and links of one fabric.

    targets  the switches by name
    changed  is called whenever something may have gone down or come up
    note     records what went down and came up
    drained  returns the numbers of links that are drained
    """

    def __init__(
        self, fabric: Fabric, targets: Mapping[str, Target], changed: Callable[[], None], note: Note = unnoted,
        drained: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._fabric = fabric
        self._targets = targets
        self.changed = changed
        self.whole = Up(frozenset(node.name for node in fabric.nodes), frozenset(range(len(fabric.links))))
        """Switches, hosts and links, as if all were up."""
        self._graphs = LiveGraphs(fabric)
        self._number = {end: number for number, link in enumerate(fabric.links) for end in link.ends}
        self._at: defaultdict[str, list[int]] = defaultdict(list)
        """Numbers of the links at each node."""
        for end, number in self._number.items():
            self._at[end.node].append(number)
        self.links = Links(fabric)
        self._excuses = Excuses(targets, self.links)
        self._silent = SilentLinks(targets, self.links, drained)
        self._control = SilentControl(fabric, targets, self.links, changed)
        self.damping = FlapDamping(fabric.steady)
        self._recheck: asyncio.TimerHandle | None = None
        self._miswired: set[str] = set()
        self._outages = Outages(fabric, targets, note)
        self._stuck: set[str] = set()
        """Switches that did not take the last probes."""
        self._suspects: set[int] = set()
        self.suspect_task: asyncio.Task[None] | None = None
        """The probing of suspect links that was begun last."""
        self._answered: dict[int, float] = {}
        """Link -> time at which its suspect probes arrived last."""

    # ---- what is up ------------------------------------------------------------------------------------------------

    def graph(self, *, steady: bool = False, writable: bool = False) -> nx.MultiGraph[str]:
        """The fabric's graph without switches and links that are down; with ``steady``, also without those that flap
        damping suppresses, and with ``writable`` without switches that can be told nothing.  All who ask while nothing
        changes get the same one, which is frozen."""
        return self._graphs.of(self.up(steady=steady, writable=writable))

    async def prepared(self, *, steady: bool = False, writable: bool = False) -> nx.MultiGraph[str]:
        """The same graph, made beside the event loop where nobody has asked for it yet."""
        return await self._graphs.prepared(self.up(steady=steady, writable=writable))

    def up(self, *, steady: bool = False, writable: bool = False) -> Up:
        """The live part: the nodes and links of `graph`, in a hundredth of the time."""
        without = self.damping.unsteady() if steady else set()
        down = self.switches_down(writable=writable)
        return Up(self.whole.nodes.difference(down, without), self.whole.links.difference(without, self.links_down()))

    def switches_down(self, *, writable: bool = False) -> frozenset[str]:
        """Switches that are down; with ``writable``, also those that can be told nothing."""
        return frozenset(target.name for target in self._targets.values()
                         if not (target.is_heard if writable else target.is_up))

    def ends_down(self) -> set[End]:
        """Both ends of each link that is down."""
        return {end for number in self.links_down() for end in self._fabric.links[number].ends}

    def beside(self, why: Exception | str) -> str:
        """Why there are no trees, with the switches that are silent, over which none are planned."""
        silent = [f"{name}: {self._targets[name].silence}" for name in sorted(self._control.silent)]
        return "; ".join([str(why), *silent])

    def links_down(self) -> dict[int, str]:
        """Why links are down, by their number in the fabric's order."""
        # probes of suspect links that were sent a moment ago count as lost already: only _probe_suspects may judge them
        down = {number: self.links.why_down(number) for number in self.links.down() - self._suspects}
        down |= dict.fromkeys(self._control.dead, "its P4Runtime server is silent, and nothing comes through")
        dark = {End(name, port) for name, target in self._targets.items() for port in target.ports_down}
        for number, end in sorted((self._number[end], end) for end in dark if end in self._number):
            down[number] = f"{end} is down"
        return down

    def links_up(self) -> set[int]:
        """Numbers of the links that are up, of switches that are."""
        down = {number for name in self.switches_down() for number in self._at[name]}
        return set(range(len(self._fabric.links))) - down - self.links_down().keys()

    def log_changes(self) -> None:
        """Log what went down or came up since the last call, and call ``changed`` again when its suppression ends."""
        now = self.links_down()
        self._outages.tell_links(now)
        self.damping.update({*now, *self._outages.note_switches()})
        if self._recheck is not None:
            self._recheck.cancel()
        wait = self.damping.next_release()
        self._recheck = None if wait is None else asyncio.get_running_loop().call_later(wait, self.changed)

    # ---- probes ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Probe links regularly until cancelled: all of them, or only those that are down if the fabric turns probes
        off, since nothing else would show that they are up again."""
        clock, took, period = asyncio.get_running_loop().time, 0.0, self._fabric.probe or DOWN_INTERVAL
        while True:
            await asyncio.sleep(max(period / 2, period - took))
            began = clock()
            try:
                if self._fabric.probe:
                    await self.check()
                elif down := self.links.down() - self._suspects:
                    await self._probe(down)
                elif self._control.silent:
                    await self._control.consider()
            except Exception:  # otherwise no failure would be noticed from now on
                log.exception("probing links failed")
            took = clock() - began

    async def check(self) -> None:
        """One round: ask what has been heard of the last probes, judge by that, and send the next ones."""
        heard, _ = await self._of_all(lambda name, client: client.heard(), ANSWER_TIMEOUT)
        self.links.hear(heard)
        await self._judge()
        up = self._clients()
        frames = dict(self.links.to_neighbours(up))
        _, late = await self._of_all(lambda name, client: client.packet_out_to_neighbours(frames[name]), SEND_TIMEOUT,
                                     frames)
        self._stuck |= late
        await self._send(self.links.short_ones(up))
        await self._send_over(self.links.sample(), counted=False, short=False)
        self._compare()

    def suspect(self, links: Collection[int]) -> None:
        """Probe these links at once, since hosts get nothing over them.  Does not wait for the outcome."""
        now = asyncio.get_running_loop().time()
        answered = {number for number, when in self._answered.items() if now < when + ANSWER_HOLDS}
        self._suspects |= (set(links) & self.links.probed) - self.links.down() - answered
        if self._suspects and (self.suspect_task is None or self.suspect_task.done()):
            self.suspect_task = asyncio.create_task(self._probe_suspects(), name="suspect links")

    async def links_respond(self, links: Collection[int], within: float) -> bool:
        """True if new probes come through all these links, both ways, within the given seconds.  A probe lost here does
        not count against its link, since a long queue may delay it."""
        await self.listen()  # probes that have arrived so far do not count
        before, clock = self.links.arrived(), asyncio.get_running_loop().time
        again, end = clock(), clock() + within
        while silent := {number for number in links if not self.links.arrived_since(before, number)}:
            if clock() >= end:
                return False
            if clock() >= again:
                await self._send_over(silent, counted=False)
                again = clock() + REPEAT_INTERVAL
            await asyncio.sleep(SUSPECT_INTERVAL)
            await self.listen()
        return True

    async def discover(self) -> dict[End, End]:
        """Where the links between switches lead, found by probes sent now: the receiving end, by the sending end.

        An end whose probes arrive nowhere within DISCOVER_TIMEOUT is left out; its losses do not count."""
        await self.listen()  # probes that have arrived so far do not count
        self.links.seen.clear()
        clock, up = asyncio.get_running_loop().time, [t.name for t in self._targets.values() if t.is_up]
        end = again = clock()
        end += DISCOVER_TIMEOUT
        while unseen := self.links.unseen(up):
            if clock() >= again:
                if again >= end:
                    break
                await self._send_over(unseen, counted=False)  # some links lose packets, on purpose or not
                again = clock() + REPEAT_INTERVAL
            await asyncio.sleep(SUSPECT_INTERVAL)
            await self.listen()
        return dict(self.links.seen)

    async def close(self) -> None:
        """Cancel what is under way."""
        if self._recheck is not None:
            self._recheck.cancel()
        if self.suspect_task is not None:
            self.suspect_task.cancel()
            await asyncio.gather(self.suspect_task, return_exceptions=True)
        await self._control.close()

    async def _probe_suspects(self) -> None:
        """Probe suspect links until each has answered or is down.  If none answers, this process itself may be late:
        then no link counts as down, and the regular probes decide.  Where other links are late, one round of probes in
        twice the time counts: for a machine that is busy with much else."""
        clock = asyncio.get_running_loop().time
        try:
            if self._control.judged & self._suspects:
                await self._control.consider(stalled=self._suspects)
            await self.listen()
            before, answered, late, began = self.links.arrived(), False, False, clock()
            while self._suspects:
                end = clock() + SUSPECT_INTERVAL * (2 if late else 1)
                counted, late = True, False
                while self._suspects and (counted or clock() < end):
                    least = min(LEAST_TICK if clock() < began + SOON else LATER_TICK, SUSPECT_INTERVAL)
                    answered |= await self._probe_once(before, least, counted=counted)
                    counted, late = False, late or self._silent.late
                    self._compare()
                await asyncio.gather(self._excuses.consider(), self._silent.look(self._suspects))
                lost = self._suspects & self.links.down()
                if lost:
                    await self._control.consider(stalled=lost)
                    lost -= self._control.judged
                if lost and not answered:
                    log.warning("no suspect link answers: none is judged by that")
                    self.links.reset(lost | self._suspects)
                    self._suspects.clear()
                elif lost and (spared := await self._silent.spare(lost)):
                    log.warning("not judged by the probes that were lost, since other packets come in: %s", ", ".join(
                        f"{a} - {b}" for a, b in (self._fabric.links[number].ends for number in sorted(spared))))
                    self.links.reset(spared)
                    lost -= spared
                self._suspects -= lost
                self._compare()
        except Exception:
            log.exception("probing suspect links failed")
            self._suspects.clear()

    async def _probe_once(self, before: Mapping[Direction, int], least: float, *, counted: bool) -> bool:
        """Send one round of probes over suspect links and witnesses, and judge by what arrives of them, soon.  Returns
        whether a suspect has answered.

        before   probes that had arrived when these links became suspects
        least    seconds for which it waits at the least
        counted  whether this round counts by itself
        """
        clock = asyncio.get_running_loop().time
        # nothing can be sent over the others, and the switch that is down is known to be
        self._suspects = {number for number in self._suspects
                          if all(self._targets[end.node].is_heard for end in self.links.ends(number, 0))}
        began, arrived = clock(), self.links.arrived()
        witnesses, probes = self._silent.witnesses(self._suspects), self._silent.wanted(self._suspects)
        up, now = self._clients(), time.monotonic()
        await self._send(chain.from_iterable(  # before the witnesses' probes, whose arrival ends the round
            self.links.round(up, [number for number in probes if probes[number] > sent], counted=False, short=False,
                              now=now)
            for sent in range(1, max(probes.values(), default=1))
        ))
        await self._send_over(self._suspects, counted=counted, short=counted, wake=counted, witnesses=witnesses)
        await asyncio.sleep(least)
        await self.listen()
        end = clock() + min(MOST_TICK - least, SUSPECT_INTERVAL)
        while clock() < end and not self._silent.is_over(self._suspects, witnesses, arrived):
            await asyncio.sleep(POLL)
            await self.listen()
        answers = {number for number in self._suspects if self.links.arrived_since(before, number)}
        self._answered.update(dict.fromkeys(answers, clock()))
        self._suspects -= answers
        if silent := await self._silent.find(probes, witnesses, arrived, began):
            self.links.take_down(silent)
            self._suspects -= silent
        return bool(answers)

    async def _probe(self, only: Collection[int]) -> None:
        await self._judge()
        await self._send_over(only)
        self._compare()

    async def _judge(self) -> None:
        """Take in what has come, and spare links of which missing probes tell nothing."""
        await self.listen()
        await self._excuses.consider()
        stuck, self._stuck = self._stuck, set()
        await self._control.consider(self.links.about_to_be_lost(), stuck)

    def _clients(self) -> dict[str, Client]:
        """The sessions of the switches that can be told something."""
        return {target.name: target.client for target in self._targets.values() if target.is_heard}

    async def _of_all(
        self, request: Callable[[str, Client], Coroutine[None, None, T]], timeout: float,
        only: Collection[str] | None = None,
    ) -> tuple[dict[str, T], set[str]]:
        """Make a request to all switches, or to some.  Returns the answers by switch, and the switches that do not
        answer in time.  Those that refuse are in neither."""
        tasks: dict[str, asyncio.Task[T]] = {}
        for name, client in self._clients().items():
            if only is None or name in only:
                tasks[name] = asyncio.create_task(request(name, client))
                if len(tasks) % AT_ONCE == 0:
                    await asyncio.sleep(0)
        if not tasks:
            return {}, set()
        _, late = await asyncio.wait(tasks.values(), timeout=timeout)
        for task in late:
            task.cancel()
        found: dict[str, T] = {}
        for name, outcome in zip(tasks, await asyncio.gather(*tasks.values(), return_exceptions=True), strict=True):
            if isinstance(outcome, SwitchError):
                log.warning("%s", outcome)
            elif tasks[name] not in late:
                found[name] = tasks[name].result()
        return found, {name for name, task in tasks.items() if task in late}

    async def listen(self) -> None:
        """Process what has come in, in as many turns of the event loop as that takes."""
        count = 0
        for name, target in self._targets.items():
            if not target.is_heard:
                continue
            packets = target.client.packets
            while not packets.empty():
                packet = packets.get_nowait()
                problem = self.links.receive(name, packet.port, packet.payload, packet.arrived)
                if problem and problem not in self._miswired:
                    self._miswired.add(problem)
                    log.error("%s", problem)
                count += 1
                if count % AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _send_over(
        self, only: Collection[int], *, counted: bool = True, short: bool = True, wake: bool = True,
        witnesses: Collection[int] = (),
    ) -> None:
        """Send probes over these links, and others over ``witnesses`` that do not count; with ``short`` also short ones
        where they were lost, and with ``wake`` questions to the hosts at switches whose links are in doubt."""
        up, now = self._clients(), time.monotonic()
        await self._send(chain(
            self.links.arp_probes(up, self.links.down() | self._suspects if wake else ()),
            self.links.round(up, only, counted=counted, short=short, now=now),
            self.links.round(up, witnesses, counted=False, short=False, now=now),
        ))

    async def _send(self, probes: Iterator[Probe]) -> None:
        """Send probes out of single ports."""
        up = self._clients()
        sending: list[asyncio.Task[None]] = []
        while some := list(islice(probes, AT_ONCE)):
            if sending:
                await asyncio.sleep(0)
            by_switch: defaultdict[str, list[Probe]] = defaultdict(list)
            for probe in some:
                by_switch[probe.switch].append(probe)
            sending += [asyncio.create_task(self._send_from(up[name], those))
                        for name, those in by_switch.items() if name in up]
        await asyncio.gather(*sending)

    async def _send_from(self, client: Client, probes: Collection[Probe]) -> None:
        """Send probes out of ports of one switch, as far as it takes them at once."""
        try:
            async with asyncio.timeout(SEND_TIMEOUT):
                for probe in probes:
                    try:
                        await client.packet_out(probe.port, probe.frame)
                    except SwitchError as error:
                        log.warning("%s", error)
        except TimeoutError:
            self._stuck.add(probe.switch)

    def _compare(self) -> None:
        now = self.links_down()
        if now.keys() != self._outages.links.keys():
            self.changed()
        elif now != self._outages.links:  # nothing is planned anew for another reason alone
            self._outages.tell_links(now)
