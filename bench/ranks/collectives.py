# SPDX-License-Identifier: Apache-2.0
"""One rank of `netfold bench collectives`: times each collective by each algorithm, in turn, and checks the results.

    python -m netfold.bench.ranks.collectives TASK      a JSON `CollectivesTask`; prints a JSON `CollectivesResult`
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import msgspec
import numpy as np

from netfold.bench.ranks.parameters import ParametersSteps
from netfold.topo.processes.rank_program import check_data, run_rank

Call: TypeAlias = Callable[[], object]
GLOO = "gloo"
"""The algorithms of torch.distributed's backend."""
STEP = "step"
"""No collective, but a training step of so many bytes of parameters (`ranks.parameters`)."""
FLAT, HIERARCHICAL = "flat", "hierarchical"
"""Broadcasts that are made of others here: the root sends to each rank; a binomial tree over leaves, one in each."""


class Cell(msgspec.Struct, frozen=True):
    """One thing that is timed: a collective of so many bytes by "innet", an algorithm between the hosts, or `GLOO`."""

    collective: str
    nbytes: int
    algorithm: str


class CollectivesTask(msgspec.Struct, frozen=True):
    """Each of the cells in each round, so many operations after one to warm up."""

    cells: list[Cell]
    rounds: int
    iterations: int
    timeout: float = 60.0
    leaf: int = 0
    """Ranks under each leaf switch, one leaf's after another's; for `HIERARCHICAL`."""


class CollectivesResult(msgspec.Struct, frozen=True):
    """The measurements of one rank, by round and cell."""

    seconds: list[list[list[float]]]
    """Seconds of each operation."""
    processor: list[list[float]]
    """Processor seconds of this rank's process for an operation."""


class GlooCollectives:
    """The collectives of torch.distributed over the same links."""

    def __init__(self, timeout: float) -> None:
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self._torch, self._dist = torch, dist
        dist.init_process_group(GLOO, timeout=timedelta(seconds=timeout))

    def call(self, cell: Cell, whole: Any, mine: Any, part: Any) -> Callable[[], object]:
        """A function that makes a cell's collective once; the arrays are those of ``CollectivesRank``."""
        dist, (a, b, c) = self._dist, map(self._torch.from_numpy, (whole, mine, part))
        scatter, gather = partial(dist.reduce_scatter_tensor, b, a), partial(dist.all_gather_into_tensor, c, b)

        def together() -> None:
            for work in (dist.reduce_scatter_tensor(b.clone(), a, async_op=True),
                         dist.all_gather_into_tensor(c, b, async_op=True)):
                work.wait()

        calls: dict[str, Callable[[], object]] = {
            "barrier": dist.barrier, "broadcast": partial(dist.broadcast, a, 0), "reduce": partial(dist.reduce, a, 0),
            "reduce_scatter": scatter, "all_gather": gather, "together": together,
        }
        return calls[cell.collective]

    def close(self) -> None:
        """Ends the process group."""
        self._dist.destroy_process_group()


