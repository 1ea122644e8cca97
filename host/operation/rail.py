# SPDX-License-Identifier: Apache-2.0
"""What a rail is: something that carries an allreduce between all ranks, and can say what it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from netfold.host.operation.coding import Coding, LaneBits
from netfold.host.operation.half_precision import HALVES
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.wire.jobs import Plan, RankReport

Op = Literal["sum", "average", "max", "min"]
Flat = NDArray[Any]
"""A one-dimensional, C-contiguous, aligned array of float32 or int32 in this machine's byte order."""

DTYPES: Final = (np.dtype(np.float32), np.dtype(np.int32))
OPS: Final = frozenset(get_args(Op))
FOLDED: Final = frozenset((*HALVES, *(dtype.name for dtype in DTYPES)))
"""Elements whose sums the switches can make."""


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
    """What can carry a ``AllreduceRequest``.  All ranks make the same requests in the same order, one at a time."""

    @property
    def name(self) -> str:
        """As users ask for it."""

    @property
    def narrows(self) -> bool:
        """Whether it knows lanes narrower than 32 bits; others carry floats whole, and are given no feedback."""

    def takes(self, reduction: Reduction, coding: Coding) -> bool:
        """Whether it can carry such a request, as ``conversion`` hands it over."""

    def describe(self, nbytes: int, lane_bits: LaneBits = 32) -> str:
        """How it would carry a tensor of ``nbytes`` bytes.  Sends nothing."""

    def allreduce(self, request: AllreduceRequest) -> int:
        """Fills ``request.out`` with the reduction of every rank's ``request.source``, both flat.

        Returns how many elements of a saturating sum stand at an end of the range, else 0.
        """

    @property
    def retransmissions(self) -> int:
        """Packets sent again since the rail was made; cheap."""

    def stats(self) -> RailStats:
        """Totals since the rail was made."""

    def close(self) -> None:
        """Gives sockets back; safe to call twice."""


class FoldingRail(Rail, Protocol):
    """A rail whose sums the switches make."""

    members: int
    """Ranks whose lanes meet."""

    @property
    def suffices(self) -> bool:
        """Whether folding is known to be the cheapest without measuring."""

    def trial(self, data: Flat, number: int) -> None:
        """A sum of float32 in place, inside an operation of the ranks' mesh, for the chooser to time: not counted."""

    def halt(self, number: int) -> None:
        """Round ``number``: the trees went away; go on over those that the controller plans now.  Returns at once."""

    def settle(self, done: Callable[[], None]) -> None:
        """Calls ``done``, on a thread of its own, once every operation that has begun is over.  Returns at once."""


def folds(op: str, element: str) -> bool:
    """Whether switches can reduce it: their lanes add and compare integers, and the hosts make those of floats."""
    return op in OPS and element in FOLDED
