# SPDX-License-Identifier: Apache-2.0
"""One packet's way out of captured frames: steps, times and whom it met, with losses, super-packets and odd frames."""

from __future__ import annotations

import random
import struct

import pytest

from netfold.topo.captures import packet_recording, segments
from netfold.topo.captures.packet_sockets import Received
from netfold.topo.captures.packet_way import CapturedFrame, PacketWays, of_host, streams
from netfold.topo.faults.board import FaultRefused
from netfold.wire import roce
from netfold.wire.faults import RecordedPacket, RecordPacket, TapLink
from netfold.wire.operator import QueuePairUse
from support.models.slot_model import ip_packet

TAPS = [TapLink(f"leaf{leaf}:{port}", far, None) for leaf, port, far in [
    (1, 1, "h1:0"), (1, 2, "h2:0"), (1, 3, "spine1:1"), (2, 1, "h3:0"), (2, 2, "h4:0"), (2, 3, "spine1:2")]]
ETHERNET = bytes(12) + b"\x08\x00"
START = 1_700_000_000 * 10**9
WAY = [("h1", "leaf1"), ("leaf1", "spine1"), ("spine1", "leaf1"), ("spine1", "leaf2"), ("leaf1", "h1"), ("leaf1", "h2"),
       ("leaf2", "h3"), ("leaf2", "h4")]
"""Of a packet of h1: sender and receiver of each step."""


def uses(first: int = 0x1000, *, nic: bool = False) -> list[QueuePairUse]:
    """What queue pairs mean in a job of four ranks on one tree, as a controller lists them."""
    found = []
    for leaf, hosts in ((1, (0, 1)), (2, (2, 3))):
        for port, rank in enumerate(hosts, 1):
            who, operation = f"rank {rank} (h{rank + 1})", "SUM32" if nic else ""
            for pair, up in ((first + 8 * ((rank + 1) % 4), True), (first + 8 * rank, False)):
                found.append(QueuePairUse(f"leaf{leaf}:{port}", pair, operation, "job", "spine1", "data", 64, up, who))
    for leaf in (1, 2):
        for pair, up in ((first + 0x100 + 8 * leaf, True), (first + 0x200 + 8 * leaf, False)):
            found.append(QueuePairUse(f"leaf{leaf}:3", pair, "", "job", "spine1", "data", 64, up, f"leaf{leaf}"))
    return found


def frame(pair: int, psn: int, *, opcode: int = roce.Opcode.WRITE_MIDDLE, key: int = roce.PKEY_WINDOWED,
          payload: bytes = bytes(range(64)), ip_id: int = 0) -> bytes:
    """A packet of a fold as it is on a wire; every second connection leads to another UDP port than RoCEv2's."""
    datagram = roce.BTH.pack(opcode, 0, key, pair, psn) + payload
    port = roce.UDP_PORTS[pair % 1024] if pair >> 3 & 1 else roce.UDP_PORT
    packet = ip_packet(datagram + bytes(roce.ICRC_BYTES), ip_id, "10.0.1.1", 50_000, "10.0.1.2", port)
    return ETHERNET + packet[:-4] + roce.icrc(packet[:-4])


def passages(psn: int, start: int = START, first: int = 0x1000, operation: int = 0) -> list[CapturedFrame]:
    """All that a contribution of h1 causes: 10 us pass between two links; the others' contributions came before."""
    found = []
    for use in uses(first):
        mine = use.who == "rank 0 (h1)"
        rank = use.link[-1] != "3"
        level = (0 if mine else -3) if rank and use.up else (4 if rank else 1 if use.up else 2)
        leaves = use.up != rank
        found.append(CapturedFrame(use.link, start + level * 10_000, leaves, frame(use.queue_pair + operation, psn)))
    return sorted(found, key=lambda each: each.nanoseconds)


def ways(host: str = "h1", meanings: list[QueuePairUse] | None = None, most: int = 1000) -> PacketWays:
    """What collects packets of a host's trees."""
    return PacketWays(of_host(streams(TAPS, uses() if meanings is None else meanings), host), host, most)


def best(taken: PacketWays) -> tuple[RecordedPacket, bool]:
    """The way that was found; there has to be one."""
    found = taken.best()
    assert found is not None
    return found


