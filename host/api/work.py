# SPDX-License-Identifier: Apache-2.0
"""The order of operations: one at a time, on the caller's thread or, asynchronously, on a thread of the
communicator."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from netfold.host.errors import Aborted, Busy, Closed, CollectiveTimeout, NetFoldError, RanksChanged
from netfold.host.forked import SAME_PROCESS, closed_in_child, ends_in_child, notice
from netfold.host.mesh.connection import printable
from netfold.host.tracing.flight import Flight
from netfold.host.tracing.timeline import QUEUED

T = TypeVar("T")

log = logging.getLogger("netfold")


class _Here(threading.local):
    """The current thread, without a Python call: even short operations ask for it."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()


_here = _Here()


class News:
    """Reports a change of ranks from the thread on which operations end with it to the program.

    Operations that the program has started before it learns of the change all end with it: on other ranks their numbers
    may belong to other operations.
    """

    def __init__(self) -> None:
        self.told = 0
        """Number of errors reported to the program."""
        self._changed: RanksChanged | None = None
        self._before = -1
        """Value of ``told`` at the start of the operation that ended with the last change."""
        self.forked: Closed | None = None
        """In a forked child: the error of all operations that its parent has started, which end only there."""
        self._lock = threading.Lock()

    def happened(self, changed: RanksChanged, told: int) -> None:
        """Records that an operation ended with this error; ``told`` had the given value when it was started."""
        with self._lock:
            if told > self._before:
                self._changed, self._before = changed, told

    def after_fork(self, error: Closed) -> None:
        """In a forked child: all unfinished operations end with this error."""
        self.forked, self._lock = error, threading.Lock()

    def check(self, told: int) -> None:
        """Raises RanksChanged for an operation that was started before the program learned of the last change."""
        with self._lock:
            if self._changed is not None and told <= self._before:
                raise self._changed

    def tell(self, error: BaseException) -> None:
        """Records that the program has been given an error."""
        with self._lock:
            if error is self._changed and self.told <= self._before:
                self.told += 1


class Work(Generic[T]):
    """A started operation.  Its arrays belong to it until ``wait`` returns."""

    def __init__(self, call: Callable[[], T], me: str, news: News) -> None:
        self._call = call
        self._news, self._told = news, news.told
        self._me = me
        self._done = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None
        self.ended = 0.0
        """Time of its end, in monotonic seconds."""
        self._lock = threading.Lock()
        self._starts: Callable[[], None] = lambda: None
        self._callbacks: list[Callable[[Work[T]], object]] = []

    def wait(self, timeout: float | None = None) -> T:
        """The operation's result, or its error.

        timeout  seconds; default: the operation's own timeout.  Raises CollectiveTimeout when it is over; the operation
                 itself goes on, and may be waited for again
        """
        notice()
        if self._left_behind():
            raise self._news.forked  # type: ignore[misc]
        if not self._done.wait(timeout):
            allowed = round(timeout or 0.0, 3)
            raise CollectiveTimeout(f"{self._me}: not done within the {allowed:g} s of wait(); it goes on")
        if self._error is not None:
            self._news.tell(self._error)
            raise self._error
        return self._result  # type: ignore[return-value]

    def done(self) -> bool:
        """True if ``wait`` would return, or raise the operation's error, at once."""
        return self._done.is_set() or self._left_behind()

    def failed(self) -> bool:
        """True if ``wait`` would raise the operation's error at once."""
        return self._left_behind() or (self._done.is_set() and self._error is not None)

    def add_done_callback(self, callback: Callable[[Work[T]], object]) -> None:
        """Calls ``callback(work)`` once the operation is done: on the communicator's thread, or here if it is done
        already.

        An exception of a callback is logged; the operation and the following ones go on.
        """
        if not self._left_behind():
            with self._lock:
                if not self._done.is_set():
                    self._callbacks.append(callback)
                    return
        self._run_callback(callback)

    def _left_behind(self) -> bool:
        """True in a forked child, if the operation goes on in its parent alone."""
        return self._news.forked is not None and not self._done.is_set()

    def _run(self) -> None:
        try:
            self._starts()
            self._news.check(self._told)
            self._result = self._call()
        except BaseException as error:
            self._error = error
            if isinstance(error, RanksChanged):
                self._news.happened(error, self._told)
        finally:
            with self._lock:
                self.ended = time.monotonic()
                self._done.set()
                callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                self._run_callback(callback, BaseException)  # others wait for what this thread does next

    def _refuse(self, error: Closed) -> None:
        """Ends it with this error instead of making the call."""
        def refused() -> T:
            raise error

        self._call = refused
        self._run()

    def _run_callback(
        self, callback: Callable[[Work[T]], object], logged: type[BaseException] = Exception
    ) -> None:
        try:
            callback(self)
        except logged:
            log.exception("%s: a callback failed", self._me)


