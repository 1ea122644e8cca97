# SPDX-License-Identifier: Apache-2.0
"""Ranks that leave: who is asked, and what it costs where all leave together."""

from __future__ import annotations

import asyncio
from collections.abc import KeysView
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from netfold.controller.jobs import leaving
from netfold.controller.jobs.job import Job
from netfold.wire.jobs import Done, Event, Halt, Leave, RankLeft, Resume, Settle, Settled
from support.control.controller import until
from support.control.jobs import Code, rig
from support.control.recovery import all_resume, lose, restart, streams

pytestmark = pytest.mark.usefixtures("quick_sessions", "time_to_answer")
WORLD = 64


class Counted(dict[int, "asyncio.Queue[Event | None]"]):
    """Counts how often all keys are looked at."""

    looks = 0

    def keys(self) -> KeysView[int]:
        self.looks += 1
        return super().keys()


async def test_ranks_that_leave_together_are_looked_at_once_and_not_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first to leave asks all others, each once; those after it look at themselves alone, so that a job of
    thousands leaves in time proportional to its ranks."""
    listed: list[Job] = []
    real: Any = Job.opening
    monkeypatch.setattr(Job, "opening", property(lambda job: listed.append(job) or real.fget(job)))
    watchers = Counted({rank: asyncio.Queue() for rank in range(WORLD)})
    job = Job("j", WORLD, fell_back=True, opened=dict.fromkeys(range(WORLD // 2), ""), watchers=watchers)

    async def leave(rank: int) -> None:
        await leaving.wait_for_others(job, rank, 3)
        job.left.add(rank)
        leaving.settled(job, rank)
        job.notify()

    await asyncio.gather(*map(leave, range(WORLD)))
    said = [[queue.get_nowait() for _ in range(queue.qsize())] for queue in watchers.values()]
    assert said == [[], *[[Settle(3)]] * (WORLD - 1)]
    assert watchers.looks <= 2
    assert len(listed) <= WORLD // 2 + 1


async def test_each_answer_gives_the_other_ranks_as_long_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank waits for all others, however many there are, while one answers within ANSWER_TIMEOUT after another."""
    now = 0.0
    monkeypatch.setattr(leaving, "time", SimpleNamespace(monotonic=lambda: now))
    job = Job("j", 4, fell_back=True, watchers={rank: asyncio.Queue() for rank in range(4)})
    going = asyncio.create_task(leaving.wait_for_others(job, 0, 3))
    for rank in (1, 2, 3):
        for _ in range(5):  # what has come up to now is taken note of
            await asyncio.sleep(0)
        now += 0.8 * leaving.ANSWER_TIMEOUT
        leaving.settled(job, rank)
    await going
    assert not job.left_early


async def test_a_leaving_rank_that_registers_again_is_not_asked() -> None:
    """It has all of its results, and nobody waits for it; one that comes late and does not leave is asked once."""
    job = Job("j", 3, fell_back=True, watchers={1: asyncio.Queue()}, awaited={2})
    going = asyncio.create_task(leaving.wait_for_others(job, 0, 3))
    await asyncio.sleep(0)
    assert job.departure is not None
    assert leaving.registered(job, 0) == []
    assert [leaving.registered(job, 2), leaving.registered(job, 2)] == [[Settle(3)], []]
    assert job.departure.pending == {1, 2}
    for rank in (1, 2):
        leaving.settled(job, rank)
    await going


async def test_a_rank_leaves_when_nobody_lacks_anything(tmp_path: Path) -> None:
    """Not while another one has yet to finish what it has begun; ranks that leave themselves are not waited for."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watchers = [await r.watch(plan) for plan in plans]
        (job,) = r.controller.jobs.all()
        watchers[1].settles = False
        going = [asyncio.create_task(r.leave(plans[rank])) for rank in (0, 2)]
        await until(lambda: job.departure is not None and job.leaving == {0, 2} and job.departure.pending == {1})
        assert not any(task.done() for task in going)
        assert job.left == set()
        await r.leave(plans[1])
        await asyncio.gather(*going)
        assert (job.left, job.left_early) == ({0, 1, 2}, False)


async def test_what_goes_away_after_a_rank_has_left_disturbs_nobody(tmp_path: Path) -> None:
    """All ranks have what it had, and nothing more can be folded without it: nobody halts."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watchers = [await r.watch(plan) for plan in plans]
        await r.leave(plans[0])
        lose(r, "spine1")
        await until(lambda: not r.controller.targets["spine1"].is_up)
        await r.controller.replan()
        (job,) = r.controller.jobs.all()
        assert job.round is None
        for plan in plans[1:]:
            await r.leave(plan)
        for watcher in watchers:
            while (event := await watcher.next()) is not None:
                assert isinstance(event, RankLeft)


