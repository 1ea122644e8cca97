# SPDX-License-Identifier: Apache-2.0
"""Collectives over planned, hashed, sprayed and recycled paths in real namespaces; and a link that breaks meanwhile."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from netfold.controller.paths.path_service import Table
from netfold.fabric.graph import Engine, Fabric
from netfold.topo.network import sandbox
from support import needs
from support.fabrics.fabrics import leafspine
from support.sandboxes import processes
from support.sandboxes.topo import ENGINES_LONG, in_sandbox, program, undisturbed

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.bench.commands.paths import MODES, run, show, summary
from netfold.bench.options.paths import PathsOptions
from netfold.topo.network.net import Network

pytestmark = pytest.mark.timeout(300)
SMALL = {
    "softswitch": PathsOptions(topo="leafspine,2,2,4", nbytes="400000", rounds=1),
    "bmv2": PathsOptions(topo="leafspine,2,2,4", rate="10mbit", switch="bmv2", nbytes="200000", rounds=1,
                         collectives="all_to_all,ring"),
}
LONG = {"softswitch": {"rate": "20mbit", "nbytes": "9600000"}, "bmv2": {"nbytes": "4800000"}}
"""Bytes that a link cannot carry before a busy machine has come to break it: some seconds."""
FRAME = 1100
"""Bytes of a packet on a link."""


@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=200)
def test_every_collective_is_exact_in_every_mode(engine: Engine, tmp_path: Path) -> None:
    """Each rank checks every element of its results."""
    options = replace(SMALL[engine], out=tmp_path)
    rows = summary(run(options), options)
    print(show(rows))
    collectives = SMALL[engine].collectives.split(",")
    assert {(row.collective, row.mode) for row in rows} == {(c, m) for c in collectives for m in MODES}


@pytest.mark.alone
@in_sandbox(timeout=150)
def test_a_planned_all_to_all_loads_the_uplinks_of_each_leaf_alike(tmp_path: Path) -> None:
    """Loads differ by less than a tenth and what had to be sent again."""
    options = replace(SMALL["softswitch"], modes="pinned", collectives="all_to_all", nbytes="800000", out=tmp_path)
    (cell,) = undisturbed(lambda: run(options), tmp_path / "logs", "paths")
    loads = [count for end, count in cell.uplinks.items() if end.startswith("leaf")]
    mean = statistics.mean(loads)
    assert len(loads) == 4
    assert max(loads) - mean < 0.1 * mean + FRAME * cell.retransmitted, cell


@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=150)
def test_a_link_that_breaks_in_an_all_to_all_is_left_by_the_hosts(engine: Engine, tmp_path: Path) -> None:
    """It swallows packets in silence, and no probe tells: time-outs move the pieces, all elements are right, and the
    controller is told, once another path has answered.  For how long a flow stands still is `netfold bench paths`' to
    say."""
    options = replace(SMALL[engine], modes="pinned", collectives="", fail_link=0.0, silent=True, probe=0.0,
                      out=tmp_path, **LONG[engine])
    (row,) = summary(run(options), options)
    print(show([row]))
    assert row.failed
    log = (tmp_path / "logs" / "controller.log").read_text()
    assert "no answer from rank" in log
    assert "suspect for leaf" in log


@pytest.mark.alone
@in_sandbox(timeout=150)
def test_tcp_is_led_off_a_path_that_dies(tmp_path: Path) -> None:
    """An uplink swallows packets in silence, and no probe tells: the ranks tell the controller, the switches lead their
    connections over other links, and all elements are right."""
    options = replace(SMALL["softswitch"], modes="pinned", collectives="", fail_link=0.0, silent=True, probe=0.0,
                      transport="tcp", out=tmp_path, **LONG["softswitch"])
    (row,) = summary(run(options), options)
    print(show([row]))
    assert row.failed
    log = (tmp_path / "logs" / "controller.log").read_text()
    assert "no answer from rank" in log
    assert "suspect for leaf" in log


def netfold(fabric: Fabric, *words: str) -> str:
    """A command, as an operator types it."""
    done = processes.netfold(*words, "--controller", fabric.jobs)
    assert done.returncode == 0, done.stderr
    return done.stdout


def netfold_paths(fabric: Fabric, *words: str) -> Table:
    """The output of `netfold paths` with these arguments."""
    return msgspec.json.decode(netfold(fabric, "paths", *words, "--json"), type=Table)


@pytest.mark.alone
@pytest.mark.parametrize("rail", ["roce", "tcp"])
@in_sandbox(timeout=200)
def test_a_communicator_keeps_to_the_plan(rail: str, tmp_path: Path) -> None:
    """All its packets with names between leaves are pinned, both uplinks carry alike; with one drained all take the
    other, and a mode set by the operator is in force."""
    fabric = leafspine(2, 2, 4, rate="100mbit", rundir=sandbox.rundir())
    with Network(fabric, logs=tmp_path / "logs") as network:

        def use() -> list[int]:
            """Bytes that leaf1's uplinks carried during a job, which begins when nobody suspects any of them."""
            end = time.monotonic() + 20
            while any(uplink.suspect_for for uplink in netfold_paths(fabric, "show").uplinks):
                assert time.monotonic() < end, "a suspicion ends after 5 s"
            before = [link.a_to_b.bytes for link in network.status().links]
            digests = network.launch([*program("paths_rank.py"), rail], job="planned").wait(within=90)
            assert len({lines[-1] for lines in digests}) == 1
            after = [link.a_to_b.bytes for link in network.status().links]
            return [y - x for x, y, link in zip(before, after, fabric.links, strict=True)
                    if link.a.startswith("leaf1") and link.b.startswith("spine")]

        loads = undisturbed(use, tmp_path / "logs", "planned")
        assert 0.8 < loads[0] / loads[1] < 1.25
        table = netfold_paths(fabric, "show")
        assert [leaf.mode for leaf in table.leaves] == ["pinned", "pinned"]
        assert table.unpinned == {}
        netfold(fabric, "drain", fabric.links[2].a)
        loads = undisturbed(use, tmp_path / "logs", "planned")
        assert loads[0] < loads[1] / 20, "what is left on it are the controller's probes"
        table = netfold_paths(fabric, "mode", "spray", "leaf2")
        assert [leaf.mode for leaf in table.leaves] == ["pinned", "spray"]
