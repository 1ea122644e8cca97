# SPDX-License-Identifier: Apache-2.0
"""Jobs go on when their controller dies: the next one keeps what it finds, and adopts what ranks have tickets for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from netfold.controller.jobs import ticket
from netfold.controller.serving import StartError
from netfold.controller.switch import tables
from netfold.controller.switch.entities import Entry
from netfold.wire import roce
from netfold.wire.jobs import Done, Halt, JobEndedEvent, Leave, RankLost
from support.control.controller import BOUND, until
from support.control.jobs import Code, Rig, restarted, rig, watching
from support.control.recovery import all_resume, connections, lose, restart, streams

pytestmark = pytest.mark.usefixtures("cleaned_at_once")


async def test_a_job_goes_on_under_a_new_controller(tmp_path: Path) -> None:
    """Nothing is written to any switch while its ranks register; it then holds its slots, is seen to die, and ends as
    any other."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        before, used = r.held(), r.controller.allocator.used()
    async with restarted(r) as r:
        assert r.held() == before
        assert r.controller.allocator.used() == used
        watchers = [await r.watch(plan) for plan in plans]
        (job,) = r.controller.jobs.all()
        assert (job.name, job.state, job.world, job.epoch) == ("j", "active", 4, plans[0].epoch)
        assert (job.awaited, job.round) == (set(), None)
        assert r.held() == before
        assert r.controller.allocator.used() == used
        watchers[2].die()
        event = await watchers[0].next()
        assert isinstance(event, RankLost)
        assert event.rank == 2
        for plan in plans:
            if plan.rank != 2:
                await r.leave(plan)
        await until(r.base_only)
        assert set(r.controller.allocator.used().values()) == {0}


async def test_ranks_that_register_at_once_have_the_switches_compared_once_beside_the_loop(tmp_path: Path) -> None:
    """All show the same ticket; whoever comes while it is looked into waits for the same answer."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
    async with restarted(r) as r:
        adoption, loop_thread = r.controller.adoption, threading.get_ident()
        borne_out, compared = adoption.borne_out, adoption.compared
        arrived, threads, all_there = list[int](), list[int](), threading.Event()

        async def noted(*shown: Any) -> Any:
            arrived.append(1)
            if len(arrived) == 4:
                all_there.set()
            return await borne_out(*shown)

        def held_up(*shown: Any) -> Any:
            threads.append(threading.get_ident())
            assert all_there.wait(BOUND)
            return compared(*shown)

        adoption.borne_out, adoption.compared = noted, held_up  # type: ignore[method-assign]
        watchers = await asyncio.gather(*(r.watch(plan) for plan in plans))
        (job,) = r.controller.jobs.all()
        assert (job.name, job.awaited, job.round) == ("j", set(), None)
        assert len(threads) == 1
        assert threads[0] != loop_thread
        assert len(watchers) == 4


async def test_numbers_of_unknown_jobs_are_not_handed_out(tmp_path: Path) -> None:
    """A job that joins before the ranks of the old one have registered gets other slots, groups and connections."""
    async with rig(tmp_path) as r:
        old = await r.together(4)
        mine = {name: connections(r, name) for name in r.switches}
    async with restarted(r) as r:
        new = await r.together(4, job="other")
        assert {s.qp for plan in new for s in streams(plan)}.isdisjoint(
            {s.qp for plan in old for s in streams(plan)})
        for name, connections_before in mine.items():
            assert connections_before < connections(r, name)
        for plan in old:
            await r.watch(plan)
        assert sorted(job.name for job in r.controller.jobs.registry.active()) == ["j", "other"]


async def test_a_switch_that_died_with_the_controller_does_not_keep_the_next_one_from_jobs(tmp_path: Path) -> None:
    """The next controller serves the jobs that it finds on the other switches, and plans around the dead one."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
    r.switches["spine1"].unreachable = True
    async with asyncio.timeout(20), restarted(r) as r:
        assert not r.controller.targets["spine1"].is_up
        watchers = [await r.watch(plan) for plan in plans]
        for watcher in watchers:
            assert isinstance(await watcher.next(), Halt)
        after = await all_resume(r, plans)
        assert {tree.name for plan in after for tree in plan.trees} == {"spine2"}


