# SPDX-License-Identifier: Apache-2.0
"""A tenant's old jobs, and the names that it uses, cost the jobs of another tenant nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import msgspec
import pytest

from netfold.controller.jobs.job import Job
from netfold.controller.jobs.registry import Registry
from netfold.fabric.graph import Tenant
from netfold.rpc import tokens
from netfold.wire.jobs import Leave, RankLost, Resume, Watch
from netfold.wire.plan import Plan
from support.control.credentials import scopes, tenant
from support.control.jobs import Code, Rig, restarted, rig


def act_as(r: Rig, name: str) -> None:
    """Let all further calls carry this tenant's token."""
    r.metadata = tokens.metadata(name)


async def watch_refused(r: Rig, plan: Plan) -> grpc.aio.AioRpcError:
    """The error by which the controller refuses a rank that registers."""
    data = msgspec.json.encode(Watch(plan.job, plan.rank, plan.epoch, plan.rank_secret, plan.ticket))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await r.channel.unary_stream("/netfold.Jobs/Watch", bytes, bytes)(data, metadata=r.metadata).read()
    return caught.value


async def test_secrets_of_ended_jobs_open_nothing_of_another_tenants_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs come again, of which there are 2**31-1, and names are free once a job has ended: a tenant that has had
    both then neither makes a rank leave, nor gets its plan with the job's secret, nor registers in its place."""
    tenants = (tenant(tmp_path, "red"), tenant(tmp_path, "blue"))
    async with rig(tmp_path, tenants=tenants, **scopes(tmp_path)) as r:
        act_as(r, "red")
        old = await r.together(2, job="train")
        for plan in old:
            await r.leave(plan)
        monkeypatch.setattr(r.controller.allocator.epochs, "allocate", lambda what: old[0].epoch)
        act_as(r, "blue")
        new = await r.together(2, job="train")
        assert new[0].epoch == old[0].epoch
        act_as(r, "red")
        rank = ("train", 0, old[0].epoch)
        for method, request in (("Leave", Leave(*rank, "because", old[0].rank_secret)),
                                ("Resume", Resume(*rank, {}, secret=old[0].rank_secret))):
            assert (await r.refusal(request, method))[0] is Code.FAILED_PRECONDITION
        assert (await watch_refused(r, old[0])).code() is Code.FAILED_PRECONDITION
        assert (await watch_refused(r, new[0])).code() is Code.PERMISSION_DENIED
        (job,) = (job for job in r.controller.jobs.all() if job.tenant.name == "blue")
        assert (job.state, job.left, job.watchers) == ("active", set(), {})


@pytest.mark.parametrize("how", ["an old ticket", "a new job"])
async def test_who_takes_a_jobs_name_before_it_is_adopted_does_not_end_it(tmp_path: Path, how: str) -> None:
    """A new controller knows no job until its ranks have registered.  Another tenant that is first has the name, by the
    ticket of an ended job that was not folded or by a new one; the job that runs is adopted all the same, and that
    tenant's next job of the name does not end it."""
    tenants = (tenant(tmp_path, "red"), tenant(tmp_path, "blue"))
    async with rig(tmp_path, tenants=tenants, **scopes(tmp_path)) as r:
        act_as(r, "red")
        old = await r.call("Join", r.join(0, world=1, job="train"))
        await r.leave(old)
        act_as(r, "blue")
        plans = await r.together(4, job="train")
    async with restarted(r) as r:
        act_as(r, "red")
        taken = old if how == "an old ticket" else await r.call("Join", r.join(0, world=1, job="train"))
        await r.watch(taken)
        act_as(r, "blue")
        watchers = [await r.watch(plan) for plan in plans]
        act_as(r, "red")
        await r.leave(taken)
        assert (await r.refusal(r.join(0, world=1, job="train")))[0] is Code.PERMISSION_DENIED
        (job,) = r.controller.jobs.registry.active()
        assert (job.tenant.name, job.state, job.awaited) == ("blue", "active", set())
        act_as(r, "blue")
        await r.leave(plans[3], "a failure")
        watchers[2].die()
        event = await watchers[0].next()
        assert isinstance(event, RankLost)
        assert event.rank == 2
        await asyncio.gather(r.leave(plans[0]), r.leave(plans[1]))


async def test_a_ticket_is_of_use_to_its_tenant_alone(tmp_path: Path) -> None:
    """Another tenant that has got hold of a ticket and of the rank's secret registers nobody by them."""
    tenants = (tenant(tmp_path, "red"), tenant(tmp_path, "blue"))
    async with rig(tmp_path, tenants=tenants, **scopes(tmp_path)) as r:
        act_as(r, "blue")
        plans = await r.together(4, job="train")
    async with restarted(r) as r:
        act_as(r, "red")
        assert (await watch_refused(r, plans[0])).code() is Code.PERMISSION_DENIED
        assert r.controller.jobs.all() == []


def test_the_next_incarnation_of_a_job_ends_earlier_ones_of_its_tenant_alone() -> None:
    """A job of another tenant that has the same name, as after an adoption, goes on."""
    registry, red, blue = Registry(), Tenant("red"), Tenant("blue")
    before, others, now = Job("train", 2, tenant=red), Job("train", 2, tenant=blue), Job("train", 2, tenant=red)
    registry.retire(before)
    registry.retire(others)
    registry.named[now.name] = now
    assert registry.before(now) == [before]
