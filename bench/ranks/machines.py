# SPDX-License-Identifier: Apache-2.0
"""One rank of `netfold bench machines`: times allreduce of one tensor by one scheme, and checks every sum.

    python -m netfold.bench.ranks.machines TASK    a JSON `MachinesTask`; prints a JSON `MachinesResult`
"""

from __future__ import annotations

import sys
import time

import msgspec
import numpy as np

from netfold.topo.processes.rank_program import check_data, run_rank


class MachinesTask(msgspec.Struct, frozen=True):
    """The task of each rank: ``way`` is one of `commands.machines.WAYS`."""

    way: str
    elements: int
    rounds: int


class MachinesResult(msgspec.Struct, frozen=True):
    """The measurement of one rank: seconds of each round."""

    seconds: list[float]
    inside: float
    """GB/s of shared memory as the cost model defines it; 0 where each rank has a machine of its own."""


def rank(task: MachinesTask) -> None:
    """Measure, and print the `MachinesResult`.  Raises WrongData."""
    import netfold

    with netfold.init(rail="innet", timeout=60.0) as comm:
        algorithm = None if task.way.startswith("folded") else task.way
        source, out = np.full(task.elements, comm.rank + 1, np.int32), np.empty(task.elements, np.int32)
        seconds = []
        for turn in range(task.rounds + 1):  # the first one opens connections
            comm.barrier()
            begin = time.perf_counter()
            comm.allreduce(source, out, algorithm=algorithm)
            seconds.append(time.perf_counter() - begin)
            operation = f"sum {turn + 1} ({task.way})"
            check_data(out, comm.size * (comm.size + 1) // 2, rank=comm.rank, operation=operation)
        result = MachinesResult(seconds[1:], comm.shared_memory_rate / 1e9)
        print(msgspec.json.encode(result).decode(), flush=True)


if __name__ == "__main__":
    run_rank(rank, msgspec.json.decode(sys.argv[1], type=MachinesTask))
