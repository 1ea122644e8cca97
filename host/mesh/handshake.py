# SPDX-License-Identifier: Apache-2.0
"""The door of a rank: its listener, and who has connected to it without having said yet who it is; and how to knock."""

from __future__ import annotations

import errno
import select
import socket

from netfold.host.mesh.link import HELLO, MAGIC, open_socket
from netfold.wire.jobs import Plan


class PeerUnreachable(Exception):
    """Nobody can be reached at that address: says the kernel's reason."""


def connect(where: str) -> socket.socket:
    """A connection that is being made to the door at ``ADDRESS:PORT``.

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
    """Lets in the ranks of a plan; port scanners and other jobs' ranks are sent away.  Owns ``listener``.

    poller  watches the listener and the strangers; `knock` wants to hear of what it finds
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
        """What a connection of this rank begins with."""
        plan = self._plan
        return HELLO.pack(MAGIC, plan.epoch, rank, plan.world, plan.job.encode()[:32])

    def fds(self) -> list[int]:
        """What the poller watches here."""
        return [self.listener.fileno(), *self._unidentified]

    def on_readable(self, fd: int) -> tuple[int, socket.socket] | None:
        """The poller found something at this descriptor: a rank and its connection, once it has said who it is."""
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
        """The listener and the strangers; those whom `knock` has let in are their receiver's."""
        for sock, _ in self._unidentified.values():
            sock.close()
        self._unidentified.clear()
        self.listener.close()

    def _accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError:  # it went away again before we looked
            return
        sock.setblocking(False)
        self._unidentified[sock.fileno()] = sock, bytearray()
        self._poller.register(sock, select.POLLIN)
