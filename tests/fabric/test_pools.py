# SPDX-License-Identifier: Apache-2.0
"""Ranges of a register's cells: the lowest that fits."""

from __future__ import annotations

import random

import pytest

from netfold.fabric.pools import Exhausted, Ranges


def lowest(ranges: dict[int, int], size: int, length: int, multiple: int) -> int | None:
    """The same by trying every cell."""
    return next((base for base in range(0, size - length + 1, multiple)
                 if all(base + length <= other or other + n <= base for other, n in ranges.items())), None)


def test_the_lowest_range_that_fits_is_allocated() -> None:
    """Between and behind ranges of all lengths, which are released in any order, at multiples of any number."""
    rng = random.Random(1)
    ranges = Ranges(64, "cells")
    for _ in range(2000):
        if ranges.ranges and rng.random() < 0.4:
            del ranges.ranges[rng.choice(list(ranges.ranges))]
        length, multiple = rng.randint(1, 9), rng.choice([1, 2, 4, 8])
        wanted = lowest(ranges.ranges, 64, length, multiple)
        if wanted is None:
            with pytest.raises(Exhausted, match=f"no {length} cells in a row"):
                ranges.allocate(length, multiple)
        else:
            assert ranges.allocate(length, multiple) == wanted
