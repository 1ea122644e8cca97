# SPDX-License-Identifier: Apache-2.0
"""Reads a running fabric for operators and stalled ranks: counters, slots, and which ranks a job waits for.

Everything is read from the switches at the time of the request, and nothing is changed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

from netfold.controller.health.drains import Drains
from netfold.controller.jobs.job import Job
from netfold.controller.jobs.jobs import Jobs
from netfold.controller.operations import connections, stall
from netfold.controller.operations.status import SwitchCounters, of_job, of_link, of_switch, wanted
from netfold.controller.switch import tables
from netfold.controller.switch.codec import Wanted
from netfold.controller.switch.probe import SlotState
from netfold.controller.switch.switch import SwitchError
from netfold.controller.switch.target import Target
from netfold.fabric.folding.slots import Allocator
from netfold.fabric.graph import Fabric
from netfold.rpc.limits import Shared
from netfold.rpc.rpc import Code, Refusal
from netfold.wire import jobs as wire
from netfold.wire import operator, stalls
from netfold.wire.operator import LinkStatus, Status
from netfold.wire.stalls import JobSlots, Stall

log = logging.getLogger("netfold.controller")

COUNTER_TIMEOUT: Final = 5.0
"""Seconds to read a switch's counters: a status does not wait longer for a switch that hangs."""
SLOTS_FRESH: Final = 1.0
"""Seconds for which the open slots of a switch are reused for further requests."""
_UNPINNED: Final[Wanted] = {tables.UNPINNED: None}
REST: Final = 1.0
"""Pause between two readings of slots, in times of what the first one took: they take half of the controller's time at
most, however many ask."""


