# SPDX-License-Identifier: Apache-2.0
"""One rank of the end-to-end test of planned paths: a communicator over queue pairs, all whose collectives are planned.

    python paths_rank.py        prints the sum's digest; exits 1 where an element is wrong
"""

import hashlib
import os

import numpy as np

from netfold.host.api.communicator import Communicator

COUNT = 400_000

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
with Communicator.join(
    os.environ["NETFOLD_JOB"], rank, world, address=os.environ["NETFOLD_ADDRESS"], rail="roce", timeout=30.0
) as comm:
    data = np.arange(COUNT, dtype=np.int32) * (rank + 1)
    expected = np.arange(COUNT, dtype=np.int32) * sum(range(1, world + 1))
    for algorithm in ("ring", "halving_doubling", "recursive_doubling", "double_binary_tree", "mesh2d"):
        total = comm.allreduce(data, algorithm=algorithm)
        assert np.array_equal(total, expected), f"{algorithm}: {np.count_nonzero(total != expected)} are wrong"
    swapped = comm.all_to_all(np.full(world * 1000, rank, np.int32))
    assert np.array_equal(swapped, np.repeat(np.arange(world, dtype=np.int32), 1000))
    for members in ([0, 2], [3, 1]):  # each goes from leaf to leaf
        if rank in members:
            some = comm.group(members).allreduce(data, algorithm="ring")
            assert np.array_equal(some, np.arange(COUNT, dtype=np.int32) * (sum(members) + 2))
    comm.barrier()
print(hashlib.sha256(total.tobytes()).hexdigest())
