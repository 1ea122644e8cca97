# SPDX-License-Identifier: Apache-2.0
"""The place of a rail that could not be opened when all others were: it is down until it is opened anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from netfold.host.errors import RailDown
from netfold.host.opening.planes import RailSpec
from netfold.host.operation.coding import Coding, LaneBits
from netfold.host.operation.rail import RailStats
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest, RowsRequest
from netfold.host.rails.rail_set import JobCounts
from netfold.host.selection.choice import INNET
from netfold.host.selection.peers import Peers


class AbsentRail:
    """A ``rail_set.WatchedRail`` that carries nothing: its operations raise RailDown.

    name, narrows, between_name, carries_rows  those of the rail in whose place it is
    """

    retransmissions = 0

    def __init__(self, spec: RailSpec) -> None:
        self.name = str(spec)
        self.narrows = spec.kind in (INNET, "verbs")
        self.carries_rows = spec.kind == INNET
        kind, at, plane = self.name.partition("@")
        mesh = "roce" if spec.kind == "roce" else "tcp"
        self.between_name = f"{mesh}@{plane}" if at else f"{mesh} of {kind}"

    def _refuse(self) -> NoReturn:
        raise RailDown(f"{self.name} is not open")

    def takes(self, reduction: Reduction, coding: Coding) -> bool:
        """Always true: another rail carries what would be its part."""
        return True

    def way(self, coding: Coding, algorithm: str | None) -> Callable[[AllreduceRequest], int]:
        return self.allreduce

    def allreduce(self, request: AllreduceRequest) -> int:
        self._refuse()

    def collect(self, request: RowsRequest) -> None:
        self._refuse()

    def between_hosts(self, number: int, operation: Callable[[Peers], None]) -> None:
        self._refuse()

    def watched_by(self, watch: Callable[[float], bool] | None) -> None:
        """Does nothing: nothing is under way on it."""

    def counted_by(self, counts: Callable[[], JobCounts]) -> None:
        """Does nothing: no controller hears of it."""

    def leave(self, why: str, *, at_once: bool = False) -> None:
        """Does nothing: no rank has joined it."""

    def stats(self) -> RailStats:
        return RailStats()

    def describe(self, nbytes: int, lane_bits: LaneBits = 32) -> str:
        return f"{self.name} is not open"

    def close(self) -> None:
        """Does nothing."""
