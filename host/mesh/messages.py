# SPDX-License-Identifier: Apache-2.0
"""Messages between two ranks that are no part of a collective: posted at any time, in any number, and from any rank.

``TcpMesh`` serves operations, one after the other, which all ranks call alike; here every message stands for itself.
Those of one rank to another with one tag arrive in the order sent; all else is independent.  The header of a message
says what it holds, and so does its receive: the bytes of another dtype are not taken.  A message without a posted
receive stays with its sender once the buffers of the connection are full, unless a receive for another tag of the same
sender is posted: then it is read into memory of its own, so that the messages behind it can pass.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import termios
import time
from collections.abc import Callable

from netfold.host.errors import RankMismatch
from netfold.host.mesh.arriving import TcpSocket
from netfold.host.mesh.connection import HEADER, TEXT_BYTES, PeerConnection, Receive, text_of
from netfold.host.mesh.mesh import Call, Pending, as_bytes
from netfold.host.mesh.tcp import TcpMesh
from netfold.host.operation.arrays import Flat, held
from netfold.wire.jobs import Plan

DRAIN_SLICE_SECONDS = 0.01
"""Seconds between two looks at what the peers' kernels have taken, of which nothing tells."""
DISCARDED_BYTES = 1 << 20
"""Bytes discarded of one connection before the others get their turn."""
TCP_CLOSE = 7
"""The state of a connection that is no more, in the kernel's numbers."""
MESSAGES = Call(0, "messages between two ranks")
"""The call that all messages belong to."""


class OpenReceive(Receive):
    """A posted receive for the first message with this tag from any rank.  ``source`` is that rank, once its message
    has begun to arrive."""

    __slots__ = ("source",)

    def __init__(self, tag: int, view: memoryview, text: bytes) -> None:
        super().__init__(tag, view, text=text)
        self.source: int | None = None


class MessageMesh(TcpMesh):
    """The ranks of a plan, between which messages travel; used by one thread, which others may wake."""

    kind = name = "TCP, messages"

    def __init__(self, plan: Plan, listener: socket.socket, *, timeout: float) -> None:
        super().__init__(plan, listener, timeout=timeout)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._wake, select.POLLIN)
        self.begin(MESSAGES)

    def send(self, peer: int, data: Flat, *, tag: int = 0) -> Pending:
        self._named(data)
        return super().send(peer, data, tag=tag)

    def receive(self, peer: int, into: Flat, *, tag: int = 0) -> Pending:
        self._named(into)
        return super().receive(peer, into, tag=tag)

    def receive_any(self, into: Flat, *, tag: int = 0) -> OpenReceive:
        """Posts a receive for the next message with this tag, whoever sends it."""
        pending = OpenReceive(tag, as_bytes(into, "receive into"), self._named(into))
        for link in [self._link(peer) for peer in self._links]:
            if not pending.done and pending.source is None:
                link.receives.append(pending)
                self._match_unexpected(link)
                if link.current is None and link.header_bytes == HEADER.size:
                    self._message(link)
            self._watch(link)
        return pending

    def progress(self) -> None:
        """Moves bytes, waiting until some can be moved, or for ``wake``.

        Raises CollectiveTimeout when neither happened for the mesh's timeout, PeerLost, RankMismatch, TransportError.
        """
        self._advance()

    def send_rest(self, seconds: Callable[[], float]) -> None:
        """Moves bytes until all that is posted is sent, or nothing has moved for so many seconds, which are asked for
        anew whenever something has moved, and after ``wake``.  Raises as ``progress``."""
        since = self._clock()
        while any(map(self._unsent, self._links.values())) and (rest := since + seconds() - self._clock()) > 0:
            if self._poll_once(rest):
                since = self._clock()

    def drain(self, seconds: Callable[[], float]) -> int:
        """Says to every peer that nothing more comes, and waits until its kernel has taken all that was sent, or none
        has taken any for so many seconds, which are asked for anew at each look.  Returns the bytes that are not taken
        then, of peers to which every message was sent.

        What comes meanwhile is discarded: a connection that is closed with something unread is reset, and the kernel
        drops what it has not delivered.
        """
        socks = {sock: not self._unsent(link) for link in self._links.values() for sock in link.sockets()}
        for sock in socks:
            with contextlib.suppress(OSError):  # it is reset already
                sock.shutdown(socket.SHUT_WR)
        since, before = self._clock(), -1
        while True:
            for sock in socks:
                with contextlib.suppress(OSError):  # nothing has come, or it is reset
                    sock.recv(DISCARDED_BYTES)
            left = sum(_queued(sock) for sock, counts in socks.items() if counts)
            now = self._clock()
            if left != before:
                since, before = now, left
            if not left or now >= since + seconds():
                return left
            time.sleep(DRAIN_SLICE_SECONDS)

    def wake(self) -> None:
        """Ends a ``progress`` or ``sleep`` of the mesh's thread, or its next one; any thread may call it."""
        os.eventfd_write(self._wake, 1)

    def sleep(self) -> None:
        """Waits for ``wake``, however long; moves no bytes."""
        select.select([self._wake], [], [])
        os.eventfd_read(self._wake)

    def close(self) -> None:
        closed = self._wake < 0
        super().close()
        if not closed:
            os.close(self._wake)
            self._wake = -1

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _named(self, data: Flat) -> bytes:
        """The text of a message's header, which goes into that of the next one: what it holds, so that ranks compare
        that as well."""
        self._text = f"message of {held(data)}".encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")
        return self._text

    def _check_call(self, link: PeerConnection, number: int, text: bytes) -> None:
        """Nothing: each message stands for itself, and is compared with its receive."""

    def _check_size(self, link: PeerConnection, wanted: Receive, nbytes: int, text: bytes) -> None:
        if text != wanted.text:
            raise self._fail(
                RankMismatch,
                f"rank {link.rank} sends a {text_of(text)}, {nbytes} bytes, where a {text_of(wanted.text)}, "
                f"{len(wanted.view)} bytes, was expected (tag {wanted.tag}); send and receive tensors of one dtype",
            )
        super()._check_size(link, wanted, nbytes, text)

    def _handshake(self, fd: int) -> bool:
        if fd != self._wake:
            return super()._handshake(fd)
        os.eventfd_read(self._wake)
        return True

    def _message(self, link: PeerConnection) -> None:
        super()._message(link)
        if isinstance(link.current, OpenReceive):
            self._claim(link, link.current)

    def _match_unexpected(self, link: PeerConnection) -> None:
        before = [receive for receive in link.receives if isinstance(receive, OpenReceive)]
        super()._match_unexpected(link)
        for receive in before:
            if receive.done and receive.source is None:
                self._claim(link, receive)

    def _claim(self, link: PeerConnection, receive: OpenReceive) -> None:
        """Withdraws from the other ranks what this one's message goes to."""
        receive.source = link.rank
        for other in self._links.values():
            if receive in other.receives:
                other.receives.remove(receive)

    def _busy(self, link: PeerConnection) -> bool:
        """Whether anything is posted for this peer alone, or for any rank where no other is left to send it."""
        posted = [*link.receives, *([] if link.current is None else [link.current])]
        named = any(not isinstance(receive, OpenReceive) or receive.source is not None for receive in posted)
        return named or bool(link.bytes_unsent) or (bool(posted) and all(one.lost for one in self._links.values()))


def _queued(sock: TcpSocket) -> int:
    """Bytes that were written and that the peer's kernel has not acknowledged (tcp(7), SIOCOUTQ); 0 where it has closed
    or reset the connection, and takes no more."""
    if sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSE:
        return 0
    return int(struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0])
