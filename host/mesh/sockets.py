# SPDX-License-Identifier: Apache-2.0
"""The TCP sockets of a mesh: one that listens, and those that connect, from a source port of one's choice; and what the
kernel is told and asked about them."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import termios
from contextlib import suppress
from typing import Final

from netfold.host.errors import TransportError
from netfold.host.forked import own
from netfold.host.mesh import congestion_control
from netfold.wire import roce
from netfold.wire.paths import udp_port

BACKLOG: Final = 1024
"""Connections that the kernel keeps for a listener until they are accepted, at most net.core.somaxconn.  With a full
backlog each further one takes a second."""
TAKEN: Final = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)
"""The kernel's errors for a source port that is in use, or for a connection that already exists."""

_TIMERS: Final = ((44, 1000), (45, 40_000), (46, 10_000))
"""Numbers of Linux's TCP_RTO_MAX_MS, TCP_RTO_MIN_US and TCP_DELACK_MAX_US, and their values on a named path."""
PATIENCE_SECONDS: Final = 900.0
"""Least seconds for which the kernel keeps trying on a named path, as it does by itself elsewhere (tcp(7),
tcp_retries2).  They also count while a peer, which may be computing, reads nothing."""
LONGEST_MS: Final = 2**31 - 1
"""Largest value, in milliseconds, of Linux's TCP_USER_TIMEOUT."""
_NUMBER: Final = struct.Struct("i")


class PeerUnreachable(Exception):
    """A peer's address cannot be connected to; the message is the kernel's error name."""


def connect(where: str, source: tuple[str, int] | None = None) -> socket.socket:
    """Starts a non-blocking connection to the listener at ``ADDRESS:PORT``, from this address and port.

    Raises PeerUnreachable; OSError, ValueError for what is no address, OSError where the source port is taken.
    """
    host, _, port = where.rpartition(":")
    sock = open_socket()
    try:
        sock.setblocking(False)
        if source is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections to others have the same port
            sock.bind(source)
        code = sock.connect_ex((host, int(port)))
        if code in TAKEN and source is not None:
            raise OSError(code, os.strerror(code))
        if code not in (0, errno.EINPROGRESS):
            raise PeerUnreachable(errno.errorcode.get(code, str(code)))
    except BaseException:
        sock.close()
        raise
    return sock


def open_socket() -> socket.socket:
    """A TCP socket of a mesh, with the congestion control that $NETFOLD_TCP_CONGESTION names.  Raises ValueError."""
    sock = own(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    name = os.environ.get(congestion_control.VARIABLE)
    if name:
        try:
            congestion_control.choose(sock, name)
        except OSError as error:
            sock.close()
            raise ValueError(
                f"{congestion_control.VARIABLE}={name!r}: the kernel does not give it to this process "
                f"({error.strerror}); expected one of `sysctl net.ipv4.tcp_allowed_congestion_control`, or nothing"
            ) from error
    return sock


def listen(address: str) -> socket.socket:
    """A bound, listening TCP socket on a free port, which hands its congestion control down to all that it accepts.

    Raises TransportError, ValueError.
    """
    sock = open_socket()
    try:
        sock.bind((address, 0))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise TransportError(
            error.errno,
            f"cannot listen on {address} for TCP: {error.strerror}; give this host's own IPv4 address",
        ) from error
    return sock


def tune(sock: socket.socket, timeout: float) -> None:
    """Lets a connection over a named path repeat after 40 ms of silence instead of 200, since the path may have died,
    and each second at least; and acknowledge within 10 ms, so that nothing is repeated for that.  Kernels before 6.15
    keep their times.

    timeout  seconds of silence after which the rank itself gives up.  The kernel, which counts repeats, must not do so
             before: its 15 would take less than 15 seconds
    """
    patience = min(max(2 * timeout, PATIENCE_SECONDS) * 1000, LONGEST_MS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(patience))
    for option, value in _TIMERS:
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def unacknowledged(sock: socket.socket) -> int:
    """Bytes written to a connection that its peer has not acknowledged (tcp(7), SIOCOUTQ).  Raises OSError."""
    return int(_NUMBER.unpack(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(_NUMBER.size)))[0])


def path_of(sock: socket.socket) -> int | None:
    """The UDP source port that names the same path as a connection's ports; None where they name none."""
    port = sock.getsockname()[1]
    if port < roce.TCP_PATH_PORT:
        try:
            port = sock.getpeername()[1]
        except OSError:  # it is not connected, or no more
            return None
    if port < roce.TCP_PATH_PORT:
        return None
    return udp_port(port)
