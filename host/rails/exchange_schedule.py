# SPDX-License-Identifier: Apache-2.0
"""When ranks tell each other what the rails cost, and which of their brief calls count as a rail's latency.

Every rank must come to an exchange after the same call, so the schedule goes by what all of them know alike: the sizes
of the calls, and the seconds that the agreed figures predict for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from netfold.host.rails.shares import Figure

EXCHANGE_INTERVAL = 400
"""Figures are exchanged at the latest when calls have taken as long as this number of exchanges would."""
EXCHANGE_SECONDS = 0.0005
"""Seconds that an exchange takes besides the rail's latency, where ranks share a few cores."""
SAMPLES = 8
"""Number of brief calls between two exchanges whose time is recorded as the rail's latency, the same calls on all
ranks; the last ``shares.WINDOW`` of them count.  Not all are recorded: calls are so brief that, with cold caches, the
work beside the rail takes as long as the rail."""


class ExchangeSchedule:
    """The schedule of one rank, in predicted seconds of the short calls since the last exchange (``BriefCalls.owed``).
    """

    __slots__ = ("due", "exchanges", "sample")

    def __init__(self) -> None:
        self.due = 0.0
        """Seconds of calls after which the next exchange is due."""
        self.sample = 0.0
        """Seconds of calls after which the next call counts as its rail's latency."""
        self.exchanges = 0
        """Number of exchanges so far."""

    def sampled(self, owed: float) -> None:
        """A brief call has counted as its rail's latency after so many seconds; the next one that does comes later."""
        self.sample = owed + self.due / SAMPLES

    def turn(self, live: Sequence[int]) -> int:
        """The rail that carries the next exchange where that is no matter of speed: each of those that are up in its
        turn, also one that carries nothing now, so that its latency is known, and whether it is up."""
        return live[self.exchanges % len(live)]

    def exchanged(self, figures: Sequence[Figure], live: Sequence[int]) -> None:
        """Figures have been exchanged, and are these, by rail, now."""
        self.exchanges += 1
        self.sample = 0.0
        self.due = EXCHANGE_INTERVAL * (figures[self.turn(live)].latency + EXCHANGE_SECONDS)
