# SPDX-License-Identifier: Apache-2.0
"""Operations that can be cut, so that several rails carry a part of one each: what a part is, how a rail carries it,
and what it overwrites.

    CutAllreduce    an allreduce: a part is a slice of the tensor
    CutCollective   any other collective: a part is the same fraction of every piece that ranks have in it, so that rows
                    of any length are cut alike on both ends.  A rail carries it between the hosts of its plane, or, of
                    rows, through its switches
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from msgspec import structs

from netfold.host.mesh.mesh import ranks
from netfold.host.mesh.operations import SAME_ORDER_HINT
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.host.rails.rail_set import WatchedRail
from netfold.host.selection.peers import Peers

Part = Callable[[slice], slice]
"""A part's share of a piece of an operation."""
FoldedPart = Callable[[WatchedRail, Part, int], None]
"""Runs a part of an operation through a rail's switches, as the operation of this number."""
Kept = list[tuple[Flat, Flat]]
"""Memory that a part overwrites, and its former contents."""


class CutOperation(Protocol):
    """An operation of ``size`` units of ``unit`` bytes, the same on all ranks; a part is a range of units.

    what       the operation in words, the same on all ranks that call the same
    lane_bits  of its lanes, on the rails that have lanes so narrow
    """

    @property
    def what(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def unit(self) -> int: ...

    @property
    def lane_bits(self) -> int: ...

    def keep(self, part: slice) -> Kept:
        """Copies of what the part overwrites and needs again if it has to be done again."""

    def carry(self, rail: WatchedRail, part: slice, position: int) -> int:
        """Lets the rail carry a part.  Returns how many elements of a saturating sum stand at an end of the range.

        position  of the rails, the same on all ranks
        """


def call_number(what: str) -> int:
    """A number of 31 bits, not 0, by which ranks notice that they call different operations.

    what  the operation in words, the same on all ranks that call the same
    """
    return zlib.crc32(what.encode()) >> 1 or 1


def mismatch(rank: int, what: str, others: Sequence[int]) -> str:
    """The message of a rank that calls this where these others call something else."""
    return f"rank {rank} calls {what}, and {ranks(others)} something else; {SAME_ORDER_HINT}"


def reduced(size: int, reduction: Reduction) -> str:
    """A reduction of so many elements in words."""
    return f"{reduction.op} of {size} x {reduction.said}"


class CutAllreduce:
    """An allreduce of flat arrays; a unit is an element."""

    def __init__(self, request: AllreduceRequest) -> None:
        self._request = request
        self._in_place = request.in_place
        self.size, self.unit, self.lane_bits = request.source.size, request.source.itemsize, request.coding.lane_bits
        self.what = f"{reduced(self.size, request.reduction)} in lanes of {self.lane_bits} bits"

    def keep(self, part: slice) -> Kept:
        source, residual = self._request.source, self._request.feedback
        overwritten = [source[part]] if self._in_place else []
        if residual is not None:
            overwritten.append(residual[part])
        return [(memory, memory.copy()) for memory in overwritten]

    def carry(self, rail: WatchedRail, part: slice, position: int) -> int:
        piece, coding = self._request.part(part, position), self._request.coding
        if coding.rounding == "stochastic":  # drawn by an element's place in its part: each has a seed of its own
            coding = replace(coding, seed=(coding.seed + part.start) & 0xFFFFFFFF)
            piece = structs.replace(piece, coding=coding)
        return rail.allreduce(piece)


@dataclass(frozen=True)
class CutCollective:
    """A collective other than an allreduce; a unit is a byte of ``size``.

    kind         its name; operations of one kind share what rails cost
    what         as of ``CutOperation``
    size         bytes of the operation, the same on all ranks
    over         makes a part of it with a rail's ranks, between the hosts
    folded       makes a part of it through the switches of a rail that carries rows, given that rail, the part and the
                 operation's number; None: no switches carry it
    either       where switches carry it, the hosts may as well, on all planes, whichever are the sooner (``ways``)
    overwritten  what the part overwrites and needs again if it is done again; nothing where it only fills results
    """

    kind: str
    what: str
    size: int
    over: Callable[[Peers, Part], None]
    overwritten: Callable[[Part], Sequence[Flat]] = lambda part: ()
    folded: FoldedPart | None = None
    either: bool = False

    unit = 1
    lane_bits = 32

    def keep(self, part: slice) -> Kept:
        return [(memory, memory.copy()) for memory in self.overwritten(self._of(part))]

    def carry(self, rail: WatchedRail, part: slice, position: int) -> int:
        if self.folded is not None and rail.carries_rows:
            self.folded(rail, self._of(part), position)
        else:
            rail.between_hosts(position, lambda peers: self.over(peers, self._of(part)))
        return 0

    def between_hosts(self) -> CutCollective:
        """The same, which no switches carry."""
        return replace(self, folded=None)

    def _of(self, part: slice) -> Part:
        """The part of a piece: the same fraction as ``part`` is of the whole."""

        def cut(piece: slice) -> slice:
            length = piece.stop - piece.start
            return slice(piece.start + length * part.start // self.size, piece.start + length * part.stop // self.size)

        return cut
