# SPDX-License-Identifier: Apache-2.0
"""The check with a rank that dies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from datetime import timedelta
from typing import Final

from netfold.bench.ranks.accelerator.device import LONG, device, finish, rank_and_world, same
from netfold.topo.processes.failures import WrongData

DEATH_SECONDS: Final = 45.0


def death() -> str:
    """Rank 1 dies while all others wait for tensors on the device: each hears it in time, and its device goes on."""
    return job_that_loses_a_rank(port="29710", wait="host")


def job_that_loses_a_rank(*, port: str, wait: str) -> str:
    """One rank of such a job; what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "netfold.bench.ranks.accelerator", "death"], capture_output=True, text=True,
        timeout=DEATH_SECONDS, check=False,
        env={**os.environ, "NETFOLD_JOB": f"death-{wait}", "MASTER_PORT": port, "NETFOLD_TIMEOUT": "10",
             "NETFOLD_WAIT": wait},
    )
    if rank_and_world()[0] != 1 and done.returncode:
        raise WrongData(f"status {done.returncode}: {done.stderr[-600:]}")
    return done.stdout.strip()


def die() -> None:
    """One rank of the job of which rank 1 dies."""
    import torch
    import torch.distributed as dist

    import netfold.torch  # noqa: F401

    rank, world = rank_and_world()
    dist.init_process_group("netfold", timeout=timedelta(seconds=10))
    mine = torch.ones(LONG, device=device())
    dist.all_reduce(mine)
    tensors = [torch.ones(LONG, device=device()) for _ in range(5)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in (tensors[:-1] if rank == 1 else tensors)]
    if rank == 1:
        os._exit(9)  # without the last one, so that nobody has its sum
    begin = time.monotonic()
    try:
        for work in works:
            work.wait()
        finish()
        dist.barrier()  # where waits block the device alone, they may have known nothing yet
    except RuntimeError as error:
        finish()
        if os.environ["NETFOLD_WAIT"] == "device":
            if not all(bool(((tensor == world) | tensor.isnan()).all()) for tensor in tensors):
                raise WrongData("after a death tensors hold neither sums nor NaN") from error
            if not bool(tensors[-1].isnan().all()):
                raise WrongData("after a death a tensor that one rank never gave is not NaN") from error
        same("what had come before", mine, torch.full((LONG,), float(world)))
        if not re.search(r"\brank 1\b(?! of)", str(error)):
            raise WrongData(f"rank 1 died, and the error does not name it: {error}") from error
        print(f"{type(error).__name__} after {time.monotonic() - begin:.1f} s", flush=True)
        os._exit(0)
    raise WrongData("a rank died, and no error came")
