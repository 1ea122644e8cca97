# SPDX-License-Identifier: Apache-2.0
"""One rank of `netfold bench loss`: sums the same tensor again and again, checks each sum, and counts repeats.

    python -m netfold.bench.ranks.loss TASK        a JSON `LossTask`; prints a JSON `LossResult`
"""

from __future__ import annotations

import sys
import time

import msgspec
import numpy as np

from netfold.topo.processes.rank_program import check_data, run_rank


class LossTask(msgspec.Struct, frozen=True):
    """The task of a rank: one sum of int32 to warm up, then ``operations`` timed ones."""

    elements: int
    operations: int


class LossResult(msgspec.Struct, frozen=True):
    """The measurement of one rank: seconds of each timed sum, and the packets that it sent during all of them."""

    seconds: list[float]
    retransmissions: int
    retransmissions_ever: int
    """The same with the sum that warms up, as switches count."""
    packets: int
    timeouts: int


def rank(work: LossTask) -> None:
    """Sum, and print the `LossResult`.  Raises WrongData."""
    import netfold

    with netfold.init(rail="innet", timeout=60.0) as comm:
        source, out = np.full(work.elements, comm.rank + 1, np.int32), np.empty(work.elements, np.int32)
        comm.allreduce(source, out)
        before, seconds = comm.stats(), []
        for number in range(work.operations):
            begin = time.perf_counter()
            comm.allreduce(source, out)
            seconds.append(time.perf_counter() - begin)
            check_data(out, comm.size * (comm.size + 1) // 2, rank=comm.rank, operation=f"sum {number + 1}")
        after = comm.stats()
        timeouts = sum(tree.timeouts - before.by_tree[name].timeouts for name, tree in after.by_tree.items())
        result = LossResult(seconds, after.retransmissions - before.retransmissions, after.retransmissions,
                            after.packets_sent - before.packets_sent, timeouts)
        print(msgspec.json.encode(result).decode(), flush=True)


if __name__ == "__main__":
    run_rank(rank, msgspec.json.decode(sys.argv[1], type=LossTask))
