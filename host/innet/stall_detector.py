# SPDX-License-Identifier: Apache-2.0
"""Streams to which repeats bring nothing: another rank is late, or something of the trees is gone.

A rank cannot tell which, the controller can (its ``Suspect`` probes the trees' links); not every switch tells it when a
port goes down.  So it is asked soon, and ever more rarely while that helps nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SOON: Final = 100_000_000
"""Nanoseconds without a result that are suspicious: two of the longest time-outs (NF_RTO_MOST of native/rtt.h)."""
RARELY: Final = 1_600_000_000
"""Nanoseconds between two suspicions at most: what breaks while everybody waits for a late rank is noticed as well."""


class StallDetector:
    """Of one rank.  Times are nanoseconds handed in."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[int, int]] = {}
        """By queue pair: the PSN that it waits for, and from when it is known to."""
        self._wait = SOON
        self._next = 0

    def check(self, waits: Mapping[int, int], progress: int, now: int) -> bool:
        """Whether to ask the controller now.

        waits     queue pairs with something outstanding -> lowest PSN of each without a result
        progress  when the last result of any came
        """
        self._since = {
            qp: (psn, min(self._since[qp][1], progress) if self._since.get(qp, (-1, 0))[0] == psn else progress)
            for qp, psn in waits.items()
        }
        stuck = any(now - since >= SOON for _, since in self._since.values())
        if not stuck:
            self._wait, self._next = SOON, 0
            return False
        if now < self._next:
            return False
        self._next = now + self._wait
        self._wait = min(2 * self._wait, RARELY)
        return True
