# SPDX-License-Identifier: Apache-2.0
"""Ranks tell the controller what they lack to fold; once all have, what each has said stands."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from netfold.wire.jobs import AllOpened, Opened
from netfold.wire.plan import Plan
from support.control.controller import until
from support.control.jobs import Code, Rig, rig


def opened(plan: Plan, lacks: str = "") -> Opened:
    """The notice of the rank of a plan."""
    return Opened(plan.job, plan.rank, plan.epoch, lacks, 5.0, plan.rank_secret)


async def all_opened(r: Rig, plans: list[Plan], **lacks: Any) -> list[AllOpened]:
    """All ranks say at once what they lack, by ``r<rank>``; their answers."""
    return list(await asyncio.gather(*(
        r.call("Opened", opened(plan, lacks.get(f"r{plan.rank}", "")), AllOpened) for plan in plans)))


async def test_a_rank_that_folds_cannot_take_its_job_off_the_switches(tmp_path: Path) -> None:
    """One that has said that it lacks nothing, and says otherwise once the others fold, is refused: their trees stay.
    A notice that is repeated gets the same answer."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        assert [answer.lacking for answer in await all_opened(r, plans)] == [{}] * 4
        (job,) = r.controller.jobs.all()
        held = r.controller.allocator.used()
        code, words = await r.refusal(opened(plans[1], "a port"), "Opened")
        assert code is Code.FAILED_PRECONDITION
        assert "rank 1: the other ranks fold already, and it cannot: a port. It must leave" in words
        assert job.streams
        assert r.controller.allocator.used() == held
        assert (await r.call("Opened", opened(plans[1]), AllOpened)).lacking == {}


@pytest.mark.parametrize("later", ["", "something else"])
async def test_what_ranks_have_agreed_not_to_use_stays_unused(tmp_path: Path, later: str) -> None:
    """A rank that lacked something cannot take that back, or change it, once others were told: whoever asks again,
    since it has not had its answer, hears the same as they."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        told = {1: "a port"}
        assert [answer.lacking for answer in await all_opened(r, plans, r1="a port")] == [told] * 4
        code, words = await r.refusal(opened(plans[1], later), "Opened")
        assert code is Code.FAILED_PRECONDITION
        assert "rank 1: it has told the others that it cannot fold: a port" in words
        for plan, lacks in ((plans[0], ""), (plans[1], "a port")):
            assert (await r.call("Opened", opened(plan, lacks), AllOpened)).lacking == told


async def test_a_rank_that_goes_away_while_its_job_leaves_the_switches_leaves_nothing(tmp_path: Path) -> None:
    """The call that takes the job off them ends while a switch is slow: its entries and slots go all the same."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        (job,) = r.controller.jobs.all()
        gate = r.switches["leaf1"].gate = asyncio.Event()
        calls = [asyncio.create_task(r.controller.jobs.opened(opened(plan, "a port"))) for plan in plans]
        await until(lambda: sum(call.done() for call in calls) == 3)
        (last,) = (call for call in calls if not call.done())
        last.cancel()
        await asyncio.wait([last])
        gate.set()
        await until(r.base_only)
        await until(lambda: not r.controller.jobs.is_changing)
        assert job.streams == []
        assert set(r.controller.allocator.used().values()) == {0}
