# SPDX-License-Identifier: Apache-2.0
"""Pools of what switches have a limited number of: numbers that are handed out in a cycle or at random, and ranges of
the cells of a register."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Final, Protocol

SLOTS: Final = 16384
"""Slots of one switch: SLOTS of p4src/sizes.p4."""
DRAWS: Final = 64
"""Random draws of a number before free numbers are searched one by one."""
RESTING: Final = 1 << 16
"""Released connections that are not drawn again yet: those of some thousand jobs, whose last packets have long left the
network."""


class Exhausted(Exception):
    """The switches cannot take a job: slots or numbers are exhausted; the message says which, where, and how many.

    Remedy: end jobs that are no longer needed (`netfold status`, `netfold drop`), or let jobs have smaller windows.
    Until slots are free, this job uses TCP if its hosts can.
    """


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers as ranges: first number and length of each run of neighbours, in ascending order."""
    found: list[tuple[int, int]] = []
    first = after = 0
    for number in sorted(numbers):
        if number != after and after > first:
            found.append((first, after - first))
        first, after = first if number == after > first else number, number + 1
    if after > first:
        found.append((first, after - first))
    return found


class NumberPool(Protocol):
    """Numbers of one kind, of which some are in use."""

    def release(self, number: int) -> None:
        """Takes a number back."""


@dataclass(eq=False)
class Cycle:
    """Hands out the numbers low..high in a cycle, so that a released number is reused as late as possible."""

    low: int
    high: int
    next: int
    used: set[int] = field(default_factory=set)

    def allocate(self, what: str) -> int:
        """An unused number.  Raises Exhausted."""
        size = self.high - self.low + 1
        if len(self.used) < size:
            for _ in range(size):
                number, self.next = self.next, self._after(self.next)
                if number not in self.used:
                    self.used.add(number)
                    return number
        raise Exhausted(f"all {size} {what} are in use")

    def take(self, number: int) -> bool:
        """Mark a number as used.  Returns False if it was already."""
        new = number not in self.used
        self.used.add(number)
        return new

    def release(self, number: int) -> None:
        """Takes a number back."""
        self.used.discard(number)

    def _after(self, number: int) -> int:
        return self.low if number == self.high else number + 1


