# SPDX-License-Identifier: Apache-2.0
"""One rank of `netfold bench train`, and the single process that it is compared with.

    python -m netfold.bench.ranks.train rank               commands on standard input, RANK, NETFOLD_*, ... set
    python -m netfold.bench.ranks.train alone COMMAND      the same batches in one process

Commands are lines of JSON, a `TrainCommand` each, and each is answered by a `TrainResult`.  Every command joins and
trains from the same start, so that rounds can be compared and a way of one round leaves nothing to the next.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from netfold.topo.allreduce_rank import idle_of_all
from netfold.topo.failures import WrongData
from netfold.topo.rank_program import print_message, run_rank

if TYPE_CHECKING:
    import torch
    from torch import nn

    from netfold.bench.ranks.models import Task

Way = Literal["gloo", "netfold", "hook", "fsdp", "fsdp-gloo", "priority"]
"""gloo, netfold: DistributedDataParallel over that backend; hook: over gloo, gradients by NetFold's hook; fsdp,
fsdp-gloo: FullyShardedDataParallel over netfold or gloo; priority: PriorityOptimizer."""
PROBES = 3
"""Steps without communication, and reductions without a step, that are timed after the training."""


KEPT: list[object] = []
"""Process groups and models of earlier turns.  torch's gloo joins its threads in its destructor, with the GIL held, for
which one of them may be waiting: a process that drops a group right after its last operation may hang."""


class TrainCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to train, and how; all ranks get the same."""

    way: Way
    model: str
    width: int
    batch: int
    """Samples of each rank in a step."""
    world: int
    steps: int
    warmup: int
    """Steps before those that are timed; they train as well."""
    seed: int
    lane_bits: int = 32
    rate: float = 0.05
    """The learning rate, of SGD with a momentum of 0.9."""
    bucket_mb: float = 25.0
    port: int = 29500
    """The TCP port of torch's store, and part of the job's name: another one for each command."""
    timeout: float = 60.0


class TrainResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The measurements of one rank.  Times are in seconds."""

    parameters: int
    seconds: list[float]
    """Seconds of each timed step."""
    compute: float
    """Seconds of a step without communication, while the other ranks compute as well."""
    reduce: float
    """Seconds of all the communication of a step, without the computing: 0 in a single process."""
    losses: list[float]
    """The losses of this rank's part of each step's batch, warm-up included."""
    accuracy: float
    digest: str
    """A digest of the parameters at the end, which all ranks must have alike."""
    cpu: float
    """Processor time of this rank in a timed step."""
    machine_busy: float
    retransmissions: int
    path: str
    """The path that carried the gradients, in the words of the flight recorder."""


class TrainedModel(Protocol):
    """A model that is trained in one of the ways."""

    model: nn.Module
    optimizer: Any
    path: Callable[[], str]
    retransmissions: Callable[[], int]

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
    """FullyShardedDataParallel: gathers parameters forward and again backward, reduces and scatters gradients."""

    def __init__(self, model: nn.Module, command: TrainCommand) -> None:
        super().__init__(model, model, command)
        self._world = command.world

    def reduce(self, elements: int) -> None:
        import torch
        import torch.distributed as dist

        whole = torch.ones(-(-elements // self._world) * self._world)
        mine = torch.ones(whole.numel() // self._world)
        for _ in range(2):
            dist.all_gather_into_tensor(whole, mine)
        dist.reduce_scatter_tensor(mine, whole)


class Prioritised(Plain):
    """PriorityOptimizer, without DistributedDataParallel."""

    def __init__(self, model: nn.Module, command: TrainCommand, comm: Any) -> None:
        from netfold.host.torch.priority import PriorityOptimizer

        super().__init__(model, model, command)
        bits: Any = command.lane_bits
        self._comm, self._bits = comm, bits
        self.optimizer = PriorityOptimizer(
            self.optimizer, model, comm, bucket_mb=min(command.bucket_mb, 4.0), lane_bits=bits
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
        if way != "priority":
            over = "netfold" if way in ("netfold", "fsdp") else "gloo"
            options = netfold.torch.Options(lane_bits=bits) if over == "netfold" else None
            dist.init_process_group(over, rank=rank, world_size=command.world, pg_options=options)
            stack.callback(dist.destroy_process_group)
            KEPT.append(dist.group.WORLD)
        comm: Any = dist.group.WORLD.communicator if way in ("netfold", "fsdp") else None
        if way in ("hook", "priority"):
            comm = stack.enter_context(netfold.torch.join(rank=rank, world=command.world))
        trainer: Plain
        if way in ("fsdp", "fsdp-gloo"):
            from torch.distributed.fsdp import FullyShardedDataParallel

            cpu: Any = __import__("torch").device("cpu")
            trainer = Sharded(FullyShardedDataParallel(model, device_id=cpu), command)
        elif way == "priority":
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
        KEPT.append(trainer)
        yield trainer


def last_path(comm: Any) -> str:
    """The path of the largest of the communicator's last reductions."""
    largest = max((one for one in comm.flight() if one.op), key=lambda operation: operation.nbytes)
    return str(largest.path or comm.rail)


