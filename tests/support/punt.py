# SPDX-License-Identifier: Apache-2.0
"""One leaf on real interfaces, flooded with link probes; runs in a namespace of its own.

    unshare --net python tests/support/punt.py ENGINE FOLDER

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
from support.fold import command
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
        sockets[port] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        sockets[port].bind((f"h{port}", 0))
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
            for _ in range(CHUNK):
                self._sockets[port].send(frame)
            self._sent[port] += CHUNK
            async with asyncio.timeout(BOUND):
                while sum(now := await self._count(port)) < self._sent[port]:
                    await asyncio.sleep(0.001)  # between looks at what has come
        return now

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
    entries = [entry for entry in tables.fixed_entries(fabric)["leaf1"] if isinstance(entry, Entry)]
    await session.write(diff({}, state(entries)))
    assert await session.read_state(tables.MANAGED) == state(entries)
    (rate,) = {entry.rate for entry in entries if entry.table == tables.PUNT}
    assert rate is not None
    done("the controller's entries and rates read back as they were written")

    leaf = Leaf(session, sockets)
    probe = next(Links(fabric).round({switch.name for switch in fabric.switches})).frame
    own = changed(probe, 26, socket.inet_aton(fabric.hosts[0].address))
    assert await leaf.send(HOST, probe, FLOOD // 2) == (0, FLOOD // 2, 0)
    assert await leaf.send(HOST, own, FLOOD // 2) == (0, FLOOD, 0)
    assert await session.read_cell(tables.REFUSED, HOST) == FLOOD // 2
    done("a host's link probes are refused, by a switch's address or its own")

    assert await leaf.send(UPLINK, routed(probe), FLOOD) == (0, FLOOD, 0)
    done("what was routed is refused, from wherever it comes")

    began = time.monotonic()
    arrived, refused, over_rate = await leaf.send(UPLINK, probe, FLOOD)
    most = rate.burst + rate.packets * (time.monotonic() - began)
    assert rate.burst <= arrived <= most, f"expected up to {most:.0f} packets, got {arrived}"
    assert (refused, over_rate) == (FLOOD, FLOOD - arrived)
    assert await leaf.send(OTHER, probe, CHUNK) == (CHUNK, 0, 0)
    done("a port's flood is metered, and costs another port's probes nothing")


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
