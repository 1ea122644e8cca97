# SPDX-License-Identifier: Apache-2.0
"""RC ranks: their NICs' queue pairs reach the controller in a second step, and entries are there before they send."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.controller import client
from netfold.controller.jobs import ticket
from netfold.controller.switch import tables
from netfold.controller.switch.entities import Entry
from netfold.controller.switch.probe import SlotState
from netfold.fabric import slots
from netfold.fabric.pools import Exhausted
from netfold.wire import roce
from netfold.wire.jobs import (
    AskMissing,
    Connected,
    Halt,
    JobEndedEvent,
    MissingContributions,
    NeighbourPairs,
    OwnPairs,
    Plan,
    RankLost,
)
from support.connecting import (
    FIRST_QP,
    connect,
    connecting,
    folding,
    join_all,
    nics,
    pairs_of,
    resuming,
)
from support.controller import run, until
from support.jobs import Code, Rig, Watcher, restarted, rig
from support.recovery import back_and_then, connections, lose, restart, streams

ALL_RC = ["rc"] * 4
MIXED = ["windowed", "rc", "windowed", "rc"]


@pytest.fixture(autouse=True)
def quick_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches that come back are found at once."""
    monkeypatch.setattr("netfold.controller.switch.target.RETRY", (0.01,))


async def refused(call: asyncio.Task[Any]) -> tuple[Code, str]:
    """The code and words of a refusal that a task waits for."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


def rc_entries(r: Rig, name: str) -> list[dict[str, Any]]:
    """Key and parameters of each entry for contributions of a NIC on a switch."""
    return [{**dict(e.key), **dict(e.params)} for e in r.switches[name].state.values()
            if isinstance(e, Entry) and e.action == tables.CONTRIBUTION_RC]


async def empty(r: Rig) -> None:
    """Wait until nothing of any job is left, on switches that are back."""
    for name, switch in r.switches.items():
        if switch.unreachable:
            restart(r, name)
    await until(r.base_only)
    await until(lambda: set(r.controller._allocator.used().values()) == {0})


def ip(address: str) -> int:
    """An IPv4 address as a number."""
    return int.from_bytes(bytes(map(int, address.split("."))), "big")


# ---- the first plan --------------------------------------------------------------------------------------------------


def test_entries_are_written_when_all_nics_are_known_and_before_anybody_is_told(tmp_path: Path) -> None:
    """Plans name fold addresses and no queue pairs; switches hold nothing before the last rank has connected; each rank
    then learns its neighbours' queue pairs, and each leaf knows its ranks' contributions by them."""

    async def story() -> None:
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

    run(story())


def test_windowed_ranks_get_their_plans_when_the_nics_are_ready(tmp_path: Path) -> None:
    """Windowed ranks go round the ring of all ranks, RC ranks round their own; all send messages of one size."""

    async def story() -> None:
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

    run(story())


@pytest.mark.parametrize(("kinds", "changes", "words"), [
    (["windowed", "rc"], {}, ["rank 1 alone", "at least two", "innet"]),
    (["rc", "rc"], {"address": "10.0.1.1"}, ["rank 0 is at 10.0.1.1", "a machine for each rank"]),
    (["rc", "windowed", "rc"], {"address": "10.0.1.1"}, ["is at 10.0.1.1", "a machine for each rank"]),
])
def test_ranks_whose_nics_cannot_fold_together_are_refused(
    tmp_path: Path, kinds: list[str], changes: dict[str, Any], words: list[str]
) -> None:
    """One alone has nobody to send to, and a machine has one NIC."""

    async def story() -> None:
        async with nics(tmp_path) as r:
            joins = []
            for rank, kind in enumerate(kinds):
                join = r.join(rank, len(kinds), kind=kind, timeout=0.5, **changes)
                joins.append(asyncio.create_task(r.call("Join", join)))
                await until(lambda: r.waiting() == len(joins) or any(join.done() for join in joins))
            found = await asyncio.gather(*joins, return_exceptions=True)
            said = [str(error) for error in found]
            assert all(isinstance(error, Exception) for error in found)
            assert any(all(word in text for word in words) for text in said), said
            await empty(r)

    run(story())


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
def test_nics_may_have_a_smaller_path_mtu_than_the_switches_all_of_them(
    tmp_path: Path, second: dict[str, Any], words: str
) -> None:
    """A packet is a PSN, so that all ranks must cut alike; windowed ranks send what the program is made for."""

    async def story() -> None:
        async with nics(tmp_path, path_mtu=4096) as r:
            first = asyncio.create_task(r.call("Join", r.join(0, kind="rc", path_mtu=1024)))
            await until(lambda: r.waiting() == 1)
            if words:
                assert words in (await r.refusal(r.join(1, **second)))[1]
                first.cancel()
            else:
                plans = [await r.call("Join", r.join(1, **second)), await first]
                assert [plan.path_mtu for plan in plans] == [1024, 1024]

    run(story())


def test_queue_pairs_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """Each refusal says what was expected; the step goes on, and ends well with what can be."""

    async def story() -> None:
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

    run(story())


def test_windowed_ranks_have_nothing_to_connect(tmp_path: Path) -> None:
    """Their queue pairs are the controller's."""

    async def story() -> None:
        async with nics(tmp_path) as r:
            plans = await r.together(2)
            code, words = await refused(connect(r, plans[0]))
            assert code is Code.FAILED_PRECONDITION
            assert 'joined with kind "windowed"' in words

    run(story())


