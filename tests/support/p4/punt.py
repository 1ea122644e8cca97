# SPDX-License-Identifier: Apache-2.0
"""One leaf on real interfaces, which sends link probes and is flooded with them; runs in a namespace of its own.

    unshare --net python tests/support/p4/punt.py ENGINE FOLDER

Prints one JSON object for each check (`{"check": ..., "ok": true}`); any other end is a failure.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

from netfold.controller.health.links import Links
from netfold.controller.switch import pipeline, tables
from netfold.controller.switch.entities import Entry, state
from netfold.controller.switch.reconcile import diff
from netfold.controller.switch.switch import Session
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Engine, Fabric
from support.control.controller import signed
from support.p4.fold import command
from switch_support.checksum import checksum

HOST, UPLINK, OTHER = 1, 2, 3
"""The leaf's ports: a host's, and those of two spines."""
FLOOD = 2000
"""Packets of each flood."""
CHUNK = 20
"""Packets sent at once: BMv2's queue to the CPU port holds 64."""
BOUND = 60.0
"""Seconds within which everything must happen."""


def plug() -> dict[int, socket.socket]:
    """Makes a veth pair for every port of the leaf; returns sockets at the far ends."""
    sockets = {}
    for port in (HOST, UPLINK, OTHER):
        subprocess.run(["ip", "link", "add", f"v{port}", "type", "veth", "peer", "name", f"h{port}"], check=True)
        for end in (f"v{port}", f"h{port}"):
            Path(f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6").write_text("1")
            subprocess.run(["ip", "link", "set", end, "up"], check=True)
        sockets[port] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        sockets[port].bind((f"h{port}", 0))
        sockets[port].settimeout(BOUND)
    return sockets


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
        self.arrived = dict.fromkeys((HOST, UPLINK, OTHER), 0)
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


def done(check: str) -> None:
    """Reports a check that passed."""
    print(json.dumps({"check": check, "ok": True}), flush=True)


async def checks(fabric: Fabric, session: Session, sockets: dict[int, socket.socket]) -> None:
    """Runs all checks, one after the other."""
    entries = tables.fixed_entries(fabric)["leaf1"]
    await session.write(diff({}, state(entries)))
    assert await session.read_state(tables.MANAGED) == state(entries)
    (rate,) = {entry.rate for entry in entries if isinstance(entry, Entry) and entry.table == tables.PUNT}
    assert rate is not None
    done("the controller's entries and rates read back as they were written")

    links, names = Links(fabric), {switch.name for switch in fabric.switches}
    shared = dict(links.to_neighbours(names))
    await session.packet_out_to_neighbours(shared["leaf1"])
    for port in (UPLINK, OTHER):
        assert await asyncio.to_thread(sockets[port].recv, 1 << 16) == signed(shared["leaf1"], port)
    done("a probe for all neighbours leaves by their ports, and says by which")

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
    done("a neighbour's own probe for all is counted; others go to the controller, and a host's do neither")
    own = changed(probe, 26, socket.inet_aton(fabric.hosts[0].address))
    assert await leaf.send(HOST, probe, FLOOD // 2) == (0, 2 + FLOOD // 2, 0)
    assert await leaf.send(HOST, own, FLOOD // 2) == (0, 2 + FLOOD, 0)
    assert await session.read_cell(tables.REFUSED, HOST) == FLOOD // 2
    done("a host's link probes are refused, by a switch's address or its own")

    assert await leaf.send(UPLINK, routed(probe), FLOOD) == (len(strange), 1 + FLOOD, 0)
    done("what was routed is refused, from wherever it comes")

    began, earlier = time.monotonic(), len(strange)
    arrived, refused, over_rate = await leaf.send(UPLINK, probe, FLOOD)
    arrived -= earlier
    most = rate.burst + rate.packets * (time.monotonic() - began)
    assert rate.burst <= arrived <= most, f"expected up to {most:.0f} packets, got {arrived}"
    assert (refused, over_rate) == (1 + FLOOD, FLOOD - arrived)
    assert await leaf.send(OTHER, probe, CHUNK) == (CHUNK, 0, 0)
    sockets[UPLINK].send(first)
    await leaf.hears(UPLINK)
    done("a port's flood is metered, and costs neither another port's probes nor those that are counted anything")


async def main(engine: Engine, folder: Path) -> None:
    """Starts everything, runs all checks, and ends everything."""
    fabric = leafspine(1, 2, 1, engine=engine, rundir=folder, path_mtu=1024)
    sockets = plug()
    switch = fabric.switch("leaf1")
    ports = [word for port in sockets for word in ("-i", f"{port}@v{port}")]
    line = command(engine, fabric)
    at = line.index("-i")
    line[at : at + 2] = ports
    with (folder / "switch.log").open("wb") as log:
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        async with await Session.open(switch.name, switch.grpc, device_id=switch.device_id,
                                      pipeline=pipeline.build(engine), election_id=1, timeout=90) as session:
            await session.ensure_pipeline()
            await checks(fabric, session, sockets)
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


if __name__ == "__main__":
    wanted: Engine = "bmv2" if sys.argv[1] == "bmv2" else "softswitch"
    asyncio.run(main(wanted, Path(sys.argv[2])))
