# SPDX-License-Identifier: Apache-2.0
"""Ranks that run in the foreground of a terminal: their output, and how they are ended.

Each line of output is preceded by the number of its rank.  When one rank fails, the others may run for some seconds
more, so that they report which rank they have lost; then all are ended.  Ctrl-C ends all ranks at once.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from types import FrameType
from typing import IO, Final

from netfold.topo.processes.forks import Forked
from netfold.topo.processes.lifecycle import ending_signals, how_ended, shell_status

LOOK: Final = 1.0
"""Seconds between checks of the fabric's own processes."""
DRAIN: Final = 1.0
"""Seconds in which processes that an ended rank left running may still write output."""
STEPS: Final = (
    ("asked to end (SIGINT)", signal.SIGINT, 5.0),
    ("told to end (SIGTERM)", signal.SIGTERM, 5.0),
    ("killed (SIGKILL)", signal.SIGKILL, 5.0),
)
"""The steps by which ranks are ended: a description, the signal, and the seconds until the next step."""


class Stopped(BaseException):
    """A signal has asked this program to end; the argument is its number."""


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Let SIGINT (Ctrl-C), SIGTERM and SIGHUP raise Stopped while the block runs, unless they are ignored.

    Every further signal raises it again, so that pressing Ctrl-C repeatedly goes on to the next step of `STEPS`.
    """

    def stop(number: int, _: FrameType | None) -> None:
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in ending_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class _Stream:
    """One pipe of one rank; ``rest`` is the output since its last newline."""

    rank: int
    pipe: IO[bytes]
    to: IO[bytes]
    rest: bytes = b""


class Console:
    """Copies the output of ranks to this terminal and ends them when one fails.

    out, errors  where the ranks' standard output and standard error go
    clock        monotonic seconds
    """

    def __init__(self, out: IO[bytes], errors: IO[bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._errors, self._clock = out, errors, clock
        self._names: list[str] = []
        self._processes: list[Forked] = []
        self.streams: list[_Stream] = []
        self._ended: dict[int, int] = {}
        """How ranks have ended that `run` still counts; a signal may interrupt it anywhere."""

    def add(self, name: str, process: Forked) -> None:
        """Add the process of the next rank, on host ``name``; its standard output and error must be pipes."""
        assert process.stdout is not None
        assert process.stderr is not None
        rank = len(self._processes)
        self._names.append(name)
        self._processes.append(process)
        self.streams += [_Stream(rank, process.stdout, self._out), _Stream(rank, process.stderr, self._errors)]

    def run(self, *, grace: float, timeout: float | None = None, check: Callable[[], None] = lambda: None) -> int:
        """Copy output until all ranks have ended and return an exit status.

        The status is 0, or that of the first rank that failed; for a rank or this program ended by a signal it is 128
        plus the signal's number, and 124 when the timeout is over.

        grace    seconds that the other ranks may run after one has failed
        timeout  seconds for the whole run; None: without a limit
        check    raises where the fabric that the ranks need is gone
        """
        status, end = 0, None if timeout is None else self._clock() + timeout
        due, steps = end, iter(STEPS)
        with selectors.DefaultSelector() as selector:
            for stream in self.streams:
                selector.register(stream.pipe, selectors.EVENT_READ, stream)
            running = set(range(len(self._processes)))
            with contextlib.ExitStack() as handles:
                for rank in running:
                    handle = os.pidfd_open(self._processes[rank].pid)
                    handles.callback(os.close, handle)
                    selector.register(handle, selectors.EVENT_READ, rank)
                while running:
                    try:
                        check()
                        wait = LOOK if due is None else min(LOOK, due - self._clock())
                        self._pump(selector, max(0.0, wait))
                        for rank, code in list(self._ended.items()):
                            running.discard(rank)
                            failed = self._status(rank, code)
                            del self._ended[rank]
                            if failed and not status:
                                status, due = failed, self._clock() + grace
                                if running:
                                    self._report(f"{_ranks(running)} may go on for {grace:g} s")
                        if running and due is not None and self._clock() >= due:
                            if not status:
                                status = 124
                                self._report(f"{timeout:g} s are over")
                            due = self._end(steps, running)
                    except Stopped as stopped:
                        status = status or 128 + int(stopped.args[0])
                        due = self._end(steps, running)
                self._drain(selector)
        return status

    def _pump(self, selector: selectors.BaseSelector, seconds: float) -> None:
        """Copy the output that is there, whole lines only, and note the ranks that have ended."""
        for key, _ in selector.select(seconds):
            if isinstance(key.data, int):
                self._ended[key.data] = self._end_of(key.data)
                selector.unregister(key.fileobj)
                continue
            stream: _Stream = key.data
            data = os.read(key.fd, 65536)
            *lines, stream.rest = (stream.rest + data).split(b"\n")
            if not data:
                selector.unregister(stream.pipe)
                lines += [stream.rest] if stream.rest else []
            for line in lines:
                stream.to.write(b"[%*d] %s\n" % (len(str(len(self._processes) - 1)), stream.rank, line))
            stream.to.flush()

    def _end_of(self, rank: int) -> int:
        status = self._processes[rank].ended()
        assert status is not None
        return status

    def _drain(self, selector: selectors.BaseSelector) -> None:
        """Copy what is left in the pipes once all ranks have ended, for DRAIN seconds at most."""
        until = self._clock() + DRAIN
        while selector.get_map() and self._clock() < until:
            self._pump(selector, until - self._clock())

    def _status(self, rank: int, code: int) -> int:
        """The exit status of a rank that has ended in this way; a failure is reported."""
        if code:
            self._report(f"rank {rank} on {self._names[rank]} {how_ended(code)}")
        return shell_status(code)

    def _end(self, steps: Iterator[tuple[str, int, float]], running: Set[int]) -> float:
        """Take the next step towards ending the running ranks and return the time at which to take the one after it."""
        name, number, seconds = next(steps, STEPS[-1])
        self._report(f"{_ranks(running)} {name}")
        for rank in running:
            _signal(self._processes[rank], number)
        return self._clock() + seconds

    def _report(self, what: str) -> None:
        self._errors.write(f"netfold: run: {what}\n".encode())
        self._errors.flush()

    def kill(self) -> None:
        """Kill the ranks and everything in their process groups."""
        for process in self._processes:
            _signal(process, signal.SIGKILL)
        for process in self._processes:
            process.wait(STEPS[-1][2])
        for stream in self.streams:
            stream.pipe.close()


def _ranks(ranks: Set[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}"


def _signal(process: Forked, number: int) -> None:
    """Send a signal to a rank and to what it started: its process group, whose number is its own until it is polled."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


