# SPDX-License-Identifier: Apache-2.0
"""The messages that are posted between one rank and its peers over TCP, matched to those that come.

    message = header: call number | bytes | tag | text        followed by the payload

Bytes go straight from and into the caller's memory, and no order of sends and receives can make two ranks block each
other.  Only an unexpected message, one that arrives before a receive with its tag is posted while another receive is,
is read into memory of its own.  Where paths are planned, long messages are cut, and their payload comes on lanes
(``lane_set``).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Protocol

from netfold.host.errors import RankMismatch
from netfold.host.mesh.connection import HEADER, STRIPED, PeerConnection, Receive
from netfold.host.mesh.connections import Spans
from netfold.host.mesh.lane_set import Lanes
from netfold.host.mesh.lanes import StripedPart
from netfold.host.mesh.mesh import DONE, Pending, as_bytes
from netfold.host.mesh.operations import SAME_ORDER_HINT, Operations
from netfold.host.mesh.path_watch import LOOK_SECONDS, PathWatch
from netfold.host.mesh.planned import PathSource
from netfold.host.mesh.sending import Send
from netfold.host.operation.arrays import Flat
from netfold.wire.plan import Plan


class PostingRules(Protocol):
    """Which receive a message may go to, and what a receive of its own kind does."""

    def check(self, operations: Operations, link: PeerConnection, number: int, text: bytes) -> None:
        """Raises RankMismatch for a message of another call than the one that is under way."""

    def check_receive(
        self, operations: Operations, link: PeerConnection, wanted: Receive, nbytes: int, text: bytes
    ) -> None:
        """Raises RankMismatch where a message is not of the kind that its receive was posted for."""

    def taken(self, link: PeerConnection, receive: Receive) -> None:
        """Is told that a message of this peer goes to a posted receive."""

    def busy(self, link: PeerConnection) -> bool:
        """True if any posted message on this connection depends on this peer."""


class Posted:
    """The messages and receives posted on the connections of one rank, for ``Operations``.

    rules    of messages and receives
    planned  the controller's paths; owned by this object from here on.  None: messages travel whole
    Other parameters are those of ``Operations``.
    """

    def __init__(
        self, plan: Plan, listener: socket.socket, rules: PostingRules, *, name: str, timeout: float, spanned: Spans,
        planned: PathSource | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules, self._spanned = rules, spanned
        self.operations = Operations(plan, listener, self, name=name, timeout=timeout, spanned=spanned, lanes=True,
                                     clock=clock)
        self.connections = self.operations.connections
        self.lanes = Lanes(self.operations, planned, spanned=spanned, assembled=self._assembled)
        self.paths = PathWatch(self.operations, self.lanes)

    # ---- posting -----------------------------------------------------------------------------------------------------
    def send(self, peer: int, data: Flat, tag: int) -> Pending:
        """See ``Mesh``."""
        operations = self.operations
        link = operations.link(peer)
        view = as_bytes(data, "send of")
        if not view.nbytes:
            return DONE
        parts = self.lanes.cut(peer, view.nbytes)
        pending: Pending
        if parts:
            head = HEADER.pack(operations.call.number, view.nbytes | STRIPED, tag, operations.text)
            pending = whole = self.lanes.post(peer, view, parts)
            link.sends.append(StripedPart(whole, memoryview(head)))
        else:
            head = HEADER.pack(operations.call.number, view.nbytes, tag, operations.text)
            pending = posted = Send(memoryview(head), view)
            link.sends.append(posted)
            link.expect_bytes(view.nbytes)
        if len(link.sends) == 1 and link.socket is not None:
            with self._spanned("send"):
                self.connections.write(link)  # most small messages are sent here, without a pass of the poll loop
        self.connections.watch(link)
        return pending

    def receive(self, peer: int, into: Flat, tag: int) -> Pending:
        """See ``Mesh``."""
        link = self.operations.link(peer)
        view = as_bytes(into, "receive into")
        if not view.nbytes:
            return DONE
        if view.readonly:
            raise ValueError(f"rank {self.operations.plan.rank}: receive from rank {peer}: expected an array that can "
                             "be written, got a read-only one")
        pending = Receive(tag, view, text=self.operations.text)
        self.post_receive(link, pending)
        return pending

    def post_receive(self, link: PeerConnection, pending: Receive) -> None:
        """Posts a receive for a message of this peer."""
        link.receives.append(pending)
        if link.unexpected:
            self._match_unexpected(link)
        if link.current is None and link.header_bytes == HEADER.size:
            self.message(link)
        self.connections.watch(link)

    def flush(self) -> None:
        """See ``Mesh``."""
        while any(link.sends or link.receives or self.lanes.unsent(rank) or self.lanes.awaited(rank)
                  for rank, link in self.connections.links.items()):
            self.operations.advance()

    def abort(self, error: BaseException) -> None:
        """See ``Mesh``."""
        self.operations.abort(error)
        self.lanes.close()

    def close(self) -> None:
        """See ``Mesh``."""
        self.operations.close()
        self.lanes.close()

    # ---- what comes, for ``MeshConnections`` ------------------------------------------------------------------------
    def message(self, link: PeerConnection) -> None:
        """Handles a complete header: finds the posted receive that the message belongs to, if there is one already."""
        if not link.receives:
            return
        first, operations = link.receives[0], self.operations
        number, nbytes = operations.call.number, len(first.view)
        if link.header == HEADER.pack(number, nbytes, first.tag, first.text):  # as nearly always
            del link.receives[0]
            link.expect_payload(first)
            self._rules.taken(link, first)
            return
        number, nbytes, tag, text = HEADER.unpack(link.header)
        cut, nbytes = bool(nbytes & STRIPED), nbytes & ~STRIPED
        self._rules.check(operations, link, number, text)
        receive = next((receive for receive in link.receives if receive.tag == tag), None)
        if receive is None:
            memory = bytearray(nbytes)
            receive = Receive(tag, memoryview(memory), memory, text)
            if cut:  # later ones with its tag may be complete before it
                link.unexpected.append(receive)
        else:
            self._check_size(link, receive, nbytes, text)
            link.receives.remove(receive)
            self._rules.taken(link, receive)
        if cut:
            link.expect_header()
            self.lanes.place(link.rank, receive)
        else:
            link.expect_payload(receive)

    def arrived(self, link: PeerConnection, receive: Receive) -> None:
        """Handles a message all of whose payload has come."""
        receive.finish()
        if receive.buffer is not None:
            link.unexpected.append(receive)
            self._match_unexpected(link)

    def _assembled(self, link: PeerConnection, receive: Receive) -> None:
        """Handles a cut message all parts of which have come."""
        receive.finish()
        if receive.buffer is not None and receive.target is not None:
            receive.target.view[:] = receive.buffer
            receive.target.finish()

    def _match_unexpected(self, link: PeerConnection) -> None:
        """Copies unexpected messages to receives that have been posted since, now or as soon as they are complete."""
        for early in list(link.unexpected):
            wanted = next((receive for receive in link.receives if receive.tag == early.tag), None)
            if wanted is not None:
                assert early.buffer is not None
                self._check_size(link, wanted, len(early.buffer), early.text)
                if early.done:
                    wanted.view[:] = early.buffer
                    wanted.finish()
                else:
                    early.complete_into(wanted)
                link.receives.remove(wanted)
                link.unexpected.remove(early)
                self._rules.taken(link, wanted)

    def _check_size(self, link: PeerConnection, wanted: Receive, nbytes: int, text: bytes) -> None:
        """Raises RankMismatch where a message is not the one that its receive was posted for."""
        self._rules.check_receive(self.operations, link, wanted, nbytes, text)
        if len(wanted.view) != nbytes:
            raise self.operations.failure(
                RankMismatch,
                f"rank {link.rank} sends {nbytes} bytes where {len(wanted.view)} were expected "
                f"(tag {wanted.tag}); {SAME_ORDER_HINT}",
            )

    # ---- what is missing, for ``Operations`` -------------------------------------------------------------------------
    def poll(self, seconds: float) -> bool:
        """Waits so long until anything can be moved, and moves it.  Returns whether anything moved."""
        if self.lanes.planned is None:
            return self.connections.poll(seconds)
        moved = self.connections.poll(min(seconds, LOOK_SECONDS))
        self.paths.look()
        return moved

    def busy(self, link: PeerConnection) -> bool:
        """True if a send to this peer, or a receive from it, has been posted and is not done."""
        return self._rules.busy(link) or bool(self.lanes.awaited(link.rank) or self.lanes.unsent(link.rank))

    def still_arriving(self, link: PeerConnection) -> bool:
        """True if lanes may still bring parts of this peer's messages."""
        return self.lanes.still_arriving(link.rank)

    def unsent(self, link: PeerConnection) -> int:
        """Bytes that this peer has not accepted yet."""
        return link.bytes_unsent + self.lanes.unsent(link.rank)

    def _awaited(self, link: PeerConnection) -> int:
        return link.bytes_awaited + self.lanes.awaited(link.rank)

    def awaited(self) -> list[PeerConnection]:
        """Connections of the peers that this rank waits for: first those that must send, then those that must
        receive."""
        links = self.connections.links.values()
        return [link for link in links if self._awaited(link)] + [
            link for link in links if self.unsent(link) and not self._awaited(link)
        ]

    def missing(self, link: PeerConnection) -> str:
        """The data that a peer has not sent or not accepted yet, in words."""
        parts = []
        if awaited := self._awaited(link):
            parts.append(f"has not sent {awaited} bytes")
        if unsent := self.unsent(link):
            parts.append(f"has not accepted {unsent} bytes")
        state = "" if link.socket is not None else ", never connected" if not link.lost else f", {link.lost}"
        return f"rank {link.rank} ({link.address}{state}) {' and '.join(parts) or 'has nothing to send or accept'}"
