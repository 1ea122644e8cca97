# SPDX-License-Identifier: Apache-2.0
"""The order of a rank's packets (host/native/order.h): what it says of its own, and what it takes for lost or late
(host/native/stream.c)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from netfold.host.innet.abi import DATA
from netfold.host.innet.core import Core
from netfold.host.innet.slot_switch import NO_LANES, Nak, Packet, parse
from netfold.host.native.library import Origin
from netfold.wire import roce
from support.models.slot_model import MICROSECOND, address, as_result, plan_trees

SENT = 5
"""Packets of the operation."""
FIRST = roce.PSN_MASK - 1
"""PSN of the first: the others are around the wrap."""


@given(psn=st.integers(0, roce.PSN_MASK), previous=st.integers(0, roce.PSN_MASK))
@example(psn=4096, previous=0)
@example(psn=4097, previous=0)
@example(psn=0, previous=4094)
@example(psn=0, previous=4095)
def test_an_order_says_the_packet_before_or_nothing(psn: int, previous: int) -> None:
    """The value written into a header is read from it: the PSN before, or that it is too far away."""
    order = roce.order_of(psn, previous)
    reth = bytes(roce.RETH_BYTES)
    packet = Packet(1, roce.Opcode.WRITE_ONLY, 0x80, psn, reth, NO_LANES, order=order)
    assert parse(packet.build(0x8000)) == packet
    if order != roce.ORDER_UNSAID:
        assert (psn - 1 - order) & roce.PSN_MASK == previous
    else:
        assert abs(roce.psn_age(psn - 1, previous)) > 4095


class Rank:
    """Rank 0 of two, which has sent what its window lets it of one sum of int32."""

    def __init__(self, packets: int = SENT) -> None:
        self.now = MICROSECOND
        trees = plan_trees(0, 2, psn=FIRST)
        self.core = Core(address(0), 2, trees)
        self.plan = trees[0].data
        source = np.zeros(packets * roce.LANES, np.int32)
        self.core.start(1, source, np.empty_like(source), 1.0, self.now)
        self.sent = self.leaving()

    def leaving(self) -> list[Packet | Nak]:
        """The packets of the data stream that leave now."""
        out: list[Packet | Nak] = []
        connection = self.plan.peer_qp.to_bytes(3, "big")[:2]
        while run := self.core.send(self.now):
            out += [parse(payload) for payload in run.packets() if payload[5:7] == connection]
        return out

    def take(self, packet: Packet | Nak) -> None:
        """Something comes from the switch, some time later."""
        self.now += 10 * MICROSECOND
        origin = Origin.of(self.plan.predecessor, self.plan.predecessor_port, roce.RESULT_TTL)
        self.core.receive(as_result(packet.build(self.plan.qp), origin, self.core.address), self.now, origin)

    def result(self, number: int, order: int = 0) -> None:
        """A result comes, with the headers of the contribution."""
        sent = self.sent[number]
        assert isinstance(sent, Packet)
        self.take(Packet(sent.operation, sent.opcode, sent.ack, sent.psn, sent.reth, sent.lanes, order=order))


@pytest.fixture
def rank() -> Rank:
    return Rank()


def psn(number: int) -> int:
    """The PSN of a packet by its number."""
    return (FIRST + number) & roce.PSN_MASK


def test_a_repeat_says_what_left_before_it(rank: Rank) -> None:
    """The first packets follow each other; a repeat follows the last of them, and the next repeat this one."""
    assert [(one.psn, one.order) for one in rank.sent if isinstance(one, Packet)] == [(psn(n), 0) for n in range(SENT)]
    rank.take(Nak(psn(1), psn(2)))
    rank.take(Nak(psn(3), psn(4)))
    again = [(one.psn, one.order) for one in rank.leaving() if isinstance(one, Packet)]
    assert again == [(psn(1), 1 - 1 - 4), (psn(3), 3 - 1 - 1)]


def test_a_nak_that_left_before_the_repair_could_arrive_repeats_nothing(rank: Rank) -> None:
    """Packets of several neighbours show the switch the same hole; what lacks still after a quarter of a round trip
    goes once more."""
    nak = Nak(psn(1), psn(3))
    for wait, again in ((0, [psn(1), psn(2)]), (0, []), (400, []), (100, [psn(1), psn(2)]), (0, [])):
        rank.now += wait * MICROSECOND
        rank.take(nak)
        assert [one.psn for one in rank.leaving()] == again


def test_a_result_that_was_lost_behind_its_switch_is_asked_for_at_once(rank: Rank) -> None:
    """One, or several, and one whose repeat was lost: the next result shows it."""
    rank.result(0)
    rank.result(3)
    assert rank.leaving() == [Nak(psn(1), psn(2)), Nak(psn(2), psn(3))]
    rank.result(1, order=1 - 1 - 3)
    rank.result(4, order=4 - 1 - 2)
    assert rank.leaving() == [Nak(psn(2), psn(3))]


def test_a_result_that_its_switch_has_not_sent_yet_is_not_asked_for(rank: Rank) -> None:
    """Its contributions were lost elsewhere, and somebody repairs that: time is left for it."""
    rank.result(0)
    rank.result(2, order=2 - 1 - 0)
    assert rank.leaving() == []
    rank.result(1, order=1 - 1 - 2)
    rank.result(3, order=3 - 1 - 1)
    assert rank.leaving() == []


def test_what_later_packets_have_overtaken_is_asked_for_after_a_quarter_of_its_time() -> None:
    """Results without which others came are overdue once a packet is answered that left after they were found missing;
    the rank that repairs them has a quarter more of the time since."""
    rank = Rank(80)
    came, times = -1, {}
    for number in [*range(8), 21, *range(8, 16)]:
        rank.result(number, order=number - 1 - came)
        came, times[number] = number, rank.now
        rank.sent += rank.leaving()
    assert len(rank.sent) == 48
    rank.result(40, order=40 - 1 - came)
    rank.now += (rank.now - times[21]) // 4 - 1  # from then on 16 to 20 were missing
    rank.core.tick(rank.now)
    assert rank.leaving() == []
    rank.now += 1
    rank.core.tick(rank.now)
    assert rank.leaving() == [Nak(psn(number), psn(number + 1)) for number in range(16, 21)]


def test_the_answer_to_a_repeat_is_no_round_trip(rank: Rank) -> None:
    """It may answer the first packet as well as the second (Karn's algorithm)."""
    rank.now += 1000 * MICROSECOND
    rank.result(0)
    measured = rank.core.state(0, DATA).srtt
    rank.take(Nak(psn(1), psn(2)))
    assert len(rank.leaving()) == 1
    rank.result(1)
    assert rank.core.state(0, DATA).srtt == measured > 1000 * MICROSECOND
