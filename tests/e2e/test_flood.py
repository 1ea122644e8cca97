# SPDX-License-Identifier: Apache-2.0
"""A host outside the job that floods the address of link probes takes no link out of use, and ends no job."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from netfold.fabric.graph import Engine
from netfold.topo.network import sandbox
from support import needs
from support.fabrics.fabrics import leafspine
from support.sandboxes.steady import Steady
from support.sandboxes.topo import ENGINES_LONG, in_sandbox, program

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.net import Network

pytestmark = pytest.mark.timeout(300)
SECONDS = 6.0
"""Length of the flood: longer than a link takes to be judged by its probes, which is 5 s."""
FEW = 1000
"""Packets, of which a flood has many more."""
PACKETS = 150_000
"""Datagrams of the flood at most."""
RATES = {"softswitch": "1gbit", "bmv2": "50mbit"}


@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=200)
def test_a_flood_of_link_probes_from_a_host_judges_no_link(engine: Engine, tmp_path: Path) -> None:
    """The leaf drops and counts what the host sends, nothing of it reaches the controller, all links stay up, and the
    job's ranks go on over their trees, every sum exact."""
    fabric = leafspine(2, 2, 5, rate=RATES[engine], engine=engine, rundir=sandbox.rundir())
    fabric = msgspec.structs.replace(fabric, probe=0.1, misses=50)
    with Network(fabric, logs=tmp_path / "logs") as network, Steady(network, seed=4, hosts=4) as steady:
        flood = network.launch([*program("flood.py"), "224.0.0.2", str(SECONDS), str(PACKETS)], job="flood",
                               hosts=fabric.hosts[4:])
        leaf = fabric.leaf_of()[fabric.hosts[4].name]

        def refused() -> int:
            return next(switch.punts.refused for switch in network.status().switches if switch.name == leaf)

        steady.until("the flood arrives", lambda _: refused() > FEW)
        while flood.processes[0].poll() is None:
            steady.go_on()
            assert [link for link in network.status().links if not link.up] == []
        ((line,),) = flood.wait(within=60)
        status = network.status()
        ends = steady.end()
    found = next(switch.punts.refused for switch in status.switches if switch.name == leaf)
    assert FEW < found <= json.loads(line)["sent"]
    # a switch that stood still forwards at once the probes that have waited for it
    assert all(switch.punts.over_rate + switch.punts.dropped < FEW for switch in status.switches), status.switches
    assert [(end["rail"], end["rounds"]) for end in ends] == [("innet", 0)] * 4
    assert len({end["operations"] for end in ends}) == 1
