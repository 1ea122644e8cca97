# SPDX-License-Identifier: Apache-2.0
"""Running jobs whose switches or links go away: all ranks stop, and go on over other trees from the slowest's place."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.controller.jobs.job import Job
from netfold.controller.jobs.rounds import rewound
from netfold.controller.switch import fold_tables, tables
from netfold.fabric.folding import slots, trees
from netfold.fabric.folding.slots import Allocator, Sizes
from netfold.fabric.generate import leafspine
from netfold.wire import roce
from netfold.wire.jobs import Halt, RankLost, Resume
from support.control.controller import BOUND, MemorySwitch, until
from support.control.jobs import Code, rig
from support.control.recovery import all_resume, back_and_then, connections, lose, restart, resume, streams

pytestmark = pytest.mark.usefixtures("quick_sessions", "cleaned_at_once")


async def test_a_dead_spines_trees_move_to_the_others(tmp_path: Path) -> None:
    """Every rank hears why; the new plan has as many trees, each stream of the one that was lost has new queue pairs
    under the old source ports, the other's are as they were, and each begins at what the slowest rank lacks; nothing of
    the old entries stays, and in the end no slot is held."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watchers = [await r.watch(plan) for plan in plans]
        lose(r, "spine1")
        for watcher in watchers:
            assert await watcher.next() == Halt(1, "spine1 is down")
        late = {0: 7, 1: 1030, 2: 3, 3: 8}
        after = await all_resume(r, plans, late)
        old = {stream.qp >> roce.OPERATION_BITS for plan in plans for tree in plan.trees if tree.name == "spine1"
               for stream in (tree.agreement, tree.data)}
        for plan, new in zip(plans, after, strict=True):
            assert (new.round, new.epoch) == (1, plan.epoch)
            assert [tree.name for tree in new.trees] == ["spine2", "spine2"]
            assert [tree.weight for tree in new.trees] == [tree.weight for tree in plan.trees]
            for before, now in zip(streams(plan), streams(new), strict=True):
                assert now.psn == (before.psn + 3) & roce.PSN_MASK
                assert (now.slots, now.source_port) == (before.slots, before.source_port)
                assert (now.qp == before.qp) == (before.qp >> roce.OPERATION_BITS not in old)
        for mine, theirs in zip(after, after[1:] + after[:1], strict=True):
            assert [s.peer_qp for s in streams(mine)] == [s.qp for s in streams(theirs)]
        await until(lambda: not any(connections(r, name) & old for name in ("leaf1", "leaf2", "spine2")))
        # a rank and a down connection for each of 4 streams and 2 leaves
        assert len(connections(r, "leaf1")) == 4 * (2 + 1)
        assert len(connections(r, "spine2")) == 4 * 2
        restart(r, "spine1")
        await until(lambda: r.controller.targets["spine1"].is_up)
        assert connections(r, "spine1") == set()
        for plan in after:
            await r.leave(plan)
        await until(lambda: set(r.controller.allocator.used().values()) == {0})
        assert r.base_only()


async def test_a_tree_that_nothing_touches_stays_as_it_is(tmp_path: Path) -> None:
    """A spine that fails, and one that comes back, cost its own tree alone: the other's slots and entries are the same
    and not written again, its streams are those of before, and the plan says so."""
    async with rig(tmp_path, steady=0.01) as r:
        plans = await r.together(4)
        (job,) = r.controller.jobs.all()
        leaf = r.switches["leaf1"]
        for number, change in enumerate((lose, restart), start=1):
            (before,) = [stream.epoch for stream in job.streams[::2] if stream.tree.root == "spine2"][-1:]
            entries = fold_tables.by_epoch(leaf.state.values())[before]
            holdings = slots.holdings(stream for stream in job.streams if stream.epoch == before)
            change(r, "spine1")
            await until(lambda number=number: job.round is not None and job.round.number == number)
            after = await all_resume(r, plans)
            for plan, new in zip(plans, after, strict=True):
                assert [tree.stays for tree in new.trees] == [False, True]
                for old, tree in zip(plan.trees, new.trees, strict=True):
                    assert tree.stays == (tree.data.qp == old.data.qp) == (tree.agreement.qp == old.agreement.qp)
            await until(lambda: not r.controller.jobs.is_changing)
            now = fold_tables.by_epoch(leaf.state.values())
            assert now.keys() == {stream.epoch for stream in job.streams}
            assert all(mine is its for mine, its in zip(now[before], entries, strict=True))
            assert holdings == slots.holdings(stream for stream in job.streams if stream.epoch == before)
            plans = after
        assert [tree.name for tree in plans[0].trees] == ["spine1", "spine2"]
        for plan in plans:
            await r.leave(plan)
        await until(lambda: set(r.controller.allocator.used().values()) == {0})


