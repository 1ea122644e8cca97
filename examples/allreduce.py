# SPDX-License-Identifier: Apache-2.0
"""The smallest whole program: every rank adds its array to the others'.

Run it in every host of a fabric, as `topo.net.Network.launch` does: RANK, WORLD_SIZE, NETFOLD_ADDRESS and
NETFOLD_CONTROLLER say who it is.  At the prompt of `netfold up --topo leafspine,1,0,2`:

    mininet> h1 RANK=0 WORLD_SIZE=2 NETFOLD_ADDRESS=10.0.1.1 python examples/allreduce.py &
    mininet> h2 RANK=1 WORLD_SIZE=2 NETFOLD_ADDRESS=10.0.1.2 python examples/allreduce.py
"""

import numpy as np

import netfold

with netfold.init() as comm:
    array = np.arange(100_000, dtype=np.int32) + comm.rank
    total = comm.allreduce(array)
    expected = comm.size * np.arange(100_000, dtype=np.int32) + sum(range(comm.size))
    assert np.array_equal(total, expected)
    print(f"rank {comm.rank} of {comm.size}: exact; {comm.explain(array.nbytes)}")
