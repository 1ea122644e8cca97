# SPDX-License-Identifier: Apache-2.0
"""Tensors of any shapes as one row of elements, cut into equal shards whatever the tensors' sizes.

BytePS (OSDI 2020) names uneven tensors as a reason for which parameter servers lag: whole tensors put on servers leave
one with most of the bytes.  Here cuts go through tensors, so that shards differ by one element at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from netfold.host.collectives.flow import split_evenly
from netfold.host.operation.arrays import Array, Flat, plain

DTYPES: Final = ("float32", "float64")
"""Dtypes of parameters and gradients."""


class Shards:
    """Where each tensor's elements are in the row, and which part of the row each server holds.

    tensors  by name; their values do not matter, only shapes and dtype
    servers  ranks that hold a part, in order
    Raises ValueError for tensors that are none, hold nothing, or are not all of one dtype of ``DTYPES``.
    """

    def __init__(self, tensors: Mapping[str, Array], servers: Sequence[int]) -> None:
        kinds = {name: np.asarray(tensor).dtype for name, tensor in tensors.items()}
        if len(set(kinds.values())) != 1 or str(next(iter(kinds.values()))) not in DTYPES:
            told = ", ".join(f"{name}: {kind}" for name, kind in kinds.items())
            raise ValueError(f"parameters ({told or 'none'}): expected one tensor at least, all float32 or all float64")
        self.dtype: np.dtype[Any] = next(iter(kinds.values()))
        self.shapes = {name: np.shape(tensor) for name, tensor in tensors.items()}
        self._places: dict[str, slice] = {}
        at = 0
        for name, shape in self.shapes.items():
            size = int(np.prod(shape, dtype=np.int64))
            self._places[name] = slice(at, at + size)
            at += size
        if not at:
            raise ValueError(f"parameters of shapes {list(self.shapes.values())}: expected one element at least")
        self.count = at
        """Elements of all tensors."""
        self.held = dict(zip(servers, split_evenly(at, len(servers)), strict=True))
        """The part of each server."""

    def gather(self, tensors: Mapping[str, Array], into: Flat, what: str) -> None:
        """Copies tensors into the row.  Raises ValueError where names, shapes or dtype are not those of the start.

        what  they are, for the message: "gradients"
        """
        self.check(tensors, what)
        for name, place in self._places.items():
            into[place] = np.asarray(tensors[name]).reshape(-1)

    def scatter(self, row: Flat, into: Mapping[str, Array]) -> None:
        """Copies the row back into tensors that ``check`` has seen."""
        for name, place in self._places.items():
            into[name][...] = row[place].reshape(self.shapes[name])

    def check(self, tensors: Mapping[str, Array], what: str) -> None:
        """Raises ValueError as ``gather``, and TypeError for arrays with a mask."""
        if set(tensors) != set(self.shapes):
            unlike = ", ".join(sorted(set(tensors) ^ set(self.shapes)))
            raise ValueError(f"{what}: expected the names of the parameters, differs in {unlike}")
        for name, shape in self.shapes.items():
            found = plain(tensors[name], name)
            if found.shape != shape or found.dtype != self.dtype:
                raise ValueError(f"{what}, {name}: is {found.dtype}{list(found.shape)}: expected "
                                 f"{self.dtype}{list(shape)}, as the parameter")
