# SPDX-License-Identifier: Apache-2.0
"""The packet simulator against closed forms and conservation laws."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.fabric.routing.clos import Clos
from netfold.fabric.routing.paths import Flow, equal_split, fewest_pieces, plan
from netfold.sim.engines import fluid
from netfold.sim.engines.packet import Fault, Transport, simulate
from netfold.sim.engines.placement import SCHEMES, place
from netfold.sim.engines.topology import ClosCable, Topology, leaf_spine
from netfold.sim.workloads.workload import COLLECTIVES, Workload, all_to_all, halving_doubling, ring, shifted_all_to_all

TWO_TIERS = leaf_spine(hosts=16, leaves=4, spines=4)
THREE_TIERS = Topology(hosts=2, leaves=2, aggs=2, pods=2, cores=2)
EXACT = Transport(jitter=0)
WIRE = EXACT.mtu + EXACT.header


def flows(*rows: tuple[int, int, int], gap: float = 0.0) -> Workload:
    """Flows (source, destination, bytes) that all start at once."""
    source, destination, size = np.array(rows, np.int64).T
    n = len(rows)
    return Workload(source, destination, size, np.full(n, gap), np.zeros(n, np.int64), np.zeros((0, 2), np.int64))


def assert_conserved(topology, workload, outcome) -> None:
    """Packets: all that were sent are delivered, discarded, dropped or under way; all that were due were delivered."""
    c = outcome.counts
    arrived = c["delivered"] + c["discarded"] + c["answered"]
    assert c["sent"] + c["answers"] == arrived + c["dropped"] + c["in_flight"]
    assert c["hops"] == outcome.link_packets.sum()
    assert c["dropped"] == outcome.link_dropped.sum()
    hosts = topology.size
    assert outcome.link_packets[hosts:2 * hosts].sum() == arrived


@pytest.mark.parametrize(("topology", "to", "hops"), [
    (TWO_TIERS, 1, 2), (TWO_TIERS, 15, 4), (THREE_TIERS, 1, 2), (THREE_TIERS, 3, 4), (THREE_TIERS, 7, 6)])
@pytest.mark.parametrize("packets", [1, 2, 10])
@pytest.mark.parametrize("scheme", ["ecmp", "spray", "reps"])
def test_a_lone_flow_takes_exactly_its_closed_form(topology, to, hops, packets, scheme) -> None:
    """Store and forward: (packets + hops - 1) serialisations and ``hops`` propagations, to the picosecond."""
    outcome = simulate(topology, flows((0, to, packets * EXACT.mtu)), SCHEMES[scheme], transport=EXACT)
    serial = WIRE * 8 / 400e9
    assert outcome.time == pytest.approx((packets + hops - 1) * serial + hops * 500e-9, abs=1e-12)
    assert outcome.counts["hops"] == packets * hops


@pytest.mark.parametrize("ack", [0, 64])
def test_who_waits_for_its_own_flow_waits_for_the_acknowledgement(ack) -> None:
    """The receiver goes on when the flow is in; its sender one way back later, to the picosecond."""
    work = flows((0, 15, 9000), (15, 3, 9000), (0, 7, 9000))
    work = replace(work, waits=np.array([[0, 1], [0, 2]]))
    outcome = simulate(TWO_TIERS, work, SCHEMES["ecmp"], transport=replace(EXACT, ack=ack))
    back = 4 * (500e-9 + 64 * 8 / 400e9)
    assert outcome.started[1] == outcome.finished[0]
    assert outcome.started[2] - outcome.finished[0] == pytest.approx(back, abs=1e-12)


def test_a_window_below_the_round_trip_limits_the_rate() -> None:
    """With half a bandwidth-delay product in flight, a long flow gets half the line's rate."""
    half = Transport(window=0.5, max_window=0.5, jitter=0, header=0)
    size = 3000 * half.mtu
    full = simulate(TWO_TIERS, flows((0, 15, size)), SCHEMES["ecmp"], transport=replace(half, window=1, max_window=1))
    limited = simulate(TWO_TIERS, flows((0, 15, size)), SCHEMES["ecmp"], transport=half)
    bdp = half.round_trip(TWO_TIERS) * 400e9 / 8 / half.mtu
    assert full.time == pytest.approx(size * 8 / 400e9, rel=0.04)
    assert limited.time / full.time == pytest.approx(bdp / ceil(bdp / 2), rel=0.02)


