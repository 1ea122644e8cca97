# SPDX-License-Identifier: Apache-2.0
"""After a failure NICs' queue pairs are connected anew, over new trees, or the round ends for all ranks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from netfold.controller.switch import tables
from netfold.controller.switch.entities import Entry
from netfold.controller.switch.probe import SlotState
from netfold.fabric.folding import slots
from netfold.fabric.folding.pools import Exhausted
from netfold.wire import roce
from netfold.wire.jobs import AskMissing, Halt, MissingContributions
from netfold.wire.plan import Plan
from support.control.connecting import (
    ALL_RC,
    FIRST_QP,
    MIXED,
    connect,
    empty,
    folding,
    nics,
    pairs_of,
    rc_entries,
    refused,
    resuming,
)
from support.control.controller import run, until
from support.control.jobs import Code, Rig
from support.control.recovery import back_and_then, lose, restart, streams

pytestmark = pytest.mark.usefixtures("quick_sessions")


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
async def test_after_a_failure_queue_pairs_are_connected_anew(tmp_path: Path, kinds: list[str], again: int) -> None:
    """Under the new round, from the lowest PSN that anybody lacks; with the numbers of before, or others: the new
    entries are there, the old ones go, and windowed ranks wait for them."""
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
                    == set(job.parts.values()))
        numbers = {entry["queue_pair"] for name in ("leaf1", "leaf2") for entry in rc_entries(r, name)}
        assert numbers == {pair.in_qp for pair in pairs_of(after[rc[0]], again)}
        code, words = await refused(connect(r, plans[rc[0]]))
        assert code is Code.ABORTED
        assert "round 0 is over" in words
        for plan in after.values():
            await r.leave(plan)
        await empty(r)


@pytest.mark.parametrize("kinds", [ALL_RC, MIXED])
async def test_what_fails_while_ranks_connect_halts_nics_once_more(tmp_path: Path, kinds: list[str]) -> None:
    """RC ranks resume under the next number, windowed ones, which stand still, get that round's plan; nothing that was
    connected before counts."""
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
        await until(lambda: r.controller.targets["spine1"].is_up)
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


async def test_a_switch_that_refuses_the_new_entries_is_a_failure_of_the_round(tmp_path: Path) -> None:
    """The ranks resume anew, and go on once it takes them."""
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


@pytest.mark.parametrize("gone", [0, 1])
async def test_a_rank_that_dies_while_ranks_connect_ends_the_round(tmp_path: Path, gone: int) -> None:
    """Windowed or RC: all who wait are told."""
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


@pytest.mark.parametrize("kinds", [ALL_RC, MIXED])
@pytest.mark.parametrize("second", ["another change", "queue pairs in error"])
async def test_what_else_happens_when_a_job_is_to_move_back_begins_no_second_round(
    tmp_path: Path, second: str, kinds: list[str]
) -> None:
    """Ranks halt once, whatever is noticed first, and only the entries of the round that they go on by stay."""
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
                    == set(job.parts.values()))
        assert not any(watcher.has_heard for watcher in watchers)
        for plan in after:
            await r.leave(plan)
        await empty(r)


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
            allocator, admit = r.controller.allocator, r.controller.allocator.admit
            held = set(job.parts.values())

            def full(*args: Any, **kwargs: Any) -> list[slots.Stream]:
                if any(map(allocator.holds, held)):
                    raise Exhausted("the old ones are there still")
                return admit(*args, **kwargs)

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
            await until(lambda: not r.controller.jobs.is_changing)
            for rank in (0, 1, 3):
                await r.leave(plans[rank], "the job is broken")
            await empty(r)

    run(story())
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_nics_do_not_go_on_over_tcp(tmp_path: Path) -> None:
    """Whatever they offer: without trees they wait, and are told why in the end."""
    async with nics(tmp_path) as r:
        plans, _ = await folding(r, ["rc", "rc", "rc"])
        await halted(r, plans, "leaf1")
        for call in [asyncio.create_task(r.call("Resume", resuming(plan, timeout=0.3, stand_in="10.0.0.1:1")))
                     for plan in plans]:
            code, words = await refused(call)
            assert code is Code.DEADLINE_EXCEEDED
            assert "leaf1 is down, and no trees in their place" in words
        assert not r.controller.jobs.all()[0].fell_back


async def test_streams_are_named_by_their_places(tmp_path: Path) -> None:
    """In Missing, and in Resume, which says so where they are not."""
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
