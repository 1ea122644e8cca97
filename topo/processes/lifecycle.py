# SPDX-License-Identifier: Apache-2.0
"""The lifecycle of real processes and interfaces, which must be removed whatever happens in between."""

from __future__ import annotations

import signal
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from netfold.topo.processes.forks import ChildProcess

STOP_SECONDS: Final = 5.0
"""Seconds for a process to end after SIGTERM."""
LOG_LINES: Final = 15
"""Lines of a log's end that an error shows."""


class Lifecycle(ABC):
    """A context manager that starts and stops something; where starting fails, what did start is stopped."""

    @abstractmethod
    def start(self) -> None:
        """Start everything."""

    @abstractmethod
    def stop(self) -> None:
        """Stop whatever is running; may be called twice."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def ending_signals() -> list[signal.Signals]:
    """The signals that ask this program to end: SIGTERM, and SIGINT and SIGHUP unless it was started with them ignored,
    as a shell does with `&` and as nohup does."""
    return [number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN]


def terminate(process: ChildProcess) -> None:
    """End a process by SIGTERM, or by SIGKILL where it has not ended after STOP_SECONDS."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)


def shell_status(code: int) -> int:
    """The exit status, as a shell has it, of a process with this returncode: above 128 where a signal ended it."""
    return 128 - code if code < 0 else code


def how_ended(code: int) -> str:
    """How a process with this returncode has ended, in words after its name."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-code}"


def tail(path: Path, lines: int = LOG_LINES) -> list[str]:
    """The last lines of a log; none where it does not exist."""
    try:
        return path.read_text(errors="replace").rstrip().splitlines()[-lines:]
    except FileNotFoundError:
        return []
