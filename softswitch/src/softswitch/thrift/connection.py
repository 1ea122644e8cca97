# SPDX-License-Identifier: Apache-2.0
"""A client's connection to the Thrift server: every message is bounded in bytes, nesting and time.

Between messages a connection may rest as long as it likes; from a message's first byte on, the rest must come within
MESSAGE_WITHIN seconds, and what is answered must be taken within as many.
"""

from __future__ import annotations

import contextlib
import socket
import time

from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TTransport import TTransportBase, TTransportException

MESSAGE_MAX = 16 << 20
"""Bytes of the longest message: a program, or the entries of a large table."""
STRING_MAX = 8 << 20
ELEMENTS_MAX = 1 << 20
"""Elements of the longest list."""
MESSAGE_WITHIN = 10.0
"""Seconds within which a message must be complete once it has begun, and an answer read."""
_READ = 65536


class Connection(TTransportBase):  # type: ignore[misc]  # the library has no types
    """Bytes from and to one client, within the bounds above. Every failure is a TTransportException."""

    def __init__(self, sock: socket.socket, *, within: float = MESSAGE_WITHIN) -> None:
        with contextlib.suppress(OSError):  # the client has gone already
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock, self._within = sock, within
        self._buffer, self._at = b"", 0
        self._left, self._deadline = 0, 0.0
        self._out: list[bytes] = []
        self.waits_since = time.monotonic()
        """Time since which the client has had nothing executed: the end of the last message."""
        self.is_executing = False

    def wait(self) -> bool:
        """Waits for the next message, without end; False where the client has hung up."""
        self.waits_since = time.monotonic()
        if self._at == len(self._buffer):
            self._sock.settimeout(None)
            try:
                self._buffer, self._at = self._sock.recv(_READ), 0
            except OSError:
                return False
        self._left, self._deadline = MESSAGE_MAX, time.monotonic() + self._within
        return bool(self._buffer)

    def read(self, sz: int) -> bytes:
        """At most ``sz`` of the next bytes, at least one."""
        if sz <= 0:
            return b""
        if self._left <= 0:
            raise TTransportException(TTransportException.SIZE_LIMIT, f"a message of more than {MESSAGE_MAX} bytes")
        if self._at == len(self._buffer):
            self._receive()
        data = self._buffer[self._at : self._at + min(sz, self._left)]
        self._at += len(data)
        self._left -= len(data)
        return data

    def _receive(self) -> None:
        rest = self._deadline - time.monotonic()
        if rest <= 0:
            raise TTransportException(TTransportException.TIMED_OUT, f"a message took more than {self._within:.0f} s")
        self._sock.settimeout(rest)
        try:
            self._buffer, self._at = self._sock.recv(_READ), 0
        except TimeoutError:
            raise TTransportException(TTransportException.TIMED_OUT,
                                      f"a message took more than {self._within:.0f} s") from None
        except OSError as error:
            raise TTransportException(TTransportException.NOT_OPEN, str(error)) from None
        if not self._buffer:
            raise TTransportException(TTransportException.END_OF_FILE, "the connection ended within a message")

    def readAll(self, sz: int) -> bytes:
        """The next ``sz`` bytes."""
        parts = []
        while sz > 0:
            part = self.read(sz)
            parts.append(part)
            sz -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, buf: bytes) -> None:
        """Keeps bytes of an answer until `flush`."""
        self._out.append(buf)

    def discard(self) -> None:
        """Forgets what was written since the last `flush`."""
        self._out.clear()

    def flush(self) -> None:
        """Sends the answer."""
        data = b"".join(self._out)
        self._out.clear()
        self._sock.settimeout(self._within)
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise TTransportException(TTransportException.NOT_OPEN, f"an answer was not taken: {error}") from None

    def isOpen(self) -> bool:
        """True if the connection is open."""
        return self._sock.fileno() >= 0

    def close(self) -> None:
        """Ends the connection; a thread that reads from it wakes up."""
        with contextlib.suppress(OSError):  # it has ended already
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def protocol(connection: Connection) -> TBinaryProtocol:
    """The protocol of BMv2's services over a connection; fields that no one asked for may nest 64 deep."""
    return TBinaryProtocol(connection, strictRead=True, string_length_limit=STRING_MAX,
                           container_length_limit=ELEMENTS_MAX)
