# SPDX-License-Identifier: Apache-2.0
"""The packets that native/stream.c sends, and when: windows, timers, retransmissions, marks and credits, in simulated
time."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.host.innet.abi import AGREEMENT, DATA
from netfold.host.innet.core import Core, Credits
from netfold.host.innet.slot_switch import Packet, parse
from netfold.host.native.library import Origin, Run
from support.models.slot_model import MICROSECOND, MILLISECOND, SECOND, Call, TerribleNetwork, fold, make_fabric, run
from support.models.sources import floats, integers, retransmissions

pytestmark = pytest.mark.slow


def test_a_late_rank_does_not_cause_a_storm() -> None:
    """Ranks that wait 2 s for another probe with single packets, with back-off, and resend nothing once it comes."""
    network = TerribleNetwork(random.Random(1))
    fabric = make_fabric([0, 1, 2], network, slots=256)
    sources = integers(3, 60_000, 1)
    calls = [[Call(source, np.empty_like(source), 1.0, 1)] for source in sources]
    for _ in run(fabric, calls, late=[0, 0, 2 * SECOND]):
        pass
    waited = 2 * SECOND / 50e6  # at most one packet for each of the 50 ms of the longest back-off, and the first few
    assert retransmissions(fabric) <= 2 * 2 * (waited + 10)


@pytest.mark.parametrize(("packets", "operations"), [(200, 1), (20, 5)])
@pytest.mark.parametrize("loss", [0.0, 0.02])
def test_a_network_slower_than_any_timer_is_not_flooded(loss: float, packets: int, operations: int) -> None:
    """With round trips of half a second, mostly in the queue of their own windows, ranks find out that their
    retransmissions were spurious, instead of filling the queue that they wait for."""
    packet_time = 17 * MILLISECOND  # 4 KB at 2 Mb/s
    network = TerribleNetwork(
        random.Random(5), loss=loss, duplicate=loss, reorder=loss, packet_time=packet_time, late=packet_time
    )
    fabric = make_fabric([[0, 1], [2, 3]], network, slots=64)
    sources = integers(4, 256 * packets, 3)
    calls = [
        [Call(source, np.empty_like(source), 1.0, number) for number in range(operations)] for source in sources
    ]
    for _ in run(fabric, calls, limit=600 * SECOND):
        pass
    for own in calls:
        for call in own:
            assert (call.out == sum(sources)).all()
    assert network.now < 4 * operations * (packets + 6) * packet_time
    assert retransmissions(fabric) < 4 * operations * packets / 2


def test_without_loss_nothing_is_sent_twice() -> None:
    """A clean network sees each packet once, and no timer runs out."""
    network = TerribleNetwork(random.Random(1))
    fabric = make_fabric([[0, 1], [2, 3]], network, trees=2)
    fold(fabric, floats(4, 50_000, 1))
    assert retransmissions(fabric) == 0
    for core in fabric.cores:
        assert sum(core.state(t, k).counters.sent for t in (0, 1) for k in (AGREEMENT, DATA)) == 196 + 2 + 1


def test_one_percent_loss_is_repaired_without_waiting_for_timers() -> None:
    """Fast retransmit repairs a long stream: 1 % loss costs less than 1.3 times, timers only at its end."""
    times = []
    for loss in (0.0, 0.01):
        network = TerribleNetwork(random.Random(7), loss=loss, packet_time=9 * MICROSECOND)  # 1 Gb/s
        fabric = make_fabric([[0, 1], [2, 3]], network, slots=1024)
        fold(fabric, integers(4, 256 * 100, 3))  # now the round trip is known
        begin = network.now
        fold(fabric, integers(4, 256 * 4_000, 3), number=2)
        times.append(network.now - begin)
        timeouts = sum(core.state(0, DATA).counters.timeouts for core in fabric.cores)
        assert timeouts <= 4 * 3
    assert times[1] < 1.3 * times[0], times


@pytest.mark.parametrize(("slots", "bound"), [(64, 8.0), (2048, 2.2)])
def test_five_percent_loss_on_every_link_slows_but_does_not_stall(slots: int, bound: float) -> None:
    """Lost retransmissions are repaired within round trips: no sequence of timeouts, no storm of retransmissions."""
    times = []
    for loss in (0.0, 0.05):
        network = TerribleNetwork(random.Random(7), loss=loss, packet_time=9 * MICROSECOND)  # 1 Gb/s
        fabric = make_fabric([[0, 1], [2, 3]], network, slots=slots)
        fold(fabric, integers(4, 256 * 100, 3))
        begin = network.now
        fold(fabric, integers(4, 256 * 2_000, 3), number=2)
        times.append(network.now - begin)
    assert times[1] < bound * times[0], times
    assert retransmissions(fabric) < 4 * 2_000


def test_a_dead_link_is_used_again_soon_after_it_is_back() -> None:
    """All packets are lost for 300 ms in the middle; the operation is done within 200 ms after that."""
    network = TerribleNetwork(random.Random(3))
    fabric = make_fabric([0, 1], network, slots=256)
    dead = 2000 * MICROSECOND
    back = dead + 300_000 * MICROSECOND

    def set_loss(loss: float) -> None:
        network.loss = loss

    network.at(dead, lambda: set_loss(1.0))
    network.at(back, lambda: set_loss(0.0))
    sources = integers(2, 256 * 8000, 3)
    outs = fold(fabric, sources)
    assert network.now > back, "the cut came too late to matter"
    assert (outs[0] == sum(sources)).all()
    clean = TerribleNetwork(random.Random(3))
    fold(make_fabric([0, 1], clean, slots=256), sources)
    assert network.now - back < clean.now - dead + 200_000 * MICROSECOND


def test_marks_shrink_the_window_and_their_absence_opens_it() -> None:
    """ECN on every result narrows what is in flight to a few packets; without marks the window fills again."""
    network = TerribleNetwork(random.Random(3), mark=1.0)
    fabric = make_fabric([0, 1], network, slots=256)

    def most_in_flight() -> int:
        sources = integers(2, 256 * 6000, 3)
        calls = [[Call(source, np.empty_like(source), 1.0, 1)] for source in sources]
        seen: list[int] = []
        start = network.now

        def look() -> None:
            state = fabric.cores[0].state(0, DATA)
            seen.append(state.sent_ahead - state.results)
            network.at(network.now + 100 * MICROSECOND, look)

        network.at(start + 2000 * MICROSECOND, look)
        for _ in run(fabric, calls):
            pass
        network.queue.clear()
        return max(seen[len(seen) // 2 : len(seen) * 9 // 10])

    assert most_in_flight() <= 8
    assert fabric.cores[0].state(0, DATA).counters.marks > 1000
    network.mark = 0.0
    assert most_in_flight() > 100


@settings(max_examples=40)
@given(
    messages=st.integers(1, 4),
    packets=st.sampled_from([1, 3, 16, 170]),
    slots=st.sampled_from([4, 64, 1024]),
    size=st.integers(0, 30_000),
    loss=st.sampled_from([0.0, 0.05]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_message_leaves_only_on_the_credit_of_an_earlier_one(
    messages: int, packets: int, slots: int, size: int, loss: float, seed: int
) -> None:
    """NetReduce's flow control: nothing of message i + N is sent before each packet of message i has its result, or was
    found lost and sent again; sums stay exact."""
    fabric = make_fabric([[0, 1], [2, 3]], TerribleNetwork(random.Random(seed), loss=loss), slots=slots,
                         credits=Credits(messages, packets))
    for core in fabric.cores:
        hold_to_credits(core, messages, packets)
    sources = integers(4, size, seed)
    expected = np.sum(np.array(sources, np.int64), axis=0).astype(np.int32)
    for out in fold(fabric, sources):
        assert (out == expected).all()


def hold_to_credits(core: Core, messages: int, packets: int) -> None:
    """Checks from now on that whatever leaves this core obeys its credits.  Its first PSN is 0."""
    send, receive = core.send, core.receive
    left: set[int] = set()
    through: set[int] = set()
    lowest = 0

    def sums(payload: bytes) -> bool:
        return struct.unpack_from("!I", payload, 4)[0] & 0x8000 != 0  # plan_trees

    def checked(now: int) -> Run | None:
        nonlocal lowest
        found = send(now)
        for payload in filter(sums, found.packets() if found else []):
            psn = parse(payload).psn  # of an ask as well: what is asked for was found lost
            if psn in left:
                through.add(psn)
                continue
            left.add(psn)
            while lowest in through:
                lowest += 1
            assert psn < (lowest // packets + messages) * packets, f"PSN {psn} left before {lowest} was through"
        return found

    def taken(payload: bytes, now: int, origin: Origin, **marks: Any) -> None:
        if sums(payload) and isinstance(packet := parse(payload), Packet):
            through.add(packet.psn)
        receive(payload, now, origin, **marks)

    core.send, core.receive = checked, taken  # type: ignore[method-assign,assignment]


def test_credits_cost_no_more_than_the_window_where_packets_are_lost() -> None:
    """A hole does not hold later messages up: over long paths and at 3 % loss, simulated, a fold with credits takes
    hardly longer than one that only its window bounds."""

    def time(credits: Credits | None) -> int:
        total = 0
        for seed in range(3):
            network = TerribleNetwork(random.Random(seed), loss=0.03, delay=300 * MICROSECOND,
                                      packet_time=9 * MICROSECOND)
            fold(make_fabric([0, 1], network, slots=1024, credits=credits), integers(2, 500_000, seed))
            total += network.now
        return total

    assert time(Credits(2, 170)) < 1.25 * time(None)


def test_credits_are_said_as_messages_of_packets() -> None:
    """Invalid values are refused before anything is opened."""
    assert Credits.parse("2x170") == Credits(messages=2, packets=170)
    assert Credits.parse("2x170K", 1024) == Credits(messages=2, packets=170)
    assert Credits.parse("2x170K", 4096) == Credits(messages=2, packets=43)
    for wrong in ("", "2", "0x170", "2x0", "2x5000", "x", "-1x3"):
        with pytest.raises(ValueError, match="expected MESSAGESxPACKETS"):
            Credits.parse(wrong)
