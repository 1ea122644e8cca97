# SPDX-License-Identifier: Apache-2.0
"""The program way.p4, which tests of traces run: its packets, its routes, and steps of what it did."""

from __future__ import annotations

import struct

from softswitch.engine.byte_form import pack_fields
from softswitch.engine.entities import DoAction, Entry
from softswitch.engine.local import LocalEngine
from softswitch.trace import PacketTrace, Step, TracedEngine
from switch_support import TESTS

WAY = TESTS / "trace" / "way.p4"
SOURCE = WAY.read_text().splitlines()
ETHERNET = bytes.fromhex("001122334455 66778899aabb")


def ipv4(dst: str, *, tos: int = 0, version: int = 4, options: bytes = b"", wrong: int = 0) -> bytes:
    """An IPv4 packet to this address, with a right checksum but for `wrong`."""
    head = struct.pack(">BBH6xH4s4s", version << 4 | 5 + len(options) // 4, tos, 30, 0, bytes([192, 168, 0, 1]),
                       bytes(map(int, dst.split("."))))
    total = sum(struct.unpack(">10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    head = head[:10] + struct.pack(">H", (~total ^ wrong) & 0xFFFF) + head[12:]
    return ETHERNET + b"\x08\x00" + head + options + b"payload"


def line(text: str, after: str = "") -> int:
    """The number of the one line of the program with this text, behind a line with `after`."""
    first = next(i for i, row in enumerate(SOURCE) if after in row)
    return next(i + 1 for i, row in enumerate(SOURCE) if i >= first and text in row)


def fill(engine: LocalEngine) -> None:
    """Routes to each action."""
    table = next(t for t in engine.info.tables if t.name == "TheIngress.routes")
    actions = {action.name.rpartition(".")[2]: i for i, action in enumerate(table.actions)}

    def route(dst: int, action: str, *values: int) -> None:
        data = pack_fields(values, table.actions[actions[action]].param_bits, action)
        engine.insert(Entry(table, dst.to_bytes(4, "big"), b"\xff\xff\0\0", DoAction(actions[action], data)))

    route(0x0A010000, "forward", 2, 0x020202020202)
    route(0x0A020000, "group", 7)
    route(0x0A030000, "copy", 5)
    route(0x0A040000, "nothing")
    route(0x0A050000, "drop")
    filters = next(t for t in engine.info.tables if t.name == "TheIngress.filter")
    drop = next(i for i, a in enumerate(filters.actions) if a.name == "TheIngress.drop")
    engine.insert(Entry(filters, bytes(6) + b"\0\x05", bytes(6) + b"\0\x06", DoAction(drop), priority=10))


def one(engine: TracedEngine, frame: bytes, port: int = 1) -> PacketTrace:
    """The trace of a frame that comes in, which has to be the only one."""
    (trace,) = engine.receive_traced(port, frame)
    return trace


def only(trace: PacketTrace, what: str) -> Step:
    """The one step of this kind."""
    (step,) = trace.of(what)
    return step


def at(step: Step) -> int:
    """The line of a step, 0 without one."""
    return step.place.line if step.place is not None else 0
