# SPDX-License-Identifier: Apache-2.0
"""Collectives of rows through real switches: the compiled program, hosts and links in namespaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from netfold.fabric.graph import Engine
from netfold.topo.network import sandbox
from support import needs
from support.fabrics.fabrics import leafspine
from support.sandboxes.topo import ENGINES, in_sandbox, program

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.net import Network

pytestmark = pytest.mark.timeout(300)
RATES = {"softswitch": "1gbit", "bmv2": "20mbit"}
SHARES = {"softswitch": "1", "bmv2": "0.4"}
"""Of the longest rows: BMv2 takes several times as much of a processor for a packet."""


@pytest.mark.parametrize("engine", ENGINES)
@in_sandbox(timeout=200)
def test_rows_are_right_whatever_is_lost(engine: Engine, tmp_path: Path) -> None:
    """Two leaves and two spines, four ranks: every collective through the switches, exact at 2 % loss on all links,
    with rows of unlike lengths and none."""
    fabric = leafspine(2, 2, 4, rate=RATES[engine], loss=0.02, seed=3, engine=engine, rundir=sandbox.rundir())
    with Network(fabric, logs=tmp_path / "logs") as network:
        output = network.launch([*program("rank_rows.py"), "7", SHARES[engine]], job="rows").wait(within=150)
    results = [json.loads(lines[-1]) for lines in output]
    assert [result["paths"] for result in results] == [["innet"]] * 4
    assert sum(result["retransmissions"] for result in results) > 0
