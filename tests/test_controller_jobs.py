# SPDX-License-Identifier: Apache-2.0
"""The job service over a real gRPC socket, with switches in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from helpers_controller import MemorySwitch, run, until

from netfold.controller import operator
from netfold.controller.controller import Controller, StartError
from netfold.controller.plan.fabric import Fabric
from netfold.controller.plan.generate import leafspine
from netfold.controller.plan.slots import Sizes
from netfold.controller.switch import tables
from netfold.controller.switch.switch import Count
from netfold.wire.jobs import (
    PROTOCOL,
    SERVICE,
    Done,
    Event,
    Join,
    Leave,
    Plan,
    Report,
    Settle,
    Settled,
    Watch,
    Watching,
)

Code = grpc.StatusCode


class Watcher:
    """A rank's Watch, read all the time; ``settle`` answers Settle as a rank does that lacks nothing."""

    def __init__(self, call: Any, settle: Callable[[], Awaitable[object]]) -> None:
        self.settles = True
        self._call = call
        self._settle = settle
        self._events: asyncio.Queue[Event | grpc.aio.AioRpcError | None] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())

    async def next(self) -> Event | None:
        """The next event but Settle; None at the stream's good end."""
        event = await self._events.get()
        if isinstance(event, grpc.aio.AioRpcError):
            raise event
        return event

    def die(self) -> None:
        """The rank is gone."""
        self._call.cancel()

    async def _read(self) -> None:
        try:
            while (data := await self._call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                event = msgspec.json.decode(data, type=Event)
                if not isinstance(event, Settle):
                    self._events.put_nowait(event)
                elif self.settles:
                    await self._settle()
            self._events.put_nowait(None)
        except grpc.aio.AioRpcError as error:
            self._events.put_nowait(error)


@dataclass
class Rig:
    """A running controller, its switches, and a client."""

    fabric: Fabric
    controller: Controller
    switches: dict[str, MemorySwitch]
    channel: grpc.aio.Channel

    async def call(self, method: str, request: Any, answer: Any = Plan, timeout: float = 15.0) -> Any:
        """One call, as a rank makes it."""
        unary = self.channel.unary_unary(f"/{SERVICE}/{method}", bytes, bytes)
        data = request if isinstance(request, bytes) else msgspec.json.encode(request)
        return msgspec.json.decode(await unary(data, timeout=timeout), type=answer)

    def join(self, rank: int, world: int = 2, **changes: Any) -> Join:
        """What rank `rank` on host h<rank+1> says."""
        request = Join(job="j", world=world, rank=rank, address=self.fabric.hosts[rank % 4].address, tcp="10.0.0.1:1",
                       path_mtu=1024, timeout=5.0)
        return msgspec.structs.replace(request, **changes)

    async def together(self, world: int, **changes: Any) -> list[Plan]:
        """All ranks join at once."""
        return list(await asyncio.gather(*(self.call("Join", self.join(r, world, **changes)) for r in range(world))))

    async def leave(self, plan: Plan, reason: str = "") -> None:
        """One rank leaves."""
        await self.call("Leave", Leave(plan.job, plan.rank, plan.epoch, reason), Done)

    async def watch(self, plan: Plan, token: str = "") -> Watcher:
        """One rank watches; the controller has said that it does."""
        stream = self.channel.unary_stream(f"/{SERVICE}/Watch", bytes, bytes)
        call = stream(msgspec.json.encode(Watch(plan.job, plan.rank, plan.epoch, token)))
        settled = Settled(plan.job, plan.rank, plan.epoch, token)
        watcher = Watcher(call, lambda: self.call("Settled", settled, Done))
        assert await watcher.next() == Watching()
        return watcher

    async def refusal(self, request: Any, method: str = "Join") -> tuple[grpc.StatusCode, str]:
        """Code and words of a refusal."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.call(method, request)
        return caught.value.code(), caught.value.details() or ""

    def waiting(self) -> int:
        """Ranks that have joined jobs which are not complete."""
        return sum(len(job.joins) for job in self.controller.jobs.all() if job.state == "gathering")

    def base_only(self) -> bool:
        """True where no switch holds anything of a job."""
        base = (tables.ROUTE, tables.UPLINK, tables.POLICY, tables.PIN, tables.CONGESTION)
        return all(key[0] in base for s in self.switches.values() for key in s.state)


@asynccontextmanager
async def rig(folder: Path, **settings: Any) -> AsyncIterator[Rig]:
    """A 2x2x4 fabric in memory, its controller on a unix socket; there are no cables to probe."""
    fabric = msgspec.structs.replace(leafspine(2, 2, 4, rundir=folder), **{"probe": 0, **settings})
    switches = {switch.name: MemorySwitch(switch.name) for switch in fabric.switches}
    controller = Controller(fabric, connect=lambda switch: switches[switch.name].connect(), rng=random.Random(5),
                            start_timeout=5.0)
    async with controller, grpc.aio.insecure_channel(fabric.jobs) as channel:
        yield Rig(fabric, controller, switches, channel)


def test_the_ring_visits_leaf_by_leaf(tmp_path: Path) -> None:
    """However ranks lie on the hosts, each cable between switches is crossed once each way."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            hosts = [0, 2, 1, 3]  # h1 and h2 are on one leaf
            joins = [r.join(rank, 4, address=r.fabric.hosts[host].address) for rank, host in enumerate(hosts)]
            plans = await asyncio.gather(*(r.call("Join", join) for join in joins))
            assert [plan.ring for plan in plans] == [[0, 2, 1, 3]] * 4

    run(story())


def test_ranks_get_matching_plans(tmp_path: Path) -> None:
    """Every rank's stream points at the next rank's queue pair, with one epoch, PSN and slot count for all."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            plans = await r.together(4)
            assert [plan.rank for plan in plans] == [0, 1, 2, 3]
            assert {plan.epoch for plan in plans} - {0} == {plans[0].epoch}
            assert all([t.name for t in plan.trees] == ["spine1", "spine2"] and not plan.reason for plan in plans)
            for rank, plan in enumerate(plans):
                after = plans[(rank + 1) % 4]
                assert [peer.rank for peer in plan.peers] == [0, 1, 2, 3]
                for mine, theirs in zip(plan.trees, after.trees, strict=True):
                    for a, b in ((mine.data, theirs.data), (mine.agreement, theirs.agreement)):
                        assert a.peer_qp == b.qp
                        assert a.peer == r.fabric.hosts[(rank + 1) % 4].address
                        assert (a.psn, a.slots) == (b.psn, b.slots)
                    assert (mine.data.slots, mine.agreement.slots) == (512, 128)
            qps = [s.qp for plan in plans for tree in plan.trees for s in (tree.data, tree.agreement)]
            assert len(set(qps)) == len(qps)

    run(story())


def test_the_last_leave_clears_the_switches(tmp_path: Path) -> None:
    """Entries are there while anybody is in the job, and gone with the last rank; then the name is free again."""

    async def story() -> None:
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

    run(story())


def test_a_rank_that_stops_waiting_for_its_leave_leaves_nothing(tmp_path: Path) -> None:
    """The last Leave's deadline passes while a switch is slow: what the job held goes all the same."""

    async def story() -> None:
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

    run(story())


def test_nobody_gets_a_plan_before_all_are_in(tmp_path: Path) -> None:
    """Three of four wait; the fourth releases them."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            early = [asyncio.create_task(r.call("Join", r.join(rank, 4))) for rank in range(3)]
            await until(lambda: r.waiting() == 3)
            assert not any(task.done() for task in early)
            assert r.base_only()
            await r.call("Join", r.join(3, 4))
            await asyncio.gather(*early)

    run(story())


def test_a_rank_that_waits_too_long_learns_who_is_missing(tmp_path: Path) -> None:
    """Its own time-out ends only its own wait, and it may come back."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            code, words = await r.refusal(r.join(1, 3, timeout=0.01))
            assert code is Code.DEADLINE_EXCEEDED
            assert "ranks 0, 2 of 3 have not joined" in words
            assert r.controller.jobs.all() == []
            assert len(await r.together(3)) == 3

    run(story())


def test_a_rank_that_goes_away_while_waiting_is_forgotten(tmp_path: Path) -> None:
    """A cancelled Join makes room for another attempt of the same rank."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            gone = asyncio.create_task(r.call("Join", r.join(0, 2)))
            await until(lambda: r.waiting() == 1)
            gone.cancel()
            await until(lambda: r.waiting() == 0)
            assert len(await r.together(2)) == 2

    run(story())


@pytest.mark.parametrize(("changes", "code", "says"), [
    ({"protocol": PROTOCOL + 1}, Code.FAILED_PRECONDITION, ["protocol", f"expected {PROTOCOL}", "install"]),
    ({"path_mtu": 4096}, Code.FAILED_PRECONDITION, ["path_mtu", "1024", "4096"]),
    ({"rank": 2}, Code.INVALID_ARGUMENT, ["rank", "0..1", "2"]),
    ({"rank": -1}, Code.INVALID_ARGUMENT, ["rank", "-1"]),
    ({"world": 0}, Code.INVALID_ARGUMENT, ["world", "0"]),
    ({"world": 2000}, Code.INVALID_ARGUMENT, ["world", "1023", "2000"]),
    ({"timeout": 0.0}, Code.INVALID_ARGUMENT, ["timeout"]),
    ({"timeout": 1e9}, Code.INVALID_ARGUMENT, ["timeout", "600"]),
    ({"job": ""}, Code.INVALID_ARGUMENT, ["job"]),
    ({"tcp": "here"}, Code.INVALID_ARGUMENT, ["tcp", "ADDRESS:PORT", "here"]),
    ({"address": "192.0.2.1"}, Code.INVALID_ARGUMENT, ["192.0.2.1", "10.0.1.1", "fabric interface"]),
])
def test_impossible_joins_are_refused_at_once(
    tmp_path: Path, changes: dict[str, Any], code: grpc.StatusCode, says: list[str]
) -> None:
    """The refusal comes without waiting for anybody, names field, expectation and value, and leaves no job behind."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            got, words = await r.refusal(r.join(0, **changes) if "rank" not in changes else
                                         msgspec.structs.replace(r.join(0), **changes))
            assert got is code
            assert all(word in words for word in says), words
            assert r.controller.jobs.all() == []

    run(story())


