# SPDX-License-Identifier: Apache-2.0
"""RC ranks: their NICs' queue pairs reach the controller in a second step, and entries are there before they send."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from netfold.controller import client
from netfold.wire import roce
from netfold.wire.jobs import NeighbourPairs, OwnPairs
from support.control.connecting import (
    ALL_RC,
    FIRST_QP,
    MIXED,
    connect,
    empty,
    folding,
    ip,
    join_all,
    nics,
    pairs_of,
    rc_entries,
    refused,
)
from support.control.controller import run, until
from support.control.jobs import Code, rig
from support.control.recovery import streams

pytestmark = pytest.mark.usefixtures("quick_sessions")


async def test_entries_are_written_when_all_nics_are_known_and_before_anybody_is_told(tmp_path: Path) -> None:
    """Plans name fold addresses and no queue pairs; switches hold nothing before the last rank has connected; each rank
    then learns its neighbours' queue pairs, and each leaf knows its ranks' contributions by them."""
    async with nics(tmp_path) as r:
        plans = await asyncio.gather(*join_all(r, ALL_RC))
        folds = r.fabric.fold_addresses()
        hosts = [host.address for host in r.fabric.hosts]
        for rank, plan in enumerate(plans):
            message = plan.trees[0].data.slots // 4
            assert (plan.fold_address, plan.verb, plan.message) == (folds[rank], "send", message)
            assert not plan.ticket.value, "the switches bear nothing out yet"
            for stream in streams(plan):
                assert (stream.peer, stream.predecessor) == (folds[(rank + 1) % 4], hosts[rank - 1])
                assert (stream.qp, stream.peer_qp, stream.source_port, stream.predecessor_port) == (0, 0, 0, 0)
        calls = [connect(r, plan, 100 * rank + 100) for rank, plan in enumerate(plans[:3])]
        (job,) = r.controller.jobs.all()
        await until(lambda: job.step is not None and job.step.missing == [3])
        status = (await client.status(r.fabric.jobs)).jobs[0]
        assert (status.state, status.rc, status.unconnected) == ("connecting", [0, 1, 2, 3], [3])
        assert r.base_only()
        gate = r.switches["leaf1"].gate = asyncio.Event()
        calls.append(connect(r, plans[3], 400))
        await until(lambda: bool(rc_entries(r, "leaf2")))
        assert not any(call.done() for call in calls), "leaf1 lacks its entries"
        gate.set()
        answers = await asyncio.gather(*calls)
        for rank, answer in enumerate(answers):
            after, before = (rank + 1) % 4, (rank - 1) % 4
            assert answer.pairs == [
                NeighbourPairs(theirs.in_qp, others.out_qp, theirs.address, theirs.rkey)
                for theirs, others in zip(pairs_of(plans[after], 100 * after + 100),
                                          pairs_of(plans[before], 100 * before + 100), strict=True)
            ]
            assert answer.ticket.value
            assert not answer.reason
        of = {(entry["src"], entry["queue_pair"]): entry
              for name in ("leaf1", "leaf2") for entry in rc_entries(r, name)}
        assert len(of) == 4 * 4
        for rank, plan in enumerate(plans):
            peer = (rank + 1) % 4
            for place, stream in enumerate(s for tree in plan.trees for s in (tree.data, tree.agreement)):
                entry = of[ip(hosts[rank]), pairs_of(plans[peer], 100 * peer + 100)[place].in_qp]
                assert (entry["dst"], entry["first_psn"]) == (ip(folds[peer]), stream.psn)
                operation = roce.LaneOperation.MAX32 if place % 2 else roce.LaneOperation.SUM32
                assert entry["operation"] == operation
        assert (await client.status(r.fabric.jobs)).jobs[0].state == "active"
        again = await connect(r, plans[0], 100)
        assert again == answers[0], "an answer that was lost is given again"
        code, words = await refused(connect(r, plans[0], 1000))
        assert code is Code.FAILED_PRECONDITION
        assert "connected once" in words
        for plan in plans:
            await r.leave(plan)
        await empty(r)


async def test_windowed_ranks_get_their_plans_when_the_nics_are_ready(tmp_path: Path) -> None:
    """Windowed ranks go round the ring of all ranks, RC ranks round their own; all send messages of one size."""
    async with nics(tmp_path) as r:
        joins = join_all(r, MIXED)
        one, three = await joins[1], await joins[3]
        first = connect(r, one)
        (job,) = r.controller.jobs.all()
        await until(lambda: job.step is not None and job.step.missing == [3])
        assert not joins[0].done()
        assert not joins[2].done()
        await asyncio.gather(first, connect(r, three))
        plans = [await joins[0], one, await joins[2], three]
        hosts, folds = [host.address for host in r.fabric.hosts], r.fabric.fold_addresses()
        assert {(plan.verb, plan.message) for plan in plans} == {("send", plans[0].trees[0].data.slots // 4)}
        assert [plan.fold_address for plan in plans] == ["", folds[1], "", folds[3]]
        for windowed in (plans[0], plans[2]):
            for stream in streams(windowed):
                assert (stream.peer, stream.predecessor) == (hosts[windowed.rank + 1], hosts[windowed.rank - 1])
                assert stream.qp
                assert stream.source_port
        assert {(stream.peer, stream.predecessor) for stream in streams(one)} == {(folds[3], hosts[3])}
        assert {(stream.peer, stream.predecessor) for stream in streams(three)} == {(folds[1], hosts[1])}


@pytest.mark.parametrize(("kinds", "changes", "words"), [
    (["windowed", "rc"], {}, ["rank 1 alone", "at least two", "innet"]),
    (["rc", "rc"], {"address": "10.0.1.1"}, ["rank 0 is at 10.0.1.1", "a machine for each rank"]),
    (["rc", "windowed", "rc"], {"address": "10.0.1.1"}, ["is at 10.0.1.1", "a machine for each rank"]),
])
async def test_ranks_whose_nics_cannot_fold_together_are_refused(
    tmp_path: Path, kinds: list[str], changes: dict[str, Any], words: list[str]
) -> None:
    """One alone has nobody to send to, and a machine has one NIC."""
    async with nics(tmp_path) as r:
        joins = []
        for rank, kind in enumerate(kinds):
            join = r.join(rank, len(kinds), kind=kind, **changes)
            joins.append(asyncio.create_task(r.call("Join", join)))
            await until(lambda: r.waiting() == len(joins) or any(join.done() for join in joins))
        # all are refused but those who wait for another rank in the place of a refused one
        await until(lambda: sum(not join.done() for join in joins) == r.waiting())
        found = [join.exception() for join in joins if join.done()]
        assert all(isinstance(error, Exception) for error in found)
        assert any(all(word in str(error) for word in words) for error in found), found
        for join in joins:
            join.cancel()
        await empty(r)


def test_a_host_that_is_not_marked_has_no_rc_rank(tmp_path: Path) -> None:
    """The refusal says where to mark it; a job of one rank, which folds nothing, needs no other NIC."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            code, words = await r.refusal(r.join(0, kind="rc"))
            assert code is Code.FAILED_PRECONDITION
            assert "h1 is not marked rdma = true" in words
        async with nics(tmp_path / "two") as r:
            plan = await r.call("Join", r.join(0, 1, kind="rc"))
            assert (plan.trees, plan.reason) == ([], "one rank has nothing to fold")
            code, words = await refused(connect(r, plan))
            assert code is Code.FAILED_PRECONDITION
            assert "no trees, and nothing to connect" in words

    (tmp_path / "two").mkdir()
    run(story())


