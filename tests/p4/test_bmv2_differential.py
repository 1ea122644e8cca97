# SPDX-License-Identifier: Apache-2.0
"""The program of p4src on softswitch and on the real BMv2: the same frames into both, the same frames out of both."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from netfold.wire import roce
from softswitch.engine.engine import Engine
from softswitch.engine.entities import DoAction, Entry, Multicast
from softswitch.engine.local import LocalEngine
from support.p4.program import library, on_bmv2, rewrite
from switch_support.bmv2 import by_port

pytestmark = pytest.mark.needs("bmv2")

SOURCE, HOST = 0x0A000101, 0x0A000102
SPORT = 50000
TOP, BRANCH, PARENT = 100, 200, 300        # connections: 8 queue pairs each, of which 5 are operations
PARENT_PORT, ROUTED_PORT = 3, 4
SLOTS = 32
UP_TO_PARENT = 0xFFFF


def fold_entries(engine: Engine) -> tuple[list[Entry], list[Multicast]]:
    """A tree whose root is here, and one whose parent is beyond port 3; three children each."""
    entries: list[Entry] = []
    groups: list[Multicast] = []

    def add(table: str, key: list[int], action: str, params: list[int]) -> None:
        info = engine.table(table)
        packed, mask = info.pack_key([(v, field.ones) for v, field in zip(key, info.keys, strict=True)])
        found = info.action(action)
        entries.append(Entry(info, packed, mask, DoAction(found.index, found.pack(params))))

    for root, connection, group in ((1, TOP, 1), (0, BRANCH, 11)):
        groups.append(Multicast(group, ((0, 0), (1, 1), (2, 2))))
        for child in range(3):
            add("connection", [child, SOURCE, HOST, SPORT, 8 * connection], "contribution",
                [group, child, 7, 5, SLOTS * group, SLOTS - 1, 4 * group + child, root, 1, PARENT_PORT])
            add("replica", [group, child], "rewrite",
                rewrite(0xA0, 0xB0 + child, 1, 2 + child, 50000, 8 * (77 + child), 4 * group + child))
    add("connection", [PARENT_PORT, SOURCE, HOST, SPORT, 8 * PARENT], "result", [11, 7, 5, SLOTS * 11, SLOTS - 1, 47])
    add("replica", [11, UP_TO_PARENT], "rewrite", rewrite(0xA1, 0xB9, 11, 12, 50001, 8 * 99, 47))
    add("route", [HOST], "forward", [ROUTED_PORT, 0xA2, 0xB2])
    for port in (0, 1):             # port 2 has no entry: what is not folded there is dropped
        add("guard", [port], "host", [SOURCE, 0])
    add("guard", [PARENT_PORT], "neighbour", [])
    return entries, groups


def ones_complement(data: bytes) -> int:
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def roce_frame(rng: random.Random, qp: int, psn: int) -> bytes:
    """A full-size WRITE, of the opcode that goes with its PSN and often with an order; now and then something is wrong
    with it."""
    opcodes = [roce.Opcode.WRITE_FIRST, roce.Opcode.WRITE_MIDDLE, roce.Opcode.WRITE_LAST]
    opcode = opcodes[(psn + (rng.random() < 0.05)) % len(opcodes)]
    order = rng.choice([0, 0, -1, 1, 2, roce.ORDER_UNSAID, rng.randrange(1 << roce.ORDER_BITS)])
    high, low = roce.order_bytes(order)
    inner = roce.BTH.pack(opcode, 0, roce.PKEY_WINDOWED, qp | high << 24, psn | low << 24)
    inner += roce.RETH.pack(rng.randrange(1 << 40), 0, 4096) if opcode.has_reth else b""
    inner += rng.randbytes(roce.PATH_MTU if rng.random() < 0.95 else 512)
    udp = struct.pack(">HHHH", SPORT + (rng.random() < 0.05), roce.UDP_PORT, 8 + len(inner) + 4, 0)
    tos, ttl = rng.choice([2, 2, 2, 3]), rng.choice([64, 64, 255, 1])
    source = SOURCE + (rng.random() < 0.05)
    length, ident = 20 + len(udp) + len(inner) + 4, rng.randrange(1 << 16)
    ip = struct.pack(">BBHHHBBHII", 0x45, tos, length, ident, 0x4000, ttl, 17, 0, source, HOST)
    ip = ip[:10] + struct.pack(">H", ones_complement(ip) ^ (rng.random() < 0.03)) + ip[12:]
    icrc = bytearray(roce.icrc(ip + udp + inner))
    icrc[0] ^= rng.random() < 0.05
    return bytes(12) + b"\x08\0" + ip + udp + inner + bytes(icrc)


def fold_frames(rng: random.Random, count: int) -> list[tuple[int, bytes]]:
    """Children and the parent, in an order that no host would keep, around the PSN's wrap; each PSN has an operation,
    mostly the same for all, and some have one that no switch knows."""
    frames = []
    for _ in range(count):
        step = rng.randrange(24)
        psn = (0xFFFFF8 + step + SLOTS * rng.choice([0, 0, 0, 0, 1, 2])) & roce.PSN_MASK
        op = step % 6 if rng.random() < 0.9 else rng.randrange(8)
        if rng.random() < 0.15:
            frames.append((PARENT_PORT, roce_frame(rng, 8 * PARENT + op, psn)))
        else:
            qp = 8 * rng.choice([TOP, BRANCH]) + op if rng.random() < 0.95 else 9999
            frames.append((rng.randrange(3), roce_frame(rng, qp, psn)))
    return frames


@pytest.mark.parametrize("seed", range(2))
def test_the_fold_program_folds_as_on_bmv2(tmp_path: Path, seed: int) -> None:
    """Every operation, at a root and below one, with late, repeated, corrupt, marked and foreign packets, and some from
    other addresses and UDP ports than the ranks'; what is routed never leaves with a result's TTL."""
    print(f"seed {seed}")
    frames = fold_frames(random.Random(seed), 2500)
    with LocalEngine.open(library(bmv2=True), cpu_port=510) as engine, on_bmv2(tmp_path, ports=5) as bmv2:
        entries, groups = fold_entries(engine)
        for group in groups:
            engine.write_multicast("insert", group)
        bmv2.replicate(groups, ())
        for entry in entries:
            engine.insert(entry)
            assert bmv2.write_entry("insert", entry)
        sent = [engine.inject(port, data) for port, data in frames]
        ours = by_port(sent)
        bmv2.inject(frames, sent)
        theirs = bmv2.outputs({port: len(left) for port, left in ours.items()})

    print({port: len(left) for port, left in ours.items()})
    assert all(len(ours[port]) > 10 for port in range(5))
    assert {frame[22] for port in range(4) for frame in ours[port]} == {roce.RESULT_TTL}
    assert {frame[22] for frame in ours[ROUTED_PORT]} == {63, 254}
    for port in range(5):
        assert sorted(f.hex() for f in ours[port]) == sorted(f.hex() for f in theirs.get(port, [])), f"port {port}"
