# SPDX-License-Identifier: Apache-2.0
"""The fold program in one leaf on real interfaces, entries by the controller, packets by hand."""

from __future__ import annotations

import asyncio
import functools
import random
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from netfold.controller.controller import Controller
from netfold.fabric.folding.slots import Sizes
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Engine, Fabric
from netfold.testing import combine
from netfold.wire import roce
from netfold.wire.jobs import Join
from netfold.wire.plan import Plan, RankStream
from netfold.wire.roce import LaneOperation, Opcode
from support.sandboxes.processes import Switches, plug
from support.sandboxes.topo import ENGINES, in_sandbox

RANKS = 3
PORTS = [roce.UDP_PORT, roce.UDP_PORTS[0], roce.UDP_PORTS[-1]]
"""UDP ports at which the ranks receive."""
USUAL = {"data": LaneOperation.SUM32, "agreement": LaneOperation.MAX32}
"""Kind of stream -> its usual lane operation."""
WAIT = 30.0
"""Seconds within which a packet must come."""
Lanes = tuple[int, ...]


def ones_sum(data: bytes) -> int:
    """The ones' complement sum of the Internet checksum, folded: 0xffff where a checksum is present and right."""
    total: int = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


class Wire:
    """The hosts' ends of the cables."""

    def __init__(self, fabric: Fabric, plans: list[Plan]) -> None:
        self.fabric = fabric
        self.plans = plans
        self.mac = bytes.fromhex(fabric.switches[0].mac.replace(":", ""))
        self.sockets = []
        for n in range(1, len(fabric.hosts) + 1):
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
            sock.bind((f"h{n}", 0x0800))
            sock.setblocking(False)
            self.sockets.append(sock)

    def stream(self, rank: int, kind: str) -> RankStream:
        """A rank's stream on the only tree."""
        found = getattr(self.plans[rank].trees[0], kind)
        assert isinstance(found, RankStream)
        return found

    def send(
        self, rank: int, kind: str, psn: int, lanes: Lanes, opcode: Opcode = Opcode.WRITE_MIDDLE,
        *, operation: LaneOperation | None = None, corrupt: bool = False, ecn: int = roce.ECN_ECT0,
    ) -> None:
        """Sends one contribution."""
        stream, host = self.stream(rank, kind), self.fabric.hosts[rank]
        operation = USUAL[kind] if operation is None else operation
        bth = roce.BTH.pack(opcode, 0, roce.PKEY_WINDOWED, stream.peer_qp + operation, psn)
        payload = (roce.RETH.pack(1 << 32, 0, roce.PATH_MTU) if opcode.has_reth else b"") + struct.pack("!256I", *lanes)
        length = 8 + len(bth) + len(payload) + 4
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, ecn, 20 + length, 0, 0x4000, 64, 17, 0,
                         socket.inet_aton(host.address), socket.inet_aton(stream.peer))
        ip = ip[:10] + struct.pack("!H", ~ones_sum(ip) & 0xFFFF) + ip[12:]
        packet = ip + struct.pack("!HHHH", stream.source_port, stream.peer_port, length, 0) + bth + payload
        icrc = bytearray(roce.icrc(packet))
        icrc[0] ^= corrupt
        self.sockets[rank].send(self.mac + bytes.fromhex(host.mac.replace(":", "")) + b"\x08\0" + packet + icrc)

    async def receive(
        self, rank: int, kind: str, psn: int, operation: LaneOperation | None = None
    ) -> tuple[Lanes, int]:
        """Receives the result of this PSN and checks every header field.  Returns its lanes and ECN bits."""
        stream, host, before = self.stream(rank, kind), self.fabric.hosts[rank], self.fabric.hosts[rank - 1]
        async with asyncio.timeout(WAIT):
            while True:
                frame = await asyncio.get_running_loop().sock_recv(self.sockets[rank], 4096)
                if frame[6:12] == self.mac and struct.unpack("!I", frame[50:54])[0] & roce.PSN_MASK == psn:
                    break
        packet = frame[14:]
        assert frame[:6] == bytes.fromhex(host.mac.replace(":", "")), "destination MAC"
        assert ones_sum(packet[:20]) == 0xFFFF, "IPv4 checksum"
        assert packet[12:20] == socket.inet_aton(before.address) + socket.inet_aton(host.address), "addresses"
        if self.fabric.engine == "bmv2":
            assert packet[26:28] == bytes(2), "UDP checksum: none, which RoCEv2 allows"
        else:
            assert ones_sum(packet[12:20] + b"\0\x11" + packet[24:26] + packet[20:]) == 0xFFFF, "UDP checksum"
        assert roce.icrc(packet[:-4]) == packet[-4:], "ICRC"
        sport, dport = struct.unpack("!HH", packet[20:24])
        assert (sport, dport) == (self.stream(rank - 1, kind).source_port, PORTS[rank]), "UDP ports"
        opcode, _, _, qp, _ = roce.BTH.unpack(packet[28:40])
        assert qp & 0xFFFFFF == stream.qp + (USUAL[kind] if operation is None else operation), "queue pair"
        assert struct.unpack("!H", packet[4:6])[0] == psn & 0xFFFF, "IPv4 ID"
        start = 40 + (roce.RETH_BYTES if Opcode(opcode).has_reth else 0)
        return struct.unpack("!256I", packet[start:-4]), packet[1] & 3

    async def silence(self, rank: int, seconds: float = 0.2) -> bool:
        """True if nothing comes from the switch."""
        try:
            async with asyncio.timeout(seconds):
                while (await asyncio.get_running_loop().sock_recv(self.sockets[rank], 4096))[6:12] != self.mac:
                    pass
            return False
        except TimeoutError:
            return True


