# SPDX-License-Identifier: Apache-2.0
"""The cost of a request for paths: it is bounded, and none of it is in the controller's loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from netfold.controller import client
from netfold.controller.jobs.job import Job
from netfold.controller.paths import planning
from netfold.controller.paths.planning import MAX_JOINT_FLOWS, PathPlanner, View
from netfold.controller.paths.steering import Steering
from netfold.fabric.generate import leafspine
from netfold.fabric.routing import collectives
from netfold.fabric.routing import paths as planners
from netfold.rpc.rpc import Refusal
from netfold.wire.paths import SERVICE, Follow, PathFlow, Paths
from netfold.wire.plan import Plan, Secret
from support.control.controller import BOUND, run, until
from support.control.jobs import Code, Rig, rig

WORLD = 1023


class Plans:
    """Counts the flows that planners are given, and the threads on which they run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flows: list[int] = []
        self.threads: set[str] = set()
        self._real = planners.plan
        monkeypatch.setattr(planners, "plan", self._plan)

    def _plan(self, clos: Any, flows: Sequence[planners.Flow], **more: Any) -> planners.PathPlan:
        self.flows.append(len(flows))
        self.threads.add(threading.current_thread().name)
        return self._real(clos, flows, **more)


def many(folder: Path, world: int = WORLD) -> tuple[PathPlanner, View, Job]:
    """A planner, what it plans on, and a job of so many ranks on the 4 hosts of a fabric."""
    steering = Steering(leafspine(2, 2, 4, rundir=folder))
    job = Job("j", world, epoch=1, hosts=[steering.fabric.hosts[rank % 4].name for rank in range(world)])
    return PathPlanner(steering), View(steering, 0, *steering.usable_parts(steering.fabric.graph())), job


def test_flows_leave_room_for_the_trees_of_other_jobs(tmp_path: Path) -> None:
    """Where another job's trees take as much of one spine's links as these carry, its path gets half of the other's."""
    fabric = leafspine(2, 2, 4, rate="100mbit", rundir=tmp_path)
    steering = Steering(fabric)
    job = Job("j", 4, epoch=1, hosts=[host.name for host in fabric.hosts])
    planner, view = PathPlanner(steering), View(steering, 0, *steering.usable_parts(fabric.graph()))
    loads = {number: 100e6 for number, link in enumerate(fabric.links) if link.b.startswith("spine1")}

    async def shares(carried: dict[int, float]) -> list[int]:
        request = Follow("j", 0, 1, steps=[[PathFlow(0, 2, 900)]], scope="host")
        with planner.stream(request, job):
            return [piece.size for piece in (await planner.plan(view, request, job, carried)).pieces]

    assert len(loads) == 2
    assert run(shares({})) == [450, 450]
    assert run(shares(loads)) == [300, 600]
    planner.close()


def test_where_flows_cannot_be_split_equally_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator who chose the equal split learns which job's flows are cut otherwise, however many ranks ask."""
    fabric = leafspine(2, 2, 4, rate="100mbit", rundir=tmp_path)
    steering = Steering(fabric)
    steering.planner = "equal_split"
    job = Job("j", 4, epoch=1, hosts=[host.name for host in fabric.hosts])
    planner, view = PathPlanner(steering), View(steering, 0, *steering.usable_parts(fabric.graph()))
    loads = {number: 100e6 for number, link in enumerate(fabric.links) if link.b.startswith("spine1")}

    async def ask(carried: dict[int, float], *ranks: int) -> None:
        with planner.stream(Follow("j", 3, 1), job):  # the job goes on meanwhile
            for rank in ranks:
                request = Follow("j", rank, 1, collective="all_to_all")
                with planner.stream(request, job):
                    await planner.plan(view, request, job, carried)

    run(ask({}, 0, 1))
    assert not caplog.messages
    run(ask(loads, 0, 1, 2))
    (said,) = caplog.messages
    assert said.startswith("job 'j': planner 'equal_split': flows or paths of leaf1 -> leaf2 are not equal")
    planner.close()


def follow(r: Rig, plan: Plan, **changes: Any) -> Any:
    """The stream of paths of one rank."""
    request = Follow(plan.job, plan.rank, plan.epoch, **{"collective": "ring", "secret": plan.rank_secret, **changes})
    return r.channel.unary_stream(f"/{SERVICE}/Follow", bytes, bytes)(msgspec.json.encode(request), timeout=BOUND)


