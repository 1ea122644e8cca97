# SPDX-License-Identifier: Apache-2.0
"""The simulator's flows on real queue pairs: the same flows on the same links."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from netfold.bench.commands import simulated_folds, simulator
from netfold.bench.commands.simulated_folds import FoldCase, SimulatedSum
from netfold.bench.commands.simulator import Case
from netfold.bench.ranks.loss import LossResult
from netfold.bench.ranks.simulator import ReplayTimes
from netfold.cli.app import app
from netfold.controller.paths.steering import Steering
from netfold.fabric.generate import leafspine
from netfold.fabric.routing.clos import paths_of
from netfold.sim.engines.placement import SCHEMES
from netfold.sim.engines.topology import of_fabric
from netfold.sim.workloads.workload import COLLECTIVES
from netfold.topo.network import sandbox
from netfold.wire import roce
from netfold.wire.operator import LinkStatus
from support import needs
from support.sandboxes.topo import in_sandbox, undisturbed


@pytest.mark.parametrize("workload", ["all-to-all", "ring", "halving-doubling"])
def test_flows_are_those_of_the_simulator(workload: str) -> None:
    """Flows are the tasks in their order; source ports stand for the spines of the placement, equally often."""
    fabric = leafspine(2, 2, 8, rate="50mbit")
    topology = of_fabric(fabric, delay=1e-6)
    work = COLLECTIVES[workload](range(8), 1 << 20)
    flows, ports = simulator.flows(fabric, topology, work, simulator.SCHEME)
    named = Steering(fabric).ports(paths_of(fabric.graph())(fabric.graph()), "leaf1", "leaf2")
    assert [named[port][0].head for port in ports] == ["spine1", "spine2"]
    assert [(flow.source, flow.destination, flow.nbytes) for flow in flows] == list(
        zip(work.source.tolist(), work.destination.tolist(), work.size.tolist(), strict=True)
    )
    assert sorted((b, a) for a, flow in enumerate(flows) for b in flow.waits) == sorted(map(tuple, work.waits.tolist()))
    for flow in flows:  # a rank knows itself when its flow may go
        assert all(flow.source in (flows[w].source, flows[w].destination) for w in flow.waits)
    far = [flow for flow in flows if flow.source // 4 != flow.destination // 4]
    used = [port for flow in far for port in flow.ports]
    assert used.count(ports[0]) == used.count(ports[1]) > 0


def test_flows_that_cannot_be_replayed_are_refused() -> None:
    """A flow must be whole or in equal parts over all uplinks; other pieces are refused."""
    fabric = leafspine(2, 3, 4, rate="50mbit")
    topology = of_fabric(fabric, delay=1e-6)
    with pytest.raises(ValueError, match="expected it whole, or over all 3 uplinks"):
        simulator.flows(fabric, topology, COLLECTIVES["all-to-all"](range(4), 1 << 20), SCHEMES["netfold"])


@pytest.mark.alone
@pytest.mark.timeout(200)
@in_sandbox(timeout=180)
def test_every_link_of_a_real_fabric_carries_what_the_simulator_says(tmp_path: Path) -> None:
    """Bytes of a pinned all-to-all on each directed link differ by a tenth at most, for ACKs and retransmissions."""
    pytest.importorskip("mininet.net", reason=needs.reason("mininet"))
    from netfold.topo.network.net import Network

    fabric = leafspine(2, 2, 4, rate="100mbit", rundir=sandbox.rundir(), path_mtu=roce.PATH_MTU)
    topology = of_fabric(fabric, delay=simulator.DELAY)
    work = COLLECTIVES["all-to-all"](range(4), 1_000_000)
    with Network(fabric, logs=tmp_path) as network:

        def measure() -> tuple[list[LinkStatus], ReplayTimes, list[LinkStatus]]:
            before = network.status().links
            times = simulator.real(network, Case("all-to-all", 2), work, topology, 8, 1, tmp_path)
            return before, times, network.status().links

        before, times, after = undisturbed(measure, tmp_path, "all-to-all-2")
    assert times.ends[0] > times.begins[0]
    expected = simulator.simulated(topology, work, 8).link_bytes
    repeats = 1082 * times.resent
    found = np.zeros(topology.links)
    for was, link in zip(before, after, strict=True):
        ends = {link.a: link.b_to_a.bytes - was.b_to_a.bytes, link.b: link.a_to_b.bytes - was.a_to_b.bytes}
        lower, upper = sorted(ends, key=lambda end: "hls".index(end[0]))  # a host, a leaf, a spine
        node = int(lower.split(":")[0].lstrip("hleaf")) - 1
        if lower[0] == "h":
            up, down = node, topology.size + node
        else:
            spine = int(upper.split(":")[0].removeprefix("spine")) - 1
            up = 2 * topology.size + node * 2 + spine
            down = up + 4
        found[up], found[down] = ends[upper], ends[lower]
    twice = 2 * expected  # the round that opens connections, and one that counts
    assert np.all(found >= 0.99 * twice), found / twice
    assert np.all(found <= 1.12 * twice + repeats), found / twice


@pytest.mark.parametrize(("option", "value", "says"), [
    ("--rounds", "0", "--rounds 0: expected 1 or more"), ("--rate", "fast", "expected a rate"),
    ("--cases", "flows,trees", "--cases trees: expected some of flows, folds"),
])
def test_what_cannot_be_compared_is_refused_before_anything_starts(option: str, value: str, says: str) -> None:
    """A wrong option ends with status 2 and one line."""
    result = CliRunner().invoke(app, ["bench", "simulator", option, value])
    assert (result.exit_code, result.output.startswith("netfold: bench simulator: ")) == (2, True)
    assert says in result.output


@pytest.mark.parametrize(("leaves", "spines", "ranks", "loss"), [(1, 0, 2, 0.0), (2, 1, 4, 0.0), (2, 2, 8, 0.0),
                                                                (2, 1, 8, 0.01)])
def test_a_simulated_sum_takes_its_links_time(leaves: int, spines: int, ranks: int, loss: float) -> None:
    """As many ranks on each leaf; without loss the time of a tensor with its headers over one link and a few packets
    more; losses cost more, and packets sent again."""
    case = FoldCase(leaves, spines, ranks, loss, 1 << 20)
    hosts = simulated_folds.members(case)
    assert [sum(host * leaves // 8 == leaf for host in hosts) for leaf in range(leaves)] == [ranks // leaves] * leaves
    fabric = leafspine(leaves, spines, 8, rate="50mbit")
    found = simulated_folds.simulated(fabric, of_fabric(fabric, delay=simulator.DELAY), case, 512)
    line = 8 * (1 << 20) * (1 + 58 / fabric.path_mtu) / 50e6
    assert line < found.seconds < (1.2 if loss else 1.03) * line
    assert (found.again > 0) == (loss > 0)


def test_a_sum_takes_as_long_as_its_slowest_rank() -> None:
    """The median of the sums, and the ranks' repeats and time-outs."""
    took = [LossResult([1.0, 2.0, 9.0], 1, 1, 100, 3), LossResult([3.0, 1.0, 1.0], 3, 3, 100, 0)]
    row = simulated_folds.compared(FoldCase(1, 0, 2, 0.0, 4), took, SimulatedSum(4.5, 0.0, 0.0))
    assert (row.real, row.measured, row.ratio) == ([3.0, 2.0, 9.0], 3.0, 1.5)
    assert (row.again, row.timeouts) == (0.02, 1.0)