def test_no_other_job_has_the_same_queue_pairs_of_a_nic(tmp_path: Path) -> None:
    """Entries are known by them: a second job that claims those of a running one is refused, until that has ended; the
    same numbers of other NICs are no trouble."""

    async def story() -> None:
        async with nics(tmp_path) as r:
            plans, _ = await folding(r, ["rc", "rc"])
            others = await asyncio.gather(*join_all(r, ["rc", "rc"], job="other"))
            code, words = await refused(connect(r, others[1], FIRST_QP + 3))
            assert code is Code.ALREADY_EXISTS
            assert f"the queue pairs {FIRST_QP + 3} of h2 are those of rank 1 of job 'j'" in words
            for plan in plans:
                await r.leave(plan)
            await asyncio.gather(*(connect(r, plan) for plan in others))

    run(story())


# ---- who goes away meanwhile -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [1, 3])
def test_a_rank_that_dies_between_the_steps_ends_the_job(tmp_path: Path, gone: int) -> None:
    """Whether it has connected or not: the others hear of it, in whatever they wait, and nothing is held."""

    async def story() -> None:
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

    run(story())


def test_a_windowed_rank_that_goes_away_ends_the_job_too(tmp_path: Path) -> None:
    """It has no plan, and nobody waits for it any longer."""

    async def story() -> None:
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

    run(story())


def test_a_rank_that_leaves_between_the_steps_ends_the_job(tmp_path: Path) -> None:
    """With the reason that it gives."""

    async def story() -> None:
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

    run(story())


def test_a_rank_that_never_connects_is_lost_after_the_lease(tmp_path: Path) -> None:
    """Though it lives: the others do not wait for ever."""

    async def story() -> None:
        async with nics(tmp_path, lease=0.2) as r:
            plans = await asyncio.gather(*join_all(r, ["rc", "rc"]))
            watchers = [await r.watch(plan) for plan in plans]
            call = connect(r, plans[0])
            lost = await watchers[0].next()
            assert isinstance(lost, RankLost)
            assert lost.rank == 1
            assert "has not connected its queue pairs within 0.2 s" in lost.why
            assert (await refused(call))[0] is Code.FAILED_PRECONDITION
            await empty(r)

    run(story())


def test_a_job_dropped_between_the_steps_ends_for_all(tmp_path: Path) -> None:
    """Whether they wait for plans or for the others' queue pairs."""

    async def story() -> None:
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

    run(story())


