# SPDX-License-Identifier: Apache-2.0
"""Queue pairs in simulated time: whatever the network does, every byte arrives once and in its place."""

from __future__ import annotations

import random
import struct
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.host.native.library import Origin
from netfold.host.roce.endpoint import Connection, Endpoint
from netfold.host.roce.native import ARRIVED, BROKEN, SENT
from netfold.wire import roce
from netfold.wire.roce import Opcode
from support import needs
from support.models.roce import PORT, Datagram, Wires, Writer, address, connect, some_bytes
from support.models.slot_model import MICROSECOND, MILLISECOND, TerribleNetwork


def pair_of(
    seed: int = 1, *, psn: int = 0, window: int = 64, path_mtu: int = 1024, patience: int = 3, max_run: int = 60,
    **faults: float,
) -> Wires:
    """Two endpoints with one connection between them."""
    a, b = (
        Endpoint(address(i), window=window, path_mtu=path_mtu, reorder=patience, max_run=max_run) for i in range(2)
    )
    connect(a, b, psn=psn)
    network = TerribleNetwork(random.Random(seed), packet_time=MICROSECOND, **faults)  # type: ignore[arg-type]
    return Wires(network, [a, b])


def messages(seed: int, lengths: list[int]) -> list[np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    """Random bytes: a message of each of these lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, length, dtype=np.uint8) for length in lengths]


def parse(payload: bytes) -> tuple[int, int, int, int]:
    """Opcode, pad bytes, PSN, AETH syndrome (of an ACK, else -1)."""
    opcode, flags, _, _, ack_psn = roce.BTH.unpack_from(payload)
    return opcode, flags >> 4 & 3, ack_psn & roce.PSN_MASK, payload[12] if opcode == Opcode.ACKNOWLEDGE else -1


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(1, 40_000), min_size=1, max_size=8),
    psn=st.sampled_from([0, 1, 0x7FFFFF, 0xFFFFF0, 0xFFFFFF]),
    loss=st.sampled_from([0.0, 0.01, 0.1, 0.3]),
    duplicate=st.sampled_from([0.0, 0.2]),
    reorder=st.sampled_from([0.0, 0.3]),
    mark=st.sampled_from([0.0, 0.5]),
    spoil=st.sampled_from([0.0, 0.1]),
    path_mtu=st.sampled_from([256, 1024, 4096]),
    window=st.sampled_from([2, 16, 128]),
)
def test_every_byte_arrives_once_over_a_terrible_network(
    seed: int, lengths: list[int], psn: int, loss: float, duplicate: float, reorder: float, mark: float, spoil: float,
    path_mtu: int, window: int,
) -> None:
    """Messages of any size in both directions, with any fault, changed bits included: memory equals the source, events
    come once and in order, and each packet that changed was dropped."""
    wires = pair_of(seed, psn=psn, window=window, path_mtu=path_mtu, loss=loss, duplicate=duplicate, reorder=reorder,
                    mark=mark, spoil=spoil)
    there = Writer(wires, 0, 1, 0, messages(seed, lengths))
    back = Writer(wires, 1, 0, 0, messages(seed + 1, lengths[::-1]))
    wires.run(lambda: there.done() and back.done())
    there.check()
    back.check()
    assert sum(end.corrupt() + end.foreign() for end in wires.endpoints) == wires.network.spoiled


def test_the_icrc_of_a_joined_packet_holds_wherever_it_stood_when_it_left() -> None:
    """Kernels number the packets of a super-packet, cut it, and join what arrives: packets 20 to 24 of a run as one,
    then 5 to 9, of which one has changed."""
    a, b = (Endpoint(address(i)) for i in range(2))
    connect(a, b)
    source, memory = some_bytes(1, 40 * 1024), np.zeros(40 * 1024, np.uint8)
    key = b.register(memory.ctypes.data, memory.size)
    assert a.write(0, source.ctypes.data, source.size, key=key, offset=0, id=1)
    runs = [a.send(0), a.send(0)]
    packets = [packet for sent in runs[1:] if sent is not None for packet in sent.packets()]
    origin = Origin.of(address(0), PORT)
    spoilt = [*packets[5:10]]
    spoilt[3] = spoilt[3][:100] + bytes([spoilt[3][100] ^ 1]) + spoilt[3][101:]
    for joined in (packets[20:25], spoilt):
        b.receive(b"".join(joined), 1, origin, segment=len(joined[0]))
    assert (b.state(0).received, b.corrupt()) == (9, 1)



def test_without_faults_each_packet_leaves_once_with_the_right_opcode_and_padding() -> None:
    """FIRST with RETH, MIDDLE, LAST or ONLY; lengths that are no multiple of four are padded, and the BTH says so."""
    wires = pair_of()
    lengths = [1, 1024, 1025, 4096, 2051]
    writer = Writer(wires, 0, 1, 0, messages(5, lengths))
    wires.run(writer.done)
    writer.check()
    data = [p for p in wires.sent if parse(p)[0] != Opcode.ACKNOWLEDGE]
    assert [parse(p)[2] for p in data] == list(range(1 + 1 + 2 + 4 + 3))
    first, middle, last, only = Opcode.WRITE_FIRST, Opcode.WRITE_MIDDLE, Opcode.WRITE_LAST, Opcode.WRITE_ONLY
    assert [parse(p)[0] for p in data] == [only, only, first, last, first, middle, middle, last, first, middle, last]
    assert [parse(p)[1] for p in data] == [3, 0, 0, 3, 0, 0, 0, 0, 0, 0, 1]
    assert struct.unpack_from("!QII", data[2], 12) == (1025, writer.key, 1025)
    assert wires.endpoints[0].state(0).retransmitted == 0


def lose_nth(wires: Wires, opcode: int, which: set[int]) -> None:
    """Loses the n-th packets (from 0) of this opcode, once each."""
    seen = 0
    honest = wires.network.send

    def send(packet: object, deliver: object) -> None:
        nonlocal seen
        if parse(packet.payload)[0] == opcode:  # type: ignore[attr-defined]
            seen += 1
            if seen - 1 in which:
                return
        honest(packet, deliver)  # type: ignore[arg-type]

    wires.network.send = send  # type: ignore[method-assign]


def test_only_what_is_missing_goes_again() -> None:
    """Three holes in a window cause three NAKs, three retransmissions, and no timeout."""
    wires = pair_of(window=64)
    lose_nth(wires, Opcode.WRITE_MIDDLE, {4, 5, 12})
    writer = Writer(wires, 0, 1, 0, messages(6, [200 * 1024]))
    wires.run(writer.done)
    writer.check()
    state = wires.endpoints[0].state(0)
    assert (state.retransmitted, state.timeouts, state.naks) == (3, 0, 3)


@pytest.mark.parametrize("reps", [False, True])
def test_the_repair_of_holes_does_not_count_as_round_trips(reps: bool) -> None:
    """Of 200 packets every tenth is lost twice: the round trip measured stays the network's, as does the timer's time,
    though most packets wait behind a hole; and no time-out that was needed counts as spurious."""
    wires = pair_of(window=512, delay=5 * MILLISECOND)
    if reps:
        for end in wires.endpoints:
            end.ports([PORT, PORT + 1])
            end.use_reps(0, 1)
    seen: Counter[int] = Counter()

    def lossy(datagram: Datagram) -> Datagram | None:
        opcode, _, psn, _ = parse(datagram.payload)
        if opcode == Opcode.ACKNOWLEDGE:
            return datagram
        seen[psn] += 1
        return None if psn % 10 == 5 and seen[psn] <= 2 else datagram

    wires.path = lossy
    writer = Writer(wires, 0, 1, 0, messages(7, [200 * 1024]))
    wires.run(writer.done)
    writer.check()
    state = wires.endpoints[0].state(0)
    print(f"{wires.network.now=} {state.srtt=} {state.rto=} {state.timeouts=} {state.retransmitted=}")
    assert state.srtt < 20 * MILLISECOND
    assert wires.network.now < 1000 * MILLISECOND


def test_payloads_wait_for_a_lost_first_packet() -> None:
    """Without its FIRST a message has no address; what came meanwhile is kept, and only the FIRST is sent again."""
    wires = pair_of(window=64)
    lose_nth(wires, Opcode.WRITE_FIRST, {0})
    writer = Writer(wires, 0, 1, 0, messages(7, [20 * 1024]))
    wires.run(writer.done)
    writer.check()
    assert wires.endpoints[0].state(0).retransmitted == 1


def test_a_lost_last_acknowledgement_is_sent_again_on_request() -> None:
    """The timer sends the packet again; the responder recognises it, acknowledges again, and writes nothing twice."""
    wires = pair_of()
    lose_nth(wires, Opcode.ACKNOWLEDGE, {0})
    writer = Writer(wires, 0, 1, 0, messages(8, [100]))
    wires.run(writer.done)
    writer.check()
    assert wires.endpoints[0].state(0).timeouts == 1
    assert wires.endpoints[1].state(0).duplicates == 1


def test_reordering_below_the_threshold_repeats_nothing() -> None:
    """Sprayed packets overtake each other; with a threshold above the spread there is no NAK."""
    wires = pair_of(window=64, patience=64)
    wires.network.reorder, wires.network.late = 0.5, 30 * MICROSECOND
    writer = Writer(wires, 0, 1, 0, messages(9, [500 * 1024]))
    wires.run(writer.done)
    writer.check()
    assert wires.endpoints[0].state(0).retransmitted == 0


def test_marks_come_back_and_shrink_the_window() -> None:
    """A CE mark at the receiver becomes BECN on the ACK; with every packet marked the window falls to its minimum."""
    wires = pair_of(window=64, mark=1.0)
    writer = Writer(wires, 0, 1, 0, messages(10, [2_000_000]))
    wires.run(writer.done)
    writer.check()
    acks = [p for p in wires.sent if parse(p)[0] == Opcode.ACKNOWLEDGE]
    assert sum(bool(p[4] & 0x40) for p in acks) > len(acks) / 2
    marked = wires.endpoints[0].state(0)
    assert marked.marks > 0
    clean = pair_of(window=64)
    other = Writer(clean, 0, 1, 0, messages(10, [2_000_000]))
    clean.run(other.done)
    assert marked.allowed < 8 < clean.endpoints[0].state(0).allowed


def test_many_pairs_share_an_endpoint_fairly() -> None:
    """Each of four busy connections to three peers finishes, and none waits for another's message to end."""
    ends = [Endpoint(address(i), window=64) for i in range(4)]
    wires = Wires(TerribleNetwork(random.Random(4), packet_time=MICROSECOND, loss=0.02), ends)
    writers = []
    for peer, count in ((1, 2), (2, 1), (3, 1)):
        for extra in range(count):
            number = 16 * peer + extra
            mine = ends[0].connect(Connection(address(peer), 0x800 + number, 0x400 + number, 50_000, number, 99))
            theirs = ends[peer].connect(Connection(address(0), 0x400 + number, 0x800 + number, 50_001, 99, number))
            assert theirs == extra
            writers.append(Writer(wires, 0, peer, mine, messages(number, [300 * 1024])))
    wires.run(lambda: all(writer.done() for writer in writers))
    for writer in writers:
        writer.check()
    order = [event.pair for event in wires.events[0] if event.what == SENT]
    assert sorted(order) == [0, 1, 2, 3]
    firsts = [roce.BTH.unpack_from(p)[3] for p in wires.sent[:200] if p[0] != Opcode.ACKNOWLEDGE]
    assert len(set(firsts)) == 4


def test_a_write_outside_of_its_region_is_refused_on_both_ends() -> None:
    """A write that is too long, or with a revoked key, is a remote access error: nothing is written, both ends are
    told, and other connections go on."""
    wires = pair_of(loss=0.2, seed=3)
    a, b = wires.endpoints
    second = connect(a, b, number=2)
    data, into = np.ones(4096, np.uint8), np.zeros(8192, np.uint8)
    key = b.register(into.ctypes.data, 4000)
    assert a.write(0, data.ctypes.data, 4096, key=key, offset=0, id=7)
    wires.run(lambda: wires.count(0, BROKEN) == wires.count(1, BROKEN) == 1)
    mine = next(event for event in wires.events[0] if event.what == BROKEN)
    theirs = next(event for event in wires.events[1] if event.what == BROKEN)
    assert (mine.pair, mine.syndrome, mine.by_peer) == (0, 0x62, 1)
    assert (theirs.pair, theirs.syndrome, theirs.by_peer) == (0, 0x62, 0)
    assert not into[4000:].any()
    assert not a.write(0, data.ctypes.data, 1, key=key, offset=0, id=8)
    assert wires.count(0, SENT) == wires.count(1, ARRIVED) == 0
    other = Writer(wires, 0, 1, second, messages(11, [5000]))
    wires.run(lambda: len(other.arrived()) == 1 and len(other.sent()) == 1)
    assert (other.into[:5000] == other.data).all()


def test_packets_from_elsewhere_are_no_peers() -> None:
    """A whole write with the right queue pair, PSN and key, and an acknowledgement, from any address but the peer's:
    nothing is written or acknowledged, and both are counted with where they came from; from the peer's they are."""
    endpoint = Endpoint(address(0), window=16)
    pair = endpoint.connect(Connection(address(1), 2, 1, 50_000, 7, 9))
    memory, source = np.zeros(64, np.uint8), np.ones(64, np.uint8)
    key = endpoint.register(memory.ctypes.data, 64)
    assert endpoint.write(pair, source.ctypes.data, 64, key=0, offset=0, id=1)
    assert endpoint.send(0) is not None
    write = roce.BTH.pack(Opcode.WRITE_ONLY, 0, roce.PKEY, 1, 9) + roce.RETH.pack(0, key, 64) + b"\5" * 64 + bytes(4)
    answer = roce.BTH.pack(Opcode.ACKNOWLEDGE, 0, roce.PKEY, 1, 7) + bytes([0x1F, 0, 0, 0]) + bytes(4)
    for elsewhere in (address(0), address(2), "127.0.0.1"):
        for packet in (write, answer):
            endpoint.receive(packet, 1, Origin.of(elsewhere, 50_000))
    count, last = endpoint.refused()
    assert (count, str(last)) == (6, "127.0.0.1:50000")
    assert not memory.any()
    assert (endpoint.state(pair).acknowledged, endpoint.state(pair).received) == (0, 0)
    for packet in (write, answer):
        endpoint.receive(roce.sealed(packet, address(1), 50_001, address(0), 0), 1, Origin.of(address(1), 50_001))
    assert (memory == 5).all()
    assert (endpoint.state(pair).acknowledged, endpoint.state(pair).received) == (1, 1)


@pytest.mark.parametrize("packets", [[(11, 64), (9, 3 * 1024)], [(9, 3 * 1024), (10, 64)]], ids=["over", "within"])
def test_messages_that_overlap_break_the_connection(packets: list[tuple[int, int]]) -> None:
    """A long write over the PSN of a short one that came before it, and a short one within a long one: each packet is
    of one message."""
    endpoint = Endpoint(address(0), window=16)
    endpoint.connect(Connection(address(1), 2, 1, 50_000, 7, 8))
    memory = np.zeros(4096, np.uint8)
    key = endpoint.register(memory.ctypes.data, memory.size)
    for place, (psn, length) in enumerate(packets):
        assert not list(endpoint.events())
        opcode = Opcode.WRITE_ONLY if length <= 1024 else Opcode.WRITE_FIRST
        head = roce.BTH.pack(opcode, 0, roce.PKEY, 1, psn) + roce.RETH.pack(0, key, length)
        whole = roce.sealed(head + bytes(min(length, 1024)) + bytes(4), address(1), 50_000, address(0), 0)
        endpoint.receive(whole, 1 + place, Origin.of(address(1), 50_000))
    assert [(event.what, event.syndrome, event.by_peer) for event in endpoint.events()] == [(BROKEN, 0x61, 0)]


def test_a_forgotten_key_never_opens_the_next_region() -> None:
    """Keys carry a generation, so the same place in the table has another key each time."""
    endpoint = Endpoint(address(0))
    memory = np.zeros(100, np.uint8)
    keys = []
    for _ in range(3):
        keys.append(endpoint.register(memory.ctypes.data, 100))
        endpoint.deregister(keys[-1])
    assert len(set(keys)) == 3


@given(data=st.binary(max_size=1200), opcode=st.sampled_from([6, 7, 8, 10, 0x11, 0]), qp=st.sampled_from([1, 5]))
@settings(max_examples=200)
def test_hostile_datagrams_change_nothing_outside_of_regions(data: bytes, opcode: int, qp: int) -> None:
    """Any bytes behind a plausible header cause no crash and no write beyond the region; at worst the connection
    breaks."""
    endpoint = Endpoint(address(0), window=16)
    endpoint.connect(Connection(address(1), 2, 1, 50_000, 0, 0))
    memory = np.zeros(3 * 4096, np.uint8)
    endpoint.register(memory[4096:].ctypes.data, 4096)
    head = roce.BTH.pack(opcode, 0, roce.PKEY, qp, int.from_bytes(data[:1], "big") % 32)
    endpoint.receive(roce.sealed(head + data, address(1), 50_000, address(0), 0), 0, Origin.of(address(1), 50_000))
    while endpoint.send(0):
        pass
    assert not memory[:4096].any()
    assert not memory[8192:].any()


def test_scapy_dissects_what_leaves() -> None:
    """An independent implementation finds BTH, RETH and AETH where they belong, and computes the same ICRC."""
    scapy = pytest.importorskip("scapy.all", reason=needs.reason("scapy"))
    from scapy.contrib.roce import AETH, BTH

    from support.models.scapy_roce import RETH

    wires = pair_of(loss=0.05, seed=2)
    writer = Writer(wires, 0, 1, 0, messages(12, [50 * 1024, 700]))
    wires.run(writer.done)
    kinds: dict[tuple[int, int], bytes] = {}
    for payload, whole in zip(wires.sent, wires.packets, strict=True):
        opcode, _, _, syndrome = parse(payload)
        kinds.setdefault((opcode, syndrome), whole)
    assert {(0x11, 0x1F), (0x11, 0x60), (6, -1), (7, -1), (8, -1), (10, -1)} <= set(kinds)
    for (opcode, syndrome), whole in kinds.items():
        packet = scapy.IP(whole)
        assert packet[BTH].opcode == opcode
        assert (RETH in packet) == (opcode in (6, 10))
        assert (AETH in packet) == (opcode == 0x11)
        if opcode == 0x11:
            assert packet[AETH].syndrome == syndrome
        wire = packet[BTH].icrc
        packet[BTH].icrc = None
        assert scapy.IP(bytes(packet))[BTH].icrc == wire


@pytest.mark.parametrize("bad", [{"path_mtu": 1000}, {"window": 3}, {"max_run": 0}, {"reorder": 0}])
def test_bad_parameters_are_named(bad: dict[str, int]) -> None:
    """The error says what was expected."""
    with pytest.raises(ValueError, match="expected"):
        Endpoint(address(0), **bad)
