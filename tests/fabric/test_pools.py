# SPDX-License-Identifier: Apache-2.0
"""Ranges of a register's cells: what is free is found, and nothing twice."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.fabric.pools import Exhausted, Ranges


def is_free(ranges: Ranges, base: int, length: int) -> bool:
    """True if none of these cells is in use, by looking at every range."""
    return all(base + length <= other or other + n <= base for other, n in ranges.ranges.items())


def test_a_range_is_found_wherever_there_is_one() -> None:
    """Between and behind ranges of all lengths, which are released in any order: refused only where no aligned range of
    the next power of two is free."""
    rng = random.Random(1)
    ranges = Ranges(64, "cells")
    refused = 0
    for _ in range(4000):
        if ranges.ranges and rng.random() < 0.45:
            ranges.release(rng.choice(list(ranges.ranges)))
        length = rng.randint(1, 9)
        block = 1 << (length - 1).bit_length()
        free = [base for base in range(0, 64, block) if is_free(ranges, base, block)]
        if free:
            before = dict(ranges.ranges)
            base = ranges.allocate(length)
            assert base in free
            assert dict(ranges.ranges) == {**before, base: length}
        else:
            refused += 1
            with pytest.raises(Exhausted, match=f"no {length} cells in a row, {64 - ranges.used} of 64 are free"):
                ranges.allocate(length)
    assert refused > 100


@given(st.integers(1, 100), st.lists(st.tuples(st.integers(-2, 100), st.integers(1, 40)), max_size=30))
def test_a_given_range_is_taken_where_it_is_free(size: int, wanted: list[tuple[int, int]]) -> None:
    """Ranges of any place and length, as an earlier controller may have left them, in pools of any size; what they
    leave free can be had, and once they are released, all of it."""
    ranges = Ranges(size, "cells")
    for base, length in wanted:
        fits = base >= 0 and base + length <= size and is_free(ranges, base, length)
        assert ranges.take(base, length) == fits
    left = size - ranges.used
    singles = [ranges.allocate(1) for _ in range(left)]
    assert len(set(singles)) == left
    with pytest.raises(Exhausted):
        ranges.allocate(1)
    for base in list(ranges.ranges):
        ranges.release(base)
    assert ranges.used == 0
    assert ranges.allocate(1 << (size.bit_length() - 1)) == 0


def test_small_ranges_leave_large_ones_whole() -> None:
    """Small ranges are placed beside small ones, so that large ones find room."""
    ranges = Ranges(64, "cells")
    first = ranges.allocate(16)
    ranges.allocate(16)
    ranges.allocate(8)
    ranges.release(first)
    assert ranges.allocate(8) == 40
    assert ranges.allocate(16) == 0
