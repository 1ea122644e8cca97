# SPDX-License-Identifier: Apache-2.0
"""Measures how long a training step of FSDP2 (fully_shard) takes over one fabric, with reduce-scatters that join the
all-gathers under way and without.

    python bench/scripts/sharded.py [--rate 200mbit] [--layers 6] [--width 1024] [--json FILE]

The ways, which take turns step by step over one process group, each with its own model from the same start:

    default   as fully_shard does by itself: each all-gather and reduce-scatter is waited for at once
    prefetch  _set_unshard_async_op(True): the next layer's all-gather is under way while a layer computes backward
    together  the same, and the layer's reduce-scatter joins that all-gather
    unused    as default, where reduce-scatters might join: what the asking costs where nothing is under way

Layers are square matrices of float32, and batches are small, so that the links are what a step waits for.  Fails where
the parameters of two ways differ by more than the rounding of sums in the switches (1e-4 of the largest one).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WAYS = ("default", "prefetch", "together", "unused")
BATCH = 4


def rank(layers: int, width: int, steps: int) -> None:
    """Train as one rank; rank 0 prints, as JSON, the seconds of each step in each way, and how many of its operations
    went together."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    import netfold.torch

    torch.set_num_threads(1)
    dist.init_process_group("netfold", pg_options=netfold.torch.Options(rail="innet", together=True))
    group: Any = dist.group.WORLD
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))

    def start(way: str) -> tuple[Any, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model: Any = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model._set_unshard_async_op(way in ("prefetch", "together"))
        return model, torch.optim.SGD(model.parameters(), 0.01)

    trained = {way: start(way) for way in WAYS}
    said: dict[str, list[tuple[float, int]]] = {way: [] for way in WAYS}
    for step in range(steps + 1):
        batch = torch.randn(BATCH, width, generator=torch.Generator().manual_seed(step))
        for way in (*WAYS[step % len(WAYS):], *WAYS[: step % len(WAYS)]):
            model, optimizer = trained[way]
            group.together = way in ("together", "unused")
            dist.barrier()
            before, begin = group.communicator.flight()[-1].number, time.perf_counter()
            optimizer.zero_grad()
            (model(batch) ** 2).mean().backward()
            optimizer.step()
            seconds = time.perf_counter() - begin
            joined = sum(one.name == "together" and one.number > before for one in group.communicator.flight())
            if step:  # the first one warms up
                said[way].append((seconds, joined))
        if dist.get_rank() == 0 and step:
            print(f"step {step}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    first = trained[WAYS[0]][0][0].weight.to_local().detach()
    for way, (model, _) in trained.items():
        if not torch.allclose(model[0].weight.to_local(), first, rtol=0, atol=1e-4 * float(first.abs().max())):
            raise SystemExit(f"{way}: rank {dist.get_rank()} has trained other weights than by default")
    if dist.get_rank() == 0:
        print(json.dumps({"rail": group.communicator.rail, "said": said}), flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description="Time steps of FSDP2 whose reduce-scatters join all-gathers.")
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=1024, help="of a layer, a square matrix")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.rank:
        rank(a.layers, a.width, a.steps)
        return
    sizes = [f"--{name}={getattr(a, name)}" for name in ("layers", "width", "steps")]
    topo = ["--topo", f"leafspine,2,2,{a.ranks}", "--rate", a.rate]
    program = [sys.executable, os.path.abspath(__file__), "--rank", *sizes]
    command = [sys.executable, "-m", "netfold.cli", "run", *topo, "--timeout", "400", "--", *program]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    result = json.loads(next(line for line in done.stdout.splitlines() if '"said"' in line).split("] ", 1)[1])
    print(f"{a.ranks} ranks over {result['rail']}, links of {a.rate}, {a.layers} layers of "
          f"{a.width * a.width * 4 / 2**20:.3g} MiB: medians of {a.steps} steps in turn")
    rows = []
    for way in WAYS:
        times = [seconds for seconds, _ in result["said"][way]]
        ratios = [first / own for (first, _), own in zip(result["said"]["default"], times, strict=True)]
        joined = [count for _, count in result["said"][way]]
        rows.append({"way": way, "seconds": times, "ratios": ratios, "together": joined})
        print(f"  {way:9} {statistics.median(times) * 1e3:7.1f} ms a step ({min(times) * 1e3:.1f} .. "
              f"{max(times) * 1e3:.1f}), {statistics.median(ratios):.2f} times the default's rate "
              f"({min(ratios):.2f} .. {max(ratios):.2f}), {min(joined)} to {max(joined)} operations of a step together")
    if a.json:
        a.json.write_text(json.dumps({"arguments": {**vars(a), "json": str(a.json)}, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
