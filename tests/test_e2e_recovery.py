# SPDX-License-Identifier: Apache-2.0
"""Links cut, spines and leaves killed and restarted under running ranks, in real namespaces: every sum stays exact."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from helpers_topo import ENGINES, in_sandbox, program

from netfold.controller.plan.fabric import Engine, leafspine
from netfold.topo import sandbox
from netfold.topo.disasters import Disasters

pytest.importorskip("mininet.net", reason="Mininet is not installed: apt install mininet")

from netfold.topo.net import Network

pytestmark = pytest.mark.timeout(300)
ELEMENTS = {"softswitch": 60_000, "bmv2": 8_000}
RATES = {"softswitch": "1gbit", "bmv2": "50mbit"}


def steady(
    network: Network, seed: int, seconds: float, steps: list[Callable[[], None]], *, each: int = 1
) -> list[dict[str, float]]:
    """Sums on all ranks for so long; does a step whenever rank 0 has come forward six times since the last one, and
    returns what the ranks say in the end.  ``each`` host has so many ranks."""
    elements = ELEMENTS[network.fabric.engine]
    hosts = [host for host in network.fabric.hosts for _ in range(each)]
    command = [*program("rank_steady.py"), str(seed), str(elements), str(seconds)]
    ranks = network.launch(command, job="steady", hosts=hosts)
    todo: Iterator[Callable[[], None]] = iter(steps)
    ends, ticks, left = [], 0, len(steps)
    for rank, line in ranks.lines(within=seconds + 60):
        if line.startswith("{"):
            ends.append(json.loads(line))
        elif rank == 0 and line != "going":
            ticks += 1
            if ticks % 6 == 0 and left:
                next(todo)()
                left -= 1
    assert left == 0, f"{left} steps were not done: give the ranks more time"
    return ends


@pytest.mark.parametrize("engine", ENGINES)
@in_sandbox(timeout=200)
def test_sums_stay_exact_whatever_is_cut_killed_and_restarted(engine: Engine, tmp_path: Path) -> None:
    """A link, then the spine that is left, then a leaf: the ranks check every sum, fold to the end, and none of them
    starts anew."""
    fabric = leafspine(2, 2, 4, rate=RATES[engine], engine=engine, rundir=sandbox.rundir())
    fabric = msgspec.structs.replace(fabric, probe=0.1)
    with Network(fabric, logs=tmp_path / "logs") as network:
        do = Disasters(network)
        ends = steady(network, 5, 13.0, [
            lambda: do.cut("spine1", 1),
            lambda: do.mend("spine1", 1),
            lambda: do.kill("spine2"),
            lambda: do.start("spine2"),
            lambda: do.restart("leaf1"),
        ])  # fmt: skip
    assert [end["rail"] for end in ends] == ["innet"] * 4
    assert len({end["operations"] for end in ends}) == 1
    assert {end["rounds"] >= 3 for end in ends} == {True}, ends


@pytest.mark.parametrize("engine", ENGINES)
@in_sandbox(timeout=120)
def test_a_cable_that_swallows_is_found_by_the_ranks_alone(engine: Engine, tmp_path: Path) -> None:
    """No port tells of it and nobody probes: ranks whose repeats bring nothing have it looked at, and go on over the
    other spine, exact."""
    fabric = leafspine(2, 2, 4, rate=RATES[engine], engine=engine, rundir=sandbox.rundir())
    fabric = msgspec.structs.replace(fabric, probe=0)
    with Network(fabric, logs=tmp_path / "logs") as network:
        do = Disasters(network)

        def swallow() -> None:
            for end in next(link.ends for link in fabric.links if link.b.startswith("spine1")):
                do.swallow(end.node, end.port)

        ends = steady(network, 6, 4.0, [swallow])
        (job,) = network.status().jobs
    assert {(end["rail"], end["rounds"] > 0) for end in ends} == {("innet", True)}
    assert len({end["operations"] for end in ends}) == 1
    assert "spine1" not in {tree.root for tree in job.trees}


@pytest.mark.parametrize("engine", ENGINES)
@in_sandbox(timeout=120)
def test_a_spine_that_returns_carries_running_jobs_again(engine: Engine, tmp_path: Path) -> None:
    """It is killed, started again, and after a while the job's trees are where they were at first, all sums exact."""
    fabric = leafspine(2, 2, 4, rate=RATES[engine], engine=engine, rundir=sandbox.rundir())
    fabric = msgspec.structs.replace(fabric, steady=0.5)
    with Network(fabric, logs=tmp_path / "logs") as network:
        do = Disasters(network)
        ends = steady(network, 7, 7.0, [lambda: do.kill("spine1"), lambda: do.start("spine1")])
        (job,) = network.status().jobs
    assert {(end["rail"], end["rounds"] > 1) for end in ends} == {("innet", True)}
    assert [tree.root for tree in job.trees] == ["spine1", "spine2"]


@in_sandbox(timeout=120)
def test_ranks_that_share_machines_recover_together(tmp_path: Path) -> None:
    """Two ranks on each of four hosts, which fold in groups of their own: a spine dies, and all go on, exact."""
    fabric = leafspine(2, 2, 4, rate="1gbit", rundir=sandbox.rundir())
    with Network(fabric, logs=tmp_path / "logs") as network:
        do = Disasters(network)
        ends = steady(network, 8, 4.0, [lambda: do.kill("spine1")], each=2)
        (job,) = network.status().jobs
    assert [(end["rail"], end["rounds"]) for end in ends] == [("innet", ends[0]["rounds"])] * 8
    assert ends[0]["rounds"] > 0
    assert len({end["operations"] for end in ends}) == 1
    assert [tree.root for tree in job.trees] == ["spine2", "spine2"]
    assert job.round is not None
    assert (job.round.why, job.round.took is not None) == ("spine1 is down", True)
