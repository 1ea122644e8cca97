# SPDX-License-Identifier: Apache-2.0
"""One rank of several on its machine, of which one goes and another one comes: the others go on without the one, then
with the other, and fold.

    python rank_life.py SEED ELEMENTS VICTIM    prints a line for the test of when ranks are gone, and of when one came;
                                                rank VICTIM goes without a word.  VICTIM -1: this one comes
"""

import json
import os
import sys

import numpy as np
from rank_inputs import exact_sum, integers

import netfold
from netfold import Communicator
from netfold.topo.processes.rank_program import check_data, run_rank

FEW = 1000
"""Elements of sums until the rank is gone: next to nothing beside those after it."""
WAIT = 60.0
"""Seconds that the one which comes waits to be let in."""


def work(comm: Communicator, seed: int, elements: int) -> None:
    """Calls what machines of several ranks fold, and prints what carried it."""
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
    }), flush=True)


def main(seed: int, elements: int, victim: int) -> None:
    if victim < 0:
        job, address = os.environ["NETFOLD_JOB"], os.environ["NETFOLD_ADDRESS"]
        with Communicator.join_running(job, address=address, rail="innet", join_timeout=WAIT) as comm:
            work(comm, seed, elements)
        return
    with netfold.init(rail="innet", on_loss="shrink") as comm:
        goes = comm.rank == victim  # asked now: after a loss the ranks have other numbers
        comm.allreduce(np.ones(FEW, np.int32))  # with the one that goes, or without it where no other rank has it then
        if goes:
            os._exit(0)
        ones = comm.allreduce(np.ones(FEW, np.int32))  # ends without the one that has gone, since it never calls it
        check_data(ones, comm.size, rank=comm.rank, operation="sum of ones")
        work(comm, seed, elements)
        while not comm.grow():
            pass
        work(comm, seed, elements)


if __name__ == "__main__":
    run_rank(main, *map(int, sys.argv[1:]))
