# SPDX-License-Identifier: Apache-2.0
"""Results that are larger than the caches and pass them by, beside the same results written in place."""

from __future__ import annotations

import numpy as np
import pytest

from netfold.host.innet.core import Core, result_origin
from netfold.host.operation.coding import Coding
from netfold.host.operation.rail import Flat, Op
from netfold.wire.plan import RankStream, RankTree
from support.models.slot_model import as_result

SIZE = (1 << 20) + 777
"""Elements: more bytes than NF_LARGE (native/fold_state.h), and the last packet not full."""
ROOM = 32
"""Elements before and behind a result, which stay as they are."""


def stream(number: int) -> RankStream:
    return RankStream(peer="10.0.0.2", peer_qp=number, qp=number, source_port=50001, psn=0, slots=1024,
                      predecessor="10.0.0.2", predecessor_port=50001)


def fold_alone(core: Core, number: int, source: Flat, out: Flat, op: Op, coding: Coding) -> None:
    """Runs an operation of one rank, whose packets are their own results."""
    core.start(number, source, out, 1.0, 0, op=op, coding=coding)
    origin = result_origin(core.trees[0].data)
    while not core.finished():
        while run := core.send(0):
            results = b"".join(as_result(packet, origin, core.address) for packet in run.packets())
            core.receive(results, 0, origin, segment=run.segment)


@pytest.mark.parametrize(("kind", "op", "coding"), [
    (np.float32, "sum", Coding()), (np.float32, "sum", Coding(16)), (np.float32, "sum", Coding(8)),
    (np.float32, "min", Coding()), (np.int32, "sum", Coding()), (np.int32, "sum", Coding(saturate=True)),
], ids=str)
def test_large_results_have_the_bits_of_those_in_place(kind: type, op: Op, coding: Coding) -> None:
    """Wherever the output begins within a line of the caches, and nothing around it changes."""
    core = Core("10.0.0.1", 1, [RankTree(name="t", weight=1.0, agreement=stream(8), data=stream(16))], path_mtu=4096)
    scale = 1 if kind is np.float32 else 1 << 28
    source: Flat = (np.random.default_rng(1).standard_normal(SIZE) * scale).astype(kind)
    expected = source.copy()
    fold_alone(core, 1, expected, expected, op, coding)
    for number, shift in enumerate((0, 15), start=2):
        memory: Flat = np.full(SIZE + 2 * ROOM, 7, kind)
        first = -memory.ctypes.data % 64 // 4 + shift
        out = memory[first : first + SIZE]
        fold_alone(core, number, source, out, op, coding)
        assert out.tobytes() == expected.tobytes()
        memory[first : first + SIZE] = 7
        assert (memory == 7).all()
    core.close()
