# SPDX-License-Identifier: Apache-2.0
"""Allreduces on clusters whose machines have several ranks behind one network interface, as flows with dependencies.

    butterfly      halving-doubling (Rabenseifner) among all ranks, whose far exchanges all cross the interfaces
    smp-binomial   each machine reduces to its first rank, these reduce and broadcast by a binomial tree
    smp-butterfly  the same inside machines, halving-doubling between the first ranks
    ring           2 (P-1) steps around the ranks in their order: ranks of a machine are neighbours
    random ring    the same in an order drawn by the seed

Ranks are hosts 0 .. P-1, machine after machine.  Reducing itself costs no time.  Every flow begins some time after what
it waits for, as a message costs beside its bytes (``MessageLatency``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from netfold.fabric.routing import collectives
from netfold.sim.workloads.workload import Workload, halving_doubling, ring


@dataclass(frozen=True)
class MessageLatency:
    """Seconds that a message costs beside its bytes, inside a machine and between two."""

    inside: float
    between: float


class _Stages:
    """Collects flows, each of which waits for those that its sender received before."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int]] = []
        self._waits: list[tuple[int, int]] = []
        self._arrived: dict[int, list[int]] = {}
        self._step = 0

    def stage(self, flows: Sequence[tuple[int, int]], size: int) -> None:
        """Adds flows (sender, receiver) of ``size`` bytes that start together."""
        into: list[tuple[int, int]] = []
        for source, destination in flows:
            number = len(self._rows)
            self._rows.append((source, destination, max(1, size), self._step))
            self._waits += [(before, number) for before in self._arrived.get(source, [])]
            into.append((destination, number))
        for destination, number in into:
            self._arrived.setdefault(destination, []).append(number)
        self._step += 1

    def done(self) -> Workload:
        """The collected workload."""
        rows = np.array(self._rows, np.int64).reshape(-1, 4)
        waits = np.array(self._waits, np.int64).reshape(-1, 2)
        return Workload(rows[:, 0], rows[:, 1], rows[:, 2], np.zeros(len(rows)), rows[:, 3], waits)


def _inside(stages: _Stages, machines: int, cores: int, size: int, *, up: bool) -> None:
    """A binomial reduce to the first rank of every machine, or a broadcast from it."""
    if cores == 1:
        return
    steps = collectives.binomial_reduce(cores) if up else collectives.binomial(cores)
    for step in steps:
        stages.stage([(m * cores + a, m * cores + b) for m in range(machines) for a, b in step], size)


def smp_binomial(machines: int, cores: int, size: int) -> Workload:
    """Binomial trees inside machines and between their first ranks, up and down."""
    stages = _Stages()
    _inside(stages, machines, cores, size, up=True)
    for step in (*collectives.binomial_reduce(machines), *collectives.binomial(machines)):
        stages.stage([(a * cores, b * cores) for a, b in step], size)
    _inside(stages, machines, cores, size, up=False)
    return stages.done()


def smp_butterfly(machines: int, cores: int, size: int) -> Workload:
    """Binomial trees inside machines, halving-doubling between their first ranks.  Raises ValueError where these are
    no power of two."""
    _powers(machines)
    stages = _Stages()
    _inside(stages, machines, cores, size, up=True)
    exchanges = collectives.halving_doubling(machines)  # from the nearest partner to the farthest
    for exchange in exchanges[::-1] + exchanges:
        distance = min(a ^ b for a, b in exchange)
        stages.stage([(a * cores, b * cores) for a, b in exchange], size * distance // machines)
    _inside(stages, machines, cores, size, up=False)
    return stages.done()


def butterfly(machines: int, cores: int, size: int) -> Workload:
    """Halving-doubling among all ranks.  Raises ValueError where these are no power of two."""
    _powers(machines * cores)
    return halving_doubling(range(machines * cores), size)


def ordered_ring(machines: int, cores: int, size: int) -> Workload:
    """A ring around the ranks in their order: each interface carries one flow each way."""
    return ring(range(machines * cores), size)


def random_ring(machines: int, cores: int, size: int, seed: int) -> Workload:
    """A ring around the ranks in an order that ``seed`` draws."""
    order = list(range(machines * cores))
    random.Random(seed).shuffle(order)
    return ring(order, size)


def with_latency(workload: Workload, cores: int, latency: MessageLatency) -> Workload:
    """The same flows, each beginning later by what its message costs."""
    same = workload.source // cores == workload.destination // cores
    return replace(workload, gap=workload.gap + np.where(same, latency.inside, latency.between))


def _powers(ranks: int) -> None:
    if ranks & (ranks - 1):
        raise ValueError(f"a butterfly among {ranks}: expected a power of two")


SEEDED: Final = "random ring"
ALGORITHMS: Final[dict[str, Callable[[int, int, int, int], Workload]]] = {
    "butterfly": lambda machines, cores, size, seed: butterfly(machines, cores, size),
    "smp-binomial": lambda machines, cores, size, seed: smp_binomial(machines, cores, size),
    "smp-butterfly": lambda machines, cores, size, seed: smp_butterfly(machines, cores, size),
    "ring": lambda machines, cores, size, seed: ordered_ring(machines, cores, size),
    SEEDED: random_ring,
}
"""By name: a workload of machines, ranks of each, bytes of the tensor, and a seed, which only a random order needs."""
