# SPDX-License-Identifier: Apache-2.0
"""What the rails cost in one kind of operation: as this rank measures it, as all ranks agree, and the shares that
follow.

An allreduce by the rails' own ways is one kind, each collective between the hosts another: a switch that folds says
little of what the same links take of a broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence

from netfold.host.rails.shares import Estimate, Figure, RailShares


class Ledger:
    """One kind of operation.

    names   of what carries it, by rail
    narrow  as of ``RailShares``
    known   figures to begin with, or None, by rail
    join    as of ``RailShares``
    """

    def __init__(
        self, names: Sequence[str], narrow: Sequence[bool], known: Sequence[Figure | None], join: float
    ) -> None:
        self.shares = RailShares(names, narrow=narrow, join=join)
        self.estimates = [Estimate(figure) for figure in known]
        self.took: float | None = None
        """Seconds of the last split call of the kind, until they are reported."""

    def begin_with(self, figures: Sequence[Figure]) -> None:
        """Takes another kind's figures, on which all ranks agree, until the first calls of this one are measured."""
        self.shares.figures = list(figures)
        self.estimates = [Estimate(figure) for figure in figures]
