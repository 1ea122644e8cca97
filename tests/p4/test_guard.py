# SPDX-License-Identifier: Apache-2.0
"""What a host may send that is in no job of the others, or in none: p4src/guard.p4, results' TTL, and the key of
connections, on the compiled program beneath native hosts, and beside BMv2."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from netfold.controller.paths.steering import Steering
from netfold.controller.switch import fold_tables, tables
from netfold.controller.switch.entities import Entry
from netfold.fabric.graph import End
from netfold.host.innet.abi import DATA
from netfold.testing import Packet
from netfold.wire import roce
from netfold.wire.plan import RankStream
from softswitch.engine.local import LocalEngine
from support.models.slot_model import MICROSECOND, SECOND, TerribleNetwork
from support.p4.folding import P4Fabric, reduce
from support.p4.program import library, mac, native, on_bmv2
from support.p4.wires import as_sent
from switch_support.bmv2 import by_port
from switch_support.checksum import checksum

APART = ([0, 2], [1, 3])
"""Two jobs, each with a host under each leaf: h1 and h3 are the attacked, h2 and h4 the attackers."""
LONG = 256 * 1200
TTLS = random.Random(1).sample(range(1, 256), 255)
"""Each time to live that a packet can have, in any order."""
FORGED = np.full(roce.LANES, 0x77777777, np.uint32)


@pytest.fixture
def fabric() -> Iterator[P4Fabric]:
    """Two leaves and two spines with routes, guards and both jobs' entries."""
    made = P4Fabric(2, 2, 4, TerribleNetwork(random.Random(3), packet_time=2 * MICROSECOND), apart=APART)
    made.write(Steering(made.fabric).base(made.fabric.graph()))
    yield made
    made.close()


@dataclass(frozen=True)
class Forged:
    """A datagram that somebody makes up."""

    source: str
    source_port: int
    destination: str
    payload: bytes
    ttl: int = 64

    def frame(self, sender_mac: str) -> bytes:
        """The frame, with every checksum and the ICRC right."""
        whole = bytearray(as_sent(sender_mac, self.source, 0, self.payload, self.source_port, self.destination))
        whole[22] = self.ttl
        whole[24:26] = bytes(2)
        whole[24:26] = struct.pack("!H", checksum(bytes(whole[14:34])))
        return bytes(whole[:-4]) + roce.icrc(bytes(whole[14:-4]))


def attacked(fabric: P4Fabric, victim: int) -> tuple[RankStream, int]:
    """A stream of the attacked rank, and a PSN in the midst of those that it has in flight at this moment."""
    core = fabric.cores[victim]
    return core.trees[0].data, (core.state(0, DATA).una_psn + 16) & roce.PSN_MASK


def result(fabric: P4Fabric, victim: int, source: str, ttl: int) -> Forged:
    """A packet that looks like the result for which the attacked rank waits."""
    stream, psn = attacked(fabric, victim)
    packet = Packet(roce.LaneOperation.SUM32, roce.Opcode.WRITE_MIDDLE, 0, psn, b"", FORGED)
    return Forged(source, stream.predecessor_port, fabric.hosts[victim].address, packet.build(stream.qp), ttl)


def contribution(fabric: P4Fabric, victim: int, source_port: int) -> Forged:
    """A packet that looks like the next contribution of the attacked rank, but for its UDP source port."""
    stream, psn = attacked(fabric, victim)
    packet = Packet(roce.LaneOperation.SUM32, roce.Opcode.WRITE_MIDDLE, 0, psn, b"", FORGED)
    return Forged(fabric.hosts[victim].address, source_port, stream.peer, packet.build(stream.peer_qp))


def sums(fabric: P4Fabric) -> None:
    """One allreduce of both jobs, each of which must get its own exact sums, whatever is sent meanwhile and later."""
    sources = [np.random.default_rng(rank).integers(-(2**31), 2**31, LONG, np.int64).astype(np.int32)
               for rank in range(4)]
    outs = reduce(fabric, sources, 1)
    fabric.network.step(fabric.network.now + SECOND)  # what the attacker has still to send
    for members in APART:
        expected = np.sum([sources[rank] for rank in members], axis=0, dtype=np.int32)
        for rank in members:
            assert fabric.cores[rank].failure().error == 0
            assert (outs[rank] == expected).all(), f"rank {rank}: a wrong sum"


def spoofed(fabric: P4Fabric, switch: str, port: int) -> int:
    """How many packets a leaf has refused at a port, since they were not from its host's address."""
    engine = fabric.engines[switch]
    return int(engine.read_counter(engine.counter(tables.SPOOFED), port, 1)[0].packets)


