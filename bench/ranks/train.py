# SPDX-License-Identifier: Apache-2.0
"""One rank of `netfold bench train`, and the single process that it is compared with.

    python -m netfold.bench.ranks.train rank      with RANK, NETFOLD_*, ... set
    python -m netfold.bench.ranks.train alone     the same batches in one process

Commands are lines of JSON on standard input, a `TrainCommand` each, and each is answered by a `TrainResult`.  Every
command joins and trains from the same start, so that rounds can be compared and a way of one round leaves nothing to
the next.

The fork server imports torch once for all of them, as it is imported at the top (forked_program.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed.tensor import DTensor

from netfold.bench.ranks.models import MODELS, Task, batch, sleeping
from netfold.bench.ranks.train_command import PROBES, TrainCommand, TrainResult
from netfold.bench.ranks.trainers import Plain, TrainedModel, opened
from netfold.topo.processes.allreduce_rank import idle_of_all
from netfold.topo.processes.failures import WrongData
from netfold.topo.processes.rank_program import print_message, run_rank


def train(command: TrainCommand, task: Task, trainer: TrainedModel, rank: int, world: int) -> TrainResult:
    """Trains, and then measures what a step consists of."""
    size = command.batch * command.world
    parameters = sum(p.numel() for p in task.model.parameters()) if world == 1 else 0

    losses, seconds, joined = [], [], 0
    again, cpu, idle, total = 0, 0.0, 0, 1
    for step in range(command.warmup + command.steps):
        if step == command.warmup:
            trainer.joined()
            again, cpu, (idle, total) = trainer.retransmissions(), time.process_time(), idle_of_all()
        mine = batch(step, size, command.seed)[rank::world]
        begin = time.perf_counter()
        loss = one_step(task, trainer.model, trainer.optimizer, mine)
        if step == command.warmup + command.steps - 1:
            trainer.settle()
        if step >= command.warmup:
            seconds.append(time.perf_counter() - begin)
            joined += trainer.joined()
        losses.append(loss)
    cpu = (time.process_time() - cpu) / command.steps
    later_idle, later_total = idle_of_all()
    again = trainer.retransmissions() - again
    accuracy = task.accuracy(trainer.model)
    digest = digest_of(trainer.model)
    path = trainer.path()
    return TrainResult(
        parameters, seconds, 0.0, 0.0, losses, accuracy, digest, cpu,
        1 - (later_idle - idle) / max(1, later_total - total), again, path, joined / command.steps,
    )


def one_step(task: Task, model: nn.Module, optimizer: Any, samples: torch.Tensor) -> float:
    """One step of training.  Returns the loss."""
    optimizer.zero_grad()
    loss = task.loss(model(task.inputs[samples]), task.targets[samples])
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def digest_of(model: Any) -> str:
    """A digest of a model's parameters, those of a sharded one gathered."""
    fully_sharded: Any = getattr(fsdp, "FSDPModule", ())  # since torch 2.6
    whole = contextlib.nullcontext()
    if isinstance(model, fsdp.FullyShardedDataParallel):
        whole = fsdp.FullyShardedDataParallel.summon_full_params(model, writeback=False)
    elif isinstance(model, fully_sharded):
        model.reshard()  # what is in no layer stays gathered after a forward pass
    with whole:
        tensors = (p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters())
        # copies: memory that numpy has seen cannot be freed by FSDP
        data = b"".join(tensor.detach().clone().numpy().tobytes() for tensor in tensors)
    return hashlib.sha256(data).hexdigest()


def rank_turn(command: TrainCommand) -> TrainResult:
    """Executes a command as one of several ranks.  Raises WrongData where a parameter is no number."""
    rank = int(os.environ["RANK"])
    task, alone = (
        sleeping(MODELS[command.model](command.width, command.layers, command.seed), command.layer_seconds)
        for _ in range(2)
    )
    elements = sum(p.numel() for p in alone.model.parameters())
    with opened(command, task) as trainer, contextlib.ExitStack() as recorded:
        if command.record:
            import netfold.torch

            recorded.enter_context(netfold.torch.record(command.record, skip=command.warmup - 1, steps=command.steps))
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
    torch.set_num_threads(1)
    task = MODELS[command.model](command.width, command.layers, command.seed)
    return train(command, task, Plain(task.model, task.model, command), 0, 1)


def main(kind: str) -> None:
    """Executes commands from standard input, as a rank or alone."""
    warnings.simplefilter("ignore")  # torch's own, about what it will call otherwise
    torch.set_num_threads(1)
    turn = {"rank": rank_turn, "alone": alone}[kind]
    print_message({})
    for line in sys.stdin:
        print_message(turn(msgspec.json.decode(line, type=TrainCommand)))
    os._exit(0)  # without the destructors of what was kept


if __name__ == "__main__":
    run_rank(main, *sys.argv[1:])
