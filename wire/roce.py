# SPDX-License-Identifier: Apache-2.0
"""RoCEv2 as NetFold uses it: sizes, opcodes, and a plain reference implementation of the ICRC.

A packet is Ethernet / IPv4 / UDP / BTH / [RETH on FIRST and ONLY] / [payload] / ICRC.  The same numbers stand in
p4src/sizes.p4 and host/native/roce.h; tests/wire/test_formats.py holds the three against each other.
"""

from __future__ import annotations

import socket
import struct
import zlib
from enum import IntEnum
from typing import Final

UDP_PORT: Final = 4791
"""RoCEv2's UDP destination port, which the first rank on a host's address has; NICs, switches and probes use no other.
"""
UDP_PORTS: Final = range(0x4800, 0x4C00)
"""UDP destination ports of a host's other ranks, of which each has one of its own.  They lie below the ports that
kernels choose by themselves (from 32768 up), and switches parse what goes there as RoCEv2: ROCE_PORTS of
p4src/sizes.p4."""
PATH_PORT: Final = 0xF000
"""UDP source ports from here up name paths, by number (controller/paths/steering.py); the kernel chooses others itself.
This one names none: its packets are sprayed, each at random over the equally short paths."""
TCP_PATH_PORT: Final = 0xF800
"""TCP ports from here up name paths, the one of path ``PATH_PORT`` + n by ``TCP_PATH_PORT`` + n."""
TCP_SAME_PATH: Final = 0x0400
"""TCP ports that differ in this bit alone name the same path: where one is taken, the other may be free.  But
``TCP_PATH_PORT`` itself is sprayed, and with this bit it names path TCP_SAME_PATH (`wire.paths.tcp_ports`)."""
PATH_MTUS: Final = (1024, 4096)
"""Path MTUs that a fabric may have: payload bytes of every data packet."""
PATH_MTU: Final = PATH_MTUS[0]
"""Path MTU where nothing else is asked for: what any Ethernet carries."""
LINK_MTUS: Final = {1024: 1500, 4096: 4200}
"""Path MTU -> MTU of the links that we make for it.  Data packets need 60 bytes more than the path MTU
(`ip_packet_bytes`), NICs ask for room for more headers."""
LANE_BYTES: Final = 4
LANES: Final = PATH_MTU // LANE_BYTES
"""Number of 32-bit big-endian lanes in a packet of path MTU 1024."""
BLOCK: Final = 256
"""Float elements that share one scale (a block); each block has one lane of the agreement stream."""

ETHERNET_BYTES: Final = 14
IPV4_BYTES: Final = 20
UDP_BYTES: Final = 8
BTH_BYTES: Final = 12
RETH_BYTES: Final = 16
IMMEDIATE_BYTES: Final = 4
AETH_BYTES: Final = 4
ICRC_BYTES: Final = 4
NAK_BYTES: Final = BTH_BYTES + AETH_BYTES + ICRC_BYTES
"""Length in bytes of the UDP payload of an ACK or NAK."""
PRESENCE_BYTES: Final = BTH_BYTES + RETH_BYTES + ICRC_BYTES
"""Length in bytes of the UDP payload of presence, a packet without lanes: a WRITE ONLY of no bytes, RETH length 0."""
CONTENT: Final = 0x80
"""Bit of the BTH's flags (solicited event) by which a windowed contribution says that the acknowledgement of its result
is enough: who set it gets presence in the place of the lanes.  NICs' packets do not say so, whatever they set."""

PSN_BITS: Final = 24
PSN_MASK: Final = (1 << PSN_BITS) - 1
PKEY: Final = 0xFFFF
"""The default partition key, which NICs put in their packets."""
PKEY_WINDOWED: Final = 0x8001
"""Partition key (full member of partition 1) of our own windowed end points and of packets between switches.  The
lowest bits of the destination queue pair select the lane operation in these packets alone: under any other key the
queue pair is a NIC's, all 24 bits of it."""
FOLD_NETWORK: Final = "198.18.0.0/15"
"""Network of the fold addresses (RFC 2544, which no other network uses), under which NICs address what is to be folded:
switches forward no packet of a host to it."""
ECN_ECT0: Final = 0b10
ECN_CE: Final = 0b11


