# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks with NICs: queue pairs of their own beside those of their job, and slots that they keep."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from netfold.controller.jobs import groups
from netfold.fabric.folding.slots import Sizes
from netfold.wire.jobs import Done, Halt, JobEndedEvent, RankLost, RankReport, Tell
from netfold.wire.plan import Plan
from support.control.connecting import (
    ALL_RC,
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
from support.control.controller import until
from support.control.jobs import Code, Rig, of, restarted
from support.control.recovery import lose, streams

pytestmark = pytest.mark.usefixtures("quick_sessions")


def joins(
    r: Rig, world: Sequence[Plan], members: Sequence[int], number: int = 1, kinds: Sequence[str] = ALL_RC
) -> list[asyncio.Task[Plan]]:
    """All ranks of a group join it, each as the kind that it has in the job."""
    return [asyncio.create_task(r.call("Join", of(world, members, rank, number, kind=kinds[member])))
            for rank, member in enumerate(members)]


async def group(
    r: Rig, world: Sequence[Plan], members: Sequence[int], first: int, number: int = 1, kinds: Sequence[str] = ALL_RC
) -> list[Plan]:
    """All ranks of a group join it, and RC ranks connect queue pairs from ``first`` on: their plans, with tickets."""
    joining = joins(r, world, members, number, kinds)
    rc = [rank for rank, member in enumerate(members) if kinds[member] == "rc"]
    plans = {rank: await joining[rank] for rank in rc}
    calls = {rank: connect(r, plan, first) for rank, plan in plans.items()}
    plans = {rank: msgspec.structs.replace(plans[rank], ticket=(await call).ticket) for rank, call in calls.items()}
    return [plans.get(rank) or await joining[rank] for rank in range(len(members))]


async def gather_refusals(calls: Sequence[asyncio.Task[Any]]) -> list[tuple[Code, str]]:
    """The codes and words of refusals."""
    return [await refused(call) for call in calls]


async def test_groups_of_a_mesh_connect_queue_pairs_beside_their_job(tmp_path: Path) -> None:
    """Leaves know each group's contributions by the numbers that its NICs have chosen, and the job's as before; what
    leaves takes its entries and slots along."""
    async with nics(tmp_path) as r:
        world, _ = await folding(r, ALL_RC)
        before = {name: len(rc_entries(r, name)) for name in ("leaf1", "leaf2")}
        one, two = await asyncio.gather(group(r, world, (0, 2), 200), group(r, world, (3, 1), 300))
        folds = r.fabric.fold_addresses()
        for members, plans in (((0, 2), one), ((3, 1), two)):
            for plan, member, other in zip(plans, members, members[::-1], strict=True):
                assert (plan.fold_address, plan.verb) == (folds[member], "send")
                assert all(stream.peer == folds[other] for stream in streams(plan))
                assert plan.ticket.value
        numbers = {entry["queue_pair"] for name in before for entry in rc_entries(r, name)}
        assert numbers >= {pair.in_qp for first, plans in ((200, one), (300, two)) for plan in plans
                           for pair in pairs_of(plan, first)}
        for plan in (*one, *two):
            await r.leave(plan)
        await until(lambda: {name: len(rc_entries(r, name)) for name in before} == before)
        for plan in world:
            await r.leave(plan)
        await empty(r)


async def test_a_group_does_not_take_the_queue_pairs_of_its_job(tmp_path: Path) -> None:
    """Whoever says that its NIC has given a number twice is refused, and its group ends by name; the job does not."""
    async with nics(tmp_path) as r:
        world, _ = await folding(r, ALL_RC)
        plans = [await join for join in joins(r, world, (0, 2))]
        watchers = [await r.watch(plan) for plan in plans]
        code, words = await refused(connect(r, plans[0]))
        assert code is Code.ALREADY_EXISTS
        assert "are those of rank 0 of job 'j'" in words
        waits = connect(r, plans[1], 200)
        (_, job) = r.controller.jobs.all()
        await until(lambda: job.step is not None and job.step.missing == [0])
        await r.leave(plans[0], words[:80])
        assert "rank 0 left" in (await refused(waits))[1]
        assert isinstance(await watchers[1].next(), JobEndedEvent)
        assert [job.name for job in r.controller.jobs.registry.active()] == ["j"]


async def test_groups_of_a_mixed_job_are_of_one_kind_or_of_two_nics_at_least(tmp_path: Path) -> None:
    """Windowed ranks get their plans when the NICs are ready; a NIC alone has nobody to send to, and all hear so; a
    group of windowed ranks is as any."""
    async with nics(tmp_path) as r:
        world, _ = await folding(r, MIXED)
        mixed = await group(r, world, (0, 1, 3), 200, kinds=MIXED)
        assert [bool(plan.fold_address) for plan in mixed] == [False, True, True]
        assert {plan.verb for plan in mixed} == {"send"}
        for code, words in await gather_refusals(joins(r, world, (0, 3), kinds=MIXED)):
            assert code is Code.FAILED_PRECONDITION
            assert "rank 1 alone is of kind \"rc\"" in words
        windowed = await group(r, world, (0, 2), 0, kinds=MIXED)
        assert {plan.verb for plan in windowed} == {"write"}


async def test_two_nics_below_one_switch_gain_nothing(tmp_path: Path) -> None:
    """As of windowed ranks: refused for good, before any queue pair is made."""
    async with nics(tmp_path) as r:
        world, _ = await folding(r, ALL_RC)
        for code, words in await gather_refusals(joins(r, world, (0, 1))):
            assert code is Code.FAILED_PRECONDITION
            assert "h1 and h2 are below leaf1" in words


async def test_a_lost_rank_ends_a_group_between_its_steps_and_not_its_job(tmp_path: Path) -> None:
    """Whoever has connected hears of it, and the switches hold what they held before."""
    async with nics(tmp_path) as r:
        world, _ = await folding(r, ALL_RC)
        before = dict(r.controller.allocator.used())
        plans = [await join for join in joins(r, world, (0, 2))]
        watchers = [await r.watch(plan) for plan in plans]
        waits = connect(r, plans[0], 200)
        (_, job) = r.controller.jobs.all()
        await until(lambda: job.step is not None and job.step.missing == [1])
        watchers[1].die()
        lost = await watchers[0].next()
        assert isinstance(lost, RankLost)
        assert (lost.rank, lost.host) == (1, "h3")
        assert "rank 1: its connection to the controller broke" in (await refused(waits))[1]
        await until(lambda: r.controller.allocator.used() == before)
        assert [job.name for job in r.controller.jobs.all()] == ["j"]


async def test_a_group_whose_trees_go_connects_its_queue_pairs_anew(tmp_path: Path) -> None:
    """Over other trees, as its job does, by numbers that its NICs have not used."""
    async with nics(tmp_path) as r:
        world, _ = await folding(r, ALL_RC)
        made = await group(r, world, (0, 2), 200)
        watchers = [await r.watch(plan) for plan in made]
        spine = made[0].trees[0].name
        lose(r, spine)
        for watcher in watchers:
            assert await watcher.next() == Halt(1, f"{spine} is down")
        resumes = [asyncio.create_task(r.call("Resume", resuming(plan))) for plan in made]
        between = [await call for call in resumes]
        for call in [connect(r, plan, 400) for plan in between]:
            assert (await call).pairs
        assert all(tree.name != spine for plan in between for tree in plan.trees)


async def test_an_idle_group_of_nics_keeps_its_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages under way are for switches alone, so that it cannot go over TCP: whoever asks next is refused, and
    folds once the group is closed."""
    monkeypatch.setattr(groups, "IDLE_SECONDS", 0.0)
    async with nics(tmp_path) as r:
        world, _ = await folding(r, ALL_RC)
        made = await group(r, world, (0, 2), 200)
        watchers = [await r.watch(plan) for plan in made]
        for slots in r.controller.allocator.slots.values():  # nothing is free beside it
            while slots.used < 16384:
                slots.allocate(128)
        for plan in made:
            await r.call("Report", RankReport(plan.job, plan.rank, plan.epoch, 1, 1 << 20, 1, 0,
                                              secret=plan.rank_secret), Done)
        for code, words in await gather_refusals(joins(r, world, (1, 3))):
            assert code is Code.RESOURCE_EXHAUSTED
            assert "slots" in words
        for watcher, plan in zip(watchers, made, strict=True):
            assert isinstance(await watcher.next(), Tell)  # and no Halt
            await r.leave(plan)
        assert (await group(r, world, (1, 3), 300, number=2))[0].trees


async def test_groups_of_nics_keep_no_more_than_a_job_may_have(tmp_path: Path) -> None:
    """All of a job's together, however many they are: what is left is for others, and a closed one makes room."""
    async with nics(tmp_path) as r:
        allocator = r.controller.allocator
        world, _ = await folding(r, ALL_RC)
        allocator.sizes = Sizes(data=128, agreement=128, quota=600)
        one, two = await group(r, world, (0, 2), 200), await group(r, world, (1, 3), 300)
        held = dict(allocator.used())
        for code, words in await gather_refusals(joins(r, world, (0, 3))):
            assert code is Code.RESOURCE_EXHAUSTED
            assert "of job 'j' with RDMA NICs keep 512 slots of one switch, of 600" in words
        assert allocator.used() == held
        for plan in one:
            await r.leave(plan)
        assert (await group(r, world, (0, 3), 400, number=2))[0].trees
        assert two[0].trees


async def test_a_connected_group_goes_on_under_a_new_controller(tmp_path: Path) -> None:
    """By its tickets, as a group of its job; nothing is written."""
    async with nics(tmp_path) as r:
        world, _ = await folding(r, ALL_RC)
        made = await group(r, world, (0, 2), 200)
        before = {name: dict(switch.state) for name, switch in r.switches.items()}
    async with restarted(r) as r:
        for plan in (*made, *world):
            await r.watch(plan)
        assert {name: dict(switch.state) for name, switch in r.switches.items()} == before
        assert [job.name for job in r.controller.jobs.all()] == ["j", "j#0-2.1"]
        for plan in world:
            await r.leave(plan)
        await empty(r)
