# SPDX-License-Identifier: Apache-2.0
"""One rank of the test of torch over several rails: a model trained by gloo, by the backend and by the hook, and what
the backend moves.

    torchrun rank_torch_rails.py FOLDER "RAILS" "PLANES of rank 0" "PLANES of rank 1" ...   writes FOLDER/RANK.json
"""

import json
import logging
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import netfold.torch
from netfold.host.api.communicator import Communicator
from netfold.torch import NetfoldState, Options, netfold_hook

STEPS = 4
WIDTH = 512
"""Parameters enough that gradients are cut over the rails: 1 MiB."""


def train(group: dist.ProcessGroup, state: NetfoldState | None = None) -> list[float]:
    """The losses of a few steps, each rank on data of its own."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    parallel = DistributedDataParallel(model, process_group=group)
    if state is not None:
        parallel.register_comm_hook(state, netfold_hook)
    optimizer = torch.optim.SGD(parallel.parameters(), 0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(STEPS):
        data = torch.randn(32, WIDTH, generator=generator)
        loss = ((parallel(data) - data[:, :1]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=group)
        losses.append(float(mean))
    return losses


def moved(group: dist.ProcessGroup) -> list[float]:
    """The results of the backend's collectives, as plain numbers."""
    rank, world = dist.get_rank(), dist.get_world_size()
    wide = torch.arange(50_000.0) * (rank + 1)
    dist.broadcast(wide, 1, group=group)
    gathered = torch.empty(world * 30_000)
    dist.all_gather_into_tensor(gathered, torch.full((30_000,), float(rank)), group=group)
    scattered = torch.empty(30_000)
    dist.reduce_scatter_tensor(scattered, torch.ones(world * 30_000) * (rank + 1), group=group)
    dist.barrier(group=group)
    return [float(wide[-1]), float(gathered.sum()), float(scattered.min()), float(scattered.max())]


def shares(comm: Communicator) -> dict[str, int]:
    """Bytes that each rail has carried."""
    assert comm.rails is not None
    return {use.name: use.nbytes for use in comm.rails.use()}


def main() -> None:
    rank = int(os.environ["RANK"])
    os.environ |= {"NETFOLD_RAILS": sys.argv[2], "NETFOLD_PLANES": sys.argv[3 + rank], "NETFOLD_RAIL_STALL": "5"}
    netfold.torch.register()
    dist.init_process_group("gloo")
    gloo = dist.group.WORLD
    assert gloo is not None
    said: dict[str, object] = {"gloo": train(gloo)}
    warned: list[str] = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("netfold").addHandler(listener)
    ours = dist.new_group(backend="netfold", pg_options=Options(job="rails", together=True))
    said["warned"] = warned
    assert isinstance(ours, netfold.torch.NetfoldGroup)
    said |= {"backend": train(ours), "moved": moved(ours)}
    said["hook"] = train(gloo, NetfoldState(ours.communicator))
    said["narrow"] = train(gloo, NetfoldState(ours.communicator, lane_bits=16, error_feedback=True))
    said["shares"] = shares(ours.communicator)
    (Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()


main()
