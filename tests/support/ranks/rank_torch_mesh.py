# SPDX-License-Identifier: Apache-2.0
"""One rank of a job of torch's whose groups are the dimensions of a mesh: HSDP, and sums over each dimension.

    python rank_torch_mesh.py REPLICAS SHARDS   prints {"replicate", "shard", "four"}, what groups say of their paths
                                                ("four": two ranks of two machines), and {"losses", "gloo"} of a model
                                                that FSDP2 shards and replicates
"""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import netfold.torch
from netfold.topo.rank_program import check_data, run_rank

NAMES = ("replicate", "shard")
STEPS = 3


def trained(mesh: DeviceMesh) -> list[float]:
    """The losses of a small model, over data that differ by rank."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 16))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(10 + dist.get_rank())
    losses = []
    for _ in range(STEPS):
        x = torch.randn(32, 64, generator=data)
        loss = (model(x) - x[:, :16]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main(replicas: int, shards: int) -> None:
    dist.init_process_group("netfold")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (replicas, shards), mesh_dim_names=NAMES)
    said = {}
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
    losses = trained(mesh)
    gloo = trained(init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("r", "s"), backend_override={
        "r": "gloo", "s": "gloo"}))
    print(json.dumps({**said, "losses": losses, "gloo": gloo}))
    dist.destroy_process_group()


assert netfold.torch
run_rank(main, int(sys.argv[1]), int(sys.argv[2]))
