# SPDX-License-Identifier: Apache-2.0
"""Torch's futures of started operations, completed on threads that nothing else waits for.

A future's callbacks run on the thread that completes it, and may themselves wait for other operations, as PowerSGD's
do: for collectives, messages, and futures with such callbacks.  So each future is completed on a thread of its own as
long as its callbacks take.  It is created on request; most programs wait for the work.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import torch
from torch.futures import Future

from netfold.host.errors import CollectiveTimeout, PeerLost, TransportError
from netfold.host.staging.copies import Staged

Call = Callable[[], object]

SPARE = 4
"""Idle threads kept for the next futures: DistributedDataParallel completes few at a time."""

log = logging.getLogger("netfold")


def on_our_thread(call: Call) -> Call:
    """The same call for a thread of ours, which does not inherit its caller's modes.  In inference mode it can fill all
    tensors, including those created in ``torch.inference_mode``."""
    def called() -> object:
        with torch.inference_mode():
            return call()

    return called


class Threads:
    """Runs each call at once, on an idle thread or else on a new one; so no call waits for another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self.idle = 0
        """Idle threads for which the queue holds no call."""

    def run(self, call: Call) -> None:
        """Starts a call and returns before it ends.  Its exceptions are logged."""
        with self._lock:
            found = self.idle > 0
            self.idle -= found
        if found:
            self._calls.put(call)
        else:
            threading.Thread(target=self._serve, args=(call,), name="netfold-futures", daemon=True).start()

    def _serve(self, call: Call | None) -> None:
        while True:
            assert call is not None
            try:
                call()
            except BaseException:
                log.exception("a future could not be completed")
            call = None  # whose tensors this must not keep
            with self._lock:
                if self.idle == SPARE:
                    return
                self.idle += 1
            call = self._calls.get()


_threads = Threads()
os.register_at_fork(after_in_child=_threads.__init__)  # type: ignore[misc]
run_apart = _threads.run
"""Runs a call on a thread that nothing else waits for."""


