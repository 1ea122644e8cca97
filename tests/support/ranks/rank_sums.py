# SPDX-License-Identifier: Apache-2.0
"""One rank of the end-to-end tests: sums whose results it can tell, int32 exactly and float32 within the bound.

    python rank_sums.py SEED         prints {"rail", "retransmissions", "digest"}; ends with EXIT_WRONG_DATA
                                     where a sum is wrong
"""

import hashlib
import json
import sys

import numpy as np
from rank_inputs import exact_sum, floats, integers

import netfold
from netfold.topo.processes.rank_program import check_data, run_rank

LENGTHS = (1, 255, 256, 257, 5_000, 20_003)


def main(seed: int) -> None:
    digest = hashlib.sha256()
    with netfold.init(rail="innet") as comm:
        for length in LENGTHS:
            whole = integers(comm, seed, length)
            total = exact_sum(comm, whole)
            parts = floats(comm, seed, length)
            got = comm.allreduce(parts[comm.rank])
            exact = np.sum(parts, axis=0, dtype=np.float64)
            # each rank rounds to multiples of 2^(E - 126 - 31 + L): E of the block's largest element, 2^L >= ranks
            guard = int(np.ceil(np.log2(comm.size)))
            largest = float(np.max(np.abs(parts)))
            bound = comm.size * largest * 2.0 ** (1 - 31 + guard) + np.abs(exact) * 2.0**-23
            check_data(got, exact, rank=comm.rank, operation=f"sum of float32[{length}]", tolerance=bound)
            digest.update(total.tobytes() + got.tobytes())
        again = comm.stats().retransmissions
        print(json.dumps({"rail": comm.rail, "retransmissions": again, "digest": digest.hexdigest()}))


run_rank(main, int(sys.argv[1]))