def test_where_a_switch_refuses_an_entry_the_job_is_not_folded(tmp_path: Path) -> None:
    """As without NICs: no switch keeps anything, RC ranks get no neighbours but the reason, windowed ones no trees."""

    async def story() -> None:
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

    run(story())


# ---- recovery --------------------------------------------------------------------------------------------------------


async def halted(r: Rig, plans: list[Plan], name: str) -> list[Any]:
    """All ranks watch, a switch goes down, and all hear of it."""
    watchers = [await r.watch(plan) for plan in plans]
    lose(r, name)
    for watcher in watchers:
        assert await watcher.next() == Halt(1, f"{name} is down")
    return watchers


async def go_on(r: Rig, plans: list[Plan], first: int) -> list[Plan]:
    """All ranks resume, and the RC ranks connect queue pairs from ``first`` on: their new plans."""
    resumes = [asyncio.create_task(r.call("Resume", resuming(plan))) for plan in plans]
    between = [await resumes[plan.rank] for plan in plans if plan.fold_address]
    for call in [connect(r, plan, first) for plan in between]:
        assert (await call).pairs
    return [await call for call in resumes]


@pytest.mark.parametrize("kinds", [ALL_RC, MIXED])
@pytest.mark.parametrize("again", [FIRST_QP, 500])
def test_after_a_failure_queue_pairs_are_connected_anew(tmp_path: Path, kinds: list[str], again: int) -> None:
    """Under the new round, from the lowest PSN that anybody lacks; with the numbers of before, or others: the new
    entries are there, the old ones go, and windowed ranks wait for them."""

    async def story() -> None:
        async with nics(tmp_path) as r:
            plans, _ = await folding(r, kinds)
            await halted(r, plans, "spine1")
            resumes = [asyncio.create_task(r.call("Resume", resuming(plan, ahead=5 + plan.rank))) for plan in plans]
            rc = [rank for rank, kind in enumerate(kinds) if kind == "rc"]
            after = {rank: await resumes[rank] for rank in rc}
            assert not any(resumes[rank].done() for rank in range(4) if rank not in rc)
            calls = {rank: connect(r, plan, again) for rank, plan in after.items()}
            assert all([(await call).pairs for call in calls.values()])
            after |= {rank: await resumes[rank] for rank in range(4)}
            for rank, plan in enumerate(plans):
                assert after[rank].round == 1
                assert [tree.name for tree in after[rank].trees] == ["spine2", "spine2"]
                assert [stream.psn for stream in streams(after[rank])] == [
                    (stream.psn + 5) & roce.PSN_MASK for stream in streams(plan)]
            (job,) = r.controller.jobs.all()
            await until(lambda: {entry["epoch"] for name in ("leaf1", "leaf2") for entry in rc_entries(r, name)}
                        == {job.slots_epoch})
            numbers = {entry["queue_pair"] for name in ("leaf1", "leaf2") for entry in rc_entries(r, name)}
            assert numbers == {pair.in_qp for pair in pairs_of(after[rc[0]], again)}
            code, words = await refused(connect(r, plans[rc[0]]))
            assert code is Code.ABORTED
            assert "round 0 is over" in words
            for plan in after.values():
                await r.leave(plan)
            await empty(r)

    run(story())


