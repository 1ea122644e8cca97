# SPDX-License-Identifier: Apache-2.0
"""The check of waits that block the device's stream alone (``Options(wait="device")``)."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, Final

from netfold.bench.ranks.accelerator.death import job_that_loses_a_rank
from netfold.bench.ranks.accelerator.device import LONG, behind_work, device, finish, rank_and_world, same, values
from netfold.topo.processes.failures import WrongData

KERNELS: Final = 1500
"""Small works behind each wait, more than a device's queue has room for."""
TURNS: Final = 8
STEPS: Final = 4
ALIKE: Final = 1e-4
"""Most part by which losses differ, since the groups may add in other orders."""


def wait() -> str:
    """Sums are right for what the stream does next, although the host is far ahead, behind full queues and in
    DistributedDataParallel; a rank that dies leaves NaN and an error, and no stream hangs."""
    import torch.distributed as dist

    from netfold.torch import Options

    try:
        group: Any = dist.new_group(
            backend="netfold", pg_options=Options(wait="device"), timeout=timedelta(seconds=20)
        )
    except ValueError as error:
        if device().type == "cpu" and 'wait="device"' in str(error):
            return f"refused by name: {str(error).partition(': expected')[0]}"
        raise
    ahead = sums(group)
    full_queues(group)
    losses, others = trained(group), trained(None)
    if max(abs(one / other - 1) for one, other in zip(losses, others, strict=True)) > ALIKE:
        raise WrongData(f"losses {losses}: expected those of a group whose host waits, {others}")
    dist.destroy_process_group(group)
    return f"{ahead}; {STEPS} steps alike; a rank dies: {job_that_loses_a_rank(port='29711', wait='device')}"


def sums(group: Any) -> str:
    """Allreduces of several sizes and dtypes on two streams, behind much other work, some of them waited for late or
    never; when the host was back and when the device."""
    import torch
    import torch.distributed as dist

    rank, world = rank_and_world()
    streams = torch.accelerator.current_stream(), torch.get_device_module(device()).Stream(device=device())
    given = [  # before the first call: copies from the host would wait for what the device was given
        (count, stream, values(rank, count, dtype).to(device()))
        for dtype in (torch.float32, torch.bfloat16, torch.int32) for stream in streams
        for count in (1, 3001, LONG + 1)
    ]
    finish()
    found: list[torch.Tensor] = []
    works: list[Any] = []

    def call(*, floats: bool) -> None:
        for count, stream, there in given:
            if there.is_floating_point() == floats:
                with torch.get_device_module(device()).stream(stream):
                    found.append(behind_work(there))
                    works.append(dist.all_reduce(found[-1], group=group, async_op=True))
                    if count > 1:
                        works[-1].wait()

    begin = time.perf_counter()
    call(floats=True)
    ahead, back = not works[-1].is_completed(), time.perf_counter() - begin
    call(floats=False)  # of which there is no NaN, so that the host waits
    dist.barrier(group)
    finish()
    done = time.perf_counter() - begin
    for mine in found:
        total = sum(values(one, mine.numel(), torch.float64) for one in range(world)).to(mine.dtype)
        same(f"ahead, {mine.numel()} x {mine.dtype}", mine, total)
    if not ahead:
        raise WrongData(f"the host was back after {back:.3f} s, when the device was done: expected it to be ahead")
    return f"host back after {back:.3f} s, device done after {done:.3f} s"


def full_queues(group: Any) -> None:
    """Many small works and events behind each wait, so that the host has to wait for room in the device's queue."""
    import torch
    import torch.distributed as dist

    rank, world = rank_and_world()
    mine, counter = torch.full((3000,), rank + 1.0, device=device()), torch.zeros(1, device=device())
    for _ in range(TURNS):
        dist.all_reduce(mine, group=group)
        for place in range(KERNELS):
            counter += 1
            if place % 10 == 0:
                torch.get_device_module(device()).Event().record()
        mine /= world
    finish()
    same("behind full queues", counter, torch.full((1,), float(TURNS * KERNELS)))
    same("behind full queues", mine, torch.full((3000,), (world + 1) / 2))


def trained(group: Any) -> list[float]:
    """Losses of some steps of a model whose gradients this group averages; None: the default one."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    rank, _ = rank_and_world()
    torch.manual_seed(1)
    inner = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).to(device())
    model = DistributedDataParallel(inner, process_group=group, bucket_cap_mb=1)
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    for step in range(STEPS):
        inputs = (torch.arange(16 * 256, device=device()).view(16, 256) % 17 + rank + step) / 17
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]
