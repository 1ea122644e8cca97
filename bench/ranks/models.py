# SPDX-License-Identifier: Apache-2.0
"""The models that `netfold bench train` trains, and their data, which are generated: nothing is downloaded.

    cnn          images of ten classes, 16 x 16 pixels: each class's own pattern under noise
    transformer  text of 64 symbols, each followed by one of four, with odds of their own; the next symbol is predicted

Both are drawn by seed alone, so every rank, and a single process, has the same samples and the same batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

TRAINED, HELD_OUT = 2048, 256
"""Samples to train with, and to measure the accuracy with."""
PIXELS, CLASSES = 16, 10
NOISE = 1.0
"""Standard deviation of the images' noise; that of the patterns is 1."""
SYMBOLS, LENGTH, FOLLOWERS = 64, 32, 4
HEADS = 4


@dataclass(frozen=True)
class Task:
    """A model and its samples.

    layers           the parts of the model that are ``width`` wide: FSDP shards each by itself
    inputs, targets  the first TRAINED are trained with, the others held out
    predictions      of one sample: 1, or the length of a text
    """

    model: nn.Module
    layers: list[nn.Module]
    inputs: torch.Tensor
    targets: torch.Tensor
    predictions: int

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy of the predictions."""
        return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    def accuracy(self, model: nn.Module) -> float:
        """Part of the predictions on held-out samples that are right."""
        with torch.no_grad():
            guessed = model(self.inputs[TRAINED:]).argmax(-1)
        return float((guessed == self.targets[TRAINED:]).double().mean())


def batch(step: int, size: int, seed: int) -> torch.Tensor:
    """Numbers of the samples of a step's batch, of all ranks together."""
    return torch.randint(TRAINED, (size,), generator=torch.Generator().manual_seed(seed * 100_003 + step))


class _Sleep(torch.autograd.Function):  # type: ignore[misc]
    """Returns its input as it is, and takes so many seconds for it in both passes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradients[0], None


def sleeping(task: Task, seconds: float) -> Task:
    """The same task, each of whose layers takes so many seconds longer forward, and again backward, with the processor
    free for the network, as if an accelerator computed it."""
    if seconds:
        for layer in task.layers:
            layer.register_forward_hook(lambda _module, _inputs, output: _Sleep.apply(output, seconds))
    return task


def cnn(width: int, layers: int, seed: int) -> Task:
    """A convolutional network whose hidden layers are ``width`` wide; about width (512 + (layers - 1) width)
    parameters."""
    random = torch.Generator().manual_seed(seed)
    patterns = torch.randn(CLASSES, 1, PIXELS, PIXELS, generator=random)
    targets = torch.randint(CLASSES, (TRAINED + HELD_OUT,), generator=random)
    inputs = patterns[targets] + NOISE * torch.randn(len(targets), 1, PIXELS, PIXELS, generator=random)
    torch.manual_seed(seed)
    convolutions = [
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    ]
    hidden: list[nn.Module] = [nn.Linear(32 * (PIXELS // 4) ** 2, width)]
    hidden += [nn.Linear(width, width) for _ in range(layers - 1)]
    rectified = [part for layer in hidden for part in (layer, nn.ReLU())]
    model = nn.Sequential(*convolutions, *rectified, nn.Linear(width, CLASSES))
    return Task(model, hidden, inputs, targets, 1)


class Transformer(nn.Module):  # type: ignore[misc]
    """A small decoder: embeddings, layers with causal attention, and a linear layer."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, HEADS, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, SYMBOLS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.symbols(text) + self.places(torch.arange(text.shape[1]))
        return self.out(self.layers(x, mask=self.mask, is_causal=True))


def transformer(width: int, layers: int, seed: int) -> Task:
    """A transformer of this width, a multiple of HEADS: about 12 layers width^2 parameters."""
    random = torch.Generator().manual_seed(seed)
    followers = torch.randint(SYMBOLS, (SYMBOLS, FOLLOWERS), generator=random)
    odds = torch.rand(SYMBOLS, FOLLOWERS, generator=random) ** 2 + 0.05
    text = torch.zeros(TRAINED + HELD_OUT, LENGTH + 1, dtype=torch.int64)
    text[:, 0] = torch.randint(SYMBOLS, (len(text),), generator=random)
    for at in range(LENGTH):
        last = text[:, at]
        chosen = torch.multinomial(odds[last], 1, generator=random)
        text[:, at + 1] = followers[last].gather(1, chosen)[:, 0]
    torch.manual_seed(seed)
    model = Transformer(width, layers)
    return Task(model, list(model.layers.layers), text[:, :-1], text[:, 1:], LENGTH)


MODELS: dict[str, Callable[[int, int, int], Task]] = {"cnn": cnn, "transformer": transformer}