@pytest.mark.parametrize("kinds", [ALL_RC, MIXED])
def test_what_fails_while_ranks_connect_halts_nics_once_more(tmp_path: Path, kinds: list[str]) -> None:
    """RC ranks resume under the next number, windowed ones, which stand still, get that round's plan; nothing that was
    connected before counts."""

    async def story() -> None:
        async with nics(tmp_path) as r:
            plans, _ = await folding(r, kinds)
            watchers = await halted(r, plans, "spine1")
            resumes = [asyncio.create_task(r.call("Resume", resuming(plan, ahead=9))) for plan in plans]
            rc = [rank for rank, kind in enumerate(kinds) if kind == "rc"]
            between = {rank: await resumes[rank] for rank in rc}
            first = connect(r, between[rc[0]], 300)
            (job,) = r.controller.jobs.all()
            await until(lambda: job.step is not None and len(job.step.missing) == len(rc) - 1)
            restart(r, "spine1")
            await until(lambda: r.controller._targets["spine1"].is_up)
            lose(r, "spine2")
            code, words = await refused(first)
            assert code is Code.ABORTED
            assert "spine2 is down" in words
            assert await watchers[rc[0]].next() == Halt(2, "spine1 is down")
            assert (await refused(connect(r, between[rc[1]], 300)))[0] is Code.ABORTED
            anew = await asyncio.gather(*(r.call("Resume", resuming(between[rank])) for rank in rc))
            again = dict(zip(rc, anew, strict=True))
            assert {plan.round for plan in again.values()} == {2}
            await asyncio.gather(*(connect(r, plan, 400) for plan in again.values()))
            after = {rank: await resumes[rank] for rank in range(4) if rank not in rc} | again
            assert {plan.round for plan in after.values()} == {2}
            for rank, plan in after.items():
                assert [tree.name for tree in plan.trees] == ["spine1", "spine1"]
                assert [stream.psn for stream in streams(plan)] == [
                    (stream.psn + 9) & roce.PSN_MASK for stream in streams(plans[rank])]
            for plan in after.values():
                await r.leave(plan)
            await empty(r)

    run(story())


def test_a_switch_that_refuses_the_new_entries_is_a_failure_of_the_round(tmp_path: Path) -> None:
    """The ranks resume anew, and go on once it takes them."""

    async def story() -> None:
        async with nics(tmp_path) as r:
            plans, _ = await folding(r, ["rc", "rc", "rc"])
            await halted(r, plans, "spine1")
            r.switches["leaf2"].refuse = lambda update: update.verb == "insert" and isinstance(
                update.entity, Entry) and update.entity.table == tables.ACKNOWLEDGEMENT
            between = await asyncio.gather(*(r.call("Resume", resuming(plan)) for plan in plans))
            for call in [connect(r, plan, 300) for plan in between]:
                assert (await refused(call))[0] is Code.ABORTED
            r.switches["leaf2"].refuse = lambda update: False
            after = await asyncio.gather(*(r.call("Resume", resuming(plan)) for plan in between))
            assert {plan.round for plan in after} == {2}
            assert all([(await call).pairs for call in [connect(r, plan, 400) for plan in after]])
            for plan in after:
                await r.leave(plan)
            await empty(r)

    run(story())


@pytest.mark.parametrize("gone", [0, 1])
def test_a_rank_that_dies_while_ranks_connect_ends_the_round(tmp_path: Path, gone: int) -> None:
    """Windowed or RC: all who wait are told."""

    async def story() -> None:
        async with nics(tmp_path) as r:
            plans, _ = await folding(r, MIXED)
            watchers = await halted(r, plans, "spine1")
            resumes = [asyncio.create_task(r.call("Resume", resuming(plan))) for plan in plans]
            call = connect(r, await resumes[3], 300)
            (job,) = r.controller.jobs.all()
            await until(lambda: job.step is not None and job.step.missing == [1])
            watchers[gone].die()
            for waiting in (call, resumes[2]):
                code, words = await refused(waiting)
                assert code is Code.FAILED_PRECONDITION
                assert f"rank {gone} is not there any more" in words
            for rank in {0, 1, 2, 3} - {gone}:
                await r.leave(plans[rank], "the job is broken")
            await empty(r)

    run(story())


