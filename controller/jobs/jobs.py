# SPDX-License-Identifier: Apache-2.0
"""The job service: ranks join, get their plans together, and leave.

    gathering --all ranks joined--> planning --installed, or not folded--> active --last rank has left--> finished
        |                              '--with RC ranks--> connecting --installed--'
        |  a rank's timeout expires: it alone is refused, with the missing ranks
        '- its parameters contradict the others': it is refused at once

A name may be joined anew as soon as a rank has left: the last incarnation ends when all of its ranks have left, or when
the new one is complete, since its ranks are all gone then.  A rank with a Watch stream counts as lost when the stream
breaks before it has left: the others hear of it at once, and a job whose ranks have all left or are lost is finished.
Those that are left may go on as a new incarnation, and let others in (reforming.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from msgspec import structs

from netfold.controller.health.drains import Drains
from netfold.controller.health.liveness import Liveness
from netfold.controller.jobs import connecting, fabric_key, leaving, plans, quotas
from netfold.controller.jobs.admission import check, check_against, check_owner, refuse
from netfold.controller.jobs.adoption import Adoption
from netfold.controller.jobs.callers import CALLER
from netfold.controller.jobs.connecting import ConnectStep
from netfold.controller.jobs.job import Job
from netfold.controller.jobs.recovery import Installer, Recovery
from netfold.controller.jobs.reforming import Reforming, evicted
from netfold.controller.switch import tables
from netfold.controller.switch.switch import SwitchError
from netfold.fabric import slots, trees
from netfold.fabric.graph import Fabric, Host
from netfold.fabric.machines import fold_groups, machines
from netfold.fabric.slots import Allocator
from netfold.rpc.limits import RateLimit
from netfold.rpc.rpc import Code, Refusal
from netfold.wire.jobs import (
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
    Plan,
    RankLost,
    RankReport,
    Reform,
    Reformed,
    Resume,
    Secret,
    Settle,
    Settled,
    Tell,
    Watch,
    Watching,
)
from netfold.wire.operator import Note, Totals, unnoted

log = logging.getLogger("netfold.controller")

TELL_SECONDS: Final = 0.9
"""Seconds between two questions to a rank, how far it is, while somebody looks."""
TELL_RATE: Final = 128
"""Ranks of a job a second that are asked so, on average."""
RANK_RATE: Final = 50
"""Requests a second of one rank, RANK_BURST at once: one that loses a path makes one for each queue pair there."""
RANK_BURST: Final = 500
MAX_TOTAL: Final = 2**63 - 1
"""Where totals stop, whatever ranks report: a larger one would fit no counter of whoever reads the status."""
P = ParamSpec("P")
T = TypeVar("T")
FINISHED: Final = 16
"""Number of finished jobs that `netfold status` still shows."""


class RankRequest(Protocol):
    """What every request of a rank says: who it is, and the proof."""

    @property
    def job(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def secret(self) -> Secret: ...


class Jobs:
    """All jobs of one fabric."""

    def __init__(
        self, fabric: Fabric, allocator: Allocator, installer: Installer, liveness: Liveness, drains: Drains,
        adoption: Adoption, note: Note = unnoted,
    ) -> None:
        self._fabric = fabric
        self._allocator = allocator
        self._installer = installer
        self._liveness = liveness
        self._drains = drains
        self._adoption = adoption
        self._note = note
        self._jobs: dict[str, Job] = {}
        self._ending: list[Job] = []
        self._finished: deque[Job] = deque(maxlen=FINISHED)
        self._closing = self._stands_back = False
        self.key = fabric_key.draw()
        """The fabric key, from which the secrets of ranks are derived."""
        self.totals = Totals()
        self._recovery = Recovery(fabric, allocator, installer, liveness, drains, self.totals, self._plans,
                                  self._plans_to_connect, self._lose, note)
        self._reforming = Reforming(self._begin_successor, fabric.path_mtu)
        self._cleaning: set[asyncio.Task[None]] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jobs")

    def all(self) -> list[Job]:
        """Every job that `netfold status` shows, running ones first."""
        return [*self._jobs.values(), *self._ending, *self._finished]

    def folding_beside(self, job: Job) -> list[tuple[list[trees.Tree], list[str]]]:
        """The trees and hosts of all other jobs that fold."""
        return [(other.trees, other.hosts) for other in self.active() if other is not job and other.trees]

    def active(self, name: str | None = None) -> list[Job]:
        """Jobs that hold slots: all of them, or those of this name."""
        held = [job for job in (*self._jobs.values(), *self._ending) if job.streams]
        return [job for job in held if name in (None, job.name)]

    def places(self, job: Job) -> dict[int, str]:
        """Host names of the ranks that have joined, by rank."""
        hosts = {rank: self._fabric.host_at(join.address) for rank, join in sorted(job.joins.items())}
        return {rank: host.name for rank, host in hosts.items() if host is not None}

    # ---- the service ---------------------------------------------------------------------------------------------

    async def join(self, request: Join) -> Plan:
        """Wait for the other ranks and for the switches, then return this rank's plan.  Raises Refusal."""
        check(request, self._fabric, self._drains)
        tenant = CALLER.get().tenant
        quotas.check_join(request.job, tenant, [*self._jobs.values(), *self._ending])
        for held in (*self._jobs.values(), *self._ending):
            if held.name == request.job:
                check_owner(held, tenant)
        if request.joining:
            return await self._plan_of(*await self._reforming.wait_to_join(request, tenant))
        job = self._jobs.get(request.job)
        if job is not None and job.state in ("leaving", "broken"):
            self._ending.append(job)
            job = None
        if job is None:
            job = self._jobs[request.job] = Job(request.job, request.world, tenant=tenant)
        check_against(job, request, self._fabric.path_mtu)
        job.joins[request.rank] = request
        log.info("%s: rank %d of %d joined from %s", job, request.rank, job.world, request.address)
        if not job.missing:
            job.state = "planning"
            job.planning = asyncio.create_task(self._plan(job), name=f"plan {job}")
            job.complete.set()
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
        self._refuse_evicted(request)
        place = await self._reforming.reform(self.find(request), request)
        return Reformed() if place is None else Reformed(await self._plan_of(*place))

    def _begin_successor(self, job: Job, successor: Job) -> None:
        """Begin the incarnation as which a job's ranks go on; the one before ends before the switches get entries.
        Raises Refusal where another job has the name, which must not be lost sight of."""
        other = self._jobs.get(job.name)
        if other is not None and other is not job:
            if other.state != "gathering":
                refuse(Code.FAILED_PRECONDITION, f"{job}, epoch {job.epoch}: its name was joined anew since, so its "
                                                 "ranks cannot go on anew; give each job its own name")
            other.reason = "the ranks of the job of this name go on; join it with joining=True"
            other.complete.set()
        self._jobs[job.name] = successor
        if job not in self._ending:
            self._ending.append(job)
        successor.state = "planning"
        successor.planning = asyncio.create_task(self._plan(successor), name=f"plan {successor}")
        successor.complete.set()

    def _refuse_evicted(self, request: RankRequest) -> None:
        """Tell a rank that was taken for dead that it was.  Raises Refusal."""
        job = self._evicts(request)
        if job is not None:
            refuse(Code.ABORTED, evicted(job, request.rank))

    def _evicts(self, request: RankRequest) -> Job | None:
        """The job to which a rank belonged that was taken for dead, and says that it lives."""
        for job in self.all():
            if _is_of(job, request) and request.rank in job.lost:
                self._proven(request)
                return job
        return None

    async def report(self, request: RankReport) -> Done:
        """Record a rank's totals.  Raises Refusal."""
        job = self.find(request)
        before = job.reports.get(request.rank)
        if before is not None and (request.operations, request.packets_sent) < (before.operations, before.packets_sent):
            return Done()  # sent before that one, and arrived after it
        for name in ("operations", "bytes_reduced", "packets_sent", "retransmissions"):
            more = getattr(request, name) - (0 if before is None else getattr(before, name))
            setattr(self.totals, name, min(getattr(self.totals, name) + max(more, 0), MAX_TOTAL))
        job.reports[request.rank] = structs.replace(request, secret=Secret())  # `netfold status` shows it
        return Done()

    def ask_progress(self) -> None:
        """Ask the ranks of running jobs how far they are, since somebody looks: TELL_RATE ranks of a job a second at
        most on average, and each once a second at most.  Does not wait for their reports."""
        now = time.monotonic()
        for job in self._jobs.values():
            if job.state == "active" and now - job.asked >= max(TELL_SECONDS, job.world / TELL_RATE):
                job.asked = now
                job.broadcast(Tell())

    async def suspect(self, request: AskMissing) -> Done:
        """Probe the links of a rank's trees, since its retransmissions bring no results; or halt all ranks of its job,
        since its queue pairs are in error.  Raises Refusal."""
        job = self.find(request)
        if request.broken:
            self._recovery.broken(job, request.rank, request.broken)
        else:
            self._recovery.suspect(job)
        return Done()

    def notice(self) -> None:
        """Check all jobs after something went down or came up: some may need or get other trees."""
        if not self._stands_back:
            self._recovery.notice(self.active())

    async def resume(self, request: Resume) -> Plan:
        """A halted rank waits for its new plan.  Raises Refusal."""
        return await self._recovery.resume(self.find(request), request)

    async def connect(self, request: Connect) -> Connected:
        """The second step of an RC rank: its queue pairs, for entries.  Raises Refusal."""
        return await connecting.connect(self.find(request), request, [*self._jobs.values(), *self._ending])

    async def leave(self, request: Leave) -> Done:
        """Let a rank leave; with the last one the job ends.  Raises Refusal."""
        job = self.find(request)
        if not request.reason:
            await leaving.wait_for_others(job, request.rank)
        job.left.add(request.rank)
        if request.reason:
            job.state, job.reason = "broken", f"rank {request.rank} left: {request.reason}"
            log.warning("%s: %s", job, job.reason)
        elif job.state == "active":
            job.state = "leaving"
        job.notify()
        self._recovery.abort_if_ranks_gone(job)
        if request.rank in job.watchers:
            job.watchers[request.rank].put_nowait(None)
        if job.is_connecting:
            job.reason = job.reason or f"rank {request.rank} left before all ranks had their plans"
        if job.is_empty or job.is_connecting:
            await self._end(job)
        return Done()

    async def settled(self, request: Settled) -> Done:
        """Record that a rank lacks no result: ranks that wait for that may leave.  Raises Refusal."""
        leaving.settled(self.find(request), request.rank)
        return Done()

    async def watch(self, request: Watch) -> AsyncGenerator[Event, None]:
        """Events for a rank until it leaves; a rank that closes the stream before counts as lost.  Raises Refusal."""
        if (was := self._evicts(request)) is not None:
            yield EvictedEvent(evicted(was, request.rank))
            return
        self._adopt(request)
        job = self.find(request)
        if request.rank in job.watchers:
            refuse(Code.ALREADY_EXISTS, f"{job}: rank {request.rank} watches already; a rank has one Watch")
        if request.rank in job.left:
            refuse(Code.FAILED_PRECONDITION, f"{job}: rank {request.rank} has left; join anew")
        queue = job.watchers[request.rank] = asyncio.Queue()
        try:
            yield Watching()
            for lost in list(job.lost.values()):
                yield lost
            if job.round is not None and job.round.halt_sent and job.stands_still:
                yield Halt(job.round.number, job.round.why)
            if leaving.registered(job, request.rank):
                yield Settle()
            while (event := await queue.get()) is not None:
                yield event
        finally:
            del job.watchers[request.rank]
            if not self._closing:
                self._lose_watched(job, request.rank)

    def _adopt(self, request: Watch) -> None:
        """Go on with the job of a rank that registers with a ticket of an earlier controller.  Raises Refusal."""
        job = next((job for job in self.all() if _is_of(job, request)), None)
        if not request.ticket.value or (job is not None and request.rank not in job.awaited):
            return
        self._proven(request)
        record = self._adoption.record(request, self.key)
        if job is None:
            other = self._jobs.get(request.job)
            if other is not None and other.state != "gathering" and other.tenant.name == record.tenant:
                refuse(Code.FAILED_PRECONDITION, f"{other}: its name was joined anew since; give each job its own name")
            job = self._adoption.adopt(record, request.rank)
            if other is not None and other.state != "gathering":
                # somebody else has taken the name while no controller knew of this job, which must not end it
                self._ending.append(job)
            else:
                if other is not None:
                    other.reason = "a job of this name runs already, which the controller has just adopted"
                    other.complete.set()
                self._jobs[job.name] = job
            log.warning("%s: epoch %d, %d ranks, adopted", job, job.epoch, job.world)
            self._note("adopted", job.name, f"{job.world} ranks, from the controller before this one")
            job.ticket = request.ticket
        job.awaited.discard(request.rank)
        if not self._recovery.register(job, request.rank, record.streams, record.round, request.round):
            job.reason = "the controller died while its ranks went over to TCP"
            self._background(self._end(job), f"end of {job}")
            refuse(Code.FAILED_PRECONDITION, f"{job}: {job.reason}; join anew")
        log.info("%s: rank %d has registered, %d to come", job, request.rank, len(job.awaited))
        job.notify()
        self.notice()

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

    def close(self) -> None:
        """End all Watch streams because the service ends; no rank counts as lost for that."""
        self._closing = True
        for job in self.all():
            job.broadcast(None)
            if job.step is not None:
                job.step.abort(Refusal(Code.UNAVAILABLE, f"{job}: the controller ends before its ranks connected"))

    async def settle(self) -> None:
        """Wait for background work to end."""
        while self._cleaning:
            await asyncio.gather(*self._cleaning)
        await self._recovery.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def drop(self, name: str) -> bool:
        """End every incarnation of a job, whatever its ranks do.  Returns False if there is none."""
        jobs = [job for job in self.all() if job.name == name and job.state != "finished"]
        for job in jobs:
            job.reason = "dropped by the operator"
            job.complete.set()
            if job.planning is not None:
                job.planning.cancel()
                await asyncio.gather(job.planning, return_exceptions=True)
            await self._end(job)
        return bool(jobs)

    def find(self, request: RankRequest) -> Job:
        """The incarnation of a job from whose rank a request comes, which its secret proves.  Raises Refusal."""
        who = self._proven(request)
        for job in (*self._jobs.values(), *self._ending):
            if _is_of(job, request) and request.rank in job.joins:
                limit = job.limits.setdefault(request.rank, RateLimit(RANK_RATE, RANK_BURST))
                if seconds := limit.wait():
                    refuse(Code.RESOURCE_EXHAUSTED, f"{who}: expected at most {RANK_RATE} requests a second, got more. "
                                                    f"Wait {seconds:.2f} s")
                return job
        refuse(Code.FAILED_PRECONDITION, f"{who}: there is no such rank; its job may have ended, or the controller was "
                                         "started anew")

    def _proven(self, request: RankRequest) -> str:
        """The rank from which a request comes, in words.  Raises Refusal where its secret does not prove it."""
        who = f"job {request.job!r}, epoch {request.epoch}, rank {request.rank}"
        named = (CALLER.get().tenant.name, request.job, request.epoch, request.rank)
        if not fabric_key.rank_secret(self.key, *named).matches(request.secret):
            got = "another one" if request.secret.value else "none"
            refuse(Code.PERMISSION_DENIED, f"{who}: secret: expected that of this rank's plan, got {got}. A rank "
                                           "speaks for itself alone; if the fabric key was lost, join anew")
        return who

    # ---- planning ------------------------------------------------------------------------------------------------

    async def _plan(self, job: Job) -> list[Plan]:
        """Plan trees, allocate slots and write entries, or decide that the job is not folded, and why.  Returns a plan
        for each rank."""
        hosts = plans.hosts_of(self._fabric, job)
        job.hosts = [host.name for host in hosts]
        shared = machines(job.hosts)
        # all ranks have joined the new incarnation, so none is in an old one any more
        for old in [old for old in self._ending if (old.name, old.tenant.name) == (job.name, job.tenant.name)]:
            await self._end(old)
        try:
            connecting.check_ranks(job)
            job.epoch = job.slots_epoch = self._allocator.open()
        except Refusal as refusal:
            job.reason = str(refusal)
            await self._end(job)
            raise
        except slots.Exhausted as error:
            job.reason = f"{error}: no job more can run at once"
            await self._end(job)
            raise Refusal(Code.RESOURCE_EXHAUSTED, f"{job}: {job.reason}") from error
        try:
            if job.world == 1:
                raise trees.NoTree("one rank has nothing to fold")
            if opted_out := [rank for rank, join in sorted(job.joins.items()) if not join.fold]:
                raise trees.NoTree(_opted_out(opted_out, job.world))
            groups = fold_groups(shared, job.hosts)
            graph = self._drains.left(self._liveness.graph())
            carried = trees.tree_loads(graph, self.folding_beside(job))
            job.trees = job.first_trees = await self._on_thread(
                partial(trees.plan, graph, [job.hosts[rank] for rank in groups[0]], carried=carried)
            )
            job.sessions = self._recovery.sessions(job.trees)
            job.streams = job.announced = await self._admit(job, groups)
            if not job.rc_ranks:
                await self._installer.install(job.part, await self._on_thread(self._entries, hosts, job.streams))
            job.slots = job.streams[0].slots
        except (trees.NoTree, slots.Exhausted, SwitchError) as error:
            self._unfold(job, error)
        except BaseException:  # dropped meanwhile, or a bug: the job must not hold anything then
            await self._end(job)
            raise
        self.totals.jobs += 1
        asyncio.get_running_loop().call_later(self._fabric.lease, self._expire, job)
        if job.rc_ranks and job.streams:
            return await self._begin_connecting(job)
        self._activate(job)
        if job.is_empty:  # all ranks went away meanwhile
            await self._end(job)
        return await self._on_thread(self._plans, job)

    def _unfold(self, job: Job, why: Exception) -> None:
        """Let a job begin without trees, whose switches hold nothing of it."""
        job.reason, job.trees, job.streams, job.announced, job.slots = str(why), [], [], [], 0
        self._allocator.release(job.epoch)
        job.slots_epoch = 0  # it holds none, and this one will be another job's
        wanted = job.world > 1 and all(join.fold for join in job.joins.values())
        log.log(logging.WARNING if wanted else logging.INFO, "%s: not folded: %s", job, why)

    def _activate(self, job: Job) -> None:
        if job.state in ("planning", "connecting"):
            job.state = "active"
        where = ", ".join(f"{tree.root} ({tree.weight:.0%})" for tree in job.trees) or "nowhere"
        log.info("%s: epoch %d, %d ranks, folded at %s", job, job.epoch, job.world, where)
        self._note("joined", job.name, f"{job.world} ranks, folded at {where}"
                   + (f": {job.reason}" if job.reason and not job.trees else ""))
        self._recovery.notice([job])  # something may have gone down since the trees were planned

    async def _begin_connecting(self, job: Job) -> list[Plan]:
        """Let RC ranks have their first plans, by which they make their queue pairs; windowed ranks wait.  Returns the
        plans."""
        if job.lost or job.state != "planning":  # ranks went away meanwhile
            job.reason = job.reason or "ranks went away before it was planned"
            await self._end(job)
            raise Refusal(Code.ABORTED, f"{job}: {job.reason}")
        changed = asyncio.Event()
        job.step = ConnectStep(0, job.streams, changed.set)
        job.ready = asyncio.get_running_loop().create_future()
        job.state = "connecting"
        made = await self._on_thread(self._plans_to_connect, job, job.step)
        self._background(self._connect_first(job, job.step, job.ready, changed), f"connecting {job}")
        log.info("%s: epoch %d, waits for the queue pairs of the ranks %s", job, job.epoch,
                 ", ".join(map(str, job.step.ranks)))
        return made

    async def _connect_first(
        self, job: Job, step: ConnectStep, ready: asyncio.Future[list[Plan]], changed: asyncio.Event
    ) -> None:
        """Wait for the queue pairs of a job's RC ranks, write the entries, and let all ranks begin."""
        while step.is_open and step.missing:
            changed.clear()
            await changed.wait()
        if not step.is_open:  # the job has ended
            return
        streams = step.streams()
        try:
            try:
                job.sessions = self._recovery.sessions(job.trees)
                entries = await self._on_thread(self._entries, plans.hosts_of(self._fabric, job), streams)
                await self._installer.install(job.part, entries)
                job.streams = job.announced = streams
            except SwitchError as error:
                self._unfold(job, error)
            made = await self._on_thread(self._plans, job)
        except BaseException:  # a bug: the job must not hold anything then
            await self._end(job)
            raise
        if job.state == "finished" or ready.done():  # it ended meanwhile, and is to hold nothing
            await self._installer.uninstall(job.part)
            return
        ready.set_result(made)
        step.finish(job.streams, job.ticket, job.reason)
        asyncio.get_running_loop().call_later(self._fabric.lease, self._expire, job)
        self._activate(job)

    async def _admit(self, job: Job, groups: Sequence[Sequence[int]]) -> list[slots.Stream]:
        """Allocate the streams of a job's trees, within its tenant's quota, from jobs of a lower priority where too few
        slots are free.  Raises Exhausted."""
        kept = False
        while True:
            others = [other for other in self.active() if other is not job]
            room = quotas.room(job.tenant, job.trees, others)
            try:
                return self._allocator.admit(job.epoch, job.trees, groups, room=room, rc=job.rc_ranks,
                                             lane_bits=job.joins[0].lane_bits)
            except slots.OverQuota as error:
                if room is None:
                    raise
                raise slots.Exhausted(f"tenant {job.tenant.name!r} may take {room} more of its {job.tenant.slots} "
                                      f"slots of these switches: {error}") from error
            except slots.Exhausted:
                victim = quotas.to_preempt(job, others)
                if victim is None or kept:  # one that keeps its slots is enough of a wait
                    raise
                self._allocator.release(job.epoch)
                await self._recovery.preempt(victim, f"{job} of priority {job.tenant.priority} needs its slots, and "
                                                     f"{victim} has {victim.tenant.priority}")
                kept = bool(victim.streams) and victim.state != "finished"
                job.epoch = job.slots_epoch = self._allocator.open()

    def _entries(self, hosts: Sequence[Host], streams: Sequence[slots.Stream]) -> tables.BySwitch:
        return tables.merge(tables.fold_entries(self._fabric, hosts, stream) for stream in streams)

    async def _on_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What ``work`` returns, computed on the planning thread: for a job of 1,023 ranks it takes seconds, which the
        loop has not."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *args, **kwargs))

    def _expire(self, job: Job) -> None:
        """The lease of a job's ranks is over: those that have not registered are lost."""
        if self._closing:
            return
        planned = set(job.rc_ranks if job.is_connecting else range(job.world))
        for rank in sorted(planned - job.watchers.keys() - job.awaited):
            self._lose(job, rank, f"it has not registered within {self._fabric.lease:g} s after its plan (Watch)")
        if job.is_connecting and job.step is not None:
            for rank in job.step.missing:
                self._lose(job, rank, f"it has not connected its queue pairs within {self._fabric.lease:g} s after its "
                                      "plan (Connect)")

    def _plans(self, job: Job) -> list[Plan]:
        return plans.make(self._fabric, self.key, job)

    def _plans_to_connect(self, job: Job, step: ConnectStep) -> list[Plan]:
        return plans.before_connecting(self._fabric, self.key, job, step.planned, step.number)

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
        job.notify()
        self._recovery.abort_if_ranks_gone(job)
        if job.is_connecting or (job.is_empty and (job.planning is None or job.planning.done())):
            # in the background, since the task that noticed is being cancelled itself
            self._background(self._end(job), f"end of {job}")

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

    def _background(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)
        return task

    def _withdraw(self, job: Job, rank: int, why: str) -> None:
        if job.state == "gathering":
            log.info("%s: rank %d withdrawn: %s", job, rank, why)
            del job.joins[rank]
            if not job.joins:
                del self._jobs[job.name]
        else:
            self._lose(job, rank, why)

    async def _end(self, job: Job) -> None:
        if job.state == "finished":
            return
        began, job.state = job.epoch > 0, "finished"
        if began:
            self._note("finished", job.name, job.reason or ("its ranks go on as another incarnation"
                                                            if job.successor is not None else "all ranks have left"))
        if self._jobs.get(job.name) is job:
            del self._jobs[job.name]
        if job in self._ending:
            self._ending.remove(job)
        self._finished.appendleft(job)
        if job.successor is not None:
            for rank in job.watchers.keys() - job.places.keys():
                job.watchers[rank].put_nowait(EvictedEvent(evicted(job, rank)))
                job.watchers[rank].put_nowait(None)
        else:
            if not job.is_empty:
                job.broadcast(JobEndedEvent(job.reason or "its ranks have joined anew"))
            job.broadcast(None)
        self._recovery.abort_if_ranks_gone(job)
        why = f"{job} has ended: {job.reason or 'its ranks have left'}; join anew"
        if job.step is not None:
            job.step.abort(Refusal(Code.FAILED_PRECONDITION, why))
        if job.ready is not None and not job.ready.done():
            job.ready.set_exception(Refusal(Code.ABORTED, why))
            job.ready.exception()  # asyncio would complain about an exception that nobody retrieved
        job.notify()
        # the caller may stop waiting (a rank's call has a deadline): entries and slots are freed all the same
        await asyncio.shield(self._background(self._clear(job), f"end of {job}"))

    async def _clear(self, job: Job) -> None:
        """Remove the entries, then free their slots."""
        if job.trees:
            await self._installer.uninstall(job.part)
        self._allocator.release(job.slots_epoch)
        await self._recovery.clear(job)
        log.info("%s: epoch %d ended", job, job.epoch)
        if job.slots:
            self.notice()  # other jobs may have room to move now


def _is_of(job: Job, request: RankRequest) -> bool:
    """Whether a request names this incarnation of a job of the caller's tenant."""
    said = (request.job, request.epoch, CALLER.get().tenant.name)
    return (job.name, job.epoch, job.tenant.name) == said


def _opted_out(ranks: Sequence[int], world: int) -> str:
    who = f"all {world} ranks" if len(ranks) == world else f"rank {', '.join(map(str, ranks))} of {world}"
    return f"{who} asked for no folding"
