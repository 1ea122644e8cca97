# SPDX-License-Identifier: Apache-2.0
"""Sums under faults of links and packets, in real namespaces: exact on every rank, in bounded time, on both engines."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from netfold.fabric import generate
from netfold.fabric.generate import Faults
from netfold.fabric.graph import Engine, Fabric
from netfold.host.innet.core import CREDITS_VARIABLE
from netfold.rpc import local
from netfold.topo.network import sandbox
from netfold.topo.processes import lifecycle
from netfold.wire import faults
from netfold.wire.operator import Status
from support import needs
from support.fabrics.fabrics import leafspine, threetier
from support.sandboxes.steady import Steady
from support.sandboxes.topo import ENGINES, ENGINES_LONG, in_sandbox, program
from switch_support.bmv2 import slow_queue
from switch_support.ports import wait_for

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.fault_service import FaultService
from netfold.topo.network.net import Network
from netfold.topo.network.switches import thrift_port

pytestmark = pytest.mark.timeout(300)
RATES = {"softswitch": "1gbit", "bmv2": "20mbit"}
SIZES = {"softswitch": 120_000, "bmv2": 40_000}
"""Elements of a sum: enough to go around the slots."""
ALL = Faults(loss=0.01, duplicate=0.03, reorder=0.03, corrupt=0.01)


def finish(
    network: Network, rounds: int, *, elements: int = 0, within: float = 150, credits: str = ""
) -> list[dict[str, Any]]:
    """Run the rounds on every host; what each rank says at the end.  A wrong sum fails a rank."""
    command = [*program("rank_rounds.py"), "5", str(rounds), str(elements or SIZES[network.fabric.engine])]
    output = network.launch(command, job="rounds", env={CREDITS_VARIABLE: credits}).wait(within=within)
    results = [json.loads(lines[-1]) for lines in output]
    assert {result["rail"] for result in results} == {"innet"}
    return results


def dropped(network: Network) -> int:
    """Packets that switches dropped because their ICRC did not hold: all that were changed on their way there."""
    return sum(switch.corrupt for switch in network.status().switches)


def done(network: Network) -> dict[str, int]:
    """Faults of all links, by what they did."""
    ways = [way for link in network.status().links for way in (link.a_to_b, link.b_to_a)]
    return {what: sum(getattr(way, what) for way in ways) for what in ("lost", "corrupted", "duplicated", "held")}


@pytest.mark.parametrize(("engine", "faults"), [
    pytest.param("softswitch", Faults(loss=0.1), id="softswitch-loss 10 %"),
    pytest.param("softswitch", ALL, id="softswitch-all faults"),
    pytest.param("bmv2", ALL, id="bmv2-all faults", marks=pytest.mark.needs("bmv2")),
])
@in_sandbox(timeout=200)
def test_packet_faults_do_not_change_a_sum(engine: Engine, faults: Faults, tmp_path: Path) -> None:
    """Losing, repeating, delaying and corrupting packets on all links costs retransmissions and nothing else."""
    fabric = leafspine(2, 2, 4, rate=RATES[engine], seed=6, engine=engine, rundir=sandbox.rundir(), **faults)
    with Network(fabric, logs=tmp_path / "logs") as network:
        results = finish(network, 3)
        # packets may still be under way, and counters are read one after another
        wait_for(lambda: done(network)["corrupted"] == dropped(network))
        counted = done(network)
    print(counted, results)
    for fault, what in (("loss", "lost"), ("corrupt", "corrupted"), ("duplicate", "duplicated"), ("reorder", "held")):
        assert (counted[what] > 0) == (faults.get(fault, 0.0) > 0), counted
    assert all(result["retransmissions"] > 0 for result in results)


def three_tiers(engine: Engine) -> Fabric:
    """Two pods of two leaves under two spines: eight ranks, ten switches, trees of depth 3."""
    return threetier(2, 2, 2, 2, 8, rate=RATES[engine], seed=2, engine=engine, rundir=sandbox.rundir(), **ALL)


@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=200)
def test_three_tiers_fold_and_recover_level_by_level(engine: Engine, tmp_path: Path) -> None:
    """Eight ranks over trees of three levels, one a spine, exact while every link loses, repeats and delays: switches
    of each level answer repeats, and those below the roots ask."""

    def counted(status: Status, what: str) -> dict[str, int]:
        return {role: sum(getattr(switch.folded, what) for switch in status.switches if switch.role == role)
                for role in ("leaf", "agg", "spine")}

    def recovered(status: Status) -> bool:
        asked = counted(status, "asked")
        return min(counted(status, "answered").values()) > 0 and asked["leaf"] > 0 and asked["agg"] > 0

    with Network(three_tiers(engine), logs=tmp_path / "logs") as network, Steady(network, seed=5) as steady:
        status = steady.until("all levels repair", recovered)
        ends = steady.end()
    assert counted(status, "asked")["spine"] == 0, "the root has nobody to ask"
    assert len({end["operations"] for end in ends}) == 1
    assert all(end["rail"] == "innet" and end["trees"] == ["spine1", "spine2"] for end in ends)
    assert all(end["retransmissions"] > 0 for end in ends)
    for tree in status.jobs[0].trees:
        assert len(tree.switches) == 7
        assert len(tree.switches[tree.root]) == 2


FLAPS = {"shorter than a time-out": 0.01, "longer": 0.4}
"""Seconds that a link is out; silence lets time-outs grow to NF_RTO_SILENT, 50 ms."""


@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=200)
def test_links_may_flap_in_the_middle(engine: Engine, tmp_path: Path) -> None:
    """A host's link and a link between switches go out and come back, for longer than time-outs and shorter, while
    ranks sum without a break: all sums are exact."""
    fabric = generate.leafspine(2, 2, 4, rate=RATES[engine], engine=engine, rundir=sandbox.rundir())
    victims = [next(link for link in fabric.links if fragment in link.b) for fragment in ("h1:", "spine1:")]
    with Network(fabric, logs=tmp_path / "logs") as network, Steady(network, seed=5) as steady:
        for link in victims:
            for seconds in FLAPS.values():
                network.set_link(link, up=False)
                time.sleep(seconds)  # the fault's length, not a wait for anything
                network.set_link(link, up=True)
                steady.go_on()
        ends = steady.end()
    assert [end["rail"] for end in ends] == ["innet"] * 4
    assert len({end["operations"] for end in ends}) == 1
    assert sum(end["retransmissions"] for end in ends) > 0, "no flap hit anything"


SLOW = {"softswitch": 600_000, "bmv2": 40_000}
"""Elements of a sum over a port that slows it down to a second or less."""


FEW = "1x4"
"""Credits: one message of four packets in flight in a tree.  BMv2 marks above 8 packets, softswitch above 32."""


def slow_port(network: Network) -> None:
    """Makes leaf1's way up a hundredth as fast as the others: its queue grows in the switch itself."""
    leaf = next(switch for switch in network.fabric.switches if switch.name == "leaf1")
    up = next(end for link in network.fabric.links for end in link.ends if end.node == "leaf1" and "spine1" in link.b)
    slow_queue(thrift_port(leaf.device_id), up.port, 300)