async def test_a_cut_link_is_reason_enough(tmp_path: Path) -> None:
    """The tree over it moves; the cut is told by its port."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[2])
        r.switches["spine2"].port(1, up=False)
        assert await watcher.next() == Halt(1, "the link leaf1:4 - spine2 is down")
        after = await all_resume(r, plans)
        assert [tree.name for tree in after[0].trees] == ["spine1", "spine1"]


async def test_new_trees_are_written_before_routes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch that gets both takes what ranks stand still for first; it gets its routes while they still do."""
    monkeypatch.setattr("netfold.controller.controller.ROUTES_WAIT", BOUND)
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        leaf = r.switches["leaf1"]
        leaf.writes.clear()
        leaf.port(3, up=False)
        await all_resume(r, plans)
        monkeypatch.setattr("netfold.controller.controller.ROUTES_WAIT", 0.01)
        await until(lambda: _wrote(leaf, tables.ROUTE))
        assert any(update.entity.identity[0] == tables.CONNECTION for update in leaf.writes[0])
        leaf.writes.clear()
        leaf.port(3, up=True)
        await until(lambda: _wrote(leaf, tables.ROUTE))
        leaf.writes.clear()
        leaf.port(4, up=False)
        await until(lambda: _wrote(leaf, tables.ROUTE))
        assert all(job.stands_still for job in r.controller.jobs.all())


def _wrote(switch: MemorySwitch, table: str) -> bool:
    """True if an entry of this table was written to a switch."""
    return any(update.entity.identity[0] == table for updates in switch.writes for update in updates)


async def test_a_leaf_that_restarts_is_waited_for(tmp_path: Path) -> None:
    """No tree can be had meanwhile; once it is back with nothing, everything is there again, under a new epoch."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        lose(r, "leaf1")
        waiting = asyncio.create_task(all_resume(r, plans))
        (job,) = r.controller.jobs.all()
        await until(lambda: job.round is not None and "h1" in job.round.problem)
        assert not waiting.done()
        restart(r, "leaf1")
        after = await waiting
        assert sorted(tree.name for tree in after[0].trees) == ["spine1", "spine2"]
        assert len(connections(r, "leaf1")) == 4 * (2 + 1)


async def test_a_switch_that_was_away_for_a_moment_has_lost_its_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that broke is enough, even where the next one stands before anybody has looked."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        jobs, spine = r.controller.jobs, r.controller.targets["spine1"]
        with monkeypatch.context() as nobody_looks:
            nobody_looks.setattr(jobs, "notice", lambda: None)
            sessions = spine.sessions
            r.switches["spine1"].break_session()
            await until(lambda: spine.sessions > sessions and spine.is_up)
        jobs.notice()
        assert await watcher.next() == Halt(1, "spine1 was away")
        await all_resume(r, plans)


async def test_what_fails_while_all_stand_still_is_planned_around_as_well(tmp_path: Path) -> None:
    """Two of three spines, one after the other, within one round; and a third time afterwards."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        lose(r, "spine1")
        assert (await watcher.next()) == Halt(1, "spine1 is down")
        some = [asyncio.create_task(r.call("Resume", resume(plan))) for plan in plans[:3]]
        (job,) = r.controller.jobs.all()
        await until(lambda: job.round is not None and len(job.round.resumes) == 3)
        lose(r, "spine2")
        await until(lambda: job.round is not None and job.round.problem != "")
        some.append(asyncio.create_task(r.call("Resume", resume(plans[3]))))
        restart(r, "spine1")
        after = await asyncio.gather(*some)
        assert {tree.name for plan in after for tree in plan.trees} == {"spine1"}
        restart(r, "spine2")
        await until(lambda: r.controller.targets["spine2"].is_up)
        lose(r, "spine1")
        assert (await watcher.next()) == Halt(2, "spine1 is down")
        again = await all_resume(r, list(after))
        assert [tree.name for tree in again[0].trees] == ["spine2", "spine2"]
        assert again[0].round == 2


