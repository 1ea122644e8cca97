# SPDX-License-Identifier: Apache-2.0
"""Pools of what switches have a limited number of: numbers that are handed out in a cycle or at random, and ranges of
the cells of a register."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

SLOTS: Final = 16384
"""Slots of one switch: SLOTS of p4src/sizes.p4."""
DRAWS: Final = 64
"""Random draws of a number before the free ones are looked for one by one."""
RESTING: Final = 1 << 16
"""Released connections that are not drawn again yet: those of some thousand jobs, whose last packets are long gone."""


class Exhausted(Exception):
    """The switches cannot take a job: slots or numbers are exhausted; the message says which, where, and how many.

    Remedy: end jobs that are no longer needed (`netfold status`, `netfold drop`), or let jobs have smaller windows;
    this one goes over TCP, where the hosts have it, until slots are free.
    """


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers as ranges: first number and length of each run of neighbours, in ascending order."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and sum(found[-1]) == number:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((number, 1))
    return found


@dataclass
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
        numbers = range(self.low, self.high + 1)
        for _ in range(DRAWS):
            number = self._rng.choice(numbers)
            if number not in self._used and number not in self._resting:
                break
        else:
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


@dataclass
class Ranges:
    """Allocates ranges of the cells of one register of one switch, the lowest free ones first."""

    size: int
    what: str
    """What the cells are, for messages."""
    ranges: dict[int, int] = field(default_factory=dict)
    """Allocated ranges: length by first cell."""

    @property
    def used(self) -> int:
        """Number of allocated cells."""
        return sum(self.ranges.values())

    def allocate(self, length: int, multiple: int = 1) -> int:
        """Allocate a range whose first cell is a multiple of a number, and return that.  Raises Exhausted."""
        base = 0
        for taken in sorted(self.ranges):
            if base + length <= taken:
                break
            base = -(-(taken + self.ranges[taken]) // multiple) * multiple
        if base + length <= self.size:
            self.ranges[base] = length
            return base
        raise Exhausted(f"no {length} {self.what} in a row, {self.size - self.used} of {self.size} are free in all")

    def take(self, base: int, length: int) -> bool:
        """Allocate this range.  Returns False, and allocates nothing, if any of its cells is in use."""
        if any(b < base + length and base < b + n for b, n in self.ranges.items()):
            return False
        self.ranges[base] = length
        return True


@dataclass
class Slots(Ranges):
    """Allocates the slots of one switch; ranges are aligned powers of two, since a slot is base + (PSN & mask)."""

    size: int = SLOTS
    what: str = "slots"

    def allocate(self, length: int, multiple: int | None = None) -> int:
        """Allocate a range and return its first slot.  Raises Exhausted."""
        if length < 1 or length & (length - 1):
            raise ValueError(f"slots: expected a power of two, got {length}")
        return super().allocate(length, multiple or length)
