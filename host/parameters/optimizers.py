# SPDX-License-Identifier: Apache-2.0
"""The optimizers that run where parameters are held, element by element: shards and the whole give the same bits.

The formulas are torch.optim's, in numpy and in the parameters' dtype; the state (momentum, moments) exists for the
server's own part alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import isfinite

import numpy as np

from netfold.host.operation.arrays import Flat


class ShardOptimizer(ABC):
    """One server's optimizer: its part of the parameters is updated in pieces, each once a step."""

    def __init__(self) -> None:
        self.steps = 0
        """Steps begun."""

    def begin(self) -> None:
        """Begins the next step."""
        self.steps += 1

    @abstractmethod
    def update(self, parameters: Flat, gradient: Flat, piece: slice) -> None:
        """Changes ``parameters``, the elements ``piece`` of the part, by their gradient, which is used up."""


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent, as torch.optim.SGD.

    momentum      0: none
    nesterov      look ahead by the momentum, which must be above 0 then
    weight_decay  of the parameters, added to the gradient
    Raises ValueError for values that make no sense.
    """

    learning_rate: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _not_below_zero(self, "learning_rate", "momentum", "weight_decay")
        if self.nesterov and not self.momentum:
            raise ValueError(f"{self}: nesterov needs a momentum above 0")

    def start(self, shard: Flat) -> ShardOptimizer:
        """An optimizer for a part of the parameters."""
        return _SgdShard(self, shard)


class _SgdShard(ShardOptimizer):
    def __init__(self, how: Sgd, shard: Flat) -> None:
        super().__init__()
        self._how = how
        self._velocity = np.zeros_like(shard) if how.momentum else None

    def update(self, parameters: Flat, gradient: Flat, piece: slice) -> None:
        how, kind = self._how, parameters.dtype.type
        if how.weight_decay:
            gradient += kind(how.weight_decay) * parameters
        if self._velocity is not None:
            velocity = self._velocity[piece]
            velocity *= kind(how.momentum)
            velocity += gradient
            gradient = gradient + kind(how.momentum) * velocity if how.nesterov else velocity
        parameters -= kind(how.learning_rate) * gradient


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015) with corrected moments, as torch.optim.Adam.

    Raises ValueError for values that make no sense.
    """

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _not_below_zero(self, "learning_rate", "beta1", "beta2", "epsilon", "weight_decay")
        if max(self.beta1, self.beta2) >= 1:
            raise ValueError(f"{self}: expected beta1 and beta2 below 1")

    def start(self, shard: Flat) -> ShardOptimizer:
        """An optimizer for a part of the parameters."""
        return _AdamShard(self, shard)


class _AdamShard(ShardOptimizer):
    def __init__(self, how: Adam, shard: Flat) -> None:
        super().__init__()
        self._how = how
        self._first, self._second = np.zeros_like(shard), np.zeros_like(shard)

    def update(self, parameters: Flat, gradient: Flat, piece: slice) -> None:
        how, kind = self._how, parameters.dtype.type
        if how.weight_decay:
            gradient += kind(how.weight_decay) * parameters
        first, second = self._first[piece], self._second[piece]
        first += kind(1 - how.beta1) * (gradient - first)
        second *= kind(how.beta2)
        second += kind(1 - how.beta2) * gradient * gradient
        divisor = np.sqrt(second)
        divisor /= kind((1 - how.beta2**self.steps) ** 0.5)
        divisor += kind(how.epsilon)
        parameters -= kind(how.learning_rate / (1 - how.beta1**self.steps)) * (first / divisor)


Optimizer = Sgd | Adam


def _not_below_zero(optimizer: Optimizer, *names: str) -> None:
    for name in names:
        value = getattr(optimizer, name)
        if not isfinite(value) or value < 0:
            raise ValueError(f"{type(optimizer).__name__}: {name}={value}: expected a number of 0 or more")
