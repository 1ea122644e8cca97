# SPDX-License-Identifier: Apache-2.0
"""Recovery: jobs go on over other trees when a switch or a link of their trees goes down.

    a failure --Halt--> every rank stops and says what it lacks (Resume) ---------.
         '--> trees over what is left, slots under a new epoch, entries ----------+--> all get their plans and go on

The slots' contents are lost: the ranks begin again at what the slowest of them lacks, from their packets in
host/native/history.h; docs/protocol.md, "Trees planned anew", has the argument why that is safe.  Where no tree can
be had (a leaf that restarts), the round waits for one: the ranks' own timeouts bound it.  Ranks that can do so go on
over TCP in the end: what any of them has begun is folded by one of them, which stands in for the switches, and the job
folds no more.  A round that cannot go on, because of a bug, ends without plans: no job stands still for ever.

Jobs also move by choice: back to what has come up again, and away from what is drained.  Then entries are written
before the ranks halt, so that they are halted only for as long as the messages take.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import structs

from netfold.controller.health.liveness import Liveness
from netfold.controller.jobs import plans
from netfold.controller.jobs.background import Background, PlanningThread
from netfold.controller.jobs.connect_step import ConnectStep, reused
from netfold.controller.jobs.job import Job
from netfold.controller.jobs.registry import Registry
from netfold.controller.jobs.rounds import Round, next_round, rewound
from netfold.controller.jobs.tree_placement import TreePlacement
from netfold.controller.switch.switch import SwitchError
from netfold.fabric.folding import slots, trees
from netfold.fabric.folding.pools import Exhausted
from netfold.fabric.graph import Fabric
from netfold.rpc.rpc import Code, Refusal
from netfold.wire.jobs import Halt, Resume
from netfold.wire.operator import Note, Totals, unnoted
from netfold.wire.plan import Plan

log = logging.getLogger("netfold.controller")

PREEMPTION_TIMEOUT: Final = 3.0
"""Seconds within which a job's ranks must have stopped for a job of higher priority to get its slots."""
FALLBACK_WAIT: Final = 2.0
"""Seconds for which ranks that can go on over TCP stand still for new trees, if they reach each other meanwhile: a leaf
takes 0.2 s to restart, more on a busy machine."""
CLEANING_DELAY: Final = 0.1
"""Seconds after a round until the former trees' entries on switches are removed: ranks and switches resume first."""
FALLBACK_SHARE: Final = 0.5
"""Share of the ranks' patience after which they go on over TCP if it is unknown whether they reach each other."""

EXPECTED: Final = (trees.NoTree, Exhausted, SwitchError)
"""Errors that may keep a job from other trees; any other error is a bug."""