def test_no_datagram_of_another_host_is_a_result(fabric: P4Fabric) -> None:
    """h2 sends h1 what it waits for, with each TTL there is, as itself, as h1's predecessor, as h1, and as a switch: no
    sum changes; what claims another address ends at the leaf, and what is routed at the rank, both counted."""
    me, before, victim = fabric.hosts[1], fabric.hosts[2], fabric.hosts[0]
    leaf = fabric.fabric.switch("leaf1")

    under_way = 0

    def attack(ttl: int) -> None:
        nonlocal under_way
        under_way += not fabric.cores[0].finished()
        for source in (me.address, before.address, victim.address, leaf.address, "10.255.0.3"):
            fabric.transmit(End(me.name, 0), result(fabric, 0, source, ttl).frame(me.mac))

    for turn, ttl in enumerate(TTLS):
        fabric.network.at((turn + 1) * 12 * MICROSECOND, lambda ttl=ttl: attack(ttl))  # type: ignore[misc]
    sums(fabric)
    assert under_way > 100
    assert spoofed(fabric, "leaf1", 2) == 4 * 255
    refused, last = fabric.cores[0].refused()
    assert refused == 254, "all but the one whose TTL ended at the leaf"
    assert str(last).startswith(me.address)
    assert last.ttl < roce.RESULT_TTL


def test_the_predecessors_own_host_cannot_make_a_result(fabric: P4Fabric) -> None:
    """Another user of h3, from which h1's results seem to come, sends them with each TTL, from a UDP port that h3's
    rank does not hold; and somebody who has that port, but for an operation that no switch folds: none is 255 when it
    arrives, and each is counted."""
    before = fabric.hosts[2]

    def attack(ttl: int) -> None:
        forged = result(fabric, 0, before.address, ttl)
        other = forged.payload[:7] + bytes([forged.payload[7] | 7]) + forged.payload[8:]
        for packet in (replace(forged, source_port=forged.source_port ^ 1), replace(forged, payload=other)):
            fabric.transmit(End(before.name, 0), packet.frame(before.mac))

    for turn, ttl in enumerate(TTLS):
        fabric.network.at((turn + 1) * 12 * MICROSECOND, lambda ttl=ttl: attack(ttl))  # type: ignore[misc]
    sums(fabric)
    there = 255 - 3  # all but those whose TTL ended at one of three switches
    assert (fabric.cores[0].refused()[0], fabric.cores[0].unfolded()) == (there, there)


def test_contributions_count_from_the_ranks_own_port_alone(fabric: P4Fabric) -> None:
    """Somebody on h1 who cannot have the rank's UDP port sends its queue pair and PSN from others; h2 sends the same as
    h1, with the right port, and so does h3's own leaf-mate h4: every sum stays as it is."""
    stream = fabric.cores[0].trees[0].data
    ports = [port for port in (1, 4791, 40000, stream.source_port - 1, stream.source_port + 1) if port <= 0xFFFF]

    def attack() -> None:
        for port in ports:
            forged = contribution(fabric, 0, port)
            fabric.transmit(End("h1", 0), forged.frame(fabric.hosts[0].mac))
        for other in (1, 3):
            host = fabric.hosts[other]
            fabric.transmit(End(host.name, 0), contribution(fabric, 0, stream.source_port).frame(host.mac))

    for time in range(1, 200):
        fabric.network.at(time * 4 * MICROSECOND, attack)
    sums(fabric)
    assert spoofed(fabric, "leaf1", 2) == spoofed(fabric, "leaf2", 2) == 199
    assert fabric.cores[2].refused()[0] == 199 * len(ports), "they were routed to h3, who did not take them"


@pytest.mark.parametrize("seed", range(3))
def test_frames_of_a_job_replayed_or_bent_by_a_stranger_change_nothing(fabric: P4Fabric, seed: int) -> None:
    """Any frame of any link, those between switches too, sent again by h2: as it was, and with header bytes changed:
    options, fragments, lengths, TTL, multicast and broadcast destinations, congestion marks, other opcodes."""
    print(f"seed {seed}")
    rng = random.Random(seed)

    def attack() -> None:
        theirs = [data for node, data in fabric.seen[-300:] if node not in ("h2", "h4") and data[26:30] != OWN]
        for data in rng.sample(theirs, min(3, len(theirs))):
            bent = bytearray(data)
            for at, value in rng.choice(BENDS):
                bent[at] = value if value >= 0 else rng.randrange(256)
            if rng.random() < 0.7:  # else the checksum is wrong as well
                bent[24:26] = bytes(2)
                bent[24:26] = struct.pack("!H", checksum(bytes(bent[14:34])))
            fabric.transmit(End("h2", 0), bytes(bent[:-4]) + roce.icrc(bytes(bent[14:-4])))

    OWN = bytes(map(int, fabric.hosts[1].address.split(".")))
    for time in range(1, 400):
        fabric.network.at(time * 3 * MICROSECOND, attack)
    sums(fabric)
    assert spoofed(fabric, "leaf1", 2) > 300


