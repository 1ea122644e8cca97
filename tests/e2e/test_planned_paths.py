# SPDX-License-Identifier: Apache-2.0
"""Paths that the controller has planned in real namespaces: how they load links, and who leaves one that dies.

The results depend on loads and time-outs, so no other test in namespaces runs beside these.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest

from netfold.controller.paths.path_service import Table
from netfold.fabric.graph import Fabric
from netfold.topo.network import sandbox
from support import needs
from support.fabrics.fabrics import leafspine
from support.fabrics.paths import LONG, SMALL
from support.sandboxes import processes
from support.sandboxes.topo import in_sandbox, program, undisturbed

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.bench.commands.paths import run, show, summary
from netfold.topo.network.net import Network

pytestmark = [pytest.mark.timeout(300), pytest.mark.alone]
FRAME = 1100
"""Bytes of a packet on a link."""


@in_sandbox(timeout=150)
def test_a_planned_all_to_all_loads_the_uplinks_of_each_leaf_alike(tmp_path: Path) -> None:
    """Loads differ by less than a tenth and what had to be sent again."""
    options = replace(SMALL["softswitch"], modes="pinned", collectives="all_to_all", nbytes="800000", out=tmp_path)
    (cell,) = undisturbed(lambda: run(options), tmp_path / "logs", "paths")
    loads = [count for end, count in cell.uplinks.items() if end.startswith("leaf")]
    mean = statistics.mean(loads)
    assert len(loads) == 4
    assert max(loads) - mean < 0.1 * mean + FRAME * cell.retransmitted, cell


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


@in_sandbox(timeout=250)
def test_communicators_keep_to_the_plan(tmp_path: Path) -> None:
    """All their packets with names between leaves are pinned, both uplinks carry alike; with one drained all take the
    other, and a mode set by the operator is in force."""
    fabric = leafspine(2, 2, 4, rate="100mbit", rundir=sandbox.rundir())
    with Network(fabric, logs=tmp_path / "logs") as network:

        def use(rail: str) -> list[int]:
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

        for rail in ("roce", "tcp"):
            loads = undisturbed(partial(use, rail), tmp_path / "logs", "planned")
            assert 0.8 < loads[0] / loads[1] < 1.25
        table = netfold_paths(fabric, "show")
        assert [leaf.mode for leaf in table.leaves] == ["pinned", "pinned"]
        assert table.unpinned == {}
        netfold(fabric, "drain", fabric.links[2].a)
        for rail in ("roce", "tcp"):
            loads = undisturbed(partial(use, rail), tmp_path / "logs", "planned")
            assert loads[0] < loads[1] / 20, "what is left on it are the controller's probes"
        table = netfold_paths(fabric, "mode", "spray", "leaf2")
        assert [leaf.mode for leaf in table.leaves] == ["pinned", "spray"]
