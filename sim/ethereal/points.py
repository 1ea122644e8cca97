# SPDX-License-Identifier: Apache-2.0
"""The simulations of Ethereal's comparison: on which fabric, of what, by which scheme, with which links out."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path

import numpy as np

from netfold.fabric.file import load
from netfold.fabric.graph import FabricError
from netfold.sim.engines import fluid
from netfold.sim.engines.packet import Fault, Transport, simulate
from netfold.sim.engines.placement import SCHEMES, place
from netfold.sim.engines.topology import ClosCable, Topology, large_fat_tree, leaf_spine, of_fabric, paper_fat_tree
from netfold.sim.ethereal.claims import GIVE_UP, ComparisonRow, State
from netfold.sim.workloads.training import TRAINING
from netfold.sim.workloads.workload import COLLECTIVES, Workload

RATE, DELAY = 400e9, 500e-9
"""Bit/s of links of a fabric file that states no rate, and seconds over each link: those of the paper."""


def unequal_spines(*, hosts: int = 256, leaves: int = 16, spines: int = 16) -> Topology:
    """Every fourth spine is an older switch, whose links have 100 Gb/s where others have 400."""
    return replace(leaf_spine(hosts=hosts, leaves=leaves, spines=spines),
                   uplinks=tuple(RATE / (1 if spine % 4 else 4) for spine in range(spines)))


def unequal_leaves(*, hosts: int = 256, leaves: int = 16, spines: int = 16) -> Topology:
    """A quarter of each leaf's uplinks have 100 Gb/s, neighbours those to other spines."""
    return replace(leaf_spine(hosts=hosts, leaves=leaves, spines=spines),
                   uplinks=tuple(RATE / (1 if (leaf + spine) % 4 else 4)
                                 for leaf in range(leaves) for spine in range(spines)))


FABRICS: dict[str, Callable[[], Topology]] = {
    "leaf-spine": leaf_spine,
    "leaf-spine-64": partial(leaf_spine, hosts=64, leaves=8, spines=8),
    "unequal-spines": unequal_spines,
    "unequal-leaves": unequal_leaves,
    "unequal-spines-64": partial(unequal_spines, hosts=64, leaves=8, spines=8),
    "unequal-leaves-64": partial(unequal_leaves, hosts=64, leaves=8, spines=8),
    "fat-tree": paper_fat_tree,
}
BROKEN = ClosCable("leaf", 0, 0)
"""The cable that breaks in the paper, and first in every simulation here."""


@dataclass(frozen=True)
class Point:
    """One simulation of the comparison."""

    fabric: str
    workload: str
    """A collective, or a training step of `training.TRAINING`."""
    size: int
    """Bytes on each rank; 0 for a model."""
    scheme: str
    state: State
    seed: int
    rto: float
    links: int = 1
    """Cables that break or are out; 1 also where all are up."""


def simulate_point(point: Point) -> ComparisonRow:
    """Run one simulation."""
    topology = fabric(point.fabric)
    workload = _workload(topology, point)
    scheme = SCHEMES[point.scheme]
    cables = [] if point.state == "healthy" else broken(topology, point.links, point.seed)
    known = point.state == "link is out"
    faults = [Fault(cable, 0.0, 0.0) if known else Fault(cable, 1e-6) for cable in cables]
    dead = topology.dead(cables) if known else frozenset()
    transport = Transport(rto=point.rto)
    outcome = simulate(topology, workload, scheme, transport=transport, faults=faults, seed=point.seed,
                       deadline=GIVE_UP + workload.idle)
    upwards = slice(2 * topology.size, 2 * topology.size + topology.blocks[2])
    carried, rates = (links[upwards].reshape(-1, topology.aggs) for links in (outcome.link_bytes, topology.rates()))
    used = carried.any(axis=1)
    even = carried.sum(axis=1, keepdims=True) * rates / rates.sum(axis=1, keepdims=True)
    placed = place(topology, workload, scheme, dead=dead, seed=point.seed, mtu=transport.mtu)
    ends = np.stack([column[placed.task] for column in (workload.step, workload.source, workload.destination)])
    pairs = np.unique(np.vstack([ends, placed.path]), axis=1)  # segments of a flow on one path share a queue pair
    return ComparisonRow(point.fabric, point.workload, point.size, point.scheme, point.state, point.seed,
               inf if outcome.unfinished else outcome.time, outcome.unfinished,
               int(np.unique(pairs[:2], axis=1, return_counts=True)[1].max()),
               float((carried[used] / even[used]).max(initial=1.0)),
               outcome.counts["timeouts"], outcome.counts["dropped"], point.links)


def fabric(name: str) -> Topology:
    """One of `FABRICS`, or the leaf-spine fabric of a file NAME.toml.

    Raises ValueError for an unknown name, a file that cannot be read, and a fabric that is not regular.
    """
    if name in FABRICS:
        return FABRICS[name]()
    if not name.endswith(".toml"):
        raise ValueError(f"no fabric is called {name}; there are {', '.join(FABRICS)}, and files NAME.toml")
    try:
        return of_fabric(load(Path(name)), delay=DELAY, rate=RATE)
    except FabricError as error:
        raise ValueError(str(error)) from error


def broken(topology: Topology, number: int, seed: int) -> list[ClosCable]:
    """Choose ``number`` cables between leaves and the tier above by the seed, `BROKEN` always first.

    Raises ValueError for more cables than the fabric has.
    """
    leaves = topology.leaves * topology.pods
    rest = [ClosCable("leaf", leaf, agg) for leaf in range(leaves) for agg in range(topology.aggs)]
    rest.remove(BROKEN)
    if number > len(rest) + 1:
        raise ValueError(f"{number} links out: the fabric has {len(rest) + 1} between leaves and the tier above")
    return [BROKEN, *random.Random(seed).sample(rest, number - 1)]


def _workload(topology: Topology, point: Point) -> Workload:
    hosts = range(topology.size)
    if point.workload in TRAINING:
        return TRAINING[point.workload](hosts)
    return COLLECTIVES[point.workload](hosts, point.size)


def simulate_large(*, seed: int, size: int = 64 << 20, echo: Callable[[str], None] = print) -> dict[str, float]:
    """Run halving-doubling among 16,384 hosts in the fluid simulator and return seconds for each scheme."""
    topology = large_fat_tree()
    workload = COLLECTIVES["halving-doubling"](range(topology.size), size)
    times: dict[str, float] = {}
    for name in ("netfold", "spray", "ecmp"):
        outcome = fluid.simulate(topology, workload, SCHEMES[name], seed=seed, resolution=2e-5)
        times[name] = outcome.time
        echo(f"16,384 hosts, halving-doubling {size >> 20} MB, {name}: {outcome.time * 1e3:.2f} ms "
             f"({outcome.wall:.0f} s to simulate)")
    return times
