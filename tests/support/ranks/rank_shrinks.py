# SPDX-License-Identifier: Apache-2.0
"""One rank of several on its machine, of which one goes: the others go on without it, and fold.

    python rank_shrinks.py SEED ELEMENTS VICTIM    prints what the test reads; rank VICTIM goes without a word
"""

import json
import os
import sys

import numpy as np
from rank_inputs import exact_sum, integers

import netfold
from netfold.topo.rank_program import check_data, run_rank

FEW = 1000
"""Elements of sums until the rank is gone: next to nothing beside those after it."""


def main(seed: int, elements: int, victim: int) -> None:
    with netfold.init(rail="innet", on_loss="shrink") as comm:
        world = comm.size
        exact_sum(comm, integers(comm, seed, FEW))
        if comm.rank == victim:
            os._exit(0)
        while comm.size == world:  # ranks that had the last sum in time lose the rank in the next one
            comm.allreduce(np.ones(FEW, np.int32))
        check_data(comm.allreduce(np.ones(FEW, np.int32)), comm.size, rank=comm.rank, operation="sum of ones")
        exact_sum(comm, integers(comm, seed, elements))
        rows = comm.all_gather(np.full(100, comm.rank, np.int32))
        check_data(rows, np.repeat(np.arange(comm.size), 100), rank=comm.rank, operation="all_gather")
        stops = comm.allreduce(np.full(FEW, 2**30, np.int32), saturate=True)
        check_data(stops, 2**31 - 1, rank=comm.rank, operation="saturating sum")
        comm.barrier()
        print(json.dumps({
            "size": comm.size, "rail": comm.rail, "paths": sorted({record.path for record in comm.flight()}),
            "explain": comm.explain(4 * elements),
            "folded": sum(tree.bytes_reduced for tree in comm.stats().by_tree.values()),
        }))


if __name__ == "__main__":
    run_rank(main, *map(int, sys.argv[1:]))
