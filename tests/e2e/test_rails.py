# SPDX-License-Identifier: Apache-2.0
"""Two planes of real switches, four ranks with two rails each, and a plane that is cut in the middle."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from netfold.bench.ranks.survivor import Reached
from netfold.fabric.graph import Engine, Fabric
from netfold.topo.network import sandbox
from support import needs
from support.docs import combinations
from support.fabrics.fabrics import leafspine
from support.sandboxes.topo import ENGINES_LONG, beside, in_sandbox, program

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.bench.harness.survivors import Survivors
from netfold.topo.network.planes import Planes, on_plane, side_by_side
from netfold.topo.processes.ranks import Ranks

pytestmark = pytest.mark.timeout(200)
RATES = {"softswitch": "25mbit", "bmv2": "10mbit"}
NBYTES = 512 << 10
FASTER = "100mbit"
"""Rate of links on which ranks do more than sum."""

PAUSE = 0.01
"""Seconds that ranks compute in a step, for which others have the processor."""
STALL = 2.0
"""Seconds: a busy machine must not look like a dead rail; how soon one is found is the benchmark's to say."""


@in_sandbox(timeout=150)
def test_a_folding_plane_that_is_cut_costs_no_sum(tmp_path: Path) -> None:
    """Ranks and switches are stopped for a second, then plane b is cut, while sums are under way: all are exact."""
    cut_and_back("innet@a+innet@b", "softswitch", tmp_path, standstill=1.0)


@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=150)
def test_one_of_two_unlike_planes_is_cut(engine: Engine, tmp_path: Path) -> None:
    """Plane b is cut while a sum is under way: it and all others are exact, on one rail; back, it is used again."""
    # TCP may take longer than STALL to find out what was lost
    cut_and_back("innet@a+tcp@b", engine, tmp_path)


@in_sandbox(timeout=150)
def test_one_of_three_unlike_planes_is_cut(tmp_path: Path) -> None:
    """Folding, queue pairs and TCP at once: the queue pairs' plane goes and comes back, no sum is wrong."""
    cut_and_back("innet@a+roce@b+tcp@c", "softswitch", tmp_path)


def cut_and_back(rails: str, engine: Engine, tmp_path: Path, standstill: float = 0.0) -> None:
    one = leafspine(1, 0, 4, rate=RATES[engine], engine=engine)
    results = []
    fabrics = side_by_side([one] * len(rails.split("+")), sandbox.rundir())
    with Planes(fabrics, logs=tmp_path / "logs") as planes:
        ranks = planes.launch([*program("rank_rails.py"), str(NBYTES)], job="rails", env={
            "NETFOLD_RAILS": rails, "NETFOLD_RAIL_STALL": str(STALL),
        })
        for rank, line in ranks.lines(within=100):
            if line == "running":
                if standstill:
                    stand_still(planes, ranks, standstill)
                planes.cut(1)
            elif line == "died":
                planes.cut(1, up=True)
            else:
                results.append((rank, json.loads(line)))
        log = (tmp_path / "logs" / "a" / "rails-rank0.log").read_text()
    assert sorted(rank for rank, _ in results) == [0, 1, 2, 3]
    assert len({result["digest"] for _, result in results}) == 1
    assert all(result["deaths"] >= 1 and result["nbytes"] > 0 for _, result in results)
    assert re.search(r"rail \w+@b is down: ", log), log


@in_sandbox(timeout=150)
def test_a_group_of_ranks_folds_on_both_planes_and_loses_one_for_a_while(tmp_path: Path) -> None:
    """Three of four ranks have trees of their own on each plane, beside the job's.  Plane b is cut and comes back: all
    sums of the group and of the job are exact, and both use plane b again."""
    one = leafspine(1, 0, 4, rate=FASTER, engine="softswitch")
    results = {}
    with Planes(side_by_side([one] * 2, sandbox.rundir()), logs=tmp_path / "logs") as planes:
        ranks = planes.launch([*program("rank_rail_groups.py"), str(4 * NBYTES)], job="rails", env={
            "NETFOLD_RAILS": "innet@a+innet@b", "NETFOLD_RAIL_STALL": str(STALL),
        })
        for rank, line in ranks.lines(within=120):
            if line == "running":
                planes.cut(1)
            elif line == "died":
                planes.cut(1, up=True)
            else:
                results[rank] = json.loads(line)
    assert sorted(results) == [0, 1, 2]
    for result in results.values():
        assert result["deaths"] >= 1
        assert result["folded"] > 0
        # another number where a busy machine took plane a for dead, too
        assert re.search(r"tree\(s\) of 'rails\+0\S*#2-0-1\.\d+' on innet@a", result["why"]), result["why"]


@in_sandbox(timeout=150)
def test_two_jobs_over_both_planes_fold_beside_each_other(tmp_path: Path) -> None:
    """On the same hosts at once: both jobs fold, and so does a group of each."""
    one = leafspine(1, 0, 4, rate=FASTER, engine="softswitch")
    with Planes(side_by_side([one] * 2, sandbox.rundir()), logs=tmp_path / "logs") as planes:
        paths = beside(tmp_path, lambda name: planes.launch(
            [*program("rank_beside.py"), str(tmp_path)], job=name,
            env={"NETFOLD_RAILS": "innet@a+innet@b", "NETFOLD_RAIL_STALL": "5"}))
    for column, name in (("several rails", "job"), ("a group over several rails", "group")):
        assert all("innet@" in path and "TCP" not in path for path in paths[name]), paths
        assert combinations.OTHERS[column][combinations.BESIDE] == combinations.FOLDS


