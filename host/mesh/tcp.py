# SPDX-License-Identifier: Apache-2.0
"""A mesh of TCP connections.

Bytes go straight from and into the caller's memory, and no order of sends and receives can block two ranks against
each other.  Only a message that stands before a wanted one of another tag is put aside into memory of its own.

    message = header: call number | bytes | tag | call text        then the bytes
"""

from __future__ import annotations

from netfold.host.errors import RankMismatch
from netfold.host.mesh.connected import SAME, ConnectedMesh
from netfold.host.mesh.link import HEADER, Link, Receive, Send, text_of
from netfold.host.mesh.mesh import DONE, Call, Pending, as_bytes
from netfold.host.operation.arrays import Flat


class TcpMesh(ConnectedMesh):
    """The ranks of a plan over TCP: `ConnectedMesh` says what it is made of."""

    name = "TCP mesh"

    # ---- posting ---------------------------------------------------------------------------------------------------
    def send(self, peer: int, data: Flat, *, tag: int = 0) -> Pending:
        link = self._link(peer)
        view = as_bytes(data, "send of")
        if not view.nbytes:
            return DONE
        head = HEADER.pack(self._call.number, view.nbytes, tag, self._text)
        pending = Send(memoryview(head), view)
        link.sends.append(pending)
        self.bytes_sent += view.nbytes
        if len(link.sends) == 1 and link.socket is not None:
            with self.spanned("send"):
                self._write(link)  # most small messages leave here, without a turn of the poll loop
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
        pending = Receive(tag, view)
        link.receives.append(pending)
        if link.aside:
            self._take_aside(link)
        if link.current is None and link.got == HEADER.size:
            self._message(link)
        self._watch(link)
        return pending

    def flush(self) -> None:
        while any(link.sends or link.receives for link in self._links.values()):
            self._turn()

    # ---- matching --------------------------------------------------------------------------------------------------
    def _message(self, link: Link) -> None:
        """A header is in: finds the receive that it is for, if that is posted already."""
        number, nbytes, tag, text = HEADER.unpack(link.header)
        if not link.receives:
            return
        wanted = next((receive for receive in link.receives if receive.tag == tag), None)
        if number != self._call.number or text != self._text.ljust(76, b"\0"):
            theirs = Call(number, text_of(text))
            raise self._fail(RankMismatch, f"rank {link.rank} is at {theirs}; expected {self._call}; {SAME}")
        if wanted is None:
            memory = bytearray(nbytes)
            link.current = Receive(tag, memoryview(memory), memory)
            return
        self._check_size(link, wanted, nbytes)
        link.receives.remove(wanted)
        link.current = wanted

    def _arrived(self, link: Link, receive: Receive) -> None:
        super()._arrived(link, receive)
        if receive.aside is not None:
            link.aside.append(receive)
            self._take_aside(link)

    def _take_aside(self, link: Link) -> None:
        """Gives messages that were put aside to receives that have been posted since."""
        for early in list(link.aside):
            wanted = next((receive for receive in link.receives if receive.tag == early.tag), None)
            if wanted is not None:
                assert early.aside is not None
                self._check_size(link, wanted, len(early.aside))
                wanted.view[:] = early.aside
                wanted.done = True
                link.receives.remove(wanted)
                link.aside.remove(early)

    def _check_size(self, link: Link, wanted: Receive, nbytes: int) -> None:
        if len(wanted.view) != nbytes:
            raise self._fail(
                RankMismatch,
                f"rank {link.rank} sends {nbytes} bytes where {len(wanted.view)} were expected "
                f"(tag {wanted.tag}); {SAME}",
            )

    # ---- failure ---------------------------------------------------------------------------------------------------
    def _busy(self, link: Link) -> bool:
        return bool(link.owed or link.unsent)

    def _missing(self) -> list[Link]:
        links = self._links.values()
        return [link for link in links if link.owed] + [link for link in links if link.unsent and not link.owed]

    def _owed(self, link: Link) -> str:
        parts = []
        if link.owed:
            parts.append(f"owes {link.owed} bytes")
        if link.unsent:
            parts.append(f"does not take {link.unsent} bytes")
        state = "" if link.socket is not None else ", never connected" if not link.lost else f", {link.lost}"
        return f"rank {link.rank} ({link.where}{state}) {' and '.join(parts) or 'owes nothing'}"
