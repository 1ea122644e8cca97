# SPDX-License-Identifier: Apache-2.0
"""The work objects that torch.distributed gets for operations that have been started."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.futures import Future

from netfold.host.torch.completion import StartedOperation
from netfold.host.torch.messenger import TensorMessage


class TorchWork(dist._Work):
    """A started operation, as torch.distributed expects it."""

    def __init__(self, pending: StartedOperation) -> None:
        super().__init__()
        self._pending = pending

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Returns once the tensors hold the result; raises the communicator's error.

        timeout  0 (torch's default): the communicator's own.  Raises CollectiveTimeout when it is over; the operation
                 itself goes on
        """
        self._pending.wait(timeout.total_seconds() or None)
        return True

    def synchronize(self) -> None:
        """The same as ``wait``."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether ``wait`` would return or raise at once."""
        return self._pending.done()

    def is_success(self) -> bool:
        """Whether it is done, without an error."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The error that it ended with, or None."""
        if self.is_completed():
            try:
                self._pending.wait()
            except Exception as error:
                return error
        return None

    def result(self) -> list[torch.Tensor]:
        """The tensors, once they hold the result."""
        self.wait()
        return self._pending.tensors

    def get_future(self) -> Future[list[torch.Tensor]]:
        """A future whose value is the tensors."""
        return self._pending.future

    def source_rank(self) -> int:
        """The rank that sent what a receive from any rank has received.  Raises ValueError for all else."""
        if not isinstance(self._pending, TensorMessage):
            raise ValueError("a collective has no source: only a receive from any rank has one to tell")
        return self._pending.source()

    _source_rank = source_rank
