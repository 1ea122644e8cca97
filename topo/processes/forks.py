# SPDX-License-Identifier: Apache-2.0
"""Processes that are forked by a fork server (fork_server.py): a switch, or a rank that imports NetFold, starts in a
tenth of the time that it takes Python to import what it needs.

    child = Forks("softswitch.cli.run").start([program, *arguments], log)

A launcher has one server for all its switches, and one for ranks.  Each ends with the launcher, which alone can talk to
it; what it has started are processes like others, which the launcher ends by their numbers.
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
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol, TypeVar

from netfold.topo.processes.fork_server import COMMAND, ENDED, GO, START, STARTED, WARM, StartRequest

T = TypeVar("T")
START_SECONDS = 60.0
"""Seconds for a fork server to start a program: at first it imports, on a machine that may be busy with others."""
STATUS_SECONDS = 5.0
"""Seconds for the status of a process that has ended."""
STOP_SECONDS = 5.0
"""Seconds for a fork server to end after its socket was closed."""
UNKNOWN_STATUS = 255
"""The status of a process whose fork server has ended before it."""


class ChildProcess(Protocol):
    """The part of `subprocess.Popen` that switches need."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def kill(self) -> None: ...


class Forked:
    """A process that a fork server has started, with the part of `subprocess.Popen` that launchers need.

    pid     of a process that waits for GO
    stream  of the process, from which its number has been read
    stdin   and stdout, stderr: this process's ends of its pipes, where it has some
    """

    def __init__(
        self, pid: int, stream: socket.socket, command: Sequence[str],
        stdin: IO[bytes] | None = None, stdout: IO[bytes] | None = None, stderr: IO[bytes] | None = None,
    ) -> None:
        self.pid = pid
        self.args = command
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.returncode: int | None = None
        """Its status, kept since its number may since belong to another process."""
        self._stream = stream
        self._process = os.pidfd_open(pid)
        self._status: int | None = None
        self._reading = threading.Lock()

    def ended(self) -> int | None:
        """The status of the process, whose number is still its own; None while it runs."""
        with self._reading:
            if self._status is None and readable(self._process, 0):
                self._status = self._said()
                os.close(self._process)
            return self._status

    def poll(self) -> int | None:
        """The status of the process as `subprocess.Popen.returncode` has it; None while it runs."""
        if (status := self.ended()) is not None:
            with self._reading:
                self._stream.close()
                self.returncode = status
        return status

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return its status.  Raises TimeoutExpired."""
        end = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
            with contextlib.suppress(OSError):  # another thread has seen the end, and closed the file
                readable(self._process, left)
        return status

    def _said(self) -> int:
        with contextlib.suppress(ConnectionResetError):
            if readable(self._stream.fileno(), STATUS_SECONDS):
                said = self._stream.recv(64).split()
                return int(said[1]) if said[:1] == [ENDED] else UNKNOWN_STATUS
        return UNKNOWN_STATUS

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, sig)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        self.send_signal(signal.SIGKILL)


def launch(modules: Sequence[str], environment: Mapping[str, str]) -> tuple[socket.socket, ChildProcess]:
    """Start a fork server, which imports modules; return its socket and its process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        return ours, subprocess.Popen(
            [_python(), "-c", COMMAND, str(theirs.fileno()), *modules], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
            env={**os.environ, **environment},
        )


def _python() -> str:
    """The interpreter of the environment that has NetFold: Mininet's `mn` runs under the system's (leafspine.py)."""
    ours = Path(sys.prefix, "bin", "python")
    return sys.executable if Path(sys.executable).is_relative_to(sys.prefix) or not ours.exists() else str(ours)


