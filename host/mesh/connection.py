# SPDX-License-Identifier: Apache-2.0
"""One TCP connection of a mesh: its message header, and the sends and receives posted for its peer."""

from __future__ import annotations

import contextlib
import select
import struct
from collections import deque
from typing import Final

from netfold.host.mesh.mesh import Pending
from netfold.host.mesh.poller import Registered
from netfold.host.mesh.sending import Send, Sending

TEXT_BYTES: Final = 76
"""Bytes of a text in a header; a longer one is cut, a shorter one is followed by zeros."""
HEADER = struct.Struct(f"!QQI{TEXT_BYTES}s")
"""Layout of a message header, 96 bytes: call number, payload bytes, tag, and the call's text."""
FAILURE_REPORT = (1 << 64) - 1
"""Call number that marks a header as a failure report, which has no payload (``operations``)."""
FAREWELL = FAILURE_REPORT - 1
"""Call number that marks a header as the report of a peer that it leaves in order; it has no payload either."""
WAITING = FAREWELL - 1
"""Call number that marks a header as the report of a peer that it has waited for long; it has no payload either."""
STRIPED: Final = 1 << 63
"""Bit of a message header's bytes: the payload comes in parts, on lanes (``lanes``)."""
REPORT_MARK = FAILURE_REPORT.to_bytes(8, "big")[:7]
"""The beginning of these headers."""


def text_of(field: bytes) -> str:
    """A text field of a header, decoded, without its zero padding, and printable whatever a peer has sent."""
    return printable(field.rstrip(b"\0").decode(errors="replace"))


def printable(text: str) -> str:
    """A text of another rank, for a log or a terminal: what is not printable becomes a question mark."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


class ControlMessage(Send):
    """A failure report, a farewell or the word of a long wait, which nobody waits for."""

    __slots__ = ()


class Receive(Pending):
    """A posted receive for a message with this tag.  ``buffer`` is None where ``view`` is the caller's memory, else the
    memory allocated for a message that arrived before its receive was posted; ``target`` is that receive, where it was
    posted before all of the message had come.  ``text``: the text field of its header."""

    __slots__ = ("buffer", "tag", "target", "text", "view")

    def __init__(
        self, tag: int, view: memoryview, buffer: bytearray | None = None, text: bytes = bytes(TEXT_BYTES)
    ) -> None:
        super().__init__()
        self.text = text
        self.tag = tag
        self.view = view
        self.buffer = buffer
        self.target: Receive | None = None

    def complete_into(self, target: Receive) -> None:
        """Lets the message be copied to this receive once all of it has come."""
        self.target = target


class PeerConnection(Sending):
    """The messages of two ranks, both ways: what is posted, and how far the next incoming header has been read."""

    def __init__(self, rank: int, address: str) -> None:
        super().__init__()
        self.rank = rank
        self.address = address
        self.lost = ""
        """Why the connection is gone; empty while it exists."""
        self.left = ""
        """When and why the peer has left in order, as it reported; empty before that."""
        self.receives: list[Receive] = []
        self.header = bytearray(HEADER.size)
        self.header_bytes = 0
        """Number of bytes of ``header`` that have been read.  A complete header while ``current`` is None waits until
        its receive is posted; nothing more is read before that."""
        self.current: Receive | None = None
        self.unexpected: list[Receive] = []
        """Complete messages that arrived before a receive with their tag was posted, each in memory of its own."""

    def insert_control(self, message: ControlMessage) -> None:
        """Posts a control message: behind what is partly sent, and before all messages."""
        place = 0
        while place < len(self.sends) and (self.sends[place].begun or isinstance(self.sends[place], ControlMessage)):
            place += 1
        self.sends.insert(place, message)

    # ---- life --------------------------------------------------------------------------------------------------------
    def lose(self, why: str) -> None:
        """Records why the connection is gone; the first reason is kept."""
        self.lost = self.lost or why

    def say_left(self, why: str) -> None:
        """The peer says that it leaves in order, after all that it has sent."""
        self.left = self.left or why

    def withdraw(self) -> None:
        """Drops what is posted, except control messages and the rest of a message that is partly sent."""
        self.receives.clear()
        self.sends = deque(send for send in self.sends if isinstance(send, ControlMessage) or send.begun)

    # ---- reading -----------------------------------------------------------------------------------------------------
    def read_header(self) -> int:
        """Reads the bytes of the next header that have arrived.  Returns how many.  Raises OSError."""
        assert self.socket is not None
        got = self.socket.recv_into(memoryview(self.header)[self.header_bytes :])
        self.header_bytes += got
        return got

    def read_payload(self, receive: Receive) -> int:
        """Reads the bytes of the current message that have arrived.  Returns how many.  Raises OSError."""
        assert self.socket is not None
        got = self.socket.recv_into(receive.view)
        receive.view = receive.view[got:]
        return got

    def expect_header(self) -> None:
        """Lets the next bytes be read as a header."""
        self.current, self.header_bytes = None, 0

    def expect_payload(self, receive: Receive) -> None:
        """Lets the next bytes be read as this message."""
        self.current = receive

    def restart_receive(self) -> None:
        """Puts a partly received message back among the posted receives, because the connection ended before it was
        complete."""
        if self.current is not None and self.current.buffer is None:
            self.receives.insert(0, self.current)
        self.expect_header()

    def reports_behind_held_message(self) -> list[tuple[int, int, str]]:
        """Failure reports that the peer sent after a message that is held: reporting rank, rank concerned, and reason.
        Messages before and between them are discarded.

        For a connection that has broken: nobody will receive those messages, and a rank that gives up because another
        one is lost must not be taken for the lost one.
        """
        reports: list[tuple[int, int, str]] = []
        if self.socket is None or self.current is not None or self.header_bytes < HEADER.size:
            return reports
        unread = 0
        with contextlib.suppress(OSError):  # all that had arrived has been read
            while True:
                if self.header_bytes == HEADER.size:
                    number, second, third, text = HEADER.unpack(self.header)
                    self.header_bytes = 0
                    if number == FAREWELL:
                        self.say_left(f"left {text_of(text)}")
                    elif number == WAITING:
                        continue
                    elif number == FAILURE_REPORT:
                        reports.append((third, second, text_of(text)))
                    else:
                        unread = 0 if second & STRIPED else second
                scratch = memoryview(bytearray(min(unread, 1 << 16)))
                got = self.socket.recv_into(scratch) if unread else self.read_header()
                if not got:
                    break
                unread -= got if unread else 0
        return reports

    # ---- what is posted ----------------------------------------------------------------------------------------------
    def register(self, registered: Registered) -> None:
        """Registers the socket for what this connection waits for.  It waits for no bytes to read while a header is
        held, because its receive is not posted yet."""
        if self.socket is None:
            return
        held = self.current is None and self.header_bytes == HEADER.size
        registered.watch(self.socket, (0 if held else select.POLLIN) | (select.POLLOUT if self.sends else 0))

    @property
    def bytes_awaited(self) -> int:
        """Bytes that this rank has posted receives for and that the peer has not sent yet."""
        current = [self.current] if self.current is not None and self.current.buffer is None else []
        return sum(len(receive.view) for receive in [*self.receives, *current])

    @property
    def bytes_unsent(self) -> int:
        """Bytes of posted messages that the peer has not accepted yet, control messages not counted."""
        return sum(send.left for send in self.sends if not isinstance(send, ControlMessage))