@in_sandbox(timeout=190)
def test_ranks_are_killed_and_come_back_over_both_planes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sum is exact, and what is left folds: by ``shrink`` and ``grow``, and by itself while plane b is cut.
    Groups are made anew, and fold."""
    one = leafspine(1, 0, 4, rate=FASTER, engine="softswitch")
    with Planes(side_by_side([one] * 2, sandbox.rundir()), logs=tmp_path / "logs") as planes:
        network, rails = planes.networks[0], "innet@a+innet@b"
        monkeypatch.setenv("NETFOLD_RAIL_STALL", str(STALL))
        with Survivors(network, "grow", "auto", planes=planes, rails=rails, job="grows", pause=PAUSE) as crew:
            _, fewer = crew.kill("h2")
            more = crew.bring_back("h2")
            crew.kill("h1", "h3")
            alike(crew.end(), 2)
        with Survivors(network, "by itself", "auto", planes=planes, rails="innet@a+tcp@b", job="itself", pause=PAUSE
                       ) as crew:
            planes.cut(1)
            crew.kill("h4")
            planes.cut(1, up=True)
            crew.kill("h1")
            alike(crew.end(), 2)
        env = {"NETFOLD_RAILS": rails, "NETFOLD_RAIL_STALL": "5"}
        command = [*program("rank_group_lost.py"), str(tmp_path)]
        old = planes.launch(command, job="lost", env=env)
        new = planes.launch([*command, "new"], job="lost", hosts=one.hosts[3:], env=env)
        left, came = [lines for lines in old.wait(within=100) if lines], new.wait(within=100)
        planes.check()
    for row, reached, world in ((combinations.GOES, fewer, 3), (combinations.COMES, more, 4)):
        assert [one.world for one in reached] == [world] * world
        assert all("innet@" in one.path for one in reached), reached
        assert combinations.OTHERS["several rails"][row] == combinations.FOLDS
        assert combinations.OTHERS["a group over several rails"][row] == combinations.ANEW
    said = [json.loads(lines[0]) for lines in left]
    assert [result["after"] for result in said] == [6] * 3
    for name in ("tree(s) of 'lost+0:", "on innet@b"):
        assert all(name in result["explain"] for result in said), said
    grown = [json.loads(lines[-1]) for lines in (*left, *came)]
    assert sum("innet@" in result.get("grown", "") for result in grown) == 3, grown


def alike(ends: list[Reached], world: int) -> None:
    """All ranks have ended with the same weights."""
    assert len({(end.step, end.checksum, end.world) for end in ends}) == 1, ends
    assert [end.world for end in ends] == [world] * world


@pytest.mark.needs("torch")
@pytest.mark.usefixtures("torch_in_forks")
@in_sandbox(timeout=190)
def test_torchs_groups_fold_over_several_rails(tmp_path: Path) -> None:
    """The groups of a DeviceMesh's dimension that spans leaves have trees of their own on the plane that folds, and the
    losses of HSDP, of tensor and data parallel training and of ZeRO are gloo's.  Two hosts below one leaf gain nothing.
    """
    one = leafspine(2, 1, 4, rate="200mbit", engine="softswitch")
    with Planes(side_by_side([one] * 2, sandbox.rundir()), logs=tmp_path / "logs") as planes:
        env = {"RES_OPTIONS": "timeout:1 attempts:1", "OMP_NUM_THREADS": "1", "NETFOLD_RAILS": "innet@a+tcp@b",
               "NETFOLD_RAIL_STALL": "5", "MASTER_ADDR": planes.fabrics[0].hosts[0].address, "MASTER_PORT": "29502"}
        ranks = planes.launch([*program("rank_torch_mesh.py"), "2", "2"], job="mesh", env=env)
        results = [json.loads(lines[-1]) for lines in ranks.wait(within=160)]
    for rank, result in enumerate(results):
        assert f"tree(s) of 'mesh+0#{rank % 2}-{rank % 2 + 2}.1' on innet@a" in result["replicate"], result["replicate"]
        assert "as they send each other" in result["shard"]
        for training in ("hsdp", "tensor_and_data_parallel", "zero"):
            assert result[training]["ours"] == pytest.approx(result[training]["gloo"], rel=1e-4), training
        # short sums may take the other plane, where a busy machine makes the switches' answers late
        assert sum(nbytes for groups in result["folded"].values() for nbytes in groups.values()) > 0


def stand_still(planes: Planes, ranks: Ranks, seconds: float) -> None:
    """Stops all that has a part in a sum for so long."""
    pids = [process.pid for process in ranks.processes]  # each leads a group
    pids += [network.mininet.get(s.name).child.pid for network in planes.networks for s in network.fabric.switches]
    try:
        for pid in pids:
            os.killpg(pid, signal.SIGSTOP)
        time.sleep(seconds)
    finally:
        for pid in pids:
            os.killpg(pid, signal.SIGCONT)


def test_planes_share_hosts_and_nothing_else() -> None:
    """Names, addresses, MACs, sockets and device ids of two planes differ; the hosts are the same."""
    one = leafspine(2, 2, 4, rundir=Path("/run"))
    a, b = on_plane(one, 0), on_plane(one, 1)
    assert [host.name for host in a.hosts] == [host.name for host in b.hosts]

    def places(fabric: Fabric) -> set[str]:
        switches = {str(value) for s in fabric.switches for value in (s.name, s.address, s.mac, s.grpc, s.device_id)}
        return switches | {value for host in fabric.hosts for value in (host.address, host.mac)}

    assert not places(a) & places(b)
    assert a.jobs != b.jobs
    with pytest.raises(ValueError, match=r"plane 8: expected 0 \.\. 7"):
        on_plane(one, 8)
