# SPDX-License-Identifier: Apache-2.0
"""All collectives of a group of ranks on numpy arrays: what a communicator offers, checked at the border.

Conventions: arrays of any shape and layout; reductions of the dtypes in ``collectives.elements`` (bfloat16 as
ml_dtypes.bfloat16, or as uint16 with dtype="bfloat16"), copies of any dtype but object; what is cut into pieces is cut
along its first axis; all ranks call the same operations in the same order.  Every operation raises TypeError and
ValueError for what it cannot take, before anything is sent, and CollectiveTimeout, PeerLost, RankMismatch,
TransportError, Busy, Closed.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count, repeat
from typing import TypeVar

import numpy as np

from netfold.host.arrays import (
    Array,
    check_writeable,
    counts_of,
    flat,
    flat_copy,
    in_bytes,
    native,
    pieces_of,
    result_of,
    rows_of,
    rows_with,
)
from netfold.host.collectives import BROADCAST, REDUCE
from netfold.host.collectives.choice import INNET
from netfold.host.collectives.elements import ReduceOp, Reduction, element_name
from netfold.host.folding.coding import PLAIN, Coding, LaneBits, Rounding, take_back
from netfold.host.halves import storage
from netfold.host.peers import Peers, named
from netfold.host.work import Turns, Work

T = TypeVar("T")
SCATTERED = ("ring", INNET)
"""Algorithms of reduce_scatter."""

log = logging.getLogger("netfold")


class Group:
    """Ranks 0 .. size-1.  Made by ``Communicator.group``; a Communicator is the group of all ranks.

    coding  of lanes, where a call says nothing else
    """

    def __init__(self, peers: Peers, turns: Turns, coding: Coding = PLAIN) -> None:
        self._peers = peers
        self._peers.note = turns.flight.note
        self._turns = turns
        self._coding = coding
        self._saturations = 0
        self._whole = peers.size > 1  # lanes are whole, whatever was asked for, and nobody has said so
        self._numbers = count(1)

    @property
    def rank(self) -> int:
        """This rank, 0 .. size - 1."""
        return self._peers.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._peers.size

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
        )  # fmt: skip

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

    # ---- copies ------------------------------------------------------------------------------------------------------
    def broadcast(self, array: Array, *, root: int = 0, algorithm: str | None = None) -> Array:
        """Fills every rank's array with the root's, in place.

        algorithm  one of ``collectives.BROADCAST``; default: the cheapest
        """
        self._check_rank(root, "root")
        named(algorithm, BROADCAST)
        check_writeable(array, "array")
        data = flat(array)
        with self._turn("broadcast", data.nbytes, dtype=data.dtype):
            self._peers.broadcast(data.view(np.uint8), root, algorithm=algorithm)
        if not np.may_share_memory(data, array):
            array[...] = data.reshape(array.shape)
        return array

    def all_gather(self, array: Array, out: Array | None = None, *, counts: Sequence[int] | None = None) -> Array:
        """Every rank's rows, one after another.

        counts  rows of each rank's array; default: as many as this one's
        """
        array = np.asarray(array)
        rows = rows_with(array, counts, self.rank, self.size)
        result = result_of((sum(rows), *array.shape[1:]), array, out)
        pieces = pieces_of(rows, array)
        data = flat(result)
        data[pieces[self.rank]] = array.reshape(-1)
        with self._turn("all_gather", data.nbytes, dtype=data.dtype):
            self._peers.all_gather(data.view(np.uint8), in_bytes(pieces, data))
        if not np.may_share_memory(data, result):
            result[...] = data.reshape(result.shape)
        return result

    def gather(
        self, array: Array, out: Array | None = None, *, root: int = 0, counts: Sequence[int] | None = None
    ) -> Array | None:
        """Every rank's rows, one after another, on ``root``; None elsewhere."""
        self._check_rank(root, "root")
        array = np.asarray(array)
        rows = rows_with(array, counts, self.rank, self.size)
        result = result_of((sum(rows), *array.shape[1:]), array, out) if self.rank == root else None
        pieces = pieces_of(rows, array)
        data = np.empty(pieces[-1].stop, native(array))
        data[pieces[self.rank]] = array.reshape(-1)
        with self._turn("gather", data.nbytes, dtype=data.dtype):
            self._peers.gather(data.view(np.uint8), in_bytes(pieces, data), root)
        if result is not None:
            result[...] = data.reshape(result.shape)
        return result

    def scatter(
        self, array: Array | None, out: Array, *, root: int = 0, counts: Sequence[int] | None = None
    ) -> Array:
        """Fills ``out`` with this rank's rows of the root's ``array``, which the others leave out (None)."""
        self._check_rank(root, "root")
        check_writeable(out, "out")
        rows = rows_with(out, counts, self.rank, self.size)
        pieces = pieces_of(rows, out)
        data = np.empty(pieces[-1].stop, native(out))
        if self.rank == root:
            if array is None:
                raise ValueError("scatter on the root: expected an array, got None")
            if array.shape != (sum(rows), *out.shape[1:]) or native(array) != data.dtype:
                wanted = f"{data.dtype}{[sum(rows), *out.shape[1:]]}"
                raise ValueError(f"array is {array.dtype}{list(array.shape)}: expected {wanted}, all ranks' rows")
            data[:] = array.reshape(-1)
        with self._turn("scatter", data.nbytes, dtype=data.dtype):
            self._peers.scatter(data.view(np.uint8), in_bytes(pieces, data), root)
        out[...] = data[pieces[self.rank]].reshape(out.shape)
        return out

    def all_to_all(
        self,
        array: Array,
        out: Array | None = None,
        *,
        counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None,
    ) -> Array:
        """Rows ``r`` of this rank go to rank r, rows from all ranks come back, in order of rank.

        counts      rows for each rank; default: all alike
        out_counts  rows from each rank; default: ``counts`` were all alike, so as many
        """
        array = np.asarray(array)
        given = rows_of(array, counts, self.size)
        if out_counts is None and len(set(given)) > 1:
            raise ValueError(f"counts={given}: unlike numbers need out_counts, the rows that come from each rank")
        taken = given if out_counts is None else counts_of(out_counts, self.size, "out_counts")
        result = result_of((sum(taken), *array.shape[1:]), array, out)
        if given[self.rank] != taken[self.rank]:
            raise ValueError(f"counts={given}, out_counts={taken}: rank {self.rank} must take what it gives itself")
        source = flat_copy(array)
        data = np.empty(result.size, source.dtype)
        to, by = in_bytes(pieces_of(given, array), data), in_bytes(pieces_of(taken, array), data)
        with self._turn("all_to_all", source.nbytes, dtype=source.dtype):
            self._peers.all_to_all(source.view(np.uint8), to, data.view(np.uint8), by)
        result[...] = data.reshape(result.shape)
        return result

    def barrier(self) -> None:
        """Returns once every rank has called it."""
        with self._turn("barrier"):
            self._peers.barrier()

    # ---- between two -------------------------------------------------------------------------------------------------
    def send(self, array: Array, peer: int, *, tag: int = 0) -> None:
        """Sends to another rank, which calls ``receive``.  Between two ranks messages arrive in the order sent."""
        self._check_peer(peer)
        data = flat(np.asarray(array))
        with self._turn("send", counted=False, nbytes=data.nbytes, dtype=data.dtype):
            self._peers.send(data, peer, tag)

    def receive(self, out: Array, peer: int, *, tag: int = 0) -> Array:
        """Fills ``out`` with the peer's next ``send``, which must have its size, dtype and tag."""
        self._check_peer(peer)
        check_writeable(out, "out")
        data = flat(out)
        with self._turn("receive", counted=False, nbytes=data.nbytes, dtype=data.dtype):
            self._peers.receive(data, peer, tag)
        if not np.may_share_memory(data, out):
            out[...] = data.reshape(out.shape)
        return out

    # ---- inside ------------------------------------------------------------------------------------------------------
    @contextmanager
    def _turn(
        self, name: str, nbytes: int = 0, op: str = "", dtype: object = "", *, counted: bool = True
    ) -> Iterator[int]:
        """An operation's turn and number; ``counted``: one that all ranks of the group call, else it has number 0."""
        numbers = self._numbers if counted else repeat(0)
        with self._turns.turn(numbers, self._peers.name.strip(), name, nbytes, op, dtype) as number:
            if counted:
                self._peers.number = number
            yield number

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
            )  # fmt: skip

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
    ) -> None:  # fmt: skip
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

    def _check_rank(self, rank: int, name: str) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(f"{name}={rank}: expected a rank of 0 .. {self.size - 1}")

    def _check_peer(self, peer: int) -> None:
        self._check_rank(peer, "peer")
        if peer == self.rank:
            raise ValueError(f"peer={peer} is this rank itself: expected another one")
