# SPDX-License-Identifier: Apache-2.0
"""Calls of a process group with tensors on a device: each works on copies in pinned memory.

The decorator ``staged`` puts the copies in place of the tensors, so that the call works on the CPU alone.  It reads
them on the communicator's thread, which waits until they have arrived; gloo and messages, which read at once, call
``arrive`` first.  Allreduce has a way of its own, in parts (``Reducer.allreduce``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import wraps
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist

from netfold.host.api.communicator import Communicator
from netfold.host.api.device_arrays import ending_with
from netfold.host.errors import CollectiveTimeout
from netfold.host.staging.copies import Copies
from netfold.host.torch.completion import MarkedOperation, StartedOperation, on_our_thread, run_apart
from netfold.host.torch.reducer import Reducer
from netfold.host.torch.tensors import check_fills, flattened, replaced
from netfold.host.torch.work import TorchWork

Method = Callable[..., Any]
Roles = Literal["in place", "outputs, inputs", "input", "output"]
"""The roles of a method's first arguments."""

_arrive: ContextVar[Callable[[], object] | None] = ContextVar("arrive", default=None)
"""Waits for the copies of the call that the thread is in."""


class StagedGroup(Protocol):
    """A process group whose calls are staged."""

    communicator: Communicator
    _reducer: Reducer


def arrive() -> None:
    """Waits until the inputs of the call under way have been copied from their device."""
    waits = _arrive.get()
    if waits is not None:
        waits()


def staged(roles: Roles) -> Callable[[Method], Method]:
    """Decorator for a method of a group that starts an operation. A text argument after the tensors names the operation
    in errors; otherwise the method's name does."""

    def decorate(how: Method) -> Method:
        @wraps(how)
        def call(self: StagedGroup, first: Any, *args: Any, **kwargs: Any) -> Any:
            second = args[:1] if roles == "outputs, inputs" else ()
            reads = flattened([second]) if second else [] if roles == "output" else flattened([first])
            fills = [] if roles == "input" else flattened([first])
            kind = args[0] if args and isinstance(args[0], str) else how.__name__
            comm, ahead = self.communicator, self._reducer.ahead
            place = next((tensor.device for tensor in [*reads, *fills]), None)
            with ending_with(place, comm, ahead.refuse):
                lane = self._reducer.staging.lane(kind, [*reads, *fills])
            if lane is None:
                return how(self, first, *args, **kwargs)
            check_fills(kind, fills)
            with ending_with(lane.device.place, comm, ahead.refuse):  # which may have no memory left for copies
                copies = Copies(lane, reads, fills)

            def arrives() -> None:
                with ending_with(copies.place, comm, ahead.refuse):
                    copies.arrive()

            def arrives_in_turn() -> None:  # on the communicator's thread
                with ending_with(copies.place, comm):  # or the operation would send memory that was never filled
                    copies.arrive_in_turn()

            token, work = _arrive.set(arrives), None
            try:
                if roles in ("in place", "outputs, inputs"):
                    with ending_with(copies.place, comm, ahead.refuse):
                        ahead.prepare(kind, copies, fills)  # first: the communicator's thread may be idle
                    comm.later(arrives_in_turn, f"{kind}, copying out")
                swapped = [copies.swap(one) for one in second]
                work = how(self, copies.swap(first), *swapped, *args[len(swapped) :], **kwargs)
                if not isinstance(work, TorchWork):
                    copies.withdraw()
                pending = work.pending if isinstance(work, TorchWork) else DelegatedOperation(work)
                staged = StagedOperation(pending, copies, fills or reads, self.communicator)
                ahead.begun(kind, staged)
            except BaseException as error:
                copies.end_call(error, begun=work is not None)
                raise
            finally:
                _arrive.reset(token)
            return TorchWork(staged)

        return call

    return decorate


class StagedOperation(MarkedOperation):
    """An operation on copies, which are copied back when it is done.

    inner    the operation
    tensors  that it fills or sends, on the device
    comm     ends with a device that fails
    """

    def __init__(
        self, inner: StartedOperation, copies: Copies, tensors: list[torch.Tensor], comm: Communicator
    ) -> None:
        super().__init__(tensors)
        self._inner, self._copies, self._comm = inner, copies, comm
        self.staged, self.begun = copies, inner.begun
        inner.when_done(self._end)

    def await_end(self, timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        self._inner.await_end(timeout)
        if not self._done.wait(None if end is None else max(0.0, end - time.monotonic())):
            raise CollectiveTimeout(f"copies to {self._copies.place}: not begun within the {timeout:g} s of wait()")
        if self._error is not None:
            raise self._error

    def carried(self) -> bool:
        return self._done.is_set()

    def source(self) -> int:
        return self._inner.source()

    def _end(self) -> None:
        """Begins to copy back, on the thread that has ended the operation."""
        failed: BaseException | None = None
        try:
            self._inner.await_end(0.0)
            with ending_with(self._copies.place, self._comm):
                self._copies.fill()
        except BaseException as error:  # whoever waits is to hear it
            failed = error
            if self._copies.chain is None:
                self._copies.drop()  # else once the error is known
        finally:
            self.mark(failed)


class DelegatedOperation(MarkedOperation):
    """An operation that gloo runs. A thread of its own waits for it: not all of gloo's works have a future.

    tensors  that it fills
    finish   called once it is done, before its end is reported
    """

    def __init__(
        self, work: dist._Work, tensors: Sequence[torch.Tensor] = (), finish: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(list(tensors))
        self._work, self._finish = work, on_our_thread(finish)
        run_apart(self._await_work)

    def await_end(self, timeout: float | None) -> None:
        if not self._done.wait(timeout):
            raise CollectiveTimeout(f"gloo: not done within the {timeout:g} s of wait(); it goes on")
        if self._error is not None:
            raise self._error

    def carried(self) -> bool:
        return self._done.is_set()

    def _await_work(self) -> None:
        failed: BaseException | None = None
        try:
            self._work.wait()
            self._finish()
        except BaseException as error:  # whoever waits is to hear it
            failed = error
        self.mark(failed)


def by_rows(call: Method, fills: Any, *args: Any) -> Any:
    """Makes a call of gloo's, which takes no notice of strides, with row-major copies of the tensors that are not.

    fills  its first argument: tensors that it fills, into which their copies are copied back
    """
    arrive()
    given = replaced([fills, *args], lambda one: one.contiguous() if one.layout == torch.strided else one)
    back = [pair for pair in zip(flattened(fills), flattened(given[0]), strict=True) if pair[0] is not pair[1]]
    work = call(*given)

    def finish() -> None:
        for tensor, copy in back:
            tensor.detach().copy_(copy)

    return TorchWork(DelegatedOperation(work, flattened(fills), finish)) if back else work
