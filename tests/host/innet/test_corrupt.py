# SPDX-License-Identifier: Apache-2.0
"""Results that changed between the last switch and the rank: their ICRC is wrong, whatever else believes them."""

from __future__ import annotations

import logging
import random
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.host.errors import CollectiveTimeout
from netfold.host.innet.abi import DATA
from netfold.host.innet.core import Core, result_origin
from netfold.host.innet.fold import FoldRail
from netfold.host.innet.slot_switch import Nak, Packet
from netfold.host.operation.coding import Coding
from netfold.host.operation.rail import Op
from netfold.testing import loopback_job, on_every_rank
from netfold.wire import roce
from support.hosts.host import impatient
from support.hosts.insides import parts_of
from support.hosts.rows import COLLECTIVES, Operation
from support.models.slot_model import Call, TerribleNetwork, address, as_result, make_fabric, plan_trees, run
from switch_support.ports import wait_for


def spoiling(seed: int, loss: float) -> TerribleNetwork:
    return TerribleNetwork(random.Random(seed), loss=loss, duplicate=loss, spoil=0.2)


@pytest.mark.parametrize(("kind", "op", "coding"), [
    (np.float32, "sum", Coding()), (np.float32, "average", Coding(16)), (np.float32, "min", Coding()),
    (np.int32, "sum", Coding()), (np.int32, "sum", Coding(saturate=True)), (np.int32, "max", Coding()),
], ids=str)
@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_no_changed_bit_of_a_result_gets_into_an_allreduce(kind: type, op: Op, coding: Coding, loss: float) -> None:
    """A bit of one result in five changes, in headers, lanes or ICRC: all have the bits of a network that changes
    none, and what was spoiled is counted."""
    sources: list[Any] = [(np.random.default_rng(rank).standard_normal(5000) * 1000).astype(kind) for rank in range(3)]

    def carry(network: TerribleNetwork) -> tuple[list[bytes], int]:
        fabric = make_fabric([[0, 1], [2]], network, trees=2)
        calls = [[Call(s, np.empty_like(s), 3.0 if op == "average" else 1.0, n, op, coding) for n in (1, 2)]
                 for s in sources]
        for _ in run(fabric, calls):
            pass
        assert not any(core.failure().error for core in fabric.cores)
        dropped = sum(core.corrupt() + core.foreign() for core in fabric.cores)
        return [call.out.tobytes() for own in calls for call in own], dropped

    expected, none = carry(TerribleNetwork(random.Random(0)))
    network = spoiling(1, loss)
    got, dropped = carry(network)
    assert got == expected
    assert (none, dropped) == (0, network.spoiled)
    assert network.spoiled > 10


@settings(max_examples=20, deadline=None)
@given(kinds=st.lists(st.sampled_from(COLLECTIVES), min_size=1, max_size=4), seed=st.integers(0, 99),
       loss=st.sampled_from([0.0, 0.05]), presence=st.booleans(), path_mtu=st.sampled_from([1024, 4096]))
def test_nor_into_any_other_collective(
    kinds: list[Any], seed: int, loss: float, presence: bool, path_mtu: int
) -> None:
    """Rows that are gathered, broadcast or scattered, presence, NAKs and signatures, too."""
    network = spoiling(seed, loss)
    fabric = make_fabric([[0, 1], [2]], network, presence=presence, path_mtu=path_mtu)
    operations = [Operation(kind, [700, 0, 3000], root=2, number=n, seed=seed) for n, kind in enumerate(kinds, 1)]
    for _ in run(fabric, [[one.requests[rank] for one in operations] for rank in range(3)]):
        pass
    assert not any(core.failure().error for core in fabric.cores)
    for one in operations:
        for got, expected in zip(one.outs, one.expected, strict=True):
            assert (got == expected).all()
    assert sum(core.corrupt() + core.foreign() for core in fabric.cores) == network.spoiled


@pytest.fixture
def rank() -> tuple[Core, list[bytes]]:
    """A rank of two, whose data has left, and the results of that."""
    core = Core(address(0), 2, plan_trees(0, 2))
    stream = core.trees[0].data
    source = np.arange(10 * roce.LANES, dtype=np.int32)
    core.start(1, source, np.empty_like(source), 1.0, 0)
    results = []
    while sent := core.send(0):
        for packet in sent.packets():
            opcode, flags, pkey, qp, psn = roce.BTH.unpack_from(packet)
            if qp & ~7 == stream.peer_qp:
                head = roce.BTH.pack(opcode, flags, pkey, stream.qp + (qp & 7), psn)
                results.append(as_result(head + packet[roce.BTH_BYTES :], result_origin(stream), core.address))
    return core, results


def test_each_packet_of_a_super_packet_is_checked_by_itself(rank: tuple[Core, list[bytes]]) -> None:
    """The kernel joins packets and shows one header; of five such, the one that changed is dropped."""
    core, results = rank
    middles = results[1:6]
    middles[2] = middles[2][:500] + bytes([middles[2][500] ^ 8]) + middles[2][501:]
    core.receive(b"".join(middles), 1, result_origin(core.trees[0].data), segment=len(middles[0]))
    assert core.corrupt() == 1
    assert core.state(0, DATA).counters.received == 4


def test_a_spoiled_nak_makes_nothing_leave_again(rank: tuple[Core, list[bytes]]) -> None:
    """A whole one is answered; one with a bit of its PSN or of its end changed is dropped and counted."""
    core, _ = rank
    stream = core.trees[0].data
    nak = as_result(Nak(0, 1).build(stream.qp), result_origin(stream), core.address)
    for at in (11, 15):
        core.receive(nak[:at] + bytes([nak[at] ^ 2]) + nak[at + 1 :], 1, result_origin(stream))
    assert (core.corrupt(), core.send(1)) == (2, None)
    core.receive(nak, 2, result_origin(stream))
    assert core.send(2) is not None


def test_where_every_result_changes_a_timeout_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody returns a sum, and nobody waits beyond the timeout."""
    build = Packet.build
    monkeypatch.setattr(Packet, "build", lambda *asked: build(*asked)[:-4] + bytes(4))
    with loopback_job(2) as comms, ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(comm.allreduce, np.arange(300, dtype=np.int32)) for comm in comms]
        rails = [cast(FoldRail, parts_of(comm).dispatch.switches) for comm in comms]
        wait_for(lambda: all(rail.core.corrupt() for rail in rails))
        impatient(comms, 0.3)
        for error in [call.exception(60) for call in calls]:
            assert isinstance(error, CollectiveTimeout)
            assert re.search(r"\d+ results had a wrong ICRC", str(error))


def test_over_sockets_sums_are_right_and_a_warning_names_the_host(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Forty results lose a bit behind the switch: every element is right, the statistics count the drops, and one
    warning says where to look."""
    left = iter(range(40))
    build = Packet.build

    def spoiled(*asked: Any) -> bytes:
        bent = bytearray(build(*asked))
        if len(bent) > 500 and next(left, None) is not None:
            bent[200] ^= 1
        return bytes(bent)

    monkeypatch.setattr(Packet, "build", spoiled)
    with caplog.at_level(logging.WARNING, "netfold"), loopback_job(3) as comms:
        x = np.arange(3000, dtype=np.int32)
        for out in on_every_rank(comms, lambda comm: comm.allreduce(x)):
            assert (out == 3 * x).all()
        assert sum(comm.stats().packets_corrupt for comm in comms) == 40
    assert next(left, None) is None
    warnings = [r.getMessage() for r in caplog.records if "ICRC is wrong" in r.getMessage()]
    assert any("the NIC of 127." in words for words in warnings)
