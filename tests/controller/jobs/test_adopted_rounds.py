# SPDX-License-Identifier: Apache-2.0
"""Jobs whose trees were being planned anew when their controller died: the next one halts all, and makes one plan."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from netfold.controller.switch import fold_tables
from netfold.wire import roce
from netfold.wire.jobs import Halt
from support.control.controller import until
from support.control.jobs import Code, Watcher, restarted, rig, watching
from support.control.recovery import all_resume, connections, lose, restart, streams

pytestmark = pytest.mark.usefixtures("cleaned_at_once")


async def test_a_job_of_which_some_trees_were_planned_anew_goes_on_under_a_new_controller(tmp_path: Path) -> None:
    """Its trees are of several rounds, each with an epoch of its own: nothing is written and nobody halts; in the first
    round that it makes itself all trees are new, since ranks might have different plans."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        lose(r, "spine1")
        (job,) = r.controller.jobs.all()
        await until(lambda: job.round is not None)
        plans = await all_resume(r, plans)
        assert [tree.stays for tree in plans[0].trees].count(True) == 1
        await until(lambda: not r.controller.jobs.is_changing)
        await r.controller.replan()  # routes are those of the fabric without spine1, too
    before = r.held()
    async with asyncio.timeout(20), restarted(r) as r:
        watchers = [await r.watch(plan) for plan in plans]
        (job,) = r.controller.jobs.registry.active()
        assert (job.awaited, job.round) == (set(), None)
        assert r.held() == before
        restart(r, "spine1")
        for watcher in watchers:
            assert isinstance(await watcher.next(), Halt)
        after = await all_resume(r, plans)
        assert not any(tree.stays for plan in after for tree in plan.trees)
        assert not {tree.data.qp for tree in after[0].trees} & {tree.data.qp for tree in plans[0].trees}


async def test_a_plan_that_no_rank_was_told_does_not_keep_a_job_from_going_on(tmp_path: Path) -> None:
    """A leaf was written anew for a plan, but the controller died before it could answer with it: all ranks have the
    ticket of before, which the leaf no longer bears out.  The last one of them to register has it adopted."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        later = await r.together(4, job="later")
    leaf = r.switches["leaf1"]
    (job,) = [job for job in r.controller.jobs.all() if job.name == plans[0].job]
    epoch = job.streams[0].epoch
    gone = fold_tables.by_epoch(leaf.state.values())[epoch]
    leaf.state = {key: entity for key, entity in leaf.state.items() if entity not in gone}
    async with restarted(r) as r:
        for plan in plans[:3]:
            error = await r.watch_refusal(watching(plan))
            assert error.code() is Code.UNAVAILABLE
            assert "leaf1 does not hold its entries" in (error.details() or "")
        watchers = [await r.watch(plan) for plan in reversed(plans)]
        for watcher in watchers:
            assert isinstance(await watcher.next(), Halt)
        for plan in await all_resume(r, plans):
            await r.leave(plan)
        await r.controller.jobs.end_grace()
        await until(r.base_only)
        assert set(r.controller.allocator.used().values()) == {0}
        assert (await r.watch_refusal(watching(later[0]))).code() is Code.FAILED_PRECONDITION


async def test_a_switch_that_was_started_anew_meanwhile_is_planned_around(tmp_path: Path) -> None:
    """It holds nothing of the job: all ranks halt as soon as they have registered, and go on over new entries."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
    restart(r, "spine1")
    async with restarted(r) as r:
        watchers = [await r.watch(plan) for plan in plans]
        assert [await watcher.next() for watcher in watchers] == [Halt(1, "spine1 was away")] * 4
        after = await all_resume(r, plans, {1: 3})
        assert [tree.name for tree in after[0].trees] == ["spine1", "spine2"]
        assert {plan.round for plan in after} == {1}
        for plan in after:
            await r.leave(plan)
        await until(r.base_only)
        assert set(r.controller.allocator.used().values()) == {0}