@pytest.mark.parametrize("kinds", [ALL_RC, MIXED])
@pytest.mark.parametrize("second", ["another change", "queue pairs in error"])
def test_what_else_happens_when_a_job_is_to_move_back_begins_no_second_round(
    tmp_path: Path, second: str, kinds: list[str]
) -> None:
    """Ranks halt once, whatever is noticed first, and only the entries of the round that they go on by stay."""

    async def story() -> None:
        async with nics(tmp_path, steady=0.02) as r:
            plans, _ = await folding(r, kinds)
            watchers = await halted(r, plans, "spine1")
            (job,) = r.controller.jobs.all()
            moved = await go_on(r, plans, 300)
            await back_and_then(r, "spine1", job, lambda recovery: (
                recovery.notice([job]) if second == "another change" else recovery.broken(job, 1, "retries exceeded")))
            for watcher in watchers:
                event = await watcher.next()
                assert isinstance(event, Halt)
                assert event.round == 2
            after = await go_on(r, moved, 500)
            assert {plan.round for plan in after} == {job.rounds} == {2}
            assert {tree.name for tree in after[0].trees} == {"spine1", "spine2"}
            await until(lambda: {entry["epoch"] for name in ("leaf1", "leaf2") for entry in rc_entries(r, name)}
                        == {job.slots_epoch})
            assert all(watcher._events.empty() for watcher in watchers)
            for plan in after:
                await r.leave(plan)
            await empty(r)

    run(story())