class OperationSequencer:
    """The order of operations on one communicator and its groups, and the error that ended the communicator.

    me      job and rank, for errors
    flight  records the operations; default: a recorder for this object alone
    """

    def __init__(self, me: str, flight: Flight | None = None) -> None:
        self.me = me
        self.flight = Flight(me, 0, 1) if flight is None else flight
        self.broken: NetFoldError | None = None
        self.untold = ""
        """Why it was broken by this rank alone, which the others have not heard."""
        self._closed: Closed | None = None
        """The error of all later calls; None while it is open."""
        self._closing: Closed | None = None
        """The same from the moment at which ``close`` begins to wait: nothing is begun asynchronously any more."""
        self._closes = itertools.count()
        """Numbers the threads that close this object, atomically: only the one that draws 0 closes it."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._inside: threading.Thread | None = None
        """The thread that is inside an operation, or was last."""
        self._queue: queue.SimpleQueue[Work[object] | None] = queue.SimpleQueue()
        self._last: Work[object] | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.RLock()
        """The lock held by the thread that starts ``_thread``."""
        self.incarnation = 0
        """Number of changes of the ranks so far."""
        self._news = News()
        ends_in_child(self)

    def after_fork(self) -> None:
        """In a forked child: operations that the parent has begun go on there alone, and none can begin here."""
        inside = self._lock.locked() and self._inside is threading.current_thread()  # it forked in a signal's handler
        self._lock, self._starting = threading.Lock(), threading.RLock()
        if inside:
            self._lock.acquire()
        if self._closed is None:
            self._closed = self.broken = closed_in_child(self.me, self._process)
            self._news.after_fork(self._closed)
        self._last = None

    def wait(self) -> None:
        """Waits for the asynchronous operations that were begun before.  Raises RanksChanged if they ended with it and
        the program does not know it yet."""
        if threading.current_thread() is self._thread or self._last is None:
            return
        self._last._done.wait()  # each is bounded by its own timeout
        try:
            self._news.check(self._news.told)
        except RanksChanged as changed:
            self._news.tell(changed)
            raise

    def begin(
        self, numbers: Iterator[int], incarnation: int, group: str, name: str, nbytes: int, op: str, dtype: str,
        path: str = "",
    ) -> int:
        """Begins an operation, after the asynchronous ones that were begun before it, and returns its number; ``end``
        must follow.

        numbers  of the group's operations: the same on all of its ranks, whatever other groups do
        incarnation  ``incarnation`` when the group was made
        the others are for the flight recorder

        Raises Busy where another thread is inside one, Closed, also for a group whose ranks have changed since, what
        ``wait`` raises, and the error of an operation that failed before.
        """
        if not SAME_PROCESS[0]:  # a call less for each operation
            notice()
        if self._last is not None:
            self.wait()
        if not self._lock.acquire(blocking=False):
            raise Busy(f"{self.me}: another thread is inside a collective; call from one thread, or use a lock")
        try:
            if self._closed is not None:
                raise self._closed
            if self.broken is not None:
                raise self.broken
            if incarnation != self.incarnation:
                raise Closed(f"{self.me}, {name}{group and f' of the group of {group}'}: the ranks have changed since "
                             "(shrink, grow): make the group anew")
            self._inside = _here.thread
            number = next(numbers)
            self.flight.begin(number, group, name, op, dtype, nbytes, path)
        except BaseException:
            self._lock.release()
            raise
        return number

    def end(self, error: BaseException | None) -> None:
        """Ends the operation that ``begin`` began: with the error that it raises, after which no other can begin."""
        try:
            if error is None:
                pass
            elif isinstance(self.broken, Aborted):
                pass  # from another thread, whatever this operation has ended with
            elif isinstance(error, NetFoldError):
                self.broken = error
            else:  # Ctrl-C in the middle: packets of this operation are out already
                self.broken = NetFoldError(
                    f"{self.me}: operation {self.flight.now.number} was interrupted ({type(error).__name__}); join anew"
                )
            self.flight.end(error)
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """While this is open, no operation is under way and none can begin.  Raises Busy, Closed, Aborted, and what
        ``wait`` raises."""
        notice()
        self.wait()
        if not self._lock.acquire(blocking=False):
            raise Busy(f"{self.me}: another thread is inside a collective; call from one thread, or use a lock")
        try:
            if self._closed is not None:
                raise self._closed
            if isinstance(self.broken, Aborted):
                raise self.broken
            self._inside = _here.thread
            yield
        finally:
            self._lock.release()

    def fail(self, error: NetFoldError, untold: str = "") -> None:
        """Prevents further operations, which then raise this error, or the first one.  Any thread may call it.

        untold  the reason, which the other ranks hear when this one leaves, unless an operation has failed before
        """
        if self.broken is None:
            self.broken, self.untold = error, untold

    def begin_anew(self, me: str, flight: Flight) -> None:
        """Allows operations again after a change of ranks; ``flight`` records them.  Call it inside ``paused``."""
        self.flight.close()
        self.me, self.flight = me, flight
        self.incarnation += 1
        if not isinstance(self.broken, Aborted):  # the program may have given up meanwhile, from another thread
            self.broken, self.untold = None, ""

    def later(self, call: Callable[[], T], what: str) -> Work[T]:
        """Runs ``call``, which begins its operation itself, after all calls that were started before it.  Raises
        Closed, also while ``close`` waits."""
        notice()
        closed = self._closed or self._closing
        if closed is not None:
            raise closed
        thread = self._thread or self._started()
        work = Work(call, f"{self.me}, {what}", self._news)
        timeline = self.flight.timeline
        if timeline is not None:
            begin = time.monotonic_ns()
            work._starts = lambda: timeline.add(QUEUED, what, begin, time.monotonic_ns())
        self._last = work  # type: ignore[assignment]
        self._queue.put(work)  # type: ignore[arg-type]
        if self._closing is not None and threading.current_thread() is not thread:
            self._queue.put(None)  # close() may have found no thread
            thread.join()  # close() has begun meanwhile: the thread may be over, and have left this work
            self._refuse_rest()
        return work

    def close(self) -> bool:
        """Waits for operations under way, and closes.  Returns False if it was already closed, as in a forked child, or
        if another thread is closing it."""
        notice()
        if self._closed is not None:
            return False
        self._closing = self._closing or Closed(f"{self.me}: the communicator was closed")
        with self._starting:
            thread = self._thread
        if thread is not None:
            self._queue.put(None)
            if threading.current_thread() is not thread:
                thread.join()  # bounded: every operation is
        alone = self._wait_for_others()
        first = next(self._closes) == 0  # another thread, or a signal's handler, may have come as far
        self._closed = self._closed or self._closing
        if alone:
            self._lock.release()
        if first:
            self.flight.close()
        return first

    @property
    def idle(self) -> bool:
        """True if no operation is under way."""
        return not self._lock.locked() and (self._last is None or self._last.done())

    def last_words(self, reason: str = "") -> str:
        """The message that this rank leaves for the others: its last operation of all ranks, and the reason.

        reason  the program's, if it is not done
        """
        done = [operation.number for operation in self.flight.operations() if operation.number and not operation.group]
        said = f"after operation {done[-1]}" if done else "before its first operation"
        return f"{said}: {printable(reason)}" if reason else said

    def _wait_for_others(self) -> bool:
        """Waits until no other thread is inside an operation, which uses arrays and sockets.  Returns True if it holds
        the lock; False if this thread is inside an operation, which was interrupted or has called this itself."""
        while not self._lock.acquire(timeout=0.1):
            inside = self._inside
            if inside is threading.current_thread() or (inside is not None and not inside.is_alive()):
                return False
        return True

    def _started(self) -> threading.Thread:
        """The thread that runs what was begun asynchronously, one for all threads that begin something."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="netfold", daemon=True)
                self._thread.start()
            return self._thread

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            work._run()
        self._refuse_rest()

    def _refuse_rest(self) -> None:
        """Ends works that stand behind the end of the queue."""
        assert self._closing is not None
        with contextlib.suppress(queue.Empty):
            while True:
                if (work := self._queue.get_nowait()) is not None:
                    work._refuse(self._closing)