async def test_a_flap_that_is_over_before_anybody_has_looked_costs_no_round(tmp_path: Path) -> None:
    """Nothing of the slots is lost with a link, so what came and went in between needs none; what stays does."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        (job,) = r.controller.jobs.all()
        r.switches["spine1"].port(1, up=False)
        r.switches["spine1"].port(1, up=True)
        await r.controller.replan()
        assert job.round is None
        r.switches["spine2"].port(1, up=False)
        assert await watcher.next() == Halt(1, "the link leaf1:4 - spine2 is down")
        await all_resume(r, plans)


async def test_what_dies_while_a_job_moves_back_is_planned_around_in_the_same_round(tmp_path: Path) -> None:
    """The entries for a spine that is back are being written when the other one dies: ranks halt once, and get trees on
    what is left."""
    async with rig(tmp_path, steady=0.05) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        lose(r, "spine1")
        assert await watcher.next() == Halt(1, "spine1 is down")
        moved = await all_resume(r, plans)
        gate = r.switches["leaf1"].gate = asyncio.Event()
        restart(r, "spine1")
        (job,) = r.controller.jobs.all()
        await until(lambda: job.round is not None and job.round.number == 2)
        lose(r, "spine2")
        await until(lambda: not r.controller.targets["spine2"].is_up)
        gate.set()
        event = await watcher.next()
        assert isinstance(event, Halt)
        assert event.round == 2
        after = await all_resume(r, moved)
        assert {tree.name for plan in after for tree in plan.trees} == {"spine1"}
        assert {plan.round for plan in after} == {2}


async def test_two_changes_at_once_move_a_job_back_once(tmp_path: Path) -> None:
    """The second one is noticed before the job has begun to move for the first: all ranks halt for one round, whose
    entries alone stay."""
    async with rig(tmp_path, steady=0.02) as r:
        plans = await r.together(4)
        watchers = [await r.watch(plan) for plan in plans]
        lose(r, "spine1")
        moved = await all_resume(r, plans)
        (job,) = r.controller.jobs.all()
        await back_and_then(r, "spine1", job, lambda recovery: recovery.notice([job]))
        for watcher in watchers:
            assert await watcher.next() == Halt(1, "spine1 is down")
            assert await watcher.next() == Halt(2, "spine1 is back")
        after = await all_resume(r, moved)
        assert {plan.round for plan in after} == {job.rounds} == {2}
        assert {tree.name for tree in after[0].trees} == {"spine1", "spine2"}
        await until(lambda: len(connections(r, "leaf1")) == 4 * (2 + 1))
        for plan in after:
            await r.leave(plan)
        await until(r.base_only)
        await until(lambda: set(r.controller.allocator.used().values()) == {0})


async def test_a_change_while_a_job_is_looked_at_has_it_looked_at_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a look has not seen yet is seen by the next one, and nothing is looked at without a change."""
    async with rig(tmp_path) as r:
        await r.together(4)
        (job,) = r.controller.jobs.all()
        rounds, placement = r.controller.jobs.recovery, r.controller.jobs.placement
        looks: list[Job] = []

        async def look(seen: Job) -> str:
            looks.append(seen)
            if len(looks) == 1:
                rounds.notice([job])
            return ""

        await until(lambda: not rounds.background)
        monkeypatch.setattr(placement, "may_move", lambda job: True)
        monkeypatch.setattr(placement, "reason_to_move", look)
        rounds.notice([job])
        await until(lambda: not rounds.background)
        assert looks == [job, job]


async def test_what_has_just_come_back_is_not_steady_before_its_hold_has_begun(tmp_path: Path) -> None:
    """A job that is checked in the moment before the return is taken note of does not move for it."""
    async with rig(tmp_path, steady=1000.0) as r:
        plans = await r.together(4)
        lose(r, "spine1")
        await until(lambda: bool(r.controller.jobs.all()[0].stands_still))
        await all_resume(r, plans)
        (job,) = r.controller.jobs.all()
        liveness, target = r.controller.liveness, r.controller.targets["spine1"]
        restart(r, "spine1")
        await until(lambda: target.is_up)
        assert liveness.damping.next_release() is None, "not noted yet"
        for is_noted in (False, True):
            if is_noted:
                await until(lambda: liveness.damping.next_release() is not None)
            assert "spine1" in liveness.graph()
            assert "spine1" not in liveness.graph(steady=True)
            r.controller.jobs.recovery.notice([job])
            await until(lambda: not r.controller.jobs.is_changing)
            assert (job.rounds, job.stands_still, job.stay_reason) == (1, False, "")