@pytest.mark.parametrize(("data", "says"), [
    (b"{}", "job"), (b"nonsense", "JSON"), (b'{"job": 7}', "job"),
    (b'{"job":"a","world":1,"rank":0,"address":"","tcp":"","path_mtu":1,"colour":1}', "colour"),
])
def test_messages_that_are_none_are_refused(tmp_path: Path, data: bytes, says: str) -> None:
    """What does not decode is INVALID_ARGUMENT and names the field."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            code, words = await r.refusal(data)
            assert code is Code.INVALID_ARGUMENT
            assert says in words

    run(story())


def test_ranks_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    """A second rank 0, another world size: refused; the job goes on with those who agree."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            first = asyncio.create_task(r.call("Join", r.join(0)))
            await until(lambda: r.waiting() == 1)
            code, words = await r.refusal(r.join(0))
            assert (code, "rank 0 has joined already" in words) == (Code.ALREADY_EXISTS, True)
            code, words = await r.refusal(r.join(1, 3))
            assert (code, "expected 2, as rank 0 has said, got 3" in words) == (Code.FAILED_PRECONDITION, True)
            await r.call("Join", r.join(1))
            await first
            code, words = await r.refusal(r.join(1))
            assert (code, "netfold drop j" in words) == (Code.ALREADY_EXISTS, True)

    run(story())


