# SPDX-License-Identifier: Apache-2.0
"""A blocked collective ends when the controller reports that a rank is gone.

The controller and sockets are real, the switches are in memory, so no result ever comes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest

from netfold.controller import client as operator_client
from netfold.controller.controller import Controller
from netfold.controller.jobs.jobs import Jobs
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Fabric
from netfold.host.api.communicator import Communicator
from netfold.host.client.jobs import JobClient
from netfold.host.client.membership import Membership
from netfold.host.client.watcher import FIRST_PAUSE, LONGEST_PAUSE, Watcher
from netfold.host.errors import JobEnded, JoinRefused, PeerLost
from netfold.host.operation.rail import RailStats
from netfold.rpc.rpc import Unreachable
from netfold.testing import subnet
from netfold.wire.jobs import Done, Halt, Join, RankReport, Watching
from netfold.wire.plan import Plan
from support.control.controller import MemorySwitch
from support.control.credentials import scopes
from support.hosts.insides import parts_of
from switch_support.ports import wait_for

TIMEOUT = 120.0
"""Timeout of collectives in seconds, far longer than it takes to notice a death."""
BOUND = 60.0
"""Bound in seconds of everything else."""
NOTHING = np.ones(1, np.float32)


def loopback(folder: Path, **settings: Any) -> Fabric:
    """A fabric of one leaf whose hosts are addresses of this machine."""
    fabric, net = leafspine(1, 0, 3, rundir=folder), subnet()
    hosts = tuple(msgspec.structs.replace(host, address=f"{net}.{n}") for n, host in enumerate(fabric.hosts, 1))
    return msgspec.structs.replace(fabric, hosts=hosts, probe=0, **settings)


class Serving:
    """A controller on a thread with an event loop of its own; ``switch``: the fabric's only switch."""

    def __init__(self, fabric: Fabric, switch: MemorySwitch | None = None) -> None:
        self.fabric = fabric
        self.switch = switch or MemorySwitch("leaf1")
        self.controller = Controller(fabric, connect=lambda _: self.switch.connect(), rng=random.Random(5),
                                     start_timeout=BOUND)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="controller")

    def __enter__(self) -> Serving:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.controller.start(), self.loop).result(BOUND)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self.controller.stop(), self.loop).result(BOUND)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(BOUND)
        self.loop.close()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    """A running controller."""
    with Serving(loopback(tmp_path)) as made:
        yield made


RANK = """
import sys
from netfold.host.api.communicator import Communicator
with Communicator.join("j", 1, 2, address=sys.argv[2], controller=sys.argv[1], rail=sys.argv[3]):
    print("joined", flush=True)
    sys.stdin.read()
"""


def join(fabric: Fabric, rank: int, world: int = 2, **options: object) -> Communicator:
    """Joins as a rank of this process."""
    return Communicator.join("j", rank, world, address=fabric.hosts[rank].address, controller=fabric.jobs,
                             timeout=TIMEOUT, **{"rail": "innet", **options})  # type: ignore[arg-type]


