# SPDX-License-Identifier: Apache-2.0
"""p4src/lanes.p4 against numpy: what ADD means for each operation, in the compiled program."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from functools import cache, reduce
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from netfold.wire import roce
from softswitch import engine, entities
from softswitch.compiler.driver import compile_file

P4SRC = Path(__file__).resolve().parent.parent / "p4src"
Lanes = NDArray[np.uint32]

CHILDREN = 3
GROUP = 7
DST = socket.inet_aton("10.0.1.2")
ENDS = (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFF8000, 0x80007FFF, 0x7F80807F)


def sum_lanes(width: int, a: Lanes, b: Lanes) -> Lanes:
    lanes = {32: np.uint32, 16: np.uint16, 8: np.uint8}[width]
    return (a.view(lanes) + b.view(lanes)).view(np.uint32)


def saturate(a: Lanes, b: Lanes) -> Lanes:
    total = a.view(np.int32).astype(np.int64) + b.view(np.int32)
    return np.clip(total, -(2**31), 2**31 - 1).astype(np.int32).view(np.uint32)


OPERATIONS = {
    "OP_SUM32": lambda a, b: sum_lanes(32, a, b),
    "OP_SUM16": lambda a, b: sum_lanes(16, a, b),
    "OP_SUM8": lambda a, b: sum_lanes(8, a, b),
    "OP_SAT32": saturate,
    "OP_MAX32": np.maximum,
}


@cache
def library() -> Path:
    return engine.build(compile_file(P4SRC / "netfold.p4"))


def code(name: str) -> int:
    """The operation's number, from the program's own text."""
    for line in (P4SRC / "fold.p4").read_text().splitlines():
        if line.startswith(f"#define {name} "):
            return int(line.split()[2].removeprefix("8w"))
    raise LookupError(name)


class Leaf:
    """One switch, root of a tree with three children at ports 1..3, one stream an operation."""

    def __init__(self) -> None:
        self.switch = engine.Engine.in_process(library(), cpu_port=510)
        self.psn = 0
        for op in range(len(OPERATIONS)):
            group = GROUP + op
            replicas = tuple((port, port - 1) for port in range(1, CHILDREN + 1))
            self.switch.write_multicast("insert", entities.Multicast(group, replicas))
            for child in range(CHILDREN):
                full = (1 << CHILDREN) - 1
                self.insert(
                    "connection",
                    [child + 1, int.from_bytes(DST, "big"), 100 + op],
                    "contribution",
                    [group, child, full, 1, 16 * op, 15, op, 1, 1, 0],
                )
                self.insert("replica", [group, child], "rewrite", [1, 2, 3, 4, 5, 6, 7])

    def insert(self, table: str, key: list[int], action: str, params: list[int]) -> None:
        info = self.switch.table(table)
        packed, mask = info.pack_key([(v, (1 << k.bits) - 1) for v, k in zip(key, info.keys, strict=True)])
        found = info.action(action)
        self.switch.insert(entities.Entry(info, packed, mask, entities.DoAction(found.index, found.pack(params))))

    def fold(self, op: int, rows: list[Lanes]) -> Lanes:
        """Every child's lanes in; the lanes that came out."""
        self.psn += 1
        out: list[tuple[int, bytes]] = []
        for child, lanes in enumerate(rows):
            assert not out, "a result before all children were in"
            out = self.switch.inject(child + 1, frame(100 + op, self.psn, lanes))
        assert sorted(port for port, _ in out) == [1, 2, 3]
        payloads = {data[54:-4] for _, data in out}
        assert len(payloads) == 1
        return np.frombuffer(payloads.pop(), ">u4").astype(np.uint32)


def frame(qp: int, psn: int, lanes: Lanes) -> bytes:
    inner = roce.BTH.pack(roce.Opcode.WRITE_MIDDLE, 0, roce.PKEY, qp, psn) + lanes.astype(">u4").tobytes()
    udp = struct.pack("!HHHH", 50000, roce.UDP_PORT, 8 + len(inner) + 4, 0)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 2, 28 + len(inner) + 4, 0, 0x4000, 64, 17, 0, b"\x0a\0\1\1", DST)
    total = sum(struct.unpack("!10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack("!H", ~total & 0xFFFF) + ip[12:]
    return bytes(12) + b"\x08\0" + ip + udp + inner + roce.icrc(ip + udp + inner)


@pytest.fixture(scope="module")
def leaf() -> Iterator[Leaf]:
    one = Leaf()
    yield one
    one.switch.close()


ends = st.sampled_from(ENDS)
lanes = arrays(np.uint32, roce.LANES, elements=st.integers(0, 2**32 - 1) | ends, fill=ends)


@pytest.mark.parametrize("name", OPERATIONS)
@given(rows=st.lists(lanes, min_size=CHILDREN, max_size=CHILDREN))
def test_lanes_add_as_numpy_does(name: str, leaf: Leaf, rows: list[Lanes]) -> None:
    """Whatever the lanes hold, a word's arithmetic is each lane's own, in the order in which children came."""
    if name == "OP_MAX32":
        rows = [row & np.uint32(0x7FFFFFFF) for row in rows]  # its domain: exponents

    assert np.array_equal(leaf.fold(code(name), rows), reduce(OPERATIONS[name], rows))
