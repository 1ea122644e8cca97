# SPDX-License-Identifier: Apache-2.0
"""The cost of the rails in one kind of operation: as measured by this rank, as agreed by all ranks, and the resulting
shares.

An allreduce by the rails' own ways is one kind, each collective between the hosts another: the cost of folding on some
links says little about that of a broadcast on the same links.
"""

from __future__ import annotations

from collections.abc import Sequence

from netfold.host.rails.shares import Estimate, Figure, RailShares, Split


class Ledger:
    """One kind of operation.

    names   of what carries it, by rail
    narrow  as of ``RailShares``
    join    as of ``RailShares``
    known   figures of an earlier run, or None, by rail: they count as measured here
    agreed  figures of another kind, on which all ranks agree: shares begin with them too
    """

    def __init__(
        self, names: Sequence[str], narrow: Sequence[bool], join: float, *, known: Sequence[Figure | None] = (),
        agreed: Sequence[Figure] = (),
    ) -> None:
        self.shares = RailShares(names, narrow=narrow, join=join, figures=agreed)
        self.estimates = [Estimate(figure) for figure in agreed or known or [None] * len(names)]
        self._took: float | None = None
        """Seconds of the last split call of the kind, until they are reported."""

    def record_cut_call(self, split: Split, live: Sequence[int], seconds: float) -> None:
        """Records that a call was split this way, succeeded on all ranks, and took so long here."""
        self.shares.record_cut_call(split, live)
        self._took = seconds

    def report(self) -> float | None:
        """Seconds of the last split call, where they have not been reported yet."""
        took, self._took = self._took, None
        return took
