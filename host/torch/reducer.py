# SPDX-License-Identifier: Apache-2.0
"""Asynchronous collectives, as torch futures.

The communicator's own thread does them in the order of the calls.  A second thread waits for each and completes its
future, so neither the caller (in backward: autograd's thread) nor the communicator waits for what comes after.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch.futures import Future

from netfold.host.api.communicator import Communicator
from netfold.host.api.work import Work
from netfold.host.errors import Closed
from netfold.host.operation.coding import LaneBits
from netfold.host.operation.reduction import ReduceOp
from netfold.host.torch.beside import Following, JoiningScatter
from netfold.host.torch.tensors import as_array

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class PendingCollective:
    """An asynchronous collective that has been started."""

    tensors: Tensors
    works: list[Work[Any]]
    future: Future[Tensors]
    """A future whose value is the tensors, or which raises a RuntimeError with the text of what the communicator
    raised."""
    awaited: Callable[[], None] = lambda: None
    """Called where the program waits for it."""

    def wait(self, timeout: float | None = None) -> None:
        """Returns once the tensors hold the result; raises the communicator's own error.

        timeout  seconds; default: the communicator's.  Raises CollectiveTimeout; the operation itself goes on
        """
        self.awaited()
        self.finish(timeout)

    def finish(self, timeout: float | None = None) -> None:
        """The same as ``wait``, on a thread of our own."""
        end = None if timeout is None else time.monotonic() + timeout
        for work in self.works:
            work.wait(None if end is None else max(0.0, end - time.monotonic()))

    def done(self) -> bool:
        """Whether ``wait`` would return or raise at once."""
        return all(work.done() for work in self.works)


class Reducer:
    """Starts collectives on tensors through a communicator that it does not own."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._queue: queue.SimpleQueue[tuple[PendingCollective, Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._following = Following()
        """Of the last collective."""

    def allreduce(
        self,
        tensors: Sequence[torch.Tensor],
        op: ReduceOp,
        name: str = "allreduce",
        *,
        lane_bits: LaneBits | None = None,
        feedback: NDArray[Any] | None = None,
        reproducible: bool | None = None,
    ) -> PendingCollective:
        """Starts to reduce tensors in place.  ``lane_bits``, ``feedback`` (of a single tensor) and ``reproducible`` are
        those of ``Communicator.allreduce``.

        Raises ValueError for tensors that are not dense ones on the CPU, and Closed.
        """
        arrays = [as_array(tensor) for tensor in tensors]
        return self._begin(
            tensors,
            lambda: [
                self.comm.iallreduce(
                    array, out=array, op=op, dtype=dtype, name=name, lane_bits=lane_bits, feedback=feedback,
                    reproducible=reproducible,
                )
                for array, dtype in arrays
            ],
        )

    def later(
        self, tensors: Sequence[torch.Tensor], calls: Sequence[Callable[[], object]], what: str, *,
        following: Following | None = None, joins: JoiningScatter | None = None,
    ) -> PendingCollective:
        """Starts other collectives of the communicator, which fill these tensors.  Raises Closed.

        following  of an all-gather: learns what is called next
        joins      of a reduce-scatter: what the all-gather before it learns
        """
        return self._begin(tensors, lambda: [self.comm.later(call, what) for call in calls], following, joins)

    def _begin(
        self, tensors: Sequence[torch.Tensor], begin: Callable[[], list[Work[Any]]],
        following: Following | None = None, joins: JoiningScatter | None = None,
    ) -> PendingCollective:
        future: Future[Any] = Future()
        with self._lock:  # what is queued has the communicator's order
            if self._closed:
                raise Closed(f"{self.comm!r}: its process group or hook was closed")
            works = begin()
            self._following.follow(joins)
            self._following = following or Following()
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="netfold-torch", daemon=True)
                self._thread.start()
            # Through then() an error becomes one of the C++ future, which DistributedDataParallel waits for, too.
            pending = PendingCollective(
                list(tensors), works, future.then(_value_or_raise), self._following.awaited
            )
            self._queue.put((pending, future))
        return pending

    def close(self) -> None:
        """Waits for what is under way, which the communicator's timeout bounds, and ends the thread."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()

    def _serve(self) -> None:
        while (entry := self._queue.get()) is not None:
            pending, future = entry
            try:
                pending.finish()
            except BaseException as error:
                future.set_result(error)
            else:
                future.set_result(pending.tensors)


def _value_or_raise(future: Future[Any]) -> Tensors:
    value = future.value()
    if isinstance(value, BaseException):
        raise value
    return value  # type: ignore[no-any-return]
