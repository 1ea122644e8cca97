# SPDX-License-Identifier: Apache-2.0
"""p4src/paths.p4: which uplink a packet takes, by mode and destination leaf, in process and beside BMv2."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from netfold.controller.paths.steering import Steering
from netfold.controller.switch import tables
from netfold.controller.switch.entities import Entry
from netfold.controller.switch.tables import Mode
from netfold.fabric.generate import leafspine
from netfold.wire import roce
from netfold.wire.paths import tcp_ports
from softswitch.engine.local import LocalEngine
from support.models.slot_model import ip_packet
from support.p4.program import library, mac, native, on_bmv2
from switch_support.bmv2 import by_port
from switch_support.checksum import checksum

FABRIC = leafspine(3, 4, 6, path_mtu=1024)
LEAF = "leaf1"
UPLINKS = (3, 4, 5, 6)
PINNED = [roce.PATH_PORT + number for number in (1, 2, 3, 4)]  # over spine1..spine4
INSIDE, NEAR, FAR = (FABRIC.host(name) for name in ("h1", "h3", "h5"))  # on leaf1, leaf2, leaf3


def entries(modes: dict[str, Mode] | None = None) -> list[Entry]:
    """The controller's entries for leaf1."""
    steering = Steering(FABRIC)
    steering.modes |= modes or {}
    made = tables.merge([tables.guard_entries(FABRIC), steering.base(FABRIC.graph())])[LEAF]
    return [entity for entity in made if isinstance(entity, Entry)]


def tcp_frame(source_port: int, destination_port: int, to: str = FAR.address) -> bytes:
    """The first bytes of a segment of TCP from h1."""
    packet = bytearray(ip_packet(bytes(32), 0, INSIDE.address, source_port, to))
    packet[9] = 6
    packet[10:12] = bytes(2)
    packet[10:12] = struct.pack("!H", checksum(bytes(packet[:20])))
    packet[20:24] = struct.pack("!HH", source_port, destination_port)
    return mac("02:00:00:00:00:01") + mac(INSIDE.mac) + b"\x08\x00" + bytes(packet)


def frame(source_port: int, to: str = FAR.address, *, dport: int = roce.UDP_PORT, psn: int = 0) -> bytes:
    """A small WRITE ONLY from h1; with another destination port it is somebody else's UDP."""
    inner = roce.BTH.pack(roce.Opcode.WRITE_ONLY, 0, roce.PKEY, 0x800001, psn) + roce.RETH.pack(0, 1, 8) + bytes(8)
    packet = bytearray(ip_packet(inner + bytes(4), 0, INSIDE.address, source_port, to))
    packet[10:12] = struct.pack("!H", checksum(bytes(packet[:20])))
    packet[22:24] = struct.pack("!H", dport)
    return mac("02:00:00:00:00:01") + mac(INSIDE.mac) + b"\x08\x00" + bytes(packet)


@pytest.fixture
def leaf() -> Iterator[LocalEngine]:
    """leaf1, all leaves in the mode that Steering begins with: pinned."""
    with LocalEngine.open(library(), cpu_port=510) as engine:
        for entry in entries():
            engine.insert(native(engine, entry))
        yield engine


def switch_to(engine: LocalEngine, mode: Mode, leaf: str) -> None:
    """The writes that change a leaf's mode at run time."""
    before = entries()
    for entry in entries({leaf: mode}):
        if entry not in before:
            engine.insert(native(engine, entry))


def out(engine: LocalEngine, data: bytes) -> int:
    """The port where a frame from h1 leaves, as one."""
    ((port, _),) = engine.inject(1, data)
    return port


def unpinned(engine: LocalEngine) -> int:
    """Packets that no pin was for."""
    return engine.read_counter(engine.counter(tables.UNPINNED), 0, 1)[0].packets


def test_a_source_port_of_the_plan_takes_its_uplink(leaf: LocalEngine) -> None:
    """Each to its own spine, to both leaves alike, with the MAC addresses of that link; none is counted as unpinned."""
    for to in (NEAR.address, FAR.address):
        assert [out(leaf, frame(port, to)) for port in PINNED] == list(UPLINKS)
    ((_, data),) = leaf.inject(1, frame(PINNED[2]))
    assert data[:12] == mac(FABRIC.switch("spine3").mac) + mac(FABRIC.switch(LEAF).mac)
    assert unpinned(leaf) == 0


def test_a_tcp_port_of_the_plan_takes_its_uplink(leaf: LocalEngine) -> None:
    """Whichever of a path's ports names it, and whichever end opened the connection; the bytes stay as they are."""
    for to in (NEAR.address, FAR.address):
        for number in (0, 1):
            named = [tcp_ports(port)[number] for port in PINNED]
            assert [out(leaf, tcp_frame(port, 40_000, to)) for port in named] == list(UPLINKS)
            assert [out(leaf, tcp_frame(40_000, port, to)) for port in named] == list(UPLINKS)
    sent = tcp_frame(tcp_ports(PINNED[1])[0], 40_000)
    ((_, data),) = leaf.inject(1, sent)
    assert data[34:] == sent[34:]
    assert unpinned(leaf) == 0