def test_without_slots_a_job_gets_a_reason_instead_of_trees(tmp_path: Path) -> None:
    """A refusal of slots is a plan for the ring, which says where and how much was missing; nothing stays behind."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            r.controller._ledger.sizes = Sizes(data=8192, agreement=128, quota=1 << 15)
            plans = await r.together(4)
            assert all(plan.trees == [] and "slots in a row" in plan.reason for plan in plans)
            assert [peer.address for peer in plans[0].peers] == [h.address for h in r.fabric.hosts]
            assert r.base_only()
            assert set(r.controller._ledger.used().values()) == {0}
            for plan in plans:
                await r.leave(plan)

    run(story())


def test_a_switch_that_refuses_an_entry_leaves_no_half_job(tmp_path: Path) -> None:
    """Where one switch fails, all are cleaned, slots return, and the ranks learn which switch and entry it was."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            r.switches["spine2"].refuse = lambda u: u.verb == "insert" and "replica" in str(u)
            plans = await r.together(4)
            assert all(plan.trees == [] for plan in plans)
            assert "spine2" in plans[0].reason
            assert "replica" in plans[0].reason
            assert r.base_only()
            assert set(r.controller._ledger.used().values()) == {0}
            r.switches["spine2"].refuse = lambda u: False
            for plan in plans:
                await r.leave(plan)
            assert (await r.together(4))[0].trees

    run(story())


