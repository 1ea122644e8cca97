# SPDX-License-Identifier: Apache-2.0
"""Starts programs by fork from a process that has imported what they need, which takes Python longer than all else that
a start does: switches, and the ranks of a job.  `forks.py` is the launcher's end.

FD is a SOCK_SEQPACKET socket, which the launcher alone has.  One message starts one program, START, or only imports
what it will import, WARM.  With it comes a file that holds the JSON of a `StartRequest`, and with START four more: what
become standard input, output and error, and the end of a stream socket, the program's own:

    program    "started NUMBER", a line, once it leads a session and takes signals
    launcher   GO: only then it becomes the program; where the launcher has closed its end, it ends instead
    server     at its end "ended STATUS", a line, as `subprocess.Popen.returncode` has it
    launcher   closes its end: only then the process number may become another process's

When FD's socket is closed, this process ends.  The programs do not: each is the leader of a session of its own.  What
is no Python program that can run in a fork (forked_program.py) is executed by it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from typing import Final, NoReturn, TypedDict

from netfold.topo.processes import forked_program
from netfold.topo.processes.forked_program import Program

COMMAND: Final = (
    "import sys; sys.path = [place for place in sys.path if place]; "
    "from netfold.topo.processes.fork_server import main; main()"
)
"""The server, `python -c COMMAND FD MODULE...`, which first imports these modules, none from its current folder."""
START, WARM = b"start", b"warm"
STARTED, ENDED = b"started", b"ended"
GO = b"g"
NOT_FOUND: Final = 127
"""Status of a program that cannot be executed, as in a shell."""

_libc = ctypes.CDLL(None, use_errno=True)


class StartRequest(TypedDict):
    """A program to start."""

    command: list[str]
    environment: dict[str, str]
    folder: str
    """Its current one, if it is there."""
    namespaces: list[str]
    """Files of the namespaces in which it runs, such as /proc/1/ns/net."""


def main() -> None:
    """Serve a socket until it is closed; in each process of a Python program, run that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the launcher, with which this ends
    forked_program.import_all(sys.argv[2:])
    gc.collect()
    gc.freeze()  # so that collections in the forks leave the common pages alone
    forked = serve(socket.socket(fileno=int(sys.argv[1])))
    if forked is not None:
        forked_program.run(forked)


def serve(requests: socket.socket) -> Program | None:
    """Start programs until the socket is closed, and return None; in each process that it forks for one, return it."""
    running: dict[int, tuple[int, int]] = {}
    """The process number and the stream of each program, by its pidfd."""
    ended: dict[int, int] = {}
    """The process number of each whose end has been told, by its stream."""
    while True:
        for ready in _readable([requests.fileno(), *running, *ended]):
            if ready in running:
                pid, stream = running.pop(ready)
                _tell(stream, ENDED, _status(pid))
                os.close(ready)
                ended[stream] = pid
                continue
            if ready in ended:
                os.waitpid(ended.pop(ready), 0)
                os.close(ready)
                continue
            said, files, _, _ = socket.recv_fds(requests, len(START), 5)
            if not said:
                return None
            request = _read(files[0])
            program = forked_program.of(request["command"], request["environment"], request["folder"])
            if program is not None:
                forked_program.warm(program, request["folder"])
                gc.freeze()
            if said == WARM:
                continue
            *standard, stream = files[1:]
            alone = len(os.listdir("/proc/self/task")) == 1  # a fork has none of the threads that a module has started
            pid = os.fork()
            if pid == 0:
                for file in (*running, *(other for _, other in running.values()), *ended):
                    os.close(file)
                requests.close()
                _detach(standard)
                _tell(stream, STARTED, os.getpid())
                if os.read(stream, len(GO)) != GO:
                    os._exit(0)  # the launcher has given up
                os.close(stream)
                return _become(request, may_fork=alone)
            for file in standard:
                os.close(file)
            running[os.pidfd_open(pid)] = pid, stream


def _status(pid: int) -> int:
    """The status of a process that has ended, which keeps its number."""
    info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert info is not None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def _tell(stream: int, what: bytes, number: int) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # nobody wants to know
        os.write(stream, b"%s %d\n" % (what, number))


def _read(file: int) -> StartRequest:
    with open(file, "rb") as text:
        text.seek(0)
        request: StartRequest = json.load(text)
    return request


def _readable(files: list[int]) -> list[int]:
    poll = select.poll()  # select() takes no file numbers from 1024 on
    for file in files:
        poll.register(file, select.POLLIN)
    return [file for file, _ in poll.poll()]


# ---- what it forks ---------------------------------------------------------------------------------------------------


def _detach(standard: list[int]) -> None:
    """Be the leader of a session, with these files as standard input, output and error; a signal ends it."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number, file in enumerate(standard):
        os.dup2(file, number)
        os.close(file)


def _become(request: StartRequest, *, may_fork: bool) -> Program:
    """Make this process, a fork of the server, the one that the request describes, and return its program; or execute
    what cannot run in a fork."""
    try:
        for place in request["namespaces"]:
            _enter(place)
    except OSError as error:
        _give_up(f"entering a host by {error.filename}: {error.strerror}")
    with contextlib.suppress(OSError):  # a host may have other folders
        os.chdir(request["folder"])
    command, environment = request["command"], request["environment"]
    program = forked_program.of(command, environment, os.getcwd())
    if not may_fork or program is None or forked_program.would_notice(program, environment):
        _execute(command, environment)
    forked_program.become(program, command, environment)
    return program


def _enter(place: str) -> None:
    with open(place) as namespace:
        if _libc.setns(namespace.fileno(), 0):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), place)


def _execute(command: list[str], environment: dict[str, str]) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, as other programs should not
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        _give_up(f"cannot run {command[0]}: {error.strerror}")


def _give_up(why: str) -> NoReturn:
    os.write(2, f"netfold: {why}\n".encode(errors="replace"))
    os._exit(NOT_FOUND)
