# SPDX-License-Identifier: Apache-2.0
"""Which links between switches are up: a probe goes over each one, both ways, and must arrive at the far end.

    controller --packet-out--> switch --RoCEv2 to 224.0.0.2--> all neighbours, which note the port that it came in by
    controller --packet-out--> switch --the ports that it has noted--> packet-in

So a round costs each switch a frame for its neighbours, and a question for what it has heard (p4src/punt.p4).  Probes
of single links ask for an acknowledgement: the far end sends these to the controller, as all that are not as expected.

This works on any P4Runtime target, and finds what port status does not show (a cable in the wrong port, a far end that
hangs).  A probe is plain RoCEv2: an RDMA WRITE to queue pair 1, addressed to all routers of the link, as long as a full
data packet, since a link whose MTU is too small for those is of no use (RFC 8899 calls it packetization layer path MTU
discovery).  Its source address and UDP source port name the switch and the port that it leaves by.  A direction is down
when more probes in a row are lost than the loss rate that the fabric states for the link explains; short ones follow a
lost one, and where they alone arrive, the MTU is to blame.

BMv2 has one thread for what arrives on all its ports, and libpcap keeps that thread at a port which was down until a
frame arrives there: until then the switch is deaf, for probes as well.  A neighbour's probe wakes it at a port between
switches; at a host's port nothing may arrive for long, least of all from ranks that wait for trees.  So hosts at
switches whose links are in doubt get ARP requests, which their kernels answer.
"""

from __future__ import annotations

import math
import struct
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from ipaddress import IPv4Address
from itertools import cycle, islice
from typing import Final, NamedTuple

from netfold.controller.switch import tables
from netfold.fabric.graph import CPU_PORT, End, Fabric, Host
from netfold.wire import roce

CHANCE: Final = 1e-9
"""Probability that a lossy link is taken for a dead one."""

_ROUTERS_MAC: Final = bytes.fromhex("01005e000002")
_QP: Final = 1
"""Queue pair 1 is InfiniBand's general services interface: no job gets it."""
_TTL: Final = 255
_ETHERTYPE_IPV4: Final = 0x0800
_UDP: Final = 17
_ETHERTYPE_ARP: Final = 0x0806
_ARP: Final = struct.Struct("!HHBBH6s4s6s4s")
_LEAST_FRAME: Final = 60
"""Bytes of an Ethernet frame without its check sequence."""
_SHORT: Final = 16
"""Bytes of a short probe's payload."""
_SENDER: Final = struct.Struct("!4s4xH")
"""Source address and UDP source port, from _SENDER_OFFSET on."""
_SENDER_OFFSET: Final = roce.ETHERNET_BYTES + 12
_BTH_OFFSET: Final = roce.ETHERNET_BYTES + roce.IPV4_BYTES + roce.UDP_BYTES
_PAYLOAD_OFFSET: Final = _BTH_OFFSET + roce.BTH_BYTES + roce.RETH_BYTES
_ACK_REQ: Final = 1 << 31
"""The bit of the BTH's last four bytes that asks for an acknowledgement."""
DELAYS: Final = 8
"""Probes of each direction whose delays are remembered."""
_SENT_REMEMBERED: Final = 1024
"""Rounds of probes whose time of sending is remembered."""
SAMPLE: Final = 32
"""Links whose delays are measured in each regular round, in turns."""


Direction = tuple[int, int]
"""Number of a link, and the way over it: 0 from a to b, 1 from b to a."""


class Probe(NamedTuple):
    """A frame to send out of a switch's port."""

    switch: str
    port: int
    frame: bytes


