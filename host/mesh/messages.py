# SPDX-License-Identifier: Apache-2.0
"""Messages between two ranks that are no part of a collective: posted at any time, in any number, and from any rank.

``TcpMesh`` serves operations, one after the other, which all ranks call alike; here every message stands for itself.
Those of one rank to another with one tag arrive in the order sent; all else is independent.  The header of a message
says what it holds, and so does its receive: the bytes of another dtype are not taken.  A message without a posted
receive stays with its sender once the buffers of the connection are full, unless a receive for another tag of the same
sender is posted: then it is read into memory of its own, so that the messages behind it can pass.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext, suppress

from netfold.host.errors import RankMismatch
from netfold.host.mesh.connection import PeerConnection, Receive, text_of
from netfold.host.mesh.mesh import Call, Pending, as_bytes
from netfold.host.mesh.operations import Operations
from netfold.host.mesh.posted import Posted
from netfold.host.mesh.sending import TcpSocket
from netfold.host.mesh.sockets import unacknowledged
from netfold.host.operation.arrays import Flat, held
from netfold.wire.plan import Plan

DRAIN_SLICE_SECONDS = 0.01
"""Seconds between two checks of the bytes that the peers' kernels have acknowledged; no event reports them."""
DISCARDED_BYTES = 1 << 20
"""Bytes of one connection that are discarded before the others get their turn."""
TCP_CLOSE = 7
"""The kernel's number of the state of a closed connection."""
MESSAGES = Call(0, "messages between two ranks")
"""The call that all messages belong to."""


class OpenReceive(Receive):
    """A posted receive for the first message with this tag from any rank.  ``source`` is that rank, once its message
    has begun to arrive."""

    __slots__ = ("source",)

    def __init__(self, tag: int, view: memoryview, text: bytes) -> None:
        super().__init__(tag, view, text=text)
        self.source: int | None = None


class _MessageRules:
    """The rules of messages that stand for themselves: each is compared with its receive."""

    def __init__(self) -> None:
        self.links: Collection[PeerConnection] = ()

    def check(self, operations: Operations, link: PeerConnection, number: int, text: bytes) -> None:
        """Nothing: there is one call."""

    def check_receive(
        self, operations: Operations, link: PeerConnection, wanted: Receive, nbytes: int, text: bytes
    ) -> None:
        """Raises RankMismatch where a message holds something else than its receive was posted for."""
        if text != wanted.text:
            raise operations.failure(
                RankMismatch,
                f"rank {link.rank} sends a {text_of(text)}, {nbytes} bytes, where a {text_of(wanted.text)}, "
                f"{len(wanted.view)} bytes, was expected (tag {wanted.tag}); send and receive tensors of one dtype",
            )

    def taken(self, link: PeerConnection, receive: Receive) -> None:
        """Withdraws from the other ranks a receive from any, to which this one's message goes."""
        if isinstance(receive, OpenReceive):
            receive.source = link.rank
            for other in self.links:
                if receive in other.receives:
                    other.receives.remove(receive)

    def busy(self, link: PeerConnection) -> bool:
        """True if anything is posted for this peer alone, or for any rank when no other rank is left to send it."""
        posted = [*link.receives, *([] if link.current is None else [link.current])]
        named = any(not isinstance(receive, OpenReceive) or receive.source is not None for receive in posted)
        return named or bool(link.bytes_unsent) or (bool(posted) and all(one.lost for one in self.links))


