# SPDX-License-Identifier: Apache-2.0
"""Which way a kind of long collective of rows goes over several rails: through the switches of those that carry rows,
or between the hosts of all planes.

Both are tried, and then the one is taken that the rails' measured costs predict to be the sooner.  Which one that is
differs: with four ranks a ring moves as many bytes over a link as the switches do, with more ranks more.

All ranks agree, since they make the same calls, and costs are those that they have exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

from netfold.host.rails.ledger import Ledger
from netfold.host.rails.shares import LONG_BYTES

TRIALS = 3
"""Number of the first long calls that go each way, the switches first.  The median of them counts, since the first
may have measured the links, or found connections that were idle."""
AGAIN_INTERVAL = 64
"""Number of long calls after which the slower way carries one, because it may have become the faster one."""


class Ways:
    """The two ways of one kind of collective.

    folded   what the rails cost in it where the switches of those that can carry it
    between  where it goes between the hosts of all planes
    """

    def __init__(self, folded: Ledger, between: Ledger) -> None:
        self._folded, self._between = folded, between
        self._calls = 0

    def choose(self, nbytes: int, live: Sequence[int]) -> bool:
        """True if the switches should carry the next call of ``nbytes`` bytes over the live rails."""
        if nbytes < len(live) * LONG_BYTES:  # of which nothing is learned, so there is nothing to try
            return self.folds(nbytes, live)
        self._calls += 1
        if self._calls <= 2 * TRIALS:
            return self._calls <= TRIALS
        return self.folds(nbytes, live) != (self._calls % AGAIN_INTERVAL == 0)

    def folds(self, nbytes: int, live: Sequence[int]) -> bool:
        """True if the switches are predicted to be as fast as the hosts, or if not both have been tried."""
        if self._calls < 2 * TRIALS:
            return True
        folded, between = (ledger.shares.expected(nbytes, live) for ledger in (self._folded, self._between))
        return folded is None or between is None or folded <= between
