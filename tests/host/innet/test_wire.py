# SPDX-License-Identifier: Apache-2.0
"""The native engine's packets against the documented format, and how messages are split into packets."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from netfold.host.innet.abi import AGREEMENT, DATA
from netfold.host.innet.core import Core
from netfold.host.native.library import Origin, Run
from netfold.wire import roce
from netfold.wire.plan import RankStream, RankTree
from support import needs
from support.models.slot_model import as_result, check_icrc, ip_packet

pytestmark = pytest.mark.slow

HEADER = Path(__file__).resolve().parents[3] / "host/native/roce.h"
SOURCE = "10.1.2.3"
SUM_QP, MAX_QP = 0x123450, 0x654320


def c_defines() -> dict[str, int]:
    """The plain numeric #defines of native/roce.h."""
    found = re.findall(r"^#define NF_(\w+)\s+(0x[0-9a-f]+|\d+)u?\b", HEADER.read_text(), re.M)
    return {name: int(text, 0) for name, text in found}


def test_c_sizes_equal_the_python_ones() -> None:
    """host/native/roce.h and wire/roce.py name the same numbers."""
    c = c_defines()
    assert c["MAX_PATH_MTU"] == roce.PATH_MTUS[-1]
    assert c["PKEY"] == roce.PKEY
    assert c["PKEY_WINDOWED"] == roce.PKEY_WINDOWED
    assert c["PSN_MASK"] == roce.PSN_MASK
    assert c["ECN_CE"] == roce.ECN_CE
    assert c["RESULT_TTL"] == roce.RESULT_TTL
    assert c["OPERATION_BITS"] == roce.OPERATION_BITS
    for operation in roce.LaneOperation:
        assert c[operation.name] == operation
    for name in ("IPV4_BYTES", "UDP_BYTES", "BTH_BYTES", "RETH_BYTES", "ICRC_BYTES"):
        assert c[name] == getattr(roce, name)
    for opcode in (roce.Opcode.WRITE_FIRST, roce.Opcode.WRITE_MIDDLE, roce.Opcode.WRITE_LAST, roce.Opcode.WRITE_ONLY):
        assert c[opcode.name] == opcode


def sum_runs(
    elements: int, *, psn: int = 0, number: int = 3, max_run: int = 60, agreement_port: int = 50124
) -> list[Run]:
    """Runs from source port 50123 of an int32 operation: its data stream, without the signature."""
    tree = RankTree(
        name="t",
        weight=1.0,
        data=RankStream(peer="10.1.2.4", peer_qp=SUM_QP, qp=8, source_port=50123, psn=psn, slots=1 << 16,
                        predecessor="10.1.2.2", predecessor_port=50123),
        agreement=RankStream(peer="10.1.2.4", peer_qp=MAX_QP, qp=16, source_port=agreement_port, psn=0, slots=64,
                             predecessor="10.1.2.2", predecessor_port=agreement_port),
    )
    core = Core(SOURCE, 4, [tree], max_run=max_run)
    source = np.arange(elements, dtype=np.int32)
    core.start(number, source, np.empty_like(source), 1.0, 0)
    runs = []
    while run := core.send(0):
        if run.source_port == 50123:
            runs.append(run)
    return runs


MESSAGE = 4096
"""Packets of the longest message."""


