# SPDX-License-Identifier: Apache-2.0
"""What a rank has sent to a peer and the peer's kernel has not acknowledged: it may have to be sent again elsewhere.

A stream is a run of bytes from one rank to another, which connections carry one after the other (``failover``).  The
log holds views of what was sent.  Where that is the caller's memory, what is still unacknowledged when it becomes the
caller's again is copied (``own``).
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from collections import deque
from typing import Final

MOST_KEPT: Final = 512 << 10
"""Bytes in a log from which on it is time to ask the kernel what has been acknowledged."""
_NUMBER: Final = struct.Struct("i")
_NO_NUMBER: Final = bytes(_NUMBER.size)


def unacknowledged(sock: socket.socket) -> int:
    """Bytes written to a connection that its peer has not acknowledged (Linux's SIOCOUTQ).  Raises OSError."""
    return int(_NUMBER.unpack(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, _NO_NUMBER))[0])


class SentLog:
    """Bytes ``first`` .. ``next`` of a stream: those that the kernel has taken and that may be needed again."""

    __slots__ = ("_pieces", "borrowed", "first", "next")

    def __init__(self) -> None:
        self.first = self.next = 0
        self._pieces: deque[memoryview] = deque()
        self.borrowed = 0
        """Pieces, the last ones, that lie in others' memory."""

    def __len__(self) -> int:
        return self.next - self.first

    def add(self, piece: memoryview, owned: bool = False) -> None:
        """Adds bytes that the kernel has taken.  ``owned``: their memory does not change any more."""
        if self.borrowed or not owned:
            self.borrowed += 1
        self._pieces.append(piece)
        self.next += len(piece)

    def trim(self, end: int) -> None:
        """Forgets the bytes before ``end``, which the peer has; none where it has less than was known before."""
        if end >= self.next:
            self._pieces.clear()
            self.first, self.borrowed = self.next, 0
            return
        while end > self.first:
            piece = self._pieces[0]
            if end - self.first < len(piece):
                self._pieces[0] = piece[end - self.first :]
                self.first = end
                break
            self.first += len(piece)
            self._pieces.popleft()
        self.borrowed = min(self.borrowed, len(self._pieces))

    def own(self) -> None:
        """Copies what lies in others' memory, which may change from now on."""
        if not self.borrowed:
            return
        others = [self._pieces.pop() for _ in range(self.borrowed)]
        self._pieces.append(memoryview(b"".join(reversed(others))))
        self.borrowed = 0

    def covers(self, end: int) -> bool:
        """Whether a peer may say that it has received the bytes before ``end``: no less than it acknowledged, and no
        more than was sent."""
        return self.first <= end <= self.next

    def take_from(self, end: int) -> list[memoryview]:
        """Takes a copy of the bytes from ``end`` on out of the log, to be sent again, and forgets those before.  Raises
        ValueError where the log does not cover it."""
        if not self.covers(end):
            raise ValueError(f"{end} bytes: expected {self.first} to {self.next}")
        self.trim(end)
        # one piece: the kernel takes 1024 at once, and each short message has left one
        taken = [memoryview(b"".join(self._pieces))] if self._pieces else []
        self._pieces.clear()
        self.first = self.next = end
        self.borrowed = 0
        return taken
