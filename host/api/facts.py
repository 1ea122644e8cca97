# SPDX-License-Identifier: Apache-2.0
"""What a group says about itself, its traffic and the ways of its calls.  Nothing is sent for it."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral
from typing import get_args

from netfold.host.api import reproducible as exact
from netfold.host.api.members import Members
from netfold.host.innet.native import library
from netfold.host.operation.coding import Coding, LaneBits, check_levels
from netfold.host.operation.rail import RailStats
from netfold.host.operation.reduction import ReduceOp, Reduction
from netfold.host.selection.choice import Collective


class GroupFacts:
    """The part of a ``Group`` that tells what it is and does."""

    def __init__(self, ranks: Members, coding: Coding) -> None:
        self._ranks, self._coding = ranks, coding

    @property
    def rank(self) -> int:
        """This rank, 0 .. size - 1."""
        return self._ranks.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._ranks.size

    def stats(self) -> RailStats:
        """Operations, bytes, packets and retransmissions so far, in total and by tree."""
        return replace(self._ranks.dispatch.stats(), saturated=self._ranks.saturated)

    @property
    def reproducible(self) -> bool:
        """True if reductions of floats are reproducible by default."""
        return self._coding.reproducible

    def explain(
        self,
        nbytes: int,
        op: ReduceOp = "sum",
        dtype: str = "float32",
        *,
        algorithm: str | None = None,
        reproducible: bool | None = None,
        collective: Collective = "allreduce",
    ) -> str:
        """Which path a collective of ``nbytes`` bytes takes, and why, with each algorithm's expected cost once
        measured.  Sends nothing.

        algorithm, reproducible  arguments of the call
        collective               "allreduce", "reduce_scatter", "reduce", "all_gather", "broadcast" or "barrier"

        Raises ValueError and TypeError for what no collective takes.
        """
        if not isinstance(nbytes, Integral) or nbytes < 0:
            raise ValueError(f"nbytes={nbytes!r}: expected the bytes of a collective, a whole number of 0 or more")
        if collective not in get_args(Collective):
            raise ValueError(f"collective={collective!r}: expected one of {', '.join(get_args(Collective))}")
        exactly = collective in ("allreduce", "reduce_scatter", "reduce") and "float" in dtype
        if exactly and (self.reproducible if reproducible is None else reproducible):
            return exact.explain(self._ranks.dispatch, nbytes, Reduction(op, dtype), algorithm)
        return self._ranks.dispatch.explain(nbytes, Reduction(op, dtype), algorithm, self._coding, collective)

    def lanes(self, lane_bits: LaneBits | None = None, *, reproducible: bool | None = None) -> LaneBits:
        """Width in bits of the lanes of a sum of floats with these arguments; 32 if nothing folds.

        Raises ValueError for an invalid width, and one that is not whole beside ``reproducible``.
        """
        exactly = self.reproducible if reproducible is None else reproducible
        bits = replace(self._coding, lane_bits=lane_bits or self._coding.lane_bits, reproducible=exactly).lane_bits
        narrow = self._ranks.dispatch.narrow
        if narrow is None:
            return 32
        check_levels(bits, narrow.members)
        return bits

    def rounding_key(self) -> int:
        """The key by which this rank rounds values that it narrows itself, as its last operation would have rounded: it
        depends on the job's name, the operation's number and the rank.  Call it while no operation is under way."""
        return int(library().nf_key(self._coding.seed, self._ranks.finished(), self.rank))

    def path(self, op: ReduceOp = "sum", dtype: str = "float32") -> str:
        """Name of the rail that carries such an allreduce if the call names no algorithm: ``rail``, or "tcp" or "roce".

        With rail="auto", small tensors may go between the hosts all the same (``explain``).  Raises ValueError and
        TypeError for what no allreduce takes.
        """
        reduction = Reduction(op, dtype)
        if self.reproducible and "float" in dtype:
            reduction = exact.carried(op, dtype)
        return self._ranks.dispatch.path(reduction.op, reduction.element)
