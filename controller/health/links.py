# SPDX-License-Identifier: Apache-2.0
"""Which links between switches are up: a small packet goes over every one, both ways, and must come out at the far end.

    controller --packet-out--> switch --RoCEv2 to 224.0.0.2--> neighbour --route to the CPU port--> packet-in

It works on any P4Runtime target, notices what no port status tells (a cable in the wrong port, a far end that hangs),
and is itself plain RoCEv2: an RDMA WRITE to queue pair 1, addressed to all routers of the link.  A direction is down
when so many probes in a row were lost that it cannot be the losses that the fabric says the link has.

BMv2 has one thread for what arrives on all its ports, and libpcap keeps that thread at a port which was down until a
frame arrives there: until then the switch is deaf, for probes as well.  A neighbour's probe wakes it at a port between
switches; at a host's port nothing may come for long, least of all from ranks that wait for trees.  So hosts are asked
for a sign of life, by ARP, at switches whose links are in doubt.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterator, Mapping
from ipaddress import IPv4Address
from typing import Final, NamedTuple

from netfold.controller.switch import tables
from netfold.fabric.graph import End, Fabric, Host
from netfold.wire import roce

CHANCE: Final = 1e-9
"""How likely a lossy link may lose so many in a row by chance."""

_ROUTERS_MAC: Final = bytes.fromhex("01005e000002")
_QP: Final = 1
"""InfiniBand's general services: no job gets it."""
_SOURCE_PORT: Final = 0xC001
_TTL: Final = 255
_ETHERTYPE_IPV4: Final = 0x0800
_UDP: Final = 17
_ETHERTYPE_ARP: Final = 0x0806
_ARP: Final = struct.Struct("!HHBBH6s4s6s4s")
_LEAST_FRAME: Final = 60
"""Bytes of an Ethernet frame without its check sequence."""
_NOTE: Final = struct.Struct("!8sII")
"""magic, number of the link, 1 where it goes from b to a."""
_MAGIC: Final = b"netfold?"
_BEFORE_NOTE: Final = roce.ETHERNET_BYTES + roce.IPV4_BYTES + roce.UDP_BYTES + roce.BTH_BYTES + roce.RETH_BYTES


class Probe(NamedTuple):
    """A frame that goes out."""

    switch: str
    port: int
    frame: bytes


