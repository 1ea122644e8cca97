# SPDX-License-Identifier: Apache-2.0
"""Traffic for a switch under test, which traffic.c sends and counts: single packets or UDP super-packets."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cbuild import cc
from netfold.bench.harness.veth import VethHost
from netfold.wire import roce

WINDOW = 64
"""Single packets in flight."""
SUPERS = 8
"""Super-packets of each sender in flight."""


class CHost(ctypes.Structure):
    """`struct host` of traffic.c."""

    _fields_ = (
        ("fd", ctypes.c_int), ("sender", ctypes.c_int), ("sends", ctypes.c_uint32), ("packet", ctypes.c_char_p),
        ("bytes", ctypes.c_uint32), ("segments", ctypes.c_uint32), ("psn_at", ctypes.c_uint32),
        ("psn", ctypes.c_uint32),
        ("icrc", ctypes.c_uint32 * 64), ("psn_part", ctypes.c_uint32 * 256 * 3), ("to", ctypes.c_uint8 * 16),
    )


class TrafficOutcome(ctypes.Structure):
    """`struct outcome` of traffic.c."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("sent", "received", "lost", "nanoseconds"))


@dataclass
class TrafficFlow:
    """The packets of one host: an IPv4/UDP packet and, if it is RoCE, its first PSN."""

    to: str
    source_port: int
    port: int
    payload: bytes
    psn: int | None = None

    def packet(self, source: str, identification: int = 0) -> bytes:
        """The bytes of the packet from the IPv4 header on."""
        udp = struct.pack("!HHHH", self.source_port, self.port, 8 + len(self.payload), 0)
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, roce.ECN_ECT0, 28 + len(self.payload), identification, 0x4000, 64, 17,
                         0, socket.inet_aton(source), socket.inet_aton(self.to))
        total = sum(struct.unpack("!10H", ip))
        total = (total & 0xFFFF) + (total >> 16)
        total = (total & 0xFFFF) + (total >> 16)
        return ip[:10] + struct.pack("!H", ~total & 0xFFFF) + ip[12:] + udp + self.payload

    def icrc(self, source: str, psn: int, identification: int = 0) -> int:
        """The ICRC of the packet with this PSN and IPv4 identification; its four bytes are read little endian."""
        packet = bytearray(self.packet(source, identification))
        packet[37:40] = psn.to_bytes(3, "big")
        return int.from_bytes(roce.icrc(bytes(packet[:-4])), "little")


class TrafficLoad:
    """The sockets of hosts that send flows through a switch.

    segments  packets in a super-packet; 1: single packets over packet sockets
    gateway   MAC address of the switch
    """

    def __init__(
        self, hosts: Sequence[VethHost], flows: Sequence[TrafficFlow | None], segments: int, gateway: str
    ) -> None:
        source = Path(__file__).with_name("traffic.c")
        self._library = ctypes.CDLL(str(cc.build([source], kind="shared", name="traffic")))
        self._sockets = []
        self._hosts = (CHost * len(hosts))()
        size = next(len(flow.payload) for flow in flows if flow)
        senders = sum(flow is not None for flow in flows)
        self.window = WINDOW if segments == 1 else SUPERS * segments * senders
        for host, flow, c in zip(hosts, flows, self._hosts, strict=True):
            header = b""
            if segments == 1:
                sock = host.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
                sock.setsockopt(263, 23, 1)  # PACKET_IGNORE_OUTGOING
                sock.bind(("eth0", 0x0800))
                if flow:
                    macs = bytes.fromhex((gateway + host.mac).replace(":", ""))
                    header = macs + b"\x08\x00" + flow.packet(host.address)[:28]
            else:
                # results come to the port that contributions go to
                sock = self._udp_socket(host, roce.UDP_PORT, size)
                if flow:
                    address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", flow.port)
                    c.to[:] = list(address + socket.inet_aton(flow.to) + bytes(8))
            sender = sock
            if segments > 1 and flow and flow.source_port != roce.UDP_PORT:
                sender = self._udp_socket(host, flow.source_port, size)
            for one in {sock, sender}:
                one.setblocking(False)
                self._sockets.append(one)
            c.fd, c.sender, c.segments = sock.fileno(), sender.fileno(), segments
            c.bytes = size + (42 if segments == 1 else 0)
            if flow:
                c.sends, c.packet = 1, header + flow.payload
                if flow.psn is not None:
                    c.psn, c.psn_at = flow.psn, len(header) + 9
                    zero = flow.icrc(host.address, 0)
                    c.icrc[:] = [flow.icrc(host.address, 0, i) for i in range(64)]
                    for k in range(3):
                        c.psn_part[k][:] = [flow.icrc(host.address, v << 8 * k) ^ zero for v in range(256)]

    @staticmethod
    def _udp_socket(host: VethHost, port: int, size: int) -> socket.socket:
        """A socket of a host that sends and takes super-packets of segments of so many bytes."""
        sock = host.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # on an unconnected socket that may not fragment, IPv4 IDs are 0, 1, 2... in every super-packet
        sock.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, roce.ECN_ECT0)
        sock.setsockopt(17, 103, size)  # UDP_SEGMENT
        sock.setsockopt(17, 104, 1)  # UDP_GRO
        sock.bind((host.address, port))
        return sock

    def run(self, seconds: float) -> TrafficOutcome:
        """Send for so many seconds and return what was counted.  Raises RuntimeError where sending fails."""
        out = TrafficOutcome()
        code = self._library.traffic(self._hosts, len(self._hosts), self.window, ctypes.c_uint64(int(seconds * 1e9)),
                                     ctypes.byref(out))
        if code:
            raise RuntimeError(f"the traffic generator failed: {os.strerror(code)} (sent {out.sent}, received "
                               f"{out.received}, lost {out.lost})")
        return out

    def psns(self) -> list[int]:
        """The next PSN of each host."""
        return [c.psn for c in self._hosts]

    def close(self) -> None:
        """Close the sockets."""
        for sock in self._sockets:
            sock.close()
