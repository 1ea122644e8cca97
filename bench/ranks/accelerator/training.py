# SPDX-License-Identifier: Apache-2.0
"""Checks of training on the device: each front end beside gloo."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from netfold.bench.ranks.accelerator.device import device, rank_and_world, same
from netfold.topo.processes.failures import WrongData

if TYPE_CHECKING:
    import torch
    from torch import nn

STEPS: Final = 6
BOUND: Final = 1e-4
"""Largest relative difference of a step's loss from gloo's."""


def model(width: int = 256) -> nn.Module:
    """A small model, the same on every rank, on the device."""
    import torch
    from torch import nn

    torch.manual_seed(7)
    layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(*layers, nn.Linear(width, 10)).to(device())


def losses(step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> list[float]:
    """Mean losses over the ranks of some steps, each on this rank's samples."""
    import torch
    import torch.distributed as dist

    found = []
    rank, world = rank_and_world()
    for turn in range(STEPS):
        generator = torch.Generator().manual_seed(100 + turn)
        inputs = torch.randn(16 * world, 256, generator=generator)[rank::world].to(device())
        targets = torch.randint(0, 10, (16 * world,), generator=generator)[rank::world].to(device())
        loss = step(inputs, targets).detach().clone()
        dist.all_reduce(loss)
        found.append(float(loss) / world)
    return found


def trained(make: Callable[[nn.Module], tuple[Callable[[torch.Tensor], torch.Tensor], Any]]) -> list[float]:
    """The losses of a model that ``make`` wraps, with the optimizer that it returns."""
    import torch

    forward, optimizer = make(model())

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(forward(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    return losses(step)


def alike(what: str, got: list[float], expected: list[float], bound: float = BOUND) -> str:
    """How far losses are from gloo's.  Raises WrongData beyond the bound."""
    off = max(abs(one - right) / abs(right) for one, right in zip(got, expected, strict=True))
    if not off <= bound:
        raise WrongData(f"{what}: losses {got}: expected {expected} within {bound:g}")
    return f"{what} {off:.0e}"


def sgd(wrapped: nn.Module) -> Any:
    """The optimizer of every way."""
    import torch

    return torch.optim.SGD(wrapped.parameters(), 0.05, momentum=0.9)


def beside_gloo(hook: str = "") -> list[float]:
    """The losses over gloo, with this communication hook."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    group = dist.new_group(backend="gloo")

    def make(inner: nn.Module) -> tuple[Any, Any]:
        wrapped = DistributedDataParallel(inner, process_group=group, bucket_cap_mb=1)
        if hook == "powersgd":
            wrapped.register_comm_hook(PowerSGDState(group, 2, start_powerSGD_iter=2), powerSGD_hook)
        return wrapped, sgd(wrapped)

    return trained(make)


def ddp() -> str:
    """DistributedDataParallel: plain, by our hook in whole and narrow lanes, by torch's FP16 and PowerSGD hooks."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    from netfold.torch import NetfoldState, netfold_hook

    comm: Any = dist.group.WORLD.communicator
    right, found = beside_gloo(), []

    def make(hook: str, inner: nn.Module) -> tuple[Any, Any]:
        wrapped = DistributedDataParallel(inner, bucket_cap_mb=1)
        if hook.isdecimal():
            lanes: Any = int(hook)
            wrapped.register_comm_hook(NetfoldState(comm, lane_bits=lanes), netfold_hook)
        elif hook == "fp16":
            wrapped._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
        elif hook == "powersgd":
            wrapped.register_comm_hook(PowerSGDState(None, 2, start_powerSGD_iter=2), powerSGD_hook)
        return wrapped, sgd(wrapped)

    for hook, bound in (("", BOUND), ("32", BOUND), ("16", 0.01), ("8", 0.05), ("fp16", 0.01)):
        found.append(alike(hook or "plain", trained(partial(make, hook)), right, bound))
    found.append(alike("powersgd", trained(partial(make, "powersgd")), beside_gloo("powersgd"), 0.01))
    return ", ".join(found)


def fsdp() -> str:
    """fully_shard, and tensors that DTensor shards and gathers."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = DeviceMesh.from_group(dist.group.WORLD, device().type)

    def make(inner: nn.Module) -> tuple[Any, Any]:
        for layer in inner:
            fully_shard(layer, mesh=mesh)
        fully_shard(inner, mesh=mesh)
        return inner, sgd(inner)

    found = alike("fully_shard", trained(make), beside_gloo())
    whole = torch.arange(48.0, device=device()).view(12, 4)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    same("DTensor", (sharded * 2).redistribute(mesh, [Replicate()]).to_local(), whole.cpu() * 2)
    same("DTensor's sum", sharded.sum().full_tensor().reshape(1), whole.cpu().sum().reshape(1))
    return f"{found}, DTensor"


def optimizers() -> str:
    """DistributedOptimizer and PriorityOptimizer."""
    import torch.distributed as dist

    from netfold.torch import DistributedOptimizer, PriorityOptimizer, broadcast_parameters

    comm: Any = dist.group.WORLD.communicator
    right = beside_gloo()

    def horovod(inner: nn.Module) -> tuple[Any, Any]:
        broadcast_parameters(inner.state_dict(), communicator=comm)
        return inner, DistributedOptimizer(sgd(inner), inner.named_parameters(), communicator=comm)

    made: list[Any] = []

    def priority(inner: nn.Module) -> tuple[Any, Any]:
        made.append(PriorityOptimizer(sgd(inner), inner, comm))
        return inner, made[0]

    found = [alike("DistributedOptimizer", trained(horovod), right)]
    forward, optimizer = priority(model())
    import torch

    seen = []
    rank, world = rank_and_world()
    for turn in range(STEPS):  # its communicator is its own between steps
        generator = torch.Generator().manual_seed(100 + turn)
        inputs = torch.randn(16 * world, 256, generator=generator)[rank::world].to(device())
        targets = torch.randint(0, 10, (16 * world,), generator=generator)[rank::world].to(device())
        loss = torch.nn.functional.cross_entropy(forward(inputs), targets)
        loss.backward()
        optimizer.step()
        seen.append(loss.detach().clone())
    optimizer.close()
    means = []
    for loss in seen:
        dist.all_reduce(loss)
        means.append(float(loss) / world)
    found.append(alike("PriorityOptimizer", means, right))
    return ", ".join(found)
