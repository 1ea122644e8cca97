# SPDX-License-Identifier: Apache-2.0
"""Ranks that leave: who is asked, and what it costs where all leave together."""

from __future__ import annotations

import asyncio
from collections.abc import KeysView
from typing import Any

import pytest

from netfold.controller.jobs import leaving
from netfold.controller.jobs.job import Job
from netfold.wire.jobs import Event, Settle

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
