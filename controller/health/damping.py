# SPDX-License-Identifier: Apache-2.0
"""Flap damping: a switch or link that has come back is not used for running jobs before it has stayed up for a while.

Otherwise something that goes down and up over and over would halt every job each time.  It is *suppressed* for ``hold``
seconds after it has come back, and for twice as long each further time that follows soon after (compare RFC 2439).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable
from typing import Final

MAX_HOLD: Final = 300.0
"""Longest hold, in seconds."""
RESET_AFTER: Final = 10
"""Number of holds without a failure after which the next hold is a first one again."""


class FlapDamping:
    """Damps switches and links, by any hashable names.

    hold   seconds of suppression after the first recovery
    clock  monotonic seconds
    """

    def __init__(self, hold: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._hold = hold
        self._clock = clock
        self._down: set[Hashable] = set()
        self._back: dict[Hashable, tuple[float, float]] = {}
        """Time of the last recovery, and seconds of suppression from then."""

    def update(self, down: Collection[Hashable]) -> None:
        """Take note of everything that is down now."""
        now, before = self._clock(), self._down
        self._down = set(down)
        for thing in before - self._down:
            when, held = self._back.get(thing, (0.0, 0.0))
            again = held and now < when + RESET_AFTER * held
            self._back[thing] = now, min(MAX_HOLD, 2 * held) if again else self._hold

    def suppressed(self) -> set[Hashable]:
        """Parts that are up, but have not been up for long enough."""
        now = self._clock()
        return {thing for thing, (when, held) in self._back.items() if now < when + held and thing not in self._down}

    def unsteady(self) -> set[Hashable]:
        """Parts that are suppressed, and parts that were down at the last `update`: if one has come back since, its
        suppression begins with the next update."""
        return self._down | self.suppressed()

    def next_release(self) -> float | None:
        """Seconds until the next suppression ends; None if nothing is suppressed."""
        now = self._clock()
        return min((sum(self._back[thing]) - now for thing in self.suppressed()), default=None)
