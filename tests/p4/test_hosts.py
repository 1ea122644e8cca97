# SPDX-License-Identifier: Apache-2.0
"""Native hosts on the compiled P4 program, in process: the controller's own entries, frames as they stand on a wire."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from typing import get_args

import numpy as np
import pytest

from netfold.controller.switch import tables
from netfold.fabric.graph import End
from netfold.host.innet import abi, quantise
from netfold.host.innet.abi import AGREEMENT, DATA
from netfold.host.innet.core import Credits
from netfold.host.operation.coding import Coding, LaneBits
from netfold.wire import roce
from support import needs
from support.models.slot_model import MICROSECOND, SECOND, TerribleNetwork, udp_port
from support.p4.folding import P4Fabric, reduce
from switch_support.checksum import checksum


@pytest.fixture
def fabric(request: pytest.FixtureRequest) -> Iterator[P4Fabric]:
    """Parameters: leaves, spines, hosts, loss."""
    leaves, spines, hosts, loss = request.param
    made = P4Fabric(leaves, spines, hosts, TerribleNetwork(random.Random(11), loss=loss, packet_time=2 * MICROSECOND),
                    ports=[udp_port(rank) for rank in range(hosts)])
    yield made
    made.close()


FABRICS = [(1, 0, 3, 0.0), (1, 0, 3, 0.05), (2, 1, 4, 0.0), (2, 1, 4, 0.01), (2, 1, 4, 0.05), (2, 2, 4, 0.01)]


@pytest.mark.parametrize("fabric", FABRICS, indirect=True, ids=lambda f: f"{f[0]} leaves, {f[1]} spines, loss {f[3]}")
def test_sums_are_exact_on_the_compiled_program(fabric: P4Fabric) -> None:
    """int32 exact, floats the same bits on all ranks and right, operation after operation."""
    world = len(fabric.cores)
    rng = np.random.default_rng(2)
    for number in range(1, 4):
        ints = [rng.integers(-(2**31), 2**31, 20_000, dtype=np.int64).astype(np.int32) for _ in range(world)]
        expected = np.sum(np.array(ints, np.int64), axis=0).astype(np.int32)
        for out in reduce(fabric, ints, 2 * number):
            assert (out == expected).all()
        floats = [rng.standard_normal(10_001).astype(np.float32) for _ in range(world)]
        outs = reduce(fabric, floats, 2 * number + 1)
        assert np.abs(outs[0] - np.sum(np.array(floats, np.float64), axis=0)).max() < 1e-6
        for out in outs[1:]:
            assert (out.view(np.uint32) == outs[0].view(np.uint32)).all()
    if fabric.network.loss:
        assert fabric.network.lost > 0


@pytest.mark.parametrize("fabric", [(2, 2, 4, 0.02)], indirect=True)
def test_every_operation_on_the_compiled_program(fabric: P4Fabric) -> None:
    """Maxima, saturating sums and both narrow widths, one after another on one job's slots, under loss."""
    rng = np.random.default_rng(3)
    ints = [rng.integers(-(2**31), 2**31, 9000, dtype=np.int64).astype(np.int32) for _ in range(4)]
    floats = [rng.standard_normal(9000).astype(np.float32) for _ in range(4)]
    exact = np.sum(np.array(ints, np.int64), axis=0)
    for number in range(1, 13, 6):
        for out in reduce(fabric, ints, number, op="max"):
            assert (out == np.max(ints, axis=0)).all()
        for out in reduce(fabric, floats, number + 1, op="min"):
            assert (out == np.min(floats, axis=0)).all()
        for out in reduce(fabric, ints, number + 2, coding=Coding(saturate=True)):
            ends = (out == 2**31 - 1) | (out == -(2**31))
            assert ends[(exact != exact.astype(np.int32))].all()
            assert (out == exact)[~ends].all()
        for bits in get_args(LaneBits):
            agreed = np.maximum.reduce(np.array([quantise.scales(x, bits) for x in floats]))
            outs = reduce(fabric, floats, number + 3 + bits // 16, coding=Coding(bits))
            for out in outs[1:]:
                assert (out.view(np.uint32) == outs[0].view(np.uint32)).all()
            if bits != 32:
                lanes = np.sum([quantise.narrow(x, agreed, 4, bits) for x in floats], axis=0)
                assert (outs[0] == quantise.widen(lanes, agreed, 4, bits)).all()
    assert fabric.network.lost > 0


@pytest.mark.parametrize("fabric", [(2, 2, 4, 0.0)], indirect=True)
def test_every_link_carries_valid_roce_only(fabric: P4Fabric) -> None:
    """IPv4 and UDP checksums and the ICRC of every frame hold on every link; hosts see their ring predecessor."""
    reduce(fabric, [np.full(5000, rank, np.float32) for rank in range(4)], 1)
    assert len(fabric.seen) > 100
    hosts = {host.name: rank for rank, host in enumerate(fabric.hosts)}
    for node, frame in fabric.seen:
        ip = frame[14:]
        assert checksum(ip[:20]) == 0
        assert roce.icrc(ip[:-4]) == ip[-4:]
        assert len(ip) == 28 + roce.data_packet_bytes(roce.Opcode(ip[28]))
        if struct.unpack_from("!H", ip, 26)[0]:
            pseudo = ip[12:20] + b"\0\x11" + ip[24:26]
            assert checksum(pseudo + ip[20:]) == 0
        if node in hosts:
            predecessor = fabric.hosts[(hosts[node] - 1) % 4]
            assert socket.inet_ntoa(ip[12:16]) == predecessor.address


@pytest.mark.parametrize("fabric", [(2, 1, 4, 0.0)], indirect=True)
def test_scapy_accepts_the_frames(fabric: P4Fabric) -> None:
    """An independent implementation dissects a message's first, middle and last packet, and rebuilds the same ICRC."""
    scapy = pytest.importorskip("scapy.all", reason=needs.reason("scapy"))
    from scapy.contrib.roce import BTH

    from support.models.scapy_roce import RETH

    reduce(fabric, [np.full(256 * 70, rank, np.float32) for rank in range(4)], 1)
    some: dict[int, bytes] = {}
    for node, frame in fabric.seen:
        if node.startswith("h"):
            some.setdefault(frame[42], frame)
    assert set(some) >= {roce.Opcode.WRITE_FIRST, roce.Opcode.WRITE_MIDDLE, roce.Opcode.WRITE_LAST}
    for opcode, frame in some.items():
        packet = scapy.Ether(frame)
        assert packet[BTH].opcode == opcode
        assert (RETH in packet) == roce.Opcode(opcode).has_reth
        wire = packet[BTH].icrc
        packet[BTH].icrc = None
        rebuilt = scapy.Ether(bytes(packet))
        assert rebuilt[BTH].icrc == wire


@pytest.mark.parametrize("fabric", [(2, 1, 4, 0.0)], indirect=True)
def test_each_gradient_crosses_a_host_link_once(fabric: P4Fabric) -> None:
    """Without loss a host sends each block once and gets each result once, with one exponent packet for 256 blocks."""
    reduce(fabric, [np.ones(256 * 512, np.float32) for _ in range(4)], 1)
    for core in fabric.cores:
        sent = [core.state(0, kind).counters.sent for kind in (AGREEMENT, DATA)]
        received = [core.state(0, kind).counters.received for kind in (AGREEMENT, DATA)]
        assert sent == received == [1 + 2, 512]


@pytest.mark.parametrize("fabric", [(2, 1, 4, 0.0)], indirect=True)
def test_a_corrupt_contribution_is_dropped_at_the_first_hop(fabric: P4Fabric) -> None:
    """A bit flipped on the way to the leaf: counted there, never summed, sent again."""
    flipped = 0
    honest = fabric.transmit

    def transmit(end: End, frame: bytes) -> None:
        nonlocal flipped
        if end.node == "h1" and flipped < 5 and frame[42] == roce.Opcode.WRITE_MIDDLE:
            flipped += 1
            frame = frame[:500] + bytes([frame[500] ^ 1]) + frame[501:]
        honest(end, frame)

    fabric.transmit = transmit  # type: ignore[method-assign]
    ints = [np.arange(256 * 70, dtype=np.int32) * rank for rank in range(4)]
    for out in reduce(fabric, ints, 1):
        assert (out == np.arange(256 * 70) * 6).all()
    leaf = fabric.engines["leaf1"]
    assert leaf.read_counter(leaf.counter(tables.CORRUPT))[0].packets == 5


@pytest.mark.parametrize("fabric", [(2, 1, 4, 0.0)], indirect=True)
def test_mismatched_ranks_learn_it_through_the_switches(fabric: P4Fabric) -> None:
    """The MAX fold of the signature tells every rank the range of sizes that were called."""
    sources = [np.zeros(1000 + 1000 * (rank == 2), np.int32) for rank in range(4)]
    reduce(fabric, sources, 1)
    index = abi.FIELDS.index("elements")
    failures = [core.failure() for core in fabric.cores]
    assert all(failure.error for failure in failures)
    for failure in failures:
        if failure.error == abi.SIGNATURES_DIFFER:
            assert (failure.low[index], failure.high[index]) == (1000, 2000)


@pytest.mark.parametrize("other", [None, Credits(2, 20)], ids=str)
@pytest.mark.parametrize("size", [256 * 70, 256 * 400])
def test_credits_of_different_lengths_are_told_by_name(size: int, other: Credits | None) -> None:
    """Switches drop packets of messages that are cut otherwise, so that no result could tell: the signature does, to
    every rank, before anything waits for its time-out."""
    credits = [Credits(2, 10), other, Credits(2, 10)]
    fabric = P4Fabric(1, 0, 3, TerribleNetwork(random.Random(3), packet_time=2 * MICROSECOND), credits=credits)
    try:
        reduce(fabric, [np.zeros(size, np.int32)] * 3, 1)
        failures = [core.failure() for core in fabric.cores]
        assert fabric.network.now < SECOND
    finally:
        fabric.close()
    index = abi.FIELDS.index("packets of a message")
    assert [failure.error for failure in failures] == [abi.SIGNATURES_DIFFER] * 3
    for failure in failures:
        assert (failure.low[index], failure.high[index]) == (10, other.packets if other else 4096)
