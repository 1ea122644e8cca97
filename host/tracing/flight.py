# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: a communicator's last operations, kept in memory for when something goes wrong.

It always runs: an operation costs about three microseconds.  ``Communicator.flight()`` returns what it holds.  Where
$NETFOLD_FLIGHT names a folder, it writes JOB.rankN.json there when an operation fails, and when the process gets a
signal ($NETFOLD_FLIGHT_SIGNAL, default SIGUSR2), even if the main thread is stuck in native code: the wake-up
descriptor of Python's signals is read by a thread of our own.  A handler that the program has for this signal, as
submitit has one for SIGUSR2, runs as before.  `netfold flight FOLDER` prints all ranks' files side by side.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec

from netfold.disk import files
from netfold.host.forked import disconnect, ends_in_child
from netfold.host.tracing.timeline import Timeline
from netfold.wire.flight import Dump, OperationRecord

MAX_OPERATIONS: Final = 1000
"""Number of operations that are remembered."""
FOLDER_VARIABLE: Final = "NETFOLD_FLIGHT"
SIGNAL_VARIABLE: Final = "NETFOLD_FLIGHT_SIGNAL"
SIGNAL: Final = "SIGUSR2"
SIGNAL_INTERVAL: Final = 0.2
"""Seconds within which several signals count as one."""

log = logging.getLogger("netfold")


class _RunningRecord(OperationRecord):
    """A record that is written while the operation runs."""

    def carried_by(self, path: str) -> None:
        """Adds a rail or algorithm."""
        self.path = f"{self.path} + {path}" if self.path else path

    def resent(self, packets: int) -> None:
        """Adds packets that were sent again."""
        self.retransmissions += packets

    def ended(self, end: float, error: BaseException | None) -> None:
        """Says when the operation ended, in seconds since 1970, and with what."""
        self.end = end
        self.state = "done" if error is None else "failed"
        if error is not None:
            self.error = f"{type(error).__name__}: {error}"

    def not_carried(self) -> None:
        """Forgets what was to carry it."""
        self.path = ""


class Flight:
    """The flight recorder of one rank of a job.

    folder    where files are written; default: $NETFOLD_FLIGHT, or none are
    timeline  records every operation as well, where a timeline was asked for
    """

    def __init__(
        self, job: str, rank: int, world: int, *, folder: Path | None = None, timeline: Timeline | None = None
    ) -> None:
        if folder is None and os.environ.get(FOLDER_VARIABLE):
            folder = Path(os.environ[FOLDER_VARIABLE])
        self.folder = folder
        self._job, self._rank, self._world = job, rank, world
        self._operations: deque[OperationRecord] = deque(maxlen=MAX_OPERATIONS)
        self.timeline = timeline
        self._epoch = time.time() - time.monotonic()
        """Present offset of CLOCK_MONOTONIC to seconds since 1970: later steps of the wall clock change no duration."""
        self._begin = 0
        """Time at which it began, in nanoseconds of CLOCK_MONOTONIC."""
        self.now = _RunningRecord(0, "", "", "", "", 0, "", 0.0, state="done")
        """The operation under way, or else the last one."""
        ends_in_child(self)
        if folder is not None:
            _recorders.add(self)
            _listen()

    def after_fork(self) -> None:
        """This is a forked child: the files are its parent's."""
        self.folder = self.timeline = None
        _recorders.discard(self)

    @contextlib.contextmanager
    def operation(
        self, number: int, group: str, name: str, op: str, dtype: str, nbytes: int
    ) -> Iterator[OperationRecord]:
        """Records one operation while the context is open; an error inside marks it as failed and, with a folder,
        writes the file."""
        operation = self.begin(number, group, name, op, dtype, nbytes)
        try:
            yield operation
        except BaseException as error:
            self.end(error)
            raise
        self.end(None)

    def begin(
        self, number: int, group: str, name: str, op: str, dtype: str, nbytes: int, path: str = ""
    ) -> OperationRecord:
        """Records the beginning of an operation.

        path  the rail or algorithm that carries it, where that is known already
        """
        begin = time.monotonic()
        self.now = operation = _RunningRecord(number, group, name, op, dtype, nbytes, path, self._epoch + begin)
        self._operations.append(operation)
        self._begin = int(begin * 1e9)
        return operation

    def end(self, error: BaseException | None) -> None:
        """Records the end of the operation under way, and writes the file where it ends with an error."""
        operation = self.now
        operation.ended(self._epoch + time.monotonic(), error)
        if self.timeline is not None:
            self.timeline.operation(operation, self._begin, time.monotonic_ns())
        if error is not None and self.folder is not None:
            self.dump(f"operation {operation.number} failed: {operation.error}")

    def _time(self) -> float:
        """Seconds since 1970 by a clock that never steps."""
        return self._epoch + time.monotonic()

    def count_retransmissions(self, packets: int) -> None:
        """Adds packets sent again to the operation under way."""
        self.now.resent(packets)

    def take_back(self) -> None:
        """Nothing carries the operation under way, in spite of what was known when it began."""
        self.now.not_carried()

    def note(self, path: str) -> None:
        """Records which rail or algorithm carries the operation under way, or a part of it."""
        self.now.carried_by(path)

    def operations(self) -> list[OperationRecord]:
        """Copies of the remembered operations, the oldest first."""
        return [msgspec.structs.replace(operation) for operation in self._operations.copy()]

    def dump(self, why: str, *, threads: bool = False) -> Path | None:
        """Writes the file.  Returns its path, or None where that failed, which is logged and never raised."""
        assert self.folder is not None
        path = self.folder / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', self._job)}.rank{self._rank}.json"
        said = Dump(
            self._job, self._rank, self._world, socket.gethostname(), os.getpid(), self._time(), why, self.operations(),
            _threads() if threads else {},
        )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            files.replace(path, msgspec.json.format(msgspec.json.encode(said), indent=1))
        except OSError as error:
            log.warning("flight recorder: cannot write %s: %s", path, error)
            return None
        log.warning("flight recorder: %s, rank %d: %s, because %s", self._job, self._rank, path, why.splitlines()[0])
        return path

    def close(self) -> None:
        """Unregisters the recorder from the signal, and writes the timeline."""
        if self.timeline is not None:
            self.timeline.write()
        _recorders.discard(self)


