# SPDX-License-Identifier: Apache-2.0
"""Times of allreduces, and of steps of a model of GPT-2's size."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from netfold.bench.ranks.accelerator.device import closing, device, finish, rank_and_world

if TYPE_CHECKING:
    import torch

def allreduce(nbytes: int, calls: int, warmup: int, part: float, place: str, lanes: Any) -> dict[str, float]:
    """Seconds of a call, what the host waited for it and its processor time, the means of some."""
    import torch
    import torch.distributed as dist

    from netfold.host.staging import copies
    from netfold.torch import NetfoldState

    copies.PART = int(part * (1 << 20)) or 16 << 20
    mine = torch.ones(nbytes // 4, device=device() if place == "device" else "cpu")
    group: Any = dist.group.WORLD
    with_lanes = nullcontext() if lanes == 32 else closing(NetfoldState(
        group.communicator, lane_bits=lanes, average=False, error_feedback=False))
    with with_lanes as state:
        for turn in range(warmup + calls):
            if turn == warmup:
                dist.barrier()
                finish()
                begin, cpu, waited = time.perf_counter(), time.process_time(), 0.0
            started = time.perf_counter()
            if state is None:
                dist.all_reduce(mine)
            else:
                state.reduce(mine).wait()
            waited = (waited if turn >= warmup else 0.0) + time.perf_counter() - started
            finish()
        seconds = (time.perf_counter() - begin) / calls
        cpu = (time.process_time() - cpu) / calls
    return {"seconds": seconds, "cpu": cpu, "wait": waited / calls}


def gpt2(steps: int, lanes: Any) -> dict[str, Any]:
    """Seconds and losses of steps of a model of GPT-2's size under DistributedDataParallel."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from netfold.torch import NetfoldState, netfold_hook

    width, depth, words, length = (768, 12, 50257, 128) if device().type != "cpu" else (64, 2, 500, 16)
    torch.manual_seed(1)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(1024, width)
            for table in (self.words, self.places):
                nn.init.normal_(table.weight, std=0.02)
            layer = nn.TransformerEncoderLayer(width, 12 if width == 768 else 4, 4 * width, 0.0, "gelu",
                                               batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

        def forward(self, text: torch.Tensor) -> torch.Tensor:
            found = self.words(text) + self.places.weight[: text.shape[1]]
            mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1], device=text.device)
            whole: torch.Tensor = self.layers(found, mask=mask, is_causal=True) @ self.words.weight.T
            return whole

    inner, (rank, world) = Model().to(device()), rank_and_world()
    wrapped = DistributedDataParallel(inner)
    group: Any = dist.group.WORLD
    if lanes != 32:
        wrapped.register_comm_hook(NetfoldState(group.communicator, lane_bits=lanes), netfold_hook)
    optimizer = torch.optim.AdamW(inner.parameters(), 3e-4)
    seconds, seen = [], []
    for turn in range(steps + 1):
        generator = torch.Generator().manual_seed(turn)
        text = torch.randint(0, words, (4 * world, length + 1), generator=generator)[rank::world].to(device())
        finish()
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(wrapped(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        finish()
        seconds.append(time.perf_counter() - begin)
        seen.append(loss.detach().clone())
    means = []
    for loss in seen:
        dist.all_reduce(loss)
        means.append(float(loss) / world)
    return {"seconds": seconds, "losses": means, "parameters": sum(p.numel() for p in inner.parameters())}