async def test_a_round_that_was_cut_off_before_any_rank_had_its_plan_is_made_anew(tmp_path: Path) -> None:
    """Some ranks have halted, others have not heard of it: all halt under the new controller, and begin where the
    slowest was."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        lose(r, "spine1")
        assert await watcher.next() == Halt(1, "spine1 is down")
    restart(r, "spine1")
    async with restarted(r) as r:
        watchers = [await r.watch(plan, heard=1 if plan.rank < 2 else 0) for plan in plans]
        for watcher in watchers:
            event = await watcher.next()
            assert isinstance(event, Halt)
            assert event.round >= 1
        after = await all_resume(r, plans, {0: 5, 1: 4, 2: 9, 3: 8})
        for plan, new in zip(plans, after, strict=True):
            assert [(now.psn - was.psn) & roce.PSN_MASK for was, now in
                    zip(streams(plan), streams(new), strict=True)] == [4] * 4


@pytest.mark.parametrize("first", [0, 3])
async def test_a_round_of_which_only_some_ranks_have_the_plan_is_followed_by_another(
    tmp_path: Path, first: int
) -> None:
    """Ranks 0 and 1 have gone on by the new plan, 2 and 3 still stand still by the old one, when the controller dies.
    Whoever registers first, all halt once more, each says what it lacks by its own plan, and all end with one."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        lose(r, "spine1")
        assert await watcher.next() == Halt(1, "spine1 is down")
        kept = r.held()
        after = await all_resume(r, plans)
    for name, state in kept.items():  # the old entries had not been removed yet
        if name != "spine1":
            r.switches[name].state.update(state)
    restart(r, "spine1")
    async with restarted(r) as r:
        known = [*after[:2], *plans[2:]]
        order = [*known[first:], *known[:first]]
        watchers: dict[int, Watcher] = {}
        for plan in order:
            watchers[plan.rank] = await r.watch(plan, heard=1)
        for rank, watcher in watchers.items():
            number = 0
            while number <= known[rank].round:
                event = await watcher.next()
                assert isinstance(event, Halt)
                number = event.round
        final = await all_resume(r, known, {0: 6, 1: 2, 2: 2, 3: 5})
        assert len({plan.round for plan in final}) == 1
        assert final[0].round >= 2
        for plan, new in zip(plans, final, strict=True):
            assert [(now.psn - was.psn) & roce.PSN_MASK for was, now in
                    zip(streams(plan), streams(new), strict=True)] == [2] * 4
        assert [s.peer_qp for s in streams(final[0])] == [s.qp for s in streams(final[1])]


async def test_a_rank_whose_plan_is_older_than_what_the_switches_hold_waits_for_the_others(tmp_path: Path) -> None:
    """Its ticket adopts nothing, since the entries have moved; it is told to come again, and does when another rank has
    shown the later plan."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        lose(r, "spine1")
        assert await watcher.next() == Halt(1, "spine1 is down")
        after = await all_resume(r, plans)
        old = {s.qp >> roce.OPERATION_BITS for s in streams(plans[0])}
        await until(lambda: connections(r, "leaf1").isdisjoint(old))
    restart(r, "spine1")
    async with restarted(r) as r:
        error = await r.watch_refusal(watching(plans[3]))
        assert error.code() is Code.UNAVAILABLE
        await r.watch(after[0], heard=1)
        late = await r.watch(plans[3], heard=1)
        assert isinstance(await late.next(), Halt)
        assert len(r.controller.jobs.all()) == 1


@pytest.mark.parametrize("first", [0, 7])
async def test_ranks_without_tickets_may_have_a_later_plan_than_any_ticket_has(tmp_path: Path, first: int) -> None:
    """The controller dies when it has answered some ranks of a round, none of which holds a ticket.  Whoever registers
    first, all halt once more, each says what it lacks by its own plan, and all end with one."""
    async with rig(tmp_path) as r:
        plans = await r.together(8)
        watcher = await r.watch(plans[0])
        lose(r, "spine1")
        assert await watcher.next() == Halt(1, "spine1 is down")
        kept = r.held()
        after = await all_resume(r, plans, dict.fromkeys(range(8), 10))
    for name, state in kept.items():  # the old entries had not been removed yet
        if name != "spine1":
            r.switches[name].state.update(state)
    restart(r, "spine1")
    mixed = [*plans[:4], *after[4:]]
    async with restarted(r) as r:
        order = sorted(mixed, key=lambda plan: plan.rank != first)
        watchers = await asyncio.gather(*(r.watch(plan, heard=1) for plan in order))
        for watcher in watchers:
            event = await watcher.next()
            assert isinstance(event, Halt)
            while event.round < 2:  # the first ranks may hear of a round that others make a later one
                event = await watcher.next()
                assert isinstance(event, Halt)
        last = await all_resume(r, mixed, {rank: 12 if rank < 4 else 3 for rank in range(8)})
        assert {plan.round for plan in last} == {2}
        for plan, new in zip(plans, last, strict=True):
            assert [(now.psn - was.psn) & roce.PSN_MASK for was, now in
                    zip(streams(plan), streams(new), strict=True)] == [12 if plan.rank < 4 else 13] * 4
        for plan in last:
            await r.leave(plan)
        await r.controller.jobs.end_grace()  # what the second plan had on switches
        await until(r.base_only)
