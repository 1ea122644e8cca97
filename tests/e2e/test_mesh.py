# SPDX-License-Identifier: Apache-2.0
"""A mesh of real switches: TidalMesh along its links, and folding on a tree through them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from netfold.topo.network import sandbox
from support import needs
from support.fabrics.fabrics import parse
from support.sandboxes.topo import in_sandbox, program

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.net import Network

pytestmark = pytest.mark.timeout(300)


@in_sandbox(timeout=200)
def test_neighbours_on_a_mesh_sum_along_its_links(tmp_path: Path) -> None:
    """2 x 3 places: exact sums by TidalMesh, by a ring, and by a tree of switches three levels deep."""
    fabric = parse("mesh,2,3", rate="200mbit", rundir=sandbox.rundir())
    with Network(fabric, logs=tmp_path / "logs") as network:
        output = network.launch(program("rank_mesh.py"), job="mesh").wait(within=150)
    paths = [json.loads(lines[-1]) for lines in output]
    assert paths == [paths[0]] * 6
    assert [path.partition(" (")[0] for path in paths[0]] == ["TCP, tidalmesh"] * 3 + ["TCP, ring"] * 3 + ["innet"] * 3