class Recovery:
    """Re-plans the trees of all jobs of one fabric.

    thread    where plans are made
    registry  all jobs, and the fabric key, by which plans are made
    totals    counters that rounds are added to
    lose      called with a job, a rank and the reason why that is to count as lost
    note      records re-plannings
    """

    def __init__(
        self,
        fabric: Fabric,
        placement: TreePlacement,
        thread: PlanningThread,
        liveness: Liveness,
        registry: Registry,
        totals: Totals,
        lose: Callable[[Job, int, str], None],
        note: Note = unnoted,
    ) -> None:
        self._fabric = fabric
        self._placement = placement
        self.thread = thread
        self._liveness = liveness
        self._registry = registry
        self._totals = totals
        self.lose = lose
        self._note = note
        self._looks_again: dict[int, bool] = {}
        """The jobs, by epoch, of which is looked whether they should move: whether to look once more, as something has
        changed since."""
        self.background = Background()
        """The rounds under way, and the removal of leftovers."""

    def notice(self, jobs: Sequence[Job]) -> None:
        """Check jobs after something went down or came up: those whose trees are broken halt, those that wait for trees
        try again, and those that could have better trees move."""
        down = self._placement.down()
        for job in jobs:
            if job.round is not None and job.stands_still:
                job.round.changed.set()
            elif not job.streams or job.state not in ("active", "broken", "leaving"):
                continue
            elif job.left and not job.lost and not job.left_early:
                continue  # no rank lacks a result (leaving.py), and nothing more can be folded
            elif why := self._placement.broken_part(job, down):
                self._begin(job, why)
            elif job.state != "active" or job.leaving or job.awaited:
                continue
            elif self._placement.may_move(job):
                self._looks_again[job.epoch] = job.epoch in self._looks_again
                if not self._looks_again[job.epoch]:
                    self.background.begin(self._consider(job), f"return of {job}")

    def suspect(self, job: Job) -> None:
        """Probe the links of a job's trees, since a rank's retransmissions bring no results."""
        if not job.stands_still:
            used = {frozenset((fold.switch, fold.parent)) for tree in job.trees for fold in tree.folds}
            self._liveness.suspect([
                number for number, link in enumerate(self._fabric.links)
                if frozenset(end.node for end in link.ends) in used
            ])

    def broken(self, job: Job, rank: int, why: str) -> None:
        """Halt the ranks of a job, since queue pairs of an RC rank are in error and have to be made anew."""
        if not job.stands_still and job.streams and job.state in ("active", "broken"):
            self._begin(job, f"queue pairs of rank {rank} are in error ({why})")

    async def resume(self, job: Job, request: Resume) -> Plan:
        """Record that a rank has stopped, wait for the others and the switches, and return its new plan.  Raises
        Refusal."""
        who = f"{job}, rank {request.rank}"
        here = job.round
        if here is None or here.plans.cancelled():
            raise Refusal(Code.FAILED_PRECONDITION, f"{who}: the ranks of this job are not halted")
        own = list(range(len(job.streams_of(request.rank))))
        if sorted(request.missing) != own:
            raise Refusal(Code.INVALID_ARGUMENT, f"{who}: missing: expected the places of streams {own} of its plan, "
                                                 f"got {sorted(request.missing)}")
        here.resumes[request.rank] = request
        here.changed.set()
        self.abort_if_ranks_gone(job)
        mine = here.plans_to_connect if job.joins[request.rank].kind == "rc" else here.plans
        try:
            async with asyncio.timeout(request.timeout):
                return (await asyncio.shield(mine))[request.rank]
        except TimeoutError:
            here.resumes.pop(request.rank, None)  # it is not halted any more
            waits = [rank for rank in range(job.world) if rank not in here.resumes and rank != request.rank]
            problem = here.problem or f"the ranks {', '.join(map(str, waits))} did not stop within that time"
            raise Refusal(Code.DEADLINE_EXCEEDED, f"{who}: {here.why}, and no trees in their place after "
                                                  f"{request.timeout:g} s: {problem}") from None

    def register(self, job: Job, number: int, heard: int, *, folds: bool) -> bool:
        """A rank of an adopted job has registered with the plan of round ``number``, by which it ``folds`` or not, and
        was told of round ``heard``.  All halt where it waits for a plan, or where not all ranks have the same one: the
        controller before was cut off in the middle of a round.  Returns False where it cannot go on: some ranks fold,
        others went over to TCP."""
        wanted = heard if heard > number else 0
        if wanted and job.rc_ranks:
            wanted += 1  # RC ranks may have their plans of that round, and stand still all the same
        if number != job.rounds:
            wanted = max(wanted, number + 1, job.rounds + 1)
        if folds != bool(job.announced) or (wanted and not folds):
            return False
        here = job.round
        if here is not None and job.stands_still:
            if here.number < wanted:  # ranks have heard of this number, or have its plan from the controller before
                here.number = wanted
                job.broadcast(Halt(here.number, here.why))
        elif wanted:
            job.round = next_round(job.round, job.rounds, "the controller died while the ranks were halted")
            job.round.number = wanted
            self._start(job, job.round)
        return True

    async def preempt(self, job: Job, why: str) -> None:
        """Take a job's slots, in favour of one of a higher priority: its ranks halt and go on over TCP.  It keeps them
        where one of its ranks folds over switches alone, or does not stop within PREEMPTION_TIMEOUT."""
        here = job.round = next_round(job.round, job.rounds, why)
        here.yields = True
        self._start(job, here)
        await asyncio.wait([here.plans], timeout=PREEMPTION_TIMEOUT)
        if not here.plans.done():
            self._insist(job, here, f"its ranks did not stop within {PREEMPTION_TIMEOUT:g} s")
        if here.cleaning:  # which goes on where the caller is cancelled
            await asyncio.wait(here.cleaning)

    @staticmethod
    def _insist(job: Job, here: Round, why: str) -> None:
        """Let the round of a job that should have gone without its slots end as any other: over trees."""
        log.warning("%s: %s; it keeps slots all the same: %s", job, here.why, why)
        here.yields = False
        here.changed.set()

    def abort_if_ranks_gone(self, job: Job) -> None:
        """Fail the round if a rank has left or is lost: it cannot retransmit what others may lack."""
        here = job.round
        if here is None or here.plans.done() or not (gone := sorted(job.left | job.lost.keys())):
            return
        self._refuse(job, here, f"rank {', '.join(map(str, gone))} is not there any more to repeat its part")

    def _refuse(self, job: Job, here: Round, why: str) -> None:
        """Fail the round, whose ranks cannot go on."""
        refusal = Refusal(Code.FAILED_PRECONDITION, f"{job}: {here.why}, and {why}; join anew")
        self._fail(here, refusal)
        if job.step is not None:
            job.step.abort(refusal)

    @staticmethod
    def _fail(here: Round, refusal: Refusal) -> None:
        """End a round without plans."""
        for waited in (here.plans, here.plans_to_connect):
            if not waited.done():
                waited.set_exception(refusal)
                waited.exception()  # asyncio would complain about an exception that nobody retrieved
        here.ended = time.monotonic()
        here.changed.set()

    def _expire(self, job: Job, step: ConnectStep) -> None:
        """RC ranks that have not connected in time after their plans are lost."""
        if step.is_open:
            for rank in step.missing:
                self.lose(job, rank, f"it has not connected its queue pairs within {self._fabric.lease:g} s after its "
                                      "plan (Connect)")

    async def clear(self, job: Job, why: str) -> None:
        """Remove what rounds of a job that has ended left on switches, then end the one that is under way."""
        if (here := job.round) is not None:
            here.hurry.set()
            leftovers, here.leftovers = here.leftovers, {}
            await self._placement.clean(leftovers)
            await asyncio.gather(*here.cleaning, return_exceptions=True)
            if not here.plans.done():
                self._fail(here, Refusal(Code.FAILED_PRECONDITION, why))

    async def close(self) -> None:
        """Cancel everything that is under way."""
        await self.background.cancel()

    # ---- one round -----------------------------------------------------------------------------------------------

    def _begin(self, job: Job, why: str) -> None:
        job.round = next_round(job.round, job.rounds, why)
        self._start(job, job.round)

    def _start(self, job: Job, here: Round) -> None:
        self.background.begin(self._work(job, here), f"round {here.number} of {job}")

    async def _consider(self, job: Job) -> None:
        """Move a job by choice, where it should."""
        try:
            again = True
            while again:
                self._looks_again[job.epoch] = False
                if why := await self._placement.reason_to_move(job):
                    await self._return(job, why)
                again = self._looks_again[job.epoch]
        finally:
            del self._looks_again[job.epoch]

    async def _return(self, job: Job, why: str) -> None:
        """Move a job by choice: all entries are written before its ranks halt; if that fails, in whatever way, they do
        not halt."""
        if job.stands_still or job.state != "active" or job.leaving or job.awaited:
            return  # another round has begun since notice() found it, or ranks have gone
        before, here = job.round, next_round(job.round, job.rounds, why)
        job.round = here
        try:
            await self._placement.move(job, here, by_choice=True)
        except Exception as error:
            job.stay_reason = f"{why}, and its trees stay where they are: {_problem(error)}"
            log.warning("%s: %s", job, job.stay_reason, exc_info=_if_unexpected(error))
            job.round = before
            here.plans.cancel()
            job.notify()
            if self._placement.broken_part(job):
                self.notice([job])
            return
        if not here.plans.done():  # otherwise ranks have gone meanwhile
            await self._work(job, here, moved=True)

    async def _work(self, job: Job, here: Round, *, moved: bool = False) -> None:
        """Halt the ranks of a job, and let them go on.  They are refused plans where anything unexpected prevents
        that."""
        try:
            await self._replan(job, here, moved=moved)
        except Exception as error:
            if not here.plans.done() and job.state == "active":
                job.state, job.reason = "broken", f"{here.why}, and {_problem(error)}"
            self._refuse(job, here, _problem(error))
            job.notify()
            raise

    async def _replan(self, job: Job, here: Round, *, moved: bool) -> None:
        log.warning("%s: %s: its ranks halt, round %d", job, here.why, here.number)
        here.halt_sent = True
        job.broadcast(Halt(here.number, here.why))
        self.abort_if_ranks_gone(job)
        make: Callable[[], list[Plan]] | None = None
        while not here.plans.done() and job.state != "finished":
            here.changed.clear()
            if not here.yields and (not moved or self._placement.broken_part(job)):
                try:
                    await self._placement.move(job, here)
                    moved, here.problem = True, ""
                except Exception as error:  # also a bug ends as if there were no trees
                    before, moved, here.problem = here.problem, False, self._liveness.beside(_problem(error))
                    log.warning("%s: no trees yet: %s", job, here.problem,
                                exc_info=_if_unexpected(error) if here.problem != before else None)
                if here.plans.done() or job.is_over:  # ranks have gone meanwhile, or the job has ended
                    return
            wait = None
            if len(here.resumes) == job.world:
                if here.yields:
                    if not job.rc_ranks and all(resume.stand_in for resume in here.resumes.values()):
                        self._fall_back(job, here)
                        return
                    self._insist(job, here, "one of its ranks folds over switches alone")
                    continue
                if moved and not self._placement.broken_part(job):
                    if job.rc_ranks:
                        if moved := await self._connect(job, here):
                            staying = _staying(job, job.streams)
                            make = partial(plans.make, self._fabric, self._registry.key, job, staying)
                            job.announced = job.streams
                            break
                    elif made := await self._draft(job, here):
                        make = partial(list, made)
                        break
                    continue
                wait = None if moved else self._until_fallback(job, here)
                if wait is not None and wait <= 0:
                    self._fall_back(job, here)
                    return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await here.changed.wait()
        if here.plans.done() or job.state == "finished":
            return
        assert make is not None
        self._end_round(job, here, make)
        if job.step is not None:
            job.step.finish(job.streams, job.ticket, job.reason)
        where = ", ".join(dict.fromkeys(tree.root for tree in job.trees))
        log.warning("%s: goes on at %s after %.0f ms", job, where, 1000 * (here.ended - here.began))
        self._note("re-planned", job.name,
                   f"{here.why}; folds at {where} after {1000 * (here.ended - here.began):.0f} ms")
        self.notice([job])  # something may have come up or been drained meanwhile

    async def _draft(self, job: Job, here: Round) -> list[Plan]:
        """Make the ranks' plans for its new trees, of a job without RC ranks, beside the event loop.  Empty, with
        nothing changed, where meanwhile a rank has stopped waiting for its plan, or the round has ended or got another
        number."""
        draft, resumes = copy.copy(job), dict(here.resumes)
        draft.rounds, draft.streams = here.number, rewound(job.streams, resumes)
        draft.announced = draft.streams
        made = await self.thread.run(plans.make, self._fabric, self._registry.key, draft,
                                      _staying(job, draft.streams))
        if here.plans.done() or here.resumes != resumes or here.number != draft.rounds or job.state == "finished":
            return []
        job.streams = job.announced = draft.streams
        job.ticket = draft.ticket
        return made

    async def _connect(self, job: Job, here: Round) -> bool:
        """Let RC ranks connect queue pairs for the new trees, and write the entries.  Returns False where that failed:
        the trees must be planned once more, and RC ranks have been told to resume anew."""
        if here.plans.done():  # ranks have gone while the trees were planned
            return False
        step = job.step = ConnectStep(here.number, rewound(job.streams, here.resumes), here.changed.set)
        here.plans_to_connect.set_result(
            plans.before_connecting(self._fabric, self._registry.key, job, step.planned, step.number)
        )
        loop = asyncio.get_running_loop()
        expiry = loop.call_later(self._fabric.lease, self._expire, job, step)
        try:
            while step.missing:
                here.changed.clear()
                if here.plans.done() or not step.is_open:
                    return False
                if why := self._placement.broken_part(job):
                    break
                await here.changed.wait()
            else:
                why = await self._write(job, here, step.streams())
        finally:
            expiry.cancel()
        if here.plans.done() or not step.is_open:
            return False
        if not (why := why or self._placement.broken_part(job)):
            return True
        here.problem = why
        here.number += 1
        here.plans_to_connect = loop.create_future()
        for rank in step.ranks:
            here.resumes.pop(rank, None)
        log.warning("%s: %s before its trees were ready: round %d", job, why, here.number)
        step.abort(Refusal(Code.ABORTED, f"{job}: {why}, before its trees were ready. Call Resume, for round "
                                         f"{here.number}"))
        job.broadcast(Halt(here.number, here.why))
        return False

    async def _write(self, job: Job, here: Round, streams: Sequence[slots.Stream]) -> str:
        """Write the entries of a job whose RC ranks have connected.  Returns what went wrong; empty: nothing."""
        leftovers: dict[str, int] = {}
        if reused(job.announced, streams):  # what entries name can be there once, and all ranks have stopped
            leftovers, here.leftovers = here.leftovers, {}
        try:
            await self._placement.connect(job, streams, leftovers)
        except SwitchError as error:
            return str(error)
        return ""

    def _end_round(self, job: Job, here: Round, make: Callable[[], list[Plan]]) -> None:
        """Give the ranks their plans, and remove what the trees before left on switches."""
        leftovers, here.leftovers = here.leftovers, {}
        if leftovers:
            here.cleaning.append(self.background.begin(self._clean(leftovers, here), f"leftovers of {job}"))
        job.rounds, job.is_adopted = here.number, False
        here.plans.set_result(make())
        here.ended = time.monotonic()
        self._totals.rounds += 1
        self._totals.round_seconds += here.ended - here.began
        job.notify()

    async def _clean(self, leftovers: Mapping[str, int], here: Round) -> None:
        """Remove what trees left on switches: when the ranks have gone on, or as soon as somebody waits for it, as a
        job of a higher priority does, the next round, or the job's end."""
        if not here.yields:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(here.hurry.wait(), CLEANING_DELAY)
        await self._placement.clean(leftovers)

    # ---- without trees -------------------------------------------------------------------------------------------

    def _until_fallback(self, job: Job, here: Round) -> float | None:
        """Seconds until ranks that have all stopped go on over TCP; None where one of them cannot, as RC ranks, whose
        messages only switches can fold."""
        if job.rc_ranks or not all(resume.stand_in for resume in here.resumes.values()):
            return None
        waited = time.monotonic() - here.began
        patience = FALLBACK_SHARE * min(resume.timeout for resume in here.resumes.values())
        reach = self._placement.hosts_reach_each_other(job)
        return min(FALLBACK_WAIT, patience) - waited if reach else patience - waited

    def _fall_back(self, job: Job, here: Round) -> None:
        """Let the job go on over TCP: the first rank of each group folds, in the place of the switches, up to the last
        operation that any rank has begun.  Its entries and slots go."""
        streams = rewound(job.streams, here.resumes)
        waited = time.monotonic() - here.began
        job.reason = here.why
        if not here.yields:
            job.reason += f", and no trees in their place after {waited:.1f} s: {here.problem}"
        folds_until = max(resume.begun for resume in here.resumes.values())
        # a rank that folds inside its machine alone gets one too, and learns by it that the switches fold no longer
        stand_ins = dict.fromkeys(range(job.world), here.resumes[streams[0].ranks[0]].stand_in)
        stand_ins |= {rank: here.resumes[stream.ranks[0]].stand_in for stream in streams for rank in stream.ranks}
        here.leftovers |= job.parts
        job.trees, job.streams, job.fell_back = [], [], True

        def make() -> list[Plan]:
            job.announced = streams
            made = plans.make(self._fabric, self._registry.key, job)
            job.announced = []
            return [structs.replace(plan, stand_in=stand_ins[plan.rank], folds_until=folds_until) for plan in made]

        self._end_round(job, here, make)
        log.warning("%s: goes on over TCP after operation %d: %s", job, folds_until, job.reason)
        self._note("re-planned", job.name, f"{job.reason}; goes on over TCP after {1000 * waited:.0f} ms")


def _staying(job: Job, streams: Sequence[slots.Stream]) -> set[int]:
    """Epochs of the trees that a job's ranks know, and keep with these streams."""
    return {stream.epoch for stream in job.announced} & {stream.epoch for stream in streams}


def _problem(error: Exception) -> str:
    """Why there are no trees, in words."""
    return str(error) if isinstance(error, EXPECTED) else f"the controller failed: {error!r}"


def _if_unexpected(error: Exception) -> Exception | None:
    """The error if the log is to show its traceback, else None."""
    return None if isinstance(error, EXPECTED) else error
