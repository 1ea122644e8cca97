# SPDX-License-Identifier: Apache-2.0
"""ATP in the packet simulator: exact sums, what its server adds, and its windows and repeats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.sim.engines.atp import ATP, fold_at_server
from netfold.sim.engines.folding import FoldRules, SimulatedFold, beside
from netfold.sim.engines.packet import PacketOutcome, Transport, simulate
from netfold.sim.engines.placement import SCHEMES
from netfold.sim.engines.topology import Topology, leaf_spine
from netfold.sim.netreduce import points as netreduce
from netfold.sim.workloads.workload import Workload

PINNED = SCHEMES["netfold"]
EXACT = Transport(jitter=0)
RACKS = leaf_spine(hosts=12, leaves=3, spines=2)
PODS = Topology(hosts=2, leaves=3, aggs=1, pods=3, cores=2)
WORKERS = [0, 1, 2, 4, 5, 6, 8, 9, 10]
MACHINES = [0, 2, 6, 8, 12, 14]
RULES = replace(ATP, window=32)


def _fold(size: int, *, machines: bool = False) -> tuple[Workload, list[SimulatedFold]]:
    """Over three racks, of hosts or of machines; host 3 or 4 serves."""
    if machines:
        return fold_at_server(PODS, MACHINES, 4, size, machines=True)
    return fold_at_server(RACKS, WORKERS, 3, size, machines=False)


def _run(size: int, rules: FoldRules = RULES, *, machines: bool = False, transport: Transport = EXACT,
         **wrong: Any) -> PacketOutcome:
    work, folds = _fold(size, machines=machines)
    return simulate(PODS if machines else RACKS, work, PINNED, transport=transport, folds=folds, rules=rules, **wrong)


@settings(deadline=None, max_examples=80)
@given(loss=st.sampled_from([0.0, 0.001, 0.05]), repeat=st.sampled_from([0.0, 0.2]),
       reorder=st.sampled_from([0.0, 0.2]), aggregators=st.sampled_from([32, 50, ATP.slots]),
       packets=st.integers(1, 200), machines=st.booleans(), seed=st.integers(0, 2**32))
def test_sums_are_exact_whatever_links_do(loss: float, repeat: float, reorder: float, aggregators: int, packets: int,
                                          machines: bool, seed: int) -> None:
    """Lost, carried twice, put behind others, with aggregators for all or for few: every rank has each result once, and
    it is the sum of all contributions."""
    outcome = _run(248 * packets - 100, replace(RULES, slots=aggregators), machines=machines, seed=seed, deadline=100.0,
                   loss=loss, repeat=repeat, reorder=reorder)
    c = outcome.counts
    assert not outcome.unfinished
    assert c["fold_wrong"] == 0
    assert c["fold_results"] == (len(MACHINES) if machines else len(WORKERS)) * packets
    assert c["fold_completed"] == packets


def test_where_aggregators_are_free_the_server_gets_whole_sums_alone() -> None:
    """With an aggregator for each packet in flight the server's link carries each packet once in and once out."""
    outcome = _run(248 * 500)
    c = outcome.counts
    assert (c["fold_server"], c["fold_partial"], c["fold_collided"]) == (500, 0, 0)
    server = outcome.link_packets[[3, RACKS.size + 3]]
    assert server.tolist() == [500, 500]
    assert c["fold_sent"] == 9 * 500


def test_what_finds_its_aggregator_taken_is_summed_by_the_server() -> None:
    """With as many aggregators as packets in flight some share one.  Each of their packets that comes second goes to
    the server by itself, whose link carries what the counts say."""
    outcome = _run(248 * 500, replace(RULES, slots=32))
    c = outcome.counts
    assert c["fold_collided"] > 0
    assert c["fold_partial"] == c["fold_collided"]
    assert c["fold_server"] > 500
    assert outcome.link_packets[RACKS.size + 3] == c["fold_server"]
    assert outcome.link_packets[3] == 500
    assert c["fold_wrong"] == 0


