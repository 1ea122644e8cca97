# SPDX-License-Identifier: Apache-2.0
"""The models that `netfold bench train` trains, and their data, which are generated: nothing is downloaded.

    cnn          images of ten classes, 16 x 16 pixels: each class's own pattern under noise
    transformer  text of 64 symbols, each followed by one of four, with odds of their own; the next symbol is predicted

Both are drawn by seed alone, so every rank, and a single process, has the same samples and the same batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

TRAINED, HELD_OUT = 2048, 256
"""Samples to train with, and to measure the accuracy with."""
PIXELS, CLASSES = 16, 10
NOISE = 1.0
"""Standard deviation of the images' noise; that of the patterns is 1."""
SYMBOLS, LENGTH, FOLLOWERS = 64, 32, 4
HEADS, LAYERS = 4, 2


@dataclass(frozen=True)
class Task:
    """A model and its samples.

    inputs, targets  the first TRAINED are trained with, the others held out
    predictions      of one sample: 1, or the length of a text
    """

    model: nn.Module
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


def cnn(width: int, seed: int) -> Task:
    """A convolutional network whose two hidden layers are ``width`` wide, about width (width + 522) parameters."""
    random = torch.Generator().manual_seed(seed)
    patterns = torch.randn(CLASSES, 1, PIXELS, PIXELS, generator=random)
    targets = torch.randint(CLASSES, (TRAINED + HELD_OUT,), generator=random)
    inputs = patterns[targets] + NOISE * torch.randn(len(targets), 1, PIXELS, PIXELS, generator=random)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * (PIXELS // 4) ** 2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, CLASSES),
    )
    return Task(model, inputs, targets, 1)


class Transformer(nn.Module):  # type: ignore[misc]
    """A small decoder: embeddings, LAYERS layers with causal attention, and a linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(SYMBOLS, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, HEADS, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.out = nn.Linear(width, SYMBOLS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.symbols(text) + self.places(torch.arange(text.shape[1]))
        return self.out(self.layers(x, mask=self.mask, is_causal=True))


def transformer(width: int, seed: int) -> Task:
    """A transformer of this width, a multiple of HEADS: about 12 LAYERS width^2 parameters."""
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
    return Task(Transformer(width), text[:, :-1], text[:, 1:], LENGTH)


MODELS: dict[str, Callable[[int, int], Task]] = {"cnn": cnn, "transformer": transformer}
