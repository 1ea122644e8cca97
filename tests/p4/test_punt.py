# SPDX-License-Identifier: Apache-2.0
"""One leaf on real interfaces, which sends link probes and is flooded with them."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest

from netfold.controller.health.links import Links
from netfold.controller.switch import pipeline, tables
from netfold.controller.switch.entities import Entry, state
from netfold.controller.switch.reconcile import diff
from netfold.controller.switch.switch import Session
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Engine, Fabric
from support.control.controller import signed
from support.sandboxes.processes import Switches, plug
from support.sandboxes.topo import ENGINES, in_sandbox
from switch_support.checksum import checksum

PORTS = HOST, UPLINK, OTHER = 1, 2, 3
"""The leaf's ports: a host's, and those of two spines."""
FLOOD = 400
"""Packets of each flood: more than the burst that a meter lets pass."""
CHUNK = 20
"""Packets sent at once: BMv2's queue to the CPU port holds 64."""
BOUND = 60.0
"""Seconds within which everything must happen."""


def changed(frame: bytes, at: int, data: bytes) -> bytes:
    """The frame with other bytes somewhere in its IPv4 header, whose checksum holds again."""
    packet = bytearray(frame)
    packet[at : at + len(data)] = data
    packet[24:26] = bytes(2)
    packet[24:26] = checksum(bytes(packet[14:34])).to_bytes(2, "big")
    return bytes(packet)


def routed(frame: bytes) -> bytes:
    """The frame after one hop: its time to live is one less."""
    return changed(frame, 22, bytes([frame[22] - 1]))


class Leaf:
    """The leaf as its controller sees it."""

    def __init__(self, session: Session, sockets: dict[int, socket.socket]) -> None:
        self._session = session
        self._sockets = sockets
        self._sent = dict.fromkeys(sockets, 0)
        self.arrived = dict.fromkeys(PORTS, 0)
        """Packet-ins so far, by port."""

    async def send(self, port: int, frame: bytes, packets: int) -> tuple[int, int, int]:
        """Sends a frame into a port so many times, no faster than BMv2 takes them.  Returns how many packets of this
        port have arrived at the controller, were refused by the guard or at the CPU port, and exceeded the rate so far,
        once that is all of them."""
        for _ in range(0, packets, CHUNK):
            now = await self.send_each(port, *[frame] * CHUNK)
        return now

    async def send_each(self, port: int, *frames: bytes) -> tuple[int, int, int]:
        """Sends these frames into a port, and returns the same."""
        for frame in frames:
            self._sockets[port].send(frame)
        self._sent[port] += len(frames)
        async with asyncio.timeout(BOUND):
            while sum(now := await self._count(port)) < self._sent[port]:
                await asyncio.sleep(0.001)  # between looks at what has come
        return now

    async def hears(self, *ports: int) -> None:
        """Waits until the leaf has told that probes of its neighbours have come in by these ports, and by no others."""
        left = set(ports)
        async with asyncio.timeout(BOUND):
            while left:
                found = await self._session.heard()
                assert {port for port in range(512) if found >> port & 1} <= left
                left = {port for port in left if not found >> port & 1}

    async def _count(self, port: int) -> tuple[int, int, int]:
        while not self._session.packets.empty():
            self.arrived[self._session.packets.get_nowait().port] += 1
        refused = [await self._session.read_cell(name, port) for name in (tables.SPOOFED, tables.REFUSED)]
        return self.arrived[port], sum(refused), await self._session.read_cell(tables.OVER_RATE, port)


