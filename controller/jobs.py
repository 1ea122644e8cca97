# SPDX-License-Identifier: Apache-2.0
"""The job service: ranks join, get their plan together, and leave.

    gathering --all ranks in--> planning --installed, or refused with a reason--> active --last rank left--> gone
        |  a rank's time is up: it alone is refused, with the names of the missing
        '- its parameters contradict the others': refused at once

A name may be joined anew as soon as a rank has left: its last incarnation ends when all of its ranks have left, or when
the new one is complete, since then its ranks are all gone.  A rank that watches is taken for dead when its stream
breaks before it has left: the others are told at once, and a job whose ranks have all left or died is gone.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn

import networkx as nx

from netfold.controller.plan import slots, trees
from netfold.controller.plan.fabric import Fabric, Host
from netfold.controller.plan.machines import fold_groups, machines, slowest
from netfold.controller.plan.ring import ring_order
from netfold.controller.plan.slots import Ledger
from netfold.controller.recovery import Installer, Recovery, Round
from netfold.controller.switch import tables
from netfold.controller.switch.rpc import Code, Refusal
from netfold.controller.switch.switch import SwitchError
from netfold.wire.jobs import (
    PROTOCOL,
    Done,
    Event,
    Halt,
    JobEnded,
    Join,
    Leave,
    Peer,
    Plan,
    RankLost,
    Report,
    Resume,
    Stream,
    Tree,
    Watch,
    Watching,
)
from netfold.wire.roce import OPERATION_BITS

log = logging.getLogger("netfold.controller")

MAX_WORLD: Final = 1023
"""Ranks that the encoding of Inf and NaN can count."""
MAX_TIMEOUT: Final = 600.0
LANE_BITS: Final = (32, 16, 8)
FINISHED: Final = 16
"""Jobs that `netfold status` still shows after their end."""

JobState = Literal["gathering", "planning", "active", "leaving", "broken", "finished"]


@dataclass
class Job:
    """One incarnation of a job."""

    name: str
    world: int
    state: JobState = "gathering"
    joins: dict[int, Join] = field(default_factory=dict)
    epoch: int = 0
    hosts: list[str] = field(default_factory=list)
    """Names by rank, once all are in."""
    trees: list[trees.Tree] = field(default_factory=list)
    streams: list[slots.Stream] = field(default_factory=list)
    """What the switches hold for it: each tree's sum and max."""
    known: list[slots.Stream] = field(default_factory=list)
    """The same as the ranks know them: while they stand still, the streams before."""
    held: int = 0
    """Epoch of ``streams`` in the switches; the first one's is also the job's name for its ranks."""
    sessions: dict[str, int] = field(default_factory=dict)
    """Of the switches of its trees, when the slots were taken."""
    round: Round | None = None
    """The last time that it had to stand still."""
    slots: int = 0
    """Of each data stream; 0 where nothing folds."""
    reason: str = ""
    """Why nothing folds, or why the job is broken."""
    left: set[int] = field(default_factory=set)
    lost: dict[int, RankLost] = field(default_factory=dict)
    """Ranks that are gone without having left."""
    watchers: dict[int, asyncio.Queue[Event | None]] = field(default_factory=dict)
    """What ranks that watch are told next; None ends it."""
    reports: dict[int, Report] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    planning: asyncio.Task[list[Plan]] | None = None

    def __str__(self) -> str:
        return f"job {self.name!r}"

    @property
    def missing(self) -> list[int]:
        """Ranks that have not joined."""
        return [rank for rank in range(self.world) if rank not in self.joins]

    @property
    def is_empty(self) -> bool:
        """True where no rank is in it any more."""
        return len(self.left | self.lost.keys()) == self.world

    def tell(self, event: Event | None) -> None:
        """To every rank that watches."""
        for queue in self.watchers.values():
            queue.put_nowait(event)

    @property
    def part(self) -> str:
        """Its name among the parts of the switches' desired state."""
        return self.part_of(self.held)

    def part_of(self, epoch: int) -> str:
        """The part's name under an epoch."""
        return f"job {self.name} epoch {epoch}"


