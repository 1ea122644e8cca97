# SPDX-License-Identifier: Apache-2.0
"""Folds in the packet simulator: against verdict.p4, the host's real engine, conservation laws and theory."""

from __future__ import annotations

import inspect
import itertools
import random
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.fabric.folding.trees import MAX_CHILDREN
from netfold.host.innet.slot_switch import Nak
from netfold.sim.engines import packet
from netfold.sim.engines.folding import FoldRules, beside, fold
from netfold.sim.engines.packet import PacketOutcome, Transport, simulate
from netfold.sim.engines.placement import SCHEMES
from netfold.sim.engines.topology import Topology, leaf_spine
from netfold.sim.netreduce.points import SWITCHML
from netfold.sim.workloads.workload import ring
from support.models.slot_model import Call, TerribleNetwork, make_fabric, run

VERDICTS = Path(__file__).resolve().parents[2] / "p4src" / "verdict.p4"
EXACT = Transport(mtu=1024, jitter=0)
PINNED = SCHEMES["netfold"]
ENTRY = re.compile(r"^\s*\(([^)]+)\):\s*then\(([^)]+)\);", re.MULTILINE)


def _table() -> list[tuple[list[str], list[str]]]:
    """The constant entries of verdict.p4, as words of their keys and of their answers."""
    return [([word.strip() for word in key.split(",")], [word.strip() for word in answer.split(",")])
            for key, answer in ENTRY.findall(VERDICTS.read_text())]


def test_switches_answer_as_the_table_of_the_p4_program() -> None:
    """Whatever a windowed packet meets in whatever slot: target, answer, outcome and state are those of verdict.p4."""
    entries = _table()
    library = packet.native_library()
    kinds, ages = ("UP", "DOWN", "ASK_UP", "ASK_DOWN"), ("SAME", "NEWER", "OLDER")
    targets, turns = ("NOBODY", "PARENT", "ALL", "ASKER"), ("ITSELF", "NAK", "RETRANSMIT")
    outcomes = ("FIRST", "ANSWERED", "ASKED", "WAITED", "LATE", "REPEATED", "LACKED")
    seen_entries = set()
    for kind, age, *bits in itertools.product(kinds, ages, *[(0, 1)] * 5):
        done, seen, complete, fills, root = bits
        if complete > fills or (age != "SAME" and done + seen + complete) or (done and not complete):
            continue  # no slot is like that
        if kind == "UP" and root and seen and complete and not done:
            continue  # a root is done with its last contribution
        found = [kind, age, *("YES" if bit else "NO" for bit in (done, seen, complete, fills)), "YES",
                 "YES" if root else "NO"]
        number, answer = next(((i, a) for i, (key, a) in enumerate(entries)
                               if all(k in ("_", f) for k, f in zip(key, found, strict=True))),
                              (-1, ["KEEP", "NO", "NOBODY", "ITSELF", "LATE"]))
        seen_entries.add(number)
        got = library.sim_verdict(kinds.index(kind) + 1, ages.index(age), *bits)
        mine = (targets[got & 255], turns[got >> 8 & 255], outcomes[got >> 16 & 255])
        assert mine == (answer[2], answer[3], answer[4]), found
        if answer[4] == "FIRST":
            assert (got >> 24) == (answer[1] == "YES"), found
    assert len(seen_entries) > 18


