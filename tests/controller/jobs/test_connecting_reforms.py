# SPDX-License-Identifier: Apache-2.0
"""Ranks with RDMA NICs that go on as a new incarnation of their job: without a lost one, and with a new one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from netfold.wire.jobs import RankLost, Reform, Reformed
from netfold.wire.plan import Plan
from support.control.connecting import FIRST_QP, connect, empty, folding, nics, rc_entries
from support.control.controller import BOUND, until
from support.control.jobs import Rig

ELSEWHERE = FIRST_QP + 5000
"""The first queue pair of NICs in the next incarnation."""


def asks(plan: Plan, *, grows: bool = False) -> Reform:
    """The request of a rank that wants to go on."""
    return Reform(plan.job, plan.rank, plan.epoch, f"10.0.0.1:{40 + plan.rank}", 0, grows, BOUND, plan.rank_secret)


async def connected(r: Rig, calls: list[asyncio.Task[Plan]], first: int) -> list[Plan]:
    """The plans of the next incarnation, once all NICs are connected."""
    plans = [await call for call in calls]
    assert all(plan.fold_address and plan.verb == "send" and plan.trees for plan in plans)
    answers = await asyncio.gather(*(connect(r, plan, first + 100 * plan.rank) for plan in plans))
    assert all(answer.pairs and not answer.reason for answer in answers)
    return plans


async def test_ranks_with_nics_go_on_without_a_lost_one_and_with_a_new_one(tmp_path: Path) -> None:
    """They connect new queue pairs for new trees each time, and the switches hold nothing of those before."""
    async with nics(tmp_path) as r:
        plans, _ = await folding(r, ["rc"] * 4)
        watchers = [await r.watch(plan) for plan in plans]
        watchers[1].die()
        assert isinstance(await watchers[0].next(), RankLost)

        async def goes_on(plan: Plan, *, grows: bool) -> Plan:
            answer = await r.call("Reform", asks(plan, grows=grows), Reformed)
            assert answer.plan is not None
            return answer.plan

        left = [plans[rank] for rank in (0, 2, 3)]
        calls = [asyncio.create_task(goes_on(plan, grows=False)) for plan in left]
        after = await connected(r, calls, ELSEWHERE)
        assert [(plan.rank, plan.world) for plan in after] == [(0, 3), (1, 3), (2, 3)]
        for plan in after:
            await r.watch(plan)
        entries = {entry["queue_pair"] for name in ("leaf1", "leaf2") for entry in rc_entries(r, name)}
        assert min(entries) >= ELSEWHERE
        new = asyncio.create_task(r.call("Join", r.join(
            0, 1, kind="rc", joining=True, address=r.fabric.hosts[1].address)))
        await until(lambda: bool(r.controller.jobs.reforming.newcomers))
        calls = [asyncio.create_task(goes_on(plan, grows=True)) for plan in after]
        grown = await connected(r, [*calls, new], 2 * ELSEWHERE)
        assert [(plan.rank, plan.world) for plan in grown] == [(0, 4), (1, 4), (2, 4), (3, 4)]
        for plan in grown:
            await r.leave(plan)
        await empty(r)
