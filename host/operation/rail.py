# SPDX-License-Identifier: Apache-2.0
"""What a rail is: something that reduces one flat array over all ranks, and can say what it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from netfold.host.operation.coding import PLAIN, Coding, LaneBits
from netfold.wire.jobs import Plan, RankReport

Op = Literal["sum", "average", "max", "min"]
Flat = NDArray[Any]
"""A one-dimensional, C-contiguous, aligned array of float32 or int32 in this machine's byte order."""

DTYPES = (np.dtype(np.float32), np.dtype(np.int32))


@dataclass(frozen=True)
class TreeStats:
    """What one aggregation tree did for this rank since the communicator was made."""

    bytes_reduced: int = 0
    """Payload bytes of tensors, without padding."""
    packets_sent: int = 0
    """Contributions, the repeated ones included."""
    packets_received: int = 0
    """Results, the repeated ones included."""
    retransmissions: int = 0
    timeouts: int = 0
    """Retransmission timers that ran out; the other retransmissions were fast ones."""
    duplicates: int = 0
    """Results that had already come."""
    ecn_marks: int = 0
    """Results that say that some queue was long."""


@dataclass(frozen=True)
class RailStats:
    """A rail's totals."""

    operations: int = 0
    bytes_reduced: int = 0
    packets_sent: int = 0
    retransmissions: int = 0
    seconds: float = 0.0
    """Wall-clock time inside allreduce."""
    saturated: int = 0
    """Elements of saturating sums that stand at an end of the range."""
    by_tree: dict[str, TreeStats] = field(default_factory=dict)

    def report(self, plan: Plan) -> RankReport:
        """What the controller is told of them at the end."""
        return RankReport(
            job=plan.job, rank=plan.rank, epoch=plan.epoch, operations=self.operations,
            bytes_reduced=self.bytes_reduced, packets_sent=self.packets_sent, retransmissions=self.retransmissions,
            by_tree={name: tree.bytes_reduced for name, tree in self.by_tree.items()},
        )


class Rail(Protocol):
    """Moves and sums.  All ranks call the same operations in the same order; one call at a time."""

    name: str

    def allreduce(self, source: Flat, out: Flat, op: Op, number: int) -> None:
        """Fills ``out`` with the reduction of every rank's ``source``; the two may be the same array."""

    @property
    def retransmissions(self) -> int:
        """Packets sent again since the rail was made; cheap."""

    def stats(self) -> RailStats:
        """Totals since the rail was made."""

    def describe(self, nbytes: int) -> str:
        """How it would carry a tensor of ``nbytes`` bytes."""

    def close(self) -> None:
        """Gives sockets back; safe to call twice."""


class LaneRail(Rail, Protocol):
    """A rail whose lanes can be chosen: the switches'."""

    members: int
    """Ranks whose lanes meet."""
    saturates: bool
    """Whether sums of int32 can saturate here."""
    saturated: int
    """Elements of the last saturating sum that stand at an end of the range."""

    def allreduce(
        self, source: Flat, out: Flat, op: Op, number: int, coding: Coding = PLAIN, feedback: Flat | None = None
    ) -> None:
        """feedback: what earlier operations with narrow lanes left out, float32, one for each element: added, and
        renewed."""

    @property
    def suffices(self) -> bool:
        """Whether folding is known to be the cheapest without measuring."""

    def trial(self, data: Flat, number: int) -> None:
        """A sum of float32 in place, inside an operation of the ranks' mesh, for the chooser to time: not counted."""

    def halt(self, number: int) -> None:
        """Round ``number``: the trees went away; go on over those that the controller plans now.  Returns at once."""

    def settle(self, done: Callable[[], None]) -> None:
        """Calls ``done``, on a thread of its own, once every operation that has begun is over.  Returns at once."""

    def describe(self, nbytes: int, lane_bits: LaneBits = 32) -> str:
        """How it would carry a tensor of ``nbytes`` bytes."""