class LossyByName(TerribleNetwork):
    """Loses packets by their link, kind and PSN, as the simulator's ``drops`` do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.drops: Counter[tuple[str, str, int]] = Counter()
        self.names: dict[int, str] = {}
        self.data: dict[int, int] = {}
        self.keep: list[Any] = []

    def send(self, packet: Any, deliver: Any) -> None:
        """Loses the packet, or delivers it."""
        name = self.names.get(id(deliver))
        if name is None:
            name = "agreement"
            if isinstance(deliver, partial):
                switch = inspect.getclosurevars(deliver.func).nonlocals["switch"]
                place = self.data.get(id(switch))
                if place is not None:
                    name = f"{'down' if deliver.args[0] == 'parent' else 'up'} {place} {deliver.args[0]}"
            elif inspect.getclosurevars(deliver).nonlocals["connection"] & 0x8000:
                name = f"host {inspect.getclosurevars(deliver).nonlocals['rank']}"
            self.names[id(deliver)] = name
            self.keep.append(deliver)
        up = name.startswith("up")
        kind = ("ask " if isinstance(packet, Nak) else "") + ("up" if up else "down")
        if self.drops[name, kind, packet.psn] > 0:
            self.drops[name, kind, packet.psn] -= 1
            self.lost += 1
            return
        super().send(packet, deliver)


def _both(leaves: int, drops: list[tuple[str, int, str, int]], packets: int) -> tuple[dict[str, int], dict[str, int]]:
    """One integer sum of two ranks a leaf, by the host's engine on the reference switches and by the simulator; drops
    name a rank's link ("rank", rank, kind, psn)."""
    ranks = 2 * leaves
    network = LossyByName(random.Random(1), delay=20_000)
    layout = [[2 * leaf, 2 * leaf + 1] for leaf in range(leaves)] if leaves > 1 else [0, 1]
    fabric = make_fabric(layout, network, slots=64, path_mtu=1024, max_run=1)
    data = fabric.switches[:len(fabric.switches) // 2]  # of the data stream, which comes first; the root is the first
    network.data = {id(switch): place for place, switch in enumerate(data)}
    network.keep = []
    for _, rank, kind, psn in drops:
        place = rank // 2 + (leaves > 1)
        name = f"up {place} {rank % 2}" if kind.endswith("up") else f"host {rank}"
        network.drops[name, kind, psn] += 1
    sources = [np.full(packets * 256, rank + 1, np.int32) for rank in range(ranks)]
    outs = [np.empty_like(source) for source in sources]
    for _ in run(fabric, [[Call(source, out, number=1)] for source, out in zip(sources, outs, strict=True)]):
        pass
    assert all((out == sum(range(1, ranks + 1))).all() for out in outs)
    states = [core.state(0, 1) for core in fabric.cores]
    real = {"sent": sum(s.counters.sent for s in states), "resent": sum(s.counters.retransmitted for s in states),
            "asks": sum(s.counters.asks for s in states), "lost": network.lost}

    topology = leaf_spine(hosts=ranks, leaves=leaves, spines=1, rate=1e24, delay=20e-6)
    work, folds = fold(topology, range(ranks), packets * 1024, machines=False)
    lost = [(rank if kind.endswith("up") else topology.size + rank, kind, psn, 1) for _, rank, kind, psn in drops]
    c = simulate(topology, work, PINNED, transport=EXACT, folds=folds, rules=FoldRules(slots=64), drops=lost).counts
    return real, {"sent": c["fold_sent"], "resent": c["fold_resent"], "asks": c["fold_asks"], "lost": c["dropped"]}


@pytest.mark.parametrize("leaves", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_the_hosts_engine_and_the_simulator_repair_a_loss_alike(leaves, seed) -> None:
    """The same packets lost: the host's own engine and the simulator send, repeat and ask for equally many."""
    print(f"seed {seed}")
    draw = random.Random(seed)
    places = draw.sample([(rank, kind, psn) for rank in range(2 * leaves) for kind in ("up", "down")
                          for psn in range(4, 190, 6)], seed * 2)
    real, mine = _both(leaves, [("rank", *place) for place in places], 200)
    assert real["lost"] == 2 * seed
    assert mine == real


@pytest.mark.parametrize(("topology", "machines"), [
    (leaf_spine(hosts=16, leaves=4, spines=4), False), (Topology(hosts=2, leaves=4, aggs=1), True),
    (Topology(hosts=2, leaves=2, aggs=1, pods=3, cores=2), True), (Topology(hosts=2, leaves=2, aggs=2, pods=2, cores=2),
                                                                  False)])
def test_without_loss_every_link_carries_what_theory_says(topology, machines) -> None:
    """Each host's bytes once up and once down; between switches each sum and each result once; nothing is repeated."""
    size, n = 300 * EXACT.mtu, topology.size
    hosts = range(0, n, 2) if machines else range(n)
    work, folds = fold(topology, hosts, size, machines=machines)
    outcome = simulate(topology, work, PINNED, transport=EXACT, folds=folds)
    wire = 300 * (EXACT.mtu + EXACT.header)
    for host in hosts:
        assert outcome.link_bytes[host] == outcome.link_bytes[n + host] == wire
    up = outcome.link_bytes[2 * n:2 * n + topology.blocks[2]].reshape(-1, topology.aggs)
    if machines:
        assert (up == wire).all()
    else:
        assert up.sum() == topology.leaves * topology.pods * wire
    assert outcome.counts["fold_resent"] == outcome.counts["fold_asks"] == 0
    assert outcome.counts["fold_completed"] == 300


def _assert_kept(outcome: PacketOutcome, ranks: int, packets: int) -> None:
    c = outcome.counts
    assert outcome.unfinished == 0
    assert c["fold_completed"] == packets  # each sum was complete at a root once
    assert c["fold_results"] == ranks * packets  # and came to each rank once
    assert c["dropped"] == outcome.link_dropped.sum()
    assert c["fold_sent"] == ranks * packets + c["fold_resent"]


@settings(max_examples=60)
@given(loss=st.sampled_from([0.0, 0.001, 0.02, 0.1]), seed=st.integers(0, 2**32), size=st.integers(1, 200_000),
       fabric=st.sampled_from([leaf_spine(hosts=8, leaves=4, spines=3), leaf_spine(hosts=4, leaves=1, spines=1)]),
       credits=st.sampled_from([0, 2]))
def test_every_sum_is_complete_once_and_runs_repeat(loss, seed, size, fabric, credits) -> None:
    """Whatever is lost: each sum is complete once, each rank gets each result once, equal seeds give equal runs."""
    work, folds = fold(fabric, range(fabric.size), size, machines=False)
    again = [simulate(fabric, work, PINNED, transport=EXACT, folds=folds, loss=loss, seed=seed, deadline=100,
                      rules=FoldRules(slots=64, message=5, credits=credits)) for _ in range(2)]
    _assert_kept(again[0], fabric.size, -(-size // EXACT.mtu))
    assert again[0].counts == again[1].counts
    assert again[0].time == again[1].time


@pytest.mark.parametrize("ranks", [65, MAX_CHILDREN])
@pytest.mark.parametrize("rules", [FoldRules(slots=64), replace(SWITCHML, slots=64)], ids=["NetFold", "SwitchML"])
def test_a_switch_sums_as_many_children_as_a_tree_may_have(ranks: int, rules: FoldRules) -> None:
    """Each has a place of its own in the switch's memory of who has contributed."""
    fabric = leaf_spine(hosts=ranks, leaves=1, spines=1)
    work, folds = fold(fabric, range(ranks), 20 * EXACT.mtu, machines=False, most=1)
    outcome = simulate(fabric, work, PINNED, transport=EXACT, folds=folds, loss=0.01, seed=3, deadline=100, rules=rules)
    assert outcome.unfinished == 0
    assert outcome.counts["fold_completed"] >= 20
    assert outcome.counts["fold_results"] == ranks * outcome.counts["fold_completed"]
    assert outcome.counts["fold_wrong"] == 0


@pytest.mark.parametrize(("loss", "most", "repeats"), [(0.01, 1.04, 1.2), (0.05, 1.25, 1.3)])
def test_a_loss_costs_its_repair_and_little_more(loss: float, most: float, repeats: float) -> None:
    """8 MB over links of 1 Gb/s, four ranks on two leaves and a spine: what is lost on a link is sent again on that
    link, hardly anything else is, and nobody waits for a timer but at the end."""
    topology = leaf_spine(hosts=4, leaves=2, spines=1, rate=1e9, delay=20e-6)
    work, folds = fold(topology, range(4), 8_000_000, machines=False)

    def run_with(loss: float, seed: int) -> PacketOutcome:
        return simulate(topology, work, PINNED, transport=Transport(mtu=4096, jitter=0), folds=folds, loss=loss,
                        seed=seed)

    clean = run_with(0, 0).time
    lossy = [run_with(loss, seed) for seed in range(4)]
    assert sum(one.time for one in lossy) < 4 * most * clean
    again = sum(one.counts["fold_resent"] + one.counts["fold_answered"] for one in lossy)
    assert again < repeats * sum(one.counts["dropped"] for one in lossy)


@pytest.mark.parametrize(("loss", "mean", "most"), [(0.01, 1.06, 1.2), (0.05, 1.26, 1.6)])
def test_a_short_folds_tail_is_repaired_without_waiting_for_a_timer(loss: float, mean: float, most: float) -> None:
    """1 MB over links of 1 Gb/s, where one time-out is a quarter of the time: what was lost at the end is asked for
    after two round trips, and hardly anything is sent again that was not lost."""
    topology = leaf_spine(hosts=4, leaves=2, spines=1, rate=1e9, delay=20e-6)
    work, folds = fold(topology, range(4), 1_000_000, machines=False)

    def run_with(loss: float, seed: int) -> PacketOutcome:
        return simulate(topology, work, PINNED, transport=Transport(mtu=4096, jitter=0), folds=folds, loss=loss,
                        seed=seed)

    clean = run_with(0, 0).time
    print("seeds 0 to 39")
    lossy = [run_with(loss, seed) for seed in range(40)]
    assert sum(one.time for one in lossy) < 40 * mean * clean
    assert max(one.time for one in lossy) < most * clean
    assert sum(one.counts["fold_timeouts"] for one in lossy) < 4
    again = sum(one.counts["fold_resent"] + one.counts["fold_answered"] for one in lossy)
    assert again < 1.25 * sum(one.counts["dropped"] for one in lossy)


def test_folds_and_flows_share_links() -> None:
    """A fold beside a ring over the same hosts takes longer than alone, and both end."""
    topology = leaf_spine(hosts=8, leaves=2, spines=2)
    work, folds = fold(topology, range(8), 1 << 22, machines=False)
    alone = simulate(topology, work, PINNED, transport=EXACT, folds=folds)
    other = ring(range(8), 1 << 22)
    together, both = beside((work, folds), (other, []))
    outcome = simulate(topology, together, PINNED, transport=EXACT, folds=both)
    assert outcome.unfinished == 0
    assert outcome.finished[:8].max() > 1.2 * alone.time


def test_what_cannot_be_folded_is_refused() -> None:
    """Wrong slots, wrong loss, hosts twice: each says what was expected."""
    topology = leaf_spine(hosts=4, leaves=2, spines=1)
    with pytest.raises(ValueError, match="power of two"):
        FoldRules(slots=100)
    with pytest.raises(ValueError, match="at least 2 different hosts"):
        fold(topology, [1, 1], 10, machines=False)
    work, folds = fold(topology, range(4), 10_000, machines=False)
    with pytest.raises(ValueError, match="loss"):
        simulate(topology, work, PINNED, folds=folds, loss=1.0)
