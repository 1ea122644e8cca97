# SPDX-License-Identifier: Apache-2.0
"""One rank of the test of two planes: exact sums while a plane dies and comes back.

    python rank_rails.py BYTES      prints "running", "died", then {"deaths", "nbytes", "digest"}; ends with
                                    EXIT_WRONG_DATA where a sum is wrong, and with 1 where nothing dies and comes back
                                    within MOST sums
"""

import hashlib
import json
import sys

import numpy as np

import netfold
from netfold.host.rails.multirail import MultiRail
from netfold.topo.processes.rank_program import check_data, run_rank

MOST = 200


def main(nbytes: int) -> None:
    digest = hashlib.sha256()
    with netfold.init() as comm:
        rails = comm.rails
        assert isinstance(rails, MultiRail)
        rngs = [np.random.default_rng(rank) for rank in range(comm.size)]
        base = np.array([rng.integers(-9999, 9999, nbytes // 4 + 2, np.int32) for rng in rngs])
        whole = np.sum(base, axis=0, dtype=np.int32)
        number = 0

        def sums(until: str, rail: int) -> None:
            """Sums until the rail is in that state, which all ranks see after the same sum."""
            nonlocal number
            for _ in range(MOST):
                number += 1
                size = nbytes // 4 + number % 3 if number % 4 else 1000
                mine = base[comm.rank, :size] + np.int32(number)  # other ones each time
                total = comm.allreduce(mine, out=mine if number % 2 else None)
                right = whole[:size] + np.int32(comm.size * number)
                check_data(total, right, rank=comm.rank, operation=f"sum {number}")
                digest.update(total.tobytes())
                if number == 2 and comm.rank == 0:
                    print("running", flush=True)
                if rails.use()[rail].state == until:
                    return
            raise AssertionError(f"after {number} sums: {rails.use()}")

        sums("down", 1)
        if comm.rank == 0:
            print("died", flush=True)
        sums("up", 1)
        before = rails.use()[1].nbytes
        for _ in range(4):  # used again
            sums("up", 1)
        use = rails.use()[1]
        gathered = comm.all_gather(np.array([comm.rank]))
        check_data(gathered, np.arange(comm.size), rank=comm.rank, operation="all_gather of the ranks")
        print(json.dumps({"deaths": use.deaths, "nbytes": use.nbytes - before, "digest": digest.hexdigest()}))


run_rank(main, int(sys.argv[1]))
