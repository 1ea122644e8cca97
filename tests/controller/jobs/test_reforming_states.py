# SPDX-License-Identifier: Apache-2.0
"""Who goes on with whom, whatever ranks die, stand still or ask, in whatever order: by a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from netfold.controller.jobs.job import Job
from netfold.controller.jobs.reforming import LEAST_WAIT, Place, Reforming
from netfold.rpc.rpc import Code, Refusal
from netfold.wire.jobs import Join, RankLost, Reform

PATIENCE = 10.0
"""Seconds that ranks wait for the others."""


class Clockwork(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when all wait for it, and then at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        selector: Any = self._selector  # type: ignore[attr-defined]
        real = selector.select

        def select(timeout: float | None = None) -> Any:
            assert timeout is not None, "everybody waits, and nothing can ever happen"
            self.now += timeout
            return real(0)

        selector.select = select

    def time(self) -> float:
        return self.now


def by_clockwork(story: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on a loop of its own."""
    loop = Clockwork()
    try:
        loop.run_until_complete(story)
    finally:
        loop.close()


@dataclass(frozen=True)
class Fate:
    """What becomes of one rank: when it asks, and when its Watch breaks, in seconds; None: never.  ``lives``: it is cut
    off then, but lives, and what it has asked stands."""

    asks: float | None
    dies: float | None
    grows: bool
    finished: int
    lives: bool = False


@dataclass
class World:
    """A job whose ranks have their fates, and what came of it."""

    fates: list[Fate]
    job: Job = field(init=False)
    begun: list[Job] = field(default_factory=list)
    answers: dict[int, Place | Refusal | None] = field(default_factory=dict)
    answered: dict[int, float] = field(default_factory=dict)

    async def run(self, newcomers: int) -> None:
        world = len(self.fates)
        joins = {rank: Join("j", world, rank, f"10.0.0.{rank}", "10.0.0.1:1", 0) for rank in range(world)}
        self.job = Job("j", world, "active", joins, hosts=[f"h{rank}" for rank in range(world)])
        loop = asyncio.get_running_loop()
        here = Reforming(lambda job, successor: self.begun.append(successor), 1024, clock=loop.time)
        waiting = [
            asyncio.create_task(here.wait_to_join(
                Join("j", 1, 0, "10.1.0.1", "10.1.0.1:2", 0, timeout=60.0, joining=True), self.job.tenant))
            for _ in range(newcomers)
        ]
        asking = [asyncio.create_task(self.ask(here, rank)) for rank in range(world)]
        dying = [asyncio.create_task(self.die(rank, asking[rank])) for rank in range(world)]
        for ended in await asyncio.gather(*asking, *dying, return_exceptions=True):
            if ended is not None and not isinstance(ended, asyncio.CancelledError):
                raise ended
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def ask(self, here: Reforming, rank: int) -> None:
        fate = self.fates[rank]
        if fate.asks is None:
            return
        await asyncio.sleep(fate.asks)
        request = Reform("j", rank, 0, "10.0.0.1:3", fate.finished, fate.grows, PATIENCE)
        try:
            self.answers[rank] = await here.reform(self.job, request)
        except Refusal as refusal:
            self.answers[rank] = refusal
        self.answered[rank] = asyncio.get_running_loop().time()

    async def die(self, rank: int, asking: asyncio.Task[None]) -> None:
        fate = self.fates[rank]
        if fate.dies is None:
            return
        await asyncio.sleep(fate.dies)
        if not fate.lives:
            asking.cancel()
        if self.job.successor is None and rank not in self.job.lost:  # as its Watch breaks
            self.job.lost[rank] = RankLost(rank, "", "", "its connection broke")
            self.job.notify()


TIMES = st.one_of(st.none(), st.sampled_from([0.0, 0.1, 1.0, 2.0, 5.0, 9.9, 10.0, 11.0, 13.0, 30.0]))
FATES = st.builds(Fate, TIMES, TIMES, st.booleans(), st.integers(5, 6), st.booleans())
STILL = Fate(None, None, False, 5)
WELL = Fate(0.0, None, False, 5)


@given(st.lists(FATES, min_size=1, max_size=6), st.integers(0, 2))
@example([WELL, WELL, STILL], 0)
@example([WELL, WELL, STILL, STILL], 0)
@example([WELL, Fate(9.9, None, False, 5), STILL], 0)
@example([WELL, Fate(0.0, 5.0, False, 6), STILL], 0)
@example([Fate(0.0, None, True, 5)] * 3, 2)
@example([WELL, Fate(0.0, 5.0, False, 6, lives=True), Fate(9.0, None, False, 5)], 0)
@example([WELL, Fate(0.0, 5.0, False, 6, lives=True), Fate(5.0, None, False, 5)], 0)
def test_those_that_are_there_go_on_together_and_nobody_else(fates: list[Fate], newcomers: int) -> None:
    """All that are answered are in the same incarnation, in their order; it has those alone that had asked and were not
    dead; a live rank is left out only after its time, by more than half of those that were there; nobody waits longer
    than said."""
    story = World(fates)
    by_clockwork(story.run(newcomers))
    job = story.job
    assert len(story.begun) <= 1
    for rank, at in story.answered.items():
        asked = fates[rank].asks
        assert asked is not None
        assert at <= asked + PATIENCE + LEAST_WAIT + 1e-6
    for rank, answer in story.answers.items():
        if isinstance(answer, Refusal):
            assert answer.code in (Code.DEADLINE_EXCEEDED, Code.ABORTED)
            assert answer.code is Code.DEADLINE_EXCEEDED or rank in job.lost
    places = {rank: answer for rank, answer in story.answers.items() if isinstance(answer, tuple)}
    if not story.begun:
        assert not places
        return
    (successor,) = story.begun
    change = successor.change
    assert change is not None
    members = [rank for rank in change.former if rank >= 0]
    assert members == sorted(members)
    assert change.former == [*members, *[-1] * change.former.count(-1)]
    assert sorted([*members, *change.lost]) == list(range(len(fates)))
    assert {rank: place for rank, (_, place) in places.items()} == {
        rank: place for rank, place in job.places.items() if rank in places}
    assert all(found is successor for found, _ in places.values())
    assert change.finished[:len(members)] == [fates[rank].finished for rank in members]
    assert successor.world == len(successor.joins) == len(change.former)
    assert all((join.rank, join.world) == (rank, successor.world) for rank, join in successor.joins.items())
    for rank in members:
        assert fates[rank].asks is not None
    evicted = [rank for rank, lost in job.lost.items() if "did not stop" in lost.why]
    if evicted:
        there = len(fates) - (len(job.lost) - len(evicted))
        assert 2 * len(members) > there
        assert story.answered
        first = min(at for at in (fates[rank].asks for rank in members) if at is not None)
        assert min(story.answered[rank] for rank in members if rank in story.answered) >= first + PATIENCE
        if all(fate.dies is None for fate in fates):
            half = sorted(at for at in (fates[rank].asks for rank in members) if at is not None)[there // 2]
            assert min(story.answered[rank] for rank in members) >= half + LEAST_WAIT
    if -1 in change.former:
        assert not change.lost
        assert all(fates[rank].grows for rank in members)
