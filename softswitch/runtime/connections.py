# SPDX-License-Identifier: Apache-2.0
"""Keeps clients from taking all connections of a gRPC server, whether they speak or not.

    most = connections.most(512)
    server = grpc.server(threads, options=connections.options(most))
    watch = ConnectionWatch([server.add_insecure_port(address)], most=most)
    ...
    watch.close()

A connection takes a file descriptor, and a process that has no more can neither accept a client nor open a file.  gRPC
ends connections that do not finish their handshake within HANDSHAKE_SECONDS, and refuses those beyond a number of all.
It could end those without a call, too, but tells that to clients' standard error.  It knows no bound for one peer, so
the watch sees to that: it looks now and then who has how many, and where half of all are taken, it ends those of the
peers that have most: first what has said nothing yet, then the newest.  So a flood from one peer drives out itself
alone.  A peer is an address; for connections from this machine it is a user, since on loopback, and at a unix socket,
all have the same address.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS: Final = 10.0
"""Seconds for TLS and the first frames of HTTP/2; gRPC's own limit is two minutes."""
RESERVED: Final = 256
"""File descriptors that connections leave for all else: files, ports, sessions with switches."""
LEAST: Final = 16
"""Connections that are allowed however low the limit of open files is."""
LOOK_SECONDS: Final = 0.5
"""Seconds between two looks at who is connected; AGAIN_SECONDS while there are too many."""
AGAIN_SECONDS: Final = 0.05
WARNING_SECONDS: Final = 10.0
"""Seconds between two warnings."""
_FILES: Final = Path("/proc/self/fd")
_TCP: Final = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_CREDENTIALS: Final = struct.Struct("3i")
_RECEIVED: Final = struct.Struct("=128xQ")
"""Offset of tcpi_bytes_received in the kernel's struct tcp_info."""
_PREFACE_BYTES: Final = 24 + 9
"""The client's connection preface, RFC 9113, 3.4, with an empty SETTINGS frame."""


def most(wanted: int) -> int:
    """Connections that a server may have at the same time: so many, or what the limit of open files leaves.  Raises the
    soft limit to the hard one where it would leave less."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVED
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return max(min(wanted, needed - RESERVED), LEAST)


def options(most: int) -> list[tuple[str, int]]:
    """Settings of a gRPC server that bound its connections in time and number."""
    return [
        ("grpc.server_handshake_timeout_ms", int(1e3 * HANDSHAKE_SECONDS)),
        ("grpc.max_allowed_incoming_connections", most),
    ]


class _Connection(NamedTuple):
    number: int
    """Its descriptor."""
    inode: int
    """Tells whether the descriptor is another file's by now."""
    peer: str
    spoke: bool
    """Whether it has said what HTTP/2 begins with; of a unix socket that is not known, and taken for granted."""


class ConnectionWatch:
    """Keeps half of the connections of one server free for those who come, in a thread.

    at     ports that the server listens at, and paths of its unix sockets
    most   connections that the server takes
    clock  monotonic seconds
    """

    def __init__(
        self, at: Iterable[int | str], *, most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._at = frozenset(at)
        self._room = most // 2
        self._clock = clock
        self._closed = threading.Event()
        self._warn_from = clock()
        self._ended = 0
        """Connections since the last warning."""
        threading.Thread(target=self._run, name="connections", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def _run(self) -> None:
        too_many = False
        while not self._closed.wait(AGAIN_SECONDS if too_many else LOOK_SECONDS):
            try:
                too_many = self.look()
            except OSError as error:
                log.warning("connections at %s cannot be counted: %s", self._where, error)

    def look(self) -> bool:
        """End what is too much now, and return whether there was any.  Raises OSError."""
        if len(os.listdir(_FILES)) <= self._room:
            return False  # nor are there more connections
        found: dict[str, list[_Connection]] = {}
        for connection in _connections(self._at):
            found.setdefault(connection.peer, []).append(connection)
        total = sum(map(len, found.values()))
        if total <= self._room:
            return False
        share = next(share for share in range(self._room, -1, -1)
                     if sum(min(len(its), share) for its in found.values()) <= self._room)
        for its in found.values():
            its.sort(key=lambda one: not one.spoke)  # the oldest stays the first of both
        for connection in (one for its in found.values() for one in its[share:]):
            _end_connection(connection)
        self._ended += sum(len(its[share:]) for its in found.values())
        if self._clock() >= self._warn_from:
            peer, its = max(found.items(), key=lambda item: len(item[1]))
            log.warning("%s had %d of %d connections at %s: expected at most %d together, %d of each peer. Those with "
                        "more lost some, %d since the last warning. Find out what opens them there", peer,
                        len(its), total, self._where, self._room, share, self._ended)
            self._warn_from, self._ended = self._clock() + WARNING_SECONDS, 0
        return True

    @property
    def _where(self) -> str:
        return ", ".join(f"port {at}" if isinstance(at, int) else at for at in sorted(self._at, key=str))


def _connections(at: frozenset[int | str]) -> Iterator[_Connection]:
    """The connections that this process has accepted there, the oldest first: a new one takes the lowest descriptor
    that is free."""
    users = _local_users()
    for number in sorted(map(int, os.listdir(_FILES))):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            status = os.fstat(number)
            if not stat.S_ISSOCK(status.st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as connection:
                name = connection.getsockname()
                here = name in at if isinstance(name, str) else len(name) > 1 and name[1] in at
                if here and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    yield _Connection(number, status.st_ino, _peer(connection, users), _spoke(connection))


def _spoke(connection: socket.socket) -> bool:
    if connection.family == socket.AF_UNIX:
        return True
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
    return len(told) < _RECEIVED.size or _RECEIVED.unpack(told)[0] >= _PREFACE_BYTES


def _end_connection(connection: _Connection) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.number)) as one:
        if os.fstat(one.fileno()).st_ino == connection.inode:
            one.shutdown(socket.SHUT_RDWR)


_End = tuple[str, int]
"""Address and port of one end of a connection."""


def _peer(connection: socket.socket, users: Mapping[tuple[_End, _End], int]) -> str:
    """Who is at the other end: its user, where it is on this machine, else its address."""
    if connection.family == socket.AF_UNIX:
        user = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
        return f"user {user}"
    theirs, ours = _end(connection.getpeername()), _end(connection.getsockname())
    return f"user {users[theirs, ours]}" if (theirs, ours) in users else theirs[0]


def _end(name: tuple[str, int]) -> _End:
    return name[0].removeprefix("::ffff:"), name[1]


def _local_users() -> dict[tuple[_End, _End], int]:
    """Whose each TCP connection is that begins in this network namespace, by its ends."""
    found = {}
    for file in _TCP:
        with contextlib.suppress(FileNotFoundError):  # no IPv6
            for row in file.read_text().splitlines()[1:]:
                words = row.split()
                found[_decoded(words[1]), _decoded(words[2])] = int(words[7])
    return found


def _decoded(text: str) -> _End:
    """An end as /proc has it: words of the address in the machine's byte order, and the port."""
    address, port = text.split(":")
    data = b"".join(struct.pack("=I", int(address[at : at + 8], 16)) for at in range(0, len(address), 8))
    return _end((socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data), int(port, 16)))
