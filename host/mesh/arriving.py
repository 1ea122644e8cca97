# SPDX-License-Identifier: Apache-2.0
"""The bytes of a stream that arrive, over one connection after another, each once and in order.

A peer that asks to go on over another connection, the *successor*, is told how much has come on the one before; from
then on nothing more is read there, whatever still comes.  The peer writes to the successor only when it knows how much
has come, and never again to the one before; until then it may think better of it, and close the successor.  So the
first byte on the successor makes it the connection, and its end without one brings the one before back, where nothing
is lost.
"""

from __future__ import annotations

import socket
from typing import Final

TcpSocket = socket.socket
"""The type of a socket, for annotations in classes with an attribute named ``socket``."""
DRAIN_BYTES: Final = 1 << 18
"""Bytes read at a time."""
MOST_KEPT: Final = 16 << 20
"""Bytes that are kept for a stream at most, beside what the kernel has."""


class Arriving:
    """The end of a stream at the rank to which it leads.  ``socket`` is the connection that is read, or None."""

    socket: TcpSocket | None

    def __init__(self) -> None:
        self.received = 0
        """Bytes of the stream that have been read so far, those kept not counted."""
        self.kept = memoryview(b"")
        """Bytes that were read from earlier connections and not taken yet."""
        self.arriving_turn = 0
        """Turn of the connection that is read; 0: it is the first one."""
        self.latest_turn = 0
        """Turn of the last connection by which the peer asked to go on: earlier ones come too late."""
        self.successor: TcpSocket | None = None

    def recv_into(self, view: memoryview) -> int:
        """Reads bytes of the stream to the beginning of ``view``, which is not empty.  Returns how many, 0 at the end
        of the connection.  Raises OSError."""
        if self.kept:
            got = min(len(self.kept), len(view))
            view[:got] = self.kept[:got]
            self.kept = self.kept[got:]
        elif self.successor is not None:
            raise BlockingIOError
        else:
            assert self.socket is not None
            got = self.socket.recv_into(view)
        self.received += got
        return got

    def admits(self, turn: int, now: int) -> bool:
        """Decides whether a peer that asks to go on over a connection of this turn may do so.

        turn  of the connection that the peer asks for; one that is not later than the last asked for is refused
        now   turn of the connection to which the peer has written until now; the same as ``turn`` where it has written
              to none.  That connection is the one to read from here on, and the other one, if there are two, is closed
        """
        if turn <= self.latest_turn:
            return False
        if self.successor is not None and now == self.latest_turn:
            self.succeed()
        else:
            self.withdraw_successor()
        return now == self.arriving_turn or (now == turn and self.drain() == 0)

    def drain(self) -> int | None:
        """Reads all that the connection has.  Returns how many bytes of the stream have come in all; None where that is
        more than is kept, so that nobody knows."""
        parts, kept = [self.kept], len(self.kept)
        try:
            while self.socket is not None and kept < MOST_KEPT and (data := self.socket.recv(DRAIN_BYTES)):
                parts.append(memoryview(data))
                kept += len(data)
        except OSError:  # there is no more, or the connection is broken: then there will be no more
            pass
        if len(parts) > 1:
            self.kept = memoryview(b"".join(parts))
        return self.received + kept if kept < MOST_KEPT else None

    def offer(self, sock: TcpSocket, turn: int) -> None:
        """Takes another connection by which the peer may go on, and reads nothing more from the one before."""
        assert self.successor is None
        self.successor, self.latest_turn = sock, turn

    def hear_successor(self) -> bool | None:
        """Looks at the successor without reading from it.  Returns True where the peer has written to it, False where
        the peer has closed it or it has broken, and None where nothing has come yet."""
        assert self.successor is not None
        try:
            return bool(self.successor.recv(1, socket.MSG_PEEK))
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return False

    def begin(self, sock: TcpSocket, turn: int) -> None:
        """Reads the first connection of the stream."""
        self.socket, self.arriving_turn, self.latest_turn = sock, turn, turn

    def withdraw_successor(self) -> None:
        """Closes the successor, and reads the connection before again."""
        if self.successor is not None:
            self.successor.close()
        self.successor = None

    def succeed(self) -> None:
        """Reads the successor from now on.  The connection before belongs to the caller."""
        self.socket, self.successor = self.successor, None
        self.arriving_turn = self.latest_turn