def test_incast_runs_at_the_bottlenecks_rate() -> None:
    """Fifteen senders, one receiver: the receiver's link is never idle, and nothing is lost."""
    size = 4 << 20
    outcome = simulate(TWO_TIERS, flows(*[(i, 15, size) for i in range(15)]), SCHEMES["netfold"])
    packets = 15 * -(-size // EXACT.mtu)
    ideal = (15 * size + packets * EXACT.header) * 8 / 400e9
    assert ideal < outcome.time < 1.02 * ideal
    assert outcome.counts["dropped"] == 0
    assert outcome.counts["marked"] > 0


def test_ecn_keeps_the_queue_near_its_threshold() -> None:
    """Four long flows into one host: after the first windows the queue stays within a few windows of K."""
    outcome = simulate(TWO_TIERS, flows(*[(i, 15, 8 << 20) for i in (0, 4, 8, 12)]), SCHEMES["ecmp"])
    windows = 4 * Transport().max_window * Transport().round_trip(TWO_TIERS) * 50e9
    assert Transport().ecn < outcome.link_deepest.max() < Transport().ecn + windows


@pytest.mark.parametrize("scheme", ["ethereal", "netfold"])
@pytest.mark.parametrize(("topology", "layers"), [(TWO_TIERS, 1), (THREE_TIERS, 2)])
def test_planned_all_to_all_is_even_on_the_wire_and_near_ideal(scheme, topology, layers) -> None:
    """Every fabric link carries the same payload and the step takes what the host links alone would take."""
    n = topology.size
    packet = Transport(header=0)
    outcome = simulate(topology, all_to_all(range(n), n * 240 * packet.mtu), SCHEMES[scheme], transport=packet)
    first = 2 * n
    for block in topology.blocks[2:2 + 2 * layers]:
        carried = outcome.link_bytes[first:first + block]
        assert carried.min() == carried.max() > 0
        first += block
    assert outcome.time == pytest.approx((n - 1) * 240 * packet.mtu * 8 / 400e9, rel=0.06)


def test_schemes_rank_as_theory_says() -> None:
    """Halving-doubling over 64 hosts: planned paths beat spraying, which beats hashing; seed 1."""
    topology = leaf_spine(hosts=64, leaves=8, spines=8)
    times = {name: simulate(topology, halving_doubling(range(64), 2 << 20), SCHEMES[name], seed=1).time
             for name in ("netfold", "ethereal", "spray", "ecmp")}
    assert max(times["netfold"], times["ethereal"]) < times["spray"] < times["ecmp"]


@pytest.mark.parametrize("topology", [leaf_spine(hosts=64, leaves=8, spines=8),
                                      Topology(hosts=4, leaves=4, aggs=4, pods=4, cores=4)])
def test_ideal_spraying_is_as_good_as_planned_paths_and_random_spraying_is_not(topology) -> None:
    """Halving-doubling over 64 hosts: the least loaded uplink for each packet takes what planned paths take, uplinks in
    turn load each of them evenly, and random ones make steps wait; seed 1."""
    work = halving_doubling(range(64), 2 << 20)
    ran = {name: simulate(topology, work, SCHEMES[name], seed=1)
           for name in ("ethereal", "spray", "spray-rr", "spray-ideal")}
    assert ran["spray-ideal"].time == pytest.approx(ran["ethereal"].time, rel=0.02)
    assert ran["spray"].time > 1.15 * ran["spray-ideal"].time
    first = 2 * topology.size
    up = ran["spray-rr"].link_packets[first:first + topology.blocks[2]].reshape(-1, topology.aggs)
    assert np.ptp(up, axis=1).max() <= 1, "a leaf gives its uplinks packets in turn"


@pytest.mark.parametrize("scheme", ["spray-rr", "spray-ideal"])
def test_switches_that_spray_leave_out_what_routing_knows_to_be_dead(scheme) -> None:
    """A cable that is known to be out carries nothing, and nothing is lost; seed 1."""
    for topology, cable in ((TWO_TIERS, ClosCable("leaf", 1, 2)), (THREE_TIERS, ClosCable("core", 1, 0, 1))):
        outcome = simulate(topology, all_to_all(range(topology.size), topology.size * 9000), SCHEMES[scheme],
                           faults=[Fault(cable, time=0.0, announced=0.0)], seed=1)
        assert outcome.unfinished == outcome.counts["dropped"] == outcome.counts["timeouts"] == 0
        assert not outcome.link_packets[list(topology.directions(cable))].any()


@pytest.mark.parametrize("scheme", ["spray-rr", "spray-ideal"])
def test_the_uplinks_beside_a_dead_one_share_its_packets(scheme) -> None:
    """Towards a leaf that has lost a spine, no other spine carries a tenth more than the mean, the one beside it
    neither; seed 1."""
    topology = leaf_spine(hosts=64, leaves=8, spines=8)
    outcome = simulate(topology, all_to_all(range(64), 64 * 270_000), SCHEMES[scheme],
                       faults=[Fault(ClosCable("leaf", 1, 2), time=0.0, announced=0.0)], seed=1)
    down = [topology.directions(ClosCable("leaf", 1, spine))[1] for spine in range(8) if spine != 2]
    carried = outcome.link_packets[down]
    assert carried.max() < 1.1 * carried.mean()


def test_a_switch_does_not_take_its_own_dead_port_for_an_empty_one() -> None:
    """Ideal spraying while only the leaf can see that its uplink is down: what the leaf sends is not lost; seed 1."""
    fault = Fault(ClosCable("leaf", 0, 0), time=0.0, announced=1.0)
    outcome = simulate(TWO_TIERS, flows((0, 4, 900_000)), SCHEMES["spray-ideal"], faults=[fault], seed=1)
    assert outcome.counts["dropped"] == 0
    assert outcome.time < 1e-4


SMALL = st.tuples(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 400_000)).filter(lambda f: f[0] != f[1]),
             min_size=1, max_size=12),
    st.sampled_from(sorted(SCHEMES)),
    st.sampled_from([leaf_spine(hosts=8, leaves=4, spines=3), replace(THREE_TIERS, aggs=3)]),
    st.integers(0, 2**32),
)


