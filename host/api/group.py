# SPDX-License-Identifier: Apache-2.0
"""All collectives of a group of ranks on numpy arrays.

All ranks of the group call the same operations in the same order.  Arrays have any shape and layout; operations that
split an array split it along the first axis.  Reductions take the dtypes in ``operation.reduction.NAMES`` (bfloat16 as
ml_dtypes.bfloat16, or as uint16 with dtype="bfloat16"), the other operations any dtype but object.

Every operation raises TypeError and ValueError for arguments that it does not support, before anything is sent, and
CollectiveTimeout, PeerLost, RankMismatch, TransportError, Busy, Closed.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar, get_args

import numpy as np

from netfold.host.api import data_movement, joinable
from netfold.host.api import reproducible as exact
from netfold.host.api.device_arrays import DeviceAllreduce, on_device
from netfold.host.api.members import Members
from netfold.host.api.parameter_server import ParameterServer
from netfold.host.api.together import Together
from netfold.host.api.work import OperationSequencer, Work
from netfold.host.collectives import REDUCE
from netfold.host.innet.native import library
from netfold.host.operation.arrays import Array, native, pieces_of, result_of, rows_of
from netfold.host.operation.coding import PLAIN, Coding, LaneBits, Rounding, check_levels
from netfold.host.operation.rail import RailStats
from netfold.host.operation.reduction import ReduceOp, Reduction, reduction_of
from netfold.host.operation.request import ALLREDUCE, AllreduceRequest
from netfold.host.parameters.optimizers import Optimizer
from netfold.host.selection.choice import INNET, Collective
from netfold.host.selection.dispatch import Dispatch
from netfold.host.selection.peers import named
from netfold.host.selection.repeated import Repeated

T = TypeVar("T")
REMEMBERED = 64
"""Signatures of ``allreduce`` calls whose checked arguments are cached: a program repeats a few of them, and beside a
small tensor each check counts."""
SCATTERED = ("ring", INNET)
"""Names of the algorithms of reduce_scatter."""


class Group:
    """Ranks 0 .. size-1.  Created by ``Communicator.group``; a Communicator is the group of all ranks.

    dispatch   carries the group's reductions, and has the mesh between its ranks
    sequencer  the communicator's, shared by all of its groups
    coding     lane coding of calls that ask for none
    first      number of its first operation
    """

    def __init__(
        self, dispatch: Dispatch, sequencer: OperationSequencer, coding: Coding = PLAIN, first: int = 1
    ) -> None:
        self._begin_anew(dispatch, sequencer, coding, first)
        self._checked: dict[tuple[object, ...], tuple[Reduction, Coding]] = {}
        """Arguments of ``allreduce`` -> the reduction and the coding that they ask for, once checked."""
        self._saturated = 0
        """Elements of all saturating sums so far that ended at a limit of the range."""

    def _begin_anew(self, dispatch: Dispatch, sequencer: OperationSequencer, coding: Coding, first: int) -> None:
        """Continues with these ranks; ``first`` is the number of their next operation."""
        self._ranks = Members(dispatch, sequencer, first)
        self._coding = coding
        self._repeats: dict[tuple[object, ...], Repeated] = {}
        """Dtype, bytes, operation and algorithm of calls that ask for no coding of their own -> their prepared fold."""

    @property
    def rank(self) -> int:
        """This rank, 0 .. size - 1."""
        return self._ranks.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._ranks.size

    def group(self, ranks: Sequence[int]) -> Group:
        """A group of some of this group's ranks, in this order.  Only they call its operations.

        The group gets trees of its own before its first reduction that is worth it, if folding saves traffic between
        its ranks' machines and the switches have room; otherwise its operations go between the hosts (``explain``).
        ``close`` returns the switches' slots.
        """
        dispatch = self._ranks.dispatch.group(ranks)
        seed = zlib.crc32(dispatch.hosts.label.encode(), self._coding.seed)
        return Group(dispatch, self._ranks.sequencer, replace(self._coding, seed=seed))

    def close(self, reason: str = "") -> None:
        """Returns the switches' slots of this group; its ranks call no further operation of it.

        reason  why the program leaves the group although other ranks may go on
        """
        self._ranks.end(reason)

    # ---- what it does ------------------------------------------------------------------------------------------------
    def stats(self) -> RailStats:
        """Operations, bytes, packets and retransmissions so far, in total and by tree."""
        return replace(self._ranks.dispatch.stats(), saturated=self._saturated)

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
        """
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

    def path(self, op: str = "sum", dtype: str = "float32") -> str:
        """Name of the rail that carries such an allreduce if the call names no algorithm: ``rail``, or "tcp" or "roce".

        With rail="auto", small tensors may go between the hosts all the same (``explain``).
        """
        if self.reproducible and "float" in dtype:
            integers = exact.carried(op, dtype)
            return self._ranks.dispatch.path(integers.op, integers.element)
        return self._ranks.dispatch.path(op, dtype)

    # ---- reductions --------------------------------------------------------------------------------------------------
    def allreduce(
        self,
        array: Array,
        out: Array | None = None,
        op: ReduceOp = "sum",
        *,
        dtype: str | None = None,
        algorithm: str | None = None,
        name: str = ALLREDUCE,
        lane_bits: LaneBits | None = None,
        rounding: Rounding | None = None,
        feedback: Array | None = None,
        saturate: bool = False,
        reproducible: bool | None = None,
    ) -> Array:
        """The reduction of every rank's array, the same bits on every rank.

        array      any shape (0-d and empty too); the same shape and dtype on all ranks; arrays in a device's memory, of
                   CuPy, JAX or torch, get their result there (``device_arrays``)
        out        array for the result, which may be ``array`` itself; default: a new array
        op         "sum", "product" (integers wrap), "average" (no integers), "max", "min"
        dtype      "bfloat16" where uint16 arrays hold it; for arrays that the caller has widened, one of
                   ``operation.reduction.WIDENED``, so that ranks which have widened another dtype are told
        algorithm  one of ``peers.KNOWN``, or "innet", to fold in the switches; default: the communicator's
        name       what the flight recorder and the timeline call it

        For reductions that the switches fold:
        lane_bits  16 or 8: half and a quarter of the bytes of a folded sum or average of floats (docs/host.md has the
                   error bounds); all ranks must say the same.  Default: the communicator's
        rounding   of narrow lanes: "stochastic", the default, repeats with the job's name, the operation's number and
                   the rank; "nearest", the default with ``feedback``
        feedback   error feedback: float32 zeros of the array's shape at first, and the same array in every later call
                   on the same quantity.  It holds what narrow lanes left out so far, which is added before
        saturate   a sum of int32 stops at -2**31 and 2**31 - 1 instead of wrapping: a partial sum that gets there
                   stays.  ``stats().saturated`` counts elements that stand there, and a RuntimeWarning says how many

        reproducible  floats are added exactly and rounded once, so that the bits depend on the contributions alone, not
                   on the ranks' order, the path or what else is in the array (docs/host.md has the cost).  Default: the
                   communicator's; integers are exact in any case
        """
        if type(array) is not np.ndarray:
            if on_device(array):
                return DeviceAllreduce(self, array, out)(  # type: ignore[no-any-return]
                    op=op, dtype=dtype, algorithm=algorithm, name=name, lane_bits=lane_bits, rounding=rounding,
                    feedback=feedback, saturate=saturate, reproducible=reproducible,
                )
            array = np.asarray(array)
        ranks = self._ranks
        usual = (
            dtype is None and lane_bits is None and rounding is None and feedback is None and reproducible is None
            and not saturate
        )
        if usual and (repeated := self._repeat(array, out, op, algorithm, name)) is not None:
            return repeated
        asked = array.dtype, op, dtype, algorithm, lane_bits, rounding, saturate, reproducible
        checked = self._checked.get(asked) if feedback is None else None
        if checked is None:
            reduction = reduction_of(op, array, dtype)
            coding = self._coding.asked(
                array, op, reduction.element, lane_bits, rounding, feedback, saturate, reproducible
            )
            if coding.lane_bits != 32:
                ranks.dispatch.check_lanes(coding.lane_bits)
            self._check_way(algorithm, reduction, coding)
            if feedback is None and len(self._checked) < REMEMBERED:
                self._checked[asked] = reduction, coding
        else:
            reduction, coding = checked
        result = result_of(array.shape, array, out)
        if coding.reproducible:
            exact.allreduce(ranks, array, result, reduction, algorithm, name)
            return result
        number = ranks.begin(name, array.nbytes, reduction.op, reduction.element)
        try:
            request = AllreduceRequest(array, result, reduction, number, coding, algorithm, feedback, name)
            saturated = ranks.dispatch.allreduce(request)
            if usual and len(self._repeats) < REMEMBERED and (found := ranks.dispatch.repeated(request)) is not None:
                self._repeats[array.dtype, array.nbytes, op, algorithm] = found
        except BaseException as error:
            ranks.sequencer.end(error)
            raise
        ranks.sequencer.end(None)
        if saturated:
            self._saturated += saturated
            warnings.warn(
                f"{ranks.sequencer.me}, {name}: {saturated} of {result.size} elements of a saturating sum stand at an "
                "end of int32's range: their sums are lost",
                RuntimeWarning,
                stacklevel=2,
            )
        return result

    def _repeat(
        self, array: Array, out: Array | None, op: ReduceOp, algorithm: str | None, name: str
    ) -> Array | None:
        """Repeats a prepared ``allreduce``: one without a coding of its own, of a signature that the switches have
        folded before, and of arrays that need no conversion.  Returns None, having done nothing, for all others.

        It checks only the properties that may differ between two such calls: when ranks share processors, each further
        step misses the caches, and costs more than sending 4 KiB.
        """
        ranks, what = self._ranks, (array.dtype, array.nbytes, op, algorithm)
        known = self._repeats.get(what)
        if known is None:
            return None
        hosts = ranks.dispatch.hosts
        if known.hosts is not hosts or known.chooser.measured is not known.measured:
            self._repeats.pop(what, None)  # another thread may have
            return None
        own = array.flags
        if not own.carray:
            return None
        if out is None:
            out = np.empty(array.shape, array.dtype)
        elif out is not array:
            if type(out) is not np.ndarray or out.shape != array.shape or out.dtype != array.dtype:
                return None
            its = out.flags
            if not its.carray or not ((own.owndata and its.owndata) or not np.may_share_memory(array, out)):
                return None
        sequencer = ranks.sequencer
        number = sequencer.begin(
            ranks.numbers, ranks.incarnation, hosts.called, name, array.nbytes, op, known.element, known.rail.name
        )
        try:
            resent = known.rail.repeat(known.like, array, out, number, name)
            if resent is None:  # the trees have changed, say: that is looked at anew
                self._repeats.pop(what, None)
                sequencer.flight.take_back()
                hosts.count_from(number)
                ranks.dispatch.allreduce(
                    AllreduceRequest(
                        array, out, Reduction(op, known.element), number, known.coding, algorithm, name=name
                    )
                )
            elif known.rail.fallback:
                sequencer.flight.note(f"{known.rail.name}, then TCP: {known.rail.fallback}")
            if resent:
                sequencer.flight.count_retransmissions(resent)
        except BaseException as error:
            sequencer.flight.count_retransmissions(known.like.resent)
            sequencer.end(error)
            raise
        sequencer.end(None)
        return out

    def iallreduce(
        self,
        array: Array,
        out: Array | None = None,
        op: ReduceOp = "sum",
        *,
        dtype: str | None = None,
        algorithm: str | None = None,
        name: str = ALLREDUCE,
        lane_bits: LaneBits | None = None,
        rounding: Rounding | None = None,
        feedback: Array | None = None,
        saturate: bool = False,
        reproducible: bool | None = None,
    ) -> Work[Array]:
        """Starts an ``allreduce`` and returns at once; several may be under way, and run in the order of the calls."""
        if type(array) is not np.ndarray and on_device(array):
            call: Callable[..., Array] = DeviceAllreduce(self, array, out)
            what = str(call)
        else:
            call, what = partial(self.allreduce, array, out), f"{np.size(array)} x {np.asarray(array).dtype}"
        return self.later(
            partial(
                call, op=op, dtype=dtype, algorithm=algorithm, name=name, lane_bits=lane_bits, rounding=rounding,
                feedback=feedback, saturate=saturate, reproducible=reproducible,
            ),
            f"{name}, {op} of {what}",
        )

    @property
    def repeats_losses(self) -> bool:
        """True if an allreduce is finished although a rank is lost; it must be a single operation then."""
        return False

    def later(self, operation: Callable[[], T], what: str) -> Work[T]:
        """Runs any operation asynchronously: ``comm.later(lambda: comm.all_gather(x), "gathering x")``.

        operation  calls collectives of this communicator or its groups; called after all operations that were started
                   before
        what       its name in errors and the timeline
        """
        return self._ranks.sequencer.later(operation, what)

    def reduce(
        self,
        array: Array,
        out: Array | None = None,
        op: ReduceOp = "sum",
        *,
        root: int = 0,
        dtype: str | None = None,
        algorithm: str | None = None,
        reproducible: bool | None = None,
    ) -> Array | None:
        """The reduction of every rank's array on ``root``; None elsewhere.

        algorithm     one of ``collectives.REDUCE``, or "innet": the switches fold for the root alone; default: the
                      cheapest
        reproducible  as in ``allreduce``, which then carries it: every rank receives the sum
        """
        ranks = self._ranks
        ranks.check_rank(root, "root")
        array = np.asarray(array)
        reduction = reduction_of(op, array, dtype)
        if algorithm == INNET:
            self._check_way(algorithm, reduction, PLAIN)
        ranks.dispatch.rows.check(algorithm, REDUCE, reduction)
        coding = self._coding.asked(array, op, reduction.element, None, None, None, False, reproducible)
        result = result_of(array.shape, array, out) if self.rank == root else None
        if coding.reproducible:
            exact.check(ranks.dispatch)
            if algorithm is not None:
                raise ValueError(f"algorithm={algorithm!r}, reproducible=True: an allreduce carries it; give either")
            whole = np.empty(array.shape, native(array)) if result is None else result
            exact.allreduce(ranks, array, whole, reduction, None, "reduce")
            return result
        with ranks.operation("reduce", array.nbytes, op, reduction.element) as number:
            asked = AllreduceRequest(
                array, array if result is None else result, reduction, number, coding, algorithm
            )
            ranks.dispatch.foresee(asked)
            ranks.dispatch.rows.reduce(asked, root)
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
        reproducible: bool | None = None,
    ) -> Array:
        """This rank's rows of the reduction of every rank's array.

        counts     rows of each rank; default: equally many
        algorithm  "ring", or "innet": the switches fold, and each rank gets its rows; default: the cheaper one
        reproducible  as in ``allreduce``, which then carries it: every rank receives the whole sum
        """
        array, ranks = np.asarray(array), self._ranks
        reduction = reduction_of(op, array, dtype)
        rows = rows_of(array, counts, self.size)
        coding = self._coding.asked(array, op, reduction.element, None, None, None, False, reproducible)
        if coding.reproducible or (named(algorithm, SCATTERED) is not None and algorithm != "ring"):
            self._check_way(algorithm, reduction, coding)
        result = result_of((rows[self.rank], *array.shape[1:]), array, out)
        if coding.reproducible:
            whole = np.empty(array.shape, native(array))
            exact.allreduce(ranks, array, whole, reduction, algorithm, "reduce_scatter")
            result[...] = whole.reshape(-1)[pieces_of(rows, array)[self.rank]].reshape(result.shape)
            return result
        with ranks.operation("reduce_scatter", array.nbytes, op, reduction.element) as number:
            ranks.dispatch.reduce_scatter(
                AllreduceRequest(array, result, reduction, number, coding, algorithm), pieces_of(rows, array)
            )
        return result

    def _check_way(self, algorithm: str | None, reduction: Reduction, coding: Coding) -> None:
        """Raises ValueError for an algorithm that does not exist, or cannot carry this reduction. A group that does not
        fold yet asks for trees first, if the algorithm needs them."""
        dispatch = self._ranks.dispatch
        if algorithm == INNET and dispatch.may_open:
            with self._ranks.operation("asking for trees"):
                dispatch.open_fold()
        if coding.reproducible:
            exact.check(self._ranks.dispatch)
            reduction, coding = exact.carried(reduction.op, reduction.element), PLAIN
        self._ranks.dispatch.check(algorithm, reduction, coding)

    def together(self) -> Together:
        """A context within which one ``reduce_scatter`` and one ``all_gather`` are called; both run at the same time
        when it ends: ``with comm.together() as both: both.reduce_scatter(..); both.all_gather(..)``."""
        return Together(self._ranks, self._coding, self.reduce_scatter, self.all_gather)

    def all_gather_to_join(self, array: Array, out: Array, following: Callable[[], joinable.Next]) -> bool:
        """``all_gather`` of equally many rows, which a reduce_scatter called meanwhile may join: all ranks call this,
        and agree on it while it is under way (``joinable``).

        following  returns the program's next call, as far as known; called before each part, on this thread
        Returns True if the reduce_scatter that ``following`` returned was also done.
        """
        return joinable.all_gather(self._ranks, self._coding, array, out, following)

    @property
    def joins_nothing(self) -> str:
        """Why no reduce_scatter can join an ``all_gather_to_join`` at present; empty if one can."""
        return joinable.refusal(self._ranks, self._coding)

    def scatter_to_join(
        self, array: Array, out: Array, op: ReduceOp = "sum", *, dtype: str | None = None
    ) -> joinable.Scatter:
        """Prepares a ``reduce_scatter`` of equally many rows, for ``following`` of ``all_gather_to_join``.  Sends
        nothing."""
        return joinable.scatter_of(self._ranks, np.asarray(array), out, op, dtype)

    def parameter_server(
        self, parameters: Mapping[str, Array], optimizer: Optimizer, *, servers: Sequence[int] | None = None,
        workers: Sequence[int] | None = None,
    ) -> ParameterServer:
        """Servers that hold the parameters and run the optimizer; all ranks call it.

        parameters  name -> array; the first worker's values count, and overwrite all ranks' arrays
        optimizer   ``netfold.host.parameters.optimizers``: Sgd or Adam
        servers     ranks that each hold a part, equal to within an element; default: all
        workers     ranks that push and pull; default: all.  Each rank must be one or the other
        """
        return ParameterServer(self._ranks, parameters, optimizer, servers=servers, workers=workers)

    # ---- moving arrays as they are -----------------------------------------------------------------------------------
    def broadcast(self, array: Array, *, root: int = 0, algorithm: str | None = None) -> Array:
        """Fills every rank's array with that of the root, in place.

        algorithm  one of ``collectives.BROADCAST``, or "innet": the switches replicate it; default: the cheapest
        """
        return data_movement.broadcast(self._ranks, array, root=root, algorithm=algorithm)

    def all_gather(
        self, array: Array, out: Array | None = None, *, counts: Sequence[int] | None = None,
        algorithm: str | None = None,
    ) -> Array:
        """Every rank's rows, one after another.

        counts     rows of each rank's array; default: as many as this one's
        algorithm  "ring", or "innet": the switches replicate each rank's rows to all; default: the cheaper one
        """
        return data_movement.all_gather(self._ranks, array, out, counts=counts, algorithm=algorithm)

    def gather(
        self, array: Array, out: Array | None = None, *, root: int = 0, counts: Sequence[int] | None = None
    ) -> Array | None:
        """Every rank's rows, one after another, on ``root``; None elsewhere."""
        return data_movement.gather(self._ranks, array, out, root=root, counts=counts)

    def scatter(
        self, array: Array | None, out: Array, *, root: int = 0, counts: Sequence[int] | None = None
    ) -> Array:
        """Fills ``out`` with this rank's rows of the root's ``array``, which the other ranks do not pass (None)."""
        return data_movement.scatter(self._ranks, array, out, root=root, counts=counts)

    def all_to_all(
        self,
        array: Array,
        out: Array | None = None,
        *,
        counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None,
    ) -> Array:
        """Sends rows ``r`` of this rank to rank r, and returns the rows from all ranks, in order of rank.

        counts      rows for each rank; default: equally many
        out_counts  rows from each rank; default: as many as in ``counts``, which then are all equal
        """
        return data_movement.all_to_all(self._ranks, array, out, counts=counts, out_counts=out_counts)

    def barrier(self, *, algorithm: str | None = None) -> None:
        """Returns once every rank has called it.

        algorithm  "dissemination" between the hosts, or "innet": one packet from each rank, which the switches fold;
                   default: "innet" if they fold
        """
        data_movement.barrier(self._ranks, algorithm=algorithm)

    # ---- between two -------------------------------------------------------------------------------------------------
    def send(self, array: Array, peer: int, *, tag: int = 0) -> None:
        """Sends to another rank, which calls ``receive``.  Between two ranks messages arrive in the order sent."""
        data_movement.send(self._ranks, array, peer, tag=tag)

    def receive(self, out: Array, peer: int, *, tag: int = 0) -> Array:
        """Fills ``out`` with the peer's next ``send``, which must have its size, dtype and tag."""
        return data_movement.receive(self._ranks, out, peer, tag=tag)
