# SPDX-License-Identifier: Apache-2.0
"""Error feedback for a model: the parts of each parameter's gradients that narrow lanes have dropped so far, which are
added to its next gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.weak import WeakIdKeyDictionary

Residual = NDArray[np.float32]


class Feedback:
    """The residuals of a model whose gradients come in buckets, in the same layout.

    on_host  they are on the CPU, wherever the parameters are
    """

    def __init__(self, *, on_host: bool = False) -> None:
        self._on_host = on_host
        self._buckets: dict[int, torch.Tensor] = {}
        self._places = WeakIdKeyDictionary()
        """Parameter -> its bucket's residuals, and the index where the parameter begins there."""

    def of_bucket(self, index: int, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """The residual of a bucket, float32[elements of its parameters].  DistributedDataParallel changes its buckets
        after the first step; each parameter's part then moves with it."""
        starts = [0, *accumulate(parameter.numel() for parameter in parameters)]
        whole = self._buckets.get(index)
        places = [self._places.get(parameter, (None, 0)) for parameter in parameters]
        known = all(array is whole and at == start for (array, at), start in zip(places, starts[:-1], strict=True))
        if whole is not None and whole.numel() == starts[-1] and known:
            return whole
        fresh = torch.zeros(starts[-1], device=self._place(parameters[0]))
        for parameter, (array, at), start in zip(parameters, places, starts[:-1], strict=True):
            if array is not None:
                fresh[start : start + parameter.numel()] = array[at : at + parameter.numel()]
            self._places[parameter] = fresh, start
        self._buckets[index] = fresh
        return fresh

    def save(self, parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies of the residuals, float32 in each parameter's shape, by its name; for parameters that have had
        gradients."""
        found = {name: self._places[parameter] for name, parameter in parameters.items() if parameter in self._places}
        return {
            name: array[start : start + parameters[name].numel()].to("cpu", copy=True).view(parameters[name].shape)
            for name, (array, start) in found.items()
        }

    def load(self, parameters: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor]) -> None:
        """Loads the residuals that ``save`` returned.  Raises ValueError for names or shapes that are not these
        parameters'."""
        for name, tensor in saved.items():
            if name not in parameters:
                raise ValueError(f"residual of {name!r}: no parameter of this model that wants gradients")
            residual = torch.from_numpy(as_residual(tensor, parameters[name], name))
            self._places[parameters[name]] = residual.to(self._place(parameters[name])), 0

    def _place(self, parameter: torch.Tensor) -> torch.device:
        return torch.device("cpu") if self._on_host else parameter.device


def as_tensor(residual: Residual, parameter: torch.Tensor) -> torch.Tensor:
    """A copy of a residual in the parameter's shape."""
    return torch.from_numpy(residual.copy()).view(parameter.shape)


def as_residual(saved: torch.Tensor, parameter: torch.Tensor, name: str) -> Residual:
    """A saved tensor as a flat residual.  Raises ValueError for another shape or dtype."""
    if saved.shape != parameter.shape or saved.dtype != torch.float32:
        raise ValueError(
            f"residual of {name!r} is {saved.dtype} of {tuple(saved.shape)}: expected float32 of "
            f"{tuple(parameter.shape)}"
        )
    residual: Residual = saved.detach().cpu().numpy().reshape(-1).copy()
    return residual
