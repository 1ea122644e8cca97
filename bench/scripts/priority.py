# SPDX-License-Identifier: Apache-2.0
"""What priorities save: the time of a training step with three ways to reduce gradients over one fabric.

The ways are DistributedDataParallel's communication hook, PriorityOptimizer in the order in which gradients arrive (the
last layers first), and PriorityOptimizer with the first layers first.

    python bench/scripts/priority.py [--rate 200mbit] [--layers 8] [--compute 0.03] [--json FILE]

Computing is a sleep, as if on an accelerator: each layer takes so long forward and as long again backward, and the
ranks' CPU is free for the network.  With the hook a step takes at least the forward pass plus the longer of backward
pass and reduction; with priorities the forward pass overlaps with the reduction as well.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAYS = ("hook", "arrival", "priority")
ROUNDS = 3
STEPS = 5


def rank(layers: int, kilobytes: int, seconds: float) -> None:
    """Train as one rank; rank 0 prints the median seconds of a step in each way, as JSON."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import netfold.torch
    from netfold.host.torch.hook import NetfoldState, netfold_hook

    class Busy(torch.autograd.Function):  # type: ignore[misc]
        """An operation that takes a fixed time in both passes."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            time.sleep(seconds)
            ctx.save_for_backward(weight)
            return x + weight[0]

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            time.sleep(seconds)
            return gradients[0], torch.ones_like(ctx.saved_tensors[0])

    class Layer(nn.Module):  # type: ignore[misc]
        """A layer whose parameters fill one bucket."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(kilobytes * 256))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Busy.apply(x, self.weight)

    def train(comm: Any, way: str) -> float:
        """Train in one way and return the median seconds of a step."""
        model = nn.Sequential(*(Layer() for _ in range(layers)))
        inner = torch.optim.SGD(model.parameters(), 0.1)
        state, wrapped, optimizer = None, model, inner
        if way == "hook":
            state = NetfoldState(comm)
            wrapped = DistributedDataParallel(model, bucket_cap_mb=kilobytes / 1024)
            wrapped.register_comm_hook(state, netfold_hook)
        else:
            mb = kilobytes / 1024
            order: Any = way
            optimizer = netfold.torch.PriorityOptimizer(inner, model, comm, bucket_mb=mb, order=order)
        times = []
        for _ in range(STEPS + 1):
            begin = time.perf_counter()
            optimizer.zero_grad()
            wrapped(torch.zeros(1, requires_grad=True)).sum().backward()
            optimizer.step()
            times.append(time.perf_counter() - begin)
        closing: Callable[[], None] = optimizer.close if state is None else state.close
        closing()
        return statistics.median(times[1:])

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    said: dict[str, list[float]] = {way: [] for way in WAYS}
    with netfold.torch.join() as comm:
        for _ in range(ROUNDS):
            for way in WAYS:
                said[way].append(train(comm, way))
        if comm.rank == 0:
            print(json.dumps({"rail": comm.rail, "seconds": said}), flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description="What priorities save.")
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--kilobytes", type=int, default=1024, help="of gradients in a layer")
    parser.add_argument("--compute", type=float, default=0.03, help="seconds of a layer, forward and again backward")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.rank:
        rank(a.layers, a.kilobytes, a.compute)
        return
    sizes = [f"--layers={a.layers}", f"--kilobytes={a.kilobytes}", f"--compute={a.compute}"]
    topo = ["--topo", f"leafspine,2,2,{a.ranks}", "--rate", a.rate]
    program = [sys.executable, os.path.abspath(__file__), "--rank", *sizes]
    command = [sys.executable, "-m", "netfold.cli", "run", *topo, "--timeout", "200", "--", *program]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    result = json.loads(next(line for line in done.stdout.splitlines() if '"seconds"' in line).split("] ", 1)[1])
    print(f"{a.ranks} ranks over {result['rail']}, links of {a.rate}, {a.layers} layers of {a.kilobytes} KB and "
          f"{a.compute * 1e3:g} ms each way: median of {STEPS} steps, {ROUNDS} rounds in turn")
    base = statistics.median(result["seconds"]["hook"])
    rows = []
    for way in WAYS:
        times = result["seconds"][way]
        median = statistics.median(times)
        rows.append({"way": way, "seconds": median, "least": min(times), "most": max(times)})
        print(f"  {way:9} {median * 1e3:7.1f} ms a step ({min(times) * 1e3:.1f} .. {max(times) * 1e3:.1f}), "
              f"{base / median:.2f} x the hook's rate")
    if a.json:
        a.json.write_text(json.dumps({"arguments": {**vars(a), "json": str(a.json)}, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
