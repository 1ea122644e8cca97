# SPDX-License-Identifier: Apache-2.0
"""One allreduce as a value: made once where the caller's arguments are checked, and handed on to what carries it."""

from __future__ import annotations

import msgspec

from netfold.host.operation.arrays import Array
from netfold.host.operation.coding import PLAIN, Coding
from netfold.host.operation.reduction import Reduction

ALLREDUCE = "allreduce"
"""Name of a request that the caller gave none."""


class AllreduceRequest(msgspec.Struct, frozen=True):
    """What one rank asks for.  All ranks ask for the same, each with arrays of its own.

    source     this rank's contribution
    out        where the result goes, of the same shape; may be the same memory as ``source``, or none of it
    reduction  what becomes of the contributions
    number     of the operation in its group, from 1, the same on all ranks; 0: whoever carries it counts by itself
    coding     how elements become lanes of packets, where switches fold them
    algorithm  between the hosts, or "innet", where the caller names one
    feedback   float32, as many as ``source`` has: what narrow lanes left out so far, added before and renewed
    name       what the caller calls it; ranks may call it differently

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
        """Whether the result takes the place of the contribution."""
        return bool(self.source.ctypes.data == self.out.ctypes.data)

    def part(self, piece: slice, number: int | None = None) -> AllreduceRequest:
        """The same for a piece of the flat arrays, as an operation of its own where it gets a number."""
        feedback = None if self.feedback is None else self.feedback[piece]
        return msgspec.structs.replace(
            self, source=self.source[piece], out=self.out[piece], feedback=feedback,
            number=self.number if number is None else number,
        )

    def __str__(self) -> str:
        called = "" if self.name == ALLREDUCE else f"{self.name!r}, "
        return f"operation {self.number} ({called}{self.source.size} x {self.source.dtype.name})"