def test_packets_from_the_first_port_are_sprayed(leaf: LocalEngine) -> None:
    """Those of one flow, RoCE or TCP, over all uplinks, in mode pinned; a plan's ports keep theirs meanwhile."""
    for data in (frame(roce.PATH_PORT), tcp_frame(roce.TCP_PATH_PORT, 40_000)):
        taken = Counter(out(leaf, data) for _ in range(400))
        assert set(taken) == set(UPLINKS)
        assert all(abs(count - 100) < 5 * (400 * 0.25 * 0.75) ** 0.5 for count in taken.values())
    assert unpinned(leaf) == 0


def test_other_source_ports_are_hashed_and_counted(leaf: LocalEngine) -> None:
    """One flow keeps its uplink, many flows find them all."""
    taken = [out(leaf, frame(port)) for port in range(50_000, 50_200)]
    assert set(taken) == set(UPLINKS)
    assert taken == [out(leaf, frame(port)) for port in range(50_000, 50_200)]
    assert unpinned(leaf) == 400


def test_hashing_pays_no_heed_to_pins(leaf: LocalEngine) -> None:
    """In mode ecmp the plan's ports are flows like others, and the hash is the one that unpinned packets get."""
    before = [out(leaf, frame(port)) for port in range(50_000, 50_050)]
    switch_to(leaf, "ecmp", "leaf3")
    assert before == [out(leaf, frame(port)) for port in range(50_000, 50_050)]
    assert unpinned(leaf) == 50
    assert [out(leaf, frame(port, NEAR.address)) for port in PINNED] == list(UPLINKS), "leaf2 is as it was"


def test_spraying_spreads_one_flow_evenly(leaf: LocalEngine) -> None:
    """4000 packets of one flow: every uplink within 5 sigma of its quarter; other leaves keep their pins."""
    switch_to(leaf, "spray", "leaf3")
    taken = Counter(out(leaf, frame(PINNED[0], psn=psn)) for psn in range(4000))
    print(taken)
    assert set(taken) == set(UPLINKS)
    assert all(abs(count - 1000) < 5 * (4000 * 0.25 * 0.75) ** 0.5 for count in taken.values())
    assert {out(leaf, frame(PINNED[0], NEAR.address)) for _ in range(50)} == {UPLINKS[0]}


@pytest.mark.parametrize("mode", ["pinned", "ecmp", "spray"])
def test_what_names_no_path_is_hashed_in_every_mode(leaf: LocalEngine, mode: Mode) -> None:
    """A flow of other UDP is never reordered, whatever its ports are, nor one of TCP between other ports."""
    flows = [frame(port, dport=4000) for port in (*PINNED, 50_000)] + [tcp_frame(port, 443) for port in PINNED]
    before = [out(leaf, flow) for flow in flows]
    if mode != "pinned":
        switch_to(leaf, mode, "leaf3")
    for _ in range(20):
        assert before == [out(leaf, flow) for flow in flows]
    assert unpinned(leaf) == 0


def test_a_pin_that_is_taken_away_falls_to_the_hash(leaf: LocalEngine) -> None:
    """When the controller takes a dead path's pin away, its packets are hashed, and not lost."""
    pins = [entry for entry in entries() if entry.table == tables.PIN]
    for entry in pins:
        leaf.delete(native(leaf, entry))
    assert out(leaf, frame(PINNED[0])) in UPLINKS
    assert unpinned(leaf) == 1


@pytest.mark.needs("bmv2")
def test_bmv2_takes_the_same_uplinks(tmp_path: Path) -> None:
    """Pinned to leaf2 and hashed to leaf3, RoCE, TCP or neither: the same bytes at the same ports.  Sprayed: the same
    shares."""
    rng = random.Random(11)
    ports = [rng.choice([*PINNED, rng.randrange(1024, 0xFFFF)]) for _ in range(200)]
    for part, modes, to in (("fixed", {"leaf3": "ecmp"}, [NEAR, FAR]), ("random", {"leaf3": "spray"}, [FAR])):
        folder = tmp_path / part
        folder.mkdir()
        frames = [(1, frame(port, rng.choice(to).address, dport=roce.UDP_PORT if part == "random" else
                            rng.choice([roce.UDP_PORT, 4000]), psn=psn)) for psn, port in enumerate(ports)]
        if part == "fixed":
            names = [name for port in PINNED for name in tcp_ports(port)] + [443]
            frames += [(1, tcp_frame(*ends, to=host.address)) for name in names for host in to
                       for ends in ((name, 40_000), (40_000, name))]
        with LocalEngine.open(library(), cpu_port=510) as engine, on_bmv2(folder, ports=7) as bmv2:
            for entry in entries(modes):  # type: ignore[arg-type]
                engine.insert(native(engine, entry))
                assert bmv2.write_entry("insert", native(engine, entry))
            sent = [engine.inject(port, data) for port, data in frames]
            ours = by_port(sent)
            bmv2.inject(frames, sent)
            theirs = bmv2.outputs({port: len(left) for port, left in ours.items()} if part == "fixed" else {})
        assert sum(map(len, theirs.values())) == len(frames)
        assert set(theirs) == set(ours) == set(UPLINKS)
        if part == "fixed":
            assert {p: sorted(sent) for p, sent in ours.items()} == {p: sorted(sent) for p, sent in theirs.items()}
        else:
            for counted in (ours, theirs):
                assert all(abs(len(sent) - 50) < 5 * (200 * 0.25 * 0.75) ** 0.5 for sent in counted.values())
