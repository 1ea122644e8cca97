# SPDX-License-Identifier: Apache-2.0
"""Links cut, spines and leaves killed and restarted under running ranks, in real namespaces: every sum stays exact."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import grpc
import msgspec
import pytest

from netfold.fabric.graph import Engine, Fabric
from netfold.topo.faults.injector import FaultInjector
from netfold.topo.network import sandbox
from netfold.wire.jobs import SERVICE, Join
from netfold.wire.operator import JobStatus, Status
from netfold.wire.plan import Plan
from support import needs
from support.fabrics.fabrics import leafspine
from support.sandboxes.steady import Steady
from support.sandboxes.topo import ENGINES, ENGINES_LONG, in_sandbox

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.net import Network

pytestmark = pytest.mark.timeout(300)
RATE = "50mbit"
NEVER = 3600.0
"""`Fabric.steady`: what returns is used by running jobs where nothing else is left, and by none by choice."""


def fabric_of(engine: Engine, *, probe: float = 0.5, steady: float = NEVER) -> Fabric:
    """Two leaves, two spines, four hosts, and a controller that a busy machine does not mislead."""
    fabric = leafspine(2, 2, 4, rate=RATE, engine=engine, rundir=sandbox.rundir())
    return msgspec.structs.replace(fabric, probe=probe, steady=steady)


def roots(job: JobStatus) -> list[str]:
    return [tree.root for tree in job.trees]


@pytest.mark.parametrize("engine", ENGINES)
@in_sandbox(timeout=200)
def test_sums_stay_exact_whatever_is_cut_killed_and_restarted(engine: Engine, tmp_path: Path) -> None:
    """A link, then the spine that is left, then a leaf: the ranks check every sum, fold to the end, and none of them
    starts anew."""
    with Network(fabric_of(engine), logs=tmp_path / "logs") as network, Steady(network, seed=5) as steady:
        do = FaultInjector(network)
        do.link_down("spine1", 1)
        assert roots(steady.round(1)) == ["spine2", "spine2"]
        do.link_up("spine1", 1)
        steady.all_up()
        do.kill("spine2")
        assert roots(steady.round(2)) == ["spine1", "spine1"]
        do.start("spine2")
        steady.all_up()
        do.restart("leaf1")
        assert roots(steady.round(3)) == ["spine1", "spine2"]
        ends = steady.end()
    assert [(end["rail"], end["rounds"]) for end in ends] == [("innet", 3)] * 4
    assert len({end["operations"] for end in ends}) == 1


@in_sandbox(timeout=200)
def test_a_switch_whose_native_process_dies_is_repaired(tmp_path: Path) -> None:
    """The native process of a spine, then that of a leaf, is killed under running allreduces: the ranks go on, around
    the spine and after the leaf is back, every sum is exact, and each switch is pushed and filled again at once."""
    with Network(fabric_of("softswitch"), logs=tmp_path / "logs") as network, Steady(network, seed=9) as steady:
        for number, name in enumerate(("spine1", "leaf1"), 1):
            killed = time.monotonic()
            FaultInjector(network).kill_native(name)
            steady.repaired(name)
            print(f"{name}: repaired {time.monotonic() - killed:.2f} s after its native process was killed")
            steady.round(number)
        ends = steady.end()
    print(f"longest operations: {', '.join(format(end['longest'], '.3f') for end in ends)} s")
    assert [(end["rail"], end["rounds"]) for end in ends] == [("innet", 2)] * 4
    assert len({end["operations"] for end in ends}) == 1


def rounds_of_a_silent_server(network: Network, steady: Steady) -> int:
    """Stops leaf1's P4Runtime server, and lets it go on once the ranks have; the recovery rounds meanwhile."""

    def rounds(status: Status) -> int:
        return job_of(status).round.number if job_of(status).round else 0

    before = rounds(network.status())
    for number, silent in ((signal.SIGSTOP, True), (signal.SIGCONT, False)):
        FaultInjector(network).signal_server("leaf1", number)
        status = steady.until("leaf1 is silent, or answers", lambda status, silent=silent: silent == any(
            switch.name == "leaf1" and "P4Runtime server" in switch.problem for switch in status.switches))
        steady.go_on()
    return rounds(status) - before


@in_sandbox(timeout=200)
def test_a_switch_whose_native_process_hangs_is_repaired(tmp_path: Path) -> None:
    """The P4Runtime server of a leaf is stopped first, and its data plane folds on: no rank halts. Then the native
    process of a spine is, so that its ports stay up and it folds nothing: the ranks go on around it, its server ends
    it, and the controller repairs the switch."""
    fabric = fabric_of("softswitch", probe=0.05)
    with Network(fabric, logs=tmp_path / "logs") as network, Steady(network, seed=10) as steady:
        # while a server is silent, a link that carries nothing for a tenth of a second is down: a busy machine has such
        assert any(rounds_of_a_silent_server(network, steady) == 0 for _ in range(3))
        stopped = time.monotonic()
        FaultInjector(network).stop_native("spine1")
        steady.repaired("spine1")
        print(f"spine1: repaired {time.monotonic() - stopped:.2f} s after its native process was stopped")
        steady.go_on()
        ends = steady.end()
    assert {end["rail"] for end in ends} == {"innet"}
    assert min(end["rounds"] for end in ends) >= 1
    assert len({end["operations"] for end in ends}) == 1


