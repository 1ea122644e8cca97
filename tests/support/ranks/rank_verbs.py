# SPDX-License-Identifier: Apache-2.0
"""One rank whose RDMA device folds: sums of several sizes, each against what this rank knows of all ranks' arrays.

    python rank_verbs.py SEED TURNS LENGTH...   prints {"rail", "packets_sent", "retransmissions", "seconds", "rounds",
                                               "digest"}; ends with EXIT_WRONG_DATA where a result is wrong
"""

import hashlib
import json
import sys
import time

import numpy as np

import netfold
from netfold.topo.rank_program import check_data, run_rank


def main(seed: int, turns: int, lengths: list[int]) -> None:
    digest, seconds = hashlib.sha256(), {}
    with netfold.init(rail="verbs", timeout=60) as comm:
        for length in lengths:
            draws = [np.random.default_rng([seed, rank, length]) for rank in range(comm.size)]
            ints = [rng.integers(-(2**31), 2**31, length, np.int32) for rng in draws]
            floats = [rng.standard_normal(length, np.float32) for rng in draws]
            exact = np.sum(ints, axis=0, dtype=np.int64).astype(np.int32)
            for _ in range(turns):
                begin = time.perf_counter()
                total = comm.allreduce(ints[comm.rank])
                seconds[length] = min(seconds.get(length, 1e9), time.perf_counter() - begin)
                check_data(total, exact, rank=comm.rank, operation=f"sum of int32[{length}]")
            whole = comm.allreduce(floats[comm.rank])
            right = np.sum(floats, axis=0, dtype=np.float64)
            check_data(whole, right, rank=comm.rank, operation=f"sum of float32[{length}]", tolerance=1e-5)
            digest.update(total.tobytes() + whole.tobytes())
        stats = comm.stats()
        print(json.dumps({
            "rail": comm.rail, "packets_sent": stats.packets_sent, "retransmissions": stats.retransmissions,
            "seconds": seconds, "rounds": comm.plan.round, "digest": digest.hexdigest(),
        }))


if __name__ == "__main__":
    run_rank(main, int(sys.argv[1]), int(sys.argv[2]), [int(word) for word in sys.argv[3:]])
