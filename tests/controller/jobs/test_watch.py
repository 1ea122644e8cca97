# SPDX-License-Identifier: Apache-2.0
"""Ranks that watch: a death is noticed, told, and cleaned up after."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import msgspec
import pytest

from netfold.controller import client
from netfold.wire.jobs import SERVICE, Done, JobEndedEvent, Leave, RankLeft, RankLost, Watch, Watching
from support.control.controller import until
from support.control.jobs import Code, rig, watching


async def test_a_death_is_told_to_all_others(tmp_path: Path) -> None:
    """They learn rank, address and host; status has the reason; who watches later learns it as well."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watchers = [await r.watch(plan) for plan in plans[:3]]
        watchers[1].die()
        event = await watchers[0].next()
        assert isinstance(event, RankLost)
        assert (event.rank, event.address, event.host) == (1, r.fabric.hosts[1].address, "h2")
        assert "broke before it left" in event.why
        assert await watchers[2].next() == event
        late = await r.watch(plans[3])
        assert await late.next() == event
        (job,) = r.controller.jobs.all()
        assert (job.state, "rank 1: its connection" in job.reason) == ("broken", True)
        assert (await client.status(r.fabric.jobs)).jobs[0].lost == [1]
        assert not r.base_only()


async def test_a_death_while_a_rank_is_sent_its_first_event_is_told_once(tmp_path: Path) -> None:
    """What happens after the rank has registered comes by its queue, and not from the job's state as well."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watchers = [await r.watch(plan) for plan in plans[1:]]
        events = r.controller.jobs.watch(watching(plans[0]))
        assert await anext(events) == Watching()
        for rank in (1, 2):
            watchers[rank - 1].die()
            event = await watchers[2].next()
            assert isinstance(event, RankLost)
            assert event.rank == rank
            assert await anext(events) == event
        await events.aclose()


async def test_the_slots_of_a_job_whose_ranks_are_all_gone_are_freed(tmp_path: Path) -> None:
    """Some died, some left: with the last one the entries go, without `netfold drop`."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watchers = [await r.watch(plan) for plan in plans]
        await r.leave(plans[0])
        for watcher in watchers[1:]:
            assert not r.base_only()
            watcher.die()
        await until(lambda: set(r.controller.allocator.used().values()) == {0})
        assert r.base_only()
        assert (await r.together(4))[0].trees


async def test_ranks_that_are_inside_an_operation_hear_of_one_that_leaves(tmp_path: Path) -> None:
    """They cannot settle, since it never called theirs: without the word they would wait for their time-out."""
    async with rig(tmp_path) as r:
        plans = await r.together(3)
        watchers = [await r.watch(plan) for plan in plans]
        for watcher in watchers[1:]:
            watcher.settles = False
        plan, last = plans[0], "after operation 3: its process ended by ValueError"
        await r.call("Leave", Leave("j", 0, plan.epoch, secret=plan.rank_secret, last=last), Done)
        for watcher in watchers[1:]:
            assert await watcher.next() == RankLeft(0, r.fabric.hosts[0].address, "h1", last)


async def test_a_rank_that_leaves_is_not_taken_for_dead(tmp_path: Path) -> None:
    """Its Watch ends well; the others are told that it has left, and after what, but of no loss, however it ends
    afterwards; who watches later learns it as well."""
    async with rig(tmp_path) as r:
        plans = await r.together(3)
        first, second = [await r.watch(plan) for plan in plans[:2]]
        plan = plans[0]
        await r.call("Leave", Leave("j", 0, plan.epoch, secret=plan.rank_secret, last="after operation 3"), Done)
        assert await first.next() is None
        told = RankLeft(0, r.fabric.hosts[0].address, "h1", "after operation 3")
        assert await second.next() == told
        third = await r.watch(plans[2])
        assert await third.next() == told
        await r.leave(plans[1])
        assert await second.next() is None
        await r.leave(plans[2])
        (job,) = r.controller.jobs.all()
        assert (job.state, job.lost, job.reason) == ("finished", {}, "")


