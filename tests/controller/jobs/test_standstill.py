# SPDX-License-Identifier: Apache-2.0
"""A controller that stood still: it notices that, and does not take ranks for dead that have gone to its successor."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from netfold.controller.jobs.standstill import LATE, RECENT, Standstill
from support.control.controller import until
from support.control.jobs import rig


async def test_a_standstill_is_noticed_by_whoever_looks_first() -> None:
    """By a tick or by what came in meanwhile, and for a while after it."""
    now = 10.0
    ticks: asyncio.Queue[None] = asyncio.Queue()

    async def sleep(_: float) -> None:
        await ticks.get()

    still = Standstill(lambda: now, sleep)
    task = asyncio.create_task(still.run())
    await asyncio.sleep(0)
    assert not still.was_recent
    now += LATE + 1
    assert still.was_recent
    for _ in range(2):
        now += 0.5
        ticks.put_nowait(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert still.was_recent
    now += RECENT
    ticks.put_nowait(None)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("succeeded", [True, False])
async def test_ranks_that_went_to_a_later_controller_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, succeeded: bool
) -> None:
    """Their Watch has ended when this controller wakes; it asks the switches first, and tells nobody of a loss. One
    that has no successor tells it."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watchers = [await r.watch(plan) for plan in plans]
        monkeypatch.setattr(Standstill, "was_recent", True)

        async def confirm() -> None:
            if succeeded:
                r.controller.supersede("a later controller has leaf1")

        monkeypatch.setattr(r.controller.installer, "confirm", confirm)
        watchers[1].die()
        (job,) = r.controller.jobs.all()
        if succeeded:
            await until(r.controller.superseded.is_set)
            await until(lambda: not r.controller.jobs.background)
            assert not job.lost
        else:
            await until(lambda: bool(job.lost))


async def test_ranks_that_leave_after_a_standstill_cost_the_switches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands that leave would each ask every switch whether another controller has it, for nothing."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watchers = [await r.watch(plan) for plan in plans]
        for watcher in watchers:
            watcher.settles = False  # all leave themselves
        monkeypatch.setattr(Standstill, "was_recent", True)
        asked = []

        async def confirm() -> None:
            asked.append(1)

        monkeypatch.setattr(r.controller.installer, "confirm", confirm)
        await asyncio.gather(*map(r.leave, plans))
        assert [await watcher.next() for watcher in watchers] == [None] * 4
        await until(lambda: not r.controller.jobs.background)
        assert not asked
