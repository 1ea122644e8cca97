# SPDX-License-Identifier: Apache-2.0
"""The check of machines of several ranks, which reduce tensors on their devices themselves."""

from __future__ import annotations

import time
from typing import Any, Final

from netfold.bench.ranks.accelerator.device import LONG, finish, late, rank_and_world, same, values
from netfold.topo.processes.failures import WrongData

TIMED: Final = 2
"""Calls that are timed in each way."""


def inside() -> str:
    """A group of the machine's ranks, NCCL's or gloo's in its place, reduces tensors in windows of unlike pieces; its
    times beside those of shared memory."""
    import torch
    import torch.distributed as dist

    from netfold.host.torch.reducer import Reducer

    comm: Any = dist.group.WORLD.communicator
    rank, world = rank_and_world()
    group, memory = Reducer(comm, inside="group"), Reducer(comm, inside="memory")
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32):
        for count in (1, 3001, *([LONG + 1] if dtype == torch.float32 else [])):
            mine = late(rank, count, dtype)
            group.allreduce(mine, "sum").wait()
            same(f"inside, {count} x {dtype}", mine, torch.stack(
                [values(one, count, torch.float64) for one in range(world)]).sum(0).to(dtype))
    path = comm.flight()[-1].path
    if not path.endswith(" inside"):
        raise WrongData(f"the path is {path!r}: expected one by a group inside the machine")
    seconds = {}
    for way, reducer in (("group", group), ("memory", memory)):
        mine = late(rank, LONG, torch.float32)
        for turn in range(TIMED + 1):
            if turn == 1:
                dist.barrier()
                finish()
                begin = time.perf_counter()
            reducer.allreduce(mine, "average").wait()
        finish()
        seconds[way] = (time.perf_counter() - begin) / TIMED
        reducer.close()
    said = comm.explain(4 * LONG).partition("tensors on devices ")[2].partition(";")[0]
    return (f"{path}; {4 * LONG >> 20} MiB in {seconds['group']:.3f} s, through shared memory in "
            f"{seconds['memory']:.3f} s; {said}")