@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=200)
def test_a_link_that_drops_silently_is_found_by_the_ranks_alone(engine: Engine, tmp_path: Path) -> None:
    """No port tells of it and nobody probes: ranks whose repeats bring nothing have it looked at, and go on over the
    other spine, exact."""
    with Network(fabric_of(engine, probe=0), logs=tmp_path / "logs") as network, Steady(network, seed=6) as steady:
        for end in next(link.ends for link in network.fabric.links if link.b.startswith("spine1")):
            FaultInjector(network).blackhole(end.node, end.port)
        job = steady.round(1)
        ends = steady.end()
    assert roots(job) == ["spine2", "spine2"]
    assert [(end["rail"], end["rounds"]) for end in ends] == [("innet", 1)] * 4
    assert len({end["operations"] for end in ends}) == 1


@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=200)
def test_a_spine_that_returns_carries_running_jobs_again(engine: Engine, tmp_path: Path) -> None:
    """It is killed, started again, and after a while the job's trees are where they were at first, all sums exact."""
    fabric = fabric_of(engine, steady=0.5)
    with Network(fabric, logs=tmp_path / "logs") as network, Steady(network, seed=7) as steady:
        do = FaultInjector(network)
        do.kill("spine1")
        assert roots(steady.round(1)) == ["spine2", "spine2"]
        do.start("spine1")
        assert roots(steady.round(2)) == ["spine1", "spine2"]
        ends = steady.end()
    assert [(end["rail"], end["rounds"]) for end in ends] == [("innet", 2)] * 4
    assert len({end["operations"] for end in ends}) == 1


@in_sandbox(timeout=200)
def test_a_job_without_trees_goes_on_over_tcp(tmp_path: Path) -> None:
    """A spine dies, and the slots of the other one belong to other jobs: the ranks end what is under way and all that
    follows over TCP, every sum exact, say so, and hold nothing on switches any more."""
    fabric = leafspine(4, 2, 8, rate=RATE, rundir=sandbox.rundir())
    fabric = msgspec.structs.replace(fabric, steady=NEVER, lease=300.0)  # the other jobs have no ranks that register
    with Network(fabric, logs=tmp_path / "logs") as network:
        with Steady(network, seed=10, hosts=4, rail="auto") as steady:
            port = next(end.port for link in fabric.links for end in link.ends
                        if "leaf3" in link.a and end.node == "spine1")
            FaultInjector(network).link_down("spine1", port)  # jobs of leaf3 then burden spine2 alone
            steady.until("a link is down", lambda status: not all(link.up for link in status.links))
            asyncio.run(take_all_slots(network.fabric))
            FaultInjector(network).kill("spine1")
            status = steady.until("the job goes on over TCP", lambda status: not job_of(status).trees)
            steady.go_on()
            ends = steady.end()
        job = job_of(status)
    assert "spine1 is down, and no trees in their place" in job.reason
    for end in ends:
        assert "over TCP between the hosts" in end["fallback"]
        assert job.reason in end["fallback"]
    assert [end["rail"] for end in ends] == ["tcp"] * 4
    assert len({end["operations"] for end in ends}) == 1
    print(f"longest operations: {', '.join(format(end['longest'], '.3f') for end in ends)} s")


def job_of(status: Status) -> JobStatus:
    """The job of the ranks that sum."""
    return next(job for job in status.jobs if job.name == "steady")


async def take_all_slots(fabric: Fabric) -> None:
    """Other jobs join until one gets no trees, which spine2 has no room for: at leaf3 and leaf4, with larger ranges,
    then at leaf1 and leaf2, with the ranges of the job that sums."""
    async with grpc.aio.insecure_channel(fabric.jobs) as channel:
        join = channel.unary_unary(f"/{SERVICE}/Join", msgspec.json.encode, msgspec.json.Decoder(Plan).decode)
        for places in ((4, 7), (0, 3)):
            for number in range(100):
                plans = await asyncio.gather(*(
                    join(Join(f"other-{places[0]}-{number}", 2, rank, fabric.hosts[place].address, "10.0.0.1:1", 0),
                         timeout=60)
                    for rank, place in enumerate(places)
                ))
                if not plans[0].trees:
                    break
            else:
                raise AssertionError("100 jobs have room on two leaves")


@in_sandbox(timeout=200)
def test_ranks_that_share_machines_recover_together(tmp_path: Path) -> None:
    """Two ranks on each of four hosts, which fold in groups of their own: a spine dies, and all go on, exact."""
    fabric = fabric_of("softswitch")
    with Network(fabric, logs=tmp_path / "logs") as network, Steady(network, seed=8, each=2) as steady:
        FaultInjector(network).kill("spine1")
        job = steady.round(1)
        ends = steady.end()
    assert [(end["rail"], end["rounds"]) for end in ends] == [("innet", 1)] * 8
    assert len({end["operations"] for end in ends}) == 1
    assert roots(job) == ["spine2", "spine2"]
    assert job.round is not None
    assert job.round.why == "spine1 is down"