class Links:
    """Probe state of the links between switches of one fabric; a link counts as up until its probes are lost."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        switches = {switch.name for switch in fabric.switches}
        self._directions: dict[Direction, tuple[End, End]] = {}
        self._allowed_misses: dict[int, int] = {}
        for number, link in enumerate(fabric.links):
            a, b = link.ends
            if {a.node, b.node} <= switches:
                self._directions[number, 0], self._directions[number, 1] = (a, b), (b, a)
                self._allowed_misses[number] = _allowed_misses(link.loss, fabric.misses)
        self._from = {sender: direction for direction, (sender, _) in self._directions.items()}
        """The direction by its sending end."""
        self._ports: dict[str, int] = {}
        """The ports with a link to another switch, by switch, a bit for each."""
        for end in self._from:
            self._ports[end.node] = self._ports.get(end.node, 0) | 1 << end.port
        self._switch_at = {IPv4Address(switch.address).packed: switch.name for switch in fabric.switches}
        self._hosts = {
            end: fabric.host(host.node)
            for link in fabric.links for end, host in (link.ends, link.ends[::-1])
            if end.node in switches and host.node not in switches
        }
        self._missed: dict[Direction, int] = {}
        """Probes sent since the last one that arrived, by direction, of those that miss any."""
        self._awaited: dict[str, int] = {}
        """The ports at which probes of the last regular round should arrive, by switch, a bit for each."""
        self._unanswered: Counter[str] = Counter()
        """How often in a row a switch has not told what it heard."""
        self._arrived = dict.fromkeys(self._directions, 0)
        self.seen: dict[End, End] = {}
        """The end at which probes from an end have arrived, whatever the fabric file says."""
        self._heard: set[str] = set()
        """Switches that have sent a probe back."""
        self._short: Counter[Direction] = Counter()
        """Short probes that have arrived while full ones are lost."""
        self._sequence = 0
        self._sent: dict[int, float] = {}
        """Sequence number -> time at which that round of probes was sent; the latest rounds only."""
        self._delays: dict[Direction, deque[float]] = {one: deque(maxlen=DELAYS) for one in self._directions}
        self._frames: dict[str, bytes] = {}
        """The probes to all neighbours that were made so far, by switch."""
        self._turns = cycle(sorted(self._allowed_misses))
        """The links whose delays are to be measured next."""

    def down(self) -> frozenset[int]:
        """Numbers of the links, in the fabric's order, with at least one direction down."""
        return frozenset(n for (n, direction), missed in self._missed.items() if missed >= self._allowed_misses[n])

    def why_down(self, number: int) -> str:
        """Why a link is down."""
        path_mtu = self._fabric.path_mtu
        full = roce.ip_packet_bytes(roce.Opcode.WRITE_ONLY, path_mtu)
        for direction in (0, 1):
            missed = self._missed.get((number, direction), 0)
            if missed >= self._allowed_misses[number] and self.passes_short_ones((number, direction)):
                sender, receiver = self._directions[number, direction]
                return (f"short probes from {sender} arrive at {receiver}, those of {full} bytes are lost: path_mtu = "
                        f"{path_mtu} needs an MTU of {full} or more at both ends: {roce.mtu_remedy(path_mtu)}")
        never = sorted({self._directions[number, way][1].node for way in (0, 1)} - self._heard)
        if never:
            return (f"its probes are lost; no probe over any link has ever come back from {' and '.join(never)}: look "
                    f"whether it runs with --cpu-port {CPU_PORT}")
        return "its probes are lost"

    def lost(self, numbers: Collection[int]) -> set[Direction]:
        """The directions of these links that are down by their missing probes."""
        return {(number, way) for number in numbers for way in (0, 1)
                if self._missed.get((number, way), 0) >= self._allowed_misses[number]}

    def passes_short_ones(self, direction: Direction) -> bool:
        """True if short probes arrive, while full ones are missing."""
        # a single one may have passed between losses, before the link was cut
        return 0 < self._missed.get(direction, 0) <= 2 * self._short[direction]

    def delay(self, direction: Direction) -> float | None:
        """The time in seconds that a probe takes, less what it waits on the way: the shortest one of the last DELAYS
        that arrived; None: none has so far."""
        return min(self._delays[direction], default=None)

    def ends(self, number: int, direction: int) -> tuple[End, End]:
        """Sender and receiver of the probes over a link, one way."""
        return self._directions[number, direction]

    def allowed_misses(self, number: int) -> int:
        """Probes that must be lost in a row for a link to be down."""
        return self._allowed_misses[number]

    def take_down(self, numbers: Collection[int]) -> None:
        """Count these links as down until their probes arrive."""
        for number in numbers:
            for direction in (0, 1):
                missed = self._missed.get((number, direction), 0)
                self._missed[number, direction] = max(missed, self._allowed_misses[number])

    @property
    def probed(self) -> frozenset[int]:
        """Numbers of the links that are probed: those between switches."""
        return frozenset(self._allowed_misses)

    def arrived(self) -> dict[Direction, int]:
        """Probes that have arrived so far, by link and direction."""
        return dict(self._arrived)

    def arrived_since(self, before: Mapping[Direction, int], number: int) -> bool:
        """True if probes of a link have arrived both ways since `arrived` returned ``before``."""
        return all(self._arrived[number, direction] > before[number, direction] for direction in (0, 1))

    def reset(self, numbers: Collection[int]) -> None:
        """Set the number of lost probes of these links to 0."""
        for number in numbers:
            for direction in (0, 1):
                self._forget((number, direction))

    def _forget(self, direction: Direction) -> None:
        """Nothing is lost that way: short probes that arrived before say nothing of why it may go down later."""
        self._missed.pop(direction, None)
        self._short.pop(direction, None)

    def missing(self) -> dict[End, bool]:
        """The ends at which a probe is missing of a link that counts as up, each with whether the next missing one
        takes it down."""
        down = self.down()
        return {self._directions[direction][1]: missed >= self._allowed_misses[direction[0]] - 1
                for direction, missed in self._missed.items() if direction[0] not in down}

    def about_to_be_lost(self) -> set[int]:
        """Links that are up, and down with the next probe that is missing."""
        down = self.down()
        return {number for (number, _), missed in self._missed.items()
                if number not in down and missed >= self._allowed_misses[number] - 1 > 0}

    def excuse(self, receiver: End) -> None:
        """Set the number of lost probes to 0 that should have arrived at this end of a link."""
        self._forget(self._into(receiver))

    def unseen(self, up: Collection[str]) -> set[int]:
        """Numbers of the links with an end whose probes have not arrived anywhere yet, both switches being ``up``."""
        return {number for (number, _), (sender, receiver) in self._directions.items()
                if sender not in self.seen and sender.node in up and receiver.node in up}

    # ---- probes of all links -------------------------------------------------------------------------------------

    def to_neighbours(self, up: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """One probe for each direction of all links: the frame that each of the switches that are ``up`` sends to all
        its neighbours.  Links with another end get none, and are not judged."""
        self._awaited = {name: ports for name, ports in self._ports.items() if name in up}
        if len(self._awaited) < len(self._ports):
            for direction, (sender, receiver) in self._directions.items():
                if sender.node not in up or receiver.node not in up:
                    self._forget(direction)
                    if receiver.node in up:
                        self._awaited[receiver.node] &= ~(1 << receiver.port)
        for direction in self._missed:
            self._missed[direction] += 1
        for name in self._awaited:
            if (frame := self._frames.get(name)) is None:
                # the switch adds its port, and makes the ICRC anew
                frame = self._frames[name] = self._frame(End(name, 0), 0, self._fabric.path_mtu)
            yield name, frame

    def hear(self, heard: Mapping[str, int]) -> None:
        """Compare what switches have heard since the last round with what was sent.

        heard  the ports at which probes have come in, by switch, a bit for each; without those that gave no answer in
               time.  Once, this tells nothing, as the next answer says it, too; twice, all is missing"""
        for direction in list(self._missed):
            receiver = self._directions[direction][1]
            if heard.get(receiver.node, 0) >> receiver.port & 1:
                self._forget(direction)
        for name, awaited in self._awaited.items():
            ports, missed = heard.get(name), 1
            if ports is not None:
                del self._unanswered[name]
                if ports:
                    self._heard.add(name)
            else:
                self._unanswered[name] += 1
                ports, missed = (awaited, 0) if self._unanswered[name] == 1 else (0, 2)
            for port in _bits(awaited & ~ports):
                self._missed.setdefault(self._into(End(name, port)), missed)
        self._awaited = {}

    def short_ones(self, up: Collection[str]) -> Iterator[Probe]:
        """A short probe for each direction of which one is missing."""
        for direction in list(self._missed):  # which changes while these are sent
            sender, receiver = self._directions[direction]
            if sender.node in up and receiver.node in up:
                yield Probe(sender.node, sender.port, self._frame(sender, _ACK_REQ, _SHORT))

    def sample(self) -> list[int]:
        """Numbers of some links, others each time, whose delays are to be measured."""
        return list(islice(self._turns, min(SAMPLE, len(self._allowed_misses))))

    # ---- probes of single links ----------------------------------------------------------------------------------

    def round(
        self, up: Collection[str], only: Collection[int] | None = None, *, counted: bool = True, short: bool = True,
        now: float = 0.0,
    ) -> Iterator[Probe]:
        """One probe for each direction of all links, or of those in ``only``, to be sent now, and a short one where
        the last one was lost.

        up       switches that are up; links with another end get no probes
        counted  whether the loss of these probes counts against their links
        short    whether short ones are sent as well
        now      seconds of the clock by which `receive` is told when they arrive"""
        sequence = self._sequence = self._sequence + 1 & roce.PSN_MASK  # another round may begin before this one ends
        self._sent[sequence] = now
        if len(self._sent) > _SENT_REMEMBERED:
            del self._sent[next(iter(self._sent))]
        numbers = self._allowed_misses if only is None else sorted(self._allowed_misses.keys() & set(only))
        for direction in ((number, way) for number in numbers for way in (0, 1)):
            sender, receiver = self._directions[direction]
            if sender.node in up and receiver.node in up:
                missed = self._missed.get(direction, 0)
                if missed and short:
                    yield Probe(sender.node, sender.port, self._frame(sender, _ACK_REQ | sequence, _SHORT))
                if counted:
                    self._missed[direction] = missed + 1
                yield Probe(sender.node, sender.port,
                            self._frame(sender, _ACK_REQ | sequence, self._fabric.path_mtu))
            else:
                self._forget(direction)

    def arp_probes(self, up: Collection[str], numbers: Collection[int]) -> Iterator[Probe]:
        """An ARP request to every host at the switches of these links, so that the host's kernel sends a frame."""
        doubtful = {end.node for number in numbers if number in self._allowed_misses for end in self.ends(number, 0)}
        for end, host in self._hosts.items():
            if end.node in doubtful and end.node in up:
                yield Probe(end.node, end.port, self._arp_frame(end, host))

    def receive(self, switch: str, port: int, frame: bytes, now: float = 0.0) -> str:
        """Process a packet-in that came at ``now``.  Returns a message if it is a probe that arrived at the wrong port,
        otherwise ''."""
        if len(frame) < _PAYLOAD_OFFSET + _SHORT:
            return ""
        address, source_port = _SENDER.unpack_from(frame, _SENDER_OFFSET)
        sender = End(self._switch_at.get(address, ""), source_port - tables.PROBE_PORT)
        if sender not in self._from:
            return ""
        direction = self._from[sender]
        receiver = self._directions[direction][1]
        self._heard.add(switch)
        self.seen[sender] = End(switch, port)
        if receiver != End(switch, port):
            return (f"cables: what leaves {sender} arrives at {switch}:{port}, the fabric's file says {receiver}; "
                    "correct one of them")
        if len(frame) < _PAYLOAD_OFFSET + self._fabric.path_mtu:
            self._short[direction] += direction in self._missed
        else:
            self._forget(direction)
            self._arrived[direction] += 1
            sequence = roce.BTH.unpack_from(frame, _BTH_OFFSET)[-1] & roce.PSN_MASK
            if (sent := self._sent.get(sequence)) is not None:
                self._delays[direction].append(now - sent)
        return ""

    def _into(self, receiver: End) -> Direction:
        """The direction that ends at this end."""
        number, way = self._from[receiver]
        return number, 1 - way

    def _arp_frame(self, sender: End, host: Host) -> bytes:
        """An ARP probe (RFC 5227): its sender address is 0, so that the host does not cache it."""
        mine, nobody = mac_bytes(self._fabric.switch(sender.node).mac), bytes(6)
        arp = _ARP.pack(1, _ETHERTYPE_IPV4, 6, 4, 1, mine, bytes(4), nobody, IPv4Address(host.address).packed)
        return (mac_bytes(host.mac) + mine + struct.pack("!H", _ETHERTYPE_ARP) + arp).ljust(_LEAST_FRAME, b"\0")

    def _frame(self, sender: End, psn: int, nbytes: int) -> bytes:
        """A probe that leaves by this end, with these last four bytes of the BTH and so many bytes of payload."""
        switch = self._fabric.switch(sender.node)
        source, routers = IPv4Address(switch.address).packed, IPv4Address(tables.ROUTERS).packed
        payload = (roce.BTH.pack(roce.Opcode.WRITE_ONLY, 0, roce.PKEY, _QP, psn) + roce.RETH.pack(0, 0, nbytes)
                   + bytes(nbytes))
        length = roce.UDP_BYTES + len(payload) + roce.ICRC_BYTES
        ip = with_checksum(struct.pack("!BBHHHBBH4s4s", 0x45, 0, roce.IPV4_BYTES + length, 0, 0x4000, _TTL, _UDP, 0,
                                       source, routers))
        # no UDP checksum: RoCEv2 has its ICRC
        udp = struct.pack("!HHHH", tables.PROBE_PORT + sender.port, roce.UDP_PORT, length, 0)
        ethernet = _ROUTERS_MAC + mac_bytes(switch.mac) + struct.pack("!H", _ETHERTYPE_IPV4)
        packet = ip + udp + payload
        return ethernet + packet + roce.icrc(packet)


def _bits(number: int) -> Iterator[int]:
    """The places of the bits that are set."""
    while number:
        yield (number & -number).bit_length() - 1
        number &= number - 1


def _allowed_misses(loss: float, misses: int) -> int:
    if loss in (0.0, 1.0):  # what loses everything is down
        return misses
    return max(misses, math.ceil(math.log(CHANCE) / math.log(loss)))


def mac_bytes(text: str) -> bytes:
    """A MAC address as it stands in a frame."""
    return bytes.fromhex(text.replace(":", ""))


def with_checksum(header: bytes) -> bytes:
    """An IPv4 header with its checksum (RFC 1071) in the place of zeros."""
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return header[:10] + struct.pack("!H", ~total & 0xFFFF) + header[12:]
