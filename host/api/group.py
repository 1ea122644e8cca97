# SPDX-License-Identifier: Apache-2.0
"""All collectives of a group of ranks on numpy arrays.

All ranks of the group call the same operations in the same order.  Arrays have any shape and layout; operations that
split an array split it along the first axis.  Reductions take the dtypes in ``operation.reduction.NAMES`` (bfloat16 as
ml_dtypes.bfloat16, or as uint16 with dtype="bfloat16"), the other operations any dtype but object.

Every operation raises TypeError and ValueError for arguments that it does not support, before anything is sent, and
CollectiveTimeout, PeerLost, RankMismatch, TransportError, Busy, Closed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from netfold.host.api import joinable
from netfold.host.api import reproducible as exact
from netfold.host.api.allreduce import PreparedAllreduce, check_way
from netfold.host.api.data_movement import DataMovement
from netfold.host.api.device_arrays import DeviceAllreduce, on_device
from netfold.host.api.facts import GroupFacts
from netfold.host.api.members import Members
from netfold.host.api.parameter_server import ParameterServer
from netfold.host.api.together import Together
from netfold.host.api.work import OperationSequencer, Work
from netfold.host.collectives import REDUCE
from netfold.host.errors import NetFoldError
from netfold.host.operation.arrays import Array, native, pieces_of, plain, result_of, rows_of
from netfold.host.operation.coding import PLAIN, Coding, LaneBits, Rounding
from netfold.host.operation.reduction import ReduceOp, Reduction, reduction_of
from netfold.host.operation.request import ALLREDUCE, AllreduceRequest
from netfold.host.parameters.optimizers import Optimizer
from netfold.host.selection.choice import INNET
from netfold.host.selection.dispatch import Dispatch
from netfold.host.selection.peers import named

T = TypeVar("T")
REMEMBERED: Final = 256
"""Number of kinds of ``allreduce`` that a group prepares.  A program has a few."""
SCATTERED = ("ring", INNET)
"""Names of the algorithms of reduce_scatter."""


class Group(GroupFacts, DataMovement):
    """Ranks 0 .. size-1.  Created by ``Communicator.group``; a Communicator is the group of all ranks.

    dispatch   carries the group's reductions, and has the mesh between its ranks
    sequencer  the communicator's, shared by all of its groups
    coding     lane coding of calls that ask for none
    first      number of its first operation
    """

    def __init__(
        self, dispatch: Dispatch, sequencer: OperationSequencer, coding: Coding = PLAIN, first: int = 1
    ) -> None:
        self._begin_anew(Members(dispatch, sequencer, first), coding)

    def _begin_anew(self, ranks: Members, coding: Coding) -> None:
        """Continues with these ranks."""
        self._ranks, self._coding = ranks, coding
        self._prepared: dict[tuple[object, ...], PreparedAllreduce] = {}
        """Dtype, bytes and arguments of ``allreduce`` -> what carries such calls."""

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

    def fail(self, error: NetFoldError, untold: str = "") -> None:
        """Prevents further operations of the communicator and its groups, which then raise this error; operations under
        way go on.  Any thread may call it.

        untold  the reason, which the other ranks hear when this one leaves, unless an operation has failed before
        """
        self._ranks.sequencer.fail(error, untold)

    def __repr__(self) -> str:
        return f"<Group of {self._ranks.peers.called}, {self._ranks.sequencer.me}>"

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
            array = plain(array)
        kind = (
            array.dtype, array.nbytes, op, dtype, algorithm, lane_bits, rounding, saturate, reproducible,
            feedback is None,
        )
        prepared = self._prepared.get(kind)
        if prepared is None:
            reduction = reduction_of(op, array, dtype)
            coding = self._coding.asked(
                array, op, reduction.element, lane_bits, rounding, feedback, saturate, reproducible
            )
            prepared = self._prepare(kind, op, reduction, coding, algorithm)
        if prepared.repeated is None:
            return prepared.carry(array, out, name, feedback)
        return prepared.repeat(array, out, name)

    def _prepare(
        self, kind: tuple[object, ...], op: ReduceOp, reduction: Reduction, coding: Coding, algorithm: str | None
    ) -> PreparedAllreduce:
        kept = len(self._prepared) < REMEMBERED
        prepared = PreparedAllreduce(self._ranks, op, reduction, coding, algorithm, kept=kept)
        if kept:
            self._prepared[kind] = prepared
        return prepared

    def machine_group(self, opener: Any) -> Any | None:
        """The group by which the ranks of this machine reduce tensors on devices themselves (``FoldingRail.inside``),
        if these ranks fold; None: ``allreduce`` carries them.  Its parameter and errors are those of ``inside``."""
        switches = self._ranks.dispatch.switches
        if switches is None or switches.fallback:
            return None
        return switches.inside(opener, partial(self._ranks.operation, f"opening {opener.kind}", counted=False))

    def allreduce_inside(self, step: Any, op: ReduceOp, element: str, *, name: str = ALLREDUCE) -> None:
        """``allreduce``, in place, of values on a device, which the ranks of this machine reduce by a
        ``machine_group``.

        step     a ``DeviceStep`` of that group, with the values
        element  the dtype of the caller's values; those of the step are its ``Reduction.wide``
        """
        reduction, array = Reduction(op, element), step.array
        reduction = reduction.wide if reduction.half else reduction
        kind = (array.dtype, array.nbytes, op, element, step.kind)
        prepared = self._prepared.get(kind)
        if prepared is None:
            coding = self._coding.asked(array, op, reduction.element, None, None, None, False)
            prepared = self._prepare(kind, op, reduction, coding, None)
        prepared.carry(array, array, name, inner=step)

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
        how: dict[str, Any] = {
            "op": op, "dtype": dtype, "algorithm": algorithm, "name": name, "lane_bits": lane_bits,
            "rounding": rounding, "feedback": feedback, "saturate": saturate, "reproducible": reproducible,
        }
        if type(array) is not np.ndarray and on_device(array):
            staged = DeviceAllreduce(self, array, out)
            return staged.start(how, f"{name}, {op} of {staged}")
        what = f"{np.size(array)} x {np.asarray(array).dtype}"
        return self.later(partial(self.allreduce, array, out, **how), f"{name}, {op} of {what}")

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
        array = plain(array)
        reduction = reduction_of(op, array, dtype)
        coding = self._coding.asked(array, op, reduction.element, None, None, None, False, reproducible)
        lanes = PLAIN if coding.reproducible else coding
        if algorithm == INNET:
            check_way(ranks, algorithm, reduction, lanes)
        ranks.dispatch.rows.check(algorithm, REDUCE, reduction, lanes)
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
                array, array if result is None else np.asarray(result), reduction, number, coding, algorithm
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
        array, ranks = plain(array), self._ranks
        reduction = reduction_of(op, array, dtype)
        rows = rows_of(array, counts, self.size)
        coding = self._coding.asked(array, op, reduction.element, None, None, None, False, reproducible)
        if coding.reproducible or (named(algorithm, SCATTERED) is not None and algorithm != "ring"):
            check_way(ranks, algorithm, reduction, coding)
        result = result_of((rows[self.rank], *array.shape[1:]), array, out)
        if coding.reproducible:
            whole = np.empty(array.shape, native(array))
            exact.allreduce(ranks, array, whole, reduction, algorithm, "reduce_scatter")
            result[...] = whole.reshape(-1)[pieces_of(rows, array)[self.rank]].reshape(result.shape)
            return result
        with ranks.operation("reduce_scatter", array.nbytes, op, reduction.element) as number:
            ranks.dispatch.reduce_scatter(
                AllreduceRequest(array, np.asarray(result), reduction, number, coding, algorithm),
                pieces_of(rows, array),
            )
        return result

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
        return joinable.scatter_of(self._ranks, plain(array), out, op, dtype)

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
