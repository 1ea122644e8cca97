# SPDX-License-Identifier: Apache-2.0
"""Packet sockets on interfaces (packet(7)): frames of both directions, with the kernel's time stamps, and with a
virtio-net header that says what of a frame is still to be cut into segments (segments.py).
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

BATCH: Final = 64
"""Packets that are read from one link before the next link's turn."""
_LARGEST: Final = 1 << 17
_ETH_P_ALL: Final = 3
_SOL_PACKET, _STATISTICS, _VNET_HDR, _OUTGOING = 263, 6, 15, 4
_SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 33, 35
_TIME: Final = struct.Struct("qq")
_COUNTS: Final = struct.Struct("II")


class Received(NamedTuple):
    """A packet that a packet socket has received."""

    data: bytes
    """The frame, maybe a super-packet, behind its virtio-net header (segments.HEADER)."""
    nanoseconds: int
    """Time of its passing, in nanoseconds since 1970."""
    outbound: bool
    """True if it left by the interface."""


def opened(interface: str, buffer: int) -> int:
    """A socket that gets every frame of an interface, both ways; ``buffer``: its bytes, or as near to it as the kernel
    grants.  Raises OSError."""
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
    try:
        packets.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
        try:
            packets.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer)
        except PermissionError:  # of an ordinary user: as much as net.core.rmem_max allows
            packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        packets.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        packets.bind((interface, _ETH_P_ALL))
        return packets.detach()
    finally:
        packets.close()


def received(packets: socket.socket) -> Iterator[Received]:
    """The packets that have arrived by now, at most BATCH; the socket must not block."""
    for _ in range(BATCH):
        try:
            data, control, _, address = packets.recvmsg(_LARGEST, 64)
        except OSError:  # nothing left; or the interface is down, or gone: what comes later is read later
            return
        stamp = time.time_ns()
        for level, kind, value in control:
            if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
                seconds, nanoseconds = _TIME.unpack(value[:_TIME.size])
                stamp = seconds * 1_000_000_000 + nanoseconds
        yield Received(data, stamp, address[2] == _OUTGOING)


def counts(packets: socket.socket) -> tuple[int, int]:
    """How many the socket has received since it was asked last, a super-packet as one, and how many more the kernel has
    dropped, as nobody read them in time."""
    said, dropped = _COUNTS.unpack(packets.getsockopt(_SOL_PACKET, _STATISTICS, _COUNTS.size))
    return said - dropped, dropped  # the kernel counts those that it has dropped among those received
