# SPDX-License-Identifier: Apache-2.0
"""One rank of `netfold bench recovery`: sums the same tensor until its time is over, and notes when each sum began.

    python -m netfold.bench.ranks.recovery TASK    a JSON `RecoveryTask`; prints STARTED and a JSON `RecoveryResult`
"""

from __future__ import annotations

import sys
import time
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from netfold.topo.processes.rank_program import check_data, run_rank

STARTED: Final = "started"
"""The line that a rank prints when its first sum is done."""


class RecoveryTask(msgspec.Struct, frozen=True):
    """The task of a rank: sums of a number of elements for a number of seconds."""

    elements: int
    seconds: float


class RecoveryResult(msgspec.Struct, frozen=True):
    """When each operation of one rank began (seconds of CLOCK_MONOTONIC), and how long it took."""

    begins: list[float]
    seconds: list[float]
    rounds: int
    """How often the controller replanned the trees."""


def rank(work: RecoveryTask) -> None:
    """Print STARTED after the first sum, and the `RecoveryResult` at the end.

    Rank 0 sets the last element when the time is over, so that all ranks end with the same operation.  Raises
    WrongData.
    """
    import netfold

    with netfold.init(rail="innet", timeout=20.0) as comm:
        own = [np.random.default_rng([1, rank]).integers(-(2**20), 2**20, work.elements + 1, np.int32)
               for rank in range(comm.size)]
        expected: NDArray[np.int32] = np.stack(own).sum(axis=0, dtype=np.int32)
        source, out = own[comm.rank], np.empty(work.elements + 1, np.int32)
        comm.allreduce(source, out)
        print(STARTED, flush=True)
        begins: list[float] = []
        seconds: list[float] = []
        end = time.monotonic() + work.seconds
        over = False
        while not over:
            source[-1] = comm.rank == 0 and time.monotonic() > end
            begins.append(time.monotonic())
            comm.allreduce(source, out)
            seconds.append(time.monotonic() - begins[-1])
            check_data(out[:-1], expected[:-1], rank=comm.rank, operation=f"sum {len(begins)}")
            over = bool(out[-1])
        print(msgspec.json.encode(RecoveryResult(begins, seconds, comm.plan.round)).decode(), flush=True)


if __name__ == "__main__":
    run_rank(rank, msgspec.json.decode(sys.argv[1], type=RecoveryTask))
