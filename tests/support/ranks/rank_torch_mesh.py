# SPDX-License-Identifier: Apache-2.0
"""One rank of a job of torch's whose groups are the dimensions of a mesh: trainings over them, and sums over each.

    python rank_torch_mesh.py REPLICAS SHARDS   prints {"replicate", "shard", "four"}, what groups say of their paths
                                                ("four": two ranks of two machines), {"folded"}, the bytes that folded
                                                in each, and for each training {"ours", "gloo"}, the losses
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import netfold.torch
from netfold.topo.processes.rank_program import check_data, run_rank

NAMES = ("replicate", "shard")
STEPS = 3


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 16))


def trained(model: Callable[[torch.Tensor], torch.Tensor], optimizer: torch.optim.Optimizer, part: int) -> list[float]:
    """The losses of a small model.  ``part``: of the data; ranks that have parts of one model have the same."""
    data = torch.Generator().manual_seed(10 + part)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(32, 64, generator=data)
        loss = (model(x) - x[:, :16]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def hsdp(mesh: DeviceMesh) -> list[float]:
    """FSDP2 that shards over one dimension and replicates over the other."""
    model = network()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return trained(model, torch.optim.SGD(model.parameters(), lr=0.05), dist.get_rank())


def tensor_and_data_parallel(mesh: DeviceMesh) -> list[float]:
    """DTensor cuts each layer over one dimension, and FSDP2 shards over the other."""
    across, inside = mesh.mesh_dim_names or NAMES
    model = parallelize_module(network(), mesh[inside], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh[across])
    return trained(model, torch.optim.SGD(model.parameters(), lr=0.05), mesh[across].get_local_rank())


def zero(mesh: DeviceMesh) -> list[float]:
    """Gradients are reduced over all ranks, each of which updates a part of the parameters for all."""
    backend = "gloo" if mesh.mesh_dim_names == ("r", "s") else "netfold"
    group = dist.group.WORLD if backend == "netfold" else dist.new_group(backend=backend)
    model = DistributedDataParallel(network(), process_group=group)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, process_group=group, lr=0.01)
    return trained(model, optimizer, dist.get_rank())


def folded(group: Any) -> int:
    return sum(tree.bytes_reduced for tree in group.communicator.stats().by_tree.values())


def main(replicas: int, shards: int) -> None:
    dist.init_process_group("netfold")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (replicas, shards), mesh_dim_names=NAMES)
    said: dict[str, Any] = {}
    for name, members in zip(NAMES, ((rank % shards + shards * r for r in range(replicas)),
                                     (rank // shards * shards + s for s in range(shards))), strict=True):
        group = mesh.get_group(name)
        total = torch.full((40_000,), float(rank))
        dist.all_reduce(total, group=group)
        check_data(total.numpy(), float(sum(members)), rank=rank, operation=f"sum over {name}")
        said[name] = group.communicator.explain(160_000)
    four = dist.new_group([0, 1, replicas * shards // 2, replicas * shards // 2 + 1])
    if rank in dist.get_process_group_ranks(four):
        total = torch.full((40_000,), float(rank))
        dist.all_reduce(total, group=four)
        expected = float(sum(dist.get_process_group_ranks(four)))
        check_data(total.numpy(), expected, rank=rank, operation="sum over two ranks of two machines")
        said["four"] = four.communicator.explain(160_000)
    gloo = init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("r", "s"), backend_override={
        "r": "gloo", "s": "gloo"})
    said["folded"], groups = {}, {"world": dist.group.WORLD, "replicate": mesh.get_group("replicate")}
    for training in (hsdp, tensor_and_data_parallel, zero):
        before = {name: folded(group) for name, group in groups.items()}
        said[training.__name__] = {"ours": training(mesh), "gloo": training(gloo)}
        said["folded"][training.__name__] = {name: folded(group) - before[name] for name, group in groups.items()}
    print(json.dumps(said))
    dist.destroy_process_group()


assert netfold.torch
run_rank(main, int(sys.argv[1]), int(sys.argv[2]))
