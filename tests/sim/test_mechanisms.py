# SPDX-License-Identifier: Apache-2.0
"""One mechanism of the packet simulator at a time, on cases small enough to count by hand.

Each of these fails if its mechanism is left out (tried by leaving it out), which laws of conservation do not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from netfold.sim.engines.packet import Fault, PacketOutcome, Transport, simulate
from netfold.sim.engines.placement import SCHEMES, place
from netfold.sim.engines.topology import ClosCable, Topology, leaf_spine
from netfold.sim.workloads.workload import Workload, all_to_all

TWO_LEAVES = leaf_spine(hosts=16, leaves=2, spines=1)
EXACT = Transport(jitter=0, rto=1e-3)
WIRE = EXACT.mtu + EXACT.header
SERIAL = WIRE * 8 / 400e9
HOP = SERIAL + 500e-9


def flows(*rows: tuple[int, int, int]) -> Workload:
    """Flows (source, destination, packets) that all start at once."""
    source, destination, packets = np.array(rows, np.int64).T
    n = len(rows)
    return Workload(source, destination, packets * EXACT.mtu, np.zeros(n), np.zeros(n, np.int64),
                    np.zeros((0, 2), np.int64))


def run(topology: Topology, work: Workload, scheme: str = "ecmp", **changes: object) -> PacketOutcome:
    faults = changes.pop("faults", ())
    return simulate(topology, work, SCHEMES[scheme], transport=replace(EXACT, **changes), faults=faults, deadline=0.5)


@pytest.mark.parametrize("threshold", [0, 1, 3, 6])
def test_just_what_finds_more_than_the_threshold_is_marked(threshold) -> None:
    """Seven packets reach a queue at one moment: packet k finds k before it, and is marked above the threshold."""
    work = flows(*[(i, 7, 1) for i in range(7)])
    outcome = run(TWO_LEAVES, work, ecn=threshold * WIRE + 1)
    assert outcome.counts["marked"] == sum(k * WIRE > threshold * WIRE + 1 for k in range(7))


@pytest.mark.parametrize("room", [1, 4, 7])
def test_a_switch_drops_what_its_buffer_does_not_hold(room) -> None:
    """Seven packets reach a leaf at one moment: what it has no room for is lost, and comes again after a time-out."""
    outcome = run(TWO_LEAVES, flows(*[(i, 7, 1) for i in range(7)]), buffer=room * WIRE)
    first = 7 - room
    assert outcome.counts["dropped"] >= first
    assert (outcome.counts["dropped"] == 0) == (room == 7)
    assert outcome.counts["timeouts"] == outcome.counts["resent"] == outcome.counts["dropped"]


def test_packets_on_a_link_are_lost_when_it_breaks() -> None:
    """The only packet is on its way to the spine: it is lost, repeated after a time-out, and counted so."""
    cable = ClosCable("leaf", 0, 0)
    halfway = HOP + SERIAL / 2
    faults = [Fault(cable, halfway, 0.1), Fault(cable, 1e-4, 0.1, up=True)]
    outcome = run(TWO_LEAVES, flows((0, 8, 1)), faults=faults)
    assert outcome.time == pytest.approx(EXACT.rto + 4 * HOP, abs=1e-12)
    assert [outcome.counts[name] for name in ("dropped", "timeouts", "resent", "sent")] == [1, 1, 1, 2]


def test_a_dead_link_takes_nothing_even_if_it_is_back_soon() -> None:
    """Down when the packet comes to it, up again before it would have arrived at the far end: lost all the same."""
    cable = ClosCable("leaf", 0, 0)
    faults = [Fault(cable, HOP / 2, 0.1), Fault(cable, HOP + SERIAL / 2, 0.1, up=True)]
    assert run(TWO_LEAVES, flows((0, 8, 1)), faults=faults).counts["dropped"] == 1


def test_an_ack_is_lost_if_its_way_back_is_down() -> None:
    """The link breaks when the packet is past it: it arrives once, its ACK does not, and the repeat is discarded."""
    cable = ClosCable("leaf", 0, 0)
    faults = [Fault(cable, 3.5 * HOP, 0.1), Fault(cable, 1e-4, 0.1, up=True)]
    work = flows((0, 8, 1), (1, 9, 2000))  # the second goes on for longer than the time-out
    outcome = run(TWO_LEAVES, work, faults=faults)
    assert outcome.finished[0] == pytest.approx(4 * HOP, abs=1e-8)
    assert outcome.counts["lost_acks"] > 0
    assert outcome.counts["discarded"] > 0


def test_go_back_n_discards_what_follows_a_gap_and_hears_of_it_at_once() -> None:
    """A flap takes some packets of a flow: the receiver drops the rest of the window, its NAK spares the time-out."""
    cable = ClosCable("leaf", 0, 0)
    packets = 200
    flap = 4 * HOP + 40 * SERIAL
    faults = [Fault(cable, flap, 0.1), Fault(cable, flap + 3 * SERIAL, 0.1, up=True)]
    outcome = run(TWO_LEAVES, flows((0, 8, packets)), faults=faults, window=1.0, max_window=1.0)
    lost, c = outcome.counts["dropped"], outcome.counts
    assert lost > 0
    assert c["discarded"] > 0
    assert c["timeouts"] == 0
    assert c["delivered"] == packets
    assert c["resent"] == lost + c["discarded"]
    undisturbed = (packets - 1) * SERIAL + 4 * HOP
    assert undisturbed + EXACT.round_trip(TWO_LEAVES) < outcome.time < EXACT.rto  # a round trip's packets go twice


def test_go_back_n_sends_all_from_the_gap_again() -> None:
    """Of two packets the first is lost: the second is thrown away, and both come again, without a time-out."""
    cable = ClosCable("leaf", 0, 0)
    faults = [Fault(cable, HOP / 2, 0.1), Fault(cable, HOP + SERIAL / 2, 0.1, up=True)]
    outcome = run(TWO_LEAVES, flows((0, 8, 2)), faults=faults)
    names = ("dropped", "sent", "delivered", "discarded", "timeouts")
    assert [outcome.counts[name] for name in names] == [1, 4, 2, 1, 0]


def test_marks_cut_windows_by_their_share() -> None:
    """DCTCP keeps a shallow queue and a busy link where halving the window would let the link idle."""
    work = flows((0, 7, 6000), (1, 7, 6000))
    shallow = round(0.2 * EXACT.round_trip(TWO_LEAVES) * 400e9 / 8)
    gentle = run(TWO_LEAVES, work, ecn=shallow, max_window=50.0)
    halving = run(TWO_LEAVES, work, ecn=shallow, max_window=50.0, gain=1e-12)  # alpha stays at 1
    assert gentle.counts["marked"] < 0.6 * gentle.counts["delivered"]  # windows that are not cut are marked for ever
    assert gentle.time < 0.97 * halving.time


def test_spraying_reaches_every_core() -> None:
    """Between pods a path is an agg and a core: packets of one flow take all of them, about equally."""
    topology = Topology(hosts=2, leaves=2, aggs=3, pods=2, cores=2)
    outcome = run(topology, flows((0, 7, 6000)), "spray")
    first = sum(topology.blocks[:4])
    up = outcome.link_packets[first:first + topology.blocks[4]].reshape(topology.pods, -1)[0]
    assert len(up) == 6
    assert up.min() > 0.8 * up.mean()


def test_after_a_failure_everybody_knows_of_flows_take_the_plan_around_it() -> None:
    """Bytes on every link are those of the second plan, not of the first one with its dead pieces put anywhere."""
    topology = leaf_spine(hosts=16, leaves=4, spines=4)
    cable = ClosCable("leaf", 0, 0)
    work = all_to_all(range(16), 16 * 50_000)
    placed = place(topology, work, SCHEMES["netfold"], dead=topology.dead([cable]), mtu=EXACT.mtu)
    expected = np.zeros(topology.links, np.int64)
    for task, size, path in zip(placed.task, placed.size, placed.path, strict=True):
        route = topology.route(int(work.source[task]), int(work.destination[task]), int(path))
        expected[route] += size + -(-size // EXACT.mtu) * EXACT.header
    outcome = run(topology, work, "netfold", faults=[Fault(cable, 0.0, 0.0)])
    assert np.array_equal(outcome.link_bytes, expected)


def test_reps_learns_where_spraying_does_not() -> None:
    """A dead path that nobody knows of: after a time-out recycled entropies avoid it, the better the longer."""
    topology = leaf_spine(hosts=8, leaves=2, spines=4)
    work = flows(*[(i, 4 + i, 3000) for i in range(4)])
    fault = [Fault(ClosCable("leaf", 0, 0), 2e-6, 9.0)]
    lost = {name: run(topology, work, scheme, faults=fault, freeze_time=freeze).counts["dropped"]
            for name, scheme, freeze in (("spray", "spray", 0.0), ("reps", "reps", 0.01), ("thawed", "reps", 0.0))}
    assert lost["reps"] < lost["thawed"] < lost["spray"]
    assert 2 * lost["reps"] < lost["spray"]


def test_reps_leaves_paths_that_mark() -> None:
    """Leaf 2 has lost its link to spine 0, so spine 1's link to leaf 1 is the busy one; leaf 0 turns to spine 0."""
    topology = leaf_spine(hosts=12, leaves=3, spines=2)
    work = flows(*[(i, 4 + i, 4000) for i in range(4)], *[(8 + i, 4 + i, 4000) for i in range(4)])
    fault = [Fault(ClosCable("leaf", 2, 0), 0.0, 0.0)]
    outcome = run(topology, work, "reps", faults=fault, ecn=10 * WIRE)
    up = outcome.link_packets[2 * topology.size:2 * topology.size + topology.blocks[2]].reshape(3, 2)
    assert up[2, 0] == 0
    assert up[0, 0] > 1.5 * up[0, 1]
