# SPDX-License-Identifier: Apache-2.0
"""Maxima and minima of floats by integers: the same bits in any order of ranks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from netfold.host.errors import RankMismatch
from netfold.host.exact.order import select_exactly
from netfold.host.operation.half_precision import widen
from netfold.host.operation.reduction import ReduceOp, Reduction

STRANGE = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -1.5, 5e-324, 1e-40, -1e-40, 65504.0, -65504.0]


def select(arrays: list[NDArray[Any]], op: ReduceOp, element: str) -> NDArray[Any]:
    """The result of the first rank; the others' integers are those that they pass on."""
    others: list[NDArray[Any]] = []
    for array in arrays:
        with_it = others[:]

        def collective(
            words: NDArray[Any], how: str, stage: str, check: Any = None, others: list[NDArray[Any]] = with_it
        ) -> None:
            others.append(words.copy())
            words[...] = np.max(others, axis=0) if how == "max" else np.min(others, axis=0)
            check()

        out = np.empty_like(array)
        select_exactly(array, out, Reduction(op, element), collective)
        others = with_it
    return out


@pytest.mark.parametrize("element", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("op", ["max", "min"])
def test_the_greater_of_any_two_is_the_same_either_way_round(op: ReduceOp, element: str) -> None:
    """Every pair of strange floats has one result: a NaN where either is one, -0 below +0, else what numpy says."""
    pairs = np.array(list(itertools.product(STRANGE, STRANGE)))
    half = element == "bfloat16"
    with np.errstate(all="ignore"):
        first, second = (np.ascontiguousarray(column).astype(np.float32 if half else element) for column in pairs.T)
    one, other = first, second
    if half:
        one, other = ((array.view(np.uint32) >> 16).astype(np.uint16) for array in (first, second))
        first, second = widen(one, element), widen(other, element)
    wanted = np.maximum(first, second) if op == "max" else np.minimum(first, second)
    zeros = (first == 0) & (second == 0)
    negative = np.signbit(first) & np.signbit(second) if op == "max" else np.signbit(first) | np.signbit(second)
    got = select([one, other], op, element)
    assert got.tobytes() == select([other, one], op, element).tobytes()
    wide = widen(got, element) if half else got
    np.testing.assert_array_equal(wide, wanted)
    assert (np.signbit(wide[zeros]) == negative[zeros]).all()


def test_ranks_that_select_different_things_are_told_so() -> None:
    """float16 and float32 are the same integers, and yet no maximum of each other."""
    words: list[NDArray[Any]] = []

    def collective(mine: NDArray[Any], how: str, stage: str, check: Any = None) -> None:
        words.append(mine.copy())
        mine[...] = np.max(words, axis=0)
        check()

    select_exactly(np.ones(4, np.float32), np.empty(4, np.float32), Reduction("max", "float32"), collective)
    with pytest.raises(RankMismatch, match="max of float32 to max of float16"):
        select_exactly(np.ones(4, np.float16), np.empty(4, np.float16), Reduction("max", "float16"), collective)