@pytest.mark.parametrize("kinds", [ALL_RC, MIXED])
def test_a_rank_that_dies_while_the_trees_are_planned_ends_the_round(
    tmp_path: Path, kinds: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """All have stopped, and the slots of before are being freed for new trees: the others are told, and no RC rank is
    asked to connect."""

    async def story() -> None:
        async with nics(tmp_path) as r:
            plans, _ = await folding(r, kinds)
            (job,) = r.controller.jobs.all()
            watchers = [await r.watch(plan) for plan in plans]
            allocator, admit = r.controller._allocator, r.controller._allocator.admit
            held = {job.slots_epoch}

            def full(epoch: int, *args: Any, **kwargs: Any) -> list[slots.Stream]:
                if held & allocator._returns.keys():
                    raise Exhausted("the old ones are there still")
                return admit(epoch, *args, **kwargs)

            allocator.admit = full  # type: ignore[method-assign]
            gate = r.switches["leaf1"].gate = asyncio.Event()
            lose(r, "spine1")
            await until(lambda: job.stands_still)
            resumes = [asyncio.create_task(r.call("Resume", resuming(plan))) for plan in plans]
            await until(lambda: bool(r.switches["leaf2"].writes) and not rc_entries(r, "leaf2"))
            watchers[2].die()
            await until(lambda: 2 in job.lost)
            gate.set()
            for call in resumes:
                code, words = await refused(call)
                assert code is Code.FAILED_PRECONDITION
                assert "rank 2 is not there any more" in words
            await until(lambda: not r.controller.jobs._recovery.background)
            for rank in (0, 1, 3):
                await r.leave(plans[rank], "the job is broken")
            await empty(r)

    run(story())
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_nics_do_not_go_on_over_tcp(tmp_path: Path) -> None:
    """Whatever they offer: without trees they wait, and are told why in the end."""

    async def story() -> None:
        async with nics(tmp_path) as r:
            plans, _ = await folding(r, ["rc", "rc", "rc"])
            await halted(r, plans, "leaf1")
            for call in [asyncio.create_task(r.call("Resume", resuming(plan, timeout=0.3, stand_in="10.0.0.1:1")))
                         for plan in plans]:
                code, words = await refused(call)
                assert code is Code.DEADLINE_EXCEEDED
                assert "leaf1 is down, and no trees in their place" in words
            assert not r.controller.jobs.all()[0].fell_back

    run(story())


def test_streams_are_named_by_their_places(tmp_path: Path) -> None:
    """In Missing, and in Resume, which says so where they are not."""

    async def story() -> None:
        async with nics(tmp_path) as r:
            plans, _ = await folding(r, ["rc"] * 3)
            request = AskMissing("j", 0, plans[0].epoch, {2: plans[0].trees[1].data.psn}, plans[0].rank_secret)
            stream = r.controller.jobs.all()[0].streams[2]
            slot = stream.bases["leaf1"] + (stream.psn & (stream.slots - 1))
            r.switches["leaf1"].slots = {slot: SlotState(stream.epoch, stream.psn, False, False, 0b01)}
            answer = await r.call("Missing", request, MissingContributions)
            assert 1 in answer.ranks
            assert any(f"slot {slot}" in why for why in answer.why), answer.why
            await halted(r, plans, "spine1")
            bad = msgspec.structs.replace(resuming(plans[0]), missing={8: 0})
            code, words = await r.refusal(bad, "Resume")
            assert code is Code.INVALID_ARGUMENT
            assert "expected the places of streams [0, 1, 2, 3] of its plan, got [8]" in words

    run(story())


# ---- another controller ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [ALL_RC, MIXED])
def test_a_connected_job_goes_on_under_a_new_controller(tmp_path: Path, kinds: list[str]) -> None:
    """The ticket that came with the neighbours' queue pairs knows them all: nothing is written, and what fails later is
    recovered from."""

    async def story() -> None:
        async with nics(tmp_path) as r:
            plans, _ = await folding(r, kinds)
            before = {name: dict(switch.state) for name, switch in r.switches.items()}
        async with restarted(r) as r:
            for plan in plans:
                await r.watch(plan)
            assert {name: dict(switch.state) for name, switch in r.switches.items()} == before
            (job,) = r.controller.jobs.all()
            assert (job.state, job.awaited, job.round) == ("active", set(), None)
            lose(r, "spine1")
            resumes = [asyncio.create_task(r.call("Resume", resuming(plan))) for plan in plans]
            rc = [rank for rank, kind in enumerate(kinds) if kind == "rc"]
            assert all([(await call).pairs for call in [connect(r, await resumes[rank], 300) for rank in rc]])
            for resume in resumes:
                await r.leave(await resume)
            await empty(r)

    run(story())


@pytest.mark.parametrize("field", ["out_qp", "in_qp", "address", "rkey"])
def test_a_ticket_with_other_queue_pairs_than_the_switches_have_adopts_nothing(tmp_path: Path, field: str) -> None:
    """Every number of a NIC is in some entry: a ticket with another one is of another plan, and a wrong sum would be
    worse than none."""

    async def story() -> None:
        async with nics(tmp_path) as r:
            plans, _ = await folding(r, MIXED)
        async with restarted(r) as r:
            key = r.controller.jobs.registry.key
            record = ticket.unseal(key, plans[1].ticket)
            end = record.streams[0].rc[1]
            record.streams[0] = dataclasses.replace(record.streams[0], rc={
                **record.streams[0].rc, 1: dataclasses.replace(end, **{field: getattr(end, field) + 1})})
            wrong = msgspec.structs.replace(plans[1], ticket=ticket.seal(key, record))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await r.watch(wrong)
            assert caught.value.code() is Code.UNAVAILABLE
            assert "does not hold its entries" in (caught.value.details() or "")
            assert r.controller.jobs.all() == []
            await r.watch(plans[1])

    run(story())


def test_queue_pairs_of_an_adopted_job_are_its_own(tmp_path: Path) -> None:
    """Another job whose NIC says that it has the same number is refused, as before."""

    async def story() -> None:
        async with nics(tmp_path) as r:
            plans, _ = await folding(r, ALL_RC)
        async with restarted(r) as r:
            for plan in plans:
                await r.watch(plan)
            others = await asyncio.gather(*join_all(r, ["rc", "rc"], job="other"))
            code, words = await refused(connect(r, others[0]))
            assert code is Code.ALREADY_EXISTS
            assert "rank 0 of job 'j'" in words
            assert all([(await call).pairs for call in [connect(r, plan, 300) for plan in others]])

    run(story())


@pytest.mark.parametrize("kinds", [ALL_RC, MIXED])
def test_ranks_whose_controller_died_while_they_connected_are_halted_by_the_next_one(
    tmp_path: Path, kinds: list[str]
) -> None:
    """The ticket is the one before, whose entries are there still; the round's number is one that no rank has a plan
    of, and who connects without it is told to resume."""

    async def story() -> None:
        rc = [rank for rank, kind in enumerate(kinds) if kind == "rc"]
        async with nics(tmp_path) as r:
            plans, _ = await folding(r, kinds)
            (job,) = r.controller.jobs.all()
            lose(r, "spine1")
            await until(lambda: job.stands_still)
            resumes = [asyncio.create_task(r.call("Resume", resuming(plan))) for plan in plans]
            between = {rank: await resumes[rank] for rank in rc}
            assert all(plan.ticket == plans[rank].ticket for rank, plan in between.items())
            for resume in resumes:
                resume.cancel()
        restart(r, "spine1")
        async with restarted(r) as r:
            now = {rank: between.get(rank, plan) for rank, plan in enumerate(plans)}
            watchers = [await r.watch(now[rank], heard=1) for rank in range(4)]
            for watcher in watchers:
                event = await watcher.next()
                assert isinstance(event, Halt)
                assert event.round == 2
            code, words = await refused(connect(r, between[rc[0]], 300))
            assert code is Code.ABORTED
            assert "Call Resume" in words
            resumes = [asyncio.create_task(r.call("Resume", resuming(plan))) for plan in now.values()]
            calls = [connect(r, await resumes[rank], 300) for rank in rc]
            assert all([(await call).pairs for call in calls])
            assert {(await resume).round for resume in resumes} == {2}
            for plan in now.values():
                await r.leave(plan)
            await empty(r)

    run(story())


def test_a_job_that_was_not_connected_ends_with_its_controller(tmp_path: Path) -> None:
    """It has nothing on any switch, and no ticket: its ranks are refused by name."""

    async def story() -> None:
        async with nics(tmp_path) as r:
            plans = await asyncio.gather(*join_all(r, ["rc", "rc"]))
        async with restarted(r) as r:
            code, words = await refused(connect(r, plans[0]))
            assert code is Code.FAILED_PRECONDITION
            assert "there is no such rank" in words
            assert r.base_only()
            assert connections(r, "leaf1") == set()

    run(story())


def test_an_answer_says_nothing_of_others_than_the_neighbours(tmp_path: Path) -> None:
    """A rank's answer has what it must know of its neighbours, stream by stream."""

    async def story() -> None:
        async with nics(tmp_path) as r:
            plans = await asyncio.gather(*join_all(r, ["rc", "rc"]))
            calls = [asyncio.create_task(r.call("Connect", connecting(plan, 50 + 100 * plan.rank), Connected))
                     for plan in plans]
            answers = [await call for call in calls]
            assert [pair.peer_qp for pair in answers[0].pairs] == [151, 153]
            assert [pair.predecessor_qp for pair in answers[0].pairs] == [150, 152]

    run(story())


# ---- whatever comes when ---------------------------------------------------------------------------------------------


class Member:
    """A rank that does what ranks do: it resumes when it is halted, and connects its queue pairs where it has any."""

    def __init__(self, r: Rig, plan: Plan, watcher: Watcher, numbers: Iterator[int]) -> None:
        self.plan = plan
        self._r, self._watcher, self._numbers = r, watcher, numbers
        self.task = asyncio.create_task(self._follow())
        self.idle = True

    async def _follow(self) -> None:
        while isinstance(event := await self._watcher.next(), Halt):
            self.idle = False
            while self.plan.round < event.round and not await self._go_on():
                pass
            self.idle = True

    async def _go_on(self) -> bool:
        """Resume, and connect; False: it is to resume once more."""
        plan = await self._r.call("Resume", resuming(self.plan))
        if plan.fold_address:
            try:
                answer = await connect(self._r, plan, next(self._numbers))
            except grpc.aio.AioRpcError as error:
                if error.code() is not Code.ABORTED:
                    raise
                return False
            assert len(answer.pairs) == 2 * len(plan.trees)
            plan = msgspec.structs.replace(plan, ticket=answer.ticket)
        self.plan = plan
        return True


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["spine1", "spine2"]), st.integers(0, 40)), max_size=5),
       st.sampled_from([ALL_RC, MIXED]))
