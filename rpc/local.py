# SPDX-License-Identifier: Apache-2.0
"""Requests and answers between processes of one user on one machine, over a unix socket, with open files if need be.

gRPC tells a server nothing about who is at the other end of a unix socket, and passes no open files.  So this is a
connection for each request: one line of JSON each way, the answer with the files that belong to it (SCM_RIGHTS).  The
socket has mode 0600, and the kernel says whose process has connected (SO_PEERCRED): other users are turned away.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from netfold.rpc.rpc import CallRefused, Unreachable

log = logging.getLogger("netfold.local")

Request = TypeVar("Request")

MAX_MESSAGE: Final = 1 << 22
"""Bytes of a request or an answer at most."""
MAX_FILES: Final = 250
"""Open files of an answer at most; the kernel takes 253 in one message (SCM_MAX_FD)."""
PATIENCE: Final = 5.0
"""Seconds in which a caller must have sent its request, and taken its answer."""
MAX_CALLERS: Final = 32
"""Connections that are served at once; further ones wait in the socket's queue."""
RETRY: Final = 0.1
"""Seconds until another try to take a connection, where this process has no descriptor for it."""
_CREDENTIALS: Final = struct.Struct("3i")


class Server(Generic[Request]):
    """Serves requests of this user's processes at a unix socket, each in a thread of its own.

    path      of the socket, which is made with mode 0600 and removed by `close`
    requests  the type of requests, which msgspec checks
    answer    gives the answer to a request and the files that go with it, which are closed once they are sent
    refuse    the answer to what is no request: it gets what was wrong
    """

    def __init__(
        self, path: Path, requests: Any, answer: Callable[[Request], tuple[msgspec.Struct, Sequence[int]]],
        refuse: Callable[[str], msgspec.Struct],
    ) -> None:
        self.path = path
        self._answer, self._refuse = answer, refuse
        self._decoder: msgspec.json.Decoder[Request] = msgspec.json.Decoder(requests)
        self._free = threading.BoundedSemaphore(MAX_CALLERS)
        self._closed = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            # no moment in which others could connect: nobody can before listen()
            self._listener.bind(str(path))
            path.chmod(0o600)
            self._listener.listen(MAX_CALLERS)
        except OSError:
            self._listener.close()
            raise
        threading.Thread(target=self._accept, name=f"serves {path.name}", daemon=True).start()

    def close(self) -> None:
        """Take no further requests, and remove the socket."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            self._free.acquire()
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                self._free.release()
                if self._closed.is_set():
                    return
                log.warning("%s takes nobody: %s; callers wait", self.path, error)
                self._closed.wait(RETRY)  # it is tried again at once else, while file descriptors are lacking
                continue
            try:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except RuntimeError as error:  # the system has no more threads
                log.warning("%s: a caller was turned away: %s", self.path, error)
                connection.close()
                self._free.release()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(PATIENCE)
                if _peer(connection) != os.geteuid():
                    return
                self._converse(connection)
        except OSError as error:  # the caller has gone, or is too slow
            log.info("%s: %s", self.path, error)
        finally:
            self._free.release()

    def _converse(self, connection: socket.socket) -> None:
        files: Sequence[int] = ()
        try:
            try:
                answer, files = self._answer(self._decoder.decode(_line(connection)))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
                answer = self._refuse(f"{error}; are both of the same version of NetFold?")
            except Exception as error:
                log.exception("a request at %s failed", self.path)
                answer = self._refuse(f"the service failed: {error!r}")
            data = msgspec.json.encode(answer) + b"\n"
            sent = socket.send_fds(connection, [data], list(files)) if files else 0
            connection.sendall(data[sent:])
        finally:
            for file in files:
                os.close(file)


def call(path: Path, request: msgspec.Struct, answers: Any, timeout: float) -> tuple[Any, list[int]]:
    """Send a request to the server at ``path``, and return its answer with the open files that came with it.

    ``answers`` is the type of answers, which may be a union.

    Raises Unreachable where nobody answers within ``timeout`` seconds, and CallRefused for another user's socket.
    """
    files: list[int] = []
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(timeout)
            connection.connect(str(path))
            if _peer(connection) != os.geteuid():
                raise CallRefused(f"{path} is served by another user's process: expected one of user {os.geteuid()}")
            connection.sendall(msgspec.json.encode(request) + b"\n")
            data, files = _answer(connection)
        return msgspec.json.decode(data, type=answers), files
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        for file in files:
            os.close(file)
        why = "speaks another version" if isinstance(error, msgspec.MsgspecError) else "does not answer"
        raise Unreachable(f"{path} {why}: {error}") from error


def _peer(connection: socket.socket) -> int:
    """The user of the process at the other end, as this process's user namespace numbers it."""
    return int(_CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1])


def _line(connection: socket.socket) -> bytes:
    """Read up to the first newline.  Raises OSError, ValueError."""
    data = b""
    while not data.endswith(b"\n"):
        piece = connection.recv(65536)
        if not piece:
            raise ValueError(f"expected a line of JSON, got {len(data)} bytes without its end")
        data += piece
        if len(data) > MAX_MESSAGE:
            raise ValueError(f"expected at most {MAX_MESSAGE} bytes")
    return data


def _answer(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Read the answer's line, and the files that come with its first bytes.  Raises OSError."""
    data, files, flags, _ = socket.recv_fds(connection, 65536, MAX_FILES, socket.MSG_CMSG_CLOEXEC)
    try:
        if flags & socket.MSG_CTRUNC:
            raise OSError("this process may not open that many files (ulimit -n)")
        if data and not data.endswith(b"\n"):
            data += _line(connection)
        if not data:
            raise OSError("it has turned this process away, or ended")
    except ValueError as error:
        for file in files:
            os.close(file)
        raise OSError(str(error)) from error
    except OSError:
        for file in files:
            os.close(file)
        raise
    return data, files
