# SPDX-License-Identifier: Apache-2.0
"""One rank's part of training in Horovod's manner over one rail, over all rails, or over gloo on the first plane.

The model and its data are those of `netfold bench train` (``models.cnn``); gradients are averaged by
``DistributedOptimizer``, with Horovod's arguments, over the rails' communicator; gloo's by DistributedDataParallel.
Every command begins with the same weights, so that rounds can be compared.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any, Final

import msgspec

from netfold.host.api.communicator import Communicator
from netfold.host.rails.multirail import MultiRail

RATE: Final = 0.05
"""Learning rate, of SGD with a momentum of 0.9."""
SEED: Final = 0
"""Seed of the weights, the samples and the batches."""
KEPT: list[object] = []
"""Models over gloo of earlier turns, whose destructors may wait for gloo's threads for ever."""


class RailTrainingCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Train so many steps after ``warmup`` others.

    rail   the only rail to use, by number; None: all of them
    gloo   over gloo on the first plane instead
    width  of the model's hidden layers
    batch  samples of a rank in a step
    """

    steps: int
    warmup: int
    width: int
    batch: int
    rail: int | None = None
    gloo: bool = False


class RailTrainingResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to `RailTrainingCommand`."""

    seconds: list[float]
    """Seconds of each timed step."""
    parameters: int
    digest: str
    """Digest of the weights at the end, which all ranks have alike."""
    loss: float
    """Loss of this rank's part of the last batch."""
    processor: float
    """Processor seconds of this rank's process for a timed step, computing included."""


def training(comm: Communicator, rails: MultiRail, command: RailTrainingCommand) -> RailTrainingResult:
    """Train as the command says.  Raises ModuleNotFoundError without torch, and what an allreduce raises."""
    import torch

    from netfold.bench.ranks.models import batch, cnn
    from netfold.host.torch.distributed_optimizer import DistributedOptimizer

    torch.set_num_threads(1)
    task = cnn(command.width, 2, SEED)
    model: Any = task.model
    optimizer: Any = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    if command.gloo:
        model = _over_gloo(model)
    else:
        rails.pin(command.rail)
        optimizer = DistributedOptimizer(optimizer, model.named_parameters(), communicator=comm)
    seconds, loss, processor = [], 0.0, 0.0
    for step in range(command.warmup + command.steps):
        if step == command.warmup:
            processor = time.process_time()
        mine = batch(step, command.batch * comm.size, SEED)[comm.rank::comm.size]
        begin = time.perf_counter()
        optimizer.zero_grad()
        found = task.loss(model(task.inputs[mine]), task.targets[mine])
        found.backward()
        optimizer.step()
        loss = float(found.detach())
        seconds.append(time.perf_counter() - begin)
    processor = (time.process_time() - processor) / command.steps
    rails.pin(None)
    weights = [p.detach().numpy().tobytes() for p in task.model.parameters()]
    return RailTrainingResult(
        seconds[command.warmup:], sum(p.numel() for p in task.model.parameters()),
        hashlib.sha256(b"".join(weights)).hexdigest(), loss, processor,
    )


def _over_gloo(model: Any) -> Any:
    """The model in DistributedDataParallel over gloo, whose process group is made once and never ended."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    parallel = DistributedDataParallel(model)
    KEPT.append(parallel)
    return parallel
