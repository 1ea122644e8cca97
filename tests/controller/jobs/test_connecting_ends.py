# SPDX-License-Identifier: Apache-2.0
"""Ranks that leave, or are refused, before all queue pairs of a job with NICs are connected."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from netfold.controller import client
from netfold.controller.switch import tables
from netfold.controller.switch.entities import Entry
from netfold.wire.jobs import JobEndedEvent, RankLost
from support.control.connecting import ALL_RC, MIXED, connect, empty, folding, join_all, nics, refused
from support.control.controller import until
from support.control.jobs import Code
from support.control.leases import LEASE, Leases

pytestmark = pytest.mark.usefixtures("quick_sessions")


@pytest.mark.parametrize("gone", [1, 3])
async def test_a_rank_that_dies_between_the_steps_ends_the_job(tmp_path: Path, gone: int) -> None:
    """The others hear of it whether or not it has connected, whatever they wait for, and nothing is held."""
    async with nics(tmp_path) as r:
        joins = join_all(r, MIXED)
        plans = {rank: await joins[rank] for rank in (1, 3)}
        watchers = {rank: await r.watch(plan) for rank, plan in plans.items()}
        call = connect(r, plans[1])
        (job,) = r.controller.jobs.all()
        await until(lambda: job.step is not None and job.step.missing == [3])
        watchers[gone].die()
        other = watchers[4 - gone]
        lost = await other.next()
        assert isinstance(lost, RankLost)
        assert lost.rank == gone
        assert isinstance(await other.next(), JobEndedEvent)
        for waiting in (call, joins[0], joins[2]):
            code, words = await refused(waiting)
            assert code in (Code.FAILED_PRECONDITION, Code.ABORTED)
            assert f"rank {gone}: its connection to the controller broke" in words
        await empty(r)
        assert job.state == "finished"


async def test_a_windowed_rank_that_goes_away_ends_the_job_too(tmp_path: Path) -> None:
    """It has no plan, and nobody waits for it any longer."""
    async with nics(tmp_path) as r:
        joins = join_all(r, MIXED)
        plan = await joins[1]
        call = connect(r, plan)
        (job,) = r.controller.jobs.all()
        await until(lambda: job.step is not None and job.step.missing == [3])
        joins[2].cancel()
        code, words = await refused(call)
        assert code is Code.FAILED_PRECONDITION
        assert "rank 2: it went away before it had its plan" in words
        await empty(r)


async def test_a_rank_that_leaves_between_the_steps_ends_the_job(tmp_path: Path) -> None:
    """With the reason that it gives."""
    async with nics(tmp_path) as r:
        plans = await asyncio.gather(*join_all(r, ALL_RC))
        call = connect(r, plans[0])
        (job,) = r.controller.jobs.all()
        await until(lambda: job.step is not None and job.step.missing == [1, 2, 3])
        await r.leave(plans[1], "no memory could be registered")
        code, words = await refused(call)
        assert code is Code.FAILED_PRECONDITION
        assert "rank 1 left: no memory could be registered" in words
        await empty(r)


async def test_a_rank_that_never_connects_is_lost_after_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it lives: the others do not wait for ever."""
    async with nics(tmp_path, lease=LEASE) as r:
        leases = Leases(monkeypatch)
        plans = await asyncio.gather(*join_all(r, ["rc", "rc"]))
        watchers = [await r.watch(plan) for plan in plans]
        call = connect(r, plans[0])
        (job,) = r.controller.jobs.all()
        await until(lambda: job.step is not None and job.step.missing == [1])
        leases.end()
        lost = await watchers[0].next()
        assert isinstance(lost, RankLost)
        assert lost.rank == 1
        assert f"has not connected its queue pairs within {LEASE:g} s" in lost.why
        assert (await refused(call))[0] is Code.FAILED_PRECONDITION
        await empty(r)


async def test_a_job_dropped_between_the_steps_ends_for_all(tmp_path: Path) -> None:
    """Waits for plans, and waits for the others' queue pairs, end."""
    async with nics(tmp_path) as r:
        joins = join_all(r, MIXED)
        call = connect(r, await joins[1])
        (job,) = r.controller.jobs.all()
        await until(lambda: job.step is not None and job.step.missing == [3])
        assert await client.drop(r.fabric.jobs, "j")
        for waiting in (call, joins[0]):
            assert "dropped by the operator" in (await refused(waiting))[1]
        await empty(r)
        assert await r.together(2), "the name is free"


async def test_where_a_switch_refuses_an_entry_the_job_is_not_folded(tmp_path: Path) -> None:
    """As without NICs: no switch keeps anything, RC ranks get no neighbours but the reason, windowed ones no trees."""
    async with nics(tmp_path) as r:
        r.switches["leaf2"].refuse = lambda update: isinstance(
            update.entity, Entry) and update.entity.table == tables.ACKNOWLEDGEMENT
        plans, connected = await folding(r, MIXED)
        for answer in connected.values():
            assert not answer.pairs
            assert "leaf2" in answer.reason
        for windowed in (plans[0], plans[2]):
            assert (windowed.trees, windowed.verb, windowed.message) == ([], "write", 0)
            assert "leaf2" in windowed.reason
        await empty(r)
        assert r.controller.jobs.all()[0].state == "active"
