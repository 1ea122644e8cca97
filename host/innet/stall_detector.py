# SPDX-License-Identifier: Apache-2.0
"""Detects streams on which retransmissions bring no result: another rank is late, or part of a tree has failed.

A rank cannot tell which, but the controller can (on ``Suspect`` it probes the trees' links), and not every switch
reports a port that goes down.  So it is asked soon, and then ever less often while that does not help.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FIRST_PAUSE: Final = 40_000_000
"""Nanoseconds without a result after which a stream counts as stalled: round trips take 0.1 to 10 ms, and by then
several repeats have had no answer."""
PATIENT_PAUSE: Final = 100_000_000
"""The same after stalls that ended by themselves, as those do of a job whose ranks come at different times: the pause
doubles with each of them up to this."""
CALM: Final = 10_000_000_000
"""Nanoseconds after such a stall until FIRST_PAUSE holds again."""
LONGEST_PAUSE: Final = 1_600_000_000
"""Longest time in nanoseconds between two questions, so that what fails while all wait for a late rank is noticed as
well."""


class StallDetector:
    """The stall detector of one rank.  Times are nanoseconds that the caller passes."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[int, int]] = {}
        """Queue pair -> the PSN that it waits for, and since when it is known to."""
        self.pause = FIRST_PAUSE
        """How long a stream waits until it counts as stalled."""
        self._wait = FIRST_PAUSE
        self._next = 0
        self._asked = 0
        """When the controller was asked last."""

    def check(self, waits: Mapping[int, int], progress: int, now: int) -> bool:
        """Whether to ask the controller now.

        waits     queue pairs with packets in flight -> the lowest PSN of each without a result
        progress  time of the last result on any of them
        """
        self._since = {
            qp: (psn, min(self._since[qp][1], progress) if self._since.get(qp, (-1, 0))[0] == psn else progress)
            for qp, psn in waits.items()
        }
        if self.pause > FIRST_PAUSE and now - self._asked >= CALM:
            self.pause = FIRST_PAUSE
        stuck = any(now - since >= self.pause for _, since in self._since.values())
        if not stuck:
            if self._next:
                self.pause = min(2 * self.pause, PATIENT_PAUSE)
            self._wait, self._next = self.pause, 0
            return False
        if now < self._next:
            return False
        self._asked, self._next = now, now + self._wait
        self._wait = min(2 * self._wait, LONGEST_PAUSE)
        return True
