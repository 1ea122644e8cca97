# SPDX-License-Identifier: Apache-2.0
"""A communicator that continues by itself after the loss of a rank: ``Communicator.join(..., on_loss="shrink")``.

The allreduce that was under way is finished exactly, on all ranks alike:

    no rank has finished it          all remaining ranks repeat it with their inputs
    some have, and others have not   those that have send it to the others: it includes the lost rank's part

For that it keeps a copy of the last result, and of an input that is summed in place: two copies of the tensor.  Other
communicators keep none.  Other operations under way end with RanksChanged on all ranks, since their root or counts may
name a lost rank; the program repeats them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

import numpy as np

from netfold.host.api.change import RankChange
from netfold.host.api.communicator import Communicator
from netfold.host.api.device_arrays import DeviceAllreduce, on_device
from netfold.host.api.joinable import Next
from netfold.host.api.parts import Parts
from netfold.host.api.together import Together, Waiting
from netfold.host.errors import CollectiveTimeout, NetFoldError, PeerLost, RailDown, RanksChanged, TreesLost
from netfold.host.operation.arrays import Array, native, plain
from netfold.host.operation.reduction import ReduceOp

LOSSES: Final = (PeerLost, TreesLost, CollectiveTimeout, RailDown)
"""The errors with which an operation may end when a rank is lost."""
OTHERS: Final = (
    "reduce", "reduce_scatter", "broadcast", "all_gather", "gather", "scatter", "all_to_all", "barrier",
)
"""Operations of all ranks that are not repeated after a loss."""

log = logging.getLogger("netfold")


class EnduringCommunicator(Communicator, on_loss="shrink"):
    """A communicator created by ``Communicator.join(on_loss="shrink")``."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        change = parts.membership.plan.change
        self._done = 0 if change is None else change.finished[self.rank]
        """Number of the last operation that the program has finished."""
        self._kept: Array | None = None
        """Result of that operation, if it was an allreduce."""
        self._stuck: Exception | None = None
        """The error of an operation that failed although no rank was lost.  No operation can begin until ``shrink`` or
        ``grow``, since the ranks may be in different ones."""

    def allreduce(self, array: Array, out: Array | None = None, op: ReduceOp = "sum", **how: Any) -> Array:
        """Same as ``Group.allreduce``; if a rank is lost meanwhile, the reduction still ends as described above.
        Raises RanksChanged if the other ranks were in another operation."""
        if type(array) is not np.ndarray and on_device(array):
            return DeviceAllreduce(self, array, out)(op=op, **how)  # type: ignore[no-any-return]
        self._check_begin()
        array, feedback = plain(array), how.get("feedback")
        in_place = out is not None and np.may_share_memory(array, out)
        source = array.copy() if in_place else array
        residual = None if feedback is None else feedback.copy()

        def restore() -> None:
            if in_place and array.flags.writeable:
                array[...] = source
            if feedback is not None:
                feedback[...] = residual

        mine = array
        while True:
            try:
                result = super().allreduce(mine, out, op, **how)
                break
            except LOSSES as error:
                try:
                    given = self._recover(error, source)
                except NetFoldError:  # whoever repeats it finds what it gave
                    restore()
                    raise
            if given is not None:  # its own part is in there, so that the residual is what that has left
                result = np.empty(source.shape, native(source)) if out is None else out
                result[...] = given
                break
            restore()
            mine = source
        self._done += 1
        self._kept = result.copy()
        return result

    def together(self) -> Together:
        """Same as ``Group.together``; ends with RanksChanged if a rank is lost meanwhile."""
        self._check_begin()
        return _CountedTogether(self)

    @property
    def repeats_losses(self) -> bool:
        """True if an allreduce is finished although a rank is lost."""
        return True

    @property
    def joins_nothing(self) -> str:
        """Why no reduce_scatter joins an all_gather (``Group.joins_nothing``): in this communicator none ever does."""
        return "each call of the program is one operation, which goes on without ranks that are lost"

    def all_gather_to_join(self, array: Array, out: Array, following: Callable[[], Next]) -> bool:
        """``all_gather``: nothing joins it here, where each call of the program is one operation."""
        del following
        self.all_gather(array, out)
        return False

    def shrink(self, *, timeout: float | None = None) -> RankChange:
        """Same as ``Communicator.shrink``.  Other ranks may be in an operation that continues by itself: it ends with
        RanksChanged."""
        change = self._reform(self._done, grows=False, timeout=timeout)
        self._stuck = None
        self._agree_on_nothing(change)
        return change

    def grow(self, *, timeout: float | None = None) -> RankChange:
        """Same as ``Communicator.grow``."""
        change = self._reform(self._done, grows=True, timeout=timeout)
        self._stuck = None
        if change.lost:
            self._agree_on_nothing(change)
        return change

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _check_begin(self) -> None:
        """Waits for operations under way, after which the ranks may have changed.  Raises the error that ended one of
        them or an earlier one, if it ended the communicator."""
        self._parts.sequencer.wait()
        if self._stuck is not None:
            raise self._stuck

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """A context for an operation that is not repeated after a loss."""
        self._check_begin()
        try:
            yield
        except LOSSES as error:
            self._give_up(error)
        self._done += 1
        self._kept = None

    def _give_up(self, error: Exception) -> NoReturn:
        """Continues without the lost ranks; the operation under way is not repeated.  Raises RanksChanged, or the error
        if no rank is lost."""
        self._recover(error, None)
        raise AssertionError("who is in no allreduce has no result to wait for")

    def _recover(self, error: Exception, source: Array | None) -> Array | None:
        """Continues without the lost ranks.  Returns the result of the allreduce under way, or None if all ranks repeat
        their operation.  Raises RanksChanged, or the error if no rank is lost."""
        log.warning("%s: going on without lost ranks: %s", self._parts.sequencer.me, error)
        while True:
            change = self._reform(self._done, grows=False, timeout=None)
            if not change.lost:
                self._done, self._kept, self._stuck = change.last, None, error
                raise error
            try:
                return self._agree(change, source)
            except LOSSES as again:
                error = again

    def _agree_on_nothing(self, change: RankChange) -> None:
        """Tells ranks that are in an operation that this rank is in none."""
        with contextlib.suppress(RanksChanged):
            self._agree(change, None)

    def _agree(self, change: RankChange, source: Array | None) -> Array | None:
        """The fate of the operations under way, the same on all ranks: the result, if some rank has it; None if all
        repeat them.  Raises RanksChanged.

        source  input of the allreduce that this rank is in; None: it is in another operation
        """
        nbytes = -1 if source is None else source.nbytes
        kept = -1 if self._kept is None else self._kept.nbytes
        told = super().all_gather(np.array([self._done, nbytes, kept], np.int64)).reshape(-1, 3)
        done, last = told[:, 0], int(told[:, 0].min())
        behind, ahead = np.flatnonzero(done == last), np.flatnonzero(done > last)
        fits = bool((told[:, 1] >= 0).all() and (done <= last + 1).all())
        if fits and ahead.size:
            fits = bool((told[ahead, 2] == told[behind[0], 1]).all())
        if not fits:
            self._done, self._kept = last, None
            me = self._parts.sequencer.me
            raise RanksChanged(
                f"{me}: the ranks {list(change.lost)} are lost, and not all others were in the same allreduce: repeat "
                f"all operations after number {last}, of which this rank has finished {int(done[self.rank]) - last}",
                change,
            )
        if not ahead.size:
            return None
        giver = int(ahead[0])
        like = self._kept if self.rank in ahead else source  # who is ahead is in the next operation
        given = np.ascontiguousarray(
            like if self.rank == giver else np.empty_like(like, native(like))  # type: ignore[arg-type]
        )
        super().broadcast(given, root=giver)
        return given if self.rank in behind else None


class _CountedTogether(Together):
    """A reduce_scatter and an all_gather at the same time: one operation if the switches carry both, else two."""

    def __init__(self, comm: EnduringCommunicator) -> None:
        super().__init__(comm._ranks, comm._coding, comm.reduce_scatter, comm.all_gather)
        self._comm = comm

    def _exchange(self, scatter: Waiting, gather: Waiting) -> bool:
        try:
            carried = super()._exchange(scatter, gather)
        except LOSSES as error:
            self._comm._give_up(error)
        if carried:
            self._comm._done += 1
            self._comm._kept = None
        return carried


def _counted_call(name: str) -> Callable[..., Any]:
    def call(self: EnduringCommunicator, *args: Any, **kwargs: Any) -> Any:
        with self._counted():
            return getattr(Communicator, name)(self, *args, **kwargs)

    call.__name__, call.__doc__ = name, getattr(Communicator, name).__doc__
    return call


for _name in OTHERS:
    setattr(EnduringCommunicator, _name, _counted_call(_name))