BENDS: list[list[tuple[int, int]]] = [
    [],
    [(14, 0x46)], [(14, 0x4F)], [(14, 0x65)], [(14, 0x44)],      # IP options, other versions and lengths
    [(15, 0x03)], [(46, 0x40)],                                  # ECN: congestion experienced; BECN
    [(16, -1), (17, -1)], [(38, -1), (39, -1)],                  # lengths of IPv4 and UDP
    [(20, 0x20)], [(20, 0x60), (21, 0x01)], [(21, -1)],          # fragments
    [(22, 255)], [(22, -1)],                                     # TTL
    [(30, 224), (31, 0), (32, 0), (33, 2)],                      # all routers
    [(30, 255), (31, 255), (32, 255), (33, 255)],                # everybody
    [(30, 10), (31, 255), (32, 0), (33, 1)],                     # the leaf itself
    [(42, 0x81)], [(42, 0x11)], [(42, -1)],                      # a CNP, an acknowledgement, anything
    [(12, 0x81), (13, 0x00)], [(12, 0x86), (13, 0xDD)],          # VLAN, IPv6
]
"""Bytes of a frame that are changed, and their new values; -1: random."""


def test_a_switch_without_entries_forwards_nothing() -> None:
    """Not even a packet that its routes would let through: a port without an entry of the guard takes none."""
    fabric = P4Fabric(1, 0, 3, TerribleNetwork(random.Random(1)))
    try:
        made = Steering(fabric.fabric).base(fabric.fabric.graph())
        with LocalEngine.open(library(), cpu_port=510) as engine:
            for entity in made["leaf1"]:
                assert isinstance(entity, Entry)
                engine.insert(native(engine, entity))
            data = as_sent(fabric.hosts[0].mac, fabric.hosts[0].address, 0, bytes(64), 40000, fabric.hosts[1].address)
            assert engine.inject(1, data) == []
            assert engine.read_counter(engine.counter(tables.UNASSIGNED), 1, 1)[0].packets == 1
            for entity in tables.guard_entries(fabric.fabric)["leaf1"]:
                assert isinstance(entity, Entry)
                engine.insert(native(engine, entity))
            ((port, left),) = engine.inject(1, data)
            assert (port, left[22], left[:6]) == (2, 63, mac(fabric.hosts[1].mac))
    finally:
        fabric.close()


@pytest.mark.needs("bmv2")
def test_bmv2_refuses_and_routes_the_same(tmp_path: Path) -> None:
    """The controller's entries of a leaf on both engines: the same forged results and contributions leave, those with a
    host's own address alone, and none with the TTL of a result."""
    fabric = P4Fabric(1, 0, 3, TerribleNetwork(random.Random(1)))
    hosts = fabric.hosts
    made = tables.merge([
        tables.guard_entries(fabric.fabric), Steering(fabric.fabric).base(fabric.fabric.graph()),
        *(fold_tables.fold_entries(fabric.fabric, hosts, stream) for stream in fabric.streams),
    ])["leaf1"]
    frames = []
    for ttl in range(0, 256, 3):
        for source in (hosts[1].address, hosts[2].address, hosts[0].address, "10.255.0.1"):
            frames.append((2, result(fabric, 0, source, ttl).frame(hosts[1].mac)))
        frames.append((9, result(fabric, 0, hosts[2].address, ttl).frame(hosts[1].mac)))
        frames.append((1, contribution(fabric, 0, 40000).frame(hosts[0].mac)))
    try:
        with LocalEngine.open(library(), cpu_port=510) as engine, on_bmv2(tmp_path, ports=10) as bmv2:
            for entity in made:
                if isinstance(entity, Entry):
                    entry = native(engine, entity)
                    engine.insert(entry)
                    assert bmv2.write_entry("insert", entry)
            sent = [engine.inject(port, data) for port, data in frames]
            ours = by_port(sent)
            bmv2.inject(frames, sent)
            theirs = bmv2.outputs({port: len(left) for port, left in ours.items()})
    finally:
        fabric.close()
    assert {port: sorted(left) for port, left in ours.items()} == {port: sorted(left) for port, left in theirs.items()}
    assert {port: len(left) for port, left in ours.items() if left} == {1: 85, 2: 86}
    assert all(frame[22] != roce.RESULT_TTL for left in ours.values() for frame in left)
    assert {frame[26:30] for frame in ours[1]} == {bytes(map(int, hosts[1].address.split(".")))}
