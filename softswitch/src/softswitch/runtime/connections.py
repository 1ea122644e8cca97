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
the watch sees to that: it looks now and then who has how many, and where more than half of all are taken, it ends
what is too much: first what has said nothing yet, then the newest of the peers that have most, and those of admitted
callers (`ConnectionWatch.admit`) only where these alone are too many.  The first connection of each peer stays, and so
does what no other peer has more of.  A peer is an address, of IPv6 a network of 64 bits, since one machine may have all
of its addresses; for connections from this machine it is a user, since on loopback, and at a unix socket, all have the
same address.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
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
from urllib.parse import unquote

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS: Final = 10.0
"""Seconds for TLS and the first frames of HTTP/2; gRPC's own limit is two minutes."""
RESERVED: Final = 256
"""File descriptors reserved for other purposes than connections: files, ports, sessions with switches."""
LEAST: Final = 16
"""Connections that are always allowed, however low the limit of open files is."""
LOOK_SECONDS: Final = 0.5
"""Seconds between two checks of the connections; AGAIN_SECONDS while there are too many."""
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
    """Connections that a server may have at the same time: so many, or what the limit of open files leaves, which is
    logged.  Raises the soft limit to the hard one where it would leave less."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVED
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    left = max(min(wanted, needed - RESERVED), LEAST)
    if left < wanted:
        _warn_of_few(wanted, left, hard)
    return left


@functools.cache
def _warn_of_few(wanted: int, left: int, hard: int) -> None:
    log.warning("expected room for %d connections, got room for %d: the hard limit of open files is %d. Raise it to %d "
                "(ulimit -Hn)", wanted, left, hard, wanted + RESERVED)


def options(most: int) -> list[tuple[str, int]]:
    """Settings of a gRPC server that bound its connections in time and number."""
    return [
        ("grpc.server_handshake_timeout_ms", int(1e3 * HANDSHAKE_SECONDS)),
        ("grpc.max_allowed_incoming_connections", most),
    ]


_End = tuple[str, int]
"""Address and port of one end of a connection."""


class AcceptedConnection(NamedTuple):
    number: int
    """Its descriptor."""
    inode: int
    """Inode number, which shows whether the descriptor belongs to another file by now."""
    peer: str
    spoke: bool
    """True if the client has sent the beginning of HTTP/2; for a unix socket this is unknown, and assumed."""
    end: _End | None = None
    """The address and port of the other end; None at a unix socket."""


class ConnectionWatch:
    """Keeps half of the connections of one server free for those who come, in a thread.

    at     ports that the server listens at, and paths of its unix sockets, as they follow "unix:" in gRPC's addresses
    most   connections that the server takes
    clock  monotonic seconds
    """

    def __init__(
        self, at: Iterable[int | str], *, most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._at = frozenset(one if isinstance(one, int) else one.removeprefix("//") for one in at)
        self._room = most // 2
        self._clock = clock
        self._closed = threading.Event()
        self._warn_from = clock()
        self._ended = 0
        """Number of connections closed since the last warning."""
        self._admitted: set[_End] = set()
        threading.Thread(target=self._run, name="connections", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def admit(self, peer: str) -> None:
        """Let strangers lose their connections before this one, whose caller has proved who it is.

        peer  of a call, as gRPC's context has it; at a unix socket it says nothing, and nothing follows
        """
        kind, _, rest = unquote(peer).partition(":")
        address, _, port = rest.rpartition(":")
        if kind in {"ipv4", "ipv6"} and port.isdigit():
            self._admitted.add(_end((address.strip("[]"), int(port))))

    def _run(self) -> None:
        too_many = False
        while not self._closed.wait(AGAIN_SECONDS if too_many else LOOK_SECONDS):
            try:
                too_many = self.look()
            except OSError as error:
                too_many = False
                if self._clock() >= self._warn_from:
                    log.warning("connections at %s cannot be counted: %s", self._where, error)
                    self._warn_from = self._clock() + WARNING_SECONDS

    def look(self) -> bool:
        """End what is too much now, and return whether there was any.  Raises OSError."""
        admitted = set(self._admitted)
        if len(os.listdir(_FILES)) <= self._room and len(admitted) <= 2 * self._room:
            return False  # nor are there more connections
        every = list(accepted(self._at))
        self._admitted -= admitted - {one.end for one in every}
        if len(every) <= self._room:
            return False
        known = [one for one in every if one.end in admitted]
        strangers = [one for one in every if one.end not in admitted]
        ended = _silent(_by_peer(strangers))[: len(every) - self._room]
        silent = {one.number for one in ended}
        spoken = _by_peer(one for one in strangers if one.number not in silent)
        ended += _above(spoken, self._room - len(known))
        # machines of a job may have a network of IPv6 in common, which one stranger may have for himself
        ended += _above(_by_peer(one._replace(peer=one.end[0]) if one.end else one for one in known), self._room)
        for connection in ended:
            end_connection(connection)
        self._ended += len(ended)
        if self._clock() >= self._warn_from:
            peer, its = max(_by_peer(every).items(), key=lambda item: len(item[1]))
            log.warning("%s had %d of %d connections at %s: expected at most %d together. %d were ended since "
                        "the last warning. Find out what opens them there", peer, len(its), len(every), self._where,
                        self._room, self._ended)
            self._warn_from, self._ended = self._clock() + WARNING_SECONDS, 0
        return bool(ended)

    @property
    def _where(self) -> str:
        return ", ".join(f"port {at}" if isinstance(at, int) else at for at in sorted(self._at, key=str))


def _by_peer(connections: Iterable[AcceptedConnection]) -> dict[str, list[AcceptedConnection]]:
    """The connections of each peer: those that have spoken before those that have not, the oldest of both first."""
    found: dict[str, list[AcceptedConnection]] = {}
    for connection in connections:
        found.setdefault(connection.peer, []).append(connection)
    for its in found.values():
        its.sort(key=lambda one: not one.spoke)
    return found


def _silent(found: Mapping[str, list[AcceptedConnection]]) -> list[AcceptedConnection]:
    """Connections that have said nothing, but for the first of each peer: the newest of the peers that have most come
    first."""
    silent = [(number, one) for its in found.values()
              for number, one in enumerate(one for one in its[1:] if not one.spoke)]
    return [one for _, one in sorted(silent, key=lambda item: item[0], reverse=True)]


def _above(found: Mapping[str, list[AcceptedConnection]], room: int) -> list[AcceptedConnection]:
    """The newest of the peers that have most, as far as all together have more than ``room``.  Of each peer stays one,
    and as many as the others have with which it shares the room: up to one for each peer are too many then."""
    share = 1
    while sum(min(len(its), share) for its in found.values()) < min(room, sum(map(len, found.values()))):
        share += 1
    return [one for its in found.values() for one in its[share:]]


def accepted(at: frozenset[int | str]) -> Iterator[AcceptedConnection]:
    """The connections that this process has accepted there, the oldest first: a new one takes the lowest descriptor
    that is free."""
    users = local_users()
    for number in sorted(map(int, os.listdir(_FILES))):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            status = os.fstat(number)
            if not stat.S_ISSOCK(status.st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as connection:
                name = connection.getsockname()
                here = name in at if isinstance(name, str) else len(name) > 1 and name[1] in at
                if here and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    there = None if connection.family == socket.AF_UNIX else _end(connection.getpeername())
                    yield AcceptedConnection(number, status.st_ino, _peer(connection, users), _spoke(connection), there)


def _spoke(connection: socket.socket) -> bool:
    if connection.family == socket.AF_UNIX:
        return True
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
    return len(told) < _RECEIVED.size or _RECEIVED.unpack(told)[0] >= _PREFACE_BYTES


def end_connection(connection: AcceptedConnection) -> None:
    """End it, if it is still the one that its descriptor names."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.number)) as one:
        if os.fstat(one.fileno()).st_ino == connection.inode:
            one.shutdown(socket.SHUT_RDWR)


def _peer(connection: socket.socket, users: Mapping[tuple[_End, _End], int]) -> str:
    """The peer at the other end: its user, where it is on this machine, else its address."""
    if connection.family == socket.AF_UNIX:
        user = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
        return f"user {user}"
    theirs, ours = _end(connection.getpeername()), _end(connection.getsockname())
    if (theirs, ours) in users:
        return f"user {users[theirs, ours]}"
    return network(theirs[0])


def network(address: str) -> str:
    """An IPv4 address as it is, of IPv6 the network of 64 bits, of which one machine may have all addresses."""
    address = address.removeprefix("::ffff:").partition("%")[0]
    return str(ipaddress.IPv6Network((address, 64), strict=False)) if ":" in address else address


def _end(name: tuple[str, int]) -> _End:
    return name[0].removeprefix("::ffff:"), name[1]


def local_users() -> dict[tuple[_End, _End], int]:
    """The user of each TCP connection that begins in this network namespace, by its ends."""
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
