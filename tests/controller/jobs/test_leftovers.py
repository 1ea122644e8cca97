# SPDX-License-Identifier: Apache-2.0
"""The former trees' entries on switches are removed when the ranks have resumed, or when their resources are needed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from netfold.wire import roce
from netfold.wire.jobs import Halt
from netfold.wire.plan import Plan
from support.control.controller import until
from support.control.jobs import Rig, Watcher, rig
from support.control.recovery import all_resume, connections, lose, restart

pytestmark = pytest.mark.usefixtures("quick_sessions")


@pytest.fixture(autouse=True)
def never_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody lives to see that leftovers go by themselves."""
    monkeypatch.setattr("netfold.controller.jobs.recovery.CLEANING_DELAY", 1e6)


async def moved(r: Rig) -> tuple[set[int], list[Plan], Watcher]:
    """A job that has moved off spine1, which is down: the connections that it had through there, the ranks' new plans,
    and what rank 0 hears."""
    plans = await r.together(4)
    watcher = await r.watch(plans[0])
    lose(r, "spine1")
    assert await watcher.next() == Halt(1, "spine1 is down")
    old = {s.qp >> roce.OPERATION_BITS for plan in plans for tree in plan.trees if tree.name == "spine1"
           for s in (tree.agreement, tree.data)}
    return old, await all_resume(r, plans), watcher


async def test_leftovers_go_with_the_job(tmp_path: Path) -> None:
    """The ranks have their plans while the old entries are still there; when the job has ended, no slot is held."""
    async with rig(tmp_path) as r:
        old, after, _ = await moved(r)
        assert connections(r, "leaf1") & old, "the old entries"
        for plan in after:
            await r.leave(plan)
        restart(r, "spine1")
        await until(r.base_only)
        assert set(r.controller.allocator.used().values()) == {0}


async def test_leftovers_go_with_the_next_round(tmp_path: Path) -> None:
    """A second failure comes before the first one's leftovers have gone: they go then, and only its own stay."""
    async with rig(tmp_path) as r:
        old, after, watcher = await moved(r)
        restart(r, "spine1")
        await until(lambda: r.controller.targets["spine1"].is_up)
        lose(r, "spine2")
        assert await watcher.next() == Halt(2, "spine2 is down")
        await until(lambda: not connections(r, "leaf1") & old)
        await all_resume(r, after)
        (job,) = r.controller.jobs.all()
        assert job.round is not None
        assert len([task for task in job.round.cleaning if not task.done()]) == 1


@pytest.mark.parametrize("is_written", [True, False])
async def test_leftovers_of_a_round_that_has_failed_go_with_the_job(tmp_path: Path, is_written: bool) -> None:
    """A rank dies before all have resumed, when the new entries are written or while they are, and one more round
    begins: when the job has ended, no slot is held."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[3])
        (job,) = r.controller.jobs.all()
        gate, held = asyncio.Event(), connections(r, "spine2")
        r.switches["leaf1"].gate = gate
        lose(r, "spine1")
        await until(lambda: connections(r, "spine2") > held)
        if is_written:
            gate.set()
            await until(lambda: job.round is not None and bool(job.round.leftovers))
        watcher.die()
        await until(lambda: not job.stands_still)
        before = 0 if job.round is None else job.round.number  # a look at spine1 meanwhile makes one, too
        r.controller.jobs.recovery.broken(job, 0, "a timeout")
        assert job.round is not None
        assert job.round.number == before + 1
        gate.set()
        await until(lambda: not r.controller.jobs.is_changing)
        assert await r.controller.jobs.drop("j")
        assert set(r.controller.allocator.used().values()) == {0}
