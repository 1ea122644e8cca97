# SPDX-License-Identifier: Apache-2.0
"""SwitchML in the packet simulator: exact sums, slots that sum one packet at a time, and its clock and time-outs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.sim.engines.folding import FoldRules, SimulatedFold, fold
from netfold.sim.engines.packet import PacketOutcome, SimulationError, Transport, simulate
from netfold.sim.engines.placement import SCHEMES
from netfold.sim.engines.topology import Topology, leaf_spine
from netfold.sim.netreduce import points as netreduce
from netfold.sim.workloads.workload import Workload

PINNED = SCHEMES["netfold"]
EXACT = Transport(jitter=0)
RULES = replace(netreduce.SWITCHML, slots=16)
RACK = Topology(hosts=4, leaves=1, aggs=1, host_rate=100e9, leaf_rate=100e9, delay=1e-6)


def _fold(topology: Topology, size: int) -> tuple[Workload, list[SimulatedFold]]:
    return fold(topology, range(topology.size), size, machines=False, most=1)


def _run(topology: Topology, size: int, rules: FoldRules = RULES, **wrong: Any) -> PacketOutcome:
    work, folds = _fold(topology, size)
    return simulate(topology, work, PINNED, transport=EXACT, folds=folds, rules=rules, **wrong)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["loss", "repeat", "reorder"]), st.floats(0.001, 0.2), st.sampled_from([2, 8, 64, 512]),
       st.integers(1, 300), st.booleans(), st.integers(0, 2**32))
def test_sums_are_exact_and_no_slot_sums_two_packets(what: str, part: float, slots: int, packets: int, rack: bool,
                                                     seed: int) -> None:
    """Whatever part of its packets each link loses, carries twice or puts behind others, in one rack and over spines:
    all ranks get each result once, and it is the sum of all contributions of that packet."""
    topology = RACK if rack else leaf_spine(hosts=9, leaves=3, spines=2)
    size = 128 * packets - 60
    outcome = _run(topology, size, replace(RULES, slots=slots), seed=seed, deadline=10.0, **{what: part})
    c = outcome.counts
    assert not outcome.unfinished
    assert c["fold_wrong"] == c["fold_aliased"] == 0
    assert c["fold_results"] == topology.size * packets
    assert c["fold_completed"] == packets


def test_a_repeat_that_the_next_packet_overtakes_is_found_in_its_sum() -> None:
    """Switches look at the slot's number and version alone: where links lose packets and do not keep their order, an
    old repeat is summed with a later packet, as by the paper's rules, and the simulator counts these sums."""
    counts = [_run(leaf_spine(hosts=9, leaves=3, spines=2), 40_000, seed=seed, loss=0.03, repeat=0.1, reorder=0.1
                   ).counts for seed in range(10)]
    assert sum(c["fold_wrong"] for c in counts) > 0
    assert sum(c["fold_aliased"] for c in counts) > 0


def test_a_figure_has_no_wrong_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """An allreduce of which a sum is wrong is no point of a figure but an error, which says how many and where."""
    topology = netreduce.fabric(32, 100.0, 1e-6)
    found = netreduce.run_job(topology, netreduce.WAYS["SML"](topology, 1 << 16), rules=netreduce.SWITCHML)
    found.counts["fold_wrong"] = 3
    monkeypatch.setattr(netreduce, "simulate", lambda *args, **options: found)
    with pytest.raises(SimulationError, match="3 sums are wrong"):
        netreduce.point("loss", "SML", 32, 100.0, 1e-6, 1 << 16)


