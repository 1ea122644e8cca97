# SPDX-License-Identifier: Apache-2.0
"""The costs of several rails by kind of operation, and for each kind of collective the choice of switches or rings."""

from __future__ import annotations

from collections.abc import Sequence

from netfold.host.rails.ledger import Ledger
from netfold.host.rails.rail_set import WatchedRail
from netfold.host.rails.shares import Figure, show_seconds
from netfold.host.rails.ways import Ways


class OperationCosts:
    """The ledgers of one rank, one for each kind of operation that has been carried.

    rails  all of them, up or not
    join   as of ``RailShares``
    known  figures of an earlier run, or None, by rail
    """

    def __init__(self, rails: Sequence[WatchedRail], join: float, known: Sequence[Figure | None]) -> None:
        names = [rail.name for rail in rails]
        self.own = Ledger(names, [rail.narrows for rail in rails], join, known=known)
        """Costs of an allreduce by the rails' own ways."""
        self._names, self._between_names, self._join = names, [rail.between_name for rail in rails], join
        self._rows = [rail.carries_rows for rail in rails]
        """By rail: True if its switches carry rows."""
        self._ledgers: dict[tuple[str, bool], Ledger] = {}
        """(Kind of operation, True if rails that can fold it do) -> the rails' costs of it."""
        self._ways: dict[str, Ways] = {}
        """Kind of operation that switches carry -> its choice of way."""

    def of(self, kind: str, *, folded: bool = False) -> Ledger:
        """The rails' costs of this kind of operation, with or without folding on rails that can fold it.  Before the
        first such operation they are those of an allreduce."""
        ledger = self._ledgers.get((kind, folded))
        if ledger is None:
            ledger = Ledger(self.names(folded), (), self._join, agreed=self.own.shares.figures)
            self._ledgers[kind, folded] = ledger
        return ledger

    def way(self, kind: str) -> Ways:
        """The two ways of a kind of collective that switches carry."""
        ways = self._ways.get(kind)
        if ways is None:
            ways = self._ways[kind] = Ways(self.of(kind, folded=True), self.of(kind))
        return ways

    def names(self, folded: bool) -> list[str]:
        """The carriers of a collective, by rail: the rail itself if it folds the collective, else the mesh of its
        plane."""
        own = zip(self._names, self._between_names, self._rows, strict=True)
        return [name if folded and rows else between for name, between, rows in own]

    def carries_rows(self, live: Sequence[int]) -> bool:
        """True if the switches of any rail that is up carry rows; the same on all ranks."""
        return any(self._rows[rail] for rail in live)

    def known(self, live: Sequence[int]) -> str:
        """The figures of the rails that are up, in words."""
        figures = ((self._names[rail], self.own.shares.figures[rail]) for rail in live)
        return ", ".join(f"{name} {show_seconds(one.latency)} + {_rate(one.bandwidth)}" for name, one in figures)

    def preview(self, kind: str, nbytes: int, live: Sequence[int], *, folded: bool) -> str:
        """How a collective of this kind would be cut over the rails that are up, in words.

        folded  whether switches can carry it, and hosts as well
        """
        folded = folded and (not self.carries_rows(live) or self.way(kind).folds(nbytes, live))
        return self.of(kind, folded=folded).shares.preview(nbytes, live).text


def _rate(bandwidth: float | None) -> str:
    return "an unknown rate" if bandwidth is None else f"{bandwidth * 8 / 1e6:.4g} Mb/s"
