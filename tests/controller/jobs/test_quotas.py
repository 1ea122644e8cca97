# SPDX-License-Identifier: Apache-2.0
"""Quotas of tenants, and leases: what is taken without a process is given back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from netfold.controller import client
from netfold.controller.jobs import quotas
from netfold.fabric.graph import Tenant
from netfold.rpc import tokens
from netfold.wire.jobs import RankLost
from netfold.wire.plan import RailEnd
from support.control.controller import until
from support.control.credentials import scopes, tenant
from support.control.jobs import Code, rig
from support.control.leases import LEASE, Leases


async def test_a_tenant_has_so_many_jobs_and_no_more(tmp_path: Path) -> None:
    """Jobs that still gather count; a job that is joined anew is the same one; other tenants are not delayed."""
    tenants = (tenant(tmp_path, "red", jobs=2), tenant(tmp_path, "blue"))
    async with rig(tmp_path, tenants=tenants, **scopes(tmp_path)) as r:
        r.metadata = tokens.metadata("red")
        first = await r.together(2, job="first")
        waits = asyncio.create_task(r.call("Join", r.join(0, job="second")))
        await until(lambda: r.waiting() == 1)
        code, words = await r.refusal(r.join(0, job="third"))
        assert code is Code.RESOURCE_EXHAUSTED
        assert "tenant 'red': it has 2 jobs, as many as it may have (first, second)" in words
        assert "`jobs` of the [[tenant]]" in words
        await r.leave(first[0], "a failure")
        again = await r.together(2, job="first")
        for plan in again:
            await r.leave(plan)
        await r.together(2, job="third")
        r.metadata = tokens.metadata("blue")
        for number in range(3):
            await r.together(2, job=f"blue{number}")
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)


async def test_a_job_over_several_rails_counts_as_its_rails(tmp_path: Path) -> None:
    """The job that says who their ranks are takes nothing of the fabric, and says so; its rails count."""
    async with rig(tmp_path, tenants=(tenant(tmp_path, "red", jobs=2),), **scopes(tmp_path)) as r:
        r.metadata = tokens.metadata("red")
        rails = [RailEnd("innet", "10.0.0.1:1"), RailEnd("tcp", "10.0.0.1:2")]
        plans = await r.together(2, job="j", fold=False, rails=rails)
        assert [(plan.trees, peer.rails) for plan in plans for peer in plan.peers] == [([], rails)] * 4
        assert "its rails fold by themselves" in plans[0].reason
        for number in range(2):
            await r.together(2, job=f"j+{number}")
        code, words = await r.refusal(r.join(0, job="j+2"))
        assert (code, "it has 2 jobs" in words) == (Code.RESOURCE_EXHAUSTED, True)
        code, words = await r.refusal(r.join(1, job="j+0", rails=[RailEnd("tcp", "0.0.0.0:1")]))
        assert (code, "rail tcp" in words) == (Code.INVALID_ARGUMENT, True)


async def test_ranks_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound covers all jobs of a tenant; a rank that leaves makes room."""
    monkeypatch.setattr(quotas, "MAX_GATHERING", 3)
    async with rig(tmp_path) as r:
        joins = [asyncio.create_task(r.call("Join", r.join(0, job=f"job{number}"))) for number in range(3)]
        await until(lambda: r.waiting() == 3)
        code, words = await r.refusal(r.join(1, job="job0"))
        assert (code, "3 ranks wait for others to join" in words) == (Code.RESOURCE_EXHAUSTED, True)
        joins.pop().cancel()
        await until(lambda: r.waiting() == 2)
        await r.call("Join", r.join(1, job="job0"))
        for join in joins:
            join.cancel()
        await asyncio.gather(*joins, return_exceptions=True)


async def test_a_tenant_takes_so_many_slots_of_a_switch_and_no_more(tmp_path: Path) -> None:
    """A job gets smaller windows where less is left of its tenant's slots, and goes on unfolded where too little is;
    another tenant's jobs get theirs as ever."""
    tenants = (tenant(tmp_path, "red", slots=2000), tenant(tmp_path, "blue"))
    async with rig(tmp_path, tenants=tenants, **scopes(tmp_path)) as r:
        r.metadata = tokens.metadata("red")
        sizes = []
        for number in range(8):
            plans = await r.together(4, job=f"red{number}")
            sizes.append(plans[0].trees[0].data.slots if plans[0].trees else 0)
            used = r.controller.allocator.used()
            assert max(used.values()) <= 2000
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] > sizes[-1] == 0
        assert "tenant 'red' may take" in plans[0].reason
        r.metadata = tokens.metadata("blue")
        assert (await r.together(4, job="blue"))[0].trees[0].data.slots == sizes[0]


async def test_the_default_tenant_has_limits_without_any_token(tmp_path: Path) -> None:
    """A fabric on a unix socket bounds jobs and slots, too."""
    async with rig(tmp_path, tenants=(Tenant("default", jobs=1, slots=0),)) as r:
        plans = await r.together(2)
        assert (plans[0].trees, "tenant 'default' may take 0 more of its 0 slots" in plans[0].reason) == ([], True)
        assert (await r.refusal(r.join(0, job="other")))[0] is Code.RESOURCE_EXHAUSTED


async def test_a_job_whose_ranks_never_register_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joins without a process hold slots, and a place among the tenant's jobs, for the lease and no longer.  One-rank
    jobs are no exception."""
    async with rig(tmp_path, lease=LEASE, tenants=(Tenant("default", jobs=3),)) as r:
        leases = Leases(monkeypatch)
        await r.together(4, job="ghost")
        await r.together(1, job="alone")
        alive = await r.together(2, job="alive")
        watchers = [await r.watch(plan) for plan in alive]
        assert max(r.controller.allocator.used().values()) > 0
        leases.end()
        await until(lambda: [job.name for job in r.controller.jobs.all() if job.state != "finished"] == ["alive"])
        states = {job.name: job for job in (await client.status(r.fabric.jobs)).jobs}
        assert states["ghost"].lost == [0, 1, 2, 3]
        assert f"has not registered within {LEASE:g} s after its plan (Watch)" in states["ghost"].reason
        assert states["alive"].state == "active"
        await r.together(2, job="next")
        for plan in alive:
            await r.leave(plan)
        assert len(watchers) == 2


async def test_ranks_that_register_hear_of_those_that_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease of one rank of a job is over: the others are told, and the job is broken."""
    async with rig(tmp_path, lease=LEASE) as r:
        leases = Leases(monkeypatch)
        plans = await r.together(2)
        watcher = await r.watch(plans[0])
        leases.end()
        event = await watcher.next()
        assert isinstance(event, RankLost)
        assert (event.rank, f"has not registered within {LEASE:g} s" in event.why) == (1, True)