@pytest.mark.parametrize(("second", "words"), [
    ({"path_mtu": 1024, "kind": "rc"}, ""),
    ({"path_mtu": 4096, "kind": "rc"}, "path_mtu: expected 1024, as rank 0 has said, got 4096"),
    ({"path_mtu": 0, "kind": "rc"}, "path_mtu: expected 1024, as rank 0 has said, got 4096"),
    ({"path_mtu": 1024, "kind": "windowed"}, "path_mtu: expected 4096, which the switches are made for, got 1024"),
    ({"path_mtu": 0, "kind": "windowed"}, "path_mtu: expected 1024, as rank 0 has said, got 4096"),
])
async def test_nics_may_have_a_smaller_path_mtu_than_the_switches_all_of_them(
    tmp_path: Path, second: dict[str, Any], words: str
) -> None:
    """A packet is a PSN, so that all ranks must cut alike; windowed ranks send what the program is made for."""
    async with nics(tmp_path, path_mtu=4096) as r:
        first = asyncio.create_task(r.call("Join", r.join(0, kind="rc", path_mtu=1024)))
        await until(lambda: r.waiting() == 1)
        if words:
            assert words in (await r.refusal(r.join(1, **second)))[1]
            first.cancel()
        else:
            plans = [await r.call("Join", r.join(1, **second)), await first]
            assert [plan.path_mtu for plan in plans] == [1024, 1024]