async def test_a_switch_that_is_reached_within_the_grace_frees_no_numbers_of_an_adopted_job(tmp_path: Path) -> None:
    """The job's entries there were nobody's when the grace ended; those on the other switches are still its own."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
    r.switches["spine1"].unreachable = True
    async with asyncio.timeout(20), restarted(r) as r:
        for plan in plans:
            await r.watch(plan)
        r.switches["spine1"].unreachable = False
        await until(lambda: r.controller.targets["spine1"].is_up)
        used = r.controller.allocator.used()
        await r.controller.jobs.end_grace()
        assert r.controller.allocator.used() == used
        for plan in await all_resume(r, plans):
            await r.leave(plan)
        await until(r.base_only)
        assert set(r.controller.allocator.used().values()) == {0}


async def test_a_switch_that_is_reached_within_the_grace_keeps_no_numbers_of_moved_jobs(tmp_path: Path) -> None:
    """Entries of the job's old trees on the switch are removed when the grace ends, and its slots are free."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
    r.switches["spine1"].unreachable = True
    async with asyncio.timeout(20), restarted(r) as r:
        for plan in plans:
            await r.watch(plan)
        after = await all_resume(r, plans)
        r.switches["spine1"].unreachable = False
        await until(lambda: r.controller.targets["spine1"].is_up)
        await r.controller.jobs.end_grace()
        assert r.controller.allocator.used()["spine1"] == 0
        for plan in after:
            await r.leave(plan)
        await until(r.base_only)
        assert set(r.controller.allocator.used().values()) == {0}


async def test_a_switch_that_restarts_before_the_ranks_register_has_lost_their_slots(tmp_path: Path) -> None:
    """The controller has read it and written its entries again, so only the second session says so: the ranks halt, and
    all trees are new."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
    async with restarted(r) as r:
        spine = r.controller.targets["spine1"]
        lose(r, "spine1")
        await until(lambda: not spine.is_up)
        restart(r, "spine1")
        await until(lambda: spine.is_up)
        watchers = [await r.watch(plan) for plan in plans]
        await r.controller.replan()
        (job,) = r.controller.jobs.all()
        assert job.round is not None
        for watcher in watchers:
            assert isinstance(await watcher.next(), Halt)
        after = await all_resume(r, plans)
        before = {stream.qp for plan in plans for stream in streams(plan)}
        assert before.isdisjoint(stream.qp for plan in after for stream in streams(plan))


async def test_without_jobs_a_controller_needs_all_its_switches(tmp_path: Path) -> None:
    """A switch that does not answer is then more likely a wrong address than a death."""
    async with rig(tmp_path) as r:
        pass
    r.switches["spine1"].unreachable = True
    with pytest.raises(StartError, match="spine1: nobody answers"):
        async with restarted(r, start_timeout=0.5):
            pass


async def test_what_nobody_claims_goes_after_the_grace(tmp_path: Path) -> None:
    """Entries, slots and numbers; and ranks of an adopted job that have not registered are lost to the others."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        unknown = await r.together(4, job="unknown")
    async with restarted(r) as r:
        watcher = await r.watch(plans[0])
        for plan in plans[2:]:
            await r.watch(plan)
        await r.controller.jobs.end_grace()
        event = await watcher.next()
        assert isinstance(event, RankLost)
        assert (event.rank, event.host) == (1, "h2")
        assert "has not registered with the new controller within 30 s" in event.why
        for name in r.switches:
            gone = {stream.qp >> roce.OPERATION_BITS for plan in unknown for stream in streams(plan)}
            assert connections(r, name).isdisjoint(gone)
        error = await r.watch_refusal(watching(unknown[0]))
        assert error.code() is Code.FAILED_PRECONDITION
        assert "30 s or more after the controller's start" in (error.details() or "")
        for plan in (plans[0], *plans[2:]):
            await r.leave(plan)
        await until(r.base_only)
        assert set(r.controller.allocator.used().values()) == {0}


async def test_a_switch_that_is_first_reached_after_the_grace_keeps_nothing_of_unknown_jobs(tmp_path: Path) -> None:
    """It is up only without their entries, and their slots are free."""
    async with rig(tmp_path) as r:
        await r.together(4)
    r.switches["spine1"].unreachable = True
    async with restarted(r) as r:
        await r.controller.jobs.end_grace()
        r.switches["spine1"].unreachable = False
        await until(lambda: r.controller.targets["spine1"].is_up)
        assert r.base_only()
        assert set(r.controller.allocator.used().values()) == {0}


