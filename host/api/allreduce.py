# SPDX-License-Identifier: Apache-2.0
"""The allreduces of a group, each kind of which is prepared once: as MPI's persistent collectives."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from netfold.host.api import reproducible as exact
from netfold.host.api.members import Members
from netfold.host.operation.arrays import Array, result_of
from netfold.host.operation.coding import PLAIN, Coding, check_feedback
from netfold.host.operation.prepared import PreparedCall
from netfold.host.operation.reduction import ReduceOp, Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.host.selection.choice import INNET


class PreparedAllreduce(PreparedCall):
    """All allreduces of a group that are alike in dtype, size and arguments, whose arguments have been checked.

    ranks      of the group
    op         as the caller says it
    reduction, coding  that they ask for
    algorithm  an algorithm between the hosts, or "innet"; None: the caller names none
    kept       True if the next such call uses this object
    Raises ValueError for an algorithm that does not exist or cannot carry them, and for lanes that cannot hold the sum.
    """

    __slots__ = ("_algorithm", "_coding", "_kept", "_op", "_ranks", "_reduction")

    def __init__(
        self, ranks: Members, op: ReduceOp, reduction: Reduction, coding: Coding, algorithm: str | None, *, kept: bool
    ) -> None:
        super().__init__()
        if coding.lane_bits != 32:
            ranks.dispatch.check_lanes(coding.lane_bits)
        check_way(ranks, algorithm, reduction, coding)
        self._ranks, self._op, self._reduction, self._coding, self._algorithm = ranks, op, reduction, coding, algorithm
        self._kept = kept

    def carry(
        self, array: Array, out: Array | None, name: str, feedback: Array | None = None, inner: Any = None
    ) -> Array:
        """Makes one of them; the parameters are those of ``Group.allreduce``, and ``inner`` that of a request."""
        ranks, reduction, algorithm = self._ranks, self._reduction, self._algorithm
        if feedback is not None:
            check_feedback(feedback, array)
            feedback = np.asarray(feedback)
        result = result_of(array.shape, array, out)
        if self._coding.reproducible:
            exact.allreduce(ranks, array, result, reduction, algorithm, name)
            return result
        number = ranks.begin(name, array.nbytes, reduction.op, reduction.element)
        try:
            request = self._request(array, result, number, name, feedback, inner)
            saturated = ranks.dispatch.allreduce(request)
            ranks.dispatch.prepare(request)
        except BaseException as error:
            ranks.sequencer.end(error)
            raise
        ranks.sequencer.end(None)
        if saturated:
            ranks.count_saturated(saturated)
            warnings.warn(
                f"{ranks.sequencer.me}, {name}: {saturated} of {result.size} elements of a saturating sum stand at an "
                "end of int32's range: their sums are lost",
                RuntimeWarning,
                stacklevel=3,  # who has called Group.allreduce
            )
        return result

    def repeat(self, array: Array, out: Array | None, name: str) -> Array:
        """Makes one of them as ``carry`` does, if the switches have folded such a call before (``repeated``).

        It checks only what may differ between two such calls: when ranks share processors, each further step misses the
        caches, and costs more than sending 4 KiB.
        """
        repeated = self.repeated
        if repeated is None:
            return self.carry(array, out, name)
        (known, like), ranks, own = repeated, self._ranks, array.flags
        hosts, rail = ranks.dispatch.hosts, known.switches
        if known.hosts is not hosts or known.measured is not hosts.chooser.measured or not own.carray:
            return self.carry(array, out, name)
        if out is None:
            out = np.empty(array.shape, array.dtype)
        elif out is not array:
            if type(out) is not np.ndarray or out.shape != array.shape or out.dtype != array.dtype:
                return self.carry(array, out, name)
            its = out.flags
            if not its.carray or not ((own.owndata and its.owndata) or not np.may_share_memory(array, out)):
                return self.carry(array, out, name)
        sequencer, element = ranks.sequencer, self._reduction.element
        number = sequencer.begin(
            ranks.numbers, ranks.incarnation, hosts.called, name, array.nbytes, self._op, element, rail.name
        )
        try:
            resent = rail.repeat(like, array, out, number, name)
            if resent is None:  # the trees have changed, say: that is looked at anew
                self.look_anew()
                sequencer.flight.take_back()
                hosts.count_from(number)
                ranks.dispatch.allreduce(self._request(array, out, number, name))
            elif rail.fallback:
                sequencer.flight.note(f"{rail.name}, then TCP: {rail.fallback}")
            if resent:
                sequencer.flight.count_retransmissions(resent)
        except BaseException as error:
            sequencer.flight.count_retransmissions(like.resent)
            sequencer.end(error)
            raise
        sequencer.end(None)
        return out

    def _request(
        self, array: Array, out: Array, number: int, name: str, feedback: Array | None = None, inner: Any = None
    ) -> AllreduceRequest:
        return AllreduceRequest(
            array, np.asarray(out), self._reduction, number, self._coding, self._algorithm, feedback, name,
            self if self._kept else None, inner,
        )


def check_way(ranks: Members, algorithm: str | None, reduction: Reduction, coding: Coding) -> None:
    """Raises ValueError for an algorithm that does not exist, or cannot carry this reduction.  A group that does not
    fold yet asks for trees first, if the algorithm needs them."""
    dispatch = ranks.dispatch
    if algorithm == INNET and dispatch.may_open:
        with ranks.operation("asking for trees"):
            dispatch.open_fold()
    if coding.reproducible:
        exact.check(dispatch)
        reduction, coding = exact.carried(reduction.op, reduction.element), PLAIN
    dispatch.check(algorithm, reduction, coding)
