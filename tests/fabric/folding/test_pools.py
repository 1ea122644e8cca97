# SPDX-License-Identifier: Apache-2.0
"""Ranges of cells and numbers: what is free is found, nothing twice, and what was given back as late as possible."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.fabric.folding.pools import Cycle, Exhausted, RandomPool, Ranges, Slots, runs


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


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8)), max_size=60))
def test_slot_ranges_are_aligned_and_disjoint(steps: list[tuple[bool, int]]) -> None:
    """Whatever is taken and given back: ranges are aligned powers of two that no two holders share."""
    pool = Slots(256)
    for give_back, number in steps:
        if give_back and pool.ranges:
            pool.release(sorted(pool.ranges)[number % len(pool.ranges)])
            continue
        length = 1 << number
        free = [base for base in range(0, 256, length)
                if not any(b < base + length and base < b + n for b, n in pool.ranges.items())]
        if free:
            assert pool.allocate(length) in free
        else:
            with pytest.raises(Exhausted, match=f"{256 - pool.used} of 256"):
                pool.allocate(length)
    cells = [cell for base, length in pool.ranges.items() for cell in range(base, base + length)]
    assert len(cells) == len(set(cells)) == pool.used
    assert not cells or max(cells) < 256


def test_slots_are_not_wasted() -> None:
    """All slots can be handed out, and given back."""
    pool = Slots(64)
    assert [pool.allocate(16) for _ in range(4)] == [0, 16, 32, 48]
    with pytest.raises(Exhausted, match="no 16 slots in a row, 0 of 64 are free"):
        pool.allocate(16)
    with pytest.raises(ValueError, match="power of two"):
        pool.allocate(3)


@given(st.lists(st.booleans(), max_size=60))
def test_numbers_come_back_as_late_as_possible(steps: list[bool]) -> None:
    """A number in use is never handed out, and one given back waits for the others."""
    circle = Cycle(1, 5, 3)
    held: list[int] = []
    for take in steps:
        if take and len(held) < 5:
            number = circle.allocate("things")
            assert number not in held
            held.append(number)
        elif take:
            with pytest.raises(Exhausted, match="all 5 things are in use"):
                circle.allocate("things")
        elif held:
            circle.used.discard(held.pop(0))
    fresh = Cycle(1, 3, 2)
    order = []
    for _ in range(6):
        order.append(fresh.allocate("things"))
        fresh.used.clear()
    assert order == [2, 3, 1, 2, 3, 1]


def test_a_number_that_is_taken_while_it_rests_is_not_handed_out() -> None:
    """As those are that a switch still holds for an adopted job: not even where all others are in use."""
    pool = RandomPool(1, 4, random.Random(1))
    for _ in range(4):
        pool.allocate("things")
    for number in (2, 3):
        pool.release(number)
    assert pool.take(2)
    assert not pool.take(2)
    assert pool.allocate("things") == 3
    with pytest.raises(Exhausted, match="all 4 things are in use"):
        pool.allocate("things")


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 2**32))
def test_connections_are_drawn_at_random_and_never_early_again(steps: list[bool], seed: int) -> None:
    """A number in use is never handed out, one that was released not before half of all were, unless no other is
    left."""
    pool = RandomPool(1, 20, random.Random(seed))
    held: list[int] = []
    resting: list[int] = []
    for take in steps:
        if not take:
            if held:
                pool.release(held[0])
                resting = [*resting, held.pop(0)][-10:]
        elif len(held) == 20:
            with pytest.raises(Exhausted, match="all 20 things are in use"):
                pool.allocate("things")
        else:
            number = pool.allocate("things")
            assert 1 <= number <= 20
            assert number not in held
            if len(held) + len(resting) < 20:
                assert number not in resting
            else:
                assert number == resting[0], "the one released first"
            resting = [one for one in resting if one != number]
            held.append(number)


@given(st.sets(st.integers(0, 60)))
def test_runs_are_the_numbers(numbers: set[int]) -> None:
    """Runs cover the numbers, and no two of them touch."""
    found = runs(numbers)
    assert [number for first, length in found for number in range(first, first + length)] == sorted(numbers)
    assert all(a + length < b for (a, length), (b, _) in itertools.pairwise(found))