class RandomPool:
    """Hands out the numbers low..high at random, so that nobody can tell which are in use, and a released one not
    before ``RESTING`` others have been released after it, or half of the numbers."""

    def __init__(self, low: int, high: int, rng: random.Random) -> None:
        self.low, self.high = low, high
        self._rng = rng
        self._used: set[int] = set()
        self._resting: dict[int, None] = {}  # in the order of their release

    def allocate(self, what: str) -> int:
        """An unused number; where all others are in use, the one that was released first.  Raises Exhausted."""
        bits = (self.high - self.low).bit_length()
        for _ in range(DRAWS):
            number = self.low + self._rng.getrandbits(bits)
            if number <= self.high and number not in self._used and number not in self._resting:
                break
        else:
            numbers = range(self.low, self.high + 1)
            number = next(self._scarce(numbers), -1)
            if number < 0:
                raise Exhausted(f"all {len(numbers)} {what} are in use")
        self._resting.pop(number, None)
        self._used.add(number)
        return number

    def take(self, number: int) -> bool:
        """Mark a number as used.  Returns False if it was already."""
        new = number not in self._used
        self._used.add(number)
        self._resting.pop(number, None)
        return new

    def _scarce(self, numbers: range) -> Iterator[int]:
        """The numbers that are left, the best ones first, where few are."""
        begin = self._rng.randrange(max(1, len(numbers)))
        for number in chain(numbers[begin:], numbers[:begin]):
            if number not in self._used and number not in self._resting:
                yield number
        yield from self._resting

    def release(self, number: int) -> None:
        """Takes a number back."""
        self._used.discard(number)
        self._resting[number] = None
        if len(self._resting) > min(RESTING, (self.high - self.low + 1) // 2):
            del self._resting[next(iter(self._resting))]


class Ranges:
    """Allocates ranges of the cells of one register of one switch, by the buddy system (Knowlton, 1965): what is free
    is kept as aligned blocks of powers of two, and a range comes from the lowest of the smallest that have room for it.

    what  the cells are, for messages
    """

    def __init__(self, size: int, what: str) -> None:
        self.size = size
        self.what = what
        self.used = 0
        """Number of allocated cells."""
        self._lengths: dict[int, int] = {}
        """The allocated ranges' lengths, by first cell."""
        self._free: list[set[int]] = [set() for _ in range(size.bit_length())]
        """First cells of the free blocks of 1, 2, 4, ... cells; no two of them make up a block of the next size."""
        for first, order in _blocks(0, size):
            self._free[order].add(first)

    @property
    def ranges(self) -> Mapping[int, int]:
        """The allocated ranges: length by first cell."""
        return MappingProxyType(self._lengths)

    def allocate(self, length: int) -> int:
        """Allocate a range of at least one cell, and return its first one: a multiple of the next power of two.  Raises
        Exhausted."""
        wanted = order = (length - 1).bit_length()
        while order < len(self._free) and not self._free[order]:
            order += 1
        if order >= len(self._free):
            raise Exhausted(f"no {length} {self.what} in a row, {self.size - self.used} of {self.size} are free in all")
        base = min(self._free[order])
        self._split(base, base, order, wanted)
        for block in _blocks(base + length, base + (1 << wanted)):
            self._join(*block)
        self._lengths[base] = length
        self.used += length
        return base

    def take(self, base: int, length: int) -> bool:
        """Allocate this range.  Returns False, and allocates nothing, if any of its cells is in use."""
        wanted = list(_blocks(base, base + length))
        if base < 0 or base + length > self.size or not all(self._around(*block) for block in wanted):
            return False
        for block in wanted:
            self._cut(*block)
        self._lengths[base] = length
        self.used += length
        return True

    def release(self, number: int) -> None:
        """Free the allocated range that begins at this cell."""
        length = self._lengths.pop(number)
        self.used -= length
        for block in _blocks(number, number + length):
            self._join(*block)

    def _around(self, first: int, order: int) -> tuple[int, int] | None:
        """The free block in which a block lies; None where cells of it are in use."""
        return next(((first >> larger << larger, larger) for larger in range(order, len(self._free))
                     if first >> larger << larger in self._free[larger]), None)

    def _cut(self, first: int, order: int) -> None:
        """Take a block out of the free one in which it lies, whose other parts stay free."""
        around = self._around(first, order)
        assert around is not None
        self._split(first, *around, order)

    def _split(self, first: int, base: int, larger: int, order: int) -> None:
        """The same for a block, and the free one."""
        self._free[larger].remove(base)
        while larger > order:
            larger -= 1
            self._free[larger].add((first >> larger ^ 1) << larger)

    def _join(self, first: int, order: int) -> None:
        """Free a block, together with those beside it that are free."""
        while (buddy := first ^ 1 << order) in self._free[order]:
            self._free[order].remove(buddy)
            first, order = min(first, buddy), order + 1
        self._free[order].add(first)


class Slots(Ranges):
    """Allocates the slots of one switch; ranges are powers of two, since a slot is base + (PSN & mask)."""

    def __init__(self, size: int = SLOTS) -> None:
        super().__init__(size, "slots")

    def allocate(self, length: int) -> int:
        """Allocate a range and return its first slot.  Raises Exhausted."""
        if length < 1 or length & (length - 1):
            raise ValueError(f"slots: expected a power of two, got {length}")
        return super().allocate(length)


def _blocks(low: int, high: int) -> Iterator[tuple[int, int]]:
    """The aligned blocks of powers of two that make up the cells low..high-1, the fewest: first cell and exponent."""
    while low < high:
        order = (high - low).bit_length() - 1
        if low:
            order = min(order, (low & -low).bit_length() - 1)
        yield low, order
        low += 1 << order