async def test_a_rank_that_gives_up_is_not_blamed_for_it(tmp_path: Path) -> None:
    """The failure is another rank's fault: the others find out whose, and hear nothing of the one that was first."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        watcher = await r.watch(plans[1])
        plan = plans[0]
        leave = Leave("j", 0, plan.epoch, "CollectiveTimeout", plan.rank_secret, "after operation 3")
        await r.call("Leave", leave, Done)
        assert not r.controller.jobs.all()[0].said
        await r.leave(plans[1])
        assert await watcher.next() is None


async def test_a_rank_that_vanishes_before_it_has_its_plan_is_told_to_the_others(tmp_path: Path) -> None:
    """They get their plan, and then the news; if all vanish, nothing of the job stays."""
    async with rig(tmp_path) as r:
        gate, (gone, stays) = await r.held_up(2)
        gone.cancel()
        await until(lambda: r.controller.jobs.all()[0].state == "broken")
        gate.set()
        watcher = await r.watch(await stays)
        event = await watcher.next()
        assert isinstance(event, RankLost)
        assert event.rank == 0
        watcher.die()
        await until(r.base_only)

        gate = r.switches["leaf1"].gate = asyncio.Event()
        both = [asyncio.create_task(r.call("Join", r.join(rank))) for rank in (0, 1)]
        await until(lambda: r.controller.jobs.all()[0].state == "planning")
        for task in both:
            task.cancel()
        await until(lambda: len(r.controller.jobs.all()[0].lost) == 2)
        gate.set()
        await until(lambda: set(r.controller.allocator.used().values()) == {0})
        assert r.base_only()


async def test_a_dropped_job_tells_its_ranks(tmp_path: Path) -> None:
    """A watching rank learns that the switches have no entries of it any more."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        watcher = await r.watch(plans[0])
        assert await client.drop(r.fabric.jobs, "j")
        assert await watcher.next() == JobEndedEvent("dropped by the operator")
        assert await watcher.next() is None


async def test_a_controller_that_stops_ends_watches_and_keeps_the_switches(tmp_path: Path) -> None:
    """Its own end is no rank's death: what the switches hold stays."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        watcher = await r.watch(plans[0])
        held = dict(r.switches["leaf1"].state)
        await r.controller.stop()
        assert await watcher.next() is None
        assert r.switches["leaf1"].state == held
        (job,) = r.controller.jobs.all()
        assert job.lost == {}


async def test_watching_what_is_not_there_is_refused(tmp_path: Path) -> None:
    """Unknown ranks, a second Watch, one after leaving: each with its words."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)

        async def refused(request: Watch) -> tuple[grpc.StatusCode, str]:
            call = r.channel.unary_stream(f"/{SERVICE}/Watch", bytes, bytes)(msgspec.json.encode(request))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            return caught.value.code(), caught.value.details() or ""

        assert (await refused(Watch("j", 5, plans[0].epoch)))[0] is Code.PERMISSION_DENIED
        await r.watch(plans[0])
        code, words = await refused(Watch("j", 0, plans[0].epoch, plans[0].rank_secret))
        assert (code, "watches already" in words) == (Code.ALREADY_EXISTS, True)
        await r.leave(plans[1])
        code, words = await refused(Watch("j", 1, plans[0].epoch, plans[1].rank_secret))
        assert (code, "has left" in words) == (Code.FAILED_PRECONDITION, True)


RANK = """
import os, sys
import grpc, msgspec
from netfold.wire.jobs import SERVICE, Event, Watch
from netfold.wire.plan import Secret
channel = grpc.insecure_channel(sys.argv[1])
stream = channel.unary_stream(f"/{SERVICE}/Watch", msgspec.json.encode, msgspec.json.Decoder(Event).decode)
for event in stream(Watch("j", 1, int(sys.argv[2]), Secret(os.environ["RANK_SECRET"]))):
    print(type(event).__name__, flush=True)
"""


async def test_a_killed_process_is_noticed(tmp_path: Path) -> None:
    """SIGKILL closes its sockets, and that is enough."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        watcher = await r.watch(plans[0])
        rank = subprocess.Popen([sys.executable, "-c", RANK, r.fabric.jobs, str(plans[1].epoch)],
                                env={**os.environ, "RANK_SECRET": plans[1].rank_secret.value},
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        try:
            assert rank.stdout is not None
            assert await asyncio.to_thread(rank.stdout.readline) == "Watching\n"
            os.kill(rank.pid, signal.SIGKILL)
            event = await watcher.next()
            assert isinstance(event, RankLost)
            assert event.rank == 1
        finally:
            rank.kill()
            rank.wait(30)
            if rank.stdout is not None:
                rank.stdout.close()


async def test_a_rank_that_cannot_fold_keeps_the_job_off_the_switches(tmp_path: Path) -> None:
    """One fold=False is enough: no trees, no slots, and all ranks learn whose wish it was."""
    async with rig(tmp_path) as r:
        wishes = [r.join(rank, 4, fold=rank != 2) for rank in range(4)]
        plans = await asyncio.gather(*(r.call("Join", wish) for wish in wishes))
        assert {(len(plan.trees), plan.reason) for plan in plans} == {(0, "rank 2 of 4 asked for no folding")}
        all_of_them = await r.together(2, job="k", fold=False)
        assert all_of_them[0].reason == "all 2 ranks asked for no folding"
        assert r.base_only()
        assert set(r.controller.allocator.used().values()) == {0}