class MessageMesh:
    """The ranks of a plan, between which messages travel; used by one thread, which others may wake."""

    def __init__(self, plan: Plan, listener: socket.socket, *, timeout: float) -> None:
        self.rank, self.size = plan.rank, plan.world
        rules = _MessageRules()
        self.posted = Posted(plan, listener, rules, name="TCP, messages", timeout=timeout,
                             spanned=lambda name: nullcontext())
        self.operations, self._connections = self.posted.operations, self.posted.connections
        rules.links = self._links = self._connections.links.values()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._connections.poll_other(self._wake, self._woken)
        self._connections.watch_other(self._wake, select.POLLIN)
        self.operations.begin(MESSAGES)

    def send(self, peer: int, data: Flat, *, tag: int = 0) -> Pending:
        """Posts ``data`` to ``peer``.  Arrays without elements are not sent, since both ends know the sizes."""
        self._name(data)
        return self.posted.send(peer, data, tag)

    def receive(self, peer: int, into: Flat, *, tag: int = 0) -> Pending:
        """Posts a receive for the next message of ``peer`` with this tag, which must hold what ``into`` does."""
        self._name(into)
        return self.posted.receive(peer, into, tag)

    def receive_any(self, into: Flat, *, tag: int = 0) -> OpenReceive:
        """Posts a receive for the next message with this tag, whoever sends it."""
        pending = OpenReceive(tag, as_bytes(into, "receive into"), self._name(into))
        for link in [self.operations.link(one.rank) for one in self._links]:
            if pending.source is None:
                self.posted.post_receive(link, pending)
        for link in self._links:
            self._connections.watch(link)
        return pending

    def progress(self, awaited_since: Callable[[], float]) -> None:
        """Moves bytes, waiting until some can be moved, or for ``wake``.

        awaited_since  returns since when anybody waits for a message, in monotonic seconds; infinity: nobody does
        Raises CollectiveTimeout when neither happened for the mesh's timeout while anybody waited, PeerLost,
        RankMismatch, TransportError.
        """
        self.operations.advance(awaited_since)

    def send_rest(self, seconds: Callable[[], float]) -> None:
        """Moves bytes until all that is posted is sent, or nothing has moved for so many seconds, which are asked for
        anew whenever something has moved, and after ``wake``.  Raises as ``progress``."""
        clock = self.operations.clock
        since = clock()
        while any(map(self.posted.unsent, self._links)) and (rest := since + seconds() - clock()) > 0:
            if self.operations.poll(rest):
                since = clock()

    def drain(self, seconds: Callable[[], float]) -> int:
        """Says to every peer that nothing more comes, and waits until its kernel has taken all that was sent, or none
        has taken any for so many seconds, which are asked for anew at each look.  Returns the bytes that are not taken
        then, of peers to which every message was sent.

        What comes meanwhile is discarded: a connection that is closed with something unread is reset, and the kernel
        drops what it has not delivered.
        """
        socks = {link.socket: not self.posted.unsent(link) for link in self._links if link.socket is not None}
        for sock in socks:
            with suppress(OSError):  # it is reset already
                sock.shutdown(socket.SHUT_WR)
        since, before = self.operations.clock(), -1
        while True:
            for sock in socks:
                with suppress(OSError):  # nothing has come, or it is reset
                    sock.recv(DISCARDED_BYTES)
            left = sum(_queued(sock) for sock, counts in socks.items() if counts)
            now = self.operations.clock()
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

    def told_by(self, lost: Callable[[], tuple[int, str] | None], left: Callable[[], Mapping[int, str]]) -> None:
        """Ends waits when the controller has lost a rank, or one has left; see ``Mesh``."""
        self.operations.told_by(lost, left)

    def abort(self, error: BaseException) -> None:
        """Tells the peers that this rank gave up because of ``error``, as far as that is possible without waiting."""
        self.posted.abort(error)

    def leave(self, why: str) -> None:
        """Tells the peers that this rank leaves in order, before ``close``; see ``Mesh``."""
        self.operations.leave(why)

    def close(self) -> None:
        """Releases all resources; safe to call twice."""
        self.posted.close()
        if self._wake >= 0:
            self._connections.forget_other(self._wake)
            os.close(self._wake)
            self._wake = -1

    def _name(self, data: Flat) -> bytes:
        """The text of a message's header, which goes into that of the next one: what it holds, so that ranks compare
        that as well."""
        return self.operations.name_text(f"message of {held(data)}")

    def _woken(self, event: int) -> bool:
        os.eventfd_read(self._wake)
        return True


def _queued(sock: TcpSocket) -> int:
    """Bytes that were written and that the peer's kernel has not acknowledged; 0 where it has closed or reset the
    connection, and takes no more."""
    closed = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSE
    return 0 if closed else unacknowledged(sock)
