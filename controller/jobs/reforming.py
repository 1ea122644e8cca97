# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job that are there go on as a new incarnation: without those that were lost, and with those that wait.

    rank    --Reform: what it has finished--------.
    rank    --Reform------------------------------+--> all have asked that are there: a new incarnation begins
    another --Join(joining=True)------------------'    its ranks: those that asked, in their order, then who waits

The controller is the authority on who is a rank.  A rank is gone when it has left, or when the controller itself has
seen its Watch break; what other ranks say of it counts for nothing.  A rank that is there and does not ask, because it
stands still or is cut off in some way that its Watch does not show, is evicted when the time that one of the others
said is up, and they have been more than half of those that are there for LEAST_WAIT: no few of them, and nobody outside
the job, can do that.

Whoever is no rank any more is fenced by the new incarnation: epoch, secret, queue pairs and slots are new, and the
entries of the old ones are gone before the new ones are written.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from netfold.controller.jobs.admission import check_against, check_tcp, refuse
from netfold.controller.jobs.job import Gathering, Job
from netfold.fabric.graph import Tenant
from netfold.rpc.rpc import Code, Refusal
from netfold.wire.jobs import MAX_WORLD, Join, RankLost, Reform
from netfold.wire.plan import Change

log = logging.getLogger("netfold.controller")

LEAST_WAIT: Final = 2.0
"""Least seconds that a silent rank has, once more than half of the ranks have asked."""
MAX_NEWCOMERS: Final = 1024
"""Most ranks that wait to join, of all jobs of a tenant."""
Place = tuple[Job, int]
"""An incarnation, and a rank's number there."""


@dataclass
class Newcomer:
    """A rank that waits to join."""

    join: Join
    admitted: asyncio.Future[Place]


def waits_for(world: int, asked: set[int], gone: set[int]) -> set[int]:
    """The ranks that are there and have not asked."""
    return set(range(world)) - asked - gone


def is_majority(world: int, asked: set[int], gone: set[int]) -> bool:
    """True if more than half of the live ranks have asked."""
    return 2 * len(asked - gone) > world - len(gone)