async def test_queue_pairs_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """Each refusal says what was expected; the step goes on, and ends well with what can be."""
    async with nics(tmp_path) as r:
        plans = await asyncio.gather(*join_all(r, ["rc"] * 3))
        good = pairs_of(plans[0])
        for changes, code, words in (
            ({"pairs": good[:3]}, Code.INVALID_ARGUMENT,
             "expected 4, for data and agreement of each of its 2 trees, got 3"),
            ({"pairs": [*good[:3], OwnPairs(900, good[0].out_qp, 0, 0)]}, Code.INVALID_ARGUMENT,
             f"got {good[0].out_qp} more than once"),
            ({"pairs": [*good[:3], OwnPairs(900, 901, 2**64, 0)]}, Code.INVALID_ARGUMENT, "pairs[3].address"),
            ({"pairs": [*good[:3], OwnPairs(2**24, 901, 0, 0)]}, Code.INVALID_ARGUMENT, "pairs[3].out_qp"),
            ({"pairs": [*good[:3], OwnPairs(900, 1, 0, 0)]}, Code.INVALID_ARGUMENT, "pairs[3].in_qp"),
            ({"pairs": [*good[:3], OwnPairs(900, 901, 0, 2**32)]}, Code.INVALID_ARGUMENT, "pairs[3].rkey"),
            ({"pairs": [*good[:3], OwnPairs(900, 901, -1, 0)]}, Code.INVALID_ARGUMENT, "pairs[3].address"),
            ({"round": 1}, Code.FAILED_PRECONDITION, "round: expected 0"),
            ({"timeout": 0.01}, Code.DEADLINE_EXCEEDED, "the ranks 1, 2 have not connected"),
        ):
            found = await refused(connect(r, plans[0], **changes))
            assert found[0] is code, found
            assert words in found[1]
        (job,) = r.controller.jobs.all()
        assert job.step is not None
        assert job.step.missing == [0, 1, 2], "who no longer waits is not connected"
        assert all(answer.pairs for answer in await asyncio.gather(*(connect(r, plan) for plan in plans)))


async def test_windowed_ranks_have_nothing_to_connect(tmp_path: Path) -> None:
    """Their queue pairs are the controller's."""
    async with nics(tmp_path) as r:
        plans = await r.together(2)
        code, words = await refused(connect(r, plans[0]))
        assert code is Code.FAILED_PRECONDITION
        assert 'joined with kind "windowed"' in words


async def test_no_other_job_has_the_same_queue_pairs_of_a_nic(tmp_path: Path) -> None:
    """Entries are known by them: a second job that claims those of a running one is refused, until that has ended; the
    same numbers of other NICs are no trouble."""
    async with nics(tmp_path) as r:
        plans, _ = await folding(r, ["rc", "rc"])
        others = await asyncio.gather(*join_all(r, ["rc", "rc"], job="other"))
        code, words = await refused(connect(r, others[1], FIRST_QP + 3))
        assert code is Code.ALREADY_EXISTS
        assert f"the queue pairs {FIRST_QP + 3} of h2 are those of rank 1 of job 'j'" in words
        for plan in plans:
            await r.leave(plan)
        await asyncio.gather(*(connect(r, plan) for plan in others))
