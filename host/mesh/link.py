# SPDX-License-Identifier: Apache-2.0
"""A connection of the TCP mesh: what it begins with, what goes over it, and what is posted for its peer."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from netfold.host.errors import TransportError
from netfold.host.mesh.mesh import Pending

HELLO = struct.Struct("!8sQII32s")
"""magic, epoch, rank, world, job (cut to 32 bytes): what a connection begins with."""
MAGIC = b"netfold1"
HEADER = struct.Struct("!QQI76s")
"""call number, bytes, tag, call text (cut): 96 bytes."""
CONGESTION_VARIABLE: Final = "NETFOLD_TCP_CONGESTION"
"""Congestion control of the connections between ranks; default: the machine's own.  BBR spreads what is sent over time
by rates that it estimates: between the short messages of a collective it may stand still for up to 40 ms."""
FAILURE_REPORT = (1 << 64) - 1
"""In place of a call number: the header is a message by itself (``connected``)."""


def text_of(field: bytes) -> str:
    """A text field of a header, without its padding."""
    return field.rstrip(b"\0").decode(errors="replace")


def open_socket() -> socket.socket:
    """A TCP socket of a mesh, with the congestion control that $NETFOLD_TCP_CONGESTION names.  Raises ValueError."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    name = os.environ.get(CONGESTION_VARIABLE)
    if name:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except OSError as error:
            sock.close()
            raise ValueError(
                f"{CONGESTION_VARIABLE}={name!r}: the kernel does not give it to this process ({error.strerror}); "
                "expected one of `sysctl net.ipv4.tcp_allowed_congestion_control`, or nothing for the machine's own"
            ) from error
    return sock


def listen(address: str) -> socket.socket:
    """A bound, listening TCP socket on a free port, which hands its congestion control down to all that it accepts.

    Raises TransportError, ValueError.
    """
    sock = open_socket()
    try:
        sock.bind((address, 0))
        sock.listen(16)
    except OSError as error:
        sock.close()
        raise TransportError(
            error.errno,
            f"cannot listen on {address} for TCP: {error.strerror}; give this host's own IPv4 address",
        ) from error
    return sock


class Send(Pending):
    """A message, as header and body; what is out has been taken off."""

    __slots__ = ("parts",)

    def __init__(self, *parts: memoryview) -> None:
        super().__init__()
        self.parts = list(parts)

    @property
    def begun(self) -> bool:
        """Some of the message is out: the rest must follow before anything else."""
        return len(self.parts) < 2 or len(self.parts[0]) < HEADER.size


class ControlMessage(Send):
    """A hello or news: goes out before what is posted, and nobody owes it."""

    __slots__ = ()


class Receive(Pending):
    """Room for a message with this tag: the caller's, or ``aside``, for one that nobody has asked for yet."""

    __slots__ = ("buffer", "tag", "view")

    def __init__(self, tag: int, view: memoryview, buffer: bytearray | None = None) -> None:
        super().__init__()
        self.tag = tag
        self.view = view
        self.buffer = buffer


@dataclass(eq=False)
class PeerConnection:
    """One peer: its connection, what is posted for it, and how much of the next header is in."""

    rank: int
    address: str
    socket: socket.socket | None = None
    lost: str = ""
    """Why there is no connection any more."""
    sends: deque[Send] = field(default_factory=deque)
    receives: list[Receive] = field(default_factory=list)
    header: bytearray = field(default_factory=lambda: bytearray(HEADER.size))
    header_bytes: int = 0
    """Bytes of ``header`` that are in.  A whole header without ``current`` is held until its receive is posted."""
    current: Receive | None = None
    unexpected: list[Receive] = field(default_factory=list)
    """Messages that came before those which were wanted, whole, with memory of their own."""
    events: int = 0
    """What the poller looks for."""

    def write(self, most: int) -> int:
        """Hands some ``most`` bytes of what is posted to the kernel, or as many as it takes; how many.

        Raises OSError where the connection is gone.
        """
        assert self.socket is not None
        total = 0
        try:
            while self.sends and total < most:
                parts = self.sends[0].parts
                sent = self.socket.sendmsg(parts)
                total += sent
                while parts and sent >= len(parts[0]):
                    sent -= len(parts.pop(0))
                if parts:
                    parts[0] = parts[0][sent:]
                else:
                    self.sends.popleft().done = True
        except (BlockingIOError, InterruptedError):
            pass
        return total

    def restart_receive(self) -> None:
        """The connection ended: what was coming in is to come anew."""
        if self.current is not None and self.current.buffer is None:
            self.receives.insert(0, self.current)
        self.current, self.header_bytes = None, 0

    def poll_events(self) -> int:
        """What the poller should look for: to read, unless a header is held; to write, where something is posted."""
        held = self.current is None and self.header_bytes == HEADER.size
        return (0 if held else select.POLLIN) | (select.POLLOUT if self.sends else 0)

    @property
    def bytes_awaited(self) -> int:
        """Bytes that the peer is to send."""
        current = [self.current] if self.current is not None and self.current.buffer is None else []
        return sum(len(receive.view) for receive in [*self.receives, *current])

    @property
    def bytes_unsent(self) -> int:
        """Bytes that the peer is to take, notes left out."""
        return sum(len(part) for send in self.sends if not isinstance(send, ControlMessage) for part in send.parts)
