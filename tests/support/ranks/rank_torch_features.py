# SPDX-License-Identifier: Apache-2.0
"""One rank of the tests of what DistributedDataParallel and FSDP offer, by gloo and by us.

    torchrun rank_torch_features.py SUBNET SERVICE FOLDER        writes FOLDER/RANK.json
"""

import contextlib
import io
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import netfold.torch
from netfold.host.api.communicator import Communicator
from netfold.torch import NetfoldState, Options, netfold_hook

Losses = list[float]
STEPS = 4


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


class Branches(nn.Module):
    """Uses one of two layers, another one on every rank."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.out = nn.Linear(8, 4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.out(self.layers[(self.calls + dist.get_rank()) % 2](x))


def train(
    model: nn.Module, steps: int = STEPS, parts: int = 1, optimizer: torch.optim.Optimizer | None = None, first: int = 0
) -> Losses:
    """Losses of every step; each adds up the gradients of so many parts."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        for part in range(parts):
            with model.no_sync() if part < parts - 1 else contextlib.nullcontext():
                seed = 1000 * step + 10 * part + dist.get_rank()
                loss = (model(torch.randn(8, 8, generator=torch.Generator().manual_seed(seed))) ** 2).mean()
                loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def parallel(group: dist.ProcessGroup, model: nn.Module | None = None, **options: bool) -> DistributedDataParallel:
    return DistributedDataParallel(model or network(), process_group=group, **options)


def gradients_added_up(group: dist.ProcessGroup) -> Losses:
    return train(parallel(group), parts=3)


def parameters_unused(group: dist.ProcessGroup) -> Losses:
    return train(parallel(group, Branches(), find_unused_parameters=True))


def a_static_graph(group: dist.ProcessGroup) -> Losses:
    return train(parallel(group, static_graph=True, gradient_as_bucket_view=True))


def uneven_inputs(group: dist.ProcessGroup) -> Losses:
    model = parallel(group)
    with Join([model]):
        return train(model, STEPS + dist.get_rank())


def a_checkpoint(group: dist.ProcessGroup) -> Losses:
    model = parallel(group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = train(model, 2, optimizer=optimizer)
    file = io.BytesIO()
    torch.save((model.module.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    of_model, of_optimizer = torch.load(file)
    model = parallel(group)
    model.module.load_state_dict(of_model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer.load_state_dict(of_optimizer)
    return losses + train(model, 2, optimizer=optimizer, first=2)


def a_compiled_model(group: dist.ProcessGroup) -> Losses:
    losses = train(torch.compile(parallel(group), backend="aot_eager"))
    breaks = torch._dynamo.utils.counters["graph_break"]
    assert not any("NetfoldGroup" in why for why in breaks), breaks
    return losses


def sharded_moments(group: dist.ProcessGroup) -> Losses:
    model = parallel(group)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, process_group=group, lr=0.01
    )
    return train(model, optimizer=optimizer)


def sharded_parameters(group: dist.ProcessGroup) -> Losses:
    return train(FullyShardedDataParallel(network(), process_group=group, device_id=torch.device("cpu")), parts=2)


FEATURES: list[Callable[[dist.ProcessGroup], Losses]] = [
    gradients_added_up, parameters_unused, a_static_graph, uneven_inputs, a_checkpoint, a_compiled_model,
    sharded_moments, sharded_parameters,
]


def hooked(gloo: dist.ProcessGroup, state: NetfoldState) -> Losses:
    """The hook where gradients are added up in the buckets themselves."""
    model = parallel(gloo, gradient_as_bucket_view=True)
    model.register_comm_hook(state, netfold_hook)
    return train(model, parts=2)


def resumed(gloo: dist.ProcessGroup, comm: Communicator) -> list[Losses]:
    """Losses in 8 bits, in one go; with a checkpoint in between, what was left out in it; and with that forgotten."""

    def begin() -> tuple[DistributedDataParallel, torch.optim.Optimizer, NetfoldState]:
        # Else DistributedDataParallel begins with one bucket and lays it out anew after its first step: what shares a
        # block of lanes rounds together.
        model = parallel(gloo, find_unused_parameters=True)
        state = NetfoldState(comm, lane_bits=8)
        model.register_comm_hook(state, netfold_hook)
        return model, torch.optim.AdamW(model.parameters(), lr=0.01), state

    runs = []
    for break_at, remembers in ((0, True), (STEPS, True), (STEPS, False)):
        model, optimizer, state = begin()
        losses = train(model, break_at, optimizer=optimizer)
        if break_at:
            file = io.BytesIO()
            residual = state.state_dict(model) if remembers else {}
            torch.save((model.module.state_dict(), optimizer.state_dict(), residual), file)
            state.close()
            file.seek(0)
            of_model, of_optimizer, residual = torch.load(file)
            model, optimizer, state = begin()
            model.module.load_state_dict(of_model)
            optimizer.load_state_dict(of_optimizer)
            state.load_state_dict(model, residual)
        runs.append(losses + train(model, 2 * STEPS - break_at, optimizer=optimizer, first=break_at))
        state.close()
    return runs


def main(subnet: str, service: str, folder: str) -> None:
    rank = int(os.environ["RANK"])
    os.environ["NETFOLD_ADDRESS"] = f"{subnet}.{rank + 1}"
    os.environ["NETFOLD_CONTROLLER"] = netfold.torch.STORE
    warnings.simplefilter("ignore")  # torch's own, about what it will call otherwise
    torch.set_num_threads(1)
    dist.init_process_group("netfold")
    assert dist.group.WORLD is not None
    gloo = dist.new_group(backend="gloo")
    innet = dist.new_group(backend="netfold", pg_options=Options(controller=service, rail="innet"))
    groups = {"gloo": gloo, "tcp": dist.group.WORLD, "innet": innet}
    found = {f.__name__: {name: f(group) for name, group in groups.items()} for f in FEATURES}
    state = NetfoldState(innet.communicator)
    found["the_hook"] = {"gloo": train(parallel(gloo), parts=2), "innet": hooked(gloo, state)}
    state.close()
    found["resumed"] = dict(zip(("whole", "resumed", "forgotten"), resumed(gloo, innet.communicator), strict=True))
    dist.destroy_process_group()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