def test_a_request_of_121_bytes_costs_the_flows_of_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All-to-all of 1,023 ranks has a million flows: only the 1,022 of the rank that asks are made and planned, on the
    planning thread, and the answer is right."""
    plans = Plans(monkeypatch)
    monkeypatch.setitem(collectives.UNROOTED, "ring", lambda n: pytest.fail("not asked for"))

    async def story() -> Paths:
        planner, view, job = many(tmp_path)
        request = Follow("j", 5, 1, collective="all_to_all", scope="auto")
        assert len(msgspec.json.encode(msgspec.structs.replace(request, secret=Secret()))) < 250
        with planner.stream(request, job):
            found = await planner.plan(view, request, job)
        planner.close()
        return found

    found = run(story())
    assert sum(plans.flows) == WORLD - 1
    assert all(name.startswith("paths") for name in plans.threads)
    assert {piece.peer for piece in found.pieces} == {rank for rank in range(WORLD) if rank % 4 in (2, 3)}


async def test_the_loop_serves_others_while_paths_are_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning hangs until it is let go; meanwhile a status is answered, another job joins, and a rank leaves."""
    begun, go_on, real = threading.Event(), threading.Event(), planners.plan

    def slow(*args: Any, **more: Any) -> planners.PathPlan:
        begun.set()
        assert go_on.wait(BOUND)
        return real(*args, **more)

    async with rig(tmp_path) as r:
        plans = await r.together(4)
        monkeypatch.setattr(planners, "plan", slow)
        stream = follow(r, plans[0])
        first = asyncio.ensure_future(stream.read())
        try:
            assert await asyncio.to_thread(begun.wait, BOUND)
            assert len((await client.status(r.fabric.jobs)).jobs) == 1
            await r.together(2, job="other")
            await r.leave(plans[1], "because")
            assert not first.done()
        finally:
            go_on.set()
        assert msgspec.json.decode(await first, type=Paths).ports


async def test_jobs_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose ranks all ask at once delays another one by one plan, not by all of its own."""
    order: list[str] = []
    real = PathPlanner.paths

    def noted(self: PathPlanner, view: View, request: Follow, *rest: Any) -> Paths:
        order.append(request.job)
        return real(self, view, request, *rest)

    monkeypatch.setattr(PathPlanner, "paths", noted)
    async with rig(tmp_path) as r:
        greedy, modest = await r.together(4, job="greedy"), await r.together(2, job="modest")
        planner, view = r.controller.paths.planner, r.controller.paths.current_view()
        jobs = {job.name: job for job in r.controller.jobs.all()}

        async def plan(one: Plan) -> None:
            request = Follow(one.job, one.rank, one.epoch, collective="ring")
            with planner.stream(request, jobs[one.job]):
                await planner.plan(view, request, jobs[one.job])

        await asyncio.gather(*(plan(greedy[n % 4]) for n in range(40)), plan(modest[0]))
    assert order.index("modest") <= 1
    assert order.count("greedy") == 40


async def test_streams_that_wait_for_their_turn_end_with_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is being planned is answered, the others are refused as by a controller that has gone, and nothing is logged
    as an error."""
    begun, go_on, real = threading.Event(), threading.Event(), planners.plan

    def slow(*args: Any, **more: Any) -> planners.PathPlan:
        begun.set()
        assert go_on.wait(BOUND)
        return real(*args, **more)

    async with rig(tmp_path) as r:
        plans, others = await r.together(4), await r.together(4, job="other")
        monkeypatch.setattr(planners, "plan", slow)
        planner = r.controller.paths.planner
        first = follow(r, plans[0])
        reads = [asyncio.ensure_future(first.read())]
        try:
            assert await asyncio.to_thread(begun.wait, BOUND)
            reads += [asyncio.ensure_future(follow(r, plan).read()) for plan in [*plans[1:], *others]]
            await until(lambda: sum(job.streams.total() for job in planner.followers.values()) == len(reads))
            r.controller.paths.close()
        finally:
            go_on.set()
        assert msgspec.json.decode(await reads[0], type=Paths).ports
        assert await first.read() is grpc.aio.EOF  # type: ignore[attr-defined]
        for read in reads[1:]:
            with pytest.raises(grpc.aio.AioRpcError, match="the controller is ending") as caught:
                await read
            assert caught.value.code() is Code.UNAVAILABLE
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(("changes", "says"), [
    ({"collective": "all_to_all", "scope": "leaf"}, "has 1045506 flows: expected at most 4096"),
    ({"collective": "x" * 65}, "a name of at most 64 characters"),
    ({"collective": "ring", "ranks": [0] * 1024}, "at most 1023 ranks, got 4 and 1024"),
    ({"collective": "", "steps": [[PathFlow(0, 1, 1 << 63)]]}, "less than 2^63"),
    ({"collective": "", "steps": [[PathFlow(0, 1, 10**30)]]}, "less than 2^63"),
])
async def test_requests_that_would_cost_too_much_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                             changes: dict[str, Any], says: str) -> None:
    """Before anything is planned, with the limit, what was asked, and what to ask for."""
    plans = Plans(monkeypatch)
    planner, view, job = many(tmp_path)
    request = msgspec.structs.replace(Follow("j", 0, 1), **changes)
    with planner.stream(request, job), pytest.raises(Refusal) as caught:
        await planner.plan(view, request, job)
    planner.close()
    assert says in str(caught.value)
    assert not plans.flows