async def checks(fabric: Fabric, session: Session, sockets: dict[int, socket.socket]) -> None:
    """Runs all checks, one after the other."""
    # the controller's entries and rates read back as they were written
    entries = tables.fixed_entries(fabric)["leaf1"]
    await session.write(diff({}, state(entries)))
    assert await session.read_state(tables.MANAGED) == state(entries)
    (rate,) = {entry.rate for entry in entries if isinstance(entry, Entry) and entry.table == tables.PUNT}
    assert rate is not None

    # a probe for all neighbours leaves by their ports, and says by which
    links, names = Links(fabric), {switch.name for switch in fabric.switches}
    shared = dict(links.to_neighbours(names))
    await session.packet_out_to_neighbours(shared["leaf1"])
    for port in (UPLINK, OTHER):
        assert await asyncio.to_thread(sockets[port].recv, 1 << 16) == signed(shared["leaf1"], port)

    # a neighbour's own probe for all is counted; others go to the controller, and a host's do neither
    leaf = Leaf(session, sockets)
    first, second = signed(shared["spine1"], 1), signed(shared["spine2"], 1)
    probe = next(p.frame for p in links.round(names) if p.switch == "spine1")
    short = next(p.frame for p in links.round(names) if p.switch == "spine1")
    await leaf.hears()
    for port, frame in ((UPLINK, first), (OTHER, second)):  # one each: an answer may come first
        sockets[port].send(frame)
    await leaf.hears(UPLINK, OTHER)
    assert await leaf.send_each(HOST, first, second) == (0, 2, 0)
    assert await leaf.send_each(UPLINK, routed(first)) == (0, 1, 0)
    strange = (second, signed(shared["spine1"], 2), probe, short)
    assert await leaf.send_each(UPLINK, *strange) == (len(strange), 1, 0)
    sockets[OTHER].send(second)
    await leaf.hears(OTHER)
    # a host's link probes are refused, by a switch's address or its own
    own = changed(probe, 26, socket.inet_aton(fabric.hosts[0].address))
    assert await leaf.send(HOST, probe, FLOOD // 2) == (0, 2 + FLOOD // 2, 0)
    assert await leaf.send(HOST, own, FLOOD // 2) == (0, 2 + FLOOD, 0)
    assert await session.read_cell(tables.REFUSED, HOST) == FLOOD // 2

    # what was routed is refused, from wherever it comes
    assert await leaf.send(UPLINK, routed(probe), FLOOD) == (len(strange), 1 + FLOOD, 0)

    # a port's flood is metered, and costs neither another port's probes nor those that are counted anything
    began, earlier = time.monotonic(), len(strange)
    arrived, refused, over_rate = await leaf.send(UPLINK, probe, 5 * FLOOD)  # more than its rate lets pass meanwhile
    arrived -= earlier
    most = rate.burst + rate.packets * (time.monotonic() - began)
    assert rate.burst <= arrived <= most, f"expected up to {most:.0f} packets, got {arrived}"
    assert (refused, over_rate) == (1 + FLOOD, 5 * FLOOD - arrived)
    assert await leaf.send(OTHER, probe, CHUNK) == (CHUNK, 0, 0)
    sockets[UPLINK].send(first)
    await leaf.hears(UPLINK)


async def punt(fabric: Fabric) -> None:
    """Opens a session with the leaf, and runs all checks."""
    sockets = {}
    for port in PORTS:
        sockets[port] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        sockets[port].bind((f"h{port}", 0))
        sockets[port].settimeout(BOUND)
    switch = fabric.switch("leaf1")
    async with await Session.open(switch.name, switch.grpc, device_id=switch.device_id,
                                  pipeline=pipeline.build(fabric.engine), election_id=1, timeout=90) as session:
        await session.ensure_pipeline()
        await checks(fabric, session, sockets)


@in_sandbox(timeout=200)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_may_reach_the_cpu_port(engine: Engine, tmp_path: Path) -> None:
    """Nothing from a host's port, not even a perfect link probe; from a switch's port as many probes as its meter lets
    pass, while another switch's port has room of its own; every packet is counted.  What a neighbour sends to all is
    counted on the switch, if it comes from the port that the cable should lead to."""
    fabric = leafspine(1, 2, 1, engine=engine, rundir=tmp_path, path_mtu=1024)
    plug(*((f"v{port}", f"h{port}") for port in PORTS))
    Switches(fabric, tmp_path).start("leaf1", *(f"{port}@v{port}" for port in PORTS))
    asyncio.run(punt(fabric))