@settings(max_examples=20, deadline=None)
@example(256 * MESSAGE - 1, 0, 60)
@example(256 * MESSAGE, roce.PSN_MASK - 3, 60)
@example(256 * MESSAGE + 1, 7, 1)
@given(
    st.integers(1, 256 * 600),
    st.integers(0, roce.PSN_MASK),
    st.sampled_from([1, 2, 60]),
)
def test_messages_are_cut_as_rdma_writes(elements: int, psn: int, max_run: int) -> None:
    """FIRST (RETH) MIDDLE... LAST or ONLY, at most MESSAGE packets, consecutive PSNs, full payloads padded with
    zeros; of tensors of up to 64 KiB each packet is a message, so that all have one length."""
    packets = [packet for run in sum_runs(elements, psn=psn, max_run=max_run) for packet in run.packets()]
    count = -(-elements // roce.LANES)
    assert len(packets) == count
    data = b""
    for i, packet in enumerate(packets):
        opcode, flags, pkey, qp, ack_psn = roce.BTH.unpack_from(packet)
        assert (flags, pkey, qp) == (0, roce.PKEY_WINDOWED, SUM_QP)
        assert ack_psn & roce.PSN_MASK == (psn + i) & roce.PSN_MASK
        most = 1 if count <= 64 else MESSAGE
        place, message = i % most, i // most
        length = min(most, count - most * message)
        expected = (
            roce.Opcode.WRITE_ONLY if length == 1
            else roce.Opcode.WRITE_FIRST if place == 0
            else roce.Opcode.WRITE_LAST if place == length - 1
            else roce.Opcode.WRITE_MIDDLE
        )
        assert opcode == expected
        assert len(packet) == roce.data_packet_bytes(expected)
        assert ack_psn >> 31 == (place == length - 1), "acknowledgement is asked for at a message's end"
        start = roce.BTH_BYTES
        if expected.has_reth:
            assert roce.RETH.unpack_from(packet, start) == (3 << 32 | message * most * 1024, 0, length * 1024)
            start += roce.RETH_BYTES
        data += packet[start:-4]
    lanes = np.frombuffer(data, ">i4")
    assert (lanes[:elements] == np.arange(elements)).all()
    assert (lanes[elements:] == 0).all()


@settings(max_examples=20)
@given(st.integers(1, 256 * 300), st.sampled_from([1, 2, 60]))
def test_icrcs_hold_for_the_ids_that_the_kernel_writes(elements: int, max_run: int) -> None:
    """Segment i of a super-packet is sent with IPv4 ID i: its ICRC is the one of wire.roce for that header."""
    for run in sum_runs(elements, max_run=max_run):
        for ip_id, packet in enumerate(run.packets()):
            check_icrc(packet, ip_id, SOURCE, run.source_port, run.destination)


@pytest.mark.parametrize(("elements", "counts"), [(256 * 4, [5]), (256 * 64, [60, 5]), (256 * 65, [1, 2, 60, 3])])
def test_a_short_tensor_leaves_in_one_super_packet_with_its_signature(elements: int, counts: list[int]) -> None:
    """Where both streams of a tree have one source port; longer tensors leave by stream."""
    runs = sum_runs(elements, agreement_port=50123)
    assert [len(run.packets()) for run in runs] == counts
    first = [roce.BTH.unpack_from(packet)[3] & ~7 for packet in runs[0].packets()]
    assert first == [MAX_QP & ~7] + [SUM_QP & ~7] * (counts[0] - 1)
    for run in runs:
        for ip_id, packet in enumerate(run.packets()):
            check_icrc(packet, ip_id, SOURCE, run.source_port, run.destination)


def test_super_packets_stay_within_what_udp_takes() -> None:
    """At most 60 segments and 64 KiB; every segment but the last has the segment size, the last is no longer."""
    runs = sum_runs(256 * 1000)
    assert max(len(run.packets()) for run in runs) == 60
    for run in runs:
        assert len(run.data) <= 65_507
        sizes = [len(packet) for packet in run.packets()]
        assert all(size == run.segment for size in sizes[:-1])
        assert sizes[-1] <= run.segment
        assert sizes[-1] in (1040, 1056)
    assert len(runs) <= 4 * -(-256 // 60) + 4, "a FIRST costs no more than one short run a message"


def test_scapy_builds_the_same_packet() -> None:
    """Scapy produces the same bytes from its own layers, ICRC included."""
    scapy = pytest.importorskip("scapy.all", reason=needs.reason("scapy"))
    from scapy.contrib.roce import BTH

    from support.models.scapy_roce import RETH

    run = sum_runs(256 * 3)[0]
    for ip_id, packet in enumerate(run.packets()):
        opcode, _, pkey, qp, ack_psn = roce.BTH.unpack_from(packet)
        inner = BTH(opcode=opcode, pkey=pkey, dqpn=qp, ackreq=ack_psn >> 31, psn=ack_psn & roce.PSN_MASK)
        start = roce.BTH_BYTES
        if roce.Opcode(opcode).has_reth:
            address, rkey, length = roce.RETH.unpack_from(packet, start)
            inner = inner / RETH(address=address, rkey=rkey, length=length)
            start += roce.RETH_BYTES
        ip = scapy.IP(src=SOURCE, dst=run.destination, id=ip_id, flags="DF", tos=2, ttl=64)
        built = bytes(ip / scapy.UDP(sport=run.source_port, dport=4791) / inner / packet[start:-4])
        assert built[28:] == packet
        kernel = ip_packet(packet, ip_id, SOURCE, run.source_port, run.destination)
        assert struct.unpack_from("!H", kernel, 4) == struct.unpack_from("!H", built, 4)


def test_a_rank_can_begin_again_where_the_message_of_the_slowest_begins() -> None:
    """In jobs that cut messages, a new epoch begins up to a message below what the slowest rank lacks, while the
    fastest has sent two windows beyond that: all of it is kept (docs/protocol.md, "Trees planned anew")."""
    slots, message, slowest = 16, 4, 3
    window = slots // 2
    stream = RankStream(peer="10.1.2.4", peer_qp=SUM_QP, qp=8, source_port=50123, psn=0, slots=slots,
                        predecessor="10.1.2.2", predecessor_port=50123)
    agreement = msgspec.structs.replace(stream, peer_qp=MAX_QP, qp=16, source_port=50124, predecessor_port=50124)
    tree = RankTree(name="t", weight=1.0, data=stream, agreement=agreement)
    core = Core(SOURCE, 4, [tree], message=message)
    source = np.arange(256 * 100, dtype=np.int32)
    core.start(3, source, np.empty_like(source), 1.0, 0)
    origin = Origin.of(stream.predecessor, stream.predecessor_port, roce.RESULT_TTL)

    def sent() -> list[bytes]:
        packets: list[bytes] = []
        while run := core.send(0):
            packets += run.packets() if run.source_port == stream.source_port else []
        return packets

    packets = sent()
    while len(packets) < slowest + 2 * window:
        now_through = packets[: slowest + window]
        for packet in now_through:
            opcode, flags, pkey, _, psn = roce.BTH.unpack_from(packet)
            head = roce.BTH.pack(opcode, flags, pkey, stream.qp, psn)
            core.receive(as_result(head + packet[roce.BTH_BYTES :], origin, SOURCE), 0, origin)
        packets += sent()
    assert len(packets) == slowest + 2 * window
    core.resume([tree], 0)
    assert core.state(0, DATA).una_psn == 0


def test_a_stream_waits_since_its_last_result_or_its_first_packet_and_anew_after_a_halt() -> None:
    """Results of others do not count: a tree that has failed is noticed while another one brings results."""
    stream = RankStream(peer="10.1.2.4", peer_qp=SUM_QP, qp=8, source_port=50123, psn=0, slots=16,
                        predecessor="10.1.2.2", predecessor_port=50123)
    agreement = msgspec.structs.replace(stream, peer_qp=MAX_QP, qp=16, source_port=50124, predecessor_port=50124)
    tree = RankTree(name="t", weight=1.0, data=stream, agreement=agreement)
    core = Core(SOURCE, 4, [tree])
    source = np.arange(256 * 4, dtype=np.int32)
    core.start(3, source, np.empty_like(source), 1.0, 10)
    packets: list[bytes] = []
    while run := core.send(20):
        packets += run.packets() if run.source_port == stream.source_port else []

    def since() -> list[int]:
        return [core.state(0, kind).waits_since for kind in (DATA, AGREEMENT)]

    assert since() == [20, 20]
    opcode, flags, pkey, _, psn = roce.BTH.unpack_from(packets[0])
    origin = Origin.of(stream.predecessor, stream.predecessor_port, roce.RESULT_TTL)
    result = roce.BTH.pack(opcode, flags, pkey, stream.qp, psn) + packets[0][roce.BTH_BYTES :]
    core.receive(as_result(result, origin, SOURCE), 30, origin)
    assert since() == [30, 20]
    core.resume([tree], 40)
    assert since() == [40, 40]
