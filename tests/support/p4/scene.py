# SPDX-License-Identifier: Apache-2.0
"""One switch of a tree with three children at hand, to which packets are sent by hand: the compiled program with the
controller's own entries, and BMv2 beside it."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import msgspec

from netfold.controller.paths.steering import Steering
from netfold.controller.switch import fold_tables, tables
from netfold.controller.switch.entities import Clone, Entity, Entry, Multicast
from netfold.fabric.folding import slots, trees
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import CPU_PORT, Fabric, Link
from netfold.wire import roce
from softswitch.engine import entities, local
from support.models.nic_packets import ACK, SEQUENCE, Packet, Rc, icrc_holds
from support.p4.program import library, native, on_bmv2
from support.p4.wires import write
from switch_support.bmv2 import by_port

FULL = roce.PATH_MTU
REGION = {0: 1 << 40, 1: 1 << 41}
"""Where the NICs' memory regions begin, by place."""
Out = list[tuple[int, Packet]]


def lanes(value: int, size: int = FULL) -> bytes:
    """Lanes that all hold this number."""
    return value.to_bytes(4, "big") * (size // 4)


TOTAL = lanes(0x010101)


def one_leaf(hosts: int, path_mtu: int = FULL) -> Fabric:
    """A leaf alone.  Those with more hosts than generated ones may have take them from two leaves."""
    if hosts <= 254:
        return leafspine(1, 0, hosts, path_mtu=path_mtu)
    two = leafspine(2, 1, hosts, path_mtu=path_mtu)
    links = [Link(f"{host.name}:0", f"leaf1:{port}") for port, host in enumerate(two.hosts, 1)]
    return msgspec.structs.replace(two, switches=two.switches[:1], links=tuple(links))


class Scene:
    """One switch of a tree: the NICs of ranks 0 and 1 hang on it, and the windowed end points of the others.

    ranks  that hang on it
    nics   False: ranks 0 and 1 are windowed as well
    root   whether it is the tree's root; otherwise one more rank hangs on another leaf, and a spine folds both
    grows  False: the program as it is compiled for BMv2
    path_mtu  of that program; payloads may be shorter
    children  bits of its bitmaps
    """

    def __init__(
        self, *, root: bool, nics: bool = True, grows: bool = True, path_mtu: int = FULL,
        children: int = trees.FEW_CHILDREN, ranks: int = 3,
    ) -> None:
        fabric = one_leaf(ranks, path_mtu) if root else leafspine(2, 1, 2 * ranks, path_mtu=path_mtu)
        children = max(children, trees.children_of(fabric))
        self.root, self.grows, self.children = root, grows, children
        names = [f"h{number + 1}" for number in range(ranks if root else ranks + 1)]
        hosts = tuple(msgspec.structs.replace(host, rdma=True) for host in fabric.hosts)
        self.fabric = fabric = msgspec.structs.replace(fabric, hosts=hosts)
        graph = fabric.graph()
        allocator = slots.Allocator([s.name for s in fabric.switches], slots.Sizes(64, 8), random.Random(3))
        stream = allocator.admit(trees.plan(graph, names)[:1], [range(len(names))],
                                 rc=(0, 1) if nics else ())[0]
        self.stream = stream = dataclasses.replace(
            stream, psn=roce.PSN_MASK - 20,
            rc={place: slots.RcEnd(17 + place, 33 + place, region, 5 + place)
                for place, region in REGION.items() if nics})
        self.hosts = [fabric.host(name) for name in names]
        leaf = fabric.leaf_of()["h1"]
        fold = self.fold = stream.tree.fold(leaf)
        assert fold.is_root == root
        ports = {child.rank: child.port for child in fold.children}
        self.ports = [ports[place] for place in range(ranks)]
        self.here = fabric.switch(leaf)
        wanted = tables.merge([tables.fixed_entries(fabric), Steering(fabric).base(graph),
                               fold_tables.fold_entries(fabric, self.hosts, stream)])
        self.entities: list[Entity] = [e for e in wanted[leaf] if not (isinstance(e, Entry) and e.is_default)]
        self.entities = [e for e in self.entities if not (isinstance(e, Entry) and e.rate)]
        self.engine = local.LocalEngine.open(library(path_mtu, bmv2=not grows, children=children),
                                             cpu_port=CPU_PORT)
        for entity in self.entities:
            write(self.engine, entity)
        self.at = stream.psn
        self.left: dict[int, tuple[int, int]] = {}
        """Windowed rank, or -1 for the parent, -> the PSN that left last, and the one after the highest that has."""
        self.frames: list[tuple[int, bytes]] = []
        self.sent: list[list[tuple[int, bytes]]] = []

    def close(self) -> None:
        """Closes the engine."""
        self.engine.close()

    def take(self, count: int = 1) -> int:
        """The next PSN that no packet had; ``count`` of them are taken."""
        at, self.at = self.at, (self.at + count) & roce.PSN_MASK
        return at

    def fold_address(self, place: int) -> str:
        """The fold address of a rank's host."""
        return self.fabric.fold_address(self.hosts[place])

    def inject(self, port: int, frame: bytes) -> Out:
        """The packets that a frame causes, parsed, by port."""
        out = self.engine.inject(port, frame)
        self.frames.append((port, frame))
        self.sent.append(out)
        assert all(icrc_holds(data) for _, data in out)
        packets = [(to, Packet.parse(data)) for to, data in out]
        return sorted([(to, packet) for to, packet in packets if packet is not None], key=lambda pair: pair[0])

    def contribution(self, place: int, psn: int, payload: bytes | None = None, **fields: object) -> Packet:
        """A rank's contribution, a full SEND unless told otherwise; without a payload its lanes hold the place."""
        payload = lanes(1 << 8 * place) if payload is None else payload
        psn &= roce.PSN_MASK
        if place in self.stream.rc:
            successor = self.stream.successor(place)
            packet = Packet(self.hosts[place].address, self.fold_address(successor), Rc.SEND_ONLY,
                            self.stream.rc[successor].in_qp, psn, payload, ip_id=7)
        else:
            successor = self.stream.successor(place)
            packet = Packet(self.hosts[place].address, self.hosts[successor].address, Rc.SEND_ONLY,
                            self.stream.connections[successor] << roce.OPERATION_BITS, psn, payload,
                            pkey=roce.PKEY_WINDOWED, source_port=self.stream.source_ports[place])
        return dataclasses.replace(packet, **fields)  # type: ignore[arg-type]

    def send(self, place: int, psn: int, payload: bytes | None = None, **fields: object) -> Out:
        """Sends a contribution."""
        packet = self.contribution(place, psn, payload, **fields)
        if place not in self.stream.rc:
            packet = self.in_order(place, packet)
        return self.inject(self.ports[place], packet.frame())

    def in_order(self, neighbour: int, packet: Packet) -> Packet:
        """A windowed neighbour's packet with its order: what a PSN leaves out below it has left, and was lost."""
        if packet.opcode == roce.Opcode.ACKNOWLEDGE:
            return packet
        below = packet.psn - 1 & roce.PSN_MASK
        last, after = self.left.get(neighbour, (below, packet.psn))
        ahead = roce.psn_age(packet.psn, after)
        self.left[neighbour] = packet.psn, (packet.psn + 1) & roce.PSN_MASK if ahead >= 0 else after
        return dataclasses.replace(packet, order=roce.order_of(packet.psn, below if ahead > 0 else last))

    def ask(self, place: int, psn: int, end: int | None = None) -> Out:
        """A windowed rank lacks results from this PSN on, up to ``end``."""
        end = psn + 1 if end is None else end
        return self.send(place, psn, b"", opcode=roce.Opcode.ACKNOWLEDGE, syndrome=SEQUENCE, msn=end & roce.PSN_MASK)

    def acknowledge(self, place: int, psn: int, syndrome: int = ACK, *, corrupt: bool = False) -> Out:
        """A NIC's successor, whose host hangs on the same switch, answers the NIC."""
        successor = self.stream.successor(place)
        packet = Packet(self.fold_address(successor), self.hosts[place].address, roce.Opcode.ACKNOWLEDGE,
                        self.stream.rc[place].out_qp, psn & roce.PSN_MASK, syndrome=syndrome, msn=3)
        frame = bytearray(packet.frame())
        if corrupt:
            frame[-1] ^= 1
            self.frames.append((self.ports[successor], bytes(frame)))
            self.sent.append(self.engine.inject(self.ports[successor], bytes(frame)))
            return []
        return self.inject(self.ports[successor], bytes(frame))

    def parent(self, psn: int, payload: bytes = TOTAL, **fields: object) -> Out:
        """Sends a packet of the switch above: a result by default."""
        parent = self.fabric.switch(self.fold.parent or "")
        packet = Packet(parent.address, self.here.address, Rc.SEND_ONLY,
                        self.stream.down[self.here.name] << roce.OPERATION_BITS, psn & roce.PSN_MASK,
                        payload, pkey=roce.PKEY_WINDOWED, source_port=self.stream.source_ports[0], ttl=255)
        packet = dataclasses.replace(packet, **fields)  # type: ignore[arg-type]
        return self.inject(self.fold.parent_port, self.in_order(-1, packet).frame())

    def everybody(self, psn: int, **fields: object) -> Out:
        """All ranks contribute, in order; the NICs' successors acknowledge the result, at the root."""
        out: Out = []
        for place in range(3):
            out = self.send(place, psn, **fields)
        return out

    def acknowledged(self, psn: int) -> None:
        """Both NICs' successors have the result of this PSN."""
        for place in self.stream.rc:
            self.acknowledge(place, psn)

    def answer(self, place: int, syndrome: int, psn: int, end: int = 0) -> Out:
        """The one packet that leaves where a rank is answered."""
        successor, predecessor = self.stream.successor(place), self.stream.predecessor(place)
        common: dict[str, object] = {"syndrome": syndrome, "msn": end & roce.PSN_MASK, "ttl": 255,
                                     "ip_id": psn & 0xFFFF}
        if place in self.stream.rc:
            packet = Packet(self.fold_address(successor), self.hosts[place].address, roce.Opcode.ACKNOWLEDGE,
                            self.stream.rc[place].out_qp, psn & roce.PSN_MASK,
                            source_port=self.stream.source_ports[successor])
        else:
            packet = Packet(self.hosts[predecessor].address, self.hosts[place].address, roce.Opcode.ACKNOWLEDGE,
                            self.stream.connections[place] << roce.OPERATION_BITS, psn & roce.PSN_MASK,
                            pkey=roce.PKEY_WINDOWED, source_port=self.stream.source_ports[predecessor])
        return [(self.ports[place], dataclasses.replace(packet, **common))]  # type: ignore[arg-type]

    def up(self, psn: int, payload: bytes = b"", **fields: object) -> Out:
        """The one packet that leaves where the parent is sent something: the sum, unless told otherwise."""
        parent = self.fabric.switch(self.fold.parent or "")
        packet = Packet(self.here.address, parent.address, Rc.SEND_ONLY,
                        self.stream.up[self.here.name] << roce.OPERATION_BITS, psn & roce.PSN_MASK, payload,
                        pkey=roce.PKEY_WINDOWED, source_port=self.stream.source_ports[0], ttl=255,
                        ip_id=psn & 0xFFFF)
        return [(self.fold.parent_port, dataclasses.replace(packet, **fields))]  # type: ignore[arg-type]

    def outcomes(self) -> list[int]:
        """The counter of outcomes."""
        return [cell.packets for cell in self.engine.read_counter(self.engine.counter(tables.OUTCOMES))]


def compare_with_bmv2(scene: Scene, folder: Path) -> None:
    """BMv2 gets the frames that the scene's switch has got, and the same leave its ports."""
    ports = max([*scene.ports, scene.fold.parent_port if not scene.root else 0]) + 1
    ours = by_port(scene.sent)
    groups = [entities.Multicast(e.group, e.replicas) for e in scene.entities if isinstance(e, Multicast)]
    sessions = [entities.CloneSession(e.session, ((e.port, 0),)) for e in scene.entities
                if isinstance(e, Clone) and e.port < ports]
    with on_bmv2(folder, ports=ports, children=scene.children) as bmv2:
        bmv2.replicate(groups, sessions)
        for entity in scene.entities:
            if isinstance(entity, Entry):
                assert bmv2.write_entry("insert", native(scene.engine, entity))
        bmv2.inject(scene.frames, scene.sent)
        theirs = bmv2.outputs({port: len(left) for port, left in ours.items()})
    for port in range(ports):
        same = sorted(ours[port]) == sorted(theirs.get(port, []))
        assert same, f"port {port}: {len(ours[port])} frames here, {len(theirs.get(port, []))} on BMv2"
