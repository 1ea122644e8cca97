# SPDX-License-Identifier: Apache-2.0
"""The UDP sockets of an endpoint of queue pairs, and how it shares port 4791 with the folding engine.

Both are bound to it, and the kernel hands each datagram to one of them by its destination queue pair (``reuseport``):
numbers from ``OURS`` up are the endpoint's, those below belong to trees.  The endpoint must be bound first.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from netfold.host.errors import TransportError
from netfold.host.roce.reuseport import by_highest_bit, steer
from netfold.wire import roce

log = logging.getLogger("netfold")

OURS = 0x800000
"""Queue pair numbers with this bit are connections between ranks."""
# <linux/udp.h>, <linux/in.h>, <asm/socket.h>; Python's socket module does not name them all
UDP_SEGMENT, UDP_GRO = 103, 104
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2
IP_RECVTOS = 13
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33


@dataclass
class Sockets:
    """What an endpoint needs of the kernel."""

    receiver: socket.socket
    senders: dict[int, socket.socket]
    """By UDP source port."""
    super_packets: bool
    """The kernel cuts super-packets (UDP_SEGMENT)."""


def open_sockets(address: str, ports: Sequence[int], *, room: int, shared: bool) -> Sockets:
    """Binds address:4791 and one socket for each source port (0: one that the kernel chooses).

    room    bytes that the receive buffer should take, as the kernel counts them
    shared  the folding engine is going to use the same address and port
    Raises TransportError.
    """
    opened: list[socket.socket] = []
    try:
        receiver = _socket(opened)
        if shared:
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        _bind(receiver, address, roce.UDP_PORT)
        if shared:
            steer(receiver, by_highest_bit(OURS))
        receiver.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
        _try(receiver, socket.IPPROTO_UDP, UDP_GRO, 1)
        got = _grow(receiver, SO_RCVBUFFORCE, socket.SO_RCVBUF, room)
        if got < room:
            log.warning(
                "%s: the receive buffer has %d bytes instead of %d, so bursts may be lost and sent again; for full "
                "speed: sysctl -w net.core.rmem_max=%d, or CAP_NET_ADMIN", address, got, room, room,
            )  # fmt: skip
        senders: dict[int, socket.socket] = {}
        super_packets = True
        for port in ports:
            sender = _socket(opened)
            _bind(sender, address, port)
            # So the kernel writes DF and the IPv4 ID 0, and 0, 1, 2... in a super-packet; see native/roce.h
            sender.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, roce.ECN_ECT0)
            super_packets &= _try(sender, socket.IPPROTO_UDP, UDP_SEGMENT, 0)
            _grow(sender, SO_SNDBUFFORCE, socket.SO_SNDBUF, 1 << 20)
            senders[sender.getsockname()[1]] = sender
    except BaseException:
        for sock in opened:
            sock.close()
        raise
    return Sockets(receiver, senders, super_packets)


def _socket(opened: list[socket.socket]) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    opened.append(sock)
    return sock


def _bind(sock: socket.socket, address: str, port: int) -> None:
    try:
        sock.bind((address, port))
    except OSError as error:
        hint = {
            errno.EADDRINUSE: "another rank or program on this host has it: one rank a fabric address",
            errno.EADDRNOTAVAIL: "this host has no such address: give the one on the fabric (`ip addr`)",
        }.get(error.errno or 0, "see `ip addr` and `ss -lun`")
        raise TransportError(
            error.errno, f"cannot use UDP {address}:{port} for RoCEv2: {error.strerror}; {hint}"
        ) from error


def _try(sock: socket.socket, level: int, option: int, value: int) -> bool:
    try:
        sock.setsockopt(level, option, value)
    except OSError:
        return False
    return True


def _grow(sock: socket.socket, force: int, option: int, wanted: int) -> int:
    """Asks for a socket buffer beyond the system's limit, or up to it; returns the bytes that packets may take."""
    if not _try(sock, socket.SOL_SOCKET, force, wanted):
        sock.setsockopt(socket.SOL_SOCKET, option, wanted)
    return sock.getsockopt(socket.SOL_SOCKET, option)
