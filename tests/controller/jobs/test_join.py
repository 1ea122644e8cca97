# SPDX-License-Identifier: Apache-2.0
"""Joining a job: who gets which plan, and when; what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from netfold.controller.jobs.job import Job
from netfold.fabric.folding.slots import Sizes
from netfold.wire.jobs import PROTOCOL
from support.control.controller import until
from support.control.jobs import Code, rig


async def test_the_ring_visits_leaf_by_leaf(tmp_path: Path) -> None:
    """However ranks lie on the hosts, each cable between switches is crossed once each way."""
    async with rig(tmp_path) as r:
        hosts = [0, 2, 1, 3]  # h1 and h2 are on one leaf
        joins = [r.join(rank, 4, address=r.fabric.hosts[host].address) for rank, host in enumerate(hosts)]
        plans = await asyncio.gather(*(r.call("Join", join) for join in joins))
        assert [plan.ring for plan in plans] == [[0, 2, 1, 3]] * 4


async def test_ranks_get_matching_plans(tmp_path: Path) -> None:
    """Every rank's stream points at the next rank's queue pair, with one epoch, PSN and slot count for all."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        assert [plan.rank for plan in plans] == [0, 1, 2, 3]
        assert {plan.epoch for plan in plans} - {0} == {plans[0].epoch}
        assert all([t.name for t in plan.trees] == ["spine1", "spine2"] and not plan.reason for plan in plans)
        for rank, plan in enumerate(plans):
            after = plans[(rank + 1) % 4]
            assert [peer.rank for peer in plan.peers] == [0, 1, 2, 3]
            for mine, theirs in zip(plan.trees, after.trees, strict=True):
                for a, b in ((mine.data, theirs.data), (mine.agreement, theirs.agreement)):
                    assert a.peer_qp == b.qp
                    assert a.peer == r.fabric.hosts[(rank + 1) % 4].address
                    assert (a.psn, a.slots) == (b.psn, b.slots)
                assert (mine.data.slots, mine.agreement.slots) == (512, 128)
        qps = [s.qp for plan in plans for tree in plan.trees for s in (tree.data, tree.agreement)]
        assert len(set(qps)) == len(qps)


async def test_nobody_gets_a_plan_before_all_are_in(tmp_path: Path) -> None:
    """Three of four wait; the fourth releases them."""
    async with rig(tmp_path) as r:
        early = [asyncio.create_task(r.call("Join", r.join(rank, 4))) for rank in range(3)]
        await until(lambda: r.waiting() == 3)
        assert not any(task.done() for task in early)
        assert r.base_only()
        await r.call("Join", r.join(3, 4))
        await asyncio.gather(*early)


async def test_a_rank_that_waits_too_long_learns_who_is_missing(tmp_path: Path) -> None:
    """Its own time-out ends only its own wait, and it may come back."""
    async with rig(tmp_path) as r:
        code, words = await r.refusal(r.join(1, 3, timeout=0.01))
        assert code is Code.DEADLINE_EXCEEDED
        assert "ranks 0, 2 of 3 have not joined" in words
        assert r.controller.jobs.all() == []
        assert len(await r.together(3)) == 3


async def test_a_rank_that_goes_away_while_waiting_is_forgotten(tmp_path: Path) -> None:
    """A cancelled Join makes room for another attempt of the same rank."""
    async with rig(tmp_path) as r:
        gone = asyncio.create_task(r.call("Join", r.join(0, 2)))
        await until(lambda: r.waiting() == 1)
        gone.cancel()
        await until(lambda: r.waiting() == 0)
        assert len(await r.together(2)) == 2


async def test_a_rank_that_goes_away_when_its_job_loses_the_name_takes_it_from_nobody(tmp_path: Path) -> None:
    """The ranks of the job of this name go on in the same moment, as an incarnation that keeps the name."""
    async with rig(tmp_path) as r:
        jobs = r.controller.jobs
        plans = await r.together(2)
        await r.leave(plans[1])
        (job,) = jobs.all()
        gone = asyncio.create_task(jobs.join(r.join(1)))
        await until(lambda: r.waiting() == 1)
        successor = Job("j", 1, joins={0: job.joins[0]})
        jobs.begin_successor(job, successor)
        gone.cancel()
        await asyncio.wait([gone])
        assert jobs.registry.named["j"] is successor


