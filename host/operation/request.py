# SPDX-License-Identifier: Apache-2.0
"""One allreduce as a value: made where the caller's arguments are checked, and passed on to what carries it."""

from __future__ import annotations

import msgspec

from netfold.host.operation.arrays import Array
from netfold.host.operation.coding import PLAIN, Coding
from netfold.host.operation.reduction import Reduction

ALLREDUCE = "allreduce"
"""Name of a request to which the caller gave none."""


class AllreduceRequest(msgspec.Struct, frozen=True):
    """What one rank asks for.  All ranks ask for the same, each with arrays of its own.

    source     this rank's contribution
    out        where the result goes, of the same shape; it must be the same memory as ``source``, or not overlap it
    reduction  what is computed of the contributions
    number     number of the operation in its group, from 1, the same on all ranks; 0: the rail numbers it itself
    coding     how elements become lanes of packets, where switches fold them
    algorithm  an algorithm between the hosts, or "innet", where the caller names one
    feedback   float32, as many as ``source`` has: the residual of narrow lanes, which is added first and then replaced
    name       what the caller calls it; it may differ between ranks

    Arrays have any shape and layout at first; a ``Rail`` gets them flat (``conversion``).
    """

    source: Array
    out: Array
    reduction: Reduction
    number: int = 0
    coding: Coding = PLAIN
    algorithm: str | None = None
    feedback: Array | None = None
    name: str = ALLREDUCE

    @property
    def nbytes(self) -> int:
        """Bytes of one rank's contribution."""
        return self.source.nbytes

    @property
    def in_place(self) -> bool:
        """Whether the result overwrites the contribution."""
        return bool(self.source.ctypes.data == self.out.ctypes.data)

    def part(self, piece: slice, number: int | None = None) -> AllreduceRequest:
        """The same request for a piece of the flat arrays, as an operation of its own if it gets a number."""
        feedback = None if self.feedback is None else self.feedback[piece]
        return msgspec.structs.replace(
            self, source=self.source[piece], out=self.out[piece], feedback=feedback,
            number=self.number if number is None else number,
        )

    def __str__(self) -> str:
        called = "" if self.name == ALLREDUCE else f"{self.name!r}, "
        return f"operation {self.number} ({called}{self.source.size} x {self.source.dtype.name})"
