# SPDX-License-Identifier: Apache-2.0
"""RoCEv2 packets of reliable connections as a NIC in software makes and reads them."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Literal, NamedTuple

from netfold.wire import roce
from switch_support.checksum import checksum

ETHERTYPE: Final = struct.pack("!H", 0x0800)
DEFAULT_PKEY: Final = 0xFFFF
ACK: Final = 0x1F
"""AETH syndrome of an ACK without credits (AETH_ACK_UNLIMITED)."""
RNR: Final = 0x20
SEQUENCE: Final = 0x60
INVALID: Final = 0x61
ACCESS: Final = 0x62
ACKNOWLEDGE: Final = 0x11
CNP: Final = 0x81


class Rc(IntEnum):
    """BTH opcodes of SEND and WRITE on reliable connections (InfiniBand specification volume 1, table 38)."""

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

    @property
    def is_write(self) -> bool:
        """True if it is of an RDMA WRITE, else of a SEND."""
        return self >= Rc.WRITE_FIRST

    @property
    def begins(self) -> bool:
        """True if it is the first packet of a message."""
        return self in (Rc.SEND_FIRST, Rc.SEND_ONLY, Rc.SEND_ONLY_IMMEDIATE, Rc.WRITE_FIRST, Rc.WRITE_ONLY,
                        Rc.WRITE_ONLY_IMMEDIATE)

    @property
    def ends(self) -> bool:
        """True if it is the last packet of a message."""
        return self not in (Rc.SEND_FIRST, Rc.SEND_MIDDLE, Rc.WRITE_FIRST, Rc.WRITE_MIDDLE)

    @property
    def has_reth(self) -> bool:
        """True if an RDMA extended transport header follows the BTH."""
        return self.is_write and self.begins

    @property
    def has_immediate(self) -> bool:
        """True if four bytes of immediate data stand before the payload."""
        return self in (Rc.SEND_LAST_IMMEDIATE, Rc.SEND_ONLY_IMMEDIATE, Rc.WRITE_LAST_IMMEDIATE,
                        Rc.WRITE_ONLY_IMMEDIATE)


def opcode_of(verb: Literal["send", "write"], *, first: bool, last: bool, immediate: bool) -> Rc:
    """The opcode of a message's packet; ``immediate`` counts on the last one."""
    write = verb == "write"
    if first and last:
        plain = Rc.WRITE_ONLY if write else Rc.SEND_ONLY
    elif last:
        plain = Rc.WRITE_LAST if write else Rc.SEND_LAST
    else:
        plain = (Rc.WRITE_FIRST if write else Rc.SEND_FIRST) if first else Rc.WRITE_MIDDLE if write else Rc.SEND_MIDDLE
    return Rc(plain + (last and immediate))


class Reth(NamedTuple):
    """The RDMA extended transport header."""

    address: int
    rkey: int
    length: int


@dataclass(frozen=True)
class Packet:
    """A RoCEv2 packet over IPv4 and UDP, as it stands on the wire, its ICRC aside."""

    src: str
    dst: str
    opcode: int
    queue_pair: int
    psn: int
    payload: bytes = b""
    """With its padding."""
    pkey: int = DEFAULT_PKEY
    ack_req: bool = False
    pad: int = 0
    solicited: bool = False
    """Of a windowed contribution: the acknowledgement of its result is enough (``roce.CONTENT``)."""
    reth: Reth | None = None
    immediate: int | None = None
    syndrome: int | None = None
    """Of an acknowledgement's AETH, whose other field is ``msn``."""
    msn: int = 0
    source_port: int = 0xC000
    tos: int = 0
    ttl: int = 64
    ip_id: int = 0
    becn: int = 0
    """The byte before the destination queue pair: FECN, BECN, and bits that are reserved."""
    order: int = field(default=0, compare=False)
    """Of a windowed packet: what it says, in reserved bits, of the one that left before it (``roce.order_of``)."""

    def inner(self) -> bytes:
        """The UDP payload without the ICRC."""
        high, low = roce.order_bytes(self.order)
        data = roce.BTH.pack(self.opcode, self.solicited << 7 | self.pad << 4, self.pkey,
                             (self.becn | high) << 24 | self.queue_pair,
                             self.ack_req << 31 | low << 24 | self.psn)
        if self.reth is not None:
            data += roce.RETH.pack(*self.reth)
        if self.syndrome is not None:
            data += struct.pack("!I", self.syndrome << 24 | self.msn)
        if self.immediate is not None:
            data += struct.pack("!I", self.immediate)
        return data + self.payload

    def frame(self, source_mac: bytes = b"\x02\0\0\0\0\x02", destination_mac: bytes = b"\x02\0\0\0\0\x01") -> bytes:
        """The Ethernet frame, with a right ICRC and IPv4 checksum, and no UDP checksum."""
        inner = self.inner()
        udp = struct.pack("!HHHH", self.source_port, roce.UDP_PORT, roce.UDP_BYTES + len(inner) + roce.ICRC_BYTES, 0)
        length = roce.IPV4_BYTES + len(udp) + len(inner) + roce.ICRC_BYTES
        ip = struct.pack("!BBHHHBBH", 0x45, self.tos, length, self.ip_id, 0x4000, self.ttl, 17, 0)
        ip += socket.inet_aton(self.src) + socket.inet_aton(self.dst)
        ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:] + udp + inner
        return destination_mac + source_mac + ETHERTYPE + ip + roce.icrc(ip)

    @classmethod
    def parse(cls, frame: bytes) -> Packet | None:
        """The packet of a frame, or None where it is no RoCEv2 packet of a kind that we know, or its lengths are wrong.
        The ICRC is not checked (``icrc_holds``)."""
        ip = frame[14:]
        if frame[12:14] != ETHERTYPE or len(ip) < 44 or ip[0] != 0x45 or ip[9] != 17:
            return None
        length = int.from_bytes(ip[2:4], "big")
        source_port, port, udp_length = struct.unpack_from("!HHH", ip, 20)
        if port != roce.UDP_PORT or length != len(ip) or udp_length != length - roce.IPV4_BYTES:
            return None
        opcode, flags, pkey, qp, psn = roce.BTH.unpack_from(ip, 28)
        at, end = 40, length - roce.ICRC_BYTES
        reth, immediate, syndrome, msn = None, None, None, 0
        known = opcode <= max(Rc)
        if known and Rc(opcode).has_reth:
            reth, at = Reth(*roce.RETH.unpack_from(ip, at)) if end >= at + 16 else None, at + 16
        if opcode == ACKNOWLEDGE or (known and Rc(opcode).has_immediate):
            word, at = int.from_bytes(ip[at : at + 4], "big"), at + 4
            if known:
                immediate = word
            else:
                syndrome, msn = word >> 24, word & roce.PSN_MASK
        if at > end:
            return None
        becn, order = qp >> 24, 0
        if pkey == roce.PKEY_WINDOWED and known:
            becn, order = becn & 0xC0, roce.order_in(becn, psn >> 24)
        return cls(socket.inet_ntoa(ip[12:16]), socket.inet_ntoa(ip[16:20]), opcode, qp & 0xFFFFFF,
                   psn & roce.PSN_MASK, ip[at:end], pkey, bool(psn >> 31), flags >> 4 & 3, bool(flags >> 7), reth,
                   immediate, syndrome, msn, source_port, ip[1], ip[8], int.from_bytes(ip[4:6], "big"), becn, order)


def icrc_holds(frame: bytes) -> bool:
    """True if the last four bytes of a frame are the ICRC of the packet before them."""
    return roce.icrc(frame[14:-4]) == frame[-4:]
