# SPDX-License-Identifier: Apache-2.0
"""NetFold as a process group of torchft, which is configured anew when a replica dies or joins.

    from netfold.host.torch.torchft_group import ProcessGroupNetfold
    manager = torchft.Manager(pg=ProcessGroupNetfold(), ...)

torchft's lighthouse determines the participants; each ``configure`` is a job of its own, named after the store's
address, which all ranks of a quorum share.  Errors are RuntimeErrors with the wording of torch's own groups.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

try:
    from torchft.process_group import ProcessGroupWrapper
except ImportError as error:
    raise ImportError(f"{error}: netfold.host.torch.torchft_group needs torchft: pip install torchft") from error

from netfold.host.errors import Aborted, Closed, CollectiveTimeout, JoinRefused, NetFoldError, PeerLost
from netfold.host.torch.join import JOB_VARIABLE, Options, join
from netfold.host.torch.process_group import NetfoldGroup

NAME: Final = "torchft-netfold"
WORDS: Final[tuple[tuple[type[NetFoldError], str], ...]] = (
    (PeerLost, "Connection closed by peer"), (CollectiveTimeout, "Timed out waiting"), (Aborted, "aborted"),
    (Closed, "aborted"),
)
"""The wording of torch's groups for these errors of NetFold."""


class TranslatedWork(dist._Work):
    """A started operation, whose errors have torch's wording.

    timeout  of ``wait``, if its caller passes none
    """

    def __init__(self, work: Any, timeout: timedelta) -> None:
        super().__init__()
        self._work = work
        self._timeout = timeout

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Returns once the tensors hold the result.  Raises RuntimeError."""
        with _in_torchs_words():
            return bool(self._work.wait(timeout or self._timeout))

    def synchronize(self) -> None:
        """The same as ``wait``."""
        self.wait()

    def is_completed(self) -> bool:
        """True if ``wait`` would return or raise at once."""
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        """True if it is done, without an error."""
        return bool(self._work.is_success())

    def exception(self) -> BaseException | None:
        """The error that it ended with, or None."""
        error = self._work.exception()
        return error if error is None else translated(error)

    def result(self) -> Any:
        """The tensors, once they hold the result."""
        with _in_torchs_words():
            return self._work.result()

    def get_future(self) -> torch.futures.Future[Any]:
        """A future whose value is the tensors."""
        return self._work.get_future()


class ProcessGroupNetfold(ProcessGroupWrapper):
    """A process group of torchft through NetFold.

    timeout  of ``configure`` and of each operation
    options  of each communicator; its job's name begins with ``options.job``; ValueError for wait="device"
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60), options: Options | None = None) -> None:
        super().__init__(timeout)
        self._options = options or Options()
        if self._options.runs_ahead():
            raise ValueError('wait="device", or NETFOLD_WAIT=device: torchft waits for each operation with a time-out, '
                             "which blocks the host; leave it out")
        self._aborted: RuntimeError | None = None

    def getBackendName(self) -> str:
        """The backend's name."""
        return NAME

    def configure(
        self, store_addr: str, replica_id: str, rank: int, world_size: int, *args: Any, **kwargs: Any
    ) -> None:
        """Leaves the former group, and joins a new one with all ranks that have this store's address.  Raises the
        errors of ``Communicator.join``, and RuntimeError if the store cannot be reached in time."""
        self._store_addr = store_addr
        super().configure(store_addr, replica_id, rank, world_size, *args, **kwargs)
        self._aborted = None

    def abort(self, errored: bool = True) -> None:
        """Ends operations under way, and leaves the group; operations are refused until ``configure``."""
        if errored and self._pg is not None:
            self._aborted = RuntimeError("aborted: configure the process group anew")
        super().abort(errored)

    def shutdown(self) -> None:
        """Leaves the group."""
        super().abort(errored=False)

    def errored(self) -> Exception | None:
        """The error because of which the group must be configured anew; None if it works."""
        if self._aborted is not None or not isinstance(self._pg, NetfoldGroup):
            return self._aborted
        try:
            problem = self._pg.communicator.problem
        except Closed as closed:
            problem = closed
        return None if problem is None else RuntimeError(f"aborted: {problem}")

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> NetfoldGroup:
        job = self._options.job or os.environ.get(JOB_VARIABLE) or "default"
        place = hashlib.sha256(self._store_addr.encode()).hexdigest()[:16]
        seconds = self._timeout.total_seconds()
        options = replace(self._options, job=f"{job}.{place}", join_timeout=seconds, timeout=seconds)
        try:
            communicator = join(options, rank=rank, world=world_size, store=store)
        except JoinRefused as error:
            raise RuntimeError(f"no group of {world_size} ranks, or timeout after {1e3 * seconds:.0f}ms: {error}"
                               ) from error
        try:
            return NetfoldGroup(store, communicator, self._timeout, together=self._options.goes_together())
        except BaseException:
            communicator.close()
            raise

    def _wrap_work(self, work: Any, opts: object) -> TranslatedWork:
        return TranslatedWork(work, self._timeout)

    @contextmanager
    def _run_context(self) -> Iterator[None]:
        with _in_torchs_words():
            yield


def translated(error: BaseException) -> BaseException:
    """The same error with torch's wording."""
    for kind, words in WORDS:
        if isinstance(error, kind):
            return RuntimeError(f"{words}: {error}")
    return RuntimeError(str(error)) if isinstance(error, NetFoldError) else error


@contextmanager
def _in_torchs_words() -> Iterator[None]:
    try:
        yield
    except NetFoldError as error:
        raise translated(error) from error