class Inspection:
    """Inspects one fabric and its jobs."""

    def __init__(
        self, fabric: Fabric, targets: Mapping[str, Target], jobs: Jobs, allocator: Allocator, drains: Drains,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fabric = fabric
        self._targets = targets
        self._jobs = jobs
        self._allocator = allocator
        self._drains = drains
        self._clock = clock
        ports: dict[str, list[int]] = {name: [] for name in targets}
        for end in (end for link in fabric.links for end in link.ends if end.node in ports):
            ports[end.node].append(end.port)
        self._wanted = {name: wanted(sorted(found)) for name, found in ports.items()}
        """The counters that a status needs, by switch."""
        self._reading = asyncio.Lock()
        """Held while an operator's reading of slots is under way: there is one at a time."""
        self._rests_until = 0.0
        self._slots = {name: Shared(partial(self._read_slots, name), fresh=SLOTS_FRESH, clock=clock)
                       for name in targets}

    # ---- counters --------------------------------------------------------------------------------------------------

    async def status(self, up: Collection[int], why: Mapping[int, str], uptime: float) -> Status:
        """The status of fabric and jobs.

        up      numbers of the links that are up
        why     why others are not, where it is not for a switch
        uptime  in seconds
        """
        answers = await asyncio.gather(*(self._read_counters(name, wanted) for name, wanted in self._wanted.items()))
        used, drained = self._allocator.used(), self._drains.links

        def decoded() -> tuple[dict[str, SwitchCounters], list[LinkStatus]]:
            counters = {name: answer() for name, answer in zip(self._wanted, answers, strict=True)}
            return counters, [of_link(link, counters, up=number in up, problem=why.get(number, ""),
                                      drained=number in drained)
                              for number, link in enumerate(self._fabric.links)]

        counters, links = await asyncio.to_thread(decoded)  # of hundreds of switches that takes a second
        return Status(
            fabric=self._fabric.name,
            engine=self._fabric.engine,
            uptime=uptime,
            switches=[
                of_switch(switch, self._targets[switch.name], used[switch.name], counters[switch.name],
                          drained=switch.name in self._drains)
                for switch in self._fabric.switches
            ],
            links=links,
            jobs=[of_job(job) for job in self._jobs.all()],
            totals=self._jobs.totals,
        )

    async def unpinned(self) -> dict[str, int]:
        """Packets without a pin, by switch; switches that do not answer are left out."""
        found: dict[str, int] = {}
        for name in self._targets:
            answer = await self._read_counters(name, _UNPINNED)
            cells = (await asyncio.to_thread(answer)).cells.get(tables.UNPINNED, {})
            found[name] = sum(cell.packets for cell in cells.values())
        return found

    async def _read_counters(self, name: str, wanted: Wanted) -> Callable[[], SwitchCounters]:
        """Read counters of one switch.  Returns what decodes them, on another thread; there are none if it is down or
        does not answer."""
        try:
            client, asked = self._targets[name].client, self._clock()
            async with asyncio.timeout(COUNTER_TIMEOUT):
                cells = await client.read_counters(wanted)
            read = (asked + self._clock()) / 2
        except (SwitchError, TimeoutError) as error:
            log.warning("no counters of %s: %s", name, error or f"no answer within {COUNTER_TIMEOUT:g} s")
            return SwitchCounters

        def decoded() -> SwitchCounters:
            try:
                return SwitchCounters(cells(), read)
            except SwitchError as error:
                log.warning("no counters of %s: %s", name, error)
                return SwitchCounters()

        return decoded

    # ---- slots -----------------------------------------------------------------------------------------------------

    async def slots(self, switch: str, name: str | None = None) -> list[JobSlots]:
        """The open slots of one job or of all jobs on one switch, SLOTS_FRESH seconds old at most.  Raises Refusal."""
        if switch not in self._slots:
            raise Refusal(Code.NOT_FOUND, f"the fabric {self._fabric.name} has no switch {switch!r}; it has "
                                          f"{', '.join(self._targets)}")
        wanted = {job.epoch for job in self._holding(name)}
        return [held for held in await self._slots[switch]() if held.epoch in wanted]

    async def _read_slots(self, switch: str) -> list[JobSlots]:
        return [
            JobSlots(job.name, job.epoch, len(states), stall.open_slots(job.streams, job.hosts, {switch: states}),
                     min(states))
            for job in self._holding(None)
            if (states := await self._read(switch, stall.slots_of(job.streams, switch)))
        ]

    async def stall(self, name: str) -> list[Stall]:
        """Which ranks each incarnation of a job waits for.  Raises Refusal."""
        reports = []
        for job in self._holding(name):
            switches = sorted({fold.switch for tree in job.trees for fold in tree.folds})
            states = {switch: await self._read(switch, stall.slots_of(job.streams, switch)) for switch in switches}
            reports.append(stall.report(job.name, job.epoch, job.streams, job.hosts, states))
        return reports

    async def missing(self, request: wire.AskMissing) -> wire.MissingContributions:
        """Which ranks a rank waits for: reads the slots of the PSNs that it names, on all switches.  Raises Refusal."""
        job = self._jobs.registry.find(request)
        waits = [(stream, request.waits[place]) for place, stream in enumerate(job.streams_of(request.rank))
                 if place in request.waits]
        wanted: dict[str, list[int]] = {}
        for stream, psn in waits:
            for switch, base in stream.bases.items():
                wanted.setdefault(switch, []).append(base + (psn & (stream.slots - 1)))
        states = await asyncio.gather(*(self._probe(switch, some) for switch, some in wanted.items()))
        held = dict(zip(wanted, states, strict=True))
        found = stall.report(job.name, job.epoch, [stream for stream, _ in waits], job.hosts, held)
        return wire.MissingContributions(found.missing, [culprit.why for culprit in found.culprits[: stalls.LINES]])

    def _holding(self, name: str | None) -> list[Job]:
        jobs = self._jobs.registry.active(name)
        if not jobs and name is not None:
            others = ", ".join(sorted({job.name for job in self._jobs.registry.active()})) or "none"
            raise Refusal(Code.NOT_FOUND, f"no job {name!r} holds slots; jobs that do: {others}")
        return jobs

    async def _read(self, switch: str, held: Sequence[int]) -> dict[int, SlotState]:
        """The states of many slots, for an operator: one reading at a time, with a pause after each, so that the
        controller's own work goes on."""
        async with self._reading:
            await asyncio.sleep(self._rests_until - self._clock())
            began = self._clock()
            try:
                return await self._probe(switch, held)
            finally:
                self._rests_until = self._clock() + REST * (self._clock() - began)

    async def _probe(self, switch: str, held: Sequence[int]) -> dict[int, SlotState]:
        try:
            return await self._targets[switch].client.probe_all(held)
        except SwitchError as error:
            raise Refusal(Code.FAILED_PRECONDITION, str(error)) from error

    # ---- gRPC handlers ---------------------------------------------------------------------------------------------

    async def answer_slots(self, request: stalls.AskSlots) -> stalls.SwitchSlots:
        """The gRPC method Slots: see `slots`."""
        return stalls.SwitchSlots(await self.slots(request.switch, request.job))

    async def answer_stall(self, request: stalls.AskStall) -> stalls.Stalls:
        """The gRPC method Stall: see `stall`."""
        return stalls.Stalls(await self.stall(request.job))

    async def answer_connections(self, _: operator.AskConnections) -> operator.Connections:
        """The gRPC method Connections: what the destination queue pairs of all jobs that fold mean on each link."""
        return operator.Connections([
            connection for job in self._jobs.all() for stream in job.streams for fold in stream.tree.folds
            for child in fold.children for connection in connections.of_child(job.name, job.hosts, stream, fold, child)
        ])
