# SPDX-License-Identifier: Apache-2.0
"""The steps among the ranks of one machine before and after they fold: ``SharedRows`` makes them in shared memory, and
``staging.device_step.DeviceStep`` on the ranks' devices.

    reduce_scatter    each rank ends with the machine's reduction of its own piece of a window
    all_gather        each rank ends with all pieces
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from netfold.host.collectives.flow import Strand
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import Reduction

ROW: Final = 2 << 20
"""Bytes of the longest window: the same on all machines, however each of them makes its steps."""


def windows_of(row: int, count: int, itemsize: int) -> Iterator[slice]:
    """``count`` elements in windows of at most ``row`` bytes."""
    most = row // itemsize
    for at in range(0, count, most):
        yield slice(at, min(at + most, count))


class InnerStep(Protocol):
    """The inner step of the ranks of one machine, which call it alike, inside operations of their mesh.

    Pieces are one slice of a window for each rank, by local rank; they do not overlap, and may be empty.
    """

    row: int
    """Bytes of the longest window."""

    def windows(self, count: int, itemsize: int) -> Iterator[slice]:
        """``count`` elements in windows of at most ``row`` bytes."""

    def reduce_scatter(self, data: Flat, out: Flat, reduction: Reduction, pieces: Sequence[slice]) -> Strand:
        """Reduces the ranks' ``data``, in order of ranks: afterwards this rank's piece of ``out``, which may be the
        same array, holds the result.  No other element of either changes."""

    def all_gather(self, data: Flat, pieces: Sequence[slice]) -> Strand:
        """Fills the pieces of a window with what each rank has in its own; the rest of ``data`` is not touched."""

    def close(self) -> None:
        """Releases its memory."""
