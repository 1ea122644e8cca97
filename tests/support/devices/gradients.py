# SPDX-License-Identifier: Apache-2.0
"""A stand-in for what DistributedDataParallel gives its hook."""

from __future__ import annotations

import torch
from torch import nn


class Gradients:
    """A bucket of DistributedDataParallel's."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self._buffer = buffer
        self._parameters = [nn.Parameter(torch.zeros_like(buffer))]

    def index(self) -> int:
        return 0

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def parameters(self) -> list[nn.Parameter]:
        return self._parameters
