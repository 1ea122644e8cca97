# SPDX-License-Identifier: Apache-2.0
"""The smallest whole program: every rank adds its array to the others'.

Run it in every host of a fabric; `netfold run` says who is who, by RANK, WORLD_SIZE, NETFOLD_ADDRESS and so on:

    netfold run -np 4 --topo leafspine,2,2,4 -- python examples/allreduce.py
"""

import numpy as np

import netfold

with netfold.init() as comm:
    array = np.arange(100_000, dtype=np.int32) + comm.rank
    total = comm.allreduce(array)
    expected = comm.size * np.arange(100_000, dtype=np.int32) + sum(range(comm.size))
    assert np.array_equal(total, expected)
    print(f"rank {comm.rank} of {comm.size}: exact; {comm.explain(array.nbytes)}")
