# SPDX-License-Identifier: Apache-2.0
"""The software NIC of tests/support/models/nic.py does what rdma_rxe was measured to do, so that what holds for it on
the compiled program holds for machines with the kernel's RoCE stack."""

from __future__ import annotations

import random
from typing import Literal

import pytest

from netfold.wire import roce
from support.models.nic import Work
from support.models.nic_packets import ACK, ACKNOWLEDGE, SEQUENCE, Packet, Rc, icrc_holds
from support.models.nic_pair import ADDRESSES, NicPair
from support.models.slot_model import MICROSECOND, MILLISECOND, TerribleNetwork


def quiet() -> TerribleNetwork:
    """A network that loses nothing."""
    return TerribleNetwork(random.Random(1), packet_time=MICROSECOND)


def requests(packets: list[Packet]) -> list[Packet]:
    """The packets that carry data."""
    return [packet for packet in packets if packet.opcode != ACKNOWLEDGE]


def answers(packets: list[Packet]) -> list[tuple[int | None, int]]:
    """Syndrome and PSN of the ACKs and NAKs."""
    return [(packet.syndrome, packet.psn) for packet in packets if packet.opcode == ACKNOWLEDGE]


def test_a_write_of_64_kb_is_64_packets_and_one_acknowledgement() -> None:
    """FIRST, 62 MIDDLE, LAST, which alone asks for the ACK, as measured."""
    pair = NicPair(quiet())
    region = pair.nics[1].register(65536)
    data = random.Random(2).randbytes(65536)
    pair.post(Work(1, data, "write", region.address, region.rkey))
    pair.run()
    sent = requests(pair.packets())
    assert [packet.opcode for packet in sent] == [Rc.WRITE_FIRST, *[Rc.WRITE_MIDDLE] * 62, Rc.WRITE_LAST]
    assert [packet.psn for packet in sent if packet.ack_req] == [5 + 63]
    assert answers(pair.packets()) == [(ACK, 5 + 63)]
    assert region.memory == data
    assert all(icrc_holds(frame) for frame in pair.wire)


def test_no_more_than_129_packets_are_outstanding_and_every_66th_asks() -> None:
    """A peer that says nothing gets 129 packets, of which the 66th asks for an ACK."""
    pair = NicPair(TerribleNetwork(random.Random(1), loss=1.0))
    pair.post(Work(1, bytes(300 * 1024), "send"))
    sent = requests(pair.packets())
    assert len(sent) == 129
    assert [place for place, packet in enumerate(sent, 1) if packet.ack_req] == [66]


def test_a_lost_packet_is_named_once_and_the_queue_goes_back_to_it() -> None:
    """One NAK 0x60 with the first missing PSN; everything from there goes again, nothing before it, no timer."""
    pair = NicPair(quiet())
    region = pair.nics[1].register(65536)
    data = random.Random(3).randbytes(65536)
    honest = pair.nics[0].transmit
    dropped: list[bytes] = []

    def lossy(frame: bytes) -> None:
        packet = Packet.parse(frame)
        assert packet is not None
        if packet.psn == 5 + 20 and not dropped:
            dropped.append(frame)
        else:
            honest(frame)

    pair.nics[0].transmit = lossy
    pair.post(Work(1, data, "write", region.address, region.rkey))
    pair.run()
    assert answers(pair.packets()) == [(SEQUENCE, 5 + 20), (ACK, 5 + 63)]
    assert pair.out.counts["repeated"] == 64 - 20
    assert pair.out.counts["timeouts"] == 0
    assert region.memory == data


def test_a_lost_acknowledgement_costs_the_timer_and_duplicates() -> None:
    """All goes again, each packet is acknowledged, none is written again."""
    pair = NicPair(quiet())
    region = pair.nics[1].register(8 * 1024)
    honest, taken = pair.nics[1].transmit, []
    pair.nics[1].watch = lambda _pair, psn, _opcode, _payload: taken.append(psn)
    pair.nics[1].transmit = lambda frame: honest(frame) if pair.network.now > MILLISECOND else None
    pair.post(Work(1, bytes(range(256)) * 32, "write", region.address, region.rkey))
    pair.run()
    assert taken == list(range(5, 13))
    assert pair.out.counts["timeouts"] == 1
    assert pair.into.counts["duplicates"] == 8
    assert set(answers(pair.packets())) == {(ACK, 12)}


