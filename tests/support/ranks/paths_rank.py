# SPDX-License-Identifier: Apache-2.0
"""One rank of the end-to-end test of planned paths: a communicator all whose collectives are planned.

    python paths_rank.py RAIL   prints the sum's digest; ends with EXIT_WRONG_DATA where an element is wrong
"""

import hashlib
import os
import sys

import numpy as np

from netfold.host.api.communicator import Communicator
from netfold.topo.processes.rank_program import check_data, run_rank

COUNT = 400_000


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with Communicator.join(
        os.environ["NETFOLD_JOB"], rank, world, address=os.environ["NETFOLD_ADDRESS"], rail=sys.argv[1],  # type: ignore[arg-type]
        timeout=30.0,
    ) as comm:
        data = np.arange(COUNT, dtype=np.int32) * (rank + 1)
        expected = np.arange(COUNT, dtype=np.int32) * sum(range(1, world + 1))
        for algorithm in ("ring", "halving_doubling", "recursive_doubling", "double_binary_tree", "mesh2d"):
            total = comm.allreduce(data, algorithm=algorithm)
            check_data(total, expected, rank=rank, operation=algorithm)
        swapped = comm.all_to_all(np.full(world * 1000, rank, np.int32))
        check_data(swapped, np.repeat(np.arange(world, dtype=np.int32), 1000), rank=rank, operation="all_to_all")
        for members in ([0, 2], [3, 1]):  # each goes from leaf to leaf
            if rank in members:
                some = comm.group(members).allreduce(data, algorithm="ring")
                right = np.arange(COUNT, dtype=np.int32) * (sum(members) + 2)
                check_data(some, right, rank=rank, operation=f"ring of {members}")
        comm.barrier()
    print(hashlib.sha256(total.tobytes()).hexdigest())


run_rank(main)
