# SPDX-License-Identifier: Apache-2.0
"""One rank of the end-to-end test of collectives of rows: each of them, against what this rank knows of all ranks'.

    python rank_rows.py SEED [SHARE]    prints {"paths", "retransmissions"}; ends with EXIT_WRONG_DATA where a result is
                                        wrong

SHARE  of the longest rows; default: 1
"""

import json
import sys
from functools import partial

import numpy as np

import netfold
from netfold.topo.processes.rank_program import check_data, run_rank

LENGTHS = ((1, 0, 3), (100, 1, 1030))
LONGEST = (40_000, 9_000, 0)
"""Rows of the first ranks; the others have as many as the first."""


def main(seed: int, share: float) -> None:
    with netfold.init(rail="innet") as comm:
        check = partial(check_data, rank=comm.rank)
        for turn, lengths in enumerate((*LENGTHS, tuple(int(share * length) for length in LONGEST))):
            counts = [*lengths, *[lengths[0]] * comm.size][: comm.size]
            ends = np.cumsum([0, *counts])
            mine = slice(ends[comm.rank], ends[comm.rank + 1])
            ints = [np.random.default_rng([seed, rank, turn]).integers(-(2**31), 2**31, ends[-1], np.int32)
                    for rank in range(comm.size)]
            own, total, root = ints[comm.rank], np.sum(ints, axis=0, dtype=np.int32), turn % comm.size
            check(comm.reduce_scatter(own, counts=counts), total[mine], operation=f"reduce_scatter of {counts}")
            check(comm.all_gather(total[mine], counts=counts), total, operation=f"all_gather of {counts}")
            low = comm.reduce(own, op="min", root=root)
            if low is not None:
                check(low, np.min(ints, axis=0), operation=f"reduce to {root} of {ends[-1]}")
            got = comm.broadcast(own.copy(), root=root)
            check(got, ints[root], operation=f"broadcast from {root} of {ends[-1]}")
            comm.barrier()
            whole = comm.allreduce(own)
            check(whole, total, operation=f"allreduce of {ends[-1]}")
        paths = sorted({record.path for record in comm.flight()})
        print(json.dumps({"paths": paths, "retransmissions": comm.stats().retransmissions}))


if __name__ == "__main__":
    run_rank(main, int(sys.argv[1]), float(sys.argv[2]) if sys.argv[2:] else 1.0)