def test_a_job_is_planned_around_a_dead_spine(tmp_path: Path) -> None:
    """While a spine is down, new jobs fold on the other; when it is back, on both."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            r.switches["spine1"].unreachable = True
            r.switches["spine1"].break_session()
            target = r.controller._targets["spine1"]
            await until(lambda: not target.is_up)
            plans = await r.together(4)
            assert [tree.name for tree in plans[0].trees] == ["spine2"]
            r.switches["spine1"].unreachable = False
            await target.wait_up(5)
            for plan in plans:
                await r.leave(plan)
            assert [tree.name for tree in (await r.together(4))[0].trees] == ["spine1", "spine2"]

    run(story())


def test_a_switch_that_restarts_empty_gets_everything_again(tmp_path: Path) -> None:
    """Pipeline, routes and the running job's entries come back; a job that ended meanwhile does not."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            kept = await r.together(2)
            ended = [await r.call("Join", r.join(0, 1, job="one"))]
            before = dict(r.switches["leaf1"].state)
            leaf = r.switches["leaf1"]
            leaf.has_pipeline, leaf.state = False, {}
            sessions = len(leaf.sessions)
            leaf.break_session("restarted")
            await until(lambda: len(leaf.sessions) > sessions and r.controller._targets["leaf1"].is_up)
            assert leaf.state == before
            await r.leave(ended[0])
            for plan in kept:
                await r.leave(plan)
            assert r.base_only()

    run(story())


def test_a_controller_that_starts_anew_writes_only_the_difference(tmp_path: Path) -> None:
    """With the pipeline and its routes in place it writes nothing but the removal of what it does not know."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            await r.together(2)
            held = dict(r.switches["leaf1"].state)
        for switch in r.switches.values():
            switch.writes.clear()
        again = Controller(r.fabric, connect=lambda s: r.switches[s.name].connect(), start_timeout=5.0)
        async with again:
            updates = [u for batch in r.switches["leaf1"].writes for u in batch]
            assert {u.verb for u in updates} == {"delete"}
            assert len(updates) == len(held) - len(r.switches["leaf1"].state)
            assert r.base_only()
            assert all(target.pushes == 0 for target in again._targets.values())

    run(story())


def test_a_name_can_be_joined_anew_while_old_ranks_still_leave(tmp_path: Path) -> None:
    """A restarted script's first ranks may come before the last old rank has gone; the old entries go in time."""

    async def story() -> None:
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

    run(story())


def test_a_crashed_job_ends_when_its_successor_is_complete(tmp_path: Path) -> None:
    """One rank left with a reason, the other died without a word: the next incarnation frees what they held."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            old = await r.together(2)
            await r.leave(old[0], reason="CollectiveTimeout")
            state = next(job for job in r.controller.jobs.all())
            assert (state.state, "rank 0 left: CollectiveTimeout" in state.reason) == ("broken", True)
            before = r.controller._ledger.used()
            await r.together(2)
            assert r.controller._ledger.used() == before
            code, words = await r.refusal(Leave("j", 1, old[1].epoch), "Leave")
            assert (code, "may have ended" in words) == (Code.FAILED_PRECONDITION, True)

    run(story())


def test_dropping_a_job_frees_its_name_and_slots(tmp_path: Path) -> None:
    """What a dead job holds can be taken back, and a rank that waits in it is told."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            await r.together(2)
            assert await operator.drop(r.fabric.jobs, "j")
            assert r.base_only()
            assert not await operator.drop(r.fabric.jobs, "j")
            waiting = asyncio.create_task(r.refusal(r.join(0)))
            await until(lambda: r.waiting() == 1)
            assert await operator.drop(r.fabric.jobs, "j")
            assert (await waiting)[0] is Code.ABORTED

    run(story())


def test_a_rank_that_vanishes_while_switches_are_written_breaks_the_job(tmp_path: Path) -> None:
    """The others still get their plan, status says who is gone, and the name can be joined anew."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            gate = r.switches["leaf1"].gate = asyncio.Event()
            gone, stays = (asyncio.create_task(r.call("Join", r.join(rank))) for rank in (0, 1))
            await until(lambda: [job.state for job in r.controller.jobs.all()] == ["planning"])
            gone.cancel()
            await until(lambda: r.controller.jobs.all()[0].state == "broken")
            gate.set()
            plan = await stays
            assert plan.trees
            assert "rank 0: it went away" in r.controller.jobs.all()[0].reason
            again = await r.together(2)
            assert again[0].epoch != plan.epoch
            assert sum(job.state == "active" for job in r.controller.jobs.all()) == 1

    run(story())


def test_dropping_a_job_while_switches_are_written_tells_its_ranks(tmp_path: Path) -> None:
    """Every rank is refused with the reason, and nothing stays on the switches."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            gate = r.switches["leaf1"].gate = asyncio.Event()
            ranks = [asyncio.create_task(r.refusal(r.join(rank))) for rank in (0, 1)]
            await until(lambda: [job.state for job in r.controller.jobs.all()] == ["planning"])
            dropping = asyncio.create_task(operator.drop(r.fabric.jobs, "j"))
            assert await dropping
            gate.set()
            for rank in ranks:
                code, words = await rank
                assert (code, "dropped by the operator" in words) == (Code.ABORTED, True)
            assert r.base_only()
            assert set(r.controller._ledger.used().values()) == {0}

    run(story())