def test_ranks_go_on_together_whatever_fails_when(faults: list[tuple[str, int]], kinds: list[str]) -> None:
    """Spines go down and come back while ranks halt, resume and connect: in the end all ranks have plans of one round,
    with the PSNs where all had stopped, over entries of its epoch alone, and nothing is held when they have left."""

    async def story(folder: Path) -> None:
        async with nics(folder, steady=0.02) as r:
            plans, _ = await folding(r, kinds)
            numbers = itertools.count(1000, 100)
            members = [Member(r, plan, await r.watch(plan), numbers) for plan in plans]
            down: set[str] = set()
            for name, turns in faults:
                if name in down:
                    restart(r, name)
                    down.remove(name)
                elif not down:  # one is left
                    await until(lambda: all(target.is_up for target in r.controller._targets.values()))
                    lose(r, name)
                    down.add(name)
                for _ in range(turns):
                    await asyncio.sleep(0)
            for name in down:
                restart(r, name)
            (job,) = r.controller.jobs.all()

            def settled() -> bool:
                for member in members:
                    if member.task.done():
                        member.task.result()
                rounds = {member.plan.round for member in members}
                return (all(target.is_up for target in r.controller._targets.values()) and not job.stands_still
                        and rounds == {job.rounds} and all(member.idle for member in members)
                        and {tree.root for tree in job.trees} == {"spine1", "spine2"})

            await until(settled)
            for member, plan in zip(members, plans, strict=True):
                assert [stream.psn for stream in streams(member.plan)] == [stream.psn for stream in streams(plan)]
            epochs = {entry["epoch"] for name in ("leaf1", "leaf2") for entry in rc_entries(r, name)}
            assert job.slots_epoch in epochs
            await until(lambda: {entry["epoch"] for name in ("leaf1", "leaf2") for entry in rc_entries(r, name)}
                        == {job.slots_epoch})
            for member in members:
                member.task.cancel()
                await r.leave(member.plan)
            await empty(r)

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("netfold.controller.switch.target.RETRY", (0.01,))
        run(story(Path(folder)))


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["connect", "connect", "die", "leave", "drop", "refuse"]), st.integers(0, 2),
                          st.integers(0, 10)), max_size=5))