async def test_streams_and_flows_that_a_job_holds_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank's streams by number, a job's flows in all; what is closed counts no more."""
    monkeypatch.setattr(planning, "MAX_FOLLOWS", 3)
    monkeypatch.setattr(planning, "MAX_HELD_FLOWS", 5)

    async def refused(r: Rig, plan: Plan, **changes: Any) -> str:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await follow(r, plan, **changes).__aiter__().__anext__()
        assert caught.value.code() is Code.RESOURCE_EXHAUSTED
        return caught.value.details() or ""

    async with rig(tmp_path) as r:
        plans = await r.together(4)
        streams = [follow(r, plans[0]) for _ in range(3)]
        for stream in streams:
            await stream.read()
        assert "at most 3 streams of paths" in await refused(r, plans[0])
        await follow(r, plans[1]).read()
        streams.pop().cancel()
        followers = r.controller.paths.planner.followers[plans[0].epoch]
        async with asyncio.timeout(BOUND):
            while followers.streams[0] > 2:
                await asyncio.sleep(0.001)
        steps = [[PathFlow(0, rank, 1) for rank in (1, 2, 3)]]
        own = {"collective": "", "steps": steps}
        mine = follow(r, plans[0], **own)
        await mine.read()
        theirs = {"collective": "", "steps": [[PathFlow(1, rank, 1) for rank in (0, 2, 3)]]}
        assert "got 3 and 6; name the collective" in await refused(r, plans[1], **theirs)
        mine.cancel()
        async with asyncio.timeout(BOUND):
            while followers.streams[0] > 2:
                await asyncio.sleep(0.001)
        await follow(r, plans[1], **theirs).read()


@pytest.mark.parametrize("name", [*collectives.UNROOTED, *collectives.ROOTED, "somebody's own"])
@pytest.mark.parametrize("n", [2, 7, 16])
def test_the_flows_of_one_sender_are_those_of_all_less_the_others(name: str, n: int) -> None:
    """In as many steps; and `count` has their number."""
    for root in (0, n - 1):
        whole = collectives.steps(name, n, root)
        assert collectives.count(name, n, root) == sum(map(len, whole))
        for rank in range(n):
            mine = [{pair: size for pair, size in step.items() if pair[0] == rank} for step in whole]
            assert collectives.steps(name, n, root, sender=rank) == mine


async def test_plans_that_are_cached_are_bounded_by_their_flows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many different steps a job asks for."""
    monkeypatch.setattr(planning, "MAX_CACHED_FLOWS", 10)
    planner, view, job = many(tmp_path, 4)
    for size in range(1, 9):
        request = Follow("j", 0, 1, [[PathFlow(0, peer, size) for peer in (1, 2, 3)]])
        with planner.stream(request, job):
            await planner.plan(view, request, job)
        assert sum(len(plan.flows) for plan in view.plans.values()) <= 10
    planner.close()
    assert MAX_JOINT_FLOWS <= 1 << 16