@pytest.mark.parametrize(("changes", "code", "says"), [
    ({"protocol": PROTOCOL + 1}, Code.FAILED_PRECONDITION, ["protocol", f"expected {PROTOCOL}", "install"]),
    ({"path_mtu": 4096}, Code.FAILED_PRECONDITION, ["path_mtu", "1024", "4096"]),
    ({"rank": 2}, Code.INVALID_ARGUMENT, ["rank", "0..1", "2"]),
    ({"rank": -1}, Code.INVALID_ARGUMENT, ["rank", "-1"]),
    ({"world": 0}, Code.INVALID_ARGUMENT, ["world", "0"]),
    ({"world": 5000}, Code.INVALID_ARGUMENT, ["world", "4096", "5000"]),
    ({"timeout": 0.0}, Code.INVALID_ARGUMENT, ["timeout"]),
    ({"timeout": 1e9}, Code.INVALID_ARGUMENT, ["timeout", "600"]),
    ({"job": ""}, Code.INVALID_ARGUMENT, ["job"]),
    ({"tcp": "here"}, Code.INVALID_ARGUMENT, ["tcp", "ADDRESS:PORT", "here"]),
    ({"address": "192.0.2.1"}, Code.INVALID_ARGUMENT, ["192.0.2.1", "10.0.1.1", "fabric interface"]),
])
async def test_impossible_joins_are_refused_at_once(
    tmp_path: Path, changes: dict[str, Any], code: grpc.StatusCode, says: list[str]
) -> None:
    """The refusal comes without waiting for anybody, names field, expectation and value, and leaves no job behind."""
    async with rig(tmp_path) as r:
        got, words = await r.refusal(r.join(0, **changes) if "rank" not in changes else
                                     msgspec.structs.replace(r.join(0), **changes))
        assert got is code
        assert all(word in words for word in says), words
        assert r.controller.jobs.all() == []


@pytest.mark.parametrize(("data", "says"), [
    (b"{}", "job"), (b"nonsense", "JSON"), (b'{"job": 7}', "job"),
    (b'{"job":"a","world":1,"rank":0,"address":"","tcp":"","path_mtu":1,"colour":1}', "colour"),
])
async def test_messages_that_are_none_are_refused(tmp_path: Path, data: bytes, says: str) -> None:
    """Messages that do not decode are INVALID_ARGUMENT, and the error names the field."""
    async with rig(tmp_path) as r:
        code, words = await r.refusal(data)
        assert code is Code.INVALID_ARGUMENT
        assert says in words


async def test_ranks_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    """A second rank 0, another world size: refused; the job goes on with those who agree."""
    async with rig(tmp_path) as r:
        first = asyncio.create_task(r.call("Join", r.join(0)))
        await until(lambda: r.waiting() == 1)
        code, words = await r.refusal(r.join(0))
        assert (code, "rank 0 has joined already" in words) == (Code.ALREADY_EXISTS, True)
        code, words = await r.refusal(r.join(1, 3))
        assert (code, "expected 2, as rank 0 has said, got 3" in words) == (Code.FAILED_PRECONDITION, True)
        await r.call("Join", r.join(1))
        await first
        code, words = await r.refusal(r.join(1))
        assert (code, "netfold drop j" in words) == (Code.ALREADY_EXISTS, True)


async def test_without_slots_a_job_gets_a_reason_instead_of_trees(tmp_path: Path) -> None:
    """A refusal of slots is a plan for the ring, which says where and how much was missing; nothing stays behind."""
    async with rig(tmp_path) as r:
        r.controller.allocator.sizes = Sizes(data=16384, agreement=16384, quota=1 << 16)
        plans = await r.together(4)
        assert all(plan.trees == [] and "slots in a row" in plan.reason for plan in plans)
        assert [peer.address for peer in plans[0].peers] == [h.address for h in r.fabric.hosts]
        assert [peer.where for peer in plans[0].peers] == [h.name for h in r.fabric.hosts]
        assert r.base_only()
        assert set(r.controller.allocator.used().values()) == {0}
        for plan in plans:
            await r.leave(plan)


async def test_late_jobs_fold_with_fewer_slots_and_trees(tmp_path: Path) -> None:
    """A job takes half of what is free at most: where twelve of the largest would fill a leaf, fifteen fold, the last
    ones with smaller ranges and then with one tree; those that have left leave nothing."""
    async with rig(tmp_path) as r:
        jobs = [await r.together(4, job=f"j{number}") for number in range(15)]
        held = [sum(tree.data.slots + tree.agreement.slots for tree in plans[0].trees) for plans in jobs]
        assert held == sorted(held, reverse=True)
        assert held[0] == 2 * (512 + 128)
        assert 0 < held[-1] < held[0]
        assert [len(jobs[0][0].trees), len(jobs[-1][0].trees)] == [2, 1]
        for plan in (plan for plans in jobs for plan in plans):
            await r.leave(plan)
        assert set(r.controller.allocator.used().values()) == {0}


async def test_a_single_rank_has_nothing_to_fold(tmp_path: Path) -> None:
    """It gets a plan at once, without trees, and the reason."""
    async with rig(tmp_path) as r:
        (plan,) = await r.together(1)
        assert (plan.trees, plan.reason) == ([], "one rank has nothing to fold")
