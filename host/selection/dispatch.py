# SPDX-License-Identifier: Apache-2.0
"""What carries a reduction: the switches, where they can and it pays, or an algorithm between the hosts."""

from __future__ import annotations

from typing import Final, get_args

from netfold.host.operation.coding import Coding, narrows
from netfold.host.operation.half_precision import HALVES
from netfold.host.operation.rail import DTYPES, LaneRail, Op, Rail
from netfold.host.operation.reduction import Reduction
from netfold.host.selection.choice import INNET, Collective
from netfold.host.selection.peers import AUTO, Peers

OPS: Final = frozenset(get_args(Op))
FOLDED: Final = frozenset((*HALVES, *(dtype.name for dtype in DTYPES)))
"""Elements whose sums the switches can make."""


class Dispatch:
    """Of one communicator; all ranks ask alike, and get the same answer.

    peers    all ranks, between the hosts
    between  what that goes over: "tcp" or "roce"
    fold     the rail that folds; lanes  the same, where its lanes have several widths: None where nothing folds
    always   to fold what folds, whatever it costs
    several  ``fold`` is several rails, which choose for themselves
    why      things are so, for ``explain``
    """

    def __init__(self, peers: Peers, between: str, why: str) -> None:
        self.peers = peers
        self.between = between
        self.why = why
        self.fold: Rail | None = None
        self.lanes: LaneRail | None = None
        self.always = False
        self.several = False

    @property
    def rail(self) -> str:
        """Of what folds."""
        return self.fold.name if self.fold else self.between if self.peers.size > 1 else "self"

    def path(self, op: str, dtype: str) -> str:
        """The rail that carries such an allreduce where the call names no algorithm."""
        return self.rail if self.peers.size == 1 or folds(op, dtype) else self.between

    def check(self, algorithm: str | None, reduction: Reduction, coding: Coding) -> None:
        """Raises ValueError for an algorithm that is not there, or cannot do this."""
        if algorithm != INNET:
            if algorithm is not None:
                self.peers.check(algorithm)
        elif self.fold is None:
            raise ValueError(f"algorithm='innet': nothing folds for this job: {self.why}")
        elif not self._can_fold(reduction, coding):
            raise ValueError(f"algorithm='innet': {reduction.op} of {reduction.element} does not fold")

    def allreduce(self, nbytes: int, reduction: Reduction, algorithm: str | None, coding: Coding) -> str | None:
        """INNET, an algorithm between the hosts, or None for the peers' own.  May measure.

        nbytes     of the tensor
        algorithm  what the call asks for, checked
        """
        if self.fold is None or not self._can_fold(reduction, coding):
            return algorithm
        if algorithm is None and (self._sure(coding.lane_bits) or (coding.saturate and self.peers.algorithm == AUTO)):
            return INNET
        if (algorithm or self.peers.algorithm) != AUTO or self.several:
            return algorithm
        return self._cheapest(nbytes, reduction, "allreduce")

    def reduce_scatter(self, nbytes: int, reduction: Reduction, algorithm: str | None, coding: Coding) -> str:
        """INNET, or "ring" between the hosts.  May measure.

        A ring moves (N-1)/N of the tensor over a link, folding all of it: the more ranks, the less that matters beside
        the ring's N-1 steps.  Several rails have no fold of a part: there it is the ring of the first one.
        """
        if algorithm is None and self.fold is not None and not self.several and self._can_fold(reduction, coding):
            if self.always or (self.peers.algorithm == AUTO and coding.lane_bits != 32):
                return INNET
            if self.peers.algorithm == AUTO:
                return self._cheapest(nbytes, reduction, "reduce_scatter")
        return algorithm or "ring"

    def explain(self, nbytes: int, reduction: Reduction, algorithm: str | None, coding: Coding) -> str:
        """Which way an allreduce takes, and why.  Sends nothing."""
        op, dtype = reduction.op, reduction.element
        self.check(algorithm, reduction, coding)
        if algorithm not in (None, AUTO, INNET):
            return f"{nbytes} bytes go over {self.between} by {algorithm}, as asked for"
        if self.fold is None:
            return f"{self.peers.explain(nbytes)}; {self.why}"
        if not folds(op, dtype):
            return (
                f"{self.peers.explain(nbytes)}; {op} of {dtype} does not fold: sums, averages, maxima and minima of "
                "float32, float16, bfloat16 and int32 do"
            )
        bits = coding.lane_bits if narrows(op, dtype) else 32
        folded = _folded(nbytes, dtype)
        said = f"{dtype} folds as float32: " if dtype in HALVES else ""
        said += self.fold.describe(folded) if self.lanes is None else self.lanes.describe(folded, bits)
        if algorithm == INNET or self._sure(bits):
            return f"{said}; {'as asked for; ' if algorithm else ''}{self.why}"
        chosen = self.peers.chooser.known(nbytes, folded=folded)
        costs = self.peers.explain(nbytes, folded=folded)
        if self.peers.algorithm != AUTO or (chosen is not None and chosen.algorithm != INNET):
            return f"{costs}; {self.why}"
        return f"{costs}; {said}; {self.why}"

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _can_fold(self, reduction: Reduction, coding: Coding) -> bool:
        """Whether the switches can, where there are any."""
        saturates = self.lanes is not None and self.lanes.saturates
        return folds(reduction.op, reduction.element) and (saturates or not coding.saturate)

    def _sure(self, lane_bits: int) -> bool:
        """Whether what folds is folded without asking what it costs."""
        if self.always or self.lanes is None:
            return True
        return self.peers.algorithm == AUTO and (lane_bits != 32 or self.lanes.suffices)

    def _cheapest(self, nbytes: int, reduction: Reduction, collective: Collective) -> str:
        what = f"{reduction.op} of {nbytes // reduction.dtype.itemsize} x {reduction.element}"
        what = what if collective == "allreduce" else f"{collective}, {what}"
        folded = _folded(nbytes, reduction.element)
        return self.peers.choice(nbytes, what, folded=folded, collective=collective).algorithm


def folds(op: str, element: str) -> bool:
    """Whether the switches can: their lanes add integers, the hosts make them of floats."""
    return op in OPS and element in FOLDED


def _folded(nbytes: int, element: str) -> int:
    """Bytes of the lanes that carry so many bytes of a tensor."""
    return 2 * nbytes if element in HALVES else nbytes