def test_a_contribution_is_followed_to_the_root_and_its_results_down() -> None:
    """Each link in order with its time, what passed, and whom it met in which slot; nothing else has it."""
    taken = ways()
    for each in passages(0x1000005, operation=roce.LaneOperation.SUM16):
        taken.take(each)
    packet, whole = best(taken)
    assert whole
    assert (packet.who, packet.job, packet.tree, packet.stream, packet.operation, packet.psn, packet.slot) == (
        "rank 0 (h1)", "job", "spine1", "data", "SUM16", 5, 5)
    assert [(step.source, step.target) for step in packet.steps] == WAY
    assert [step.kind for step in packet.steps] == ["contribution", "sum", *["result"] * 6]
    assert [step.microseconds for step in packet.steps] == [0, 10, 20, 20, 40, 40, 40, 40]
    assert [step.link for step in packet.steps if step.own] == ["leaf1:1", "leaf1:3", "leaf1:3", "leaf1:1"]
    met = [[(one.who, one.microseconds) for one in step.met] for step in packet.steps]
    assert met == [[("rank 1 (h2)", -30)], [("leaf2", 10)], *[[]] * 6]
    assert {(step.lanes, step.packets) for step in packet.steps} == {(True, 1)}


def test_steps_that_were_not_seen_are_told_and_the_fuller_way_is_taken() -> None:
    """A sum and a result that were lost have no time; a repeat is counted; of two packets the one of which more was
    seen is followed."""
    taken = ways()
    for number, each in enumerate(passages(7)):
        if number < 6:
            taken.take(each)
    lost = {("leaf2:3", True), ("leaf1:1", True)}
    later = passages(8, START + 10**6)
    for each in [*later, *later[:4]]:
        if (each.link, each.leaves) not in lost:
            taken.take(each)
    packet, whole = best(taken)
    assert not whole
    assert packet.psn == 8
    assert [step.microseconds is None for step in packet.steps] == [
        (step.source, step.target) == ("leaf1", "h1") for step in packet.steps]
    assert packet.steps[1].met[0].who == "leaf2"
    assert packet.steps[1].met[0].microseconds is None
    assert packet.steps[0].packets == 2


def test_a_repeat_of_what_began_before_the_recording_is_no_whole_way() -> None:
    """Where the results are seen before the contribution, the next packet is followed, whose way is in order."""
    taken = ways()
    for each in passages(7):
        late = 10**5 if (each.link, each.leaves) == ("leaf1:1", False) else 0
        taken.take(each._replace(nanoseconds=each.nanoseconds + late))
    assert not best(taken)[1]
    for each in passages(8, START + 10**6):
        taken.take(each)
    packet, whole = best(taken)
    assert whole
    assert packet.psn == 8


def test_a_super_packet_is_as_many_packets_as_it_has_segments() -> None:
    """What the kernel leaves to segmentation offload is cut, and each segment with a right ICRC counts."""
    count, pair = 5, uses()[0].queue_pair
    single = [frame(pair, 100 + number, ip_id=number) for number in range(count)]
    size = len(single[0]) - 42
    whole = bytearray(single[0][:42] + b"".join(each[42:] for each in single))
    struct.pack_into("!H", whole, 16, len(whole) - 14)
    struct.pack_into("!H", whole, 38, len(whole) - 34)
    header = segments.HEADER.pack(segments.NEEDS_CHECKSUM, 5, 42, size, 34, 6)
    taken = ways()
    for each in segments.frames(header + bytes(whole)):
        taken.take(CapturedFrame("leaf1:1", START, False, each))
    assert (taken.packets, taken.corrupt) == (count, 0)
    assert best(taken)[0].psn == 100


def test_the_checksum_of_an_empty_datagram_is_filled_in() -> None:
    """Its field is the end of the frame; one that the frame does not have whole is left alone."""
    empty = bytearray(frame(uses()[0].queue_pair, 1)[:42])
    empty[34:42] = bytes.fromhex("1234 12b7 0008 0001")
    header = segments.HEADER.pack(segments.NEEDS_CHECKSUM, 0, 0, 0, 34, 6)
    # the complement of the sum of the datagram, whose field holds that of the pseudo header
    assert [*segments.frames(header + bytes(empty))] == [bytes(empty[:40]) + bytes.fromhex("db0b")]
    assert [*segments.frames(header + bytes(empty[:41]))] == [bytes(empty[:41])]


