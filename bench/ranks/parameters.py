# SPDX-License-Identifier: Apache-2.0
"""One rank of `netfold bench parameter-server`: training steps without computing, by servers and by allreduces.

    python -m netfold.bench.ranks.parameters TASK      a JSON `ParametersTask`; prints a JSON `ParametersResult`
"""

from __future__ import annotations

import hashlib
import sys
import time
from typing import Any

import msgspec
import numpy as np

from netfold.host.parameters.optimizers import Adam
from netfold.topo.processes.rank_program import check_data, run_rank

ADAM = Adam(1e-3)
"""The optimizer, at the servers or on every rank."""
SEED = 5
"""Seed of parameters and gradients."""
TOLERANCE = 1e-5
"""How far a parameter may be from that of the first way after as many steps: sums are added in other orders, and Adam
divides small numbers by small numbers."""


class StepWay(msgspec.Struct, frozen=True):
    """How a step is made: by this many servers among the ranks, or by allreduces of this algorithm and an optimizer on
    every rank."""

    name: str
    servers: int = 0
    algorithm: str = ""


class ParametersTask(msgspec.Struct, frozen=True):
    """All ways in each round, so many steps after one to warm up.  ``sizes``: elements of each tensor."""

    ways: list[StepWay]
    sizes: list[int]
    rounds: int
    steps: int
    timeout: float = 60.0


class ParametersResult(msgspec.Struct, frozen=True):
    """The measurements of one rank."""

    seconds: list[list[list[float]]]
    """Seconds of each step, by round and way."""
    processor: list[list[float]]
    """Processor seconds of this rank's process for a step, by round and way."""
    digests: list[str]
    """Digests of the parameters at the end of the last round, by way; all ranks must have the same."""


def measure(comm: Any, task: ParametersTask) -> ParametersResult:
    """Measure all rounds; each begins with another way.  Raises WrongData where ways differ."""
    seconds: list[list[list[float]]] = []
    processor: list[list[float]] = []
    ends: dict[int, Any] = {}
    for number in range(task.rounds):
        seconds.append([[] for _ in task.ways])
        processor.append([0.0 for _ in task.ways])
        for place in range(len(task.ways)):
            at = (number + place) % len(task.ways)
            seconds[-1][at], processor[-1][at], ends[at] = train(comm, task, task.ways[at])
    for at, end in ends.items():
        check_data(end, ends[0], rank=comm.rank, operation=f"steps by {task.ways[at].name}", tolerance=TOLERANCE)
    return ParametersResult(seconds, processor, [hashlib.sha256(ends[at].tobytes()).hexdigest() for at in sorted(ends)])


def train(comm: Any, task: ParametersTask, way: StepWay) -> tuple[list[float], float, Any]:
    """Seconds of each step, processor seconds of a step, and the parameters at the end in one row."""
    row = np.random.default_rng(SEED).standard_normal(sum(task.sizes)).astype(np.float32)
    gradient = np.random.default_rng(SEED + 1 + comm.rank).standard_normal(row.size).astype(np.float32)
    cuts = np.cumsum(task.sizes)[:-1]
    names = [f"tensor {number}" for number in range(len(task.sizes))]
    parameters = dict(zip(names, np.split(row, cuts), strict=True))
    gradients = dict(zip(names, np.split(gradient, cuts), strict=True))
    if way.servers:
        chosen = [number * comm.size // way.servers for number in range(way.servers)]
        server = comm.parameter_server(parameters, ADAM, servers=chosen)
    else:
        state, total = ADAM.start(row), np.empty_like(gradient)
    seconds = []
    for step in range(task.steps + 1):
        if step == 1:
            spent = time.process_time()
        comm.barrier()
        begin = time.perf_counter()
        if way.servers:
            server.step(gradients)
        else:
            comm.allreduce(gradient, total, op="average", algorithm=way.algorithm)
            state.begin()
            state.update(row, total, slice(0, row.size))
        seconds.append(time.perf_counter() - begin)
    return seconds[1:], (time.process_time() - spent) / task.steps, np.concatenate([*parameters.values()])


def rank(task: ParametersTask) -> None:
    """Measure, and print the `ParametersResult`.  Raises WrongData."""
    import netfold

    with netfold.init(rail="auto", timeout=task.timeout) as comm:
        print(msgspec.json.encode(measure(comm, task)).decode(), flush=True)


if __name__ == "__main__":
    run_rank(rank, msgspec.json.decode(sys.argv[1], type=ParametersTask))
