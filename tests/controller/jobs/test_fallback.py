# SPDX-License-Identifier: Apache-2.0
"""A job for which no trees are left goes on over TCP, if all of its ranks can; the controller decides for all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from netfold.controller.jobs import recovery
from netfold.wire import roce
from netfold.wire.plan import Plan
from support.control.controller import until
from support.control.jobs import Code, Rig, rig
from support.control.recovery import lose, restart, resume, streams

pytestmark = pytest.mark.usefixtures("quick_sessions", "time_to_answer")


def at(rank: int) -> str:
    """Where a rank would stand in for the switches."""
    return f"10.0.0.{rank + 1}:7000"


async def stop(r: Rig, plans: list[Plan]) -> list[Plan]:
    """All ranks stop, rank 2 with three results more than the others, in operations 4 to 7, and can go on over TCP."""
    return list(await asyncio.gather(*(
        r.call("Resume", resume(plan, ahead=3 * (plan.rank == 2), begun=4 + plan.rank,
                                stand_in=at(plan.rank))) for plan in plans)))


def refuse_trees(r: Rig) -> None:
    """No switch takes an entry any more, though all are up and the ranks reach each other."""
    for switch in r.switches.values():
        switch.refuse = lambda update: update.verb == "insert"


@pytest.mark.parametrize("reach", [True, False])
async def test_ranks_go_on_over_tcp_alike(reach: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All get the same rank to stand in, the last operation that any has begun, and where the slowest is; the job holds
    nothing on switches then, is shown with the reason, and is not halted again."""
    monkeypatch.setattr(recovery, "FALLBACK_WAIT", 0.02)
    monkeypatch.setattr(recovery, "FALLBACK_SHARE", 0.01)
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        if reach:
            refuse_trees(r)
        lose(r, "spine1")
        if not reach:
            lose(r, "spine2")
        await watcher.next()
        after = await stop(r, plans)
        assert {(plan.stand_in, plan.folds_until) for plan in after} == {(at(0), 7)}
        for before, plan in zip(plans, after, strict=True):
            assert "spine" in plan.reason
            assert [stream.psn for stream in streams(plan)] == [stream.psn for stream in streams(before)]
        (job,) = r.controller.jobs.all()
        await until(lambda: set(r.controller.allocator.used().values()) == {0})
        status = (await r.controller.status()).jobs[0]
        assert (status.state, status.trees, status.reason) == ("active", [], after[0].reason)
        for switch in r.switches.values():
            switch.refuse = lambda update: False
        for name in ("spine1", "spine2"):
            restart(r, name)
            await until(lambda name=name: r.controller.targets[name].is_up)  # type: ignore[misc]
        await r.controller.replan()
        assert not job.stands_still
        for plan in after:
            await r.leave(plan)
        assert r.base_only()


async def test_a_rank_that_only_folds_keeps_all_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one rank cannot go on over TCP, all hear by name that there are no trees."""
    monkeypatch.setattr(recovery, "FALLBACK_WAIT", 0.01)
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        watcher = await r.watch(plans[0])
        refuse_trees(r)
        for name in ("spine1", "leaf1"):
            lose(r, name)
        await watcher.next()
        code, words = (await asyncio.gather(
            r.refusal(resume(plans[0], timeout=0.3, stand_in=at(0)), "Resume"),
            r.refusal(resume(plans[1], timeout=0.3), "Resume")))[1]
        assert (code, "no trees in their place" in words) == (Code.DEADLINE_EXCEEDED, True)


async def test_the_least_patient_rank_says_how_long_trees_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All go on over TCP before the time-out of any of them is over, whatever those of the others are."""
    monkeypatch.setattr(recovery, "FALLBACK_SHARE", 0.01)
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        for name in ("spine1", "spine2"):
            lose(r, name)
        await watcher.next()
        after = await asyncio.gather(*(r.call("Resume", resume(
            plan, timeout=5.0 if plan.rank == 1 else 600.0, stand_in=at(plan.rank))) for plan in plans))
        assert {plan.stand_in for plan in after} == {at(0)}


async def test_trees_that_come_in_time_fold(tmp_path: Path) -> None:
    """A leaf that starts again is waited for, though all ranks could go on over TCP."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        lose(r, "leaf1")
        await watcher.next()
        stopped = asyncio.create_task(stop(r, plans))
        (job,) = r.controller.jobs.all()
        await until(lambda: job.round is not None and len(job.round.resumes) == 4)
        restart(r, "leaf1")
        after = await stopped
        assert all(plan.stand_in == "" and len(plan.trees) == 2 for plan in after)
        assert streams(after[2])[0].psn == streams(plans[2])[0].psn & roce.PSN_MASK
        assert not job.fell_back


async def test_a_rank_still_leaves_only_when_nobody_lacks_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank that stands in is there until the others have their results."""
    monkeypatch.setattr(recovery, "FALLBACK_WAIT", 0.01)
    monkeypatch.setattr(recovery, "FALLBACK_SHARE", 0.01)
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        watchers = [await r.watch(plan) for plan in plans]
        watchers[1].settles = False
        refuse_trees(r)
        lose(r, "spine1")
        lose(r, "leaf1")
        await watchers[0].next()
        after = await stop(r, plans)
        assert after[0].stand_in == at(0)
        going = asyncio.create_task(r.leave(after[0]))
        (job,) = r.controller.jobs.all()
        await until(lambda: job.leaving == {0})
        assert not going.done()
        await r.leave(after[1])
        await going
