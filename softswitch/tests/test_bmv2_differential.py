# SPDX-License-Identifier: Apache-2.0
"""softswitch against the real BMv2: the same frames into both, the same frames out of both, bit for bit."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from softswitch.compiler.driver import compile_file
from softswitch.engine.entities import CloneSession, Do, DoAction, DoGroup, DoMember, Entry, Group, Multicast
from softswitch.engine.errors import EngineError
from softswitch.engine.local import LocalEngine
from softswitch.engine.program_info import KeyField, MatchKind, TableInfo
from switch_support import NATIVE
from switch_support.bmv2 import Bmv2, by_port

TRAFFIC, TABLES = NATIVE / "traffic.p4", NATIVE / "tables.p4"
PORTS = 8
GROUPS = (Multicast(1, ((4, 10), (5, 11), (4, 12))), Multicast(2, ((6, 1),)))
SESSIONS = (CloneSession(1, ((6, 0),)), CloneSession(2, ((6, 3), (7, 4))))

pytestmark = pytest.mark.needs("bmv2")


def frame(op: int, a: int = 0, b: int = 0, c: int = 0, rest: bytes = b"payload of the frame, 32 bytes in") -> bytes:
    return struct.pack(">BBHI", op, a, b, c) + rest


def everything(rng: random.Random) -> list[tuple[int, bytes]]:
    """Every operation of traffic.p4 with every choice that changes its course, and frames too short to parse."""
    frames = [frame(0, b=2), frame(2), *(frame(1, a=a, b=b) for a in (0, 10, 11) for b in (1, 2, 9))]
    frames += [frame(op, a=a, b=b, c=2) for op in (3, 4) for a in (0, 1) for b in (1, 2, 9, 0x8001)]
    frames += [frame(5, a=a, b=2) for a in (0, 1)]
    frames += [frame(6, a=a, b=2, c=c) for a in (0, 1) for c in (0, 1, 3)]
    frames += [frame(op, b=1, c=c) for op in (7, 8) for c in (0, 1, 7, 8, 20, 1000)]
    frames += [frame(7, a=a, b=1, c=20) for a in (10, 30)]
    frames += [frame(9, a=a, b=2, c=c) for a in (1, 2, 9) for c in (0, 1)]
    frames += [frame(10, b=2), *(frame(11, a=a, b=2) for a in (0, 1)), frame(12, b=2)]
    frames += [frame(13, a=a, b=rng.randrange(1 << 16), c=rng.randrange(1 << 32)) for a in range(8) for _ in range(4)]
    for i in range(len(frames)):
        if frames[i][0] == 13:      # b is hashed and is the port as well
            frames[i] = frames[i][:2] + struct.pack(">H", rng.randrange(128) << 9 | 2) + frames[i][4:]
    frames += [bytes(range(n)) for n in range(1, 8)]
    frames += [frame(0, b=2, rest=rng.randbytes(n)) for n in (0, 1, 1400, 9000)]
    return [(rng.randrange(PORTS), f) for f in frames]


def test_the_traffic_manager_does_what_bmv2s_does(tmp_path: Path) -> None:
    """Clones, resubmission, recirculation, multicast, truncation, exit, drops, metadata and hashes."""
    frames = everything(random.Random(1))
    with LocalEngine.open(compile_file(TRAFFIC)) as engine:
        for group in GROUPS:
            engine.write_multicast("insert", group)
        for session in SESSIONS:
            engine.write_clone_session("insert", session)
        sent = [engine.inject(port, data) for port, data in frames]
    ours = by_port(sent)

    with Bmv2(TRAFFIC, tmp_path, ports=PORTS) as bmv2:
        bmv2.replicate(GROUPS, SESSIONS)
        bmv2.inject(frames, sent)
        theirs = bmv2.outputs({port: len(left) for port, left in ours.items()})
    # a frame that was truncated to nothing is a record in BMv2's files, and nothing on an interface
    theirs = {port: [data for data in left if data] for port, left in theirs.items()}

    assert sum(map(len, ours.values())) > 100
    for port in range(PORTS):
        # Different queues inside BMv2 may overtake each other; what left a port is compared as a collection.
        assert sorted(f.hex() for f in ours[port]) == sorted(f.hex() for f in theirs.get(port, [])), f"port {port}"


def draw_field(rng: random.Random, key: KeyField) -> tuple[int, int]:
    """A match from a small space, so that entries overlap and frames hit them."""
    value = rng.choice([0, 1, 2, 3, 0x0A000001 & key.ones, 0x0A000100 & key.ones, key.ones])
    match key.match:
        case MatchKind.EXACT:
            return value, key.ones
        case MatchKind.LPM:
            return key.prefix(value, rng.choice([0, 1, 8, 24, 31, 32]))
        case MatchKind.TERNARY:
            mask = rng.choice([0, 1, 3, 0xFF, 0xFF00 & key.ones, key.ones, key.ones])
            return value & mask, mask
        case MatchKind.RANGE:
            low, high = sorted((value, rng.choice([0, 2, 5, key.ones])))
            return low, high
        case MatchKind.OPTIONAL:
            return rng.choice([(value, key.ones), (0, 0)])


def draw_entry(rng: random.Random, table: TableInfo, verdict: int) -> Entry:
    key, mask = table.pack_key([draw_field(rng, field) for field in table.keys])
    priority = rng.randint(1, 3) if table.has_priority else 0
    say = next(action for action in table.actions if action.param_bits)
    return Entry(table, key, mask, DoAction(say.index, say.pack([verdict])), priority)


@pytest.mark.parametrize("seed", range(3))
def test_tables_choose_as_bmv2s_do(tmp_path: Path, seed: int) -> None:
    """Random inserts, modifies and deletes on tables of every kind, ties included; then random frames."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    with LocalEngine.open(compile_file(TABLES)) as engine, Bmv2(TABLES, tmp_path, ports=2) as bmv2:
        kinds = [t for t in engine.info.tables if t.profile < 0]
        made: list[Entry] = []
        for verdict in range(250):
            kind = rng.choice(["insert", "insert", "insert", "modify", "delete"])
            entry = draw_entry(rng, rng.choice(kinds), verdict)
            if made and rng.random() < 0.5:
                old = rng.choice(made)
                say = next(action for action in old.table.actions if action.param_bits)
                do = DoAction(say.index, say.pack([verdict]))
                entry = Entry(old.table, old.key, old.mask, do, old.priority)
            made.append(entry)
            try:
                {"insert": engine.insert, "modify": engine.modify, "delete": engine.delete}[kind](entry)
                done = True
            except EngineError:
                done = False
            assert bmv2.write_entry(kind, entry) == done, (kind, entry)

        profile, table = engine.profile("spread"), engine.table("select_t")
        say = next(action for action in table.actions if action.param_bits)
        for member in (7, 3, 9, 5):
            engine.write_member("insert", profile, member, table, DoAction(say.index, say.pack([member])))
            assert bmv2.write_member(profile.name, member, say, say.pack([member]))
        for group in (Group(1, ((3, 1), (5, 1), (7, 1))), Group(2, ((9, 1),))):
            engine.write_group("insert", profile, group)
            assert bmv2.write_group(profile.name, group)
        choices: list[Do] = [DoGroup(1), DoGroup(2), DoMember(5)]
        for flags, choice in enumerate(choices):
            entry = Entry(table, bytes([flags]), b"\xff", choice)
            engine.insert(entry)
            assert bmv2.write_entry("insert", entry)

        frames = [b"".join((
            struct.pack(">HI", rng.choice([0, 1, 2, 3, 5, 0xFFF]) << 4 | rng.choice([0, 1, 2, 3, 15]),
                        rng.choice([0, 1, 2, 3, 0x0A000001, 0x0A000100, 0x0A0001FF, 0xFFFFFFFF])),
            rng.choice([0, 1, 2, 3, 0x0A000001, 0xFFFFFFFFFFFF]).to_bytes(6, "big"),
            rng.choice([0, 0, 0, 1, 2, 3, 0xFF]).to_bytes(1, "big"), struct.pack(">H", i))) for i in range(600)]
        sent = [engine.inject(0, data) for data in frames]
        ours = by_port(sent)[1]
        bmv2.inject([(0, data) for data in frames], sent)
        theirs = bmv2.outputs({1: len(ours)})[1]

    assert [f.hex(" ", 4) for f in ours] == [f.hex(" ", 4) for f in theirs]