class Reforming:
    """Brings the ranks of all jobs of one fabric together that go on anew.

    begin     called with a job and the next incarnation of it, which has its ranks, to plan it; raises Refusal where it
              cannot have one
    path_mtu  of the fabric, in bytes
    clock     seconds, steady
    """

    def __init__(
        self, begin: Callable[[Job, Job], None], path_mtu: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._begin = begin
        self._path_mtu = path_mtu
        self.clock = clock
        self.newcomers: dict[tuple[str, str], list[Newcomer]] = {}
        """Ranks that wait to join, by tenant and job, in the order in which they came."""

    async def wait_to_join(self, request: Join, tenant: Tenant) -> Place:
        """Wait until the ranks of a running job let this one in.  Raises Refusal."""
        who = f"job {request.job!r}, a rank at {request.address} that joins it while it runs"
        if (request.rank, request.world) != (0, 1):
            refuse(Code.INVALID_ARGUMENT, f"{who}: rank and world: expected 0 and 1, which the plan will change, got "
                                          f"{request.rank} and {request.world}")
        of_tenant = [waiting for (owner, _), waiting in self.newcomers.items() if owner == tenant.name]
        if sum(map(len, of_tenant)) >= MAX_NEWCOMERS:
            refuse(Code.RESOURCE_EXHAUSTED, f"{who}: {MAX_NEWCOMERS} ranks of this tenant wait to join already")
        key = tenant.name, request.job
        mine = Newcomer(request, asyncio.get_running_loop().create_future())
        self.newcomers.setdefault(key, []).append(mine)
        log.info("%s waits until the ranks of the job grow", who)
        try:
            async with asyncio.timeout(request.timeout):
                return await mine.admitted
        except TimeoutError:
            raise Refusal(Code.DEADLINE_EXCEEDED, f"{who} waited {request.timeout:g} s, and its ranks have not let it "
                                                  "in. Do they call grow()? Is this the name of their job?") from None
        finally:
            if mine in self.newcomers.get(key, ()):
                self.newcomers[key].remove(mine)
            if not self.newcomers.get(key):
                self.newcomers.pop(key, None)

    async def reform(self, job: Job, request: Reform) -> Place | None:
        """Wait for the other ranks of a job.  Returns the rank's place in the next incarnation, or None where the job
        goes on as it was.  Raises Refusal."""
        rank, until = request.rank, self.clock() + request.timeout
        if job.state not in ("active", "leaving", "broken"):
            refuse(Code.FAILED_PRECONDITION, f"{job}, rank {rank}: expected a job that runs, got one that is "
                                             f"{job.state}")
        for at in (request.tcp, *[rail.at for rail in request.rails]):
            check_tcp(at, f"{job}, rank {rank}")
        if rank in job.left:
            refuse(Code.FAILED_PRECONDITION, f"{job}: rank {rank} has left; join anew")
        if job.successor is not None and rank in job.places:  # it asks again, since the answer has not reached it
            return job.successor, job.places[rank]
        here = job.gathering
        if here is None or here.decided.done():
            here = job.gathering = Gathering(asyncio.get_running_loop().create_future())
        here.asked[rank] = request
        job.notify()
        try:
            while not here.decided.done():
                if job.is_over:
                    refuse(Code.FAILED_PRECONDITION, f"{job} has ended: {job.reason or 'its ranks have left'}; join "
                                                     "anew")
                if rank in job.lost:
                    refuse(Code.ABORTED, evicted(job, rank))
                changed, left = job.changed, self._advance(job, here, until)
                if left is not None and left <= 0:
                    self._refuse_late(job, here, request)
                if not here.decided.done():
                    try:
                        async with asyncio.timeout(left):
                            await changed.wait()
                    except TimeoutError:
                        pass
        finally:
            if not here.decided.done():
                here.asked.pop(rank, None)
                job.notify()
        successor = here.decided.result()
        if successor is not None and rank not in job.places:  # it was lost when the others decided
            refuse(Code.ABORTED, evicted(job, rank))
        return None if successor is None else (successor, job.places[rank])

    # ---- deciding ------------------------------------------------------------------------------------------------

    def _advance(self, job: Job, here: Gathering, until: float) -> float | None:
        """Decide, where all that are there have asked, or the time of the one that calls is up and it is of the
        majority.  Returns the seconds after which it is to be called again at the latest; 0: its time is up in vain.
        """
        asked, gone, now = set(here.asked), job.left | job.lost.keys(), self.clock()
        waits = waits_for(job.world, asked, gone)
        if not is_majority(job.world, asked, gone):
            here.majority_since = None
        elif here.majority_since is None:
            here.majority_since = now
        # whoever is of a majority is not refused, but answered when the others have had their time
        end = until if here.majority_since is None else max(until, here.majority_since + LEAST_WAIT)
        if waits and here.majority_since is not None and now >= end:
            why = f"it did not stop for the others to go on, and {len(asked)} ranks have waited for it"
            for rank in sorted(waits):
                join = job.joins[rank]
                job.lost[rank] = RankLost(rank, join.address, job.hosts[rank], why)
                log.warning("%s: rank %d is evicted: %s", job, rank, why)
            waits = set()
        if not waits:
            self._decide(job, here)
            return None
        return end - now

    @staticmethod
    def _refuse_late(job: Job, here: Gathering, request: Reform) -> None:
        gone = job.left | job.lost.keys()
        late = ", ".join(map(str, sorted(waits_for(job.world, set(here.asked), gone))))
        refuse(Code.DEADLINE_EXCEEDED,
               f"{job}, rank {request.rank}: waited {request.timeout:g} s, and the ranks {late} are there and have not "
               f"asked to go on; those that have are {len(here.asked)} of {job.world - len(gone)}: no majority, which "
               "could go on without them")

    def _decide(self, job: Job, here: Gathering) -> None:
        """Make the next incarnation of those that have asked."""
        ranks = sorted(here.asked.keys() - job.left - job.lost.keys())
        is_whole = len(ranks) == job.world
        lets_in = is_whole and all(here.asked[rank].grows for rank in ranks)
        key = job.tenant.name, job.name
        waiting = [one for one in self.newcomers.get(key, ()) if not one.admitted.done()] if lets_in else []
        if lets_in and not waiting:
            here.decided.set_result(None)
            job.notify()
            return
        successor = Job(job.name, len(ranks), tenant=job.tenant)
        for place, rank in enumerate(ranks):
            asked = here.asked[rank]
            successor.joins[place] = structs.replace(job.joins[rank], rank=place, tcp=asked.tcp, rails=asked.rails,
                                                     joining=False)
        admitted: list[Newcomer] = []
        for newcomer in waiting[:MAX_WORLD - len(ranks)]:
            join = structs.replace(newcomer.join, rank=len(ranks) + len(admitted), world=len(ranks), joining=False)
            try:
                check_against(successor, join, self._path_mtu)
            except Refusal as refusal:
                newcomer.admitted.set_exception(refusal)
                continue
            successor.joins[join.rank] = join
            admitted.append(newcomer)
        successor.world = len(successor.joins)
        successor.joins = {rank: structs.replace(join, world=successor.world)
                           for rank, join in successor.joins.items()}
        finished = [here.asked[rank].finished for rank in ranks]
        successor.change = Change([*ranks, *[-1] * len(admitted)], sorted(set(range(job.world)) - set(ranks)),
                                  [*finished, *[min(finished)] * len(admitted)])
        try:
            self._begin(job, successor)
        except Refusal as refusal:
            here.decided.set_exception(refusal)
            job.notify()
            return
        job.successor, job.places = successor, {rank: place for place, rank in enumerate(ranks)}
        log.warning("%s: goes on as %d ranks, without %s, with %d that have joined now", job, successor.world,
                    successor.change.lost or "a loss", len(admitted))
        here.decided.set_result(successor)
        for place, newcomer in enumerate(admitted, len(ranks)):
            newcomer.admitted.set_result((successor, place))
        job.notify()


def evicted(job: Job, rank: int) -> str:
    """Why a rank is none any more, in words."""
    why = job.lost[rank].why if rank in job.lost else "the others went on without it"
    return (f"{job}: rank {rank} was taken for dead ({why}); its packets and requests count for nothing any more. To "
            "take part again, join the running job (joining=True)")
