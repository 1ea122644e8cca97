# SPDX-License-Identifier: Apache-2.0
"""The bytes of a stream that arrive, over one connection after another, each once and in order.

Before another connection goes on with a stream, what the last one has is read into memory (``drain``): so the peer can
be told how much has come, and what comes late on the last one counts for nothing.
"""

from __future__ import annotations

import socket
from typing import Final

TcpSocket = socket.socket
"""The type of a socket, for annotations in classes with an attribute named ``socket``."""
DRAIN_BYTES: Final = 1 << 18
"""Bytes read at a time."""


class Arriving:
    """The end of a stream at the rank to which it leads.  ``socket`` is the connection that carries it now, or None."""

    socket: TcpSocket | None

    def __init__(self) -> None:
        self.received = 0
        """Bytes of the stream that have been read so far, those kept not counted."""
        self.kept = memoryview(b"")
        """Bytes that were read from earlier connections and not taken yet."""

    def recv_into(self, view: memoryview) -> int:
        """Reads bytes of the stream to the beginning of ``view``, which is not empty.  Returns how many, 0 at the end
        of the connection.  Raises OSError."""
        if self.kept:
            got = min(len(self.kept), len(view))
            view[:got] = self.kept[:got]
            self.kept = self.kept[got:]
        else:
            assert self.socket is not None
            got = self.socket.recv_into(view)
        self.received += got
        return got

    def drain(self) -> int:
        """Reads all that the connection has.  Returns how many bytes of the stream have come in all."""
        parts = [bytes(self.kept)]
        try:
            while self.socket is not None and (data := self.socket.recv(DRAIN_BYTES)):
                parts.append(data)
        except OSError:  # there is no more, or the connection is broken: then there will be no more
            pass
        self.kept = memoryview(b"".join(parts))
        return self.received + len(self.kept)
