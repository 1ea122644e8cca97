# SPDX-License-Identifier: Apache-2.0
"""One rank of several on its machine: exact sums, then one allreduce whose bytes on the links the test counts.

    python rank_machines.py SEED ELEMENTS [VICTIM]     prints what the test reads; rank VICTIM goes without a word
"""

import hashlib
import json
import os
import sys

import numpy as np
from rank_inputs import exact_sum, floats, integers

import netfold
from netfold.host.errors import PeerLost
from netfold.topo.processes.rank_program import check_data, run_rank


def main(seed: int, elements: int, victim: int | None) -> None:
    digest = hashlib.sha256()
    with netfold.init(rail="innet") as comm:
        for length in (1, 257, elements):
            whole = integers(comm, seed, length)
            total = exact_sum(comm, whole)
            parts = floats(comm, seed, length)
            mean = comm.allreduce(parts[comm.rank], op="average")
            right = np.mean(parts, axis=0, dtype=np.float64)
            check_data(mean, right, rank=comm.rank, operation=f"mean of float32[{length}]",
                       tolerance=1e-6 + 1e-5 * np.abs(right))
            digest.update(total.tobytes() + mean.tobytes())
        if comm.rank == victim:
            comm.allreduce(whole[comm.rank])  # nobody is in an earlier operation any more when this one has ended
            os._exit(0)
        try:
            while victim is not None:
                comm.allreduce(whole[comm.rank])
        except PeerLost as error:
            print(f"PeerLost: {error}")
            return
        trees = comm.stats().by_tree.values()
        print(
            json.dumps(
                {
                    "rail": comm.rail,
                    "explain": comm.explain(1 << 20),
                    "digest": digest.hexdigest(),
                    "again": sum(tree.retransmissions for tree in trees),
                    "twice": sum(tree.duplicates for tree in trees),
                }
            )
        )


run_rank(main, int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