async def test_ranks_that_leave_together_cost_one_wait(tmp_path: Path) -> None:
    """All wait for the same, and are not told of each other; a rank that stays is told of each."""
    async with rig(tmp_path) as r:
        plans = await r.together(8)
        watchers = [await r.watch(plan) for plan in plans]
        watchers[7].settles = False
        (job,) = r.controller.jobs.all()
        going = [asyncio.create_task(r.call("Leave", Leave(plan.job, plan.rank, plan.epoch, "", plan.rank_secret,
                                                           "after its last operation"), Done))
                 for plan in plans[:7]]
        await until(lambda: len(job.leaving) == 7)
        assert job.departure is not None
        assert job.departure.pending == {7}
        assert [task.get_name() for task in asyncio.all_tasks()].count("job 'j': ranks leave") == 1
        await r.call("Settled", Settled("j", 7, plans[7].epoch, plans[7].rank_secret), Done)
        await asyncio.gather(*going)
        assert not job.left_early
        for watcher in watchers[:7]:
            assert await watcher.next() is None
        told = [await watchers[7].next() for _ in range(7)]
        assert sorted(event.rank for event in told if isinstance(event, RankLeft)) == list(range(7))


async def test_a_rank_that_does_not_answer_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others leave, and the job knows that it is in debt: what goes away then ends it by name, as before."""
    monkeypatch.setattr("netfold.controller.jobs.leaving.ANSWER_TIMEOUT", 0.02)
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watchers = [await r.watch(plan) for plan in plans]
        watchers[1].settles = False
        await r.leave(plans[0])
        (job,) = r.controller.jobs.all()
        assert job.left_early
        lose(r, "spine1")
        assert await watchers[1].next() == Halt(1, "spine1 is down")
        missing = {place: stream.psn for place, stream in enumerate(streams(plans[1]))}
        code, words = await r.refusal(Resume("j", 1, plans[1].epoch, missing, 10.0, plans[1].rank_secret), "Resume")
        assert (code, "rank 0 is not there any more" in words) == (Code.FAILED_PRECONDITION, True)


async def test_a_switch_that_a_job_does_not_use_holds_up_no_rank_that_leaves(tmp_path: Path) -> None:
    """It comes back, and takes long until it has the fabric's entries; the job's slots are free before."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        other = r.controller.targets["leaf2"]
        lose(r, "leaf2")
        await until(lambda: not other.is_up)
        gate = r.switches["leaf2"].gate = asyncio.Event()
        restart(r, "leaf2")
        await until(other.busy.locked)
        try:
            await asyncio.gather(*(r.leave(plan) for plan in plans))
            assert set(r.controller.allocator.used().values()) == {0}
            assert not other.is_up
        finally:
            gate.set()


async def test_a_leaving_rank_still_serves_a_round(tmp_path: Path) -> None:
    """It is asked to halt like everybody, and leaves when all are."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watchers = [await r.watch(plan) for plan in plans]
        for watcher in watchers[1:]:
            watcher.settles = False
        lose(r, "leaf1")
        assert await watchers[0].next() == Halt(1, "leaf1 is down")
        (job,) = r.controller.jobs.all()
        going = asyncio.create_task(r.leave(plans[0]))
        await until(lambda: job.leaving == {0})
        rounds = asyncio.create_task(all_resume(r, plans))
        await until(lambda: job.round is not None and len(job.round.resumes) == 4)
        assert not going.done()
        restart(r, "leaf1")
        await rounds
        await asyncio.gather(going, *(r.leave(plan) for plan in plans[1:]))
        assert not job.left_early
