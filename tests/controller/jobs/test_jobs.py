# SPDX-License-Identifier: Apache-2.0
"""The job service over a real gRPC socket, with switches in memory."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from netfold.controller import client
from netfold.controller.controller import Controller
from netfold.controller.serving import StartError
from netfold.controller.switch import tables
from netfold.controller.switch.codec import Count
from netfold.fabric.generate import leafspine
from netfold.wire.jobs import Done, Leave, RankReport
from netfold.wire.operator import Punts
from support.control.controller import BOUND, MemorySwitch, until
from support.control.jobs import Code, rig


async def test_the_last_leave_clears_the_switches(tmp_path: Path) -> None:
    """Entries are there while anybody is in the job, and gone with the last rank; then the name is free again."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        assert not r.base_only()
        await r.leave(plans[0])
        assert not r.base_only()
        await r.leave(plans[1])
        assert r.base_only()
        again = await r.together(2)
        assert again[0].epoch != plans[0].epoch
        assert again[0].trees


async def test_a_rank_that_stops_waiting_for_its_leave_leaves_nothing(tmp_path: Path) -> None:
    """The last Leave's deadline passes while a switch is slow: what the job held goes all the same."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        await r.leave(plans[0])
        gate = r.switches["leaf1"].gate = asyncio.Event()
        last = asyncio.create_task(r.leave(plans[1]))
        await until(lambda: r.controller.jobs.all()[0].state == "finished")
        last.cancel()
        await asyncio.wait([last])
        gate.set()
        await until(r.base_only)
        again = await r.together(2)
        assert [tree.name for tree in again[0].trees] == [tree.name for tree in plans[0].trees]


async def test_a_switch_that_refuses_an_entry_leaves_no_half_job(tmp_path: Path) -> None:
    """Where one switch fails, all are cleaned, slots return, and the ranks learn which switch and entry it was."""
    async with rig(tmp_path) as r:
        r.switches["spine2"].refuse = lambda u: u.verb == "insert" and "replica" in str(u)
        plans = await r.together(4)
        assert all(plan.trees == [] for plan in plans)
        assert "spine2" in plans[0].reason
        assert "replica" in plans[0].reason
        assert r.base_only()
        assert set(r.controller.allocator.used().values()) == {0}
        r.switches["spine2"].refuse = lambda u: False
        for plan in plans:
            await r.leave(plan)
        assert (await r.together(4))[0].trees


async def test_a_job_is_planned_around_a_dead_spine(tmp_path: Path) -> None:
    """While a spine is down, new jobs fold on the other; when it is back, on both."""
    async with rig(tmp_path) as r:
        r.switches["spine1"].unreachable = True
        r.switches["spine1"].break_session()
        target = r.controller.targets["spine1"]
        await until(lambda: not target.is_up)
        plans = await r.together(4)
        assert [tree.name for tree in plans[0].trees] == ["spine2"]
        r.switches["spine1"].unreachable = False
        await target.wait_up(BOUND)
        for plan in plans:
            await r.leave(plan)
        assert [tree.name for tree in (await r.together(4))[0].trees] == ["spine1", "spine2"]


async def test_a_switch_that_restarts_empty_gets_everything_again(tmp_path: Path) -> None:
    """Pipeline, routes and the running job's entries come back; a job that ended meanwhile does not."""
    async with rig(tmp_path) as r:
        kept = await r.together(2)
        ended = [await r.call("Join", r.join(0, 1, job="one"))]
        before = dict(r.switches["leaf1"].state)
        leaf = r.switches["leaf1"]
        leaf.has_pipeline, leaf.state = False, {}
        sessions = len(leaf.sessions)
        leaf.break_session("restarted")
        await until(lambda: len(leaf.sessions) > sessions and r.controller.targets["leaf1"].is_up)
        assert leaf.state == before
        await r.leave(ended[0])
        for plan in kept:
            await r.leave(plan)
        assert r.base_only()


async def test_a_controller_that_starts_anew_writes_only_the_difference(tmp_path: Path) -> None:
    """With the pipeline and its routes in place it writes nothing but, after the grace, the removal of what it does not
    know."""
    async with rig(tmp_path, grace=0.0) as r:
        await r.together(2)
        held = dict(r.switches["leaf1"].state)
    for switch in r.switches.values():
        switch.writes.clear()
    again = Controller(r.fabric, connect=lambda s: r.switches[s.name].connect(), start_timeout=BOUND)
    async with again:
        await until(lambda: bool(r.switches["leaf1"].writes))
        updates = [u for batch in r.switches["leaf1"].writes for u in batch]
        assert {u.verb for u in updates} == {"delete"}
        assert len(updates) == len(held) - len(r.switches["leaf1"].state)
        assert r.base_only()
        assert all(target.pushes == 0 for target in again.targets.values())


