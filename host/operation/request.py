# SPDX-License-Identifier: Apache-2.0
"""One operation as a value: made where the caller's arguments are checked, and passed on to what carries it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from netfold.host.operation.arrays import Array, Flat
from netfold.host.operation.coding import PLAIN, Coding
from netfold.host.operation.prepared import PreparedCall
from netfold.host.operation.reduction import Reduction

ALLREDUCE = "allreduce"
"""Name of a request without a caller's name."""


def called(name: str) -> str:
    """How messages begin to describe an operation to which its caller gave a name."""
    return "" if name == ALLREDUCE else f"{name!r}, "


class AllreduceRequest(msgspec.Struct, frozen=True):
    """An allreduce request of one rank.  All ranks make the same request, each with arrays of its own.

    source     this rank's contribution
    out        array for the result, of the same shape; the same memory as ``source``, or without overlap
    reduction  the reduction of the contributions
    number     number of the operation in its group, from 1, the same on all ranks; 0: the rail numbers it itself
    coding     encoding of elements in the lanes of packets, for the switches
    algorithm  an algorithm between the hosts, or "innet"; None: the caller names none
    feedback   float32, as many as ``source`` has: the residual of narrow lanes, which is added first and then replaced
    name       the caller's name for it; it may differ between ranks
    prepared   what earlier requests of its kind have found out; None: each is decided anew
    inner      an ``InnerStep`` in place of the machine's shared memory, which has the values on a device
               (``staging.device_step``): the arrays, memory of the host, are not filled before it ``stage``s them

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
    prepared: PreparedCall | None = None
    inner: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of one rank's contribution."""
        return self.source.nbytes

    @property
    def in_place(self) -> bool:
        """True if the result overwrites the contribution."""
        return bool(self.source.ctypes.data == self.out.ctypes.data)

    def part(self, piece: slice, number: int | None = None) -> AllreduceRequest:
        """The same request for a piece of the flat arrays, as an operation of its own if it gets a number."""
        feedback = None if self.feedback is None else self.feedback[piece]
        return msgspec.structs.replace(
            self, source=self.source[piece], out=self.out[piece], feedback=feedback,
            number=self.number if number is None else number,
        )

    def __str__(self) -> str:
        return f"operation {self.number} ({called(self.name)}{self.source.size} x {self.source.dtype.name})"


RowsCollective = Literal["reduce_scatter", "reduce", "all_gather", "broadcast", "barrier", "exchange"]
"""The collectives of a ``RowsRequest``."""


class RowsRequest(msgspec.Struct, frozen=True):
    """A collective of rows, of which each rank owns one: it gets the reduction of its row, or hands its row to all.

    collective  "reduce_scatter" and "reduce" reduce; "all_gather" and "broadcast" move bytes; a barrier has no rows;
                an "exchange" is a reduce_scatter with an all_gather of other bytes beside it
    source      flat: the rows of all ranks, of which a rank that moves bytes needs to have filled its own alone
    out         flat: where what this rank gets goes: the source itself, its part from ``out_first`` on, or memory of
                its own.  Of a reduce the root's alone matters
    rows        each rank's elements of ``source``, which do not overlap; but for the root's, those of a reduce or a
                broadcast are empty
    number      of the operation in its group, from 1, the same on all ranks
    root        of a reduce or a broadcast
    out_first   the element of ``source`` with which ``out`` begins
    reduction   what is computed; None where bytes are moved
    coding      how elements become lanes of packets
    gathered    of an exchange: uint8, all ranks' rows, of which this rank has filled its own
    gathered_rows  each rank's bytes of it
    """

    collective: RowsCollective
    source: Flat
    out: Flat
    rows: Sequence[slice]
    number: int
    root: int = 0
    out_first: int = 0
    reduction: Reduction | None = None
    coding: Coding = PLAIN
    gathered: Flat | None = None
    gathered_rows: Sequence[slice] = ()

    def parts(self, most: int) -> list[RowsRequest]:
        """The same as operations of at most so many elements, a part of each row in each; one at least."""
        if self.source.size + (0 if self.gathered is None else self.gathered.size) <= most:
            return [self]  # since rows do not overlap
        each = max(1, most // max(1, len(self.rows)))
        longest = max((row.stop - row.start for row in self.rows), default=0)
        wide = max((row.stop - row.start for row in self.gathered_rows), default=0)
        if sum(row.stop - row.start for row in (*self.rows, *self.gathered_rows)) <= most:
            return [self]
        return [
            msgspec.structs.replace(
                self, rows=_cut(self.rows, at, each), gathered_rows=_cut(self.gathered_rows, at, each),
            )
            for at in range(0, max(1, longest, wide), each)
        ]

    def __str__(self) -> str:
        what = "" if self.collective == "barrier" else f" of {self.source.size} x {self.source.dtype.name}"
        at = f", root {self.root}" if self.collective in ("reduce", "broadcast") else ""
        return f"operation {self.number} ({self.collective}{what}{at})"


def _cut(rows: Sequence[slice], at: int, each: int) -> list[slice]:
    """The part of each row from ``at`` on, ``each`` long at most."""
    return [slice(min(row.stop, row.start + at), min(row.stop, row.start + at + each)) for row in rows]


Request = AllreduceRequest | RowsRequest
"""The requests that a folding rail accepts."""