def total(rows: list[Lanes]) -> Lanes:
    """The expected result of a data stream."""
    return tuple(sum(column) & 0xFFFFFFFF for column in zip(*rows, strict=True))


def highest(rows: list[Lanes]) -> Lanes:
    """The expected result of an agreement stream."""
    return tuple(max(column) for column in zip(*rows, strict=True))


async def checks(fabric: Fabric, controller: Controller, rng: random.Random) -> None:
    """Runs all checks one after another, each on PSNs of its own."""
    plans = await asyncio.gather(*(
        controller.jobs.join(Join("j", RANKS, rank, fabric.hosts[rank].address, "10.0.0.1:1", roce.PATH_MTU,
                                  udp_port=PORTS[rank]))
        for rank in range(RANKS)
    ))
    wire = Wire(fabric, list(plans))

    def rows(bits: int) -> list[Lanes]:
        return [tuple(rng.getrandbits(bits) for _ in range(roce.LANES)) for _ in range(RANKS)]

    async def expect(kind: str, psn: int, lanes: Lanes, ecn: int = roce.ECN_ECT0) -> None:
        for rank in range(RANKS):
            assert await wire.receive(rank, kind, psn) == (lanes, ecn), f"{kind}, rank {rank}"

    kinds: tuple[tuple[str, int, Callable[[list[Lanes]], Lanes]], ...] = (
        ("data", 32, total), ("agreement", 31, highest),
    )
    for kind, bits, fold in kinds:
        psn = wire.stream(0, kind).psn
        slots = wire.stream(0, kind).slots
        # more than twice around the slots, in every order of ranks: every slot is taken over; repeated for who asks
        for step in range(2 * slots + 8):
            at, data = (psn + step) & roce.PSN_MASK, rows(bits)
            opcode = rng.choice([Opcode.WRITE_FIRST, Opcode.WRITE_MIDDLE, Opcode.WRITE_LAST, Opcode.WRITE_ONLY])
            for rank in rng.sample(range(RANKS), RANKS):
                wire.send(rank, kind, at, data[rank], opcode)
            await expect(kind, at, fold(data))
            if step % 8 == 0:
                wire.send(1, kind, at, data[1], opcode)
                assert (await wire.receive(1, kind, at))[0] == fold(data)

        # corrupt and doubled contributions do not count, a stall report names the missing rank, a mark reaches all
        at, data = (psn + 2 * slots + 8) & roce.PSN_MASK, rows(bits)
        for rank in range(RANKS):
            wire.send(rank, kind, at, rows(bits)[0], corrupt=True)
        for rank in (0, 0, 1):
            wire.send(rank, kind, at, data[rank])
        async with asyncio.timeout(WAIT):
            while True:
                stalls = await controller.inspection.stall("j")
                if [(s.missing, s.open) for s in stalls] == [([2], 1)]:
                    break
        assert await wire.silence(2), "a result without all ranks"
        (culprit,) = stalls[0].culprits
        assert (culprit.slot.psn, culprit.slot.bitmap, culprit.slot.missing) == (at, 0b011, ["rank 2 (h3)"])
        assert culprit.slot.slot % slots == at % slots
        wire.send(2, kind, at, data[2], ecn=roce.ECN_CE)
        await expect(kind, at, fold(data), roce.ECN_CE)

        # a late packet does not disturb the slot
        stale = (at - slots) & roce.PSN_MASK
        wire.send(0, kind, stale, data[0])
        assert await wire.silence(0), "an answer to a late packet"
        wire.send(0, kind, at, data[0])
        assert (await wire.receive(0, kind, at))[0] == fold(data)

    # every operation on one stream, one after another in its PSNs
    psn = wire.stream(0, "data").psn + 4 * wire.stream(0, "data").slots
    for step, operation in enumerate(list(LaneOperation) * 3):
        at, data = (psn + step) & roce.PSN_MASK, rows(32)
        for rank in range(RANKS):
            wire.send(rank, "data", at, data[rank], operation=operation)
        lanes = [np.array(row, np.uint32) for row in data]
        folded = tuple(int(lane) for lane in functools.reduce(functools.partial(combine, operation), lanes))
        for rank in range(RANKS):
            assert (await wire.receive(rank, "data", at, operation))[0] == folded, f"{operation.name}, rank {rank}"

    assert [s.missing for s in await controller.inspection.stall("j")] == [[]]
    status = await controller.status()
    assert status.switches[0].corrupt == 2 * RANKS
    host = next(link for link in status.links if link.b == "h1:0")
    assert host.a_to_b.packets > 0
    assert host.b_to_a.packets > 0


async def fold(fabric: Fabric) -> None:
    """Starts the controller, and runs all checks."""
    async with Controller(fabric, rng=random.Random(7), start_timeout=90) as controller:
        controller.allocator.sizes = Sizes(data=64, agreement=16)  # few slots, so that all are taken over
        await checks(fabric, controller, random.Random(11))


@in_sandbox(timeout=200)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_leaf_folds_as_written_down(engine: Engine, tmp_path: Path) -> None:
    """Every operation on every rank, header fields to the last bit, repeats, marks, corrupt and late packets; whom an
    open slot waits for."""
    fabric = leafspine(1, 0, RANKS, engine=engine, rundir=tmp_path, path_mtu=roce.PATH_MTU)
    ports = range(1, RANKS + 1)
    plug(*((f"v{port}", f"h{port}") for port in ports))
    Switches(fabric, tmp_path).start("leaf1", *(f"{port}@v{port}" for port in ports))
    asyncio.run(fold(fabric))
