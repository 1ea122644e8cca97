# SPDX-License-Identifier: Apache-2.0
"""One rank of several on its machine, whose tensors a group of the machine's ranks reduces: exact sums, then a death.

    python rank_torch_inside.py VICTIM   prints {"paths", "explain", "folded", "nbytes"}; then rank VICTIM ends without
                                         a word, and the others print their error
"""

import json
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import netfold.torch
from netfold.topo.processes.rank_program import check_data, run_rank

COUNTS = (1, 1000, 1_000_001)
"""Elements of the tensors; the last one has windows of unequal pieces."""


def main(victim: int) -> None:
    dist.init_process_group("netfold", timeout=timedelta(seconds=20))
    rank, world = dist.get_rank(), dist.get_world_size()
    comm = dist.group.WORLD.communicator
    begun, nbytes = [], 0
    for count in COUNTS:
        for dtype in (torch.float32, torch.bfloat16, torch.int32):
            tensor = (torch.arange(count) % 8 * (rank + 1)).to(dtype)
            begun.append((tensor, dist.all_reduce(tensor, async_op=True)))
            nbytes += 4 * count
    for tensor, work in begun:
        work.wait()
        right = torch.arange(len(tensor)) % 8 * (world * (world + 1) // 2)
        check_data(tensor.to(torch.float64).numpy(), right.to(torch.float64).numpy(), rank=rank,
                   operation=f"sum of {tensor.dtype}[{len(tensor)}]")
    folded = sum(tree.bytes_reduced for tree in comm.stats().by_tree.values())
    paths = sorted({one.path for one in comm.flight() if one.number})
    print(json.dumps({"paths": paths, "explain": comm.explain(1 << 20), "folded": folded, "nbytes": nbytes}))
    try:
        while True:
            dist.all_reduce(torch.ones(1_000_001))
            if rank == victim:
                os._exit(0)
    except RuntimeError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(0)  # without waiting for the dead


assert netfold.torch
run_rank(main, int(sys.argv[1]))
