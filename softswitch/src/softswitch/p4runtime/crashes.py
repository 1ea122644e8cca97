# SPDX-License-Identifier: Apache-2.0
"""Bounds how often a program whose process dies is started again.

The first death of a program costs no wait: whoever pushes it again has it back at once.  A process that dies within
QUICK seconds of its start makes the next start of the same program wait, each time longer.  Another program may start
at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from softswitch.engine.errors import Unavailable

QUICK = 10.0
"""Seconds within which a death counts as one of a series."""
WAITS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds from a death to the next start, by the number of deaths in the series; the last one repeats."""


class Crashes:
    """The deaths of the program that died last."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._executable: Path | None = None
        self._deaths = 0
        self._until = 0.0
        self._why = ""

    def died(self, executable: Path, lived: float, why: str) -> None:
        """Notes that a process of this program died after so many seconds."""
        goes_on = executable == self._executable and lived < QUICK
        self._executable, self._why = executable, why
        self._deaths = self._deaths + 1 if goes_on else 1
        self._until = self.clock() + WAITS[min(self._deaths, len(WAITS)) - 1]

    def wait(self, executable: Path) -> float:
        """Seconds until this program may start again."""
        return max(0.0, self._until - self.clock()) if executable == self._executable else 0.0

    def check(self, executable: Path) -> None:
        """Raises Unavailable while this program may not start."""
        left = self.wait(executable)
        if left > 0:
            raise Unavailable(
                f"this program's process died {self._deaths} times, each within {QUICK:g} s of its start: it may be "
                f"pushed again in {left:.1f} s, another program at once; the last death: {self._why}"
            )
