# SPDX-License-Identifier: Apache-2.0
"""All collectives of a group of ranks on numpy arrays: reductions here, beside the ``Copies`` that a group makes too.

Reductions take the dtypes in ``collectives.elements`` (bfloat16 as ml_dtypes.bfloat16, or as uint16 with
dtype="bfloat16"); what else holds for every operation, its errors above all, stands in ``copies``.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from netfold.host.api.copies import Copies
from netfold.host.api.work import Turns, Work
from netfold.host.collectives import REDUCE
from netfold.host.operation.arrays import Array, flat, flat_copy, pieces_of, result_of, rows_of
from netfold.host.operation.coding import PLAIN, Coding, LaneBits, Rounding, take_back
from netfold.host.operation.half_precision import storage
from netfold.host.operation.reduction import ReduceOp, Reduction, element_name
from netfold.host.selection.choice import INNET
from netfold.host.selection.peers import Peers, named

T = TypeVar("T")
SCATTERED = ("ring", INNET)
"""Algorithms of reduce_scatter."""

log = logging.getLogger("netfold")


class Group(Copies):
    """Ranks 0 .. size-1.  Made by ``Communicator.group``; a Communicator is the group of all ranks.

    coding  of lanes, where a call says nothing else
    """

    def __init__(self, peers: Peers, turns: Turns, coding: Coding = PLAIN) -> None:
        super().__init__(peers, turns)
        self._coding = coding
        self._saturations = 0
        self._whole = peers.size > 1  # lanes are whole, whatever was asked for, and nobody has said so

    def group(self, ranks: Sequence[int]) -> Group:
        """Some of this group's ranks, in this order, as a group of its own.  Only they call its operations."""
        return Group(self._peers.group(ranks), self._turns)

    # ---- reductions --------------------------------------------------------------------------------------------------
    def allreduce(
        self,
        array: Array,
        out: Array | None = None,
        op: ReduceOp = "sum",
        *,
        dtype: str | None = None,
        algorithm: str | None = None,
        name: str = "allreduce",
        lane_bits: LaneBits | None = None,
        rounding: Rounding | None = None,
        feedback: Array | None = None,
        saturate: bool = False,
    ) -> Array:
        """The reduction of every rank's array, the same bits on every rank.

        array      any shape (0-d and empty too); the same shape and dtype on all ranks
        out        where the result goes, may be ``array`` itself; default: a new array
        op         "sum", "product" (integers wrap), "average" (no integers), "max", "min"
        dtype      "bfloat16" where uint16 arrays hold it
        algorithm  one of ``peers.KNOWN``, or "innet", to fold in the switches; default: the communicator's
        name       what the flight recorder and the timeline call it

        How the switches are to do it, where they do:
        lane_bits  16 or 8: half and a quarter of the bytes of a folded sum or average of floats (docs/host.md has the
                   error bounds); all ranks must say the same.  Default: the communicator's
        rounding   of narrow lanes: "stochastic", the default, repeats with the job's name, the operation's number and
                   the rank; "nearest", the default with ``feedback``
        feedback   error feedback: float32 zeros of the array's shape at first, and the same array in every later call
                   on the same quantity.  It holds what narrow lanes left out so far, which is added before
        saturate   a sum of int32 stops at -2**31 and 2**31 - 1 instead of wrapping: a partial sum that gets there
                   stays.  ``stats().saturated`` counts elements that stand there, and a RuntimeWarning says how many
        """
        array = np.asarray(array)
        reduction = Reduction(op, element_name(array, dtype))
        coding = self._coding.asked(array, reduction.op, reduction.element, lane_bits, rounding, feedback, saturate)
        if coding.lane_bits != 32:
            self._narrow(coding.lane_bits)
        self._check_algorithm(algorithm, reduction, coding)
        result = result_of(array.shape, array, out)
        with self._turn(name, array.nbytes, reduction.op, reduction.element) as number:
            saturated = self._allreduce(array, result, reduction, algorithm, number, coding, feedback)
        if saturated:
            self._saturations += saturated
            warnings.warn(
                f"{self._turns.me}, {name}: {saturated} of {result.size} elements of a saturating sum stand at an end "
                "of int32's range: their sums are lost",
                RuntimeWarning,
                stacklevel=2,
            )
        return result

    def iallreduce(
        self,
        array: Array,
        out: Array | None = None,
        op: ReduceOp = "sum",
        *,
        dtype: str | None = None,
        algorithm: str | None = None,
        name: str = "allreduce",
        lane_bits: LaneBits | None = None,
        rounding: Rounding | None = None,
        feedback: Array | None = None,
        saturate: bool = False,
    ) -> Work[Array]:
        """``allreduce`` that returns at once; several may be under way, and are done in the order of their calls."""
        return self.later(
            partial(
                self.allreduce, array, out, op, dtype=dtype, algorithm=algorithm, name=name, lane_bits=lane_bits,
                rounding=rounding, feedback=feedback, saturate=saturate,
            ),
            f"{name}, {op} of {np.size(array)} x {np.asarray(array).dtype}",
        )

    def later(self, operation: Callable[[], T], what: str) -> Work[T]:
        """Any operation, asynchronously: ``comm.later(lambda: comm.all_gather(x), "gathering x")``.

        operation  calls collectives of this communicator or its groups, and is called after all that was begun before
        what       it is, for errors and the timeline
        """
        return self._turns.later(operation, what)

    def reduce(
        self,
        array: Array,
        out: Array | None = None,
        op: ReduceOp = "sum",
        *,
        root: int = 0,
        dtype: str | None = None,
        algorithm: str | None = None,
    ) -> Array | None:
        """The reduction of every rank's array on ``root``; None elsewhere.

        algorithm  one of ``collectives.REDUCE``; default: the cheapest
        """
        self._check_rank(root, "root")
        named(algorithm, REDUCE)
        array = np.asarray(array)
        reduction = Reduction(op, element_name(array, dtype))
        result = result_of(array.shape, array, out) if self.rank == root else None
        data = flat_copy(array)
        with self._turn("reduce", data.nbytes, op, reduction.element):
            self._peers.reduce(storage(data), reduction, root, algorithm=algorithm)
        if result is not None:
            result[...] = data.reshape(array.shape)
        return result

    def reduce_scatter(
        self,
        array: Array,
        out: Array | None = None,
        op: ReduceOp = "sum",
        *,
        counts: Sequence[int] | None = None,
        dtype: str | None = None,
        algorithm: str | None = None,
    ) -> Array:
        """This rank's rows of the reduction of every rank's array.

        counts     rows of each rank; default: all alike
        algorithm  "ring", or "innet": the switches fold all of it, and each rank keeps its rows; default: the cheaper
        """
        array = np.asarray(array)
        reduction = Reduction(op, element_name(array, dtype))
        rows = rows_of(array, counts, self.size)
        coding = self._coding.asked(array, op, reduction.element, None, None, None, False)
        if named(algorithm, SCATTERED) is not None and algorithm != "ring":
            self._check_algorithm(algorithm, reduction, coding)
        result = result_of((rows[self.rank], *array.shape[1:]), array, out)
        with self._turn("reduce_scatter", array.nbytes, op, reduction.element) as number:
            self._reduce_scatter(array, result, pieces_of(rows, array), reduction, algorithm, number, coding)
        return result

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _check_algorithm(self, algorithm: str | None, reduction: Reduction, coding: Coding) -> None:
        """Raises ValueError for what this group does not have, or cannot do that way."""
        del reduction, coding
        if algorithm is not None:
            self._peers.check(algorithm)

    def _narrow(self, lane_bits: int) -> None:
        """Says once where narrow lanes are asked for and nothing folds."""
        if self._whole:
            self._whole = False
            log.warning(
                "%s: lanes of %d bits are for what the switches fold; floats go between the hosts whole",
                self._turns.me, lane_bits,
            )

    def _allreduce(
        self,
        array: Array,
        result: Array,
        reduction: Reduction,
        algorithm: str | None,
        number: int,
        coding: Coding,
        feedback: Array | None,
    ) -> int:
        """Between the hosts: nothing is narrowed, so that nothing is left out."""
        if coding.saturate:
            return self._saturated(array, result, algorithm)
        whole = array if feedback is None else take_back(array, feedback, reduction.element)
        source, out = flat(whole), flat(result)
        self._peers.allreduce(storage(source), storage(out), reduction, algorithm=algorithm)
        if not np.may_share_memory(out, result):
            result[...] = out.reshape(result.shape)
        return 0

    def _reduce_scatter(
        self, array: Array, result: Array, pieces: Sequence[slice], reduction: Reduction, algorithm: str | None,
        number: int, coding: Coding,
    ) -> None:
        """By a ring between the hosts."""
        data = flat_copy(array)
        self._peers.reduce_scatter(storage(data), pieces, reduction)
        result[...] = data[pieces[self.rank]].reshape(result.shape)

    def _saturated(self, array: Array, result: Array, algorithm: str | None) -> int:
        """The exact sum, which 64 bits hold, cut to the range of 32."""
        wide = array.astype(np.int64).reshape(-1)
        self._peers.allreduce(wide, wide, Reduction("sum", "int64"), algorithm=algorithm)
        ends = np.iinfo(np.int32)
        result[...] = wide.clip(ends.min, ends.max).reshape(result.shape)
        return int(np.count_nonzero((wide <= ends.min) | (wide >= ends.max)))
