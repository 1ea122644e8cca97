# SPDX-License-Identifier: Apache-2.0
"""Tensors of ranks that time reductions, and how far from exact a reduction of them may be."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from netfold.host.operation.half_precision import HALVES, narrow, widen
from netfold.host.operation.reduction import Reduction

FLOAT32_SUM: Final = Reduction("sum", "float32")
ROUNDING: Final = {"float64": 2.0**-51, "float32": 2.0**-22, "float16": 2.0**-9, "bfloat16": 2.0**-6}
"""Two roundings to a float's precision, relative; integers have none."""


def data(seed: int, rank: int, elements: int, kind: Reduction = FLOAT32_SUM) -> NDArray[Any]:
    """The tensor of a rank, drawn by the seed and the rank: standard normal floats, or integers of -100 to 99 (uint8: 0
    to 9).  Factors of products are 1 to 1.25, and 1 to 3, so that a product of many ranks stays in range."""
    random = np.random.default_rng((seed, rank))
    product = kind.op == "product"
    if kind.element not in ROUNDING:
        low, high = (1, 4) if product else (0, 10) if kind.element == "uint8" else (-100, 100)
        return random.integers(low, high, elements).astype(kind.dtype)
    drawn = random.random(elements, np.float32) if product else random.standard_normal(elements, np.float32)
    if product:
        drawn = 1 + drawn / np.float32(4)
    if kind.element not in HALVES:
        return drawn.astype(kind.dtype)
    halves = np.empty(elements, kind.dtype)
    narrow(drawn, kind.element, halves)
    return halves


def count_wrong(out: NDArray[Any], world: int, seed: int, kind: Reduction = FLOAT32_SUM, lane_bits: int = 32) -> int:
    """Counts the elements that are further from the exact reduction of all ranks' ``data`` than `bound`."""
    if not out.size:
        return 0
    parts = [_numbers(data(seed, rank, out.size, kind), kind.element) for rank in range(world)]
    reduce = {"max": np.maximum, "min": np.minimum, "product": np.multiply}.get(kind.op, np.add)
    exact = parts[0].copy()
    for part in parts[1:]:
        reduce(exact, part, out=exact)
    if kind.element not in ROUNDING:
        return int(np.sum(out != exact.astype(kind.dtype)))  # which wraps, as all integers
    if kind.op == "average":
        exact /= world
    off = np.abs(_numbers(out, kind.element) - exact)
    if kind.op in ("max", "min"):
        return int(np.sum(~(off == 0)))
    if kind.op == "product":
        return int(np.sum(~(off <= world * ROUNDING[kind.element] * exact)))
    largest = float(max(np.abs(part).max() for part in parts))
    return int(np.sum(~(off <= bound(world, lane_bits, largest, kind.element))))


def bound(world: int, lane_bits: int, largest: float, element: str = "float32") -> float:
    """How far a sum of ``world`` ranks may be off.

    Each rank rounds by up to one step of a lane that leaves room for the sum, and the sum itself has the precision of
    its elements (docs/host.md).  ``largest`` is the greatest magnitude of any element.
    """
    room = max(0, (world - 1).bit_length())
    step = 0.0 if element == "float64" else 2.0 ** (room + 2 - lane_bits) * 2 * largest
    return world * (step + largest * ROUNDING[element])


def _numbers(array: NDArray[Any], element: str) -> NDArray[Any]:
    """The elements as float64, or as int64."""
    if element in HALVES:
        array = widen(array, element)
    return array.astype(np.float64 if element in ROUNDING else np.int64)
