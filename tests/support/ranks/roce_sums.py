# SPDX-License-Identifier: Apache-2.0
"""One rank of the end-to-end test of queue pairs: int32 sums over a ring, exact, without any tree.

    python roce_sums.py SEED ELEMENTS    prints {"trees", "retransmissions", "digest"}; ends with EXIT_WRONG_DATA
                                         where a sum is wrong

ELEMENTS  of the longest sum
"""

import hashlib
import json
import os
import sys

import numpy as np

from netfold.host.client.jobs import JobClient
from netfold.host.mesh.sockets import listen
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.host.roce.mesh import RoceMesh
from netfold.host.selection.peers import Peers
from netfold.topo.processes.rank_program import check_data, run_rank
from netfold.wire.jobs import Join, RankReport

LENGTHS = (1, 255, 5_000)


def main(seed: int, elements: int) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    job, address = os.environ["NETFOLD_JOB"], os.environ["NETFOLD_ADDRESS"]
    client = JobClient(os.environ["NETFOLD_CONTROLLER"])
    listener = listen(address)
    where = "{}:{}".format(*listener.getsockname())
    plan = client.join(Join(job, world, rank, address, where, 0, fold=False))
    watcher = client.watch(lambda: plan)
    mesh = RoceMesh(plan, listener, timeout=30.0, queue_pairs=2)
    peers = Peers(mesh, algorithm="ring")
    digest = hashlib.sha256()
    for length in (*LENGTHS, elements):
        integers = [
            np.random.default_rng([seed, other, length]).integers(-(2**31), 2**31, length, np.int32)
            for other in range(world)
        ]
        total = np.empty_like(integers[rank])
        peers.allreduce(AllreduceRequest(integers[rank], total, Reduction("sum", "int32")))
        expected = np.sum(integers, axis=0, dtype=np.int64).astype(np.int32)  # wraps, as int32 does
        check_data(total, expected, rank=rank, operation=f"sum of int32[{length}]")
        digest.update(total.tobytes())
    again = sum(pair.retransmitted for pairs in mesh.queue_pair_states().values() for pair in pairs)
    mesh.close()
    watcher.leaving()
    client.leave(RankReport(job, rank, plan.epoch, peers.operations, peers.bytes_reduced, 0, again))
    watcher.close()
    client.close()
    print(json.dumps({"trees": len(plan.trees), "retransmissions": again, "digest": digest.hexdigest()}))


run_rank(main, *map(int, sys.argv[1:]))
