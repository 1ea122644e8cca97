# SPDX-License-Identifier: Apache-2.0
"""Maintenance: switches and links are drained, and put back into use.

    SetDrain -> is it needed? -> saved in the fabric's state file -> routes, pins, paths and trees avoid it,
                                                                    running jobs move (recovery)
             <- jobs that still use it, once there is none or the timeout has expired
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from netfold.controller.health.drains import Drains, UnknownName
from netfold.controller.jobs.job import Job
from netfold.controller.jobs.jobs import Jobs
from netfold.controller.operations import state_file
from netfold.controller.operations.state_file import SavedState
from netfold.fabric.graph import FabricError
from netfold.rpc.rpc import Code, Refusal
from netfold.wire.operator import Drained, Note, SetDrain, unnoted

if TYPE_CHECKING:
    import networkx as nx

log = logging.getLogger("netfold.controller")


class Maintenance:
    """Drains switches and links of one fabric.

    file    file in which the drains are saved; None: they are not
    graph   returns the part of the fabric that is up
    replan  plans routes and jobs anew and writes them to the switches
    """

    def __init__(
        self,
        drains: Drains,
        jobs: Jobs,
        *,
        file: str | None,
        graph: Callable[[], nx.MultiGraph[str]],
        replan: Callable[[], Awaitable[None]],
        note: Note = unnoted,
    ) -> None:
        self._drains = drains
        self._file = None if file is None else Path(file)
        self._jobs = jobs
        self._graph = graph
        self._replan = replan
        self._note = note

    async def drain(self, request: SetDrain) -> Drained:
        """Drain something and wait until no job uses it, or put it back into use.  Raises Refusal."""
        try:
            name = self._drains.canonical(request.name)
        except UnknownName as error:
            raise Refusal(Code.NOT_FOUND, str(error)) from error
        if request.drained:
            self._check(name)
        self._save(name, request.drained)
        self._drains.mark(name, request.drained)
        log.warning("%s is %s", name, "drained" if request.drained else "in use again")
        self._note("drained" if request.drained else "undrained", name, "by an operator")
        await self._replan()
        if request.drained:
            await self._wait_until_unused(name, request.timeout)
        return Drained(name, self._drains.names, [f"{job}: {_why(job)}" for job in self._using(name)])

    def _save(self, name: str, drained: bool) -> None:
        """Save the drains as they are about to be.  Raises Refusal, since a drain that is not saved must not begin."""
        if self._file is None:
            return
        names = {*self._drains.names, name} if drained else {*self._drains.names} - {name}
        try:
            state_file.save(self._file, SavedState(sorted(names)))
        except FabricError as error:
            raise Refusal(Code.FAILED_PRECONDITION, str(error)) from error

    def _check(self, name: str) -> None:
        """Raise Refusal if a host would be cut off, or ranks run on a leaf's hosts."""
        there = self._ranks(self._drains.hosts_of(name))
        if there:
            raise Refusal(Code.FAILED_PRECONDITION, f"{name} is the only switch of {', '.join(there)}: stop those jobs "
                                                    "first, or wait for their end")
        graph = self._drains.left(self._graph())
        if lost := self._drains.cut_off(graph, self._drains.without(graph, name)):
            others = ", ".join(other for other in self._drains.names if other != name) or "nothing"
            who = ", ".join(self._ranks(lost) or lost)
            raise Refusal(Code.FAILED_PRECONDITION, f"without {name}, {who} would be cut off. Drained so far: "
                                                    f"{others}; `netfold links` shows what is down")

    def _ranks(self, hosts: list[str]) -> list[str]:
        """The running ranks on these hosts, for messages."""
        return [
            f"{job}, rank {rank} on {host}"
            for job in self._jobs.all() if job.state != "finished"
            for rank, host in self._jobs.places(job).items()
            if host in hosts and rank not in job.left and rank not in job.lost
        ]

    async def _wait_until_unused(self, name: str, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                while using := self._using(name):
                    changes = [asyncio.ensure_future(job.changed.wait()) for job in using]
                    try:
                        await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        for waiting in changes:
                            waiting.cancel()
        except TimeoutError:
            log.warning("%s: after %g s it still carries %s", name, timeout, ", ".join(map(str, self._using(name))))

    def _using(self, name: str) -> list[Job]:
        """Jobs whose trees use it, and jobs that are halted and whose trees may have."""
        return [job for job in self._jobs.registry.active()
                if name in self._drains and (name in self._drains.under(job.trees) or job.stands_still)]


def _why(job: Job) -> str:
    if job.stands_still:
        return "its ranks stand still" + (f": {job.round.problem}" if job.round and job.round.problem else "")
    return job.stay_reason or "there are no other trees for it"
