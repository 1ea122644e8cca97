# SPDX-License-Identifier: Apache-2.0
"""A mesh whose messages travel over TCP connections.

Bytes go straight from and into the caller's memory, and no order of sends and receives can make two ranks block each
other.  Only an unexpected message, one that arrives before a receive with its tag is posted while another receive is,
is read into memory of its own.

    message = header: call number | bytes | tag | call text        followed by the payload

Where paths are planned, long messages are cut, and their payload comes on lanes (``laned``).
"""

from __future__ import annotations

from netfold.host.errors import RankMismatch
from netfold.host.mesh.connected import SAME_ORDER_HINT
from netfold.host.mesh.connection import HEADER, PeerConnection, Receive, text_of
from netfold.host.mesh.failover import FailoverMesh
from netfold.host.mesh.lanes import STRIPED, StripedPart
from netfold.host.mesh.mesh import DONE, Call, Pending, as_bytes
from netfold.host.operation.arrays import Flat


class TcpMesh(FailoverMesh):
    """The ranks of a plan connected over TCP; ``ConnectedMesh`` describes connections, time-outs and errors,
    ``LanedMesh`` planned paths, ``FailoverMesh`` paths that die."""

    name = "TCP mesh"

    # ---- posting ---------------------------------------------------------------------------------------------------
    def send(self, peer: int, data: Flat, *, tag: int = 0) -> Pending:
        link = self._link(peer)
        view = as_bytes(data, "send of")
        if not view.nbytes:
            return DONE
        parts = self.cut(peer, view.nbytes)
        head = HEADER.pack(self._call.number, view.nbytes | (STRIPED if parts else 0), tag, self._text)
        pending: Pending
        if parts:
            pending = whole = self.post(peer, view, parts)
            link.sends.append(StripedPart(whole, memoryview(head), owned=True))
        else:
            pending = posted = self._whole(head, view)
            link.sends.append(posted)
        self.bytes_sent += view.nbytes
        if not parts:
            link.expect_bytes(view.nbytes)
        if len(link.sends) == 1 and link.out is not None:
            with self.spanned("send"):
                self._write(link)  # most small messages are sent here, without a pass of the poll loop
        self._watch(link)
        return pending

    def receive(self, peer: int, into: Flat, *, tag: int = 0) -> Pending:
        link = self._link(peer)
        view = as_bytes(into, "receive into")
        if not view.nbytes:
            return DONE
        if view.readonly:
            raise ValueError(f"rank {self.rank}: receive from rank {peer}: expected an array that can be written, "
                             "got a read-only one")
        pending = Receive(tag, view, text=self._text)
        link.receives.append(pending)
        if link.unexpected:
            self._match_unexpected(link)
        if link.current is None and link.header_bytes == HEADER.size:
            self._message(link)
            if link.kept:
                self._read(link)
        self._watch(link)
        return pending

    def flush(self) -> None:
        while self._anything_posted():
            self._advance()
        self.finish_moves()

    def _anything_posted(self) -> bool:
        return any(link.sends or link.receives or lanes.bytes_unsent or lanes.bytes_awaited
                   for link, lanes in zip(self._links.values(), self._lanes.values(), strict=True))

    # ---- matching --------------------------------------------------------------------------------------------------
    def _message(self, link: PeerConnection) -> None:
        """Handles a complete header: finds the posted receive that the message belongs to, if there is one already."""
        if not link.receives:
            return
        first = link.receives[0]
        if link.header == HEADER.pack(self._call.number, len(first.view), first.tag, first.text):  # as nearly always
            del link.receives[0]
            link.expect_payload(first)
            return
        number, nbytes, tag, text = HEADER.unpack(link.header)
        cut, nbytes = bool(nbytes & STRIPED), nbytes & ~STRIPED
        wanted = next((receive for receive in link.receives if receive.tag == tag), None)
        self._check_call(link, number, text)
        if wanted is None:
            memory = bytearray(nbytes)
            receive = Receive(tag, memoryview(memory), memory, text)
            if cut:  # later ones with its tag may be complete before it
                link.unexpected.append(receive)
        else:
            self._check_size(link, wanted, nbytes, text)
            link.receives.remove(wanted)
            receive = wanted
        if cut:
            link.expect_header()
            self.place(link.rank, receive, receive.view)
        else:
            link.expect_payload(receive)

    def _arrived(self, link: PeerConnection, receive: Receive) -> None:
        super()._arrived(link, receive)
        if receive.buffer is not None:
            link.unexpected.append(receive)
            self._match_unexpected(link)

    def _assembled(self, link: PeerConnection, receive: Receive) -> None:
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

    def _check_call(self, link: PeerConnection, number: int, text: bytes) -> None:
        """Raises RankMismatch for a message of another call than the one that is under way."""
        if number != self._call.number or text != self._text:
            theirs = Call(number, text_of(text))
            raise self._fail(RankMismatch, f"rank {link.rank} is at {theirs}; expected {self._call}; {SAME_ORDER_HINT}")

    def _check_size(self, link: PeerConnection, wanted: Receive, nbytes: int, text: bytes) -> None:
        """Raises RankMismatch where a message is not the one that its receive was posted for."""
        if len(wanted.view) != nbytes:
            raise self._fail(
                RankMismatch,
                f"rank {link.rank} sends {nbytes} bytes where {len(wanted.view)} were expected "
                f"(tag {wanted.tag}); {SAME_ORDER_HINT}",
            )

    # ---- failure ---------------------------------------------------------------------------------------------------
    def _awaited(self, link: PeerConnection) -> int:
        return link.bytes_awaited + self._lanes[link.rank].bytes_awaited

    def _unsent(self, link: PeerConnection) -> int:
        return link.bytes_unsent + self._lanes[link.rank].bytes_unsent

    def _busy(self, link: PeerConnection) -> bool:
        return bool(self._awaited(link) or self._unsent(link))

    def _peers_awaited(self) -> list[PeerConnection]:
        links = self._links.values()
        return [link for link in links if self._awaited(link)] + [
            link for link in links if self._unsent(link) and not self._awaited(link)
        ]

    def _describe_missing(self, link: PeerConnection) -> str:
        parts = []
        if awaited := self._awaited(link):
            parts.append(f"has not sent {awaited} bytes")
        if unsent := self._unsent(link):
            parts.append(f"has not accepted {unsent} bytes")
        state = "" if link.socket is not None else ", never connected" if not link.lost else f", {link.lost}"
        return f"rank {link.rank} ({link.address}{state}) {' and '.join(parts) or 'has nothing to send or accept'}"