@pytest.mark.parametrize("engine", ENGINES)
@in_sandbox(timeout=120)
def test_a_slow_link_marks_and_every_rank_hears_of_it(engine: Engine, tmp_path: Path) -> None:
    """Sums queue at a leaf whose way up is slow: their marks reach all ranks in the results, also those under the other
    leaf.  Credits for fewer packets than the queue holds before it marks leave no mark, but for packets that a rank
    repeats."""
    if engine == "bmv2":
        needs.require("thrift")
    fabric = leafspine(2, 1, 4, rate="1gbit", engine=engine, rundir=sandbox.rundir())
    if engine == "softswitch":      # its queue is that of the link; BMv2 has its own before it
        links = tuple(msgspec.structs.replace(link, rate="20mbit") if "leaf1" in link.a and "spine1" in link.b else link
                      for link in fabric.links)
        fabric = msgspec.structs.replace(fabric, links=links)
    with Network(fabric, logs=tmp_path / "logs") as network:
        if engine == "bmv2":
            slow_port(network)
        for _ in range(10):  # on a busy machine the ranks may send more slowly than the port
            results = finish(network, 2, elements=SLOW[engine])
            marks = [result["marks"] for result in results]
            if any(marks):
                break
        results = finish(network, 2, elements=SLOW[engine], credits=FEW)
    with_credits = [result["marks"] for result in results]
    repeats = sum(result["retransmissions"] for result in results)
    print(marks, with_credits, repeats)
    assert all(count > 0 for count in marks), marks
    assert sum(with_credits) <= 4 * repeats, "only repeats make the queue longer than the credits"


@in_sandbox(timeout=150)
def test_a_switch_that_stands_still_ends_with_its_fabric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fault is undone before anything stops, so that it ends by itself with status 0, and no fault is undone in a
    fabric that has gone."""
    monkeypatch.setattr(lifecycle, "STOP_SECONDS", 60.0)  # a busy machine is no reason to kill it
    network = Network(leafspine(2, 1, 2, rate="1gbit", rundir=sandbox.rundir()), logs=tmp_path / "logs")
    with FaultService([network], sandbox.rundir()) as service, network, service.while_up():
        spine = next(switch.child for switch in network.switches if switch.name == "spine1")
        said = local.call(sandbox.rundir() / faults.SOCKET, faults.Inject("stop", "spine1", seconds=600.0),
                          faults.Answer, 30.0)[0]
        assert isinstance(said, faults.Injected), said
    assert spine is not None
    assert spine.poll() == 0
