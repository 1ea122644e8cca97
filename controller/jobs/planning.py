# SPDX-License-Identifier: Apache-2.0
"""Plans a job whose ranks have all joined: its trees, slots and entries, or why it is not folded.

A job with RC ranks is planned in two steps: these ranks get their plans first, and all others once the entries are
written (connecting.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from netfold.controller.health.drains import Drains
from netfold.controller.health.liveness import Liveness
from netfold.controller.jobs import connecting, plans, quotas, reports
from netfold.controller.jobs import groups as group_plans
from netfold.controller.jobs.background import Background, PlanningThread
from netfold.controller.jobs.connect_step import ConnectStep
from netfold.controller.jobs.job import Job, lacking
from netfold.controller.jobs.recovery import Recovery
from netfold.controller.jobs.registry import Registry
from netfold.controller.jobs.tree_placement import TreePlacement
from netfold.controller.switch.installer import Installer
from netfold.controller.switch.switch import SwitchError
from netfold.fabric.folding import groups as shares
from netfold.fabric.folding import slots, trees
from netfold.fabric.folding.pools import Exhausted
from netfold.fabric.folding.slots import Allocator
from netfold.fabric.graph import Fabric
from netfold.fabric.placement.machines import fold_groups, machines
from netfold.rpc.rpc import Code, Refusal
from netfold.wire.operator import Note, Totals, unnoted
from netfold.wire.plan import Plan

log = logging.getLogger("netfold.controller")


class Planning:
    """Plans the jobs of one fabric.

    registry    all jobs, and the fabric key
    totals      counters that planned jobs are added to
    background  where the second step of RC ranks is waited for
    thread      where trees, entries and plans are made
    end         ends a job
    lose        called with a job, a rank and the reason why that is to count as lost
    note        records jobs that begin
    """

    def __init__(
        self,
        fabric: Fabric,
        allocator: Allocator,
        installer: Installer,
        liveness: Liveness,
        drains: Drains,
        placement: TreePlacement,
        recovery: Recovery,
        registry: Registry,
        totals: Totals,
        background: Background,
        thread: PlanningThread,
        end: Callable[[Job], Coroutine[Any, Any, None]],
        lose: Callable[[Job, int, str], None],
        note: Note = unnoted,
    ) -> None:
        self._fabric = fabric
        self._allocator = allocator
        self._installer = installer
        self._liveness = liveness
        self._drains = drains
        self._placement = placement
        self._recovery = recovery
        self._registry = registry
        self._totals = totals
        self._background = background
        self._thread = thread
        self._end = end
        self._lose = lose
        self._note = note
        self._closing = False
        self._turn = asyncio.Lock()
        """Held while a group is placed: groups of one mesh join at once, and each must see where the others fold."""
        self._unchecked: list[Job] = []

    def close(self) -> None:
        """From now on no rank counts as lost because its lease is over."""
        self._closing = True

    def begin(self, job: Job) -> None:
        """Plan a job in the background, and let those go on who wait for its ranks to be there."""
        job.state = "planning"
        job.planning = asyncio.create_task(self._plan(job), name=f"plan {job}")
        if job.is_group:
            job.planning.add_done_callback(_is_answered)
        job.complete.set()

    @staticmethod
    async def stop(job: Job) -> None:
        """Stop planning a job that is to end: it must get no slots and entries after its end."""
        if job.planning is not None:
            job.planning.cancel()
            await asyncio.gather(job.planning, return_exceptions=True)

    async def _plan(self, job: Job) -> list[Plan]:
        """Plan trees, allocate slots and write entries, or decide that the job is not folded, and why.  Returns a plan
        for each rank."""
        job.hosts = [host.name for host in plans.hosts_of(self._fabric, job)]
        machines(job.hosts)
        # all ranks have joined the new incarnation, so none is in an old one any more
        for old in self._registry.before(job):
            await self.stop(old)
            await self._end(old)
        try:
            connecting.check_ranks(job)
            job.epoch = self._allocator.draw()
        except Refusal as refusal:
            job.reason = str(refusal)
            await self._end(job)
            raise
        except Exhausted as error:
            job.reason = f"{error}: no job more can run at once"
            await self._end(job)
            raise Refusal(Code.RESOURCE_EXHAUSTED, f"{job}: {job.reason}") from error
        try:
            if job.world == 1:
                raise trees.NoTree("one rank has nothing to fold")
            if job.has_rails:
                raise trees.NoTree("its rails fold by themselves, each as a job of its own")
            if unfit := lacking({rank: join.lacks for rank, join in job.joins.items()}):
                raise trees.NoTree("; ".join(f"rank {rank} at {job.joins[rank].address} cannot fold: {lacks}"
                                             for rank, lacks in unfit.items()))
            if opted_out := [rank for rank, join in sorted(job.joins.items()) if not join.fold]:
                raise trees.NoTree(_opted_out(opted_out, job.world))
            async with self._turn if job.is_group else contextlib.nullcontext():
                await self._place(job)
            if not job.rc_ranks:
                await self._installer.install(await self._thread.run(self._placement.entries, job, job.streams))
            job.slots = job.streams[0].slots
        except (trees.NoTree, Exhausted, SwitchError) as error:
            self._unfold(job, error)
        except BaseException as error:  # dropped meanwhile, refused, or a bug: the job must not hold anything then
            job.reason = job.reason or (str(error) if isinstance(error, Refusal) else "")
            await self._end(job)
            raise
        if job.is_group and not job.streams:  # its ranks go on as they were, and hold nothing here
            await self._end(job)
            raise Refusal(Code.RESOURCE_EXHAUSTED, f"{job}: {job.reason}")
        self._totals.jobs += not job.is_group
        asyncio.get_running_loop().call_later(self._fabric.lease, self._expire, job)
        if job.rc_ranks and job.streams:
            return await self._begin_connecting(job)
        self._activate(job)
        if job.is_empty:  # all ranks went away meanwhile
            await self._end(job)
        return await self._thread.run(plans.make, self._fabric, self._registry.key, job)

    async def _place(self, job: Job) -> None:
        """Plan a job's trees, and allocate their slots.  Raises NoTree, Exhausted; Refusal where a group could not gain
        anything by that."""
        shared, graph = machines(job.hosts), self._drains.left(await self._liveness.prepared(writable=True))
        if job.is_group and (why := shares.no_benefit(graph, job.hosts)):
            raise Refusal(Code.FAILED_PRECONDITION, f"{job}: {why}")
        groups = fold_groups(shared, job.hosts)
        connecting.check_machines(job, shared)
        carried = trees.tree_loads(graph, self._registry.folding_beside(job))
        roots = Counter(tree.root for other in self._registry.active() for tree in other.trees)

        async def plan(most: int) -> list[trees.Tree]:
            return await self._thread.run(trees.plan, graph, [job.hosts[rank] for rank in groups[0]], carried=carried,
                                          folding=roots, most=most)

        most = self._allocator.sizes.most_trees(len(groups))
        if not job.is_group:
            await self._place_beside_others(job, groups, most, plan)
            return
        parent = self._registry.parent_of(job)
        if parent is None:
            raise Refusal(Code.ABORTED, f"{job}: the job of which it is a group has ended")
        planned = await plan(most)
        free, sizes = self._allocator.free(planned), self._allocator.sizes
        if job.rc_ranks:
            free = min(free, group_plans.left_by_nics(parent, self._registry.groups_of(parent), planned, sizes))
        planned, share = shares.fitted(planned, sizes, len(groups), shares.share(graph, job.hosts, parent.hosts), free,
                                       roots)
        job.trees = job.first_trees = planned
        job.sessions = self._placement.sessions(job.trees)
        job.streams = job.announced = await self._admit(job, groups, share)

    async def _place_beside_others(
        self, job: Job, groups: Sequence[Sequence[int]], most: int, plan: Callable[[int], Awaitable[list[trees.Tree]]]
    ) -> None:
        """Give a job a quarter of what is free on any of its switches at most, so that others may come: smaller ranges
        where its trees need more, then half as many trees, and in the end one tree in whatever is left.  A job for
        which another one yields its slots need not be modest.  Raises NoTree, Exhausted."""
        whole = False
        while True:
            job.trees = job.first_trees = await plan(most)
            job.sessions = self._placement.sessions(job.trees)
            others = [other for other in self._registry.active() if other is not job]
            if self._who_yields(job, others, of_tenant=False)[0] is not None:
                job.streams = job.announced = await self._admit(job, groups, None)
                return
            free = self._allocator.free(job.trees)
            limit = max(free, 2 * self._allocator.sizes.agreement * len(groups)) if whole else free // 4
            try:
                job.streams = job.announced = await self._admit(job, groups, limit)
                return
            except Exhausted:
                if whole:
                    raise
            most, whole = max(1, len(job.trees) // 2), len(job.trees) == 1

    def _unfold(self, job: Job, why: Exception) -> None:
        """Let a job begin without trees, whose switches hold nothing of it."""
        self._allocator.release(*job.parts.values())
        job.reason, job.trees, job.streams, job.announced, job.slots = self._liveness.beside(why), [], [], [], 0
        wanted = job.world > 1 and all(join.fold for join in job.joins.values())
        log.log(logging.WARNING if wanted else logging.INFO, "%s: not folded: %s", job, job.reason)

    def _activate(self, job: Job) -> None:
        if job.state in ("planning", "connecting"):
            job.state = "active"
        where = ", ".join(f"{tree.root} ({tree.weight:.0%})" for tree in job.trees) or "nowhere"
        log.info("%s: epoch %d, %d ranks, folded at %s", job, job.epoch, job.world, where)
        job.used = time.monotonic()
        self._note("joined", job.name, f"{job.world} ranks, folded at {where}"
                   + (f": {job.reason}" if job.reason and not job.trees else ""))
        if not self._unchecked:
            asyncio.get_running_loop().call_soon(self._check)
        self._unchecked.append(job)

    def _check(self) -> None:
        """Look at jobs that have just begun: something may have gone down since their trees were planned."""
        jobs, self._unchecked = self._unchecked, []
        self._recovery.notice(jobs)

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
        made = await self._thread.run(plans.before_connecting, self._fabric, self._registry.key, job, job.step.planned,
                                     job.step.number)
        self._background.begin(self._connect_first(job, job.step, job.ready, changed), f"connecting {job}")
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
                job.sessions = self._placement.sessions(job.trees)
                await self._installer.install(await self._thread.run(self._placement.entries, job, streams))
                job.streams = job.announced = streams
            except SwitchError as error:
                self._unfold(job, error)
            made = await self._thread.run(plans.make, self._fabric, self._registry.key, job)
        except BaseException:  # a bug: the job must not hold anything then
            await self._end(job)
            raise
        if job.state == "finished" or ready.done():  # it ended meanwhile, and is to hold nothing
            await self._installer.uninstall(job.parts)
            return
        ready.set_result(made)
        step.finish(job.streams, job.ticket, job.reason)
        asyncio.get_running_loop().call_later(self._fabric.lease, self._expire, job)
        self._activate(job)

    async def _admit(
        self, job: Job, groups: Sequence[Sequence[int]], share: int | None
    ) -> list[slots.Stream]:
        """Allocate the streams of a job's trees, within its tenant's quota, from jobs of a lower priority where too few
        slots are free, or from an idle group.  Raises Exhausted.

        share  most slots of any one switch; None: those of a job"""
        kept = False
        while True:
            others = [other for other in self._registry.active() if other is not job]
            room = quotas.room(job.tenant, job.trees, others)
            most = min((limit for limit in (room, share) if limit is not None), default=None)
            try:
                return self._allocator.admit(job.trees, groups, room=most, rc=job.rc_ranks,
                                             lane_bits=job.joins[0].lane_bits, udp_ports=job.udp_ports)
            except Exhausted as error:
                over = isinstance(error, slots.OverQuota)
                if over and room is None:
                    raise
                victim, why = self._who_yields(job, others, of_tenant=over)
                if victim is None or kept:  # one that keeps its slots is enough of a wait
                    if not over:
                        raise
                    raise Exhausted(f"tenant {job.tenant.name!r} may take {room} more of its {job.tenant.slots} "
                                    f"slots of these switches: {error}") from error
                await self._recovery.preempt(victim, why)
                kept = bool(victim.streams) and victim.state != "finished"

    @staticmethod
    def _who_yields(job: Job, others: Sequence[Job], *, of_tenant: bool) -> tuple[Job | None, str]:
        """Chooses the job that yields its slots to one that finds too few, and says why; None: no job yields.

        of_tenant  the tenant's quota is short, rather than the switches' slots
        """
        now = time.monotonic()
        if not of_tenant and (lower := quotas.to_preempt(job, others)) is not None:
            return lower, (f"{job} of priority {job.tenant.priority} needs its slots, and {lower} has "
                           f"{lower.tenant.priority}")
        idle = group_plans.idle(job, others, now)
        if idle is not None:
            return idle, f"{job} needs its slots, and {idle} was idle for {now - idle.used:.0f} s"
        for other in others:
            if other.is_group:  # whoever asks for slots again may find one that was idle since
                reports.ask(other, now)
        return None, ""

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


def _is_answered(planning: asyncio.Task[list[Plan]]) -> None:
    """A group that is refused is nobody's trouble where its ranks have stopped waiting for it."""
    if not planning.cancelled() and isinstance(planning.exception(), Refusal):
        return


def _opted_out(ranks: Sequence[int], world: int) -> str:
    who = f"all {world} ranks" if len(ranks) == world else f"rank {', '.join(map(str, ranks))} of {world}"
    return f"{who} asked for no folding"