def test_a_write_that_was_cut_off_is_looked_after(tmp_path: Path) -> None:
    """A drop may cut off a write that the switch carries out all the same: it is read back, and cleaned."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            leaf = r.switches["leaf1"]
            gate = leaf.gate = asyncio.Event()
            leaf.applies_before_gate = True
            ranks = [asyncio.create_task(r.refusal(r.join(rank))) for rank in (0, 1)]
            await until(lambda: not r.base_only())
            dropping = asyncio.create_task(operator.drop(r.fabric.jobs, "j"))
            await until(lambda: r.controller.jobs.all()[0].reason != "")
            gate.set()
            assert await dropping
            await asyncio.gather(*ranks)
            assert r.base_only()

    run(story())


def test_a_single_rank_has_nothing_to_fold(tmp_path: Path) -> None:
    """It gets a plan at once, without trees, and the reason."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            (plan,) = await r.together(1)
            assert (plan.trees, plan.reason) == ([], "one rank has nothing to fold")

    run(story())


def test_status_shows_switches_links_jobs_and_reports(tmp_path: Path) -> None:
    """Counters stand at the right direction of the right link; a job's trees and totals are there."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            lost_in, lost_out = (tables.fault_counter(c, "lost") for c in (tables.FAULT_IN, tables.FAULT_OUT))
            leaf, spine = r.switches["leaf1"], r.switches["spine1"]
            leaf.counters = {tables.PORT_IN: {1: Count(10, 1000)},
                             tables.PORT_OUT: {1: Count(7, 700), 3: Count(5, 500)},
                             lost_in: {1: Count(2, 0)}, lost_out: {1: Count(3, 0)},
                             tables.CORRUPT: {0: Count(1, 60)}}
            spine.counters = {tables.PORT_IN: {1: Count(5, 500)}, lost_in: {1: Count(4, 0)}}
            plans = await r.together(2)
            await r.call("Report", Report("j", 0, plans[0].epoch, 3, 4096, 12, 1, {"spine1": 2048}), Done)
            status = await operator.status(r.fabric.jobs)
            links = {(link.a, link.b): link for link in status.links}
            host, up = links["leaf1:1", "h1:0"], links["leaf1:3", "spine1:1"]
            assert (host.a_to_b.bytes, host.a_to_b.lost) == (700, 3)
            assert (host.b_to_a.bytes, host.b_to_a.lost) == (1000, 2)
            assert (up.a_to_b.bytes, up.a_to_b.lost) == (500, 4)
            by_name = {s.name: s for s in status.switches}
            assert all(s.up for s in status.switches)
            assert by_name["leaf1"].corrupt == 1
            assert by_name["leaf1"].slots_used == 1152
            (job,) = status.jobs
            assert (job.state, job.world, job.joined) == ("active", 2, [0, 1])
            assert job.trees[0].switches == {"leaf1": ["h1", "h2"]}
            assert job.reports[0].retransmissions == 1

    run(story())


def test_a_dead_switch_at_the_start_is_named(tmp_path: Path) -> None:
    """The controller does not start half a fabric: it says which switches did not come up."""

    async def story() -> None:
        fabric = leafspine(2, 1, 2, rundir=tmp_path)
        switches = {switch.name: MemorySwitch(switch.name) for switch in fabric.switches}
        switches["leaf2"].unreachable = True
        controller = Controller(fabric, connect=lambda s: switches[s.name].connect(), start_timeout=0.05)
        with pytest.raises(StartError, match=r"1 of 3 switches(.|\n)*leaf2: nobody answers"):
            await controller.start()
        await controller.stop()

    run(story())


def test_two_controllers_do_not_share_an_address(tmp_path: Path) -> None:
    """The second says that the first is there, and the first goes on."""

    async def story() -> None:
        async with rig(tmp_path) as r:
            second = Controller(r.fabric, connect=lambda s: MemorySwitch(s.name).connect(), start_timeout=5.0)
            with pytest.raises(StartError, match="is running at unix:"):
                await second.start()
            await second.stop()
            assert len(await r.together(2)) == 2

    run(story())