class CollectivesRank:
    """This process and its arrays: ``whole`` has M bytes, ``mine`` this rank's part, ``part`` room for M again."""

    def __init__(self, comm: Any, task: CollectivesTask) -> None:
        self.comm = comm
        self.task = task
        self._groups: list[Any] = []
        self.gloo = GlooCollectives(task.timeout) if any(cell.algorithm == GLOO for cell in task.cells) else None

    def run(self) -> CollectivesResult:
        """Measure all rounds; each begins with another cell."""
        cells, seconds, processor = self.task.cells, [], []
        for number in range(self.task.rounds):
            order = [(number + place) % len(cells) for place in range(len(cells))]
            taken = {place: self.time(cells[place]) for place in order}
            seconds.append([taken[place][0] for place in range(len(cells))])
            processor.append([taken[place][1] for place in range(len(cells))])
        if self.gloo is not None:
            self.gloo.close()
        return CollectivesResult(seconds, processor)

    def time(self, cell: Cell) -> tuple[list[float], float]:
        """Seconds of each operation, and processor seconds of one; the ranks begin each one together."""
        prepare, call, check = self.steps(cell) if cell.collective == STEP else self.arrays(cell)
        seconds, spent = [], []
        for _ in range(self.task.iterations + 1):
            prepare()
            self.comm.barrier()
            begin, busy = time.perf_counter(), time.process_time()
            call()
            seconds.append(time.perf_counter() - begin)
            spent.append(time.process_time() - busy)
            check()
        return seconds[1:], statistics.fmean(spent[1:])

    def steps(self, cell: Cell) -> tuple[Call, Call, Call]:
        """The functions that prepare a step, make it, and check it."""
        steps = ParametersSteps(self.comm, cell.nbytes, cell.algorithm)
        return (lambda: None), steps.step, steps.check

    def arrays(self, cell: Cell) -> tuple[Call, Call, Call]:
        """The functions that fill a collective's arrays, make it, and check its result."""
        comm, each = self.comm, max(1, cell.nbytes // 4 // self.comm.size)
        whole = np.full(each * comm.size, comm.rank + 1, np.int32)
        mine, part = np.full(each, comm.rank + 1, np.int32), np.zeros(each * comm.size, np.int32)
        by = self.gloo.call(cell, whole, mine, part) if cell.algorithm == GLOO and self.gloo is not None else partial(
            self.call, cell, whole, mine, part
        )

        def fill() -> None:
            whole[...], mine[...], part[...] = comm.rank + 1, comm.rank + 1, 0

        return fill, by, partial(self.check, cell, whole, mine, part)

    def call(self, cell: Cell, whole: Any, mine: Any, part: Any) -> None:
        """Makes a collective by an algorithm of ours."""
        comm, algorithm = self.comm, cell.algorithm
        if cell.collective == "barrier":
            comm.barrier(algorithm=algorithm)
        elif cell.collective == "broadcast" and algorithm == FLAT:
            if comm.rank:
                comm.receive(whole, 0)
            for peer in range(1, 0 if comm.rank else comm.size):
                comm.send(whole, peer)
        elif cell.collective == "broadcast" and algorithm == HIERARCHICAL:
            for group in self.levels():
                group.broadcast(whole, algorithm="binomial")
        elif cell.collective == "broadcast":
            comm.broadcast(whole, algorithm=algorithm)
        elif cell.collective == "reduce":
            comm.reduce(whole, whole, algorithm=algorithm)
        elif cell.collective == "reduce_scatter":
            comm.reduce_scatter(whole, mine, algorithm=algorithm)
        elif cell.collective == "all_gather":
            comm.all_gather(mine, part, algorithm=algorithm)
        elif algorithm == "innet":
            with comm.together() as both:
                both.reduce_scatter(whole)
                both.all_gather(mine, part)
        else:
            comm.reduce_scatter(whole, algorithm=algorithm)
            comm.all_gather(mine, part, algorithm=algorithm)

    def levels(self) -> list[Any]:
        """The groups of `HIERARCHICAL` that this rank is in: the leaves' first ranks, and its own leaf's."""
        if not self._groups:
            each, rank = self.task.leaf, self.comm.rank
            first = rank - rank % each
            if rank == first:
                self._groups.append(self.comm.group(range(0, self.comm.size, each)))
            self._groups.append(self.comm.group(range(first, first + each)))
        return self._groups

    def check(self, cell: Cell, whole: Any, mine: Any, part: Any) -> None:
        """Raises WrongData for a wrong result."""
        comm, total = self.comm, self.comm.size * (self.comm.size + 1) // 2
        right = partial(check_data, rank=comm.rank, operation=f"{cell.collective} of {cell.nbytes} by {cell.algorithm}")
        if cell.collective == "broadcast":
            right(whole, 1)
        elif cell.collective == "reduce" and comm.rank == 0:
            right(whole, total)
        elif cell.collective == "reduce_scatter":
            right(mine, total)
        elif cell.collective in ("all_gather", "together"):
            right(part, np.repeat(np.arange(comm.size) + 1, mine.size))


def rank(task: CollectivesTask) -> None:
    """Measure, and print the `CollectivesResult`.  Raises WrongData."""
    import netfold

    os.environ.setdefault("NETFOLD_ALGO", "auto")
    with netfold.init(rail="auto", timeout=task.timeout) as comm:
        print(msgspec.json.encode(CollectivesRank(comm, task).run()).decode(), flush=True)


if __name__ == "__main__":
    run_rank(rank, msgspec.json.decode(sys.argv[1], type=CollectivesTask))
