# SPDX-License-Identifier: Apache-2.0
"""The job service: ranks join, get their plans together, and leave.

    gathering --all ranks joined--> planning --installed, or not folded--> active --last rank has left--> finished
        |                              '--with RC ranks--> connecting --installed--'
        |  a rank's timeout expires: it alone is refused, with the missing ranks
        '- its parameters contradict the others': it is refused at once

A name may be joined anew as soon as a rank has left: the last incarnation ends when all of its ranks have left, or when
the new one is complete, since its ranks are all gone then.  A rank with a Watch stream counts as lost when the stream
breaks before it has left: the others hear of it at once, and a job whose ranks have all left or are lost is finished.
Those that are left may go on as a new incarnation, and let others in (reforming.py).  Some ranks of a job may join a
group of it, which folds by itself and ends with the job (groups.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator

from netfold.controller.health.drains import Drains
from netfold.controller.health.liveness import Liveness
from netfold.controller.jobs import connecting, groups, leaving, quotas, reports
from netfold.controller.jobs.admission import check, check_against, check_owner, refuse
from netfold.controller.jobs.adoption import Adoption
from netfold.controller.jobs.background import Background, PlanningThread
from netfold.controller.jobs.callers import CALLER
from netfold.controller.jobs.job import Job
from netfold.controller.jobs.opening import Opening
from netfold.controller.jobs.planning import Planning
from netfold.controller.jobs.recovery import Recovery
from netfold.controller.jobs.reforming import Reforming, evicted
from netfold.controller.jobs.registry import Registry
from netfold.controller.jobs.standstill import Standstill
from netfold.controller.jobs.tree_placement import TreePlacement
from netfold.controller.switch.installer import Installer
from netfold.fabric.folding.slots import Allocator
from netfold.fabric.graph import Fabric
from netfold.rpc.rpc import Code, Refusal
from netfold.wire.jobs import (
    AllOpened,
    AskMissing,
    Connect,
    Connected,
    Done,
    Event,
    EvictedEvent,
    Halt,
    JobEndedEvent,
    Join,
    Leave,
    Opened,
    RankLeft,
    RankLost,
    RankReport,
    Reform,
    Reformed,
    Resume,
    Settled,
    Watch,
    Watching,
)
from netfold.wire.operator import Note, Totals, unnoted
from netfold.wire.plan import Plan

log = logging.getLogger("netfold.controller")


class Jobs:
    """All jobs of one fabric."""

    def __init__(
        self, fabric: Fabric, allocator: Allocator, installer: Installer, liveness: Liveness, drains: Drains,
        adoption: Adoption, note: Note = unnoted, standstill: Standstill | None = None,
    ) -> None:
        self._fabric = fabric
        self._installer = installer
        self._standstill = standstill or Standstill()
        self._drains = drains
        self._adoption = adoption
        self._note = note
        self._closing = self._stands_back = self._noticing = False
        self.registry = Registry()
        self.totals = Totals()
        self.background = Background()
        self._thread = PlanningThread()
        self.placement = TreePlacement(fabric, allocator, installer, liveness, drains, self._thread)
        self.recovery = Recovery(fabric, self.placement, self._thread, liveness, self.registry, self.totals, self._lose,
                                 note)
        self._opening = Opening(fabric, self.placement, self.registry, self.recovery.background, note)
        self._planning = Planning(fabric, allocator, installer, liveness, drains, self.placement, self.recovery,
                                  self.registry, self.totals, self.background, self._thread, self._end,
                                  self._lose, note)
        self.reforming = Reforming(self.begin_successor, fabric.path_mtu)

    @property
    def is_changing(self) -> bool:
        """True if trees of some job are planned anew, or their leftovers on switches are not removed yet."""
        return bool(self.recovery.background)

    def all(self) -> list[Job]:
        """Every job that `netfold status` shows, running ones first."""
        return self.registry.all()

    def places(self, job: Job) -> dict[int, str]:
        """Host names of the ranks that have joined, by rank."""
        hosts = {rank: self._fabric.host_at(join.address) for rank, join in sorted(job.joins.items())}
        return {rank: host.name for rank, host in hosts.items() if host is not None}

    # ---- the service ---------------------------------------------------------------------------------------------

    async def join(self, request: Join) -> Plan:
        """Wait for the other ranks and for the switches, then return this rank's plan.  Raises Refusal."""
        check(request, self._fabric, self._drains)
        tenant, group, parent = CALLER.get().tenant, request.group, None
        if group is not None:
            request, parent = groups.taken_in(request, group, self.registry)
        quotas.check_join(request.job if parent is None else parent.name, tenant, list(self.registry.unfinished()))
        for held in self.registry.unfinished():
            if held.name == request.job:
                check_owner(held, tenant)
        if request.joining:
            return await self._plan_of(*await self.reforming.wait_to_join(request, tenant))
        job = self.registry.named.get(request.job)
        if job is not None and job.state in ("leaving", "broken"):
            self.registry.retire(job)
            job = None
        if job is None:
            job = self.registry.named[request.job] = Job(request.job, request.world, tenant=tenant)
            if parent is not None and group is not None:
                job.parent_epoch, job.members, job.used = parent.epoch, list(group.members), time.monotonic()
        if parent is not None and group is not None:
            groups.check_same(job, parent, group)
        check_against(job, request, self._fabric.path_mtu)
        job.joins[request.rank] = request
        log.info("%s: rank %d of %d joined from %s", job, request.rank, job.world, request.address)
        if job.is_complete:
            self._planning.begin(job)
        try:
            async with asyncio.timeout(request.timeout):
                await job.complete.wait()
        except TimeoutError:
            missing = ", ".join(map(str, job.missing))
            self._withdraw(job, request.rank, "its time was up")
            refuse(Code.DEADLINE_EXCEEDED, f"{job}: rank {request.rank} waited {request.timeout:g} s, and the ranks "
                                            f"{missing} of {job.world} have not joined. Start them, or wait longer")
        except asyncio.CancelledError:
            self._withdraw(job, request.rank, "it went away while waiting")
            raise
        return await self._plan_of(job, request.rank)

    async def _plan_of(self, job: Job, rank: int) -> Plan:
        """The plan of a rank of a job whose ranks are all there, once it is made.  Raises Refusal."""
        if job.planning is None:
            refuse(Code.ABORTED, f"{job}: {job.reason}")
        try:
            # a rank that goes away must not cancel the plan of all
            made = await asyncio.shield(job.planning)
            if job.ready is not None and job.joins[rank].kind == "windowed":
                made = await asyncio.shield(job.ready)
            return made[rank]
        except asyncio.CancelledError:
            if job.planning.cancelled():
                refuse(Code.ABORTED, f"{job}: {job.reason}")
            self._withdraw(job, rank, "it went away before it had its plan")
            raise

    async def reform(self, request: Reform) -> Reformed:
        """Let a rank go on with those that are there, and with those that wait to join, as a new incarnation of its
        job.  Raises Refusal."""
        self.registry.refuse_evicted(request)
        job = self.registry.find(request)
        if job.is_group:
            refuse(Code.FAILED_PRECONDITION, f"{job}: its ranks cannot go on by themselves: those of its job do, and "
                                             "make its groups anew")
        place = await self.reforming.reform(job, request)
        return Reformed() if place is None else Reformed(await self._plan_of(*place))

    def begin_successor(self, job: Job, successor: Job) -> None:
        """Begin the incarnation as which a job's ranks go on; the one before ends before the switches get entries.
        Raises Refusal where another job has the name, which must not be lost sight of."""
        other = self.registry.named.get(job.name)
        if other is not None and other is not job:
            if other.state != "gathering":
                refuse(Code.FAILED_PRECONDITION, f"{job}, epoch {job.epoch}: its name was joined anew since, so its "
                                                 "ranks cannot go on anew; give each job its own name")
            other.reason = "the ranks of the job of this name go on; join it with joining=True"
            other.complete.set()
        self.registry.named[job.name] = successor
        self.registry.retire(job)
        self._planning.begin(successor)

    async def report(self, request: RankReport) -> Done:
        """Record a rank's totals.  Raises Refusal."""
        reports.record(self.registry.find(request), request, self.totals, time.monotonic())
        return Done()

    def _notice_soon(self) -> None:
        """Check all jobs once, after all that happens in this turn of the loop: a job's ranks register together, and
        its groups end together."""
        if not self._noticing:
            self._noticing = True
            asyncio.get_running_loop().call_soon(self._notice_now)

    def _notice_now(self) -> None:
        self._noticing = False
        self.notice()

    def ask_progress(self) -> None:
        """Ask the ranks of running jobs how far they are, since somebody looks.  Does not wait for their reports."""
        now = time.monotonic()
        for job in self.registry.named.values():
            reports.ask(job, now)

    async def suspect(self, request: AskMissing) -> Done:
        """Probe the links of a rank's trees, since its retransmissions bring no results; or halt all ranks of its job,
        since its queue pairs are in error.  Raises Refusal."""
        job = self.registry.find(request)
        if request.broken:
            self.recovery.broken(job, request.rank, request.broken)
        else:
            self.recovery.suspect(job)
        return Done()

    def notice(self) -> None:
        """Check all jobs after something went down or came up: some may need or get other trees."""
        if not self._stands_back:
            self.recovery.notice(self.registry.active())

    async def wait_for_rounds(self, timeout: float) -> None:
        """Wait until no job stands still for new trees, at most so many seconds."""
        rounds = [job.round.plans for job in self.registry.active() if job.round is not None and job.stands_still]
        if rounds:
            await asyncio.wait(rounds, timeout=timeout)

    async def resume(self, request: Resume) -> Plan:
        """A halted rank waits for its new plan.  Raises Refusal."""
        return await self.recovery.resume(self.registry.find(request), request)

    async def connect(self, request: Connect) -> Connected:
        """The second step of an RC rank: its queue pairs, for entries.  Raises Refusal."""
        return await connecting.connect(self.registry.find(request), request, list(self.registry.unfinished()))

    async def opened(self, request: Opened) -> AllOpened:
        """A rank has opened what it folds with, or lacks something; wait for the others.  Raises Refusal."""
        return await self._opening.opened(self.registry.find(request), request)

    async def leave(self, request: Leave) -> Done:
        """Let a rank leave; with the last one the job ends.  Raises Refusal."""
        job = self.registry.find(request)
        if not request.reason:
            await leaving.wait_for_others(job, request.rank, request.folded)
        job.left.add(request.rank)
        leaving.settled(job, request.rank)
        if request.reason:
            job.state, job.reason = "broken", f"rank {request.rank} left: {request.reason}"
            log.warning("%s: %s", job, job.reason)
        elif job.state == "active":
            job.state = "leaving"
        job.notify()
        if request.last and not request.reason:  # what failed, those know who are to blame
            join = job.joins[request.rank]
            host = self._fabric.host_at(join.address)
            said = RankLeft(request.rank, join.address, host.name if host else "", request.last)
            job.said[request.rank] = said
            job.broadcast(said, but=job.leaving)  # whoever is about to leave as well has no operation any more
        self.recovery.abort_if_ranks_gone(job)
        if request.rank in job.watchers:
            job.watchers[request.rank].put_nowait(None)
        if job.is_connecting:
            job.reason = job.reason or f"rank {request.rank} left before all ranks had their plans"
        if job.is_empty or job.is_connecting:
            await self._end(job)
        return Done()

    async def settled(self, request: Settled) -> Done:
        """Record that a rank lacks no result: ranks that wait for that may leave.  Raises Refusal."""
        leaving.settled(self.registry.find(request), request.rank)
        return Done()

    async def watch(self, request: Watch) -> AsyncGenerator[Event, None]:
        """Events for a rank until it leaves; a rank that closes the stream before counts as lost.  Raises Refusal."""
        if (was := self.registry.evicts(request)) is not None:
            yield EvictedEvent(evicted(was, request.rank))
            return
        if request.waits:
            self.registry.proven(request)
            await self._adoption.wait_until(lambda: self.registry.named_by(request) is not None)
        await self._adopt(request)
        job = self.registry.find(request)
        if request.rank in job.watchers:
            refuse(Code.ALREADY_EXISTS, f"{job}: rank {request.rank} watches already; a rank has one Watch")
        if request.rank in job.left:
            refuse(Code.FAILED_PRECONDITION, f"{job}: rank {request.rank} has left; join anew")
        queue = job.watchers[request.rank] = asyncio.Queue()
        # all of it is looked up now: what comes while the rank is sent the first events stands in the queue
        first: list[Event] = [Watching(), *job.lost.values(), *job.said.values()]
        if job.round is not None and job.round.halt_sent and job.stands_still:
            first.append(Halt(job.round.number, job.round.why))
        first += leaving.registered(job, request.rank)
        try:
            for said in first:
                yield said
            while (event := await queue.get()) is not None:
                yield event
        finally:
            del job.watchers[request.rank]
            if request.rank not in job.awaited:
                leaving.settled(job, request.rank)
            if request.rank in job.left:
                pass  # nothing is lost with it: the switches need not be asked, by each of thousands of ranks
            elif self._standstill.was_recent:
                self.background.begin(self._lose_if_primary(job, request.rank), f"{job}: rank {request.rank} has gone")
            elif not self._closing:
                self._lose_watched(job, request.rank)

    async def _adopt(self, request: Watch) -> None:
        """Go on with the job of a rank that registers with the plan of an earlier controller.  Raises Refusal."""
        job = self.registry.named_by(request)
        if (job is None and not request.ticket.value) or (job is not None and request.rank not in job.awaited):
            return
        self.registry.proven(request)
        if request.ticket.value:
            record = await asyncio.to_thread(self._adoption.record, request, self.registry.key)
            if self.registry.named_by(request) is None:
                borne = await self._adoption.borne_out(record, request.ticket)
            job = self.registry.named_by(request)  # another rank may have brought it meanwhile
            if job is not None and request.rank not in job.awaited:
                return
        if job is None:
            other = self.registry.named.get(request.job)
            if other is not None and other.state != "gathering" and other.tenant.name == record.tenant:
                refuse(Code.FAILED_PRECONDITION, f"{other}: its name was joined anew since; give each job its own name")
            job = self._adoption.adopt(record, borne, request.rank)
            if other is not None and other.state != "gathering":
                # somebody else has taken the name while no controller knew of this job, which must not end it
                self.registry.retire(job)
            else:
                if other is not None:
                    other.reason = "a job of this name runs already, which the controller has just adopted"
                    other.complete.set()
                self.registry.named[job.name] = job
            log.warning("%s: epoch %d, %d ranks, adopted", job, job.epoch, job.world)
            self._note("adopted", job.name, f"{job.world} ranks, from the controller before this one")
            job.ticket = request.ticket
        job.awaited.discard(request.rank)
        if not self.recovery.register(job, request.planned, request.round, folds=request.folds):
            job.reason = "the controller died while its ranks went over to TCP"
            self.background.begin(self._end(job), f"end of {job}")
            refuse(Code.FAILED_PRECONDITION, f"{job}: {job.reason}; join anew")
        log.info("%s: rank %d has registered, %d to come", job, request.rank, len(job.awaited))
        job.notify()
        self._notice_soon()

    def stand_back(self) -> None:
        """From now on halt and move nobody: a later controller has the switches."""
        self._stands_back = True

    async def end_grace(self) -> None:
        """Remove what switches hold of jobs that nobody has claimed; ranks of adopted jobs that have not registered are
        lost."""
        await self._adoption.close()
        for job in self.all():
            for rank in sorted(job.awaited):
                self._lose(job, rank, f"it has not registered with the new controller within {self._fabric.grace:g} s")
            job.awaited.clear()
        for group in [job for job in self.registry.unfinished() if job.is_group]:
            if self.registry.parent_of(group) is None:
                await self._finish(group, f"no rank of {group.parent_name!r}, of which it is a group, has registered")

    def close(self) -> None:
        """End all Watch streams because the service ends; no rank counts as lost for that."""
        self._closing = True
        self._planning.close()
        for job in self.all():
            job.broadcast(None)
            if job.step is not None:
                job.step.abort(Refusal(Code.UNAVAILABLE, f"{job}: the controller ends before its ranks connected"))

    async def settle(self) -> None:
        """Wait for background work to end."""
        await self.background.wait()
        await self.recovery.close()
        self._thread.shutdown()

    async def drop(self, name: str) -> bool:
        """End every incarnation of a job, whatever its ranks do.  Returns False if there is none."""
        jobs = [job for job in self.all() if job.name == name and job.state != "finished"]
        for job in jobs:
            await self._finish(job, "dropped by the operator")
        return bool(jobs)

    async def _finish(self, job: Job, why: str) -> None:
        """End a job, whatever its ranks do."""
        job.reason = why
        job.complete.set()
        await self._planning.stop(job)
        await self._end(job)

    # ---- ranks that go, and the end --------------------------------------------------------------------------------

    def _lose(self, job: Job, rank: int, why: str) -> None:
        """Record that a rank is lost and tell the others; with the last one the job ends."""
        if job.state == "finished" or rank in job.left or rank in job.lost:
            return
        join = job.joins[rank]
        host = self._fabric.host_at(join.address)
        lost = job.lost[rank] = RankLost(rank, join.address, host.name if host else "", why)
        job.state, job.reason = "broken", f"rank {rank}: {why}"
        log.warning("%s: %s", job, job.reason)
        self._note("lost", job.name, f"rank {rank}{f' on {lost.host}' if lost.host else ''}: {why}")
        job.broadcast(lost)
        leaving.settled(job, rank)
        job.notify()
        self.recovery.abort_if_ranks_gone(job)
        for group in self.registry.groups_of(job):
            if group.state == "gathering" and rank in group.members:
                self.background.begin(self._finish(group, f"{job}: rank {rank}: {why}"), f"end of {group}")
        if job.is_connecting or (job.is_empty and (job.planning is None or job.planning.done())):
            # in the background, since the task that noticed is being cancelled itself
            self.background.begin(self._end(job), f"end of {job}")

    async def _lose_if_primary(self, job: Job, rank: int) -> None:
        """A rank's Watch was over when this process had stood still: the rank may have gone to a later controller, of
        which the switches tell."""
        await self._installer.confirm()
        if not (self._closing or self._stands_back or rank in job.watchers):
            self._lose_watched(job, rank)

    def _lose_watched(self, job: Job, rank: int) -> None:
        """A rank's Watch is over.  One that went on to the next incarnation, and watches that, has closed it itself."""
        here: Job | None = job
        while here is not None and here.successor is not None:
            place = here.places.get(rank)
            if place is None:
                return
            here, rank = here.successor, place
            if rank in here.watchers:
                return
        self._lose(here or job, rank, "its connection to the controller broke before it left")

    def _withdraw(self, job: Job, rank: int, why: str) -> None:
        if job.state == "gathering":
            log.info("%s: rank %d withdrawn: %s", job, rank, why)
            del job.joins[rank]
            if not job.joins and self.registry.named.get(job.name) is job:  # else it has just lost its name
                del self.registry.named[job.name]
        else:
            self._lose(job, rank, why)

    async def _end(self, job: Job) -> None:
        if job.state == "finished":
            return
        began = job.epoch > 0 and not (job.is_group and not job.slots)  # a group that never folded is nobody's news
        job.state = "finished"
        if began:
            self._note("finished", job.name, job.reason or ("its ranks go on as another incarnation"
                                                            if job.successor is not None else "all ranks have left"))
        self.registry.finish(job)
        if job.successor is not None:
            for rank in job.watchers.keys() - job.places.keys():
                job.watchers[rank].put_nowait(EvictedEvent(evicted(job, rank)))
                job.watchers[rank].put_nowait(None)
        else:
            if not job.is_empty:
                job.broadcast(JobEndedEvent(job.reason or "its ranks have joined anew"))
            job.broadcast(None)
        self.recovery.abort_if_ranks_gone(job)
        why = f"{job} has ended: {job.reason or 'its ranks have left'}; join anew"
        if job.step is not None:
            job.step.abort(Refusal(Code.FAILED_PRECONDITION, why))
        if job.ready is not None and not job.ready.done():
            job.ready.set_exception(Refusal(Code.ABORTED, why))
            job.ready.exception()  # asyncio would complain about an exception that nobody retrieved
        job.notify()
        # the caller may stop waiting (a rank's call has a deadline): entries and slots are freed all the same
        await asyncio.shield(self.background.begin(self._clear(job, why), f"end of {job}"))

    async def _clear(self, job: Job, why: str) -> None:
        """End the groups of a job that has ended, and remove what switches hold of it."""
        for group in self.registry.groups_of(job):
            await self._finish(group, f"{job}, of which it is a group, has ended")
        await self.placement.leave(job)
        await self.recovery.clear(job, why)
        log.info("%s: epoch %d ended", job, job.epoch)
        if job.slots:
            self._notice_soon()  # other jobs may have room to move now
