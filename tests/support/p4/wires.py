# SPDX-License-Identifier: Apache-2.0
"""The compiled program on every switch of a fabric, in one process, with a network between their ports and the
hosts'."""

from __future__ import annotations

import abc
import socket
import struct
from collections.abc import Iterable, Mapping
from functools import partial

from netfold.controller.switch.entities import Clone, Entity, Entry, Multicast
from netfold.fabric.folding import trees
from netfold.fabric.graph import CPU_PORT, End, Fabric
from netfold.host.native.library import Origin
from netfold.wire import roce
from softswitch.engine import entities, local
from support.models.slot_model import TerribleNetwork, ip_packet
from support.p4.program import library, mac, native
from switch_support.checksum import checksum


def write(switch: local.LocalEngine, entity: Entity) -> None:
    """Writes one of the controller's entries or groups into a switch."""
    if isinstance(entity, Multicast):
        switch.write_multicast("insert", entities.Multicast(entity.group, entity.replicas))
    elif isinstance(entity, Clone):
        switch.write_clone_session("insert", entities.CloneSession(entity.session, ((entity.port, 0),)))
    else:
        assert isinstance(entity, Entry)
        switch.insert(native(switch, entity))


def remove(switch: local.LocalEngine, entity: Entity) -> None:
    """Takes one of the controller's entries or groups from a switch.  Raises NotFound."""
    if isinstance(entity, Multicast):
        switch.write_multicast("delete", entities.Multicast(entity.group, entity.replicas))
    elif isinstance(entity, Entry):
        switch.delete(native(switch, entity))


def as_sent(
    mac_address: str, address: str, ip_id: int, payload: bytes, source_port: int, destination: str,
    port: int = roce.UDP_PORT,
) -> bytes:
    """A UDP datagram as a host's kernel sends it."""
    packet = bytearray(ip_packet(payload, ip_id, address, source_port, destination, port))
    packet[10:12] = struct.pack("!H", checksum(bytes(packet[:20])))
    return mac("02:00:00:00:00:01") + mac(mac_address) + b"\x08\x00" + bytes(packet)


def origin_of(frame: bytes) -> Origin:
    """Where a UDP datagram on the wire says that it comes from."""
    source, source_port = struct.unpack_from("!I4xH", frame, 26)
    return Origin(source, source_port, frame[22])


class Wires(abc.ABC):
    """Switches and the network between them; derived classes have the hosts.  Times are nanoseconds on the network's
    clock."""

    def __init__(self, fabric: Fabric, network: TerribleNetwork, *, bmv2: bool = False) -> None:
        self.fabric, self.network = fabric, network
        self.library = library(fabric.path_mtu, bmv2=bmv2, children=trees.children_of(fabric))
        self.hosts = list(fabric.hosts)
        self.engines = {s.name: local.LocalEngine.open(self.library, cpu_port=CPU_PORT) for s in fabric.switches}
        self.ends = {end: far for link in fabric.links for end, far in (link.ends, link.ends[::-1])}
        self.arrive = {end: partial(self.deliver, end) for end in self.ends}
        self.seen: list[tuple[str, bytes]] = []
        """(receiving node, frame) of every frame on every link."""

    def close(self) -> None:
        """Closes the engines."""
        for one in self.engines.values():
            one.close()

    def write(self, wanted: Mapping[str, Iterable[Entity]]) -> None:
        """Writes the controller's entries, by switch."""
        for switch, all_of_it in wanted.items():
            for entity in all_of_it:
                write(self.engines[switch], entity)

    def send(
        self, rank: int, ip_id: int, payload: bytes, source_port: int, destination: str, port: int = roce.UDP_PORT
    ) -> None:
        """Sends a datagram from a host."""
        host = self.hosts[rank]
        frame = as_sent(host.mac, host.address, ip_id, payload, source_port, destination, port)
        self.transmit(End(host.name, 0), frame)

    def udp_port(self, rank: int) -> int:
        """The UDP port at which a host receives."""
        return roce.UDP_PORT

    def transmit(self, end: End, data: bytes) -> None:
        """Sends a frame to the other end of a link."""
        self.network.send(data, self.arrive[self.ends[end]])

    @abc.abstractmethod
    def hear(self, rank: int, payload: bytes, origin: Origin, *, marked: bool) -> None:
        """Handles a datagram that is addressed to a host."""

    def deliver(self, end: End, data: bytes) -> None:
        """A frame arrives at the switch or the host of this end."""
        self.seen.append((end.node, data))
        if end.node in self.engines:
            for port, out in self.engines[end.node].inject(end.port, data, now_us=self.network.now // 1000):
                self.transmit(End(end.node, port), out)
            return
        rank, host = next((rank, host) for rank, host in enumerate(self.hosts) if host.name == end.node)
        assert data[:6] == mac(host.mac)
        assert socket.inet_ntoa(data[30:34]) == host.address
        assert int.from_bytes(data[36:38], "big") == self.udp_port(rank)
        self.hear(rank, data[42:], origin_of(data), marked=data[15] & 3 == 3)
