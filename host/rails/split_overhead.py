# SPDX-License-Identifier: Apache-2.0
"""What it costs to use several rails at once, besides their ranges: threads that wake, the exchange that ends the call,
ranks that share cores.  It begins as Nezha's fixed cost c, and is learned from what cut calls take, by size.

Only tensors for which it matters are looked at.  A size that is not cut any more tells nothing: what was learned of it
fades, so that it is tried again.
"""

from __future__ import annotations

WEIGHT = 1 / 8
"""Of a new call beside all before."""
FADE = 1 / 256
"""Part of what was learned that is forgotten with every exchange of figures, of sizes that were not cut meanwhile."""
STEP = 50e-6
"""Seconds by which the cost must have moved for shares to follow."""


class SplitOverhead:
    """The same on every rank: it hears only what all ranks know.

    most  bytes; longer tensors keep the cost that they began with
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._learned: dict[int, float] = {}
        """Seconds beyond the beginning, by the power of two of the bytes: a moving average."""
        self._adopted: dict[int, float] = {}
        self._waits: tuple[int, float, float, float] | None = None

    def extra_seconds(self, nbytes: int) -> float:
        """Seconds that joining takes beyond what it began with, below 0 where it takes less."""
        return self._adopted.get(nbytes.bit_length(), 0.0)

    def record_call(self, nbytes: int, longest: float, start: float, alone: float) -> None:
        """A call was cut and ended well; what it took is told with the next exchange.

        longest  predicted seconds of the longest range
        start    seconds of joining in the beginning
        alone    predicted seconds on the best single rail: a call that took longer counts as that long
        """
        self._waits = (nbytes, longest, start, alone) if nbytes < self._most else None

    def update(self, took: float | None) -> bool:
        """The ranks have told what the last cut call took, None where there was none.  Says whether costs moved."""
        size = None
        if self._waits is not None and took is not None:
            nbytes, longest, start, alone = self._waits
            size = nbytes.bit_length()
            before = self._learned.get(size, 0.0)
            self._learned[size] = before + WEIGHT * (max(0.0, min(took, alone) - longest) - start - before)
        self._waits = None
        for other in self._learned:
            if other != size:
                self._learned[other] *= 1 - FADE
        moved = {s: v for s, v in self._learned.items() if abs(v - self._adopted.get(s, 0.0)) > STEP}
        self._adopted |= moved
        return bool(moved)