async def test_the_ticket_of_a_job_that_has_ended_adopts_nothing(tmp_path: Path) -> None:
    """The switches say that it has."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        for plan in plans:
            await r.leave(plan)
    async with restarted(r) as r:
        error = await r.watch_refusal(watching(plans[0]))
        assert error.code() is Code.UNAVAILABLE
        assert "does not hold its entries" in (error.details() or "")
        assert r.controller.jobs.all() == []
        assert set(r.controller.allocator.used().values()) == {0}


async def test_no_number_of_ranks_brings_back_a_job_that_has_ended(tmp_path: Path) -> None:
    """All that hold tickets show the same one, as after a controller that died with a later plan; but no switch holds
    anything of it."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        for plan in plans:
            await r.leave(plan)
    async with restarted(r) as r:
        for plan in [*plans, plans[0]]:
            assert plan.ticket.value
            assert (await r.watch_refusal(watching(plan))).code() is Code.UNAVAILABLE
        assert r.controller.jobs.all() == []
        assert set(r.controller.allocator.used().values()) == {0}


async def test_entries_that_were_changed_meanwhile_are_not_adopted(tmp_path: Path) -> None:
    """A wrong sum would be worse than none: one parameter of one entry is another."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
    leaf = r.switches["leaf1"].state
    key, entry = next((key, entry) for key, entry in leaf.items()
                      if isinstance(entry, Entry) and entry.action == tables.REWRITE)
    leaf[key] = msgspec.structs.replace(entry, params=(*entry.params[:-1], (entry.params[-1][0], 99)))
    async with restarted(r) as r:
        error = await r.watch_refusal(watching(plans[0]))
        assert "leaf1 does not hold its entries" in (error.details() or "")


async def test_only_the_rank_itself_can_register_it(tmp_path: Path) -> None:
    """Another rank's secret, another job's ticket, and a ticket with another seal are refused."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        other = await r.together(2, job="other")
    async with restarted(r) as r:
        mine = watching(plans[0])
        for wrong in (
            msgspec.structs.replace(mine, secret=plans[1].rank_secret),
            msgspec.structs.replace(mine, ticket=other[0].ticket),
            msgspec.structs.replace(mine, ticket=ticket.seal(b"x" * 32, ticket.unseal(
                r.controller.jobs.registry.key, plans[0].ticket))),
            msgspec.structs.replace(mine, rank=9),
        ):
            assert (await r.watch_refusal(wrong)).code() is Code.PERMISSION_DENIED
        assert r.controller.jobs.all() == []
        await r.watch(plans[0])
        assert (await r.watch_refusal(mine)).code() is Code.ALREADY_EXISTS


async def test_ranks_that_leave_wait_for_those_that_have_yet_to_register(tmp_path: Path) -> None:
    """A rank that comes late may lack results: it is asked first."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
    async with restarted(r) as r:
        await r.watch(plans[0])
        (job,) = r.controller.jobs.all()
        request = Leave(plans[0].job, 0, plans[0].epoch, "", plans[0].rank_secret)
        leaving = asyncio.create_task(r.call("Leave", request, Done))
        await until(lambda: job.leaving == {0})
        assert job.left == set()
        await r.watch(plans[1])
        await leaving
        assert (job.left, job.left_early) == ({0}, False)


async def test_a_controller_that_stands_back_halts_nobody(tmp_path: Path) -> None:
    """A later controller has taken a switch from it: that the session is gone says nothing of the switch."""
    async with rig(tmp_path) as r:
        await r.together(4)
        r.controller.jobs.stand_back()
        lose(r, "spine1")
        await until(lambda: not r.controller.targets["spine1"].is_up)
        await r.controller.replan()
        (job,) = r.controller.jobs.all()
        assert job.round is None


async def test_a_job_without_trees_is_adopted_as_well(tmp_path: Path) -> None:
    """It holds nothing on switches; its ranks' deaths are seen all the same."""
    async with rig(tmp_path) as r:
        plans = await r.together(2, fold=False)
    async with restarted(r) as r:
        watchers = [await r.watch(plan) for plan in plans]
        (job,) = r.controller.jobs.all()
        assert "asked for no folding" in job.reason
        watchers[0].die()
        assert isinstance(await watchers[1].next(), RankLost)