async def test_a_rank_that_stops_waiting_while_plans_are_made_is_waited_for_once_more(tmp_path: Path) -> None:
    """Nobody goes on by plans that were made for ranks of which one is not halted any more; the next ones begin at what
    it lacks then."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        lose(r, "spine1")
        (job,) = r.controller.jobs.all()
        await until(lambda: job.stands_still)
        recovery, makes, goes_on = r.controller.jobs.recovery, asyncio.Event(), asyncio.Event()
        thread = recovery.thread

        class Held:
            async def run(self, *work: Any) -> Any:
                made = await thread.run(*work)
                makes.set()
                await goes_on.wait()
                return made

        recovery.thread = Held()  # type: ignore[assignment]
        going = asyncio.create_task(all_resume(r, plans, ahead=dict.fromkeys(range(4), 7)))
        await makes.wait()
        assert job.round is not None
        old = job.streams
        stopped = job.round.resumes.pop(3)
        goes_on.set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert job.stands_still
        assert job.announced is not job.streams
        assert job.streams is old, "nothing of the plans that were made counts"
        again = asyncio.create_task(r.call("Resume", resume(plans[3], ahead=5)))
        after = [*await going, await again]
        assert {plan.round for plan in after} == {1}
        for before, now in zip(streams(plans[3]), streams(after[3]), strict=True):
            assert now.psn == (before.psn + 5) & roce.PSN_MASK
        assert stopped.rank == 3


async def test_a_job_whose_rank_dies_before_it_begins_to_move_back_stays(tmp_path: Path) -> None:
    """A round would fail, since the rank can repeat nothing: the others hear of its death alone, and finish what they
    have begun."""
    async with rig(tmp_path, steady=0.02) as r:
        plans = await r.together(4)
        watchers = [await r.watch(plan) for plan in plans]
        lose(r, "spine1")
        await all_resume(r, plans)
        (job,) = r.controller.jobs.all()
        await back_and_then(r, "spine1", job, lambda recovery: recovery.lose(job, 3, "it is gone"))
        await until(lambda: not r.controller.jobs.is_changing)
        for watcher in watchers[:3]:
            assert await watcher.next() == Halt(1, "spine1 is down")
            assert isinstance(await watcher.next(), RankLost)
            assert not watcher.has_heard
        assert job.rounds == 1
        assert not job.stands_still
        assert connections(r, "spine1") == set()


async def test_a_rank_that_does_not_stop_is_named(tmp_path: Path) -> None:
    """The ranks that wait for it learn which one it is, when their time is up."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        lose(r, "spine1")
        await until(lambda: r.controller.jobs.all()[0].round is not None)
        late = resume(plans[0], timeout=0.05)
        code, words = await r.refusal(late, "Resume")
        assert code is Code.DEADLINE_EXCEEDED
        assert "rank 0: spine1 is down, and no trees in their place after 0.05 s" in words
        assert "the ranks 1, 2, 3 did not stop" in words


async def test_a_rank_whose_time_is_up_is_waited_for_until_it_stops_once_more(tmp_path: Path) -> None:
    """It may take results again, so that nobody goes on by where it stood."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        lose(r, "spine1")
        (job,) = r.controller.jobs.all()
        await until(lambda: job.stands_still)
        code, _ = await r.refusal(resume(plans[0], ahead=2, timeout=0.01), "Resume")
        assert (code, job.round and job.round.resumes) == (Code.DEADLINE_EXCEEDED, {})
        after = await all_resume(r, plans, ahead={0: 5, 1: 9, 2: 7, 3: 6})
        for before, now in zip(streams(plans[3]), streams(after[3]), strict=True):
            assert now.psn == (before.psn + 5) & roce.PSN_MASK


async def test_a_rank_that_is_gone_ends_the_wait(tmp_path: Path) -> None:
    """What it had cannot be repeated: the others hear it at once, before and after they have stopped."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[3])
        lose(r, "spine1")
        (job,) = r.controller.jobs.all()
        await until(lambda: job.round is not None)
        waiting = asyncio.create_task(r.refusal(resume(plans[0]), "Resume"))
        await until(lambda: job.round is not None and 0 in job.round.resumes)
        watcher.die()
        code, words = await waiting
        assert code is Code.FAILED_PRECONDITION
        assert "rank 3 is not there any more" in words
        code, words = await r.refusal(resume(plans[1]), "Resume")
        assert (code, "rank 3" in words) == (Code.FAILED_PRECONDITION, True)