def test_a_first_step_ends_for_all_or_holds_nothing(steps: list[tuple[str, int, int]]) -> None:
    """Ranks connect, die, leave and are dropped in any order: nobody waits for ever, and either all fold, or all are
    told and no switch holds anything."""

    async def story(folder: Path) -> None:
        async with nics(folder, lease=2.0) as r:
            joins = join_all(r, ["rc", "windowed", "rc"])
            plans = {rank: await joins[rank] for rank in (0, 2)}
            watchers = {rank: await r.watch(plan) for rank, plan in plans.items()}
            (job,) = r.controller.jobs.all()
            calls: list[asyncio.Task[Connected]] = []
            for what, rank, turns in [*steps, ("connect", 0, 0), ("connect", 2, 0)]:
                rank = 2 * (rank // 2)
                if what == "connect":
                    calls.append(connect(r, plans[rank]))
                elif what == "die":
                    watchers[rank].die()
                elif what == "leave":
                    calls.append(asyncio.create_task(r.leave(plans[rank], "because")))  # type: ignore[arg-type]
                elif what == "drop":
                    await client.drop(r.fabric.jobs, "j")
                else:
                    r.switches["leaf1"].refuse = lambda update: update.verb == "insert"
                for _ in range(turns):
                    await asyncio.sleep(0)
            found = await asyncio.gather(*calls, joins[1], return_exceptions=True)
            assert all(not isinstance(one, Exception) or isinstance(one, grpc.aio.AioRpcError) for one in found), found
            assert job.state != "connecting"
            assert await client.drop(r.fabric.jobs, "j") or job.state == "finished"
            await empty(r)

    with tempfile.TemporaryDirectory() as folder:
        run(story(Path(folder)))