class Forks:
    """A fork server, which is started with the first program.

    modules      that it imports at first
    environment  variables of its own, which what it imports is to find; the others are this process's
    """

    def __init__(self, *modules: str, environment: Mapping[str, str] | None = None) -> None:
        self.modules = modules
        self._environment = dict(environment or {})
        self._socket: socket.socket | None = None
        self._server: ChildProcess | None = None
        self._lock = threading.Lock()

    @property
    def server(self) -> int | None:
        """The number of the server's process, where there is one."""
        return None if self._server is None else self._server.pid

    def start(
        self, command: Sequence[str], output: int | IO[bytes], errors: int | IO[bytes], *,
        input: int = subprocess.DEVNULL, environment: Mapping[str, str] | None = None, namespaces: Sequence[str] = (),
        folder: str | None = None,
    ) -> Forked:
        """Start a program by the command line that does it, in a session of its own.  A server that has ended is
        replaced once.  Raises OSError.

        output, errors  files, or subprocess.PIPE
        input           subprocess.DEVNULL or subprocess.PIPE
        environment     default: that of the server
        namespaces      files of the namespaces to enter, such as /proc/1/ns/net
        folder          its current one; default: that of this process
        """
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as failed:
            pipes: list[IO[bytes] | None] = []
            files: list[int] = []
            for wanted, ours in ((input, "wb"), (output, "rb"), (errors, "rb")):
                pipe = None
                if wanted == subprocess.PIPE:
                    ends = os.pipe() if ours == "rb" else os.pipe()[::-1]
                    pipe = failed.enter_context(open(ends[0], ours))
                    theirs.callback(os.close, ends[1])
                    wanted = ends[1]
                elif wanted == subprocess.DEVNULL:
                    wanted = theirs.enter_context(open(os.devnull, "r+b", buffering=0))
                pipes.append(pipe)
                files.append(wanted if isinstance(wanted, int) else wanted.fileno())
            request = self._request(command, environment, namespaces, folder)
            forked = self._served(lambda server: _start(server, request, files, pipes))
            failed.pop_all()
        return forked

    def warm(self, command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> None:
        """Have the server import what this program will import, beside whatever is done until it starts.  Raises
        OSError."""
        request = self._request(command, environment)
        self._served(lambda server: _send(server, WARM, request, []))

    def _request(
        self, command: Sequence[str], environment: Mapping[str, str] | None, namespaces: Sequence[str] = (),
        folder: str | None = None,
    ) -> StartRequest:
        ours = {**os.environ, **self._environment} if environment is None else dict(environment)
        return {"command": list(command), "environment": ours, "folder": folder or os.getcwd(),
                "namespaces": list(namespaces)}

    def _served(self, ask: Callable[[socket.socket], T]) -> T:
        with self._lock:
            for last in (False, True):
                if self._server is None or self._server.poll() is not None:
                    self._start_server()
                assert self._socket is not None
                try:
                    return ask(self._socket)
                except OSError:
                    self.close()
                    if last:
                        raise
        raise AssertionError("unreachable")

    def _start_server(self) -> None:
        self.close()
        self._socket, self._server = launch(self.modules, self._environment)
        atexit.register(self._close_at_exit)

    def close(self) -> None:
        """End the server; the switches run on."""
        atexit.unregister(self._close_at_exit)
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

    def _close_at_exit(self) -> None:
        """The same at the end of this program, which one more Ctrl-C does not interrupt."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.close()


def _send(server: socket.socket, what: bytes, request: StartRequest, files: list[int]) -> None:
    with open(os.memfd_create("request"), "wb", buffering=0) as text:  # an environment may be large
        text.write(json.dumps(request).encode())
        socket.send_fds(server, [what], [text.fileno(), *files])


def _start(server: socket.socket, request: StartRequest, files: list[int], pipes: list[IO[bytes] | None]) -> Forked:
    stream, theirs = socket.socketpair()
    try:
        with theirs:
            _send(server, START, request, [*files, theirs.fileno()])
        said = b""
        while not said.endswith(b"\n"):
            if not readable(stream.fileno(), START_SECONDS) or not (byte := stream.recv(1)):
                raise ChildProcessError(f"the fork server started nothing for {request['command'][0]}")
            said += byte
        what, number = said.split()
        if what != STARTED:
            raise ChildProcessError(f"{request['command'][0]} ended before it was started, with status {int(number)}")
        forked = Forked(int(number), stream, request["command"], *pipes)
        stream.sendall(GO)
    except BaseException:  # Ctrl-C as well: what is forked later ends, as its stream has
        stream.close()
        raise
    return forked


def readable(file: int, seconds: float | None) -> bool:
    """True if there is data to read, or an end, within ``seconds``."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(None if seconds is None else 1000 * seconds))
