# SPDX-License-Identifier: Apache-2.0
"""Detects streams on which retransmissions bring no result: another rank is late, or part of a tree has failed.

A rank cannot tell which, but the controller can (on ``Suspect`` it probes the trees' links), and not every switch
reports a port that goes down.  So it is asked soon, after some usual round trips, and then ever less often while that
does not help.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

FIRST_PAUSE: Final = 40_000_000
"""Nanoseconds without a result after which a stream counts as stalled: round trips take 0.1 to 10 ms, and by then
several repeats have had no answer."""
SHORTEST_PAUSE: Final = 15_000_000
"""The least such pause, for short round trips: processes that carry the packets may be late by some milliseconds."""
ROUND_TRIPS: Final = 4
"""Usual round trips without a result after which a stream counts as stalled, within these two bounds."""
PATIENT_PAUSE: Final = 60_000_000
"""The longest such pause after stalls that ended by themselves, as happens in a job whose ranks come at different
times: the pause doubles with each of these."""
CALM: Final = 10_000_000_000
"""Nanoseconds after such a stall until the first pause applies again."""
LONGEST_PAUSE: Final = 1_600_000_000
"""Longest time in nanoseconds between two questions, so that a failure is noticed even while all wait for a late
rank."""


class StallDetector:
    """The stall detector of one rank.  Times are nanoseconds that the caller passes."""

    def __init__(self) -> None:
        self._waits: Collection[int] = ()
        """Times since which streams waited when they were looked at last."""
        self._first = FIRST_PAUSE
        self._stalls = 0
        """Stalls that ended by themselves, with less than CALM between them."""
        self._wait = FIRST_PAUSE
        self._next = 0
        self._asked = 0
        """Time of the last question to the controller."""

    @property
    def pause(self) -> int:
        """How long a stream waits until it counts as stalled."""
        return min(self._first << self._stalls, PATIENT_PAUSE)

    def due(self, progress: int, now: int) -> int:
        """When `check` is to be called next at the latest, for a stall to be noticed in time; always after ``now``."""
        # each run of an operation asks this, however short: plain comparisons, and no call
        pause = self._first << self._stalls
        pause = PATIENT_PAUSE if pause > PATIENT_PAUSE else pause
        soonest = progress + pause
        if soonest <= now:
            soonest = now + pause
        if now < self._next < soonest:
            soonest = self._next
        for since in self._waits:
            if now < since + pause < soonest:
                soonest = since + pause
        return soonest

    def check(self, waits: Collection[int], now: int, round_trip: int = 0) -> bool:
        """True if it is time to ask the controller.

        waits       for each stream with packets in flight, the time of its last result, or of its first packet
        round_trip  the longest usual round trip of any of them; 0: not known yet
        """
        if round_trip:
            self._first = min(max(ROUND_TRIPS * round_trip, SHORTEST_PAUSE), FIRST_PAUSE)
        self._waits = waits
        if self._stalls and now - self._asked >= CALM:
            self._stalls = 0
        pause = self.pause
        stuck = any(now - since >= pause for since in waits)
        if not stuck:
            if self._next and self.pause < PATIENT_PAUSE:
                self._stalls += 1
            self._wait, self._next = self.pause, 0
            return False
        if now < self._next:
            return False
        self._asked, self._next = now, now + self._wait
        self._wait = min(2 * self._wait, LONGEST_PAUSE)
        return True
