# SPDX-License-Identifier: Apache-2.0
"""The work objects that torch.distributed receives for started operations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.futures import Future

from netfold.host.torch.completion import StartedOperation


class TorchWork(dist._Work):
    """A started operation, as torch.distributed expects it."""

    def __init__(self, pending: StartedOperation) -> None:
        super().__init__()
        self.pending = pending
        self._recorded: threading.Event | None = None
        """Set once the profiler has recorded its end."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Returns once the tensors hold the result; on a device, once the calling thread's stream is ordered after it.
        Raises the communicator's error.

        timeout  0 (torch's default): the communicator's own.  Raises CollectiveTimeout when it is over; the operation
                 itself goes on
        """
        try:
            self.pending.wait(timeout.total_seconds() if timeout > timedelta(0) else None)
        finally:
            if self._recorded is not None and self.pending.done():
                self._recorded.wait()
        return True

    def synchronize(self) -> None:
        """The same as ``wait``."""
        self.wait()

    def block_current_stream(self) -> None:
        """The same as ``wait``: a future's callback, by which torch would order the stream, may come before the copies
        back."""
        self.wait()

    def limit(self, seconds: float) -> None:
        """Limits its time, counted from now on, in seconds: then every way of waiting for it raises
        CollectiveTimeout."""
        self.pending.limit(seconds)

    def recorded(self, end: Callable[[], None], ended: threading.Event) -> None:
        """Calls ``end``, which sets ``ended``, once it is done; waits for the operation also wait for ``ended``."""
        self._recorded = ended
        self.pending.when_done(end)

    def is_completed(self) -> bool:
        """True if ``wait`` would return or raise at once."""
        return self.pending.done()

    def is_success(self) -> bool:
        """True if it is done, without an error."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The error that it ended with, or None."""
        if self.is_completed():
            try:
                self.pending.wait()
            except Exception as error:
                return error
        return None

    def result(self) -> list[torch.Tensor]:
        """The tensors, once they hold the result."""
        self.wait()
        return self.pending.tensors

    def _get_duration(self) -> float:
        """Milliseconds from the call to its end.  Raises ValueError while it is under way."""
        if not self.is_completed():
            raise ValueError("the duration of what is under way: expected it to be done; wait() first")
        return 1e3 * (self.pending.ended - self.pending.begun)

    def get_future_result(self) -> Future[int]:
        """A future whose value is a ``WorkResult`` as a number: success, or the kind of failure."""
        return self.pending.future_result

    def get_future(self) -> Future[list[torch.Tensor]]:
        """A future whose value is the tensors."""
        return self.pending.future

    def source_rank(self) -> int:
        """The sender of the message that a receive from any rank has received.  Raises ValueError for other
        operations."""
        return self.pending.source()

    _source_rank = source_rank
