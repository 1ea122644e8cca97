# SPDX-License-Identifier: Apache-2.0
"""An operator's commands on running fabrics in real namespaces: what they do to switches, cables and running ranks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from netfold.fabric.graph import Engine, Fabric
from netfold.topo.network import sandbox
from netfold.wire.operator import Status
from support import needs
from support.fabrics.fabrics import leafspine
from support.sandboxes import processes
from support.sandboxes.steady import Steady
from support.sandboxes.topo import ENGINES_LONG, in_sandbox

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.net import Network

pytestmark = pytest.mark.timeout(300)
RATES = {"softswitch": "1gbit", "bmv2": "50mbit"}


def netfold(fabric: Fabric, *words: str) -> str:
    """A command, as an operator types it."""
    done = processes.netfold(*words, "--controller", fabric.jobs)
    assert done.returncode == 0, done.stderr
    return done.stdout


def through(switch: str, status: Status) -> list[object]:
    """Everything that a switch has counted, whenever it was read."""
    ends = [[msgspec.structs.replace(way, read=0.0) for way in (link.a_to_b, link.b_to_a)] for link in status.links
            if switch in (link.a.partition(":")[0], link.b.partition(":")[0])]
    return [*ends, *(s.folded for s in status.switches if s.name == switch)]


def slots_used(switch: str, status: Status) -> int:
    """The number of a switch's slots that all jobs together use."""
    return next(s.slots_used for s in status.switches if s.name == switch)


@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=200)
def test_a_spine_is_drained_under_running_ranks(engine: Engine, tmp_path: Path) -> None:
    """All ranks go on without it, no sum is wrong and none is lost; not one packet passes it any more, until it is used
    again."""
    fabric = leafspine(2, 2, 4, rate=RATES[engine], engine=engine, rundir=sandbox.rundir())
    fabric = msgspec.structs.replace(fabric, probe=0)  # probes would be packets
    with Network(fabric, logs=tmp_path / "logs") as network, Steady(network, seed=11) as steady:
        assert netfold(fabric, "drain", "spine1") == "spine1 is drained; now drained: spine1\n"
        assert [tree.root for tree in steady.round(1).trees] == ["spine2", "spine2"]
        looks: list[object] = []

        def at_rest(status: Status) -> bool:
            """Nothing more came through between two looks: what is in the switch's sockets has been counted."""
            looks.append(through("spine1", status))
            return not slots_used("spine1", status) and looks[-1:] == looks[-2:-1]

        before = steady.until("spine1 holds nothing of the job, and forwards nothing", at_rest)
        steady.go_on()
        after = network.status()
        assert through("spine1", after) == through("spine1", before)
        assert through("spine2", after) != through("spine2", before)
        assert [(s.name, s.up) for s in after.switches if s.drained] == [("spine1", True)]
        assert netfold(fabric, "undrain", "spine1") == "spine1 is in use again; now drained: nothing\n"
        assert [tree.root for tree in steady.round(2).trees] == ["spine1", "spine2"]
        ends = steady.end()
    assert [(end["rail"], end["rounds"]) for end in ends] == [("innet", 2)] * 4
    assert len({end["operations"] for end in ends}) == 1
