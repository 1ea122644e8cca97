# SPDX-License-Identifier: Apache-2.0
"""What a rail is: something that reduces one flat array over all ranks, and can say what it did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

Op = Literal["sum", "average", "max", "min"]
LaneBits = Literal[32, 16, 8]
Rounding = Literal["nearest", "stochastic"]
Flat = NDArray[Any]
"""A one-dimensional, C-contiguous, aligned array of float32 or int32 in this machine's byte order."""

DTYPES = (np.dtype(np.float32), np.dtype(np.int32))


@dataclass(frozen=True)
class Coding:
    """How elements become lanes of packets (native/quantise.h, narrow.h, lanes.h).  Raises ValueError.

    lane_bits  32, or 16 or 8 for sums and averages of float32
    rounding   of narrow lanes
    seed       of stochastic rounding; the operation's number and the rank are added
    saturate   sums of int32 stop at the ends of the range instead of wrapping around
    """

    lane_bits: LaneBits = 32
    rounding: Rounding = "nearest"
    seed: int = 0
    saturate: bool = False

    def __post_init__(self) -> None:
        if self.lane_bits not in get_args(LaneBits):
            raise ValueError(f"lane_bits={self.lane_bits!r}: expected 32, 16 or 8")
        if self.rounding not in get_args(Rounding):
            raise ValueError(f"rounding={self.rounding!r}: expected nearest or stochastic")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed={self.seed!r}: expected 0 .. 2^32 - 1")


PLAIN = Coding()


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


class Rail(Protocol):
    """Moves and sums.  All ranks call the same operations in the same order; one call at a time."""

    name: str

    def allreduce(
        self, source: Flat, out: Flat, op: Op, number: int, coding: Coding = PLAIN, feedback: Flat | None = None
    ) -> int:
        """Fills ``out`` with the reduction of every rank's ``source``; the two may be the same array.

        feedback  what earlier operations with narrow lanes left out, float32, one for each element: added, and renewed
        Returns how many elements of a saturating sum stand at an end of the range.
        """

    @property
    def retransmissions(self) -> int:
        """Packets sent again since the rail was made; cheap."""

    def stats(self) -> RailStats:
        """Totals since the rail was made."""

    def describe(self, nbytes: int) -> str:
        """How it would carry a tensor of ``nbytes`` bytes."""

    def close(self) -> None:
        """Gives sockets back; safe to call twice."""