class StartedOperation(ABC):
    """A started operation: collectives, or a message.

    tensors  that it fills or sends
    """

    tensors: list[torch.Tensor]
    staged: Staged | None = None
    """Copies of its tensors on a device."""
    begun: float
    """Time of its start, in monotonic seconds."""
    deadline: float | None = None
    """Time at which its own limit ends, in monotonic seconds; None: the group's limit counts."""
    _heard: Call | None = None

    def wait(self, timeout: float | None = None) -> None:
        """Returns once the operation is done; with tensors on a device, once the calling thread's stream there is
        ordered after it.  Raises the operation's error; without a limit of time one that the device finishes by itself
        has only those that are known by now.

        timeout  seconds; default: its own, else the group's.  Raises CollectiveTimeout; the operation itself goes on
        """
        if not (self._runs_ahead and timeout is None) or self.carried():
            self._await(timeout)
        if self.staged is not None:
            self.staged.order()

    @property
    def _runs_ahead(self) -> bool:
        """True if nobody has to wait until the host has done its part."""
        return self.staged is not None and self.staged.chain is not None and self.deadline is None

    def _await(self, timeout: float | None = None) -> None:
        if self.deadline is not None:
            left = max(0.0, self.deadline - time.monotonic())
            timeout = left if timeout is None else min(timeout, left)
        try:
            self.await_end(timeout)
        except BaseException:
            if self.carried():  # else the time is over, and it goes on
                if self._heard is not None:
                    self._heard()
                if self.staged is not None:
                    self.staged.lane.order()  # or what it is filled with would come after what the program does next
            raise

    def on_error(self, call: Call) -> None:
        """Has this called when the program is given the operation's error."""
        self._heard = call

    def limit(self, seconds: float) -> None:
        """Limits its time, counted from its beginning, in seconds; afterwards ``wait`` and ``future`` raise
        CollectiveTimeout."""
        self.deadline = self.begun + seconds

    @abstractmethod
    def await_end(self, timeout: float | None) -> None:
        """Implements ``wait``; None: as long as its group allows."""

    @property
    @abstractmethod
    def ended(self) -> float:
        """Time of its end, in monotonic seconds."""

    @abstractmethod
    def carried(self) -> bool:
        """True once the host has done its part, or the operation has failed."""

    @abstractmethod
    def failed(self) -> bool:
        """True if it has been carried out, with an error."""

    def done(self) -> bool:
        """True if the tensors hold the result, or the operation has failed."""
        return self.carried() and (self.staged is None or self.failed() or self.staged.over())

    @abstractmethod
    def when_done(self, call: Call) -> None:
        """Calls this function once it is done, on the thread that ends it; or here if it is already done.  The function
        must not wait."""

    def source(self) -> int:
        """The sender of the message that a receive from any rank has received.  Raises ValueError for other
        operations."""
        raise ValueError("a collective has no source: only a receive from any rank has one to tell")

    @cached_property
    def future(self) -> Future[list[torch.Tensor]]:
        """A future whose value is the tensors; it raises a RuntimeError with the text of the error that ``wait``
        raises."""
        failed: list[BaseException] = []  # not in the value, which torch searches for tensors on devices

        def value(error: BaseException | None) -> list[torch.Tensor]:
            failed.extend([] if error is None else [error])
            return self.tensors if error is None else []

        def value_or_raise(future: Future[list[torch.Tensor]]) -> list[torch.Tensor]:
            if failed:
                raise failed[0]
            found: list[torch.Tensor] = future.value()
            return found

        # Through then() an error becomes one of the C++ future, which DistributedDataParallel waits for, too.
        return self._after(value, at_once=self._runs_ahead).then(value_or_raise)

    @cached_property
    def future_result(self) -> Future[int]:
        """A future whose value is one of torch's ``WorkResult``."""
        return self._after(_result_of)

    def _after(self, value: Callable[[BaseException | None], Any], *, at_once: bool = False) -> Future[Any]:
        """A future whose value this function computes from the operation's error, or from None.  Waits on it and its
        callbacks come after the copies to a device.

        at_once  the device was given the copies already, so the host need not wait
        """
        future: Future[Any] = Future() if self.staged is None else self.staged.lane.device.future()

        def complete() -> None:
            error = None
            try:
                if not at_once or self.carried():
                    self._await()
            except BaseException as raised:
                error = raised
            with nullcontext() if self.staged is None else self.staged.behind():
                future.set_result(value(error))

        if self.deadline is not None:
            run_apart(complete)
        elif at_once or self.done():
            complete()  # nobody can have given it a callback yet
        else:
            self.when_done(lambda: run_apart(complete))
        return future


class MarkedOperation(StartedOperation):
    """An operation that ends when ``mark`` is called."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._calls: list[Call] = []
        self.begun = self._ended = time.monotonic()

    @property
    def ended(self) -> float:
        return self._ended

    def failed(self) -> bool:
        return self._error is not None

    def when_done(self, call: Call) -> None:
        with self._lock:
            if not self._done.is_set():
                self._calls.append(call)
                return
        call()

    def mark(self, error: BaseException | None) -> None:
        """Marks it as done or as failed, and runs its callbacks."""
        with self._lock:
            self._error, self._ended = error, time.monotonic()
            self._done.set()
            calls, self._calls = self._calls, []
        for call in calls:
            call()


SUCCESS, TIMEOUT, COMM_ERROR, UNKNOWN = 0, 1, 2, 100
"""Values of torch's ``WorkResult``."""


def _result_of(error: BaseException | None) -> int:
    if error is None:
        return SUCCESS
    timed_out, lost = isinstance(error, CollectiveTimeout), isinstance(error, PeerLost | TransportError)
    return TIMEOUT if timed_out else COMM_ERROR if lost else UNKNOWN