async def test_a_name_can_be_joined_anew_while_old_ranks_still_leave(tmp_path: Path) -> None:
    """A restarted script's first ranks may come before the last old rank has gone; the old entries go in time."""
    async with rig(tmp_path) as r:
        old = await r.together(2)
        await r.leave(old[0])
        early = asyncio.create_task(r.call("Join", r.join(0)))
        await until(lambda: r.waiting() == 1)
        await r.leave(old[1])
        await r.call("Join", r.join(1))
        new = await early
        assert new.epoch != old[0].epoch
        assert sum(job.state == "active" for job in r.controller.jobs.all()) == 1


async def test_a_crashed_job_ends_when_its_successor_is_complete(tmp_path: Path) -> None:
    """One rank left with a reason, the other died without a word: the next incarnation frees what they held."""
    async with rig(tmp_path) as r:
        old = await r.together(2)
        await r.leave(old[0], reason="CollectiveTimeout")
        state = next(job for job in r.controller.jobs.all())
        assert (state.state, "rank 0 left: CollectiveTimeout" in state.reason) == ("broken", True)
        before = r.controller.allocator.used()
        await r.together(2)
        assert r.controller.allocator.used() == before
        code, words = await r.refusal(Leave("j", 1, old[1].epoch, secret=old[1].rank_secret), "Leave")
        assert (code, "may have ended" in words) == (Code.FAILED_PRECONDITION, True)


async def test_a_job_that_is_started_anew_while_it_is_planned_holds_nothing(tmp_path: Path) -> None:
    """Its ranks go away before it has slots, and come again at once: it gets none after its end."""
    async with rig(tmp_path) as r:
        jobs, free = r.controller.jobs, threading.Event()
        busy = asyncio.create_task(jobs.recovery.thread.run(free.wait))
        try:
            joins = [asyncio.create_task(r.call("Join", r.join(rank, 4))) for rank in range(4)]
            await until(lambda: [job.state for job in jobs.all()] == ["planning"])
            (old,) = jobs.all()
            for join in joins:
                join.cancel()
            await until(lambda: old.is_empty)
            again = asyncio.create_task(r.together(4))
            await until(lambda: old.state == "finished")
        finally:
            free.set()
        await busy
        for plan in await again:
            await r.leave(plan)
        assert old.streams == []
        assert set(r.controller.allocator.used().values()) == {0}
        assert r.base_only()


async def test_dropping_a_job_frees_its_name_and_slots(tmp_path: Path) -> None:
    """A dead job's resources can be taken back, and a rank that waits in it is notified."""
    async with rig(tmp_path) as r:
        await r.together(2)
        assert await client.drop(r.fabric.jobs, "j")
        assert r.base_only()
        assert not await client.drop(r.fabric.jobs, "j")
        waiting = asyncio.create_task(r.refusal(r.join(0)))
        await until(lambda: r.waiting() == 1)
        assert await client.drop(r.fabric.jobs, "j")
        assert (await waiting)[0] is Code.ABORTED


async def test_a_rank_that_vanishes_while_switches_are_written_breaks_the_job(tmp_path: Path) -> None:
    """The others still get their plan, status says who is gone, and the name can be joined anew."""
    async with rig(tmp_path) as r:
        gate, (gone, stays) = await r.held_up(2)
        gone.cancel()
        await until(lambda: r.controller.jobs.all()[0].state == "broken")
        gate.set()
        plan = await stays
        assert plan.trees
        assert "rank 0: it went away" in r.controller.jobs.all()[0].reason
        again = await r.together(2)
        assert again[0].epoch != plan.epoch
        assert sum(job.state == "active" for job in r.controller.jobs.all()) == 1


async def test_dropping_a_job_while_switches_are_written_tells_its_ranks(tmp_path: Path) -> None:
    """Every rank is refused with the reason, and nothing stays on the switches."""
    async with rig(tmp_path) as r:
        gate = r.switches["leaf1"].gate = asyncio.Event()
        ranks = [asyncio.create_task(r.refusal(r.join(rank))) for rank in (0, 1)]
        await until(lambda: [job.state for job in r.controller.jobs.all()] == ["planning"])
        dropping = asyncio.create_task(client.drop(r.fabric.jobs, "j"))
        assert await dropping
        gate.set()
        for rank in ranks:
            code, words = await rank
            assert (code, "dropped by the operator" in words) == (Code.ABORTED, True)
        assert r.base_only()
        assert set(r.controller.allocator.used().values()) == {0}