async def test_a_name_that_is_being_joined_belongs_to_the_job_that_runs(tmp_path: Path) -> None:
    """Who joined under it in the moment before the running job's ranks registered is told."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
    async with restarted(r) as r:
        joining = asyncio.create_task(r.refusal(r.join(0, 2)))
        await until(lambda: r.waiting() == 1)
        await r.watch(plans[0])
        code, words = await joining
        assert (code, "runs already" in words) == (Code.ABORTED, True)
        assert [job.epoch for job in r.controller.jobs.all()] == [plans[0].epoch]


async def test_an_operator_can_end_an_adopted_job(tmp_path: Path) -> None:
    """It goes from the switches at once."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
    async with restarted(r) as r:
        watcher = await r.watch(plans[0])
        assert await r.controller.jobs.drop("j")
        assert isinstance(await watcher.next(), JobEndedEvent)
        await until(r.base_only)


async def test_a_ticket_is_held_by_some_ranks_alone(tmp_path: Path) -> None:
    """By one on each machine, of eight machines at most, since it grows with the job; all hold the same one."""
    async with rig(tmp_path) as r:
        plans = await r.together(8)
        assert [bool(plan.ticket.value) for plan in plans] == [True] * 4 + [False] * 4
        assert [plan.waits for plan in plans] == [False] * 4 + [True] * 4
        assert all(plan.registers for plan in plans)
        assert len({plan.ticket for plan in plans[:4]}) == 1
        made = ticket.unseal(r.controller.jobs.registry.key, plans[0].ticket)
        assert (made.job, made.round, made.secret) == ("j", 0, plans[0].secret)
        (job,) = r.controller.jobs.all()
        job.hosts = [f"h{rank // 2}" for rank in range(1024)]
        assert sorted(ticket.holders(job)) == [0, 128, 256, 384, 512, 640, 768, 896]


def waits_for_tickets(r: Rig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ranks that wait from now on until another one shows a ticket of their job."""
    waiting: list[str] = []
    wait_until = r.controller.adoption.wait_until

    async def noted(known: Callable[[], bool]) -> None:
        waiting.append("a rank")
        await wait_until(known)

    monkeypatch.setattr(r.controller.adoption, "wait_until", noted)
    return waiting


async def test_ranks_without_tickets_register_once_one_with_a_ticket_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for it; then the job goes on, and nothing is written."""
    async with rig(tmp_path) as r:
        plans = await r.together(8)
    before = r.held()
    async with restarted(r) as r:
        begun = waits_for_tickets(r, monkeypatch)
        waiting = [asyncio.create_task(r.watch(plan)) for plan in plans[4:]]
        await until(lambda: len(begun) == 4)
        assert not r.controller.jobs.all()
        await r.watch(plans[2])
        watchers = await asyncio.gather(*waiting, *(r.watch(plan) for plan in (plans[0], plans[1], plans[3])))
        (job,) = r.controller.jobs.all()
        assert (job.awaited, job.round, len(watchers)) == (set(), None, 7)
        assert r.held() == before
        for plan in plans:
            await r.leave(plan)
        await until(r.base_only)


async def test_ranks_whose_tickets_are_all_gone_are_refused_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the grace is over nobody can bring the job; whoever comes later is refused at once, and a liar before."""
    async with rig(tmp_path) as r:
        plans = await r.together(8)
    async with restarted(r) as r:
        liar = msgspec.structs.replace(watching(plans[7]), secret=plans[6].rank_secret)
        assert (await r.watch_refusal(liar)).code() is Code.PERMISSION_DENIED
        begun = waits_for_tickets(r, monkeypatch)
        waits = asyncio.create_task(r.watch_refusal(watching(plans[7])))
        await until(lambda: len(begun) == 1)
        await r.controller.jobs.end_grace()
        for error in (await waits, await r.watch_refusal(watching(plans[7]))):
            assert error.code() is Code.FAILED_PRECONDITION
            assert "there is no such rank" in (error.details() or "")
        await until(r.base_only)
