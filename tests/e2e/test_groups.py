# SPDX-License-Identifier: Apache-2.0
"""Groups of some ranks through real switches: the compiled program, hosts and links in namespaces, the controller."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from netfold.fabric.graph import Engine
from netfold.topo.network import sandbox
from support import needs
from support.docs import combinations
from support.fabrics.fabrics import leafspine
from support.sandboxes.topo import ENGINES_LONG, beside, in_sandbox, program

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.net import Network

pytestmark = pytest.mark.timeout(300)
RATES = {"softswitch": "1gbit", "bmv2": "20mbit"}
MESHES = 3
"""Random meshes of the four ranks; tests/host/api/test_group_folds.py has more, in memory."""
ACROSS = ("0 2", "1 3", "0 1 2", "3 1 2", "3 0")
"""Groups with something to gain."""
BELOW = ("0 1", "2 3")
"""Groups of two hosts below one leaf."""


@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=250)
def test_the_groups_of_a_mesh_fold_beside_their_job(engine: Engine, tmp_path: Path) -> None:
    """Four ranks below two leaves: both dimensions of a (2, 2) mesh, groups that overlap, and the job itself sum right
    at 2 % loss.  What spans leaves folds, as the ranks and the controller's status show; two hosts below one leaf go
    between the hosts, with the reason.  A closed group gives its slots back, and nothing is left in the end.

    Then the groups of random meshes, one after the other, do the same.  A rank that dies ends its group alone; those
    that are left shrink, let another rank in, and make groups anew each time."""
    fabric = leafspine(2, 2, 4, rate=RATES[engine], loss=0.02, seed=3, engine=engine, rundir=sandbox.rundir())
    with Network(fabric, logs=tmp_path / "logs") as network:
        ranks = network.launch([*program("rank_groups.py"), "7", str(tmp_path), str(MESHES)],
                               job="mesh")
        status, end = network.status(), time.monotonic() + 150
        while sum(job.group_of == "mesh" and job.state == "active" for job in status.jobs) < len(ACROSS):
            network.check()
            assert time.monotonic() < end, status.jobs
            status = network.status()
        (tmp_path / "look").touch()
        output = ranks.wait(within=150)
        after = network.status()
        changing = network.launch([*program("rank_group_lost.py"), str(tmp_path)], job="lost")
        new = network.launch([*program("rank_group_lost.py"), str(tmp_path), "new"], job="lost",
                             hosts=fabric.hosts[3:])
        lost, came = changing.wait(within=100), new.wait(within=100)
    results = [json.loads(lines[-1]) for lines in output]
    groups = {job.name.partition("#")[2]: job for job in status.jobs if job.group_of}
    assert set(groups) == {f"{name.replace(' ', '-')}.1" for name in ACROSS}
    assert all(job.trees for job in groups.values())
    found: dict[str, list[dict[str, object]]] = {}
    for result in results:
        for name, what in result["groups"].items():
            found.setdefault(name, []).append(what)
    for name in ACROSS:
        for what in found[name]:
            assert "tree(s) for this group" in str(what["explain"])
            assert sum(what["bytes"].values()) > 4 * 40_000  # type: ignore[attr-defined]
    for name in BELOW:
        assert all("send each other" in str(what["explain"]) and not what["bytes"] for what in found[name])
    for members, folds in (made for result in results for made in result["meshes"]):
        alone = len(members) == 1 or set(members) in ({0, 1}, {2, 3})
        assert folds != alone, members
    spines = [switch for switch in after.switches if switch.name.startswith("spine")]
    assert all(switch.folded.first > 0 for switch in spines)
    assert {job.name: job.state for job in after.jobs} == {"mesh": "finished"}
    assert all(switch.slots_used == 0 for switch in after.switches)
    left = [json.loads(lines[0]) for lines in lost if lines]
    assert [bool(rank["error"]) for rank in left] == [False, True, False]
    assert "lost rank 1 at 10.0.2.2 (h4)" in left[1]["error"]
    assert all(rank["after"] == 6 and "tree(s) for this group" in rank["explain"] for rank in left)
    grown = [json.loads(lines[-1]) for lines in (*lost, *came) if lines]
    assert [rank["grown"] for rank in grown if "grown" in rank] == ["innet"] * 3, grown
    cells = combinations.OTHERS["a group of some ranks"]
    assert cells[combinations.GOES] == cells[combinations.COMES] == combinations.ANEW


@in_sandbox(timeout=150)
def test_two_jobs_and_a_group_of_each_fold_beside_each_other(tmp_path: Path) -> None:
    """On the same hosts at once, with the default choice of rail."""
    fabric = leafspine(2, 2, 4, rate="100mbit", rundir=sandbox.rundir())
    with Network(fabric, logs=tmp_path / "logs") as network:
        paths = beside(tmp_path, lambda name: network.launch(
            [*program("rank_beside.py"), str(tmp_path)], job=name, env={"NETFOLD_ALGO": "innet"}))
    assert {path for name in ("job", "group") for path in paths[name]} == {"innet"}, paths
    assert combinations.OTHERS["a group of some ranks"][combinations.BESIDE] == combinations.FOLDS
