# SPDX-License-Identifier: Apache-2.0
"""The check of NCCL's plug-in: NCCL's own allreduces fold, on ranks that it takes for machines of their own."""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from pathlib import Path
from typing import Final

from netfold.bench.ranks.accelerator.device import NOT_RUN, device, finish, rank_and_world, same, values
from netfold.host.capi import library
from netfold.topo.processes.failures import WrongData

SIZES: Final = (1 << 10, 1 << 20, 1 << 24)
"""Elements of float32 that are timed."""
TIMED: Final = 3
JOINED: Final = "has joined job"
"""The plug-in's line in NCCL's log, once for each communicator."""


def collnet() -> str:
    """Sums by backend "nccl" are exact, and NCCL's log says that its communicator is a job that folds; their times."""
    import torch.distributed as dist

    lacks = library.lacking()
    if lacks is not None or device().type != "cuda" or not dist.is_nccl_available():
        return f"{NOT_RUN}{lacks or 'it needs NCCL and a CUDA device'}"
    with tempfile.TemporaryDirectory(prefix="nccl-") as folder:
        return _sums(Path(folder) / "log")


def _sums(log: Path) -> str:
    """The check ``collnet``, with this file as NCCL's log."""
    import torch
    import torch.distributed as dist

    rank, world = rank_and_world()
    ctypes.CDLL(str(library.build_plugin()))  # NCCL then finds it by its name
    os.environ.update(
        NCCL_NET_PLUGIN="netfold", NCCL_COLLNET_ENABLE="1", NCCL_ALGO="CollnetChain", NCCL_HOSTID=str(rank),
        NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=str(log),
    )
    group = dist.new_group(backend="nccl")
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32):
        for count in (1, 3001, SIZES[1] + 1):
            mine = values(rank, count, dtype).to(device())
            dist.all_reduce(mine, group=group)
            same(f"NCCL, {count} x {dtype}", mine, torch.stack(
                [values(one, count, torch.float64) for one in range(world)]).sum(0).to(dtype))
    if JOINED not in (said := log.read_text()):
        raise WrongData(f"NCCL has made no communicator of the plug-in; its log ends with {said[-1000:]!r}")
    times = []
    for count in SIZES:
        mine = values(rank, count, torch.float32).to(device())
        for turn in range(TIMED + 1):
            if turn == 1:
                finish()
                begin = time.perf_counter()
            dist.all_reduce(mine, group=group)
        finish()
        times.append(f"{4 * count} bytes in {(time.perf_counter() - begin) / TIMED * 1e3:.2f} ms")
    dist.destroy_process_group(group)
    return "; ".join(times)
