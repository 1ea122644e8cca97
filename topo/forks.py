# SPDX-License-Identifier: Apache-2.0
"""Processes of softswitches, forked by softswitch's fork server: a switch starts in a tenth of the time that it takes
Python to import what a switch needs.

    child = Forks().start([program, *arguments], log)

There is one server for all switches that a launcher starts.  It ends with the launcher; the switches are processes
like others, which the launcher ends by their numbers.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from typing import IO, Protocol

START_SECONDS = 60.0
"""Seconds for a fork server to start a switch: at first it imports, on a machine that may be busy with others."""
STATUS_SECONDS = 5.0
"""Seconds for the status of a process that has ended."""
STOP_SECONDS = 5.0
"""Seconds for a fork server to end after its socket was closed."""
START, GO = b"start", b"g"
"""What softswitch/cli/fork_server.py calls so."""
UNKNOWN_STATUS = 255
"""The status of a process whose fork server has ended before it."""


class SwitchChild(Protocol):
    """The part of `subprocess.Popen` that switches need."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def kill(self) -> None: ...


class Forked:
    """A process that a fork server has started.

    pid     of a process that waits for GO
    stream  of the process, from which its number has been read
    """

    def __init__(self, pid: int, stream: socket.socket, command: list[str]) -> None:
        self.pid = pid
        self._command = command
        self._stream = stream
        self._process = os.pidfd_open(pid)
        self._status: int | None = None
        self._reading = threading.Lock()

    def poll(self) -> int | None:
        """The status of the process as `subprocess.Popen.returncode` has it; None while it runs."""
        with self._reading:
            if self._status is None and _wait(self._process, 0):
                self._status = self._said()
                self._stream.close()
                os.close(self._process)
            return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return its status.  Raises TimeoutExpired."""
        end = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(self._command, timeout or 0.0)
            with contextlib.suppress(OSError):  # another thread has seen the end, and closed the file
                _wait(self._process, left)
        return status

    def _said(self) -> int:
        with contextlib.suppress(ConnectionResetError):
            if _wait(self._stream.fileno(), STATUS_SECONDS):
                return int(self._stream.recv(64) or UNKNOWN_STATUS)
        return UNKNOWN_STATUS

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, sig)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        self.send_signal(signal.SIGKILL)


class Forks:
    """Softswitch's fork server, which is started with the first switch."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def server(self) -> int | None:
        """The number of the server's process, where there is one."""
        return None if self._server is None else self._server.pid

    def start(self, command: list[str], log: IO[bytes]) -> Forked:
        """Start a switch by the command line that does it, with this process's environment, whose output goes to a
        file.  A server that has ended is replaced once.  Raises OSError."""
        with self._lock:
            for last in (False, True):
                if self._server is None or self._server.poll() is not None:
                    self._start_server(command[0])
                try:
                    return self._ask(command, log)
                except OSError:
                    self.close()
                    if last:
                        raise
        raise AssertionError("unreachable")

    def _ask(self, command: list[str], log: IO[bytes]) -> Forked:
        assert self._socket is not None
        request = {"arguments": command[1:], "environment": dict(os.environ), "folder": os.getcwd()}
        stream, theirs = socket.socketpair()
        try:
            with theirs, open(os.memfd_create("request"), "wb", buffering=0) as text:  # an environment may be large
                text.write(json.dumps(request).encode())
                socket.send_fds(self._socket, [START], [text.fileno(), log.fileno(), theirs.fileno()])
            said = b""
            while not said.endswith(b"\n"):
                if not _wait(stream.fileno(), START_SECONDS) or not (byte := stream.recv(1)):
                    raise ChildProcessError("softswitch's fork server started nothing")
                said += byte
            forked = Forked(int(said), stream, command)
            stream.sendall(GO)
        except BaseException:  # Ctrl-C as well: what is forked later ends, as its stream has
            stream.close()
            raise
        return forked

    def _start_server(self, program: str) -> None:
        self.close()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [program, "fork-server", str(theirs.fileno())], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End the server; the switches run on."""
        atexit.unregister(self.close)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._server is not None:
            try:
                self._server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
            self._server = None


def _wait(file: int, seconds: float | None) -> bool:
    """Whether there is something to read, or an end, within so many seconds."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(None if seconds is None else 1000 * seconds))