def test_odd_frames_are_left_out() -> None:
    """Cut off anywhere, of another port, fragmented, an acknowledgement, under another key, against the direction, on
    another link, or just bytes: none counts; a wrong ICRC is counted as such."""
    pair, taken = uses()[0].queue_pair, ways()
    good = frame(pair, 1)

    def offer(data: bytes, link: str = "leaf1:1", *, leaves: bool = False) -> None:
        taken.take(CapturedFrame(link, START, leaves, data))

    for length in range(len(good)):
        offer(good[:length])
    for at, value in ((12, 0x86), (14, 0x46), (20, 0x20), (23, 6), (36, 0x11), (39, 3), (39, 255)):
        offer(good[:at] + bytes([value]) + good[at + 1 :])
    offer(frame(pair, 1, opcode=roce.Opcode.ACKNOWLEDGE))
    offer(frame(pair, 1, key=roce.PKEY))
    offer(good, leaves=True)
    offer(good, "leaf2:1")
    offer(good, "spine9:1")
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(2000):
        offer(rng.randbytes(rng.randrange(120)))
        # a prefix that is right, and noise behind it; but for one in 2**32 its ICRC is wrong
        offer(good[: rng.randrange(54)] + rng.randbytes(80))
    assert taken.packets == 0
    assert taken.best() is None
    before = taken.corrupt
    offer(good[:-1] + bytes([good[-1] ^ 1]))
    assert taken.corrupt == before + 1
    offer(good + bytes(6))  # padded, as short frames are
    assert taken.packets == 1


def test_presence_is_told_from_elements() -> None:
    """A contribution without lanes is one."""
    taken = ways()
    taken.take(CapturedFrame("leaf1:1", START, False, frame(uses()[0].queue_pair, 1, opcode=roce.Opcode.WRITE_ONLY,
                                                            payload=bytes(roce.RETH_BYTES))))
    assert not best(taken)[0].steps[0].lanes


def test_a_nics_queue_pair_is_its_own_and_its_key_says_so() -> None:
    """All 24 bits of it count, and packets under our key are not a NIC's."""
    taken = ways(meanings=uses(0x1001, nic=True))
    for pair, key in ((0x1009, roce.PKEY_WINDOWED), (0x100A, roce.PKEY), (0x1009, roce.PKEY)):
        taken.take(CapturedFrame("leaf1:1", START, False, frame(pair, 3, key=key)))
    assert taken.packets == 1
    assert best(taken)[0].operation == "SUM32"


def test_streams_of_the_same_tree_are_told_apart() -> None:
    """While a job moves, its old and its new stream are there under the same names: their packets are not mixed."""
    meanings = uses() + uses(0x5000)
    assert len(of_host(streams(TAPS, meanings), "h1", "job", "spine1")) == 2
    taken = ways(meanings=meanings)
    for each in passages(5, first=0x5000):
        taken.take(each)
    taken.take(CapturedFrame("leaf1:3", START, True, frame(0x1108, 5)))
    packet, whole = best(taken)
    assert whole
    assert packet.steps[1].packets == 1


def test_a_recording_is_bounded() -> None:
    """No packet is taken beyond as many as were asked for."""
    taken = ways(most=3)
    for psn in range(10):
        taken.take(CapturedFrame("leaf1:1", START, False, frame(uses()[0].queue_pair, psn)))
    assert taken.full
    assert taken.packets == 3


def test_captured_super_packets_are_taken_in_the_order_of_time() -> None:
    """Whatever link they come from; of odd ones, as no kernel makes them, nothing is taken and nothing fails."""
    taken = ways()
    plain = segments.HEADER.pack(0, 0, 0, 0, 0, 0)
    found = [(each.link, Received(plain + each.data, each.nanoseconds, each.leaves)) for each in passages(9)]
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for kind in (1, 5):
        for length in range(14, 60):
            odd = segments.HEADER.pack(1, kind, 0, 1, 34, 6) + found[0][1].data[10 : 10 + length]
            found.append(("leaf1:1", Received(odd, START, False)))
    rng.shuffle(found)
    packet_recording.take(taken, found)
    packet, whole = best(taken)
    assert whole
    assert packet.psn == 9
    assert packet.packets == len(uses())
    assert [packet_recording.is_roce(each.data) for _, each in found if len(each.data) > 100] == [True] * len(uses())
    assert not packet_recording.is_roce(plain + bytes(100))


def test_what_cannot_be_recorded_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """No job, another tree, more links than are captured at once, no packet socket."""

    def none(link: TapLink, buffer: int) -> int:
        raise PermissionError(1, f"not permitted at {link.name}, {buffer} bytes")

    def ask(meanings: list[QueuePairUse], **which: str) -> str:
        with pytest.raises(FaultRefused) as caught:
            packet_recording.record(RecordPacket("h1", **which), TAPS, meanings, none)
        return str(caught.value)

    assert "no job folds what this host sends" in ask([])
    assert "h1 in job other" in ask(uses(), job="other")
    assert "on the tree over spine7" in ask(uses(), tree="spine7")
    assert "leaf1:1: the kernel gives no packet socket" in ask(uses())
    monkeypatch.setattr(packet_recording, "MOST_LINKS", 5)
    assert "more than 5 links" in ask(uses())
