# SPDX-License-Identifier: Apache-2.0
"""What has been back for long enough to be trusted with running jobs again.

Something that comes back and goes away over and over would make every job stand still each time.  So it is *unsteady*
for ``hold`` seconds after its return, and for twice as long after each further return that comes soon after.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable
from typing import Final

MOST: Final = 300.0
"""Seconds that anything is held back at most."""
FORGET: Final = 10
"""Holds without trouble after which a thing starts afresh."""


class Steadiness:
    """Of switches and links, or whatever goes down and comes back.

    hold   seconds after a first return
    clock  seconds
    """

    def __init__(self, hold: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._hold = hold
        self._clock = clock
        self._down: set[Hashable] = set()
        self._back: dict[Hashable, tuple[float, float]] = {}
        """When it came back, and for how long it is held from then."""

    def note(self, down: Collection[Hashable]) -> None:
        """These are down now, and nothing else."""
        now, before = self._clock(), self._down
        self._down = set(down)
        for thing in before - self._down:
            when, held = self._back.get(thing, (0.0, 0.0))
            again = held and now < when + FORGET * held
            self._back[thing] = now, min(MOST, 2 * held) if again else self._hold

    def unsteady(self) -> set[Hashable]:
        """What is up, and not for long enough."""
        now = self._clock()
        return {thing for thing, (when, held) in self._back.items() if now < when + held and thing not in self._down}

    def next(self) -> float | None:
        """Seconds until the next thing is steady again; None where all is that is up."""
        now = self._clock()
        return min((sum(self._back[thing]) - now for thing in self.unsteady()), default=None)
