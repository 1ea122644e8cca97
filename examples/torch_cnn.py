# SPDX-License-Identifier: Apache-2.0
"""A small convolutional network on scikit-learn's digits, with DistributedDataParallel as in any other script.

    NETFOLD_CONTROLLER=... torchrun --nproc-per-node 4 examples/torch_cnn.py            # the controller's address
    NETFOLD_CONTROLLER=store torchrun --nproc-per-node 4 examples/torch_cnn.py          # no fabric: TCP alone
    torchrun --nproc-per-node 4 examples/torch_cnn.py --backend gloo                    # the same by gloo
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import netfold.torch  # noqa: F401  the one line: registers backend "netfold"

BATCH = 64


def network() -> nn.Module:
    """1 x 8 x 8 pixels to 10 classes."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
    )


def train(steps: int, wrap: Callable[[nn.Module], nn.Module] = DistributedDataParallel) -> list[float]:
    """The mean loss over all ranks at every step."""
    rank, world = dist.get_rank(), dist.get_world_size()
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(digits.target)
    torch.manual_seed(0)
    model = wrap(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = torch.zeros(steps)
    for step in range(steps):
        batch = torch.randint(len(x), (BATCH,), generator=torch.Generator().manual_seed(step))[rank::world]
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[step] = loss.detach() / world
    dist.all_reduce(losses)
    return losses.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a CNN on digits.")
    parser.add_argument("--backend", default="netfold", choices=["netfold", "gloo"])
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    dist.init_process_group(arguments.backend)
    losses = train(arguments.steps)
    if dist.get_rank() == 0:
        print(f"{arguments.backend}: loss {losses[0]:.4f} at first, {losses[-1]:.4f} after {len(losses)} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
