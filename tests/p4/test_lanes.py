# SPDX-License-Identifier: Apache-2.0
"""p4src/lanes.p4 against numpy: what ADD means for each operation, in the compiled program."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from functools import cache, partial, reduce
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from netfold.testing import combine
from netfold.wire import roce
from netfold.wire.roce import LaneOperation
from softswitch.compiler.driver import compile_file
from softswitch.engine import entities, linking, local
from support.p4.program import rewrite

P4SRC = Path(__file__).resolve().parents[2] / "p4src"
Lanes = NDArray[np.uint32]

CHILDREN = 3
GROUP = 7
CONNECTION = 100
LANES = np.arange(roce.LANES, dtype=np.uint32)
SRC, DST = (socket.inet_aton(address) for address in ("10.0.1.1", "10.0.1.2"))
ENDS = (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFF8000, 0x80007FFF, 0x7F80807F)


@cache
def library() -> Path:
    return linking.build(compile_file(P4SRC / "netfold.p4"))


class Leaf:
    """One switch, root of a tree with three children at ports 1..3: one stream for all operations."""

    def __init__(self) -> None:
        self.switch = local.LocalEngine.open(library(), cpu_port=510)
        self.psn = 0
        replicas = tuple((port, port - 1) for port in range(1, CHILDREN + 1))
        self.switch.write_multicast("insert", entities.Multicast(GROUP, replicas))
        for child in range(CHILDREN):
            full = (1 << CHILDREN) - 1
            self.insert(
                "connection",
                [child + 1, int.from_bytes(SRC, "big"), int.from_bytes(DST, "big"), 50000,
                 CONNECTION * roce.QUEUE_PAIRS],
                "contribution",
                [GROUP, child, full, 1, 16, 15, child, 1, 1, 0],
            )
            self.insert("replica", [GROUP, child], "rewrite", rewrite(1, 2, 3, 4, 5, 6 * roce.QUEUE_PAIRS, child))

    def insert(self, table: str, key: list[int], action: str, params: list[int]) -> None:
        info = self.switch.table(table)
        packed, mask = info.pack_key([(v, (1 << k.bits) - 1) for v, k in zip(key, info.keys, strict=True)])
        found = info.action(action)
        self.switch.insert(entities.Entry(info, packed, mask, entities.DoAction(found.index, found.pack(params))))

    def fold(self, op: LaneOperation, rows: list[Lanes]) -> Lanes:
        """Every child's lanes in; the lanes that came out."""
        self.psn += 1
        out: list[tuple[int, bytes]] = []
        for child, lanes in enumerate(rows):
            assert not out, "a result before all children were in"
            out = self.switch.inject(child + 1, frame(CONNECTION * roce.QUEUE_PAIRS + op, self.psn, lanes))
        assert sorted(port for port, _ in out) == [1, 2, 3]
        assert {int.from_bytes(data[46:50]) for _, data in out} == {6 * roce.QUEUE_PAIRS + op}
        payloads = {data[54:-4] for _, data in out}
        assert len(payloads) == 1
        return np.frombuffer(payloads.pop(), ">u4").astype(np.uint32)


def frame(qp: int, psn: int, lanes: Lanes) -> bytes:
    inner = roce.BTH.pack(roce.Opcode.WRITE_MIDDLE, 0, roce.PKEY_WINDOWED, qp, psn) + lanes.astype(">u4").tobytes()
    udp = struct.pack("!HHHH", 50000, roce.UDP_PORT, 8 + len(inner) + 4, 0)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 2, 28 + len(inner) + 4, 0, 0x4000, 64, 17, 0, SRC, DST)
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


@pytest.mark.parametrize("operation", LaneOperation)
@given(rows=st.lists(lanes, min_size=CHILDREN, max_size=CHILDREN))
def test_lanes_add_as_numpy_does(operation: LaneOperation, leaf: Leaf, rows: list[Lanes]) -> None:
    """Whatever the lanes hold, a word's arithmetic is each lane's own, in the order in which children came; the
    operations share a connection's slots, PSN after PSN."""
    assert np.array_equal(leaf.fold(operation, rows), reduce(partial(combine, operation), rows))


@given(rows=st.lists(lanes, min_size=CHILDREN, max_size=CHILDREN))
def test_nothing_saturates_unseen(leaf: Leaf, rows: list[Lanes]) -> None:
    """Where a sum leaves the range at any step, the result is an end; everywhere else it is the exact sum."""
    result = leaf.fold(LaneOperation.SAT32, rows).view(np.int32).astype(np.int64)
    steps = np.cumsum([row.view(np.int32).astype(np.int64) for row in rows], axis=0)
    left = ((steps > 2**31 - 1) | (steps < -(2**31))).any(axis=0)
    at_end = (result == 2**31 - 1) | (result == -(2**31))
    assert at_end[left].all()
    assert (result == steps[-1])[~at_end].all()


def test_operations_that_nobody_knows_are_not_folded(leaf: Leaf) -> None:
    """Queue pairs of a connection beyond the operations: no slot takes them."""
    for op in range(max(LaneOperation) + 1, roce.QUEUE_PAIRS):
        leaf.psn += 1
        for child in range(CHILDREN):
            assert leaf.switch.inject(child + 1, frame(CONNECTION * roce.QUEUE_PAIRS + op, leaf.psn, LANES)) == []
    rows = [LANES] * CHILDREN
    assert np.array_equal(leaf.fold(LaneOperation.SUM32, rows), LANES * CHILDREN)