def test_a_killed_rank_ends_the_others_collective(serving: Serving) -> None:
    """The others raise PeerLost with rank, address and host long before the timeout, and so does the operation after
    it."""
    fabric = serving.fabric
    other = subprocess.Popen([sys.executable, "-c", RANK, fabric.jobs, fabric.hosts[1].address, "innet"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        with join(fabric, 0) as comm, ThreadPoolExecutor(1) as pool:
            assert other.stdout is not None
            assert other.stdout.readline() == "joined\n"
            assert comm.rail == "innet"
            blocked = pool.submit(comm.allreduce, np.ones(1000, np.float32))
            os.kill(other.pid, signal.SIGKILL)
            with pytest.raises(PeerLost, match=r"rank 0 of 2, operation 1 .*lost rank 1 at 127\.[0-9.]+\.2 \(h2\)"):
                blocked.result(TIMEOUT / 2)
            with pytest.raises(PeerLost, match="lost rank 1"):
                comm.allreduce(np.ones(1, np.float32))
    finally:
        other.kill()
        other.communicate(timeout=BOUND)
    assert set(serving.controller.allocator.used().values()) == {0}


@pytest.mark.parametrize("call", ["allreduce", "group", "receive"])
def test_a_killed_rank_ends_what_waits_for_it_over_tcp(serving: Serving, call: str) -> None:
    """A rank that has no connection yet, or whose connections somebody else keeps open, is lost by the controller's
    word, in collectives of all ranks and of some, and between two."""
    fabric = serving.fabric
    other = subprocess.Popen([sys.executable, "-c", RANK, fabric.jobs, fabric.hosts[1].address, "tcp"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        with join(fabric, 0, rail="tcp") as comm, ThreadPoolExecutor(1) as pool:
            assert other.stdout is not None
            assert other.stdout.readline() == "joined\n"
            data = np.ones(1000, np.float32)
            blocked = pool.submit({
                "allreduce": lambda: comm.allreduce(data), "group": lambda: comm.group([0, 1]).allreduce(data),
                "receive": lambda: comm.receive(data, 1),
            }[call])
            os.kill(other.pid, signal.SIGKILL)
            with pytest.raises(PeerLost, match="rank 1 is lost, says the controller"):
                blocked.result(TIMEOUT / 2)
    finally:
        other.kill()
        other.communicate(timeout=BOUND)


def test_a_dropped_job_ends_its_collectives(serving: Serving) -> None:
    """The ranks learn that their job has been removed from the switches."""
    fabric = serving.fabric
    with ThreadPoolExecutor(2) as pool:
        comms = list(pool.map(lambda rank: join(fabric, rank), range(2)))
        blocked = pool.submit(comms[0].allreduce, np.ones(1000, np.int32))
        assert asyncio.run(operator_client.drop(fabric.jobs, "j"))
        with pytest.raises(JobEnded, match="dropped by the operator"):
            blocked.result(TIMEOUT / 2)
        for comm in comms:
            comm.close()


def test_leaving_is_no_death(
    serving: Serving, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that close leave first: nobody is told of a loss, nothing is logged as a warning, and the slots are
    free."""
    monkeypatch.setattr("netfold.host.client.jobs.REPORT_TIMEOUT", BOUND)
    caplog.set_level(logging.WARNING, logger="netfold")
    with ThreadPoolExecutor(3) as pool:
        comms = list(pool.map(lambda rank: join(serving.fabric, rank, 3), range(3)))
        for comm in comms:
            comm.close()
    (job,) = serving.controller.jobs.all()
    assert (job.state, job.lost, job.reason) == ("finished", {}, "")
    assert caplog.records == []
    assert set(serving.controller.allocator.used().values()) == {0}


@pytest.mark.parametrize("rail", ["innet", "tcp"])
def test_a_rank_that_leaves_in_order_is_not_taken_for_dead(
    serving: Serving, caplog: pytest.LogCaptureFixture, rail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others hear when and why it has left, printable, long before the time-out; until somebody waits for it
    nothing is logged as a warning."""
    monkeypatch.setattr("netfold.host.client.jobs.REPORT_TIMEOUT", BOUND)
    caplog.set_level(logging.WARNING, logger="netfold")
    with ThreadPoolExecutor(3) as pool:
        comms = list(pool.map(lambda rank: join(serving.fabric, rank, 3, rail=rail), range(3)))
        try:
            comms[1].close("ValueError: \x1b[31mbad" + 300 * "!")
            assert not caplog.records
            for call in (lambda comm: comm.allreduce(np.ones(9, np.float32)), lambda comm: comm.allreduce(NOTHING)):
                for blocked in [pool.submit(call, comm) for comm in (comms[0], comms[2])]:
                    with pytest.raises(PeerLost) as told:
                        blocked.result(TIMEOUT / 2)
                    said = str(told.value)
                    assert "rank 1 " in said
                    assert "left before its first operation: ValueError: ?[31mbad!" in said
                    assert "lost" not in said
                    assert "its own error" not in said
                    assert len(said) < 700
        finally:
            for comm in comms:
                comm.close()


def test_a_controller_that_is_late_with_the_totals_hears_that_a_rank_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A busy one answers the report after its time-out: the rank has left all the same, and is not taken for lost."""
    caplog.set_level(logging.WARNING, logger="netfold")
    monkeypatch.setattr("netfold.host.client.jobs.REPORT_TIMEOUT", 0.1)
    late = asyncio.Event()

    async def report(jobs: Jobs, request: RankReport) -> Done:
        await late.wait()
        return Done()

    monkeypatch.setattr(Jobs, "report", report)
    with Serving(loopback(tmp_path)) as serving:
        comm = join(serving.fabric, 0, world=1, rail="tcp")
        (job,) = serving.controller.jobs.all()
        comm.close()
        serving.loop.call_soon_threadsafe(late.set)
        assert (job.state, job.lost) == ("finished", {})
    assert "did not take the totals in time" in caplog.text


def test_what_is_under_way_among_others_goes_on_when_a_rank_leaves(serving: Serving) -> None:
    """Ranks that do not need it anymore notice nothing: a group, and two that talk to each other."""
    with ThreadPoolExecutor(3) as pool:
        comms = list(pool.map(lambda rank: join(serving.fabric, rank, 3, rail="tcp"), range(3)))
        groups = [comms[rank].group([0, 2]) for rank in (0, 2)]
        late = pool.submit(groups[0].allreduce, np.ones(4, np.float32))
        comms[1].close()
        while not parts_of(comms[0]).membership.ranks_left():
            threading.Event().wait(0.01)
        with pytest.raises(TimeoutError):
            late.result(0.5)  # longer than a loss takes to be noticed
        assert list(groups[1].allreduce(np.ones(4, np.float32))) == list(late.result(BOUND)) == [2.0] * 4
        for comm in comms:
            comm.close()


def test_ranks_of_the_tcp_rail_take_no_slots(serving: Serving) -> None:
    """With rail="tcp" a job asks for no trees, and its allreduce is right without them."""
    with ThreadPoolExecutor(2) as pool:
        comms = list(pool.map(lambda rank: join(serving.fabric, rank, rail="tcp"), range(2)))
        assert all(comm.plan.trees == [] for comm in comms)
        assert set(serving.controller.allocator.used().values()) == {0}
        sums = list(pool.map(lambda comm: comm.allreduce(np.full(5, comm.rank + 1, np.int32)), comms))
        assert [list(s) for s in sums] == [[3] * 5] * 2
        for comm in comms:
            comm.close()


def test_a_controller_that_goes_away_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job goes on, rank 0 warns that the controller has gone, and each rank that nobody heard it leave; until then
    it waits no longer than for a take-over."""
    monkeypatch.setattr("netfold.host.client.jobs.TAKE_OVER_SECONDS", 0.2)
    with ThreadPoolExecutor(2) as pool:
        with Serving(loopback(tmp_path)) as serving:
            comms = list(pool.map(lambda rank: join(serving.fabric, rank, rail="tcp"), range(2)))
            caplog.set_level(logging.WARNING, logger="netfold")
        sums = list(pool.map(lambda comm: comm.allreduce(np.ones(5, np.int32)), comms))
        assert [list(s) for s in sums] == [[2] * 5] * 2
        wait_for(lambda: "looks for another one" in caplog.text)  # those who leave do not warn of that
        list(pool.map(lambda comm: comm.close(), comms))
    said = [record.getMessage() for record in caplog.records]
    assert sum("the job goes on, and looks for another one" in line for line in said) == 1
    assert sum("left, but" in line for line in said) == 2


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("rail", ["tcp", "innet"])
def test_ranks_go_on_with_the_next_controller(tmp_path: Path, elsewhere: bool, rail: str) -> None:
    """At the same address or at another one that they know, they register again: the job is the new controller's, which
    tells of deaths, and whose slots are free in the end."""
    fabric = loopback(tmp_path)
    other = msgspec.structs.replace(fabric, jobs=f"unix:{tmp_path}/standby.sock") if elsewhere else fabric
    both = f"{fabric.jobs},{other.jobs}"
    with ThreadPoolExecutor(3) as pool:
        with Serving(fabric) as first:
            comms = list(pool.map(lambda rank: Communicator.join(
                "j", rank, 3, address=fabric.hosts[rank].address, controller=both, timeout=TIMEOUT,
                rail=rail,  # type: ignore[arg-type]
            ), range(3)))
        held = dict(first.switch.state)
        with Serving(other, first.switch) as second:
            while [job.awaited for job in second.controller.jobs.all()] != [set()]:
                threading.Event().wait(0.01)
            (job,) = second.controller.jobs.all()
            assert job.state == "active"
            assert first.switch.state == held
            parts_of(comms[2]).membership.close()  # without having left
            while parts_of(comms[0]).membership.job_error() is None:
                threading.Event().wait(0.01)
            assert isinstance(parts_of(comms[0]).membership.job_error(), PeerLost)
            parts_of(comms[2]).dispatch.close()
            for comm in comms[:2]:
                comm.close()
            assert set(second.controller.allocator.used().values()) == {0}


def test_ranks_that_stand_still_are_planned_for_by_the_next_controller(tmp_path: Path) -> None:
    """The leaf has gone, all ranks have halted and wait; the controller dies, too; leaf and controller come back, and
    the same calls return plans."""
    fabric = loopback(tmp_path)
    with ThreadPoolExecutor(6) as pool:
        with Serving(fabric) as first:
            clients = [JobClient(fabric.jobs) for _ in range(3)]
            plans = list(pool.map(lambda rank: clients[rank].join(
                Join("j", 3, rank, fabric.hosts[rank].address, "10.0.0.1:1", 0)), range(3)))
            members = [Membership(plan, client) for plan, client in zip(plans, clients, strict=True)]
            halted = [threading.Event() for _ in members]
            for member, event in zip(members, halted, strict=True):
                member.on_halt(lambda number, event=event: event.set())  # type: ignore[misc]
            first.switch.unreachable = True
            first.loop.call_soon_threadsafe(first.switch.break_session)
            assert all(event.wait(BOUND) for event in halted)

            def resume(member: Membership) -> Plan:
                streams = [stream for tree in member.plan.trees for stream in (tree.data, tree.agreement)]
                again = member.fold_control(TIMEOUT).resume
                assert again is not None
                return again({place: stream.psn for place, stream in enumerate(streams)}, 0, "")

            resumed = [pool.submit(resume, member) for member in members]
            (job,) = first.controller.jobs.all()
            while job.round is None or len(job.round.resumes) < 3:
                threading.Event().wait(0.01)
        first.switch.unreachable, first.switch.has_pipeline, first.switch.state = False, False, {}
        with Serving(fabric, first.switch):
            after = [future.result(BOUND) for future in resumed]
            assert len({plan.round for plan in after}) == 1
            assert after[0].round >= 1
            assert {member.plan.round for member in members} == {after[0].round}
            for member in members:
                member.leave(RailStats())
                member.close()


def test_a_rank_finds_the_controller_among_several_addresses(tmp_path: Path) -> None:
    """Nobody is at the first one; and where nobody is at any, the error names all.  For commands as well."""
    fabric = loopback(tmp_path)
    with Serving(fabric):
        client = JobClient(f"unix:{tmp_path}/nobody.sock, {fabric.jobs}")
        assert client.join(Join("j", 1, 0, fabric.hosts[0].address, "10.0.0.1:1", 0)).world == 1
        client.close()
        said = asyncio.run(operator_client.status(f"unix:{tmp_path}/nobody.sock, {fabric.jobs}"))
        assert said.fabric == fabric.name
    with pytest.raises(Unreachable, match=r"nobody.sock.*\n.*none.sock"):
        asyncio.run(operator_client.status(f"unix:{tmp_path}/nobody.sock,unix:{tmp_path}/none.sock"))
    client = JobClient(f"unix:{tmp_path}/nobody.sock,unix:{tmp_path}/none.sock")
    with pytest.raises(JoinRefused, match=r"nobody answers at unix:.*nobody.sock,unix:.*none.sock"):
        client.join(Join("j", 1, 0, fabric.hosts[0].address, "10.0.0.1:1", 0, timeout=0.3))
    client.close()


def test_a_rank_that_waits_for_others_joins_the_next_controller(tmp_path: Path) -> None:
    """The controller dies before the job is complete: the rank that waits does not notice."""
    fabric = loopback(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        clients = [JobClient(fabric.jobs) for _ in range(2)]

        def joined(rank: int) -> Plan:
            return clients[rank].join(Join("j", 2, rank, fabric.hosts[rank].address, "10.0.0.1:1", 0, timeout=BOUND))

        with Serving(fabric) as first:
            waiting = pool.submit(joined, 0)
            while not first.controller.jobs.all():
                threading.Event().wait(0.01)
            threading.Event().wait(0.2)  # it has been waiting for longer than a refusal takes
        with Serving(fabric):
            assert joined(1).trees
            assert waiting.result(BOUND).trees
            for client in clients:
                client.close()


def test_a_rank_needs_the_fabrics_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token comes from the argument or from NETFOLD_TOKEN; without it the refusal says what to set."""
    monkeypatch.delenv("NETFOLD_TOKEN", raising=False)
    with Serving(loopback(tmp_path, **scopes(tmp_path))) as serving:
        with pytest.raises(JoinRefused, match=r"UNAUTHENTICATED: Join: expected .* got none.*NETFOLD_TOKEN_FILE"):
            join(serving.fabric, 0)
        monkeypatch.setenv("NETFOLD_TOKEN", "wrong")
        with pytest.raises(JoinRefused, match="got one that this controller does not know"):
            join(serving.fabric, 0)
        with ThreadPoolExecutor(2) as pool:
            for comm in list(pool.map(lambda rank: join(serving.fabric, rank, token="jobs"), range(2))):
                comm.close()
        (job,) = serving.controller.jobs.all()
        assert job.state == "finished"


def test_a_closed_communicator_leaves_no_stream_to_the_garbage_collector(serving: Serving) -> None:
    """A gRPC call that is collected when the interpreter ends may wait forever for the lock of a thread that does not
    exist any more; closed communicators hold none, without any garbage collection."""

    def calls() -> list[object]:
        kinds = ((thing, type(thing)) for thing in gc.get_objects())
        return [thing for thing, kind in kinds if issubclass(kind, grpc.RpcError) and hasattr(kind, "__del__")]

    gc.collect()
    gc.disable()
    before = calls()
    try:
        with ThreadPoolExecutor(2) as pool:
            comms = list(pool.map(lambda rank: join(serving.fabric, rank), range(2)))
            for comm in comms:
                parts_of(comm).membership.fold_control(1.0).suspect({})
            list(pool.map(Communicator.close, comms))
        assert [call for call in calls() if not any(call is old for old in before)] == []
    finally:
        gc.enable()


def test_a_connection_that_does_not_close_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing gRPC's channel may hang: the rank logs it and goes on."""
    client = JobClient("127.0.0.1:9")
    real, never = client.connection.channel, threading.Event()

    class Hangs:
        def close(self) -> None:
            never.wait(60)

    monkeypatch.setattr("netfold.host.client.controller_channel.CLOSE_SECONDS", 0.01)
    client.connection.channel = Hangs()  # type: ignore[assignment]
    client.close()
    never.set()
    real.close()
    assert "127.0.0.1:9 did not close within 0.01 s" in caplog.text


@pytest.fixture
def watcher(monkeypatch: pytest.MonkeyPatch) -> Watcher:
    """One that listens to nobody: its events are those that a test makes."""
    monkeypatch.setattr(Watcher, "_listen", lambda self: None)
    return Watcher(lambda heard: pytest.fail("nobody is called"), "rank 0", lambda: None, lambda: None, folds=True)


def test_each_controller_that_goes_is_looked_for_at_once(watcher: Watcher) -> None:
    """Pauses grow while none answers, and begin anew once one has."""
    for _ in range(2):
        pauses = [watcher.on_end("gone", grpc.StatusCode.UNAVAILABLE) for _ in range(4)]
        assert pauses == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, LONGEST_PAUSE]
        watcher.on_event(Watching())


@pytest.mark.parametrize("folds", [True, False])
def test_a_controller_that_does_not_know_the_job_ends_it_where_switches_fold_for_it(
    watcher: Watcher, folds: bool
) -> None:
    """It has removed what they held; a job over TCP alone goes on, with nobody who watches it."""
    if not folds:
        watcher.unfold()
    watcher.on_end("gone", grpc.StatusCode.UNAVAILABLE)
    assert watcher.on_end("who are you?", grpc.StatusCode.FAILED_PRECONDITION) is None
    assert isinstance(watcher.job_error(), JobEnded) is folds
    assert not watcher.registers_again(watcher.registrations, 0.0)


def test_a_rail_that_opens_late_hears_of_the_round_that_it_has_missed(watcher: Watcher) -> None:
    """A Halt that came before anybody could be halted is told to the first that can, with its number."""
    halted: list[int] = []
    watcher.on_event(Halt(3, "spine1 is down"))
    watcher.on_halt(halted.append)
    watcher.on_event(Halt(4, "spine2 is down"))
    assert halted == [3, 4]
