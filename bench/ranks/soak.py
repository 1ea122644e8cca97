# SPDX-License-Identifier: Apache-2.0
"""One rank of `netfold bench soak`: sums tensors of changing sizes and types without a break, and checks every sum.

    python -m netfold.bench.ranks.soak TASK        a JSON `SoakTask`; prints STARTED and a JSON `SoakResult`
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from netfold.topo.processes.rank_program import check_data, run_rank

if TYPE_CHECKING:
    from netfold import Communicator

STARTED: Final = "started"
"""The line that a rank prints when its first sum is done."""
BETWEEN_HOSTS: Final = 4
"""Sums for each exchange between hosts: strangers attack those connections, too."""


class SoakTask(msgspec.Struct, frozen=True):
    """The task of a rank: sums of up to a number of elements, until the file ``over`` exists."""

    seed: int
    elements: int
    over: str


class SoakResult(msgspec.Struct, frozen=True):
    """The measurement of one rank: its sums, the longest standstill, and packets that it sent again."""

    operations: int
    longest: float
    """Most seconds from the beginning of a sum to its end, or to that of the exchange behind it: a fabric without
    paths stops what comes next, whichever that is."""
    rounds: int
    """How often the controller replanned the trees."""
    retransmissions: int
    refused: int
    """Packets to its queue pairs that it dropped: not from where results come from, or not folded."""


def _exchange(comm: Communicator, number: int) -> None:
    """Every rank sends a word of its own to every other, by their connections to each other.  Raises WrongData."""
    words = (np.arange(comm.size, dtype=np.int64) + comm.size * comm.rank) * number
    expected = (comm.size * np.arange(comm.size, dtype=np.int64) + comm.rank) * number
    check_data(comm.all_to_all(words), expected, rank=comm.rank, operation=f"exchange after sum {number}")


def rank(work: SoakTask) -> None:
    """Print STARTED after the first sum, and the `SoakResult` at the end.

    Rank 0 sets the last element when the file ``over`` exists, so that all ranks end with the same operation.  Raises
    WrongData.
    """
    import netfold

    with netfold.init(rail="innet", timeout=30.0) as comm:
        base = [np.random.default_rng([work.seed, rank]).integers(-(2**20), 2**20, work.elements, np.int32)
                for rank in range(comm.size)]
        sizes = np.random.default_rng([work.seed, comm.size])
        number, longest, over = 0, 0.0, False
        comm.allreduce(np.zeros(1, np.int32))
        _exchange(comm, 1)
        print(STARTED, flush=True)
        while not over:
            number += 1
            size = int(work.elements ** sizes.random())  # small and large tensors are equally frequent
            # whole numbers whose sum is below 2^24 are exact in float32
            terms = [np.add(own[:size], number, dtype=np.int32) % 4096 for own in base]
            dtype = (np.int32, np.float32)[number % 2]
            array = np.append(terms[comm.rank], comm.rank == 0 and Path(work.over).exists()).astype(dtype)
            begin = time.monotonic()
            comm.allreduce(array, out=array)
            operation = f"sum {number} of {np.dtype(dtype)}"
            check_data(array[:-1], np.sum(terms, axis=0), rank=comm.rank, operation=operation)
            over = array[-1] > 0
            if number % BETWEEN_HOSTS == 0:
                _exchange(comm, number)
            longest = max(longest, time.monotonic() - begin)
        stats = comm.stats()
        took = SoakResult(number, longest, comm.plan.round, stats.retransmissions,
                          stats.packets_refused + stats.packets_unfolded)
        print(msgspec.json.encode(took).decode(), flush=True)


if __name__ == "__main__":
    run_rank(rank, msgspec.json.decode(sys.argv[1], type=SoakTask))
