# SPDX-License-Identifier: Apache-2.0
"""One rank of `bench/scripts/accelerator.py`: executes commands on tensors of a device that all ranks share.

    python -m netfold.bench.ranks.accelerator            commands on standard input; RANK, NETFOLD_*, DEVICE ... set
    python -m netfold.bench.ranks.accelerator death      one rank of a job of its own, of which rank 1 dies

Commands are lines of JSON, and each is answered by one.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from datetime import timedelta
from typing import Any

from netfold.bench.ranks.accelerator import CHECKS
from netfold.bench.ranks.accelerator.death import die
from netfold.bench.ranks.accelerator.device import device, finish, rank_and_world
from netfold.bench.ranks.accelerator.measurements import allreduce, gpt2
from netfold.topo.processes.rank_program import print_message, run_rank


def answer(command: dict[str, Any]) -> dict[str, Any]:
    """Executes a command."""
    import torch.distributed as dist

    import netfold.torch  # noqa: F401

    do = command.pop("do")
    if do == "join":
        os.environ["MASTER_PORT"] = str(command["port"])
        rank, world = rank_and_world()
        dist.init_process_group(command["backend"], rank=rank, world_size=world, timeout=timedelta(seconds=40))
        return {}
    if do == "check":
        try:
            return {"found": CHECKS[command["name"]](), "error": ""}
        except Exception as error:
            traceback.print_exc()
            return {"found": "", "error": f"{type(error).__name__}: {error}"[:1500]}
    return allreduce(**command) if do == "allreduce" else gpt2(**command)


def main(kind: str = "") -> None:
    """Executes commands."""
    import torch

    torch.set_num_threads(1)
    if kind == "death":
        die()
        return
    if device().type != "cpu":
        torch.zeros(1, device=device())
        finish()
    print_message({})
    for line in sys.stdin:
        print_message(answer(json.loads(line)))
    os._exit(0)  # without the destructors of what was kept


if __name__ == "__main__":
    run_rank(main, *sys.argv[1:])