async def test_a_round_ends_with_its_job(tmp_path: Path) -> None:
    """A halted rank of a job that is dropped is refused with the reason, and nothing goes on for the job."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        lose(r, "spine1")
        (job,) = r.controller.jobs.all()
        await until(lambda: job.stands_still)
        waiting = asyncio.create_task(r.refusal(resume(plans[0]), "Resume"))
        await until(lambda: job.round is not None and 0 in job.round.resumes)
        assert await r.controller.jobs.drop("j")
        await until(lambda: not r.controller.jobs.is_changing)
        assert not job.stands_still
        code, words = await waiting
        assert (code, "has ended: dropped by the operator" in words) == (Code.FAILED_PRECONDITION, True)
        assert set(r.controller.allocator.used().values()) == {0}


async def test_who_stands_still_without_need_is_refused(tmp_path: Path) -> None:
    """Nobody was told to; or the queue pairs are not those of the rank's plan."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        code, words = await r.refusal(resume(plans[0]), "Resume")
        assert (code, "are not halted" in words) == (Code.FAILED_PRECONDITION, True)
        lose(r, "spine1")
        await until(lambda: r.controller.jobs.all()[0].round is not None)
        wrong = msgspec.structs.replace(resume(plans[0]), missing={8: 1})
        code, words = await r.refusal(wrong, "Resume")
        assert (code, "expected the places of streams [0, 1, 2, 3]" in words) == (Code.INVALID_ARGUMENT, True)


async def test_who_watches_late_hears_of_it(tmp_path: Path) -> None:
    """The round that is under way is told after the first event."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        lose(r, "spine2")
        await until(lambda: r.controller.jobs.all()[0].round is not None)
        watcher = await r.watch(plans[1])
        assert await watcher.next() == Halt(1, "spine2 is down")


async def test_jobs_that_need_nothing_of_it_go_on(tmp_path: Path) -> None:
    """Ranks under one leaf do not notice that a spine is gone, nor that the other leaf is."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        lose(r, "spine1")
        lose(r, "leaf2")
        await until(lambda: not any(r.controller.targets[name].is_up for name in ("spine1", "leaf2")))
        await r.controller.replan()
        (job,) = r.controller.jobs.all()
        assert (job.round, plans[0].trees[0].name) == (None, "leaf1")


async def test_nothing_is_planned_for_jobs_that_a_change_does_not_touch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes down and comes back: trees are planned once for a job that loses some, again when it may move back,
    and never for one below a single leaf."""
    async with rig(tmp_path, steady=1000.0) as r:
        below = await r.together(2, job="below")
        over = await r.together(4, job="over")
        planned: list[int] = []
        plan = trees.plan

        def counted(graph: object, ranks: list[str], **options: object) -> list[trees.Tree]:
            planned.append(len(ranks))
            return plan(graph, ranks, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(trees, "plan", counted)
        lose(r, "spine1")
        await all_resume(r, over)
        await until(lambda: not r.controller.jobs.is_changing)
        for _ in range(3):
            await r.controller.replan()
        assert planned == [4, 4], "once more, after its round: no trees are better over what is steady"
        assert all(job.stands_still is False for job in r.controller.jobs.all())
        assert below[0].trees[0].name == "leaf1"


@given(st.lists(st.integers(0, 3), unique=True, max_size=3))
def test_trees_keep_their_number_and_weights(dead: list[int]) -> None:
    """Those whose root is left stay there; the others spread over what is left, evenly."""
    fabric = leafspine(2, 4, 4)
    hosts = [host.name for host in fabric.hosts]
    before = trees.plan(fabric.graph(), hosts)
    graph = fabric.graph()
    graph.remove_nodes_from(before[n].root for n in dead)
    after = trees.moved(before, trees.plan(graph, hosts))
    assert [tree.weight for tree in after] == [tree.weight for tree in before]
    for n, (old, new) in enumerate(zip(before, after, strict=True)):
        assert new.root in graph
        assert n in dead or new == old
    loads = [sum(tree.root == spine.name for tree in after) for spine in fabric.switches if spine.name in graph]
    spines = [load for load in loads if load]
    assert max(spines) - min(spines) <= 1


def test_streams_begin_at_the_psn_that_the_slowest_rank_lacks_across_the_wrap_around() -> None:
    """After the largest PSN comes 0: a rank that lacks 3 is ahead of one that lacks the largest but one."""
    (tree,) = trees.plan(leafspine(2, 1, 2).graph(), ["h1", "h2"])
    stream, _ = Allocator(["leaf1", "leaf2", "spine1"], Sizes(data=16, agreement=4)).admit([tree], [[0, 1]])
    late, early = (Resume("j", rank, 1, {0: psn}, 1.0) for rank, psn in enumerate((3, roce.PSN_MASK - 1)))
    assert [one.psn for one in rewound([stream], {0: late, 1: early})] == [roce.PSN_MASK - 1]