async def test_a_write_that_was_cut_off_is_looked_after(tmp_path: Path) -> None:
    """A drop may cut off a write that the switch carries out all the same: it is read back, and cleaned."""
    async with rig(tmp_path) as r:
        leaf = r.switches["leaf1"]
        gate = leaf.gate = asyncio.Event()
        leaf.applies_before_gate = True
        ranks = [asyncio.create_task(r.refusal(r.join(rank))) for rank in (0, 1)]
        await until(lambda: not r.base_only())
        dropping = asyncio.create_task(client.drop(r.fabric.jobs, "j"))
        await until(lambda: r.controller.jobs.all()[0].reason != "")
        gate.set()
        assert await dropping
        await asyncio.gather(*ranks)
        assert r.base_only()


async def test_status_shows_switches_links_jobs_and_reports(tmp_path: Path) -> None:
    """Counters stand at the right direction of the right link; a job's trees and totals are there."""
    async with rig(tmp_path) as r:
        lost_in, lost_out = (tables.fault_counter(c, "lost") for c in (tables.FAULT_IN, tables.FAULT_OUT))
        leaf, spine = r.switches["leaf1"], r.switches["spine1"]
        leaf.counters = {tables.PORT_IN: {1: Count(10, 1000)},
                         tables.PORT_OUT: {1: Count(7, 700), 3: Count(5, 500)},
                         lost_in: {1: Count(2, 0)}, lost_out: {1: Count(3, 0)},
                         tables.CORRUPT: {0: Count(1, 60)}, tables.OVER_RATE: {3: Count(12, 0)},
                         tables.REFUSED: {1: Count(170_000, 0), 2: Count(7_000, 0)}}
        spine.counters = {tables.PORT_IN: {1: Count(5, 500)}, lost_in: {1: Count(4, 0)}}
        plans = await r.together(2)
        report = RankReport("j", 0, plans[0].epoch, 3, 4096, 12, 1, {"spine1": 2048}, plans[0].rank_secret)
        await r.call("Report", report, Done)
        status = await client.status(r.fabric.jobs)
        links = {(link.a, link.b): link for link in status.links}
        host, up = links["leaf1:1", "h1:0"], links["leaf1:3", "spine1:1"]
        assert (host.a_to_b.bytes, host.a_to_b.lost) == (700, 3)
        assert (host.b_to_a.bytes, host.b_to_a.lost) == (1000, 2)
        assert (up.a_to_b.bytes, up.a_to_b.lost) == (500, 4)
        by_name = {s.name: s for s in status.switches}
        assert all(s.up for s in status.switches)
        assert by_name["leaf1"].corrupt == 1
        assert by_name["leaf1"].punts == Punts(177_000, 12, 0)
        assert by_name["leaf1"].slots_used == 1152
        (job,) = status.jobs
        assert (job.state, job.world, job.joined) == ("active", 2, [0, 1])
        assert job.trees[0].switches == {"leaf1": ["h1", "h2"]}
        assert job.reports[0].retransmissions == 1


async def test_a_dead_switch_at_the_start_is_named(tmp_path: Path) -> None:
    """The controller does not start half a fabric: it says which switches did not come up."""
    fabric = leafspine(2, 1, 2, rundir=tmp_path)
    switches = {switch.name: MemorySwitch(switch.name) for switch in fabric.switches}
    switches["leaf2"].unreachable = True
    controller = Controller(fabric, connect=lambda s: switches[s.name].connect(), start_timeout=0.5)
    with pytest.raises(StartError, match=r"1 of 3 switches(.|\n)*leaf2: nobody answers"):
        await controller.start()
    await controller.stop()


async def test_two_controllers_do_not_share_an_address(tmp_path: Path) -> None:
    """The second says that the first is there, and the first goes on."""
    async with rig(tmp_path) as r:
        second = Controller(r.fabric, connect=lambda s: MemorySwitch(s.name).connect(), start_timeout=BOUND)
        with pytest.raises(StartError, match="is running at unix:"):
            await second.start()
        await second.stop()
        assert len(await r.together(2)) == 2