class Opcode(IntEnum):
    """BTH opcodes of the reliable connection service that NetFold uses (InfiniBand specification volume 1, section
    9.2.1)."""

    SEND_FIRST = 0x00
    SEND_MIDDLE = 0x01
    SEND_LAST = 0x02
    SEND_LAST_IMMEDIATE = 0x03
    SEND_ONLY = 0x04
    SEND_ONLY_IMMEDIATE = 0x05
    WRITE_FIRST = 0x06
    WRITE_MIDDLE = 0x07
    WRITE_LAST = 0x08
    WRITE_LAST_IMMEDIATE = 0x09
    WRITE_ONLY = 0x0A
    WRITE_ONLY_IMMEDIATE = 0x0B
    ACKNOWLEDGE = 0x11
    """ACKs and NAKs, those of folds (``NAK_SEQUENCE_ERROR``) included."""

    @property
    def has_reth(self) -> bool:
        """True if packets of this opcode carry the RDMA extended transport header; FIRST and ONLY of a WRITE do."""
        return self in (Opcode.WRITE_FIRST, Opcode.WRITE_ONLY, Opcode.WRITE_ONLY_IMMEDIATE)

    @property
    def has_immediate(self) -> bool:
        """True if packets of this opcode carry four bytes for the receiver's completion, after the other headers."""
        return self in (Opcode.SEND_LAST_IMMEDIATE, Opcode.SEND_ONLY_IMMEDIATE, Opcode.WRITE_LAST_IMMEDIATE,
                        Opcode.WRITE_ONLY_IMMEDIATE)


class LaneOperation(IntEnum):
    """How a switch combines the lanes of packets for the same slot: OP_* of p4src/sizes.p4.

    The lowest bits of the destination queue pair select it, so that one stream, its slots and its table entries serve
    all operations.
    """

    SUM32 = 0
    """Sum of 32-bit lanes that wraps around, as SUM16 and SUM8 do in theirs."""
    MAX32 = 1
    """Maximum of signed 32-bit lanes."""
    SUM16 = 2
    SUM8 = 3
    SAT32 = 4
    """Saturating sum of signed 32-bit lanes; a lane that has reached -2**31 or 2**31 - 1 stays there."""


OPERATION_BITS: Final = 3
"""Number of lowest bits of a destination queue pair that select the lane operation; the others are the connection."""
QUEUE_PAIRS: Final = 1 << OPERATION_BITS
"""Queue pair numbers of one connection, one for each lane operation."""


BTH: Final = struct.Struct("!BBHII")
"""Layout of the base transport header: opcode, flags, partition key, FECN/BECN byte and destination queue pair,
acknowledge request and PSN."""
RETH: Final = struct.Struct("!QII")
"""Layout of the RDMA extended transport header: address, remote key, length."""
AETH: Final = struct.Struct("!I")
"""Layout of the ACK extended transport header: syndrome (8 bits) and message sequence number (24), where NAKs of folds
have the first PSN that is not missing."""
ACKNOWLEDGED: Final = 0x1F
"""AETH syndrome of an ACK that says nothing about credits (InfiniBand specification volume 1, section 9.7.5.1).
0x00..0x1f acknowledge, 0x20..0x3f are RNR NAKs with the code of a delay, 0x60..0x7f other NAKs."""
RECEIVER_NOT_READY: Final = 0x20 | 14
"""AETH syndrome of an RNR NAK "try again in 1.28 ms" (code 14 of the specification's table 45)."""
NAK_SEQUENCE_ERROR: Final = 0x60
"""AETH syndrome of a NAK "PSN sequence error": the sender of the NAK lacks the PSN of its BTH."""


ORDER_BITS: Final = 13
"""Bits of a windowed packet's order (`order_of`), in bits of the BTH that InfiniBand reserves: the lower 7 in the byte
of the acknowledge request, the others in the FECN/BECN byte."""
ORDER_UNSAID: Final = -(1 << (ORDER_BITS - 1))
"""The order that says nothing: the packet before is too far away."""


def data_packet_bytes(opcode: Opcode, path_mtu: int = PATH_MTU) -> int:
    """Length in bytes of a data packet's UDP payload."""
    headers = BTH_BYTES + (RETH_BYTES if opcode.has_reth else 0) + (IMMEDIATE_BYTES if opcode.has_immediate else 0)
    return headers + path_mtu + ICRC_BYTES


def ip_packet_bytes(opcode: Opcode, path_mtu: int = PATH_MTU) -> int:
    """Length in bytes of a data packet from its IPv4 header on: what a link's MTU must allow."""
    return IPV4_BYTES + UDP_BYTES + data_packet_bytes(opcode, path_mtu)


def mtu_remedy(path_mtu: int) -> str:
    """Advice on a link whose MTU is too small for packets of a path MTU."""
    mtu = LINK_MTUS.get(path_mtu) or ip_packet_bytes(Opcode.WRITE_FIRST, path_mtu)
    smaller = f", or path_mtu = {PATH_MTU} in the fabric's file" if path_mtu > PATH_MTU else ""
    return f"`ip link set dev ... mtu {mtu}`{smaller}"


