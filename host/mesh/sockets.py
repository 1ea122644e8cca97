# SPDX-License-Identifier: Apache-2.0
"""The TCP sockets of a mesh: one that listens, and those that connect, from a source port of one's choice."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import Final

from netfold.host.errors import TransportError
from netfold.host.forked import own
from netfold.host.mesh import congestion_control

BACKLOG: Final = 1024
"""Connections that the kernel keeps for a listener while nobody accepts them, at most net.core.somaxconn; a full
backlog costs each further one a second."""
TAKEN: Final = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)
"""The kernel's errors where something else has a source port, or the same connection exists already."""


class PeerUnreachable(Exception):
    """A peer's address cannot be connected to; the message is the kernel's error name."""


def connect(
    where: str, source: tuple[str, int] | None = None, tune: Callable[[socket.socket], None] = lambda _: None
) -> socket.socket:
    """Starts a non-blocking connection to the listener at ``ADDRESS:PORT``, from this address and port.

    Raises PeerUnreachable; OSError, ValueError for what is no address, OSError where the source port is taken.
    """
    host, _, port = where.rpartition(":")
    sock = open_socket()
    try:
        sock.setblocking(False)
        tune(sock)
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
