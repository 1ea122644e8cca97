# SPDX-License-Identifier: Apache-2.0
"""The overhead of using several rails at once: waking threads, the exchange that ends the call, ranks that share cores.

It starts as Nezha's fixed cost c, and is learned by size from how long split calls take.  Only tensors for which it
matters are considered.  A size that is not split any more yields no measurements, so what was learned of it fades until
it is tried again.
"""

from __future__ import annotations

WEIGHT = 1 / 8
"""Weight of a new call in the moving average."""
FADE = 1 / 256
"""Fraction of the learned values that decays with every exchange of figures, for sizes that were not split
meanwhile."""
STEP = 50e-6
"""Least change of the overhead, in seconds, that changes the shares."""


class SplitOverhead:
    """The learned overhead.  It is the same on every rank, since it depends only on what all ranks have exchanged.

    most  bytes; for longer tensors the initial estimate stays
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._learned: dict[int, float] = {}
        """Size class (bit length of the bytes) -> moving average of the seconds beyond the initial estimate."""
        self._adopted: dict[int, float] = {}
        self._waits: tuple[int, float, float, float] | None = None

    def extra_seconds(self, nbytes: int) -> float:
        """Seconds of overhead beyond the initial estimate; below 0 where it is less."""
        return self._adopted.get(nbytes.bit_length(), 0.0)

    def record_call(self, nbytes: int, longest: float, start: float, alone: float) -> None:
        """Records that a call was split and succeeded; its duration comes with the next exchange.

        longest  predicted seconds of the longest stripe
        start    initial estimate of the overhead in seconds
        alone    predicted seconds on the best single rail: a call that took longer counts as that long
        """
        self._waits = (nbytes, longest, start, alone) if nbytes < self._most else None

    def update(self, took: float | None) -> bool:
        """Takes the duration of the last split call as the ranks have exchanged it, None where there was none.  Returns
        whether the overhead that counts has changed."""
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