@settings(max_examples=100)
@given(case=SMALL, broken=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.floats(0, 3e-5)), max_size=2),
       tight=st.booleans(), ack=st.sampled_from([0, 64]))
def test_packets_are_conserved_and_runs_repeat(case, broken, tight, ack) -> None:
    """Whatever flows, scheme, failures, buffers, ACKs: the books balance, and equal arguments give equal outcomes."""
    rows, scheme, topology, seed = case
    transport = Transport(buffer=40_000, rto=1e-4, ack=ack) if tight else Transport(rto=1e-4, ack=ack)
    faults = [Fault(ClosCable("leaf", leaf, agg), when, announced=when + 5e-3) for leaf, agg, when in broken]
    work = flows(*rows)
    run = {"transport": transport, "faults": faults, "seed": seed, "deadline": 0.1}

    outcome = simulate(topology, work, SCHEMES[scheme], **run)

    assert_conserved(topology, work, outcome)
    if not tight:  # go-back-N from a full window may never fit through four packets of buffer
        assert outcome.unfinished == 0  # two failures leave every pair a path, and all routing knows after 5 ms
        assert outcome.counts["delivered"] >= sum(-(-size // transport.mtu) for _, _, size in rows)
        assert np.all(outcome.finished >= outcome.started)
    again = simulate(topology, work, SCHEMES[scheme], **run)
    assert again.counts == outcome.counts
    assert np.array_equal(again.finished, outcome.finished)
    assert np.array_equal(again.link_bytes, outcome.link_bytes)


@pytest.mark.parametrize("topology", [TWO_TIERS, THREE_TIERS])
def test_bytes_follow_the_routes_that_python_computes(topology) -> None:
    """fabric.c and topology.py agree on the numbering: each link carries just the pieces whose route holds it."""
    work = all_to_all(range(topology.size), topology.size * 50_000)
    for name in ("ethereal", "mp-rdma-4"):
        placed = place(topology, work, SCHEMES[name], seed=3, mtu=EXACT.mtu)
        expected = np.zeros(topology.links, np.int64)
        for task, size, path in zip(placed.task, placed.size, placed.path, strict=True):
            route = topology.route(int(work.source[task]), int(work.destination[task]), int(path))
            expected[route] += size + -(-size // EXACT.mtu) * EXACT.header
        outcome = simulate(topology, work, SCHEMES[name], transport=EXACT, seed=3)
        assert np.array_equal(outcome.link_bytes, expected)


def test_a_moved_piece_finishes_one_time_out_after_a_failure() -> None:
    """The paper's recovery: time-out, another path, back to line rate; other flows do not notice."""
    fault = Fault(ClosCable("leaf", 0, 0), time=2e-6)
    work = all_to_all(range(16), 16 << 20)
    healthy = simulate(TWO_TIERS, work, SCHEMES["netfold"], seed=1)
    outcome = simulate(TWO_TIERS, work, SCHEMES["netfold"], faults=[fault], seed=1)
    assert outcome.unfinished == 0
    assert outcome.counts["moved"] > 0
    assert 1e-3 < outcome.time < 1e-3 + 1.5 * healthy.time


def test_hashed_paths_hang_on_a_failure_until_routing_knows() -> None:
    """ECMP does not finish while a dead port is in its tables, and does once it is out of them."""
    work = all_to_all(range(16), 1 << 20)
    cable = ClosCable("leaf", 1, 2)
    never = simulate(TWO_TIERS, work, SCHEMES["ecmp"], faults=[Fault(cable, announced=9.0)], deadline=0.05)
    later = simulate(TWO_TIERS, work, SCHEMES["ecmp"], faults=[Fault(cable, announced=0.01)], deadline=0.05)
    assert never.unfinished > 0
    assert never.time == 0.05
    assert later.unfinished == 0
    assert 0.01 < later.time < 0.013


def test_a_failure_known_beforehand_costs_only_its_share() -> None:
    """Planned around from the start: no time-out, and at most the bandwidth that is gone is lost."""
    work = all_to_all(range(16), 32 << 20)
    fault = Fault(ClosCable("leaf", 0, 0), time=0.0, announced=0.0)
    healthy = simulate(TWO_TIERS, work, SCHEMES["netfold"])
    outcome = simulate(TWO_TIERS, work, SCHEMES["netfold"], faults=[fault])
    assert outcome.counts["timeouts"] == 0
    assert 1.0 < outcome.time / healthy.time < 4 / 3 + 0.05


def test_flows_that_start_at_once_know_of_a_link_that_was_out_before() -> None:
    """A failure of time 0 is there before the first packet leaves, also where all flows start at 0 and are hashed."""
    work = all_to_all(range(16), 1 << 20)
    fault = Fault(ClosCable("leaf", 0, 0), time=0.0, announced=0.0)
    outcome = simulate(TWO_TIERS, work, SCHEMES["ecmp"], faults=[fault], transport=Transport(jitter=0.0))
    assert (outcome.counts["timeouts"], outcome.counts["dropped"], outcome.unfinished) == (0, 0, 0)


def test_a_cable_that_comes_back_is_used_again() -> None:
    """Down for 2 ms and back before anyone is told: hashed flows finish after a repeat or two."""
    cable = ClosCable("leaf", 1, 2)
    outcome = simulate(TWO_TIERS, all_to_all(range(16), 1 << 20), SCHEMES["ecmp"],
                       faults=[Fault(cable, 0.0, 1.0), Fault(cable, 2e-3, 1.0, up=True)], deadline=0.9)
    assert outcome.unfinished == 0
    assert 2e-3 < outcome.time < 5e-3


def test_flows_wait_for_what_they_depend_on() -> None:
    """A ring's steps follow each other, and a gap is a gap."""
    work = ring(range(4), 4 * 9000)
    outcome = simulate(leaf_spine(hosts=4, leaves=1, spines=1), work, SCHEMES["ecmp"], transport=EXACT)
    hop = 2 * (WIRE * 8 / 400e9 + 500e-9)
    assert outcome.time == pytest.approx(6 * hop, abs=1e-11)
    for before, after in work.waits:
        assert outcome.started[after] == outcome.finished[before]
    spaced = work.then(work, gap=1e-5)
    twice = simulate(leaf_spine(hosts=4, leaves=1, spines=1), spaced, SCHEMES["ecmp"], transport=EXACT)
    assert twice.time == pytest.approx(12 * hop + 1e-5, abs=1e-11)


@pytest.mark.parametrize(("topology", "to", "hops"), [(TWO_TIERS, 1, 2), (TWO_TIERS, 15, 4), (THREE_TIERS, 7, 6)])
def test_an_ack_that_queues_takes_its_own_time_back(topology, to, hops) -> None:
    """A window of one packet: every further one waits for a round trip, of data and of an ACK of its weight."""
    stop_and_wait = replace(EXACT, window=1e-9, max_window=1e-9, ack=500)
    outcome = simulate(topology, flows((0, to, 3 * EXACT.mtu)), SCHEMES["ecmp"], transport=stop_and_wait)
    there, back = (hops * (size * 8 / 400e9 + 500e-9) for size in (WIRE, 500))
    assert outcome.time == pytest.approx(3 * there + 2 * back, abs=1e-11)
    assert outcome.counts["answers"] == 3


def test_an_ack_that_queues_waits_behind_data() -> None:
    """Two hosts that send to each other: ACKs that weigh nothing change nothing, others come after what is queued."""
    both = flows((0, 1, 40 * EXACT.mtu), (1, 0, 40 * EXACT.mtu))
    narrow = replace(EXACT, window=0.5, max_window=0.5)
    times = [simulate(TWO_TIERS, both, SCHEMES["ecmp"], transport=replace(narrow, ack=size)).time
             for size in (0, 1, 2000)]
    assert times[0] < times[1] < times[2]


@pytest.mark.parametrize(("change", "says"), [
    ({"workload": flows((0, 99, 1))}, "host 99 is not among"),
    ({"deadline": 0.0}, "deadline"),
    ({"scheme": replace(SCHEMES["spray"], tolerant=False)}, "receivers must be tolerant"),
    ({"faults": [Fault(ClosCable("leaf", 9, 0))]}, "4 leaves with 4 uplinks"),
])
def test_what_cannot_be_simulated_is_refused(change, says) -> None:
    """Caller mistakes stop before the event loop."""
    arguments = {"workload": flows((0, 1, 1)), "scheme": SCHEMES["ecmp"], **change}
    with pytest.raises(ValueError, match=says):
        simulate(TWO_TIERS, arguments.pop("workload"), arguments.pop("scheme"), **arguments)


@pytest.mark.parametrize("name", sorted(COLLECTIVES))
@pytest.mark.parametrize("n", [2, 8])
def test_collectives_send_the_bytes_of_their_formulas(name, n) -> None:
    """Bytes over all ranks: (n-1) S for all-to-all, 2 (n-1) S for allreduce by ring, halving-doubling or trees."""
    size = 64 * n
    work = COLLECTIVES[name](range(n), size)
    assert work.total == (1 if name == "all-to-all" else 2) * (n - 1) * size


def test_an_allreduce_by_ring_or_halving_loads_each_rank_alike() -> None:
    """Each rank sends and receives 2 (n-1)/n S: the bandwidth-optimal count."""
    for make in (ring, halving_doubling, shifted_all_to_all):
        work = make(range(8), 800)
        sent = np.bincount(work.source, work.size)
        assert set(sent) == set(np.bincount(work.destination, work.size)) == {work.total / 8}


def test_tree_ranks_are_inner_in_one_tree_only() -> None:
    """Double binary tree: nobody sends more than twice the buffer, nor receives more."""
    for n in (8, 16, 7):
        work = COLLECTIVES["double-binary-tree"](range(n), 3200)
        assert max(np.bincount(work.source, work.size)) <= 2 * 3200
        assert max(np.bincount(work.destination, work.size)) <= 2 * 3200


@pytest.mark.parametrize(("planner", "scope", "scheme", "broken"), [
    (equal_split, "host", "ethereal", None), (fewest_pieces, "leaf", "netfold", None),
    (fewest_pieces, "leaf", "netfold", ClosCable("leaf", 1, 0)), (fewest_pieces, "leaf", "netfold", "top")])
@pytest.mark.parametrize("topology", [THREE_TIERS, leaf_spine(hosts=12, leaves=3, spines=4)])
def test_the_simulators_plan_is_the_controllers_plan(planner, scope, scheme, broken, topology) -> None:
    """Same flows on the same fabric, one by numbers, one by graph: each piece has the same bytes on the same links."""
    if broken == "top":
        broken = ClosCable("core", 0, 1, 0) if topology.cores else ClosCable("leaf", 0, topology.aggs - 1)
    broken = [broken] if broken else []
    dead = frozenset(topology.directions(cable)[0] for cable in broken)
    clos = Clos(topology.graph(), dead_links=dead)
    work = all_to_all(range(1, topology.size), (topology.size - 1) * 12_000)
    wanted = [Flow(f"h{a}", f"h{b}", int(s)) for a, b, s in zip(work.source, work.destination, work.size, strict=True)]

    placed = place(topology, work, replace(SCHEMES[scheme], unit=1), dead=topology.dead(broken))

    found = Counter((int(task), int(size), tuple(sorted(topology.between(
        topology.leaf(int(work.source[task])), topology.leaf(int(work.destination[task])), int(path)))))
        for task, size, path in zip(placed.task, placed.size, placed.path, strict=True))
    planned: Counter[tuple[int, int, tuple[int, ...]]] = Counter()
    for step in sorted(set(work.step.tolist())):
        members = np.flatnonzero(work.step == step).tolist()
        for piece in plan(clos, [wanted[i] for i in members], planner=planner, scope=scope).pieces:
            links = []
            for hop in piece.path:
                block = 2 if "leaf" in hop.tail + hop.head else 4
                upward = clos.tier[hop.tail] < clos.tier[hop.head]
                links.append(hop.link if upward else hop.link + topology.blocks[block])
            planned[members[piece.flow], piece.size, tuple(sorted(links))] += 1
    assert found == planned


def test_hashed_pieces_cover_their_flows_on_live_paths() -> None:
    """MP-RDMA's equal splits: all bytes once, at most one packet's difference, random live paths; seed 9."""
    topology = leaf_spine(hosts=8, leaves=2, spines=4)
    dead = topology.dead([ClosCable("leaf", 0, 3)])
    work = flows((0, 4, 100_000), (1, 2, 50_000), (2, 5, 9_000), (3, 7, 1))
    placed = place(topology, work, SCHEMES["mp-rdma-4"], dead=dead, seed=9, mtu=9000)
    assert np.bincount(placed.task).tolist() == [4, 1, 1, 1]
    assert np.bincount(placed.task, placed.size).tolist() == work.size.tolist()
    assert np.ptp(-(-placed.size[:4] // 9000)) <= 1
    many = flows(*[(0, 4, 1)] * 400)
    used = np.bincount(place(topology, many, SCHEMES["ecmp"], dead=dead, seed=9).path, minlength=4)
    assert used[3] == 0
    assert used[:3].min() > 100


def test_unequal_uplinks_are_filled_in_proportion_to_their_rates() -> None:
    """A planned shift from leaf to leaf over uplinks of 1, 1 and 2 shares takes the time of all of them together, and
    the packet simulator's links carry what the planner said; hashed halves do not."""
    topology = replace(leaf_spine(hosts=8, leaves=2, spines=3), uplinks=(200e9, 200e9, 400e9))
    shift = COLLECTIVES["all-to-all"](range(8), 8 << 20)
    planned = simulate(topology, shift, SCHEMES["netfold"])
    up = planned.link_bytes[2 * topology.size:2 * topology.size + 6].reshape(2, 3)
    assert up[:, 2] / up[:, 0] == pytest.approx(2, rel=0.02)
    assert up[:, 1] / up[:, 0] == pytest.approx(1, rel=0.02)
    even = simulate(topology, shift, SCHEMES["ethereal"])
    assert planned.time < 0.85 * even.time, "equal parts wait for the slower uplinks"
    assert fluid.simulate(topology, shift, SCHEMES["netfold"]).time == pytest.approx(planned.time, rel=0.1)
