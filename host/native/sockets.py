# SPDX-License-Identifier: Apache-2.0
"""The UDP sockets of RoCEv2 over the kernel: one that receives, and one that sends for each source port.

Each folding engine (``innet.fold``) and each mesh of queue pairs (``roce.mesh``) has a set of its own.  The kernel
gives a port of an address to one socket, and while that is open to no other program or user of the host: so it tells
the packets of a host's ranks apart, and nobody else receives them, or sends in their name.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from netfold.host.errors import TransportError
from netfold.host.forked import own
from netfold.wire import roce

# <linux/udp.h>, <linux/in.h>, <asm/socket.h>; Python's socket module does not name them all
UDP_SEGMENT, UDP_GRO = 103, 104
IP_MTU_DISCOVER, IP_PMTUDISC_DO, IP_MTU = 10, 2, 14
IP_RECVTTL, IP_RECVTOS = 12, 13
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
SEND_BYTES = 1 << 20
"""Size in bytes of a sending socket's buffer."""


@dataclass
class Sockets:
    """The sockets of an engine, and what the kernel offers it."""

    receiver: socket.socket
    """The receiving socket, which reports each datagram's ECN bits and merges datagrams of one flow (UDP_GRO)."""
    senders: dict[int, socket.socket]
    """UDP source port -> the socket that sends from it."""
    room: int
    """Capacity of the receive buffer in bytes, as the kernel counts them."""
    super_packets: bool
    """True if the kernel splits super-packets into datagrams (UDP_SEGMENT)."""

    def close(self) -> None:
        """Closes all sockets; safe to call twice."""
        for sock in (self.receiver, *self.senders.values()):
            sock.close()


def bind_port(address: str, port: int | None = None) -> socket.socket:
    """A socket bound to a UDP port of this host's address at which RoCEv2 may arrive.

    port  default: 4791 where it is free, else the first of roce.UDP_PORTS that is
    Raises TransportError.
    """
    if port is not None:
        return _bound(address, port, "end what has it, or give this rank another one")
    for wanted in (roce.UDP_PORT, *roce.UDP_PORTS):
        try:
            return _bound(address, wanted, "")
        except TransportError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise TransportError(
        errno.EADDRINUSE,
        f"no UDP port of {address} is free for RoCEv2: expected {roce.UDP_PORT} or one of {roce.UDP_PORTS[0]}.."
        f"{roce.UDP_PORTS[-1]}, which other jobs and programs on this host have (`ss -lun`): end some of them",
    )


def copy_of(receiver: socket.socket) -> socket.socket:
    """Another descriptor of a bound socket, to be closed by whoever gets it: the port stays bound until all are."""
    return own(receiver.dup())


def open_sockets(
    receiver: socket.socket, ports: Sequence[int], *, room: int, ttl: int | None = None, paths: bool = False
) -> Sockets:
    """Sets up a receiver, and binds one socket of its address for each source port (0: one that the kernel chooses).

    receiver  of ``bind_port``; taken over, and closed where this fails
    room      bytes that the receive buffer should hold; more than the system's limit needs CAP_NET_ADMIN
    ttl       TTL of packets sent, and then the receiver reports the TTL of packets received; default: the system's
    paths     the source ports name paths, and prove nothing of who sends: other jobs of this host may have them, too
    Raises TransportError.
    """
    opened = [receiver]
    address = receiver.getsockname()[0]
    try:
        receiver.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
        if ttl is not None:
            receiver.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
        _try(receiver, socket.IPPROTO_UDP, UDP_GRO, 1)
        got = _grow(receiver, SO_RCVBUFFORCE, socket.SO_RCVBUF, room)
        senders: dict[int, socket.socket] = {}
        super_packets = True
        for port in ports:
            sender = _bound(
                address, port, "it names a path, and another program on this host has it, for itself: end that program"
                if paths else "it was drawn for what this rank sends, and another program on this host has it by "
                              "chance: join anew for another one, or end that program", again=paths,
            )
            opened.append(sender)
            # So the kernel writes DF and the IPv4 ID 0, and 0, 1, 2... in a super-packet; see native/roce.h
            sender.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, roce.ECN_ECT0)
            if ttl is not None:
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
            super_packets &= _try(sender, socket.IPPROTO_UDP, UDP_SEGMENT, 0)
            _grow(sender, SO_SNDBUFFORCE, socket.SO_SNDBUF, SEND_BYTES)
            senders[sender.getsockname()[1]] = sender
    except BaseException:
        for sock in opened:
            sock.close()
        raise
    return Sockets(receiver, senders, got, super_packets)


def check_mtu(address: str, peer: str, path_mtu: int) -> None:
    """Raises TransportError where the way from an address to a peer's begins with a link that does not carry packets of
    a path MTU.  Links further on show no MTU to a host; the controller's probes find those between switches."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
            probe.connect((peer, roce.UDP_PORT))
            mtu = probe.getsockopt(socket.IPPROTO_IP, IP_MTU)
        except OSError:  # no such address, or no way: what comes next says so
            return
    needed = roce.ip_packet_bytes(roce.Opcode.WRITE_FIRST, path_mtu)
    if mtu < needed:
        raise TransportError(
            errno.EMSGSIZE,
            f"packets of {path_mtu} bytes of data need an MTU of {needed} or more on every link of the fabric, the "
            f"one from {address} towards {peer} has {mtu} (`ip route get {peer} from {address}` names its interface): "
            f"{roce.mtu_remedy(path_mtu)}",
        )


def _bound(address: str, port: int, taken: str, *, again: bool = False) -> socket.socket:
    """A socket bound to this port.  Raises TransportError.

    taken  what that says of a port that something else has
    again  other sockets that allow it as well may be bound to the port; where packets arrive then, nobody knows
    """
    sock = own(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    try:
        sock.setblocking(False)
        if again:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
    except OSError as error:
        sock.close()
        hint = {
            errno.EADDRINUSE: f"{taken} (`ss -lunp`)",
            errno.EADDRNOTAVAIL: "this host has no such address: give the one on the fabric (`ip addr`)",
        }.get(error.errno or 0, "see `ip addr` and `ss -lun`")
        raise TransportError(
            error.errno, f"cannot use UDP {address}:{port} for RoCEv2: {error.strerror}; {hint}"
        ) from error
    return sock


def _try(sock: socket.socket, level: int, option: int, value: int) -> bool:
    try:
        sock.setsockopt(level, option, value)
    except OSError:
        return False
    return True


def _grow(sock: socket.socket, force: int, option: int, wanted: int) -> int:
    """Asks for a socket buffer beyond the system's limit, or up to it.  Returns the bytes that packets may take."""
    if not _try(sock, socket.SOL_SOCKET, force, wanted):
        sock.setsockopt(socket.SOL_SOCKET, option, wanted)
    return sock.getsockopt(socket.SOL_SOCKET, option)
