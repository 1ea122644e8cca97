# SPDX-License-Identifier: Apache-2.0
"""A training's steps on a fabric, in time: computing, collectives that share links, and what is waited for.

    outcome = replay(program, RankFabric(fabric, 1e9, 8, costs=..., delay=500e-9), WAYS["innet"])

The actions of all ranks and the phases of all collectives are the tasks of one workload of the fluid simulator
(`fluid.flow`): collectives under way at the same time share links fairly.  A collective begins when all of its ranks
have called it, and the one before it in its group has ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from netfold.sim.engines import fluid
from netfold.sim.engines.placement import Placement
from netfold.sim.whatif.program import Await, Compute, Issue, Operation, StepEnd, TrainingProgram
from netfold.sim.whatif.ways import Phase, RankFabric, WhatIfWay
from netfold.sim.workloads.workload import Workload


@dataclass(frozen=True)
class ReplayOutcome:
    """A replay; all figures are of one step, means over the ranks and the steps."""

    step: float
    """Seconds; the sum of ``compute`` and of all of ``exposed``."""
    compute: float
    exposed: Mapping[str, float]
    """Seconds that are waited for collectives, by their kind."""
    communication: float
    """Seconds that a rank's collectives take, each by itself: what of it is not exposed was hidden behind computing."""
    link_bytes: NDArray[np.float64]
    """float64[directed links]: bytes, headers included, of both planes."""


class _Tasks:
    """Collects the tasks of a workload, and the pieces of those that flow."""

    def __init__(self) -> None:
        self.gaps: list[float] = []
        self.waits: list[tuple[int, int]] = []
        self.pieces: list[tuple[int, Phase]] = []

    def add(self, after: list[int], gap: float = 0.0) -> int:
        """A pause of ``gap`` seconds after tasks; its number."""
        number = len(self.gaps)
        self.gaps.append(gap)
        self.waits += [(before, number) for before in after]
        return number

    def flow(self, phase: Phase) -> int:
        """A phase of a collective; its number."""
        number = self.add([], 0.0 if phase.loads else phase.latency)
        if phase.loads:
            self.pieces.append((number, phase))
        return number

    def run(self, fabric: RankFabric) -> fluid.FluidOutcome:
        """When each task ends."""
        n = len(self.gaps)
        none = np.zeros(n, np.int64)
        work = Workload(none, none, none, np.array(self.gaps), none,
                        np.array(self.waits, np.int64).reshape(-1, 2))
        first = np.cumsum([0, *(len(phase.loads) for _, phase in self.pieces)]).astype(np.int64)
        wire = np.array([max(phase.loads.values()) for _, phase in self.pieces], np.float64)
        links = np.array([link for _, phase in self.pieces for link in phase.loads], np.uint32)
        weight = np.array([load for _, phase in self.pieces for load in phase.loads.values()], np.float64)
        weight /= np.repeat(wire, np.diff(first))
        latency = np.zeros(n)
        for number, phase in self.pieces:
            latency[number] = phase.latency
        placed = Placement(np.array([number for number, _ in self.pieces], np.int64), np.ceil(wire).astype(np.int64),
                           np.zeros(len(wire), np.int64), np.ones(len(wire)))
        return fluid.flow(work, placed, wire, fluid.Usage(first, links, weight.astype(np.float32)), fabric.capacity,
                          latency)


def replay(program: TrainingProgram, fabric: RankFabric, way: WhatIfWay, *, seed: int = 1) -> ReplayOutcome:
    """Let a training run with all collectives carried in one way.

    seed  of the paths of hashed flows
    Raises PathError where hosts cannot reach each other, trees.NoTree where no switch can fold.
    """
    tasks = _Tasks()
    known: dict[Operation, list[Phase]] = {}
    chains: list[list[int]] = []  # the tasks of each operation's phases
    for operation in program.operations:
        if operation not in known:
            known[operation] = fabric.phases(operation, way, seed)
        chains.append([tasks.flow(phase) for phase in known[operation]])
    for chain in chains:
        tasks.waits += pairwise(chain)
    for group in program.order:
        tasks.waits += [(chains[before][-1], chains[after][0]) for before, after in pairwise(group)]
    computed = 0.0
    ends: list[tuple[int, int]] = []
    waits: list[tuple[str, int, int]] = []
    for actions in program.ranks:
        last, steps = tasks.add([]), list[int]()
        for action in actions:
            if isinstance(action, Compute):
                last = tasks.add([last], action.seconds)
                computed += action.seconds
            elif isinstance(action, Issue):
                tasks.waits.append((last, chains[action.operation][0]))
            elif isinstance(action, Await):
                before, last = last, tasks.add([last, chains[action.operation][-1]])
                waits.append((program.operations[action.operation].kind, before, last))
            elif isinstance(action, StepEnd):
                steps.append(last)
        ends.append((steps[0], steps[-1]))
    finished = tasks.run(fabric).finished
    share = 1 / len(program.ranks) / program.steps
    exposed: defaultdict[str, float] = defaultdict(float)
    for kind, before, after in waits:
        exposed[kind] += share * float(finished[after] - finished[before])
    carried = np.zeros(len(fabric.capacity))
    alone = 0.0
    for operation in program.operations:
        for phase in known[operation]:
            for resource, load in phase.loads.items():
                carried[resource] += load / program.steps
            alone += len(operation.members) * (phase.latency + max(
                (load / fabric.capacity[resource] for resource, load in phase.loads.items()), default=0.0))
    links = len(fabric.link_names)
    step = share * sum(float(finished[end] - finished[begin]) for begin, end in ends)
    return ReplayOutcome(step, share * computed, dict(exposed), share * alone,
                         carried[:links] + carried[links:2 * links])