class Jobs:
    """All jobs of one fabric.  ``graph`` gives the fabric less whatever is down at that moment."""

    def __init__(
        self, fabric: Fabric, ledger: Ledger, installer: Installer, graph: Callable[[], nx.MultiGraph[str]]
    ) -> None:
        self._fabric = fabric
        self._ledger = ledger
        self._installer = installer
        self._graph = graph
        self._jobs: dict[str, Job] = {}
        self._ending: list[Job] = []
        self._finished: deque[Job] = deque(maxlen=FINISHED)
        self._closing = False
        self._recovery = Recovery(fabric, ledger, installer, graph, self._plans)
        self._cleaning: set[asyncio.Task[None]] = set()

    def all(self) -> list[Job]:
        """Every job that `netfold status` shows: present ones first."""
        return [*self._jobs.values(), *self._ending, *self._finished]

    def active(self, name: str | None = None) -> list[Job]:
        """Jobs that hold slots, of this name or all."""
        held = [job for job in (*self._jobs.values(), *self._ending) if job.streams]
        return [job for job in held if name in (None, job.name)]

    # ---- the service ---------------------------------------------------------------------------------------------

    async def join(self, request: Join) -> Plan:
        """Wait for the other ranks, then for the switches; the plan of this rank.  Raises Refusal."""
        self._check(request)
        job = self._jobs.get(request.job)
        if job is not None and job.state in ("leaving", "broken"):
            self._ending.append(job)
            job = None
        if job is None:
            job = self._jobs[request.job] = Job(request.job, request.world)
        self._check_against(job, request)
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
            _refuse(Code.DEADLINE_EXCEEDED, f"{job}: rank {request.rank} waited {request.timeout:g} s, and the ranks "
                                            f"{missing} of {job.world} have not joined. Start them, or wait longer")
        except asyncio.CancelledError:
            self._withdraw(job, request.rank, "it went away while waiting")
            raise
        if job.planning is None:
            _refuse(Code.ABORTED, f"{job}: {job.reason}")
        try:
            # one rank's disappearance must not cancel the plan of all
            return (await asyncio.shield(job.planning))[request.rank]
        except asyncio.CancelledError:
            if job.planning.cancelled():
                _refuse(Code.ABORTED, f"{job}: {job.reason}")
            self._withdraw(job, request.rank, "it went away before it had its plan")
            raise

    async def report(self, request: Report) -> Done:
        """Keep a rank's totals."""
        job = self.find(request.job, request.epoch, request.rank)
        job.reports[request.rank] = request
        return Done()

    def notice(self) -> None:
        """Something went away or came back: jobs may have to go on over other trees."""
        self._recovery.notice(self.active())

    async def resume(self, request: Resume) -> Plan:
        """A rank stands still, and wants to go on.  Raises Refusal."""
        return await self._recovery.resume(self.find(request.job, request.epoch, request.rank), request)

    async def leave(self, request: Leave) -> Done:
        """Let a rank go; the last one takes the job's entries with it."""
        job = self.find(request.job, request.epoch, request.rank)
        job.left.add(request.rank)
        if request.reason:
            job.state, job.reason = "broken", f"rank {request.rank} left: {request.reason}"
            log.warning("%s: %s", job, job.reason)
        elif job.state == "active":
            job.state = "leaving"
        if request.rank in job.watchers:
            job.watchers[request.rank].put_nowait(None)
        self._recovery.look_for_the_gone(job)
        if job.is_empty:
            await self._end(job)
        return Done()

    async def watch(self, request: Watch) -> AsyncGenerator[Event, None]:
        """Tell a rank what happens, until it leaves.  Closing this before it has left is its death.  Raises Refusal."""
        job = self.find(request.job, request.epoch, request.rank)
        if request.rank in job.watchers:
            _refuse(Code.ALREADY_EXISTS, f"{job}: rank {request.rank} watches already; a rank has one Watch")
        if request.rank in job.left or request.rank in job.lost:
            _refuse(Code.FAILED_PRECONDITION, f"{job}: rank {request.rank} has left, or was taken for dead; join anew")
        queue = job.watchers[request.rank] = asyncio.Queue()
        try:
            yield Watching()
            for lost in list(job.lost.values()):
                yield lost
            if job.round is not None and not job.round.plans.done():
                yield Halt(job.round.number, job.round.why)
            while (event := await queue.get()) is not None:
                yield event
        finally:
            del job.watchers[request.rank]
            if not self._closing:
                self._lose(job, request.rank, "its connection to the controller broke before it left")

    def close(self) -> None:
        """The service ends: nobody watches any more, and that is no rank's fault."""
        self._closing = True
        for job in self.all():
            job.tell(None)

    async def settle(self) -> None:
        """Wait for what was begun in the background."""
        await asyncio.gather(*self._cleaning)
        await self._recovery.close()

    async def drop(self, name: str) -> bool:
        """End every incarnation of a job, whatever its ranks think; False where there is none."""
        jobs = [job for job in self.all() if job.name == name and job.state != "finished"]
        for job in jobs:
            job.reason = "dropped by the operator"
            job.complete.set()
            if job.planning is not None:
                job.planning.cancel()
                await asyncio.gather(job.planning, return_exceptions=True)
            await self._end(job)
        return bool(jobs)

    # ---- checks --------------------------------------------------------------------------------------------------

    def _check(self, r: Join) -> None:
        """What a request must be by itself."""
        who = f"job {r.job!r}, rank {r.rank}"
        if not re.fullmatch(r"[\w.:@/+-]{1,128}", r.job):
            _refuse(Code.INVALID_ARGUMENT, f"job: expected 1 to 128 letters, digits or any of _.:@/+-, got {r.job!r}")
        if r.protocol != PROTOCOL:
            _refuse(Code.FAILED_PRECONDITION, f"{who}: protocol: expected {PROTOCOL}, got {r.protocol}. Host and "
                                              "controller are of different versions: install the same one")
        if r.path_mtu not in (0, self._fabric.path_mtu):
            _refuse(Code.FAILED_PRECONDITION, f"{who}: path_mtu: expected {self._fabric.path_mtu}, which the switches "
                                              f"are made for, got {r.path_mtu}")
        if not 1 <= r.world <= MAX_WORLD:
            _refuse(Code.INVALID_ARGUMENT, f"{who}: world: expected 1..{MAX_WORLD}, got {r.world}")
        if not 0 <= r.rank < r.world:
            _refuse(Code.INVALID_ARGUMENT, f"{who}: rank: expected 0..{r.world - 1}, got {r.rank}")
        if r.lane_bits not in LANE_BITS:
            _refuse(Code.INVALID_ARGUMENT, f"{who}: lane_bits: expected 32, 16 or 8, got {r.lane_bits}")
        if not 0 < r.timeout <= MAX_TIMEOUT:
            _refuse(Code.INVALID_ARGUMENT, f"{who}: timeout: expected up to {MAX_TIMEOUT:g} s, got {r.timeout}")
        if not re.fullmatch(r"\S+:\d{1,5}", r.tcp):
            _refuse(Code.INVALID_ARGUMENT, f"{who}: tcp: expected ADDRESS:PORT, got {r.tcp!r}")
        if self._fabric.host_at(r.address) is None:
            known = ", ".join(host.address for host in self._fabric.hosts[:8])
            more = "" if len(self._fabric.hosts) <= 8 else f" and {len(self._fabric.hosts) - 8} more"
            _refuse(Code.INVALID_ARGUMENT, f"{who}: address: no host of the fabric {self._fabric.name} has "
                                           f"{r.address}; it has {known}{more}. Give the rank the address of its "
                                           "fabric interface")

    def _check_against(self, job: Job, r: Join) -> None:
        """What it must be beside the ranks that joined before."""
        if r.rank in job.joins:
            _refuse(Code.ALREADY_EXISTS, f"{job}: rank {r.rank} has joined already, from {job.joins[r.rank].address}. "
                                         "Give this job another name; if its ranks are dead, "
                                         f"`netfold drop {job.name}` ends it")
        if r.world != job.world:
            first = min(job.joins)
            _refuse(Code.FAILED_PRECONDITION, f"{job}, rank {r.rank}: world: expected {job.world}, as rank {first} "
                                              f"has said, got {r.world}. Start all ranks with one world size")
        wanted = {other.lane_bits for other in job.joins.values()}
        if wanted and r.lane_bits not in wanted:
            _refuse(Code.FAILED_PRECONDITION, f"{job}, rank {r.rank}: lane_bits: expected {wanted.pop()}, as rank "
                                              f"{min(job.joins)} has said, got {r.lane_bits}. Give all ranks the same")

    def find(self, name: str, epoch: int, rank: int) -> Job:
        """The incarnation of a job that a rank is in.  Raises Refusal."""
        for job in (*self._jobs.values(), *self._ending):
            if job.name == name and job.epoch == epoch and rank in job.joins:
                return job
        _refuse(Code.FAILED_PRECONDITION, f"job {name!r}: no rank {rank} of epoch {epoch} is in it; it may have ended, "
                                          "or the controller was started anew")

    # ---- planning ------------------------------------------------------------------------------------------------

    async def _plan(self, job: Job) -> list[Plan]:
        """Trees, slots, entries on the switches: or a plan without trees, and why.  One plan for each rank."""
        hosts = self._hosts(job)
        job.hosts = [host.name for host in hosts]
        shared = machines(job.hosts)
        # a complete new incarnation means that nobody is left in an old one
        for old in [old for old in self._ending if old.name == job.name]:
            await self._end(old)
        try:
            job.epoch = job.held = self._ledger.open()
            if job.world == 1:
                raise trees.NoTree("one rank has nothing to fold")
            if unwilling := [rank for rank, join in sorted(job.joins.items()) if not join.fold]:
                raise trees.NoTree(_unwilling(unwilling, job.world))
            groups = fold_groups(shared, job.hosts)
            job.trees = trees.plan(self._graph(), [job.hosts[rank] for rank in groups[0]])
            job.sessions = self._recovery.sessions(job.trees)
            job.streams = job.known = self._ledger.admit(job.epoch, job.trees, groups)
            await self._installer.install(
                job.part, tables.merge(tables.folding(self._fabric, hosts, stream) for stream in job.streams)
            )
            job.slots = job.streams[0].slots
        except (trees.NoTree, slots.Refused, SwitchError) as error:
            job.reason, job.trees, job.streams, job.known = str(error), [], [], []
            self._ledger.release(job.epoch)
            wanted = job.world > 1 and all(join.fold for join in job.joins.values())
            log.log(logging.WARNING if wanted else logging.INFO, "%s: not folded: %s", job, error)
        except BaseException:  # dropped meanwhile, or a bug: nothing of it may stay
            await self._end(job)
            raise
        if job.state == "planning":
            job.state = "active"
        if job.is_empty:  # all went away meanwhile
            await self._end(job)
        where = ", ".join(f"{tree.root} ({tree.weight:.0%})" for tree in job.trees) or "nowhere"
        log.info("%s: epoch %d, %d ranks, folded at %s", job, job.epoch, job.world, where)
        self.notice()  # what went away since the trees were planned
        return self._plans(job)

    def _hosts(self, job: Job) -> list[Host]:
        """By rank."""
        hosts = [self._fabric.host_at(join.address) for _, join in sorted(job.joins.items())]
        return [host for host in hosts if host is not None]

    def _plans(self, job: Job) -> list[Plan]:
        """One for each rank, of the streams that the ranks know."""
        hosts, shared, number = self._hosts(job), machines(job.hosts), job.round.number if job.round else 0
        rate = slowest(self._fabric.graph(), job.hosts)
        peers = [Peer(rank, join.address, join.tcp) for rank, join in sorted(job.joins.items())]
        order = ring_order(((a.node, b.node) for a, b in (link.ends for link in self._fabric.links)), job.hosts)
        return [
            Plan(job.name, job.epoch, rank, job.world, peers, _trees(job.known, hosts, rank), job.reason, shared,
                 rate, order, self._fabric.path_mtu, number)
            for rank in range(job.world)
        ]

    def _lose(self, job: Job, rank: int, why: str) -> None:
        """A rank is gone without a word: tell the others; the last one takes the job's entries with it."""
        if job.state == "finished" or rank in job.left or rank in job.lost:
            return
        join = job.joins[rank]
        host = self._fabric.host_at(join.address)
        lost = job.lost[rank] = RankLost(rank, join.address, host.name if host else "", why)
        job.state, job.reason = "broken", f"rank {rank}: {why}"
        log.warning("%s: %s", job, job.reason)
        job.tell(lost)
        self._recovery.look_for_the_gone(job)
        if job.is_empty and job.planning is not None and job.planning.done():
            # whoever noticed is being cancelled itself
            task = asyncio.create_task(self._end(job), name=f"end of {job}")
            self._cleaning.add(task)
            task.add_done_callback(self._cleaning.discard)

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
        job.state = "finished"
        if self._jobs.get(job.name) is job:
            del self._jobs[job.name]
        if job in self._ending:
            self._ending.remove(job)
        self._finished.appendleft(job)
        if not job.is_empty:
            job.tell(JobEnded(job.reason or "its ranks have joined anew"))
        job.tell(None)
        self._recovery.look_for_the_gone(job)
        if job.trees:
            await self._installer.uninstall(job.part)
        self._ledger.release(job.held)
        await self._recovery.clear(job)
        log.info("%s: epoch %d ended", job, job.epoch)


def _trees(streams: Sequence[slots.Stream], hosts: Sequence[Host], rank: int) -> list[Tree]:
    """One rank's view: its contributions go to the next rank that folds with it, results come to its own queue
    pair."""

    def view(stream: slots.Stream) -> Stream:
        here = stream.ranks.index(rank)
        after = (here + 1) % len(stream.ranks)
        to, own = (stream.connections[place] << OPERATION_BITS for place in (after, here))
        return Stream(hosts[stream.ranks[after]].address, to, own, stream.source_ports[here], stream.psn, stream.slots)

    mine = [stream for stream in streams if rank in stream.ranks]
    pairs = zip(mine[::2], mine[1::2], strict=True)
    return [Tree(data.tree.root, data.tree.weight, view(data), view(agreement)) for data, agreement in pairs]


def _unwilling(ranks: Sequence[int], world: int) -> str:
    who = f"all {world} ranks" if len(ranks) == world else f"rank {', '.join(map(str, ranks))} of {world}"
    return f"{who} asked for no folding"


def _refuse(code: Code, message: str) -> NoReturn:
    raise Refusal(code, message)