def train(command: TrainCommand, task: Task, trainer: TrainedModel, rank: int, world: int) -> TrainResult:
    """Trains, and then measures what a step consists of."""
    size = command.batch * command.world
    parameters = sum(p.numel() for p in task.model.parameters()) if world == 1 else 0

    from netfold.bench.ranks.models import batch

    losses, seconds = [], []
    again, cpu, idle, total = 0, 0.0, 0, 1
    for step in range(command.warmup + command.steps):
        if step == command.warmup:
            again, cpu, (idle, total) = trainer.retransmissions(), time.process_time(), idle_of_all()
        mine = batch(step, size, command.seed)[rank::world]
        begin = time.perf_counter()
        loss = one_step(task, trainer.model, trainer.optimizer, mine)
        if step == command.warmup + command.steps - 1:
            trainer.settle()
        if step >= command.warmup:
            seconds.append(time.perf_counter() - begin)
        losses.append(loss)
    cpu = (time.process_time() - cpu) / command.steps
    later_idle, later_total = idle_of_all()
    again = trainer.retransmissions() - again
    accuracy = task.accuracy(trainer.model)
    digest = digest_of(trainer.model)
    path = trainer.path()
    return TrainResult(
        parameters, seconds, 0.0, 0.0, losses, accuracy, digest, cpu,
        1 - (later_idle - idle) / max(1, later_total - total), again, path,
    )


def one_step(task: Task, model: nn.Module, optimizer: Any, samples: torch.Tensor) -> float:
    """One step of training.  Returns the loss."""
    optimizer.zero_grad()
    loss = task.loss(model(task.inputs[samples]), task.targets[samples])
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def digest_of(model: nn.Module) -> str:
    """A digest of a model's parameters, those of a sharded one gathered."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    whole = contextlib.nullcontext()
    if isinstance(model, FullyShardedDataParallel):
        whole = FullyShardedDataParallel.summon_full_params(model, writeback=False)
    with whole:
        data = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(data).hexdigest()


def rank_turn(command: TrainCommand) -> TrainResult:
    """Executes a command as one of several ranks.  Raises WrongData where a parameter is no number."""
    import torch
    import torch.distributed as dist

    from netfold.bench.ranks.models import MODELS

    rank = int(os.environ["RANK"])
    task = MODELS[command.model](command.width, command.seed)
    alone = MODELS[command.model](command.width, command.seed)
    elements = sum(p.numel() for p in alone.model.parameters())
    with opened(command, task) as trainer:
        found = train(command, task, trainer, rank, command.world)
        if not all(torch.isfinite(torch.tensor(found.losses))):
            raise WrongData(f"rank {rank}, {command.way}: the losses are {found.losses}: expected numbers")

        def meet() -> None:
            if dist.is_initialized():
                dist.barrier()
            else:
                trainer.reduce(1)

        optimizer = torch.optim.SGD(alone.model.parameters(), command.rate, momentum=0.9)
        mine = torch.arange(command.batch)
        compute = probe(meet, lambda: one_step(alone, alone.model, optimizer, mine))
        reduce = probe(meet, lambda: trainer.reduce(elements))
    return msgspec.structs.replace(found, parameters=elements, compute=compute, reduce=reduce)


def probe(meet: Callable[[], None], call: Callable[[], object]) -> float:
    """Median seconds of a call that all ranks make at once, after one that does not count."""
    seconds = []
    for _ in range(PROBES + 1):
        meet()
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[1:])


def alone(command: TrainCommand) -> TrainResult:
    """Trains with the whole batches in this process, on one core."""
    import torch

    from netfold.bench.ranks.models import MODELS

    torch.set_num_threads(1)
    task = MODELS[command.model](command.width, command.seed)
    return train(command, task, Plain(task.model, task.model, command), 0, 1)


def main(kind: str, *words: str) -> None:
    """Executes commands: from standard input as a rank, or the one that is given."""
    import torch

    warnings.simplefilter("ignore")  # torch's own, about what it will call otherwise
    torch.set_num_threads(1)
    if kind == "alone":
        print_message(alone(msgspec.json.decode(words[0], type=TrainCommand)))
        return
    print_message({})
    for line in sys.stdin:
        print_message(rank_turn(msgspec.json.decode(line, type=TrainCommand)))
    os._exit(0)  # without the destructors of what was kept


if __name__ == "__main__":
    run_rank(main, *sys.argv[1:])