def icrc(ip_packet: bytes) -> bytes:
    """Invariant CRC of an IPv4 RoCEv2 packet.

    ``ip_packet`` runs from the IPv4 header to the last payload byte, without the ICRC (InfiniBand annex A17.3.3).
    Returns the 4 bytes as they stand on the wire.
    """
    masked = bytearray(ip_packet)
    masked[1] = 0xFF  # TOS
    masked[8] = 0xFF  # TTL
    masked[10:12] = b"\xff\xff"  # IPv4 checksum
    udp = (ip_packet[0] & 0x0F) * 4
    masked[udp + 6 : udp + 8] = b"\xff\xff"  # UDP checksum
    masked[udp + 8 + 4] = 0xFF  # FECN, BECN, reserved
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + masked))


def is_udp_port(port: int) -> bool:
    """True if RoCEv2 may arrive at this UDP port: ``UDP_PORT``, or one of ``UDP_PORTS``."""
    return port == UDP_PORT or port in UDP_PORTS


def sealed(
    payload: bytes, source: str, source_port: int, destination: str, identification: int, port: int = UDP_PORT
) -> bytes:
    """The UDP payload, BTH to ICRC, with the ICRC that is right behind the IPv4 header that a switch or kernel writes:
    no options, DF.

    payload         whose last four bytes are any
    source          IPv4 address, as text; so is ``destination``
    identification  the IPv4 ID: of what a switch makes, the low 16 bits of the PSN
    port            UDP destination port
    """
    length = UDP_BYTES + len(payload)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, IPV4_BYTES + length, identification, 0x4000, 0, 17, 0)
    udp = struct.pack("!HHHH", source_port, port, length, 0)
    body = payload[:-ICRC_BYTES]
    return body + icrc(ip + socket.inet_aton(source) + socket.inet_aton(destination) + udp + body)


def icrc_change(src: int, dst: int, source_port: int, port: int, queue_pair: int, rest: int) -> int:
    """The change of a packet's ICRC by its addresses, UDP ports and destination queue pair: the number to be added
    (exclusive or) to the ICRC of the packet with zeros there.  A CRC is linear, so the rest of the packet does not
    matter.

    source_port, port  UDP source and destination port
    rest               bytes behind the BTH up to the ICRC
    Returns the ICRC's four bytes as a big-endian number, as P4 sees them.
    """
    zero = bytes(8 + IPV4_BYTES + UDP_BYTES + BTH_BYTES + rest)
    changed = bytearray(zero)
    struct.pack_into("!II", changed, 8 + 12, src, dst)
    struct.pack_into("!HH", changed, 8 + IPV4_BYTES, source_port, port)
    struct.pack_into("!I", changed, 8 + IPV4_BYTES + UDP_BYTES + 4, queue_pair)
    return int.from_bytes(struct.pack("<I", zlib.crc32(changed) ^ zlib.crc32(zero)), "big")


RESULT_TTL: Final = 255
"""TTL of results as switches write it: RESULT_TTL of p4src/sizes.p4.  What was routed has less, whatever its sender
gave it, and so is no result (RFC 5082)."""
CONTRIBUTION_TTL: Final = 64
"""TTL of contributions as they leave (RFC 1700's default): that one which was routed, without being folded, is none of
a result's."""


def psn_age(psn: int, other: int) -> int:
    """PSN ``psn`` minus ``other`` in serial number arithmetic: -2**23 ..  2**23 - 1."""
    distance = (psn - other) & PSN_MASK
    return distance - (1 << PSN_BITS) if distance >> (PSN_BITS - 1) else distance


def order_of(psn: int, previous: int) -> int:
    """The order field of a windowed packet, about the packet that left before it to the same neighbour: the distance
    from that packet's PSN to the PSN below its own. 0 for a packet that follows the one below it, ORDER_UNSAID for one
    too far away."""
    order = psn_age(psn - 1, previous)
    return order if abs(order) < -ORDER_UNSAID else ORDER_UNSAID


def order_bytes(order: int) -> tuple[int, int]:
    """The bits of an order field in the FECN/BECN byte and in the byte of the acknowledge request."""
    return order >> 7 & 0x3F, order & 0x7F


def order_in(fecn_becn: int, ack_request: int) -> int:
    """The order that these bytes of a windowed packet's BTH say."""
    order = (fecn_becn & 0x3F) << 7 | ack_request & 0x7F
    return order - (1 << ORDER_BITS) if order >> ORDER_BITS - 1 else order