class Links:
    """The links between switches of one fabric.  All are taken for up until they are not."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        switches = {switch.name for switch in fabric.switches}
        self._ways: dict[tuple[int, int], tuple[End, End]] = {}
        self._patience: dict[int, int] = {}
        for number, link in enumerate(fabric.links):
            a, b = link.ends
            if {a.node, b.node} <= switches:
                self._ways[number, 0], self._ways[number, 1] = (a, b), (b, a)
                self._patience[number] = _patience(link.loss, fabric.misses)
        self._hosts = {
            end: fabric.host(host.node)
            for link in fabric.links for end, host in (link.ends, link.ends[::-1])
            if end.node in switches and host.node not in switches
        }
        self._unheard = dict.fromkeys(self._ways, 0)
        """Probes sent since the last one that arrived."""
        self._arrived = dict.fromkeys(self._ways, 0)
        self.seen: dict[End, End] = {}
        """Where what leaves an end has come out, whatever the file says."""
        self._sequence = 0

    def down(self) -> frozenset[int]:
        """Numbers of the links (in the fabric's order) that have one direction down."""
        return frozenset(n for (n, way), missed in self._unheard.items() if missed >= self._patience[n])

    @property
    def probed(self) -> frozenset[int]:
        """Numbers of the links that get probes."""
        return frozenset(self._patience)

    def arrived(self) -> dict[tuple[int, int], int]:
        """Probes that have arrived so far, by link and direction."""
        return dict(self._arrived)

    def arrived_since(self, before: Mapping[tuple[int, int], int], number: int) -> bool:
        """Whether a link's probes have arrived both ways since then."""
        return all(self._arrived[number, way] > before[number, way] for way in (0, 1))

    def forget(self, numbers: Collection[int]) -> None:
        """Probes that these links have lost do not count."""
        for number in numbers:
            self._unheard[number, 0] = self._unheard[number, 1] = 0

    def unseen(self, up: Collection[str]) -> set[int]:
        """Numbers of the links with an end from which nothing has come out anywhere (`seen`), if both are in ``up``."""
        return {number for (number, _), (sender, receiver) in self._ways.items()
                if sender not in self.seen and sender.node in up and receiver.node in up}

    def round(
        self, up: Collection[str], only: Collection[int] | None = None, *, judged: bool = True
    ) -> Iterator[Probe]:
        """One probe for every direction (of the links in ``only``), to be sent now; directions with an end not in
        ``up`` are not judged, nor is any if it is not ``judged``: then losing it means nothing."""
        self._sequence = self._sequence + 1 & roce.PSN_MASK
        for (number, way), (sender, receiver) in self._ways.items():
            if only is not None and number not in only:
                continue
            if sender.node in up and receiver.node in up:
                self._unheard[number, way] += judged
                yield Probe(sender.node, sender.port, self._frame(sender, number, way))
            else:
                self._unheard[number, way] = 0

    def knocks(self, up: Collection[str], numbers: Collection[int]) -> Iterator[Probe]:
        """A question to every host at the switches of these links that makes the host's kernel send a frame."""
        doubtful = {sender.node for (number, _), (sender, _) in self._ways.items() if number in numbers}
        for end, host in self._hosts.items():
            if end.node in doubtful and end.node in up:
                yield Probe(end.node, end.port, self._question(end, host))

    def heard(self, switch: str, port: int, frame: bytes) -> str:
        """A packet-in.  Returns what is wrong with it where it is a probe on a wrong cable, else nothing."""
        if len(frame) < _BEFORE_NOTE + _NOTE.size:
            return ""
        magic, number, way = _NOTE.unpack_from(frame, _BEFORE_NOTE)
        if magic != _MAGIC or (number, way) not in self._ways:
            return ""
        sender, receiver = self._ways[number, way]
        self.seen[sender] = End(switch, port)
        if receiver != End(switch, port):
            return (f"cables: what leaves {sender} arrives at {switch}:{port}, the fabric's file says {receiver}; "
                    "correct one of them")
        self._unheard[number, way] = 0
        self._arrived[number, way] += 1
        return ""

    def _question(self, sender: End, host: Host) -> bytes:
        """An ARP probe (RFC 5227): its sender has no address yet, so that the host keeps nothing of it."""
        mine, nobody = _mac(self._fabric.switch(sender.node).mac), bytes(6)
        arp = _ARP.pack(1, _ETHERTYPE_IPV4, 6, 4, 1, mine, bytes(4), nobody, IPv4Address(host.address).packed)
        return (_mac(host.mac) + mine + struct.pack("!H", _ETHERTYPE_ARP) + arp).ljust(_LEAST_FRAME, b"\0")

    def _frame(self, sender: End, number: int, way: int) -> bytes:
        switch = self._fabric.switch(sender.node)
        source, routers = IPv4Address(switch.address).packed, IPv4Address(tables.ROUTERS).packed
        payload = (
            roce.BTH.pack(roce.Opcode.WRITE_ONLY, 0, roce.PKEY, _QP, self._sequence)
            + roce.RETH.pack(0, 0, _NOTE.size)
            + _NOTE.pack(_MAGIC, number, way)
        )
        length = roce.UDP_BYTES + len(payload) + roce.ICRC_BYTES
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, roce.IPV4_BYTES + length, 0, 0x4000, _TTL, _UDP, 0, source, routers)
        ip = ip[:10] + _checksum(ip) + ip[12:]
        udp = struct.pack("!HHHH", _SOURCE_PORT, roce.UDP_PORT, length, 0)
        icrc = roce.icrc(ip + udp + payload)
        pseudo = source + routers + struct.pack("!BBH", 0, _UDP, length)
        # a UDP checksum of 0 means none: what comes out as 0 is sent as its other form (RFC 768)
        checksum = _checksum(pseudo + udp + payload + icrc)
        udp = udp[:6] + (checksum if any(checksum) else b"\xff\xff")
        ethernet = _ROUTERS_MAC + _mac(switch.mac) + struct.pack("!H", _ETHERTYPE_IPV4)
        return ethernet + ip + udp + payload + icrc


def _patience(loss: float, misses: int) -> int:
    if loss in (0.0, 1.0):  # what loses everything is down
        return misses
    return max(misses, math.ceil(math.log(CHANCE) / math.log(loss)))


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def _checksum(data: bytes) -> bytes:
    """The Internet checksum (RFC 1071), as it stands in the packet."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~total & 0xFFFF)
