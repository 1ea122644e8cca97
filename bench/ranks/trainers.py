# SPDX-License-Identifier: Apache-2.0
"""A model that is ready to be trained in one of the ways of `netfold bench train`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from netfold.bench.ranks.train_command import TrainCommand

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from netfold.bench.ranks.models import Task

BACKEND: Final = ("netfold", "fsdp", "fsdp2", "fsdp2-prefetch", "fsdp2-together", "hsdp")
"""Ways whose process group is of backend netfold; of the others it is gloo's, and priority's have none."""
PREFETCHES: Final = ("fsdp2-prefetch", "fsdp2-together")
PRIORITIES: Final = ("priority", "priority-arrival")
KEPT: list[object] = []
"""Process groups and models of earlier turns.  torch's gloo joins its threads in its destructor, with the GIL held, for
which one of them may be waiting: a process that drops a group right after its last operation may hang."""


class TrainedModel(Protocol):
    """A model that is trained in one of the ways."""

    model: nn.Module
    optimizer: Any
    path: Callable[[], str]
    retransmissions: Callable[[], int]
    joined: Callable[[], int]
    """Reduce-scatters that have joined an all-gather since the last call."""

    def settle(self) -> None:
        """Returns once all updates are made."""

    def reduce(self, elements: int) -> None:
        """The communication of one step, of this many float32, without the step."""


class Plain:
    """DistributedDataParallel, or a single process."""

    def __init__(self, model: nn.Module, inner: nn.Module, command: TrainCommand) -> None:
        import torch

        self.model = model
        self.optimizer: Any = torch.optim.SGD(inner.parameters(), command.rate, momentum=0.9)
        self.path: Callable[[], str] = lambda: "none"
        self.retransmissions: Callable[[], int] = lambda: 0
        self.joined: Callable[[], int] = lambda: 0

    def settle(self) -> None:
        """Nothing is left to be done."""

    def reduce(self, elements: int) -> None:
        """Reduces as much as there are gradients, where there are several ranks."""
        import torch
        import torch.distributed as dist

        if dist.is_initialized():
            dist.all_reduce(torch.ones(elements))


class Hooked(Plain):
    """DistributedDataParallel over gloo, with the hook."""

    def __init__(self, model: nn.Module, inner: nn.Module, command: TrainCommand, state: Any) -> None:
        super().__init__(model, inner, command)
        self._state = state

    def reduce(self, elements: int) -> None:
        import torch

        self._state.reduce(torch.ones(elements)).wait()


class Sharded(Plain):
    """FSDP: gathers each layer's parameters forward and again backward, reduces and scatters its gradients."""

    def __init__(self, model: nn.Module, command: TrainCommand) -> None:
        super().__init__(model, model, command)
        self._world = command.world
        self._prefetches = command.way in PREFETCHES

    def reduce(self, elements: int) -> None:
        """All of a step's calls, each of the whole model."""
        import torch
        import torch.distributed as dist

        gradients = torch.ones(-(-elements // self._world) * self._world)
        parameters = torch.empty_like(gradients)
        mine, reduced = (torch.ones(gradients.numel() // self._world) for _ in range(2))
        dist.all_gather_into_tensor(parameters, mine)
        backward = dist.all_gather_into_tensor(parameters, mine, async_op=self._prefetches)
        dist.reduce_scatter_tensor(reduced, gradients)
        if backward is not None:
            backward.wait()


class Hybrid(Sharded):
    """HSDP: two replicas of the model, each sharded over half of the ranks, whose shards' gradients are reduced between
    the replicas."""

    def __init__(self, task: Task, command: TrainCommand) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (2, command.world // 2), mesh_dim_names=("replicate", "shard"))
        super().__init__(fully_sharded(task, mesh, prefetches=False), command)
        self.replicas: Any = mesh.get_group("replicate")
        self._shards = mesh.get_group("shard")

    def reduce(self, elements: int) -> None:
        import torch
        import torch.distributed as dist

        shards = self._world // 2
        gradients = torch.ones(-(-elements // shards) * shards)
        mine, reduced = (torch.ones(gradients.numel() // shards) for _ in range(2))
        for _ in range(2):
            dist.all_gather_into_tensor(torch.empty_like(gradients), mine, group=self._shards)
        dist.reduce_scatter_tensor(reduced, gradients, group=self._shards)
        dist.all_reduce(reduced, group=self.replicas)


class Prioritised(Plain):
    """PriorityOptimizer, without DistributedDataParallel."""

    def __init__(self, model: nn.Module, command: TrainCommand, comm: Any) -> None:
        from netfold.host.torch.priority import PriorityOptimizer

        super().__init__(model, model, command)
        bits: Any = command.lane_bits
        self._comm, self._bits = comm, bits
        self.optimizer = PriorityOptimizer(
            self.optimizer, model, comm, bucket_mb=min(command.bucket_mb, 4.0), lane_bits=bits,
            order="priority" if command.way == "priority" else "arrival",
        )

    def settle(self) -> None:
        self.optimizer.synchronize()

    def reduce(self, elements: int) -> None:
        import numpy as np

        # no vote is under way after settle(), and none begins before the next backward pass
        data = np.ones(elements, np.float32)
        self._comm.allreduce(data, data, lane_bits=self._bits)


@contextlib.contextmanager
def opened(command: TrainCommand, task: Task) -> Iterator[TrainedModel]:
    """The task's model, ready to be trained in the command's way; leaves the job at the end."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import netfold.torch
    from netfold.host.torch.hook import NetfoldState, netfold_hook

    os.environ |= {"MASTER_PORT": str(command.port), "NETFOLD_JOB": f"train-{command.port}",
                   "NETFOLD_TIMEOUT": str(command.timeout)}
    bits: Any = command.lane_bits
    way, model = command.way, task.model
    rank = int(os.environ["RANK"])
    with contextlib.ExitStack() as stack:
        if way not in PRIORITIES:
            over = "netfold" if way in BACKEND else "gloo"
            together = True if way == "fsdp2-together" else None
            options = netfold.torch.Options(lane_bits=bits, together=together) if over == "netfold" else None
            dist.init_process_group(over, rank=rank, world_size=command.world, pg_options=options)
            stack.callback(dist.destroy_process_group)
            KEPT.append(dist.group.WORLD)
        comm: Any = dist.group.WORLD.communicator if way in BACKEND else None
        if way in ("hook", *PRIORITIES):
            comm = stack.enter_context(netfold.torch.join(rank=rank, world=command.world))
        trainer: Plain
        if way in ("fsdp", "fsdp-gloo"):
            trainer = Sharded(wrapped(task), command)
        elif way.startswith("fsdp2"):
            trainer = Sharded(fully_sharded(task, world_mesh(), prefetches=way in PREFETCHES), command)
        elif way.startswith("hsdp"):
            trainer = Hybrid(task, command)
            comm = trainer.replicas.communicator if way in BACKEND else None
        elif way in PRIORITIES:
            trainer = Prioritised(model, command, comm)
            stack.callback(trainer.optimizer.close)
        else:
            parallel = DistributedDataParallel(model, bucket_cap_mb=command.bucket_mb)
            if way == "hook":
                state = NetfoldState(comm, lane_bits=bits)
                stack.callback(state.close)
                parallel.register_comm_hook(state, netfold_hook)
                trainer = Hooked(parallel, model, command, state)
            else:
                trainer = Plain(parallel, model, command)
        if comm is None:
            trainer.path = lambda: "gloo"
        else:
            trainer.path = lambda: last_path(comm)
            trainer.retransmissions = lambda: int(comm.stats().retransmissions)
            trainer.joined = JoinedOperations(comm)
        KEPT.append(trainer)
        yield trainer


def wrapped(task: Task) -> nn.Module:
    """The task's model under FullyShardedDataParallel over the default group: each layer by itself, and what is in none
    of them."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import CustomPolicy

    layers = {id(layer) for layer in task.layers}
    policy = CustomPolicy(lambda module: id(module) in layers)
    return FullyShardedDataParallel(task.model, device_id=torch.device("cpu"), auto_wrap_policy=policy)


def world_mesh() -> DeviceMesh:
    """All ranks in one dimension, by the default group."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    group = dist.group.WORLD
    if group is None:
        raise RuntimeError("fully_shard: expected the default group of torch.distributed, got none")
    return DeviceMesh.from_group(group, "cpu")


def fully_sharded(task: Task, mesh: DeviceMesh, *, prefetches: bool) -> nn.Module:
    """The task's model under fully_shard over a mesh: each layer by itself, and what is in none of them.

    prefetches  the next layer's all-gather is under way while a layer computes backward
    """
    from torch.distributed.fsdp import fully_shard

    for layer in task.layers:
        fully_shard(layer, mesh=mesh)
    model: Any = task.model
    fully_shard(model, mesh=mesh)
    model._set_unshard_async_op(prefetches)
    whole: nn.Module = model
    return whole


class JoinedOperations:
    """Counts the operations of a communicator that are a reduce-scatter and an all-gather at once."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._seen = 0
        self()

    def __call__(self) -> int:
        """How many there were since the last call, as far as the flight recorder reaches back."""
        new = [one for one in self._comm.flight() if one.number > self._seen]
        if new:
            self._seen = new[-1].number
        return sum(one.name == "together" for one in new)


def last_path(comm: Any) -> str:
    """The path of the largest of the communicator's last reductions."""
    largest = max((one for one in comm.flight() if one.op), key=lambda operation: operation.nbytes)
    return str(largest.path or comm.rail)
