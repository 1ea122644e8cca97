# SPDX-License-Identifier: Apache-2.0
"""The fluid simulator: rates are max-min fair, and it agrees with closed forms and with the packet simulator."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.sim.engines import fluid, packet
from netfold.sim.engines.placement import SCHEMES
from netfold.sim.engines.topology import ClosCable, Topology, leaf_spine, paper_fat_tree
from netfold.sim.workloads.training import MODELS, data_parallel
from netfold.sim.workloads.workload import COLLECTIVES, Workload, all_to_all, double_binary_tree, halving_doubling

LINKS = 6
USES = st.lists(st.dictionaries(st.integers(0, LINKS - 1), st.sampled_from([0.25, 0.5, 1.0]), min_size=1),
                min_size=1, max_size=10)


def usage_of(uses: list[dict[int, float]]) -> fluid.Usage:
    first = np.cumsum([0, *(len(use) for use in uses)]).astype(np.int64)
    return fluid.Usage(first, np.array([link for use in uses for link in use], np.uint32),
                       np.array([w for use in uses for w in use.values()], np.float32))


@given(uses=USES, capacity=st.lists(st.integers(1, 50), min_size=LINKS, max_size=LINKS))
def test_rates_are_max_min_fair(uses, capacity) -> None:
    """No link is over its capacity, and each flow has a full link on which nobody is faster (the defining property)."""
    rates = fluid.max_min(np.array(capacity, float), usage_of(uses))
    load = [sum(rate * use.get(link, 0.0) for rate, use in zip(rates, uses, strict=True)) for link in range(LINKS)]
    assert all(carried <= room * (1 + 1e-6) for carried, room in zip(load, capacity, strict=True))
    fastest = [max((r for r, use in zip(rates, uses, strict=True) if link in use), default=0) for link in range(LINKS)]
    for rate, use in zip(rates, uses, strict=True):
        assert any(load[link] >= capacity[link] * (1 - 1e-6) and rate >= fastest[link] * (1 - 1e-6) for link in use)


def test_only_active_flows_take_part() -> None:
    """A flow that has ended leaves its room to the others."""
    usage = usage_of([{0: 1.0}, {0: 1.0}, {0: 1.0}])
    capacity = np.full(LINKS, 12.0)
    assert fluid.max_min(capacity, usage).tolist() == [4, 4, 4]
    assert fluid.max_min(capacity, usage, np.array([0, 2], np.uint32)).tolist() == [6, 0, 6]
    with pytest.raises(ValueError, match="capacity above 0"):
        fluid.max_min(np.zeros(LINKS), usage)


@pytest.mark.parametrize("scheme", ["netfold", "ethereal", "spray"])
@pytest.mark.parametrize("topology", [leaf_spine(hosts=64, leaves=8, spines=8),
                                      replace(paper_fat_tree(), hosts=8, pods=4, leaf_rate=800e9, core_rate=800e9)])
def test_even_schemes_take_what_the_host_links_take(scheme, topology) -> None:
    """All-to-all without oversubscription: (n-1)/n of the buffer and its headers at line rate, plus one latency."""
    size = topology.size * 90_000
    outcome = fluid.simulate(topology, all_to_all(range(topology.size), size), SCHEMES[scheme])
    line = (topology.size - 1) * 10 * 9058 * 8 / topology.host_rate
    assert line < outcome.time < line + 6 * (500e-9 + 9058 * 8 / 400e9)


def test_a_dead_uplink_takes_its_share() -> None:
    """Four hosts a leaf over three of four uplinks: 4/3 of the time, pieces of a flow end together."""
    topology = leaf_spine(hosts=8, leaves=2, spines=4)
    source = np.arange(4, dtype=np.int64)
    work = Workload(source, source + 4, np.full(4, 1200 * 9000), np.zeros(4), np.zeros(4, np.int64),
                    np.zeros((0, 2), np.int64))
    for scheme in ("netfold", "ethereal", "spray"):
        healthy, broken = (fluid.simulate(topology, work, SCHEMES[scheme], dead=dead)
                           for dead in ((), [ClosCable("leaf", 0, 0)]))
        latency = 4 * (500e-9 + 9058 * 8 / 400e9) - 9058 * 8 / 400e9
        assert (broken.time - latency) / (healthy.time - latency) == pytest.approx(4 / 3, rel=1e-4)
        assert broken.finished.min() == pytest.approx(broken.time, rel=1e-3)


@pytest.mark.parametrize("collective", sorted(COLLECTIVES))
@pytest.mark.parametrize("scheme", ["netfold", "ethereal", "ecmp", "mp-rdma-2"])
def test_packets_and_fluid_agree(collective, scheme) -> None:
    """Long flows on 32 hosts: two simulators that share no code find the same time within 10 %; seed 5.

    Trees in long segments: what fluid flows share evenly, packets of short ones pass in the order they came.
    """
    topology = leaf_spine(hosts=32, leaves=4, spines=8)
    make = {**COLLECTIVES, "double-binary-tree": partial(double_binary_tree, segment=1 << 19)}[collective]
    work = make(range(32), 32 << 20)
    slow = packet.simulate(topology, work, SCHEMES[scheme], seed=5)
    ideal = fluid.simulate(topology, work, SCHEMES[scheme], seed=5)
    assert slow.time == pytest.approx(ideal.time, rel=0.1)


def test_coarse_resolution_stays_near_exact() -> None:
    """Taking events within a microsecond as one moves the result by little and saves most computations; seed 2."""
    topology = leaf_spine(hosts=64, leaves=8, spines=8)
    work = halving_doubling(range(64), 8 << 20)
    exact, coarse = (fluid.simulate(topology, work, SCHEMES["ecmp"], seed=2, resolution=r) for r in (0.0, 1e-6))
    assert coarse.events < exact.events / 2
    assert coarse.time == pytest.approx(exact.time, rel=0.05)


def test_a_training_step_is_compute_plus_its_collectives() -> None:
    """Layers follow each other with their backward pass between them; GPT-7B has 7.2 G parameters in its layers."""
    model = MODELS["GPT-7B"]
    assert model.layers * model.layer_parameters == 7_247_757_312
    topology = leaf_spine(hosts=64, leaves=8, spines=8)
    one, three = (fluid.simulate(topology, data_parallel(range(64), model, layers=k), SCHEMES["netfold"]).time
                  for k in (1, 3))
    compute = 4 * model.layer_parameters * 4096 / 400e12
    gradients = 2 * 7 / 8 * (2 * model.layer_parameters / 8) * 8 / 400e9 * 9058 / 9000
    assert one == pytest.approx(compute + gradients, rel=0.01)
    assert three == pytest.approx(3 * one, rel=1e-6)


def test_more_than_memory_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit on entries ends in a named error that says what to change."""
    monkeypatch.setattr(fluid, "MAX_ENTRIES", 10)
    with pytest.raises(packet.SimulationError, match="simulate fewer steps"):
        fluid.simulate(Topology(hosts=2, leaves=2, aggs=2), all_to_all(range(4), 400), SCHEMES["spray"])
