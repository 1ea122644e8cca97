# SPDX-License-Identifier: Apache-2.0
"""Jobs with NICs under a controller that finds them running: what their tickets must say, and what it refuses."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import grpc
import msgspec
import pytest

from netfold.controller.jobs import ticket
from netfold.wire.jobs import Connected, Halt
from support.control.connecting import (
    ALL_RC,
    MIXED,
    connect,
    connecting,
    empty,
    folding,
    join_all,
    nics,
    refused,
    resuming,
)
from support.control.controller import until
from support.control.jobs import Code, restarted
from support.control.recovery import connections, lose, restart

pytestmark = pytest.mark.usefixtures("quick_sessions")


@pytest.mark.parametrize("kinds", [ALL_RC, MIXED])
async def test_a_connected_job_goes_on_under_a_new_controller(tmp_path: Path, kinds: list[str]) -> None:
    """The ticket that came with the neighbours' queue pairs knows them all: nothing is written, and what fails later is
    recovered from."""
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


@pytest.mark.parametrize("field", ["out_qp", "in_qp", "address", "rkey"])
async def test_a_ticket_with_other_queue_pairs_than_the_switches_have_adopts_nothing(
    tmp_path: Path, field: str
) -> None:
    """Every number of a NIC is in some entry: a ticket with another one is of another plan, and a wrong sum would be
    worse than none."""
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


async def test_queue_pairs_of_an_adopted_job_are_its_own(tmp_path: Path) -> None:
    """Another job whose NIC says that it has the same number is refused, as before."""
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


@pytest.mark.parametrize("kinds", [ALL_RC, MIXED])
async def test_ranks_whose_controller_died_while_they_connected_are_halted_by_the_next_one(
    tmp_path: Path, kinds: list[str]
) -> None:
    """The ticket is the one before, whose entries are there still; the round's number is one that no rank has a plan
    of, and who connects without it is told to resume."""
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


async def test_a_job_that_was_not_connected_ends_with_its_controller(tmp_path: Path) -> None:
    """It has nothing on any switch, and no ticket: its ranks are refused by name."""
    async with nics(tmp_path) as r:
        plans = await asyncio.gather(*join_all(r, ["rc", "rc"]))
    async with restarted(r) as r:
        code, words = await refused(connect(r, plans[0]))
        assert code is Code.FAILED_PRECONDITION
        assert "there is no such rank" in words
        assert r.base_only()
        assert connections(r, "leaf1") == set()


async def test_an_answer_says_nothing_of_others_than_the_neighbours(tmp_path: Path) -> None:
    """A rank's answer has what it must know of its neighbours, stream by stream."""
    async with nics(tmp_path) as r:
        plans = await asyncio.gather(*join_all(r, ["rc", "rc"]))
        calls = [asyncio.create_task(r.call("Connect", connecting(plan, 50 + 100 * plan.rank), Connected))
                 for plan in plans]
        answers = [await call for call in calls]
        assert [pair.peer_qp for pair in answers[0].pairs] == [151, 153]
        assert [pair.predecessor_qp for pair in answers[0].pairs] == [150, 152]
