# SPDX-License-Identifier: Apache-2.0
"""Layers of networks that papers train: parameters and multiplications of each, computed from the architecture.

AlexNet, VGG-16 and ResNet-50 are torchvision's, for images of 224 x 224 and 1,000 classes; BERT is Devlin et al.'s.  A
layer here is what has weights, with its bias, and with the normalisation behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

CLASSES: Final = 1000


@dataclass(frozen=True)
class Layer:
    """One layer, of one sample."""

    name: str
    parameters: int
    macs: int
    """Multiplications with additions on the way forward; the way back has twice as many."""


@dataclass(frozen=True)
class TrainedNet:
    """Layers in forward order."""

    name: str
    layers: tuple[Layer, ...]
    batch: int
    """Default number of samples of one GPU in a step."""

    @property
    def parameters(self) -> int:
        """Parameters of all layers."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def macs(self) -> int:
        """Multiplications of one sample on the way forward."""
        return sum(layer.macs for layer in self.layers)


def convolution(name: str, inputs: int, outputs: int, kernel: int, side: int, *, norm: bool = False) -> Layer:
    """A convolution to ``side`` x ``side`` places; with a bias, or with a batch normalisation instead."""
    weights = inputs * outputs * kernel**2
    return Layer(name, weights + outputs * (2 if norm else 1), weights * side**2)


def dense(name: str, inputs: int, outputs: int) -> Layer:
    """A matrix and its bias."""
    return Layer(name, inputs * outputs + outputs, inputs * outputs)


def alexnet() -> TrainedNet:
    """AlexNet, in one tower."""
    layers = [convolution("conv1", 3, 64, 11, 55), convolution("conv2", 64, 192, 5, 27),
              convolution("conv3", 192, 384, 3, 13), convolution("conv4", 384, 256, 3, 13),
              convolution("conv5", 256, 256, 3, 13), dense("fc6", 256 * 6 * 6, 4096), dense("fc7", 4096, 4096),
              dense("fc8", 4096, CLASSES)]
    return TrainedNet("AlexNet", tuple(layers), 128)


def vgg16() -> TrainedNet:
    """VGG-16, configuration D."""
    layers, inputs, side = [], 3, 224
    for block, (outputs, times) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), 1):
        for turn in range(1, times + 1):
            layers.append(convolution(f"conv{block}.{turn}", inputs, outputs, 3, side))
            inputs = outputs
        side //= 2
    layers += [dense("fc6", 512 * side**2, 4096), dense("fc7", 4096, 4096), dense("fc8", 4096, CLASSES)]
    return TrainedNet("VGG-16", tuple(layers), 32)


def resnet50() -> TrainedNet:
    """ResNet-50, whose blocks halve the picture in their second convolution."""
    layers, inputs, side = [convolution("conv1", 3, 64, 7, 112, norm=True)], 64, 56
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 1 else 1
            name, out = f"stage{stage}.{block}", side // stride
            layers += [convolution(f"{name}.1", inputs, width, 1, side, norm=True),
                       convolution(f"{name}.2", width, width, 3, out, norm=True),
                       convolution(f"{name}.3", width, 4 * width, 1, out, norm=True)]
            if block == 0:
                layers.append(convolution(f"{name}.shortcut", inputs, 4 * width, 1, out, norm=True))
            inputs, side = 4 * width, out
    return TrainedNet("ResNet-50", (*layers, dense("fc", inputs, CLASSES)), 32)


def bert(name: str, depth: int, hidden: int, batch: int, *, words: int = 30_522, tokens: int = 128) -> TrainedNet:
    """BERT's encoder, with sequences of ``tokens``, and its pooler."""
    layers = [Layer("embeddings", (words + 512 + 2 + 2) * hidden, 0)]
    attention, mlp = 4 * hidden**2, 8 * hidden**2
    for number in range(depth):
        layers += [Layer(f"attention{number}", attention + 6 * hidden, tokens * (attention + 2 * tokens * hidden)),
                   Layer(f"mlp{number}", mlp + 7 * hidden, tokens * mlp)]
    return TrainedNet(name, (*layers, dense("pooler", hidden, hidden)), batch)


NETWORKS: Final[dict[str, Callable[[], TrainedNet]]] = {
    "AlexNet": alexnet,
    "VGG-16": vgg16,
    "ResNet-50": resnet50,
    "BERT-base": lambda: bert("BERT-base", 12, 768, 32),
    "BERT-large": lambda: bert("BERT-large", 24, 1024, 16),
}