def test_jobs_share_a_switchs_aggregators_and_evade_each_other() -> None:
    """Two jobs collide where their packets have one aggregator, by chance, and no more after each such packet has had
    its first result: the server has named another."""
    def both(packets: int) -> dict[str, int]:
        one = fold_at_server(RACKS, [0, 1, 4, 5], 3, 248 * packets, machines=False)
        other = fold_at_server(RACKS, [2, 6, 8, 9], 7, 248 * packets, machines=False)
        work, folds = beside(one, other)
        outcome = simulate(RACKS, work, PINNED, transport=EXACT, folds=folds, rules=replace(RULES, slots=400))
        assert not outcome.unfinished
        assert outcome.counts["fold_wrong"] == 0
        return outcome.counts

    short, long = both(200), both(2000)
    assert 0 < short["fold_collided"] < 200
    assert long["fold_collided"] < short["fold_collided"] + 20
    assert short["fold_server"] > 400


def test_a_lost_result_is_asked_for_after_three_later_ones() -> None:
    """The worker's repeat goes to the server, which answers: one round trip more, and no time-out."""
    outcome = _run(248 * 100, drops=[(RACKS.size + 5, "down", 7, 1)])
    c = outcome.counts
    assert (c["fold_asks"], c["fold_resent"], c["fold_timeouts"], c["fold_answered"]) == (1, 1, 0, 1)
    assert outcome.time < 100e-6
    assert not c["fold_wrong"]


def test_a_lost_contribution_makes_repeats_take_partial_sums_to_the_server() -> None:
    """All workers see later results first and repeat; what aggregators held of the packet is added at the server."""
    outcome = _run(248 * 100, drops=[(5, "up", 7, 1)])
    c = outcome.counts
    assert c["fold_timeouts"] == 0
    assert c["fold_asks"] == 9
    assert c["fold_partial"] >= 2
    assert c["fold_completed"] == 100
    assert not c["fold_wrong"]


def test_the_last_packets_loss_costs_a_time_out() -> None:
    """Nothing comes after it that would tell its loss."""
    outcome = _run(248 * 100, drops=[(5, "up", 99, 1)])
    assert outcome.time == pytest.approx(1e-3, rel=0.05)
    assert outcome.counts["fold_timeouts"] == 9


def test_the_window_is_what_is_in_flight() -> None:
    """Where latency is all, n packets in windows of w take n / w round trips."""
    fast = replace(RACKS, host_rate=1e15, leaf_rate=1e15)
    work, folds = _fold(248 * 128)
    for window in (8, 32):
        outcome = simulate(fast, work, PINNED, transport=EXACT, folds=folds, rules=replace(ATP, window=window))
        assert outcome.time == pytest.approx(128 / window * 8 * fast.delay, rel=0.01)


def test_marks_halve_windows() -> None:
    """Where a full window would always queue above the mark, halved ones keep most packets below it."""
    slow = replace(RACKS, leaf_rate=40e9)
    work, folds = _fold(248 * 4000)
    free, marked = (simulate(slow, work, PINNED, transport=Transport(jitter=0, ecn=ecn), folds=folds,
                             rules=replace(ATP, window=100)) for ecn in (1 << 20, 3000))
    assert free.counts["marked"] == 0
    assert 0 < marked.counts["marked"] < 0.5 * marked.counts["fold_results"]
    assert free.time < marked.time < 1.5 * free.time
    assert marked.counts["fold_wrong"] == 0


def test_a_servers_card_carries_the_buffer_once_each_way() -> None:
    """Of 32 GPUs and a server, with aggregators for all: as many packets of 306 bytes as the buffer has."""
    topology = netreduce.fabric(32, 100.0, 1e-6, spare=1)
    size = 8 * 248 * 1000
    outcome = netreduce.run_job(topology, netreduce.WAYS["ATP"](topology, size), rules=replace(ATP, slots=1 << 20))
    assert not outcome.counts["fold_collided"]
    cards = outcome.link_bytes[2 * topology.size:2 * topology.size + 2 * topology.leaves].reshape(2, -1)
    assert (cards == 8 * 306 * 1000).all()


def test_what_cannot_be_is_refused() -> None:
    """A worker that serves; more children than a bitmap has bits; a window beyond the aggregators."""
    with pytest.raises(ValueError, match="host 4 is a worker"):
        fold_at_server(RACKS, WORKERS, 4, 1000, machines=False)
    wide = leaf_spine(hosts=80, leaves=2, spines=2)
    with pytest.raises(ValueError, match="33 children, expected at most 32"):
        fold_at_server(wide, range(33), 79, 1000, machines=False)
    with pytest.raises(ValueError, match="window"):
        replace(ATP, window=ATP.slots + 1)