def _threads() -> dict[str, list[str]]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        f"{names.get(ident, '?')} ({ident})": [
            f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_stack(top)
        ]
        for ident, top in sys._current_frames().items()
    }


# ---- the signal ------------------------------------------------------------------------------------------------------
_recorders: weakref.WeakSet[Flight] = weakref.WeakSet()
_listening = threading.Lock()
"""Acquired for good once the signal's handler is installed."""


def _listen() -> None:
    """Installs the signal's handler, once a process.  Warns where that is impossible; failed operations still write
    their files."""
    name = os.environ.get(SIGNAL_VARIABLE) or SIGNAL
    try:
        number = signal.Signals[name]
    except KeyError:
        raise ValueError(f"{SIGNAL_VARIABLE}={name!r}: expected the name of a signal, as {SIGNAL}") from None
    if threading.current_thread() is not threading.main_thread():
        if not _listening.locked():
            log.warning("flight recorder: %s writes nothing: the communicator was not made by the main thread", name)
        return
    if not _listening.acquire(blocking=False):
        return
    theirs = signal.getsignal(number)
    if theirs is None:  # installed by native code, which cannot be called from here
        _listening.release()
        log.warning("flight recorder: %s has a handler already and writes nothing; set %s", name, SIGNAL_VARIABLE)
        return
    if callable(theirs):
        log.warning(
            "flight recorder: %s has a handler of the program's, which runs too when a record is asked for by this "
            "signal; %s names another one", name, SIGNAL_VARIABLE,
        )
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    before = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    if before != -1:  # an event loop uses it: then the main thread writes, as soon as it runs Python code
        signal.set_wakeup_fd(before)
        os.close(readable)
        os.close(writable)
        signal.signal(number, _both(lambda: _dump_all(name), theirs))
        return
    # a forked child's signals must not wake the thread of its parent, nor end the child
    os.register_at_fork(after_in_child=lambda: disconnect((readable, writable)))
    # Once more from the main thread: should an event loop take the descriptor from us later, this one still comes.
    signal.signal(number, _both(lambda: os.write(writable, bytes([number])), theirs))
    threading.Thread(target=write_when_asked, args=(readable, number), name="netfold-flight", daemon=True).start()


def _both(ask: Callable[[], object], theirs: Any) -> Callable[[int, FrameType | None], None]:
    """A handler that asks for the files, and then does what was done on the signal before."""

    def handle(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full of signals already
            ask()
        if callable(theirs):
            theirs(number, frame)

    return handle


def write_when_asked(readable: int, number: int) -> None:
    """Writes all recorders' files each time that this signal's number comes from the pipe, which carries the numbers of
    all signals that the process handles.  Ends when the pipe's other end is closed."""
    last = -SIGNAL_INTERVAL
    while data := os.read(readable, 64):
        if number in data and time.monotonic() - last > SIGNAL_INTERVAL:
            _dump_all(signal.Signals(number).name)
            last = time.monotonic()


def _dump_all(name: str) -> None:
    for recorder in list(_recorders):
        recorder.dump(f"{name} asked for it", threads=True)
