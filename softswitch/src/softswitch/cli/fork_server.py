# SPDX-License-Identifier: Apache-2.0
"""Starts switches by fork from a process that has imported all that a switch needs, which takes longer than all else
that a start does. For launchers of many switches, or of one that is to be back soon.

    softswitch fork-server FD

FD is a SOCK_SEQPACKET socket. One message, START, starts one switch. With it come three files: one that holds the JSON
of a `Request`, one that becomes standard output and error, and the end of a stream socket, the switch's own:

    server     its process number, a line
    launcher   GO: only then it becomes a switch; where the launcher has closed its end, it ends instead
    server     at its end its status as `subprocess.Popen.returncode` has it, a line

The stream ends where the status cannot be known any more. When FD's socket is closed, this process ends. The switches
do not: each is the leader of a session of its own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
from typing import TypedDict

START = b"start"
GO = b"g"
MODULES = ("softswitch.cli.run", "softswitch.cli.start", "softswitch.p4runtime.program", "softswitch.p4runtime.server")
"""These import all that a switch needs."""
GRPC_MODULES = ("grpc._interceptor", "grpc._server")
"""What grpc.server() imports with its first server."""


class Request(TypedDict):
    """A switch to start."""

    arguments: list[str]
    """Those of the command softswitch."""
    environment: dict[str, str]
    folder: str
    """The current one of the switch."""


def serve(requests: socket.socket) -> list[str] | None:
    """Starts switches until the socket is closed, and returns None; in each of the processes that it starts it returns
    the arguments of a switch."""
    streams: dict[int, int] = {}
    """The stream of each switch that runs, by the pidfd of its process."""
    pids: dict[int, int] = {}
    while True:
        for ready in _readable([requests.fileno(), *pids]):
            if ready in pids:
                _, status = os.waitpid(pids.pop(ready), 0)
                _tell(streams[ready], os.waitstatus_to_exitcode(status))
                os.close(streams.pop(ready))
                os.close(ready)
                continue
            said, files, _, _ = socket.recv_fds(requests, len(START), 3)
            if not said:
                return None
            request, output, stream = files
            pid = os.fork()
            if pid == 0:
                for file in (*pids, *streams.values()):
                    os.close(file)
                requests.close()
                if os.read(stream, len(GO)) != GO:
                    os._exit(0)  # the launcher has given up
                os.close(stream)
                return _become(_read(request), output)
            for file in (request, output):
                os.close(file)
            _tell(stream, pid)
            process = os.pidfd_open(pid)
            pids[process], streams[process] = pid, stream


def _tell(stream: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # nobody wants to know
        os.write(stream, b"%d\n" % number)


def _read(file: int) -> Request:
    with open(file, "rb") as text:
        text.seek(0)
        request: Request = json.load(text)
    return request


def _readable(files: list[int]) -> list[int]:
    poll = select.poll()  # select() takes no file numbers from 1024 on
    for file in files:
        poll.register(file, select.POLLIN)
    return [file for file, _ in poll.poll()]


def _become(request: Request, output: int) -> list[str]:
    """Makes this process, a fork of the server, one that the request describes."""
    os.setsid()
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as name:
        name.write("softswitch")  # for ps, top, ss
    return request["arguments"]


def _import_all() -> None:
    """Imports what a switch imports until its first program runs."""
    for module in MODULES:
        importlib.import_module(module)
    for module in GRPC_MODULES:
        with contextlib.suppress(ImportError):  # another version may do without
            importlib.import_module(module)


def run(file: int) -> list[str] | None:
    """Serves a socket until it is closed, and returns None; in each process of a switch it returns the arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is the launcher's, which closes the socket
    _import_all()
    gc.collect()
    gc.freeze()  # so that collections in the forks leave the common pages alone
    return serve(socket.socket(fileno=file))
