# SPDX-License-Identifier: Apache-2.0
"""One rank of a user's torch job, beside that of another user on the same host.

    python rank_torch_user.py UID

It trains by DistributedDataParallel, and compares each step's gradients with those that it computes itself from all
ranks' data.  Prints {"step": 0} after the first step.  SIGUSR1 kills it without a word; SIGUSR2 to rank 0 lets the job
end after MORE steps.  Its last line says how it ended, or which rank was lost.
"""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import netfold.torch
from netfold.testing import loopback_job, on_every_rank
from netfold.topo.processes.rank_program import check_data, print_message, run_rank

WIDTH = 64
MORE = 20


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    """The loss of a rank's data."""
    x = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(1000 * rank + step))
    loss: torch.Tensor = (model(x) - x[:, :1]).square().mean()
    return loss


def gradients(model: nn.Module) -> np.ndarray:
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]).numpy()  # type: ignore[union-attr]


def stepped(model: nn.Module, alone: nn.Module, step: int) -> float:
    """One step of a model whose gradients are reduced, beside one that has all ranks' data.  Returns its loss."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for one in (model, alone):
        one.zero_grad()
    loss_of(model, rank, step).backward()
    whole = torch.stack([loss_of(alone, other, step) for other in range(world)]).mean()
    whole.backward()
    check_data(gradients(model), gradients(alone), rank=rank, operation=f"gradients of step {step}", tolerance=1e-5)
    with torch.no_grad():
        for mine, its in zip(model.parameters(), alone.parameters(), strict=True):
            mine -= 0.05 * mine.grad  # type: ignore[operator]
            its.copy_(mine)
    return float(whole)


def main(uid: int) -> None:
    # what is imported and compiled on first use: this user may not read the files
    with loopback_job(2) as comms:
        on_every_rank(comms, lambda comm: comm.allreduce(np.ones(10, np.float32)))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    stepped(DistributedDataParallel(network()), network(), 0)
    dist.destroy_process_group()
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    assert os.geteuid() == uid
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
    ending: list[int] = []
    signal.signal(signal.SIGUSR2, lambda *_: ending.append(1))
    dist.init_process_group("netfold")
    try:
        model, alone = DistributedDataParallel(network()), network()
        group = dist.group.WORLD
        size = gradients_of(alone)
        step, left, loss = 0, -1, 0.0
        while left:
            loss = stepped(model, alone, step)
            step += 1
            wants = torch.tensor([len(ending)], dtype=torch.int32)
            dist.all_reduce(wants)
            if wants[0] and left < 0:
                left = MORE
            left -= left > 0
            if step == 1:
                print_message({"step": 0})
        folded = sum(tree.bytes_reduced for tree in group.communicator.stats().by_tree.values())  # type: ignore[union-attr]
    except RuntimeError as error:
        print_message({"lost": str(error)})
        return
    print_message({"steps": step, "loss": loss, "folded": folded, "gradients": size})
    dist.destroy_process_group()


def gradients_of(model: nn.Module) -> int:
    """Bytes of a model's gradients."""
    return sum(4 * parameter.numel() for parameter in model.parameters())


assert netfold.torch
run_rank(main, int(sys.argv[1]))
