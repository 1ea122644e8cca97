# SPDX-License-Identifier: Apache-2.0
"""A small transformer learns to write sums, letter by letter; its gradients go through NetFold by a hook.

The process group stays gloo's: the hook takes over the gradients alone, bucket by bucket while backward goes on.

    NETFOLD_CONTROLLER=... torchrun --nproc-per-node 4 examples/torch_lm.py             # the controller's address
    NETFOLD_CONTROLLER=store torchrun --nproc-per-node 4 examples/torch_lm.py           # no fabric: TCP alone
    torchrun --nproc-per-node 4 examples/torch_lm.py --no-hook                          # gradients by gloo, too
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import netfold.torch

LETTERS = "0123456789+=;"
BATCH, LENGTH, WIDTH = 32, 32, 32


def text(sums: int = 2000) -> torch.Tensor:
    """ "12+7=19;3+30=33;..." as numbers of letters."""
    rng = random.Random(0)
    pairs = [(rng.randrange(50), rng.randrange(50)) for _ in range(sums)]
    return torch.tensor([LETTERS.index(letter) for a, b in pairs for letter in f"{a}+{b}={a + b};"])


class Transformer(nn.Module):
    """Letters so far -> what the next one may be: int64[batch, length] -> float32[batch, length, letters]."""

    def __init__(self) -> None:
        super().__init__()
        self.letter = nn.Embedding(len(LETTERS), WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, len(LETTERS))

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        length = letters.shape[1]
        hidden = self.letter(letters) + self.place(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.out(self.layers(hidden, mask=mask, is_causal=True))


def train(steps: int, wrap: Callable[[nn.Module], nn.Module] = DistributedDataParallel) -> list[float]:
    """The mean loss over all ranks at every step."""
    rank, world = dist.get_rank(), dist.get_world_size()
    data = text()
    torch.manual_seed(0)
    model = wrap(Transformer())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = torch.zeros(steps)
    for step in range(steps):
        starts = torch.randint(len(data) - LENGTH, (BATCH,), generator=torch.Generator().manual_seed(step))
        rows = torch.stack([data[start : start + LENGTH + 1] for start in starts[rank::world].tolist()])
        loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[step] = loss.detach() / world
    dist.all_reduce(losses)
    return losses.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a transformer on sums.")
    parser.add_argument("--no-hook", action="store_true", help="leave the gradients to gloo")
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    if arguments.no_hook:
        losses, by = train(arguments.steps), "gloo"
    else:
        with netfold.torch.join() as comm:
            state = netfold.torch.NetfoldState(comm)

            def wrap(model: nn.Module) -> nn.Module:
                parallel = DistributedDataParallel(model)
                parallel.register_comm_hook(state, netfold.torch.netfold_hook)
                return parallel

            losses, by = train(arguments.steps, wrap), comm.rail
            state.close()
    if dist.get_rank() == 0:
        print(f"gradients over {by}: loss {losses[0]:.4f} at first, {losses[-1]:.4f} after {len(losses)} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
