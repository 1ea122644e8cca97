# SPDX-License-Identifier: Apache-2.0
"""Ranks that call different operations all learn it, and packets that are no results change nothing."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from netfold.host.innet import abi
from netfold.host.innet.abi import DATA
from netfold.host.innet.core import Core
from netfold.host.native.library import Origin
from netfold.wire import roce
from netfold.wire.plan import RankStream, RankTree
from support.models.slot_model import SECOND, Call, TerribleNetwork, as_result, make_fabric, run
from support.models.sources import integers


@pytest.mark.parametrize(
    ("first", "second", "field", "values"),
    [
        (np.zeros(1000, np.int32), np.zeros(2000, np.int32), "elements", (1000, 2000)),
        (np.zeros(1000, np.int32), np.zeros(1000, np.float32), "dtype", (0, 1)),
        (np.zeros(0, np.float32), np.zeros(5, np.float32), "elements", (0, 5)),
    ],
)
def test_ranks_that_disagree_all_learn_it(
    first: NDArray[Any], second: NDArray[Any], field: str, values: tuple[int, int]
) -> None:
    """With another size or dtype on one rank, every rank fails at once and knows the smallest and the largest value of
    all ranks."""
    network = TerribleNetwork(random.Random(3))
    fabric = make_fabric([[0, 1], [2]], network)
    sources = [first, second, first]
    calls = [[Call(source, np.empty_like(source), 1.0, 4)] for source in sources]
    for _ in run(fabric, calls, limit=SECOND):
        pass
    failures = [core.failure() for core in fabric.cores]
    assert all(failure.error for failure in failures)
    index = abi.FIELDS.index(field)
    told = [f for f in failures if f.error == abi.SIGNATURES_DIFFER]
    assert told
    for failure in told:
        assert (failure.low[index], failure.high[index]) == values


def test_another_operation_number_is_a_mismatch() -> None:
    """A rank that skipped an operation is found out by the next one."""
    network = TerribleNetwork(random.Random(3))
    fabric = make_fabric([0, 1], network)
    sources = integers(2, 100, 1)
    calls = [[Call(source, np.empty_like(source), 1.0, 7 + rank)] for rank, source in enumerate(sources)]
    for _ in run(fabric, calls, limit=SECOND):
        pass
    for core in fabric.cores:
        assert core.failure().error in (abi.SIGNATURES_DIFFER, abi.HEADERS_DIFFER)


RESULT = Origin.of("10.0.0.2", 50001, roce.RESULT_TTL)
"""Where the results of a lone core come from."""


def lone_core(*, slots: int = 64) -> Core:
    """A core whose packets go nowhere."""

    def stream(qp: int) -> RankStream:
        return RankStream(peer="10.0.0.2", peer_qp=qp + 8, qp=qp, source_port=50001, psn=10, slots=slots,
                          predecessor="10.0.0.2", predecessor_port=50001)

    return Core("10.0.0.1", 2, [RankTree(name="t", weight=1.0, data=stream(24), agreement=stream(40))])


def test_headers_of_another_message_are_reported_field_by_field() -> None:
    """For a result with another RETH than expected, the error has the operation, offset and length that came; before
    the signature is agreed on, which may say more, such a result is dropped."""
    core = lone_core()
    source = np.zeros(256 * 100, np.int32)
    core.start(5, source, np.empty_like(source), 1.0, 0)
    agreement, data = core.send(0), core.send(0)
    assert agreement is not None
    assert data is not None
    signature, packet = bytearray(agreement.packets()[0]), bytearray(data.packets()[0])
    roce.BTH.pack_into(signature, 0, roce.Opcode.WRITE_ONLY, 0, roce.PKEY_WINDOWED, 40 + roce.LaneOperation.MAX32, 10)
    roce.BTH.pack_into(packet, 0, roce.Opcode.WRITE_FIRST, 0, roce.PKEY_WINDOWED, 24, 10)
    roce.RETH.pack_into(packet, roce.BTH_BYTES, 6 << 32, 99, 4096)
    core.receive(as_result(bytes(packet), RESULT, core.address), 1, RESULT)
    assert core.failure().error == 0
    assert core.state(0, DATA).results == 0
    core.receive(as_result(bytes(signature), RESULT, core.address), 1, RESULT)
    core.receive(as_result(bytes(packet), RESULT, core.address), 1, RESULT)
    failure = core.failure()
    assert failure.error == abi.HEADERS_DIFFER
    assert (failure.expected_address >> 32, failure.got_address >> 32) == (5, 6)
    assert (failure.expected_length, failure.got_length) == (100 * 1024, 4096)


@given(st.binary(max_size=1200), st.integers(1, 1200))
def test_hostile_bytes_change_nothing(data: bytes, segment: int) -> None:
    """Random bytes, split anywhere, are no results: nothing crashes, and nothing is accepted."""
    core = lone_core()
    source = np.zeros(256 * 3, np.int32)
    core.start(5, source, np.empty_like(source), 1.0, 0)
    while core.send(0):
        pass
    core.receive(data, 1, RESULT, segment=segment)
    assert core.failure().error == 0
    assert core.state(0, DATA).results == 0


def test_results_of_what_was_never_sent_are_dropped() -> None:
    """A well-formed packet beyond the window counts as a duplicate and touches no data."""
    core = lone_core(slots=4)
    source = np.zeros(256 * 200, np.int32)
    out = np.full_like(source, 77)
    core.start(5, source, out, 1.0, 0)
    run_ = None
    while got := core.send(0):
        run_ = got
    assert run_ is not None
    for psn in (12, 13, 9, (10 + (1 << 23)) & roce.PSN_MASK):
        packet = bytearray(run_.packets()[-1])
        roce.BTH.pack_into(packet, 0, roce.Opcode.WRITE_MIDDLE, 0, roce.PKEY_WINDOWED, 24, psn)
        core.receive(as_result(bytes(packet), RESULT, core.address), 1, RESULT)
    assert core.state(0, DATA).counters.duplicates == 4
    assert (out == 77).all()
