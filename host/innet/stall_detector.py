# SPDX-License-Identifier: Apache-2.0
"""Detects streams on which retransmissions bring no result: another rank is late, or part of a tree has failed.

A rank cannot tell which, but the controller can (on ``Suspect`` it probes the trees' links), and not every switch
reports a port that goes down.  So it is asked soon, and then ever less often while that does not help.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FIRST_PAUSE: Final = 100_000_000
"""Nanoseconds without a result after which a stream counts as stalled: two of the longest
retransmission timeouts that silence adds (NF_RTO_SILENT of native/stream.h)."""
LONGEST_PAUSE: Final = 1_600_000_000
"""Longest time in nanoseconds between two questions, so that what fails while all wait for a late rank is noticed as
well."""


class StallDetector:
    """The stall detector of one rank.  Times are nanoseconds that the caller passes."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[int, int]] = {}
        """Queue pair -> the PSN that it waits for, and since when it is known to."""
        self._wait = FIRST_PAUSE
        self._next = 0

    def check(self, waits: Mapping[int, int], progress: int, now: int) -> bool:
        """Whether to ask the controller now.

        waits     queue pairs with packets in flight -> the lowest PSN of each without a result
        progress  time of the last result on any of them
        """
        self._since = {
            qp: (psn, min(self._since[qp][1], progress) if self._since.get(qp, (-1, 0))[0] == psn else progress)
            for qp, psn in waits.items()
        }
        stuck = any(now - since >= FIRST_PAUSE for _, since in self._since.values())
        if not stuck:
            self._wait, self._next = FIRST_PAUSE, 0
            return False
        if now < self._next:
            return False
        self._next = now + self._wait
        self._wait = min(2 * self._wait, LONGEST_PAUSE)
        return True
