# SPDX-License-Identifier: Apache-2.0
"""The handshake of TCP connections between ranks: connecting to a peer's listener, and accepting those who identify
themselves as ranks of the same job."""

from __future__ import annotations

import errno
import select
import socket

from netfold.host.mesh.connection import HELLO, MAGIC, open_socket
from netfold.wire.jobs import Plan


class PeerUnreachable(Exception):
    """A peer's address cannot be connected to; the message is the kernel's error name."""


def connect(where: str) -> socket.socket:
    """Starts a non-blocking connection to the listener at ``ADDRESS:PORT``.

    Raises PeerUnreachable; OSError, ValueError for what is no address.
    """
    host, _, port = where.rpartition(":")
    sock = open_socket()
    try:
        sock.setblocking(False)
        code = sock.connect_ex((host, int(port)))
        if code not in (0, errno.EINPROGRESS):
            raise PeerUnreachable(errno.errorcode.get(code, str(code)))
    except BaseException:
        sock.close()
        raise
    return sock


class HandshakeAcceptor:
    """Accepts connections of the plan's ranks and closes those of port scanners and other jobs.  Owns ``listener``.

    poller  is registered for the listener and for connections that have not identified themselves; whatever it reports
            on these descriptors (``fds``) goes to ``on_readable``
    """

    def __init__(self, plan: Plan, listener: socket.socket, poller: select.poll) -> None:
        self._plan = plan
        self._poller = poller
        self._unidentified: dict[int, tuple[socket.socket, bytearray]] = {}
        self.listener = listener
        listener.setblocking(False)
        listener.listen(max(16, plan.world))  # every rank may connect at once: a full backlog costs them a second
        poller.register(listener, select.POLLIN)

    def hello(self, rank: int) -> bytes:
        """The first bytes of every connection that this rank opens: magic, epoch, rank, world size and job name."""
        plan = self._plan
        return HELLO.pack(MAGIC, plan.epoch, rank, plan.world, plan.job.encode()[:32])

    def fds(self) -> list[int]:
        """File descriptors that the poller watches for this object."""
        return [self.listener.fileno(), *self._unidentified]

    def on_readable(self, fd: int) -> tuple[int, socket.socket] | None:
        """Handles a readable descriptor.  Returns a rank and its connection once that rank has identified itself, else
        None."""
        if fd == self.listener.fileno():
            self._accept()
            return None
        if fd not in self._unidentified:  # dropped by an earlier event of the same poll
            return None
        sock, data = self._unidentified[fd]
        try:
            more = sock.recv(HELLO.size - len(data))
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            more = b""
        data += more
        if more and len(data) < HELLO.size:
            return None
        del self._unidentified[fd]
        self._poller.unregister(fd)
        rank = HELLO.unpack(data)[2] if len(data) == HELLO.size else -1
        if 0 <= rank < self._plan.world and bytes(data) == self.hello(rank):
            return rank, sock
        sock.close()
        return None

    def close(self) -> None:
        """Closes the listener and all unidentified connections; those that ``on_readable`` returned belong to the
        caller."""
        for sock, _ in self._unidentified.values():
            sock.close()
        self._unidentified.clear()
        self.listener.close()

    def _accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError:  # the connection was closed again before it was accepted
            return
        sock.setblocking(False)
        self._unidentified[sock.fileno()] = sock, bytearray()
        self._poller.register(sock, select.POLLIN)
