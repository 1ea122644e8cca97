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

from netfold.fabric.graph import Engine, Fabric
from netfold.topo.network import sandbox
from support import combinations, needs
from support.fabrics import leafspine
from support.topo import ENGINES, beside, in_sandbox, program

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.planes import Planes, on_plane, side_by_side
from netfold.topo.processes.ranks import Ranks

pytestmark = pytest.mark.timeout(200)
SIZES = {"softswitch": ("100mbit", 4 << 20), "bmv2": ("10mbit", 512 << 10)}

STALL = 0.4
"""Seconds: a busy machine must not look like a dead rail; how soon one is found is the benchmark's to say."""


@in_sandbox(timeout=150)
def test_a_folding_plane_that_is_cut_costs_no_sum(tmp_path: Path) -> None:
    """Ranks and switches are stopped for a second, then plane b is cut, while sums are under way: all are exact."""
    cut_and_back("innet@a+innet@b", "softswitch", tmp_path, standstill=1.0)


@pytest.mark.parametrize("engine", ENGINES)
@in_sandbox(timeout=150)
def test_one_of_two_unlike_planes_is_cut(engine: Engine, tmp_path: Path) -> None:
    """Plane b is cut while a sum is under way: it and all others are exact, on one rail; back, it is used again."""
    cut_and_back("innet@a+tcp@b", engine, tmp_path)  # TCP may take longer than STALL to find out what was lost


@in_sandbox(timeout=150)
def test_one_of_three_unlike_planes_is_cut(tmp_path: Path) -> None:
    """Folding, queue pairs and TCP at once: the queue pairs' plane goes and comes back, no sum is wrong."""
    cut_and_back("innet@a+roce@b+tcp@c", "softswitch", tmp_path)


def cut_and_back(rails: str, engine: Engine, tmp_path: Path, standstill: float = 0.0) -> None:
    rate, nbytes = SIZES[engine]
    one = leafspine(1, 0, 4, rate=rate, engine=engine)
    results = []
    fabrics = side_by_side([one] * len(rails.split("+")), sandbox.rundir())
    with Planes(fabrics, logs=tmp_path / "logs") as planes:
        ranks = planes.launch([*program("rank_rails.py"), str(nbytes)], job="rails", env={
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
    rate, nbytes = SIZES["softswitch"]
    one = leafspine(1, 0, 4, rate=rate, engine="softswitch")
    results = {}
    with Planes(side_by_side([one] * 2, sandbox.rundir()), logs=tmp_path / "logs") as planes:
        ranks = planes.launch([*program("rank_rail_groups.py"), str(nbytes)], job="rails", env={
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
        assert "tree(s) of 'rails#2-0-1.1' on innet@a" in result["why"]


@in_sandbox(timeout=150)
def test_two_jobs_over_both_planes_fold_beside_each_other(tmp_path: Path) -> None:
    """On the same hosts at once: both jobs fold, and so does a group of each."""
    rate, _ = SIZES["softswitch"]
    one = leafspine(1, 0, 4, rate=rate, engine="softswitch")
    with Planes(side_by_side([one] * 2, sandbox.rundir()), logs=tmp_path / "logs") as planes:
        paths = beside(tmp_path, lambda name: planes.launch(
            [*program("rank_beside.py"), str(tmp_path)], job=name,
            env={"NETFOLD_RAILS": "innet@a+innet@b", "NETFOLD_RAIL_STALL": "5"}))
    for column, name in (("several rails", "job"), ("a group over several rails", "group")):
        assert all("innet@" in path and "TCP" not in path for path in paths[name]), paths
        assert combinations.OTHERS[column][combinations.BESIDE] == combinations.FOLDS


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