def test_a_slots_next_packet_waits_for_its_result() -> None:
    """Where latency is all, n packets over s slots take n / s round trips: the pool is the window."""
    topology = replace(RACK, host_rate=1e15)
    for slots, packets in ((4, 64), (16, 64), (64, 64), (16, 65)):
        outcome = _run(topology, 128 * packets, replace(RULES, slots=slots))
        assert outcome.time == pytest.approx(-(-packets // slots) * 2 * topology.delay, rel=0.001)
        assert outcome.counts["fold_sent"] == 4 * packets


def test_what_was_lost_is_repeated_after_the_time_out() -> None:
    """A lost contribution costs one time-out, and the three ranks that wait for its sum repeat theirs in vain."""
    outcome = _run(RACK, 128 * 40, drops=[(2, "up", 7, 1)])
    c = outcome.counts
    assert outcome.time == pytest.approx(1e-3, rel=0.02)
    assert c["fold_timeouts"] == c["fold_resent"] == 4
    assert c["fold_waited"] + c["fold_answered"] == 3
    assert not c["fold_wrong"]


def test_the_copy_of_the_version_before_answers_who_missed_a_result() -> None:
    """A rank that has lost a result repeats its packet and is answered alone, while others are a packet ahead in the
    slot."""
    outcome = _run(RACK, 128 * 40, drops=[(RACK.size + 2, "down", 7, 1)])
    c = outcome.counts
    assert c["fold_answered"] >= 1
    assert c["fold_completed"] == 40
    assert c["fold_results"] == 160
    assert not c["fold_wrong"]


@pytest.mark.parametrize(("link", "kind"), [(2 * 9 + 2, "up"), (2 * 9 + 6 + 2, "down")])
def test_between_switches_the_lower_one_repeats_its_own_sum(link: int, kind: str) -> None:
    """Where a leaf's sum, or the result for it, is lost on the way, its hosts' repeats make it send its sum again, and
    no host's own packet goes up."""
    topology = leaf_spine(hosts=9, leaves=3, spines=2)
    works, folds = _fold(topology, 128 * 30)
    root = folds[0].trees[0].root
    link += int(root.partition(".")[2])
    outcome = simulate(topology, works, PINNED, transport=EXACT, folds=folds, rules=RULES, drops=[(link, kind, 3, 1)])
    c = outcome.counts
    assert not outcome.unfinished
    assert c["fold_asked"] >= 1
    assert c["fold_results"] == 270
    assert not c["fold_wrong"]


def test_a_card_carries_the_papers_packets() -> None:
    """32 elements have a packet of 180 bytes: a machine's card carries its GPUs' pieces once, with 52 bytes around each
    128."""
    topology = netreduce.fabric(32, 100.0, 1e-6)
    size = 1 << 20
    outcome = netreduce.run_job(topology, netreduce.WAYS["SML"](topology, size), rules=netreduce.SWITCHML)
    up = outcome.link_bytes[2 * topology.size:2 * topology.size + topology.leaves]
    assert set(up.tolist()) == {size // 128 * 180}


def test_netfolds_sums_end_where_links_repeat_and_reorder() -> None:
    """What a link carries twice or late costs NetFold's folds repeats, and no rank lacks a result."""
    topology = leaf_spine(hosts=9, leaves=3, spines=2)
    outcome = _run(topology, 400_000, FoldRules(slots=64), loss=0.01, repeat=0.05, reorder=0.05, seed=5)
    assert not outcome.unfinished
    assert outcome.counts["fold_results"] == 9 * 45


@pytest.mark.parametrize("wrong", [{"repeat": 1.0}, {"reorder": -0.1}])
def test_parts_outside_of_0_to_1_are_refused(wrong: dict[str, Any]) -> None:
    """A part of all packets or fewer than none is no part."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        _run(RACK, 1000, **wrong)


@pytest.mark.parametrize("wrong", [{"payload": -1}, {"payload": 65000, "header": 600}, {"timeout": 0.0}])
def test_rules_that_no_packet_can_keep_are_refused(wrong: dict[str, Any]) -> None:
    """A payload below 0, a packet above 65,535 bytes, or a time-out of nothing."""
    with pytest.raises(ValueError, match="payload, header, timeout"):
        FoldRules(**wrong)
