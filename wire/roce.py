# SPDX-License-Identifier: Apache-2.0
"""RoCEv2 as NetFold sends it: sizes, opcodes, and a plain (slow, obviously right) ICRC.

Ethernet / IPv4 / UDP 4791 / BTH / [RETH on FIRST and ONLY] / payload / ICRC.  The same numbers stand in
p4src/sizes.p4 and host/native/roce.h; tests/wire/test_formats.py holds the three against each other.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import Final

UDP_PORT: Final = 4791
PATH_PORT: Final = 0xF000
"""UDP source ports from here up name paths (controller/paths/steering.py); the kernel chooses others by itself."""
PATH_MTUS: Final = (1024, 4096)
"""Payload bytes of every data packet of a fabric."""
PATH_MTU: Final = PATH_MTUS[0]
"""Where nothing else is asked for."""
LANE_BYTES: Final = 4
LANES: Final = PATH_MTU // LANE_BYTES
"""32-bit lanes in a packet, big endian."""
BLOCK: Final = 256
"""Float elements that share one scale: one lane of the agreement stream each."""

ETHERNET_BYTES: Final = 14
IPV4_BYTES: Final = 20
UDP_BYTES: Final = 8
BTH_BYTES: Final = 12
RETH_BYTES: Final = 16
ICRC_BYTES: Final = 4

PSN_BITS: Final = 24
PSN_MASK: Final = (1 << PSN_BITS) - 1
PKEY: Final = 0xFFFF
ECN_ECT0: Final = 0b10
ECN_CE: Final = 0b11


class Opcode(IntEnum):
    """BTH opcodes of the reliable connection service that NetFold uses."""

    WRITE_FIRST = 0x06
    WRITE_MIDDLE = 0x07
    WRITE_LAST = 0x08
    WRITE_ONLY = 0x0A
    ACKNOWLEDGE = 0x11

    @property
    def has_reth(self) -> bool:
        """FIRST and ONLY carry the RDMA extended header."""
        return self in (Opcode.WRITE_FIRST, Opcode.WRITE_ONLY)


class LaneOperation(IntEnum):
    """What a switch does with the lanes of packets that meet: OP_* of p4src/sizes.p4.

    The lowest bits of the destination queue pair say it, so that one stream, its slots and its table entries serve all.
    """

    SUM32 = 0
    """Wraps, as SUM16 and SUM8 do."""
    MAX32 = 1
    """Signed."""
    SUM16 = 2
    SUM8 = 3
    SAT32 = 4
    """Signed; a lane that once came to -2**31 or 2**31 - 1 stays there."""


OPERATION_BITS: Final = 3
"""Lowest bits of a destination queue pair that are the operation; the others are the connection."""
QUEUE_PAIRS: Final = 1 << OPERATION_BITS
"""Of a connection."""


BTH: Final = struct.Struct("!BBHII")
"""opcode, flags, pkey, FECN/BECN byte and destination QP, ack request and PSN."""
RETH: Final = struct.Struct("!QII")
"""address, rkey, length."""


def data_packet_bytes(opcode: Opcode, path_mtu: int = PATH_MTU) -> int:
    """Length in bytes of a data packet's UDP payload."""
    return BTH_BYTES + (RETH_BYTES if opcode.has_reth else 0) + path_mtu + ICRC_BYTES


def ip_packet_bytes(opcode: Opcode, path_mtu: int = PATH_MTU) -> int:
    """Length in bytes of a data packet from its IPv4 header on: what a link's MTU must allow."""
    return IPV4_BYTES + UDP_BYTES + data_packet_bytes(opcode, path_mtu)


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


RESULT_TTL: Final = 64
"""Of results, as switches write them, and of contributions as they leave: one that comes with less was routed to us
unfolded."""


def psn_age(psn: int, other: int) -> int:
    """How far ``psn`` is ahead of ``other`` in serial arithmetic: -2**23 .. 2**23 - 1."""
    distance = (psn - other) & PSN_MASK
    return distance - (1 << PSN_BITS) if distance >> (PSN_BITS - 1) else distance