def test_a_send_without_a_receive_waits_as_it_is_told() -> None:
    """RNR NAK 12 is 0.64 ms; a receive that is posted meanwhile takes the message, without a timer."""
    pair = NicPair(quiet())
    pair.network.at(2 * MILLISECOND, lambda: pair.into.post_receive(Work(7)))
    pair.post(Work(1, b"hello", "send", immediate=9))
    pair.run()
    assert pair.out.counts["rnrs"] == 3
    assert pair.out.counts["timeouts"] == 0
    done = pair.into.completions
    assert [(one.id, one.status, one.length, one.immediate) for one in done] == [(7, "success", 5, 9)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"src": "10.2.0.3"}, "address"), ({"pkey": 0x8001}, "P_Key"), ({"queue_pair": 99}, "no queue pair"),
     ({"dst": "10.2.0.9"}, "not ours")],
    ids=str,
)
def test_what_comes_from_elsewhere_is_dropped_silently(change: dict[str, object], reason: str) -> None:
    """No answer, no word of memory; nor for a packet whose ICRC is wrong."""
    pair = NicPair(quiet())
    region = pair.nics[1].register(1024)
    right = Packet(*ADDRESSES, Rc.SEND_ONLY, pair.into.number, 5, b"word")
    pair.nics[1].receive(Packet(**{**right.__dict__, **change}).frame())
    bent = bytearray(right.frame())
    bent[-8] ^= 1
    pair.nics[1].receive(bytes(bent))
    assert pair.nics[1].dropped == {reason: 1, "ICRC": 1}
    assert pair.wire == []
    assert not any(region.memory)


@pytest.mark.parametrize("wrong", ["rkey", "bounds"])
def test_a_wrong_remote_key_breaks_the_queue_pair(wrong: str) -> None:
    """Both ends learn it, and no word is written."""
    pair = NicPair(quiet())
    region = pair.nics[1].register(1024)
    pair.post(Work(1, bytes([1]) * 512, "write", region.address + 513 * (wrong == "bounds"),
                   region.rkey ^ (wrong == "rkey")))
    pair.run()
    assert [one.status for one in pair.out.completions] == ["remote access"]
    assert pair.into.error
    assert not any(region.memory)


@pytest.mark.parametrize("path_mtu", roce.PATH_MTUS)
@pytest.mark.parametrize("verb", ["send", "write"])
@pytest.mark.parametrize("seed", range(3))
def test_messages_arrive_whole_and_once_over_a_terrible_network(
    path_mtu: int, verb: Literal["send", "write"], seed: int
) -> None:
    """5 % each of loss, duplicates and late packets, PSNs that wrap, messages of any length."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    network = TerribleNetwork(rng, loss=0.05, duplicate=0.05, reorder=0.05, packet_time=MICROSECOND)
    pair = NicPair(network, path_mtu=path_mtu, psn=(roce.PSN_MASK - 100, roce.PSN_MASK))
    messages = [rng.randbytes(rng.choice([1, 3, 4, path_mtu, path_mtu + 1, rng.randrange(1, 60 * path_mtu)]))
                for _ in range(40)]
    regions = [pair.nics[1].register(len(message)) for message in messages]
    receives = [Work(place) for place in range(len(messages))]
    for work in receives:
        pair.into.post_receive(work)
    for place, (message, region) in enumerate(zip(messages, regions, strict=True)):
        pair.post(Work(place, message, verb, region.address, region.rkey, immediate=place))
    pair.run()
    assert [(one.id, one.status) for one in pair.out.completions] == [(n, "success") for n in range(40)]
    assert [(one.id, one.immediate) for one in pair.into.completions] == [(n, n) for n in range(40)]
    got = [bytes(region.memory) for region in regions] if verb == "write" else [work.data for work in receives]
    assert got == messages
    assert network.lost > 0
