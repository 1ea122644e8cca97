# SPDX-License-Identifier: Apache-2.0
"""Ranks that have their plans open what they fold with, and fold once all of them could.

    rank --Opened, with what it lacks--> controller --all have said so--> every rank: AllOpened, with what each lacks
                                             '--one lacks something--> the job's entries and slots go
"""

from __future__ import annotations

import asyncio
import logging

from netfold.controller.jobs import plans, ticket
from netfold.controller.jobs.background import Background
from netfold.controller.jobs.job import Job, lacking
from netfold.controller.jobs.registry import Registry
from netfold.controller.jobs.tree_placement import TreePlacement
from netfold.fabric.graph import Fabric
from netfold.rpc.rpc import Code, Refusal
from netfold.wire.jobs import AllOpened, Opened
from netfold.wire.operator import Note, unnoted
from netfold.wire.plan import Secret

log = logging.getLogger("netfold.controller")


class Opening:
    """Waits for the ranks of one fabric's jobs to open what they fold with.

    registry    all jobs, and the fabric key
    background  where leftovers on switches are removed
    note        records jobs that are taken off the switches
    """

    def __init__(
        self, fabric: Fabric, placement: TreePlacement, registry: Registry, background: Background,
        note: Note = unnoted,
    ) -> None:
        self._fabric = fabric
        self._placement = placement
        self._registry = registry
        self._background = background
        self._note = note

    async def opened(self, job: Job, request: Opened) -> AllOpened:
        """Wait until all ranks that are there have opened what they fold with, or have said what they lack.  Where one
        lacks something, take the job off the switches.  Raises Refusal."""
        who = f"{job}, rank {request.rank}"
        said = job.opened.get(request.rank, "")
        if job.all_opened.is_set() and request.lacks != said:  # the others go by what it has said
            raise Refusal(Code.FAILED_PRECONDITION, (
                f"{who}: it has told the others that it cannot fold: {said}. Expected the same again, got "
                f"{request.lacks!r}" if said else
                f"{who}: the other ranks fold already, and it cannot: {request.lacks}. It must leave"))
        job.opened[request.rank] = request.lacks
        job.check_opened()
        try:
            async with asyncio.timeout(request.timeout):
                await job.all_opened.wait()
        except TimeoutError:
            waits = ", ".join(map(str, job.opening))
            raise Refusal(Code.DEADLINE_EXCEEDED, f"{who}: waited {request.timeout:g} s, and the ranks {waits} have "
                                                  "not said whether they can fold") from None
        unfit = lacking(job.opened)
        if unfit and job.streams:
            await self._unfold(job, "; ".join(f"rank {rank} cannot fold: {why}" for rank, why in unfit.items()))
        return AllOpened(unfit, job.ticket if unfit and request.rank in ticket.holders(job) else Secret())

    async def _unfold(self, job: Job, why: str) -> None:
        """Take a job off the switches whose ranks do not use its trees."""
        if job.stands_still:  # the round's end gives it trees again
            log.warning("%s: keeps its slots to its end, since its ranks are halted, and does not fold: %s", job, why)
            return
        parts = job.parts
        job.reason, job.slots = why, 0
        job.trees, job.streams, job.announced = [], [], []
        plans.make(self._fabric, self._registry.key, job)
        log.warning("%s: not folded after all: %s", job, job.reason)
        self._note("re-planned", job.name, f"not folded after all: {job.reason}")
        # the caller may stop waiting: entries and slots are freed all the same
        await asyncio.shield(self._background.begin(self._placement.clean(parts), f"leftovers of {job}"))
