# SPDX-License-Identifier: Apache-2.0
"""The packets that native/stream.c asks for at the end of an operation, and when, in simulated time: nothing follows
there that would show a loss."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

from netfold.host.innet.abi import AGREEMENT, DATA
from netfold.host.innet.slot_switch import Nak, Packet
from netfold.host.native.library import Run
from support.models.slot_model import MICROSECOND, MILLISECOND, SECOND, Call, Fabric, TerribleNetwork, make_fabric, run
from support.models.sources import integers, retransmissions

PACKETS = 40
MIDDLE, LAST = 10, PACKETS - 1
ROUND_TRIP = 40 * MICROSECOND
"""The round trip of one switch: two links of 20 us each way and no time for packets."""


class LosesSome(TerribleNetwork):
    """Loses the n-th packets with a PSN, of all that have lanes: with two ranks 0 and 1 are the contributions, 2 and 3
    the results."""

    losses: dict[int, Collection[int]]
    seen: dict[int, int]
    loses_naks_from: int | None = None
    """The PSN from which on NAKs are lost as well."""

    def send(self, packet: Any, deliver: Any) -> None:
        """Loses the packet, or delivers it."""
        if isinstance(packet, Nak):
            if self.loses_naks_from is not None and packet.psn >= self.loses_naks_from:
                self.lost += 1
                return
        else:
            count = self.seen.get(packet.psn, 0)
            self.seen[packet.psn] = count + 1
            if count in self.losses.get(packet.psn, ()):
                self.lost += 1
                return
        super().send(packet, deliver)


def _network(losses: dict[int, Collection[int]]) -> LosesSome:
    network = LosesSome(random.Random(1))
    network.losses, network.seen = losses, {}
    return network


def _fold(fabric: Fabric, number: int, late: int = 0) -> int:
    """One sum of two ranks, the second of which comes late.  Returns the nanoseconds that it took from then on."""
    begin = fabric.network.now
    sources = integers(2, 256 * PACKETS, number)
    calls = [[Call(source, np.empty_like(source), number=number)] for source in sources]
    for _ in run(fabric, calls, late=[0, begin + late]):
        pass
    for own in calls:
        assert (own[0].out == sources[0] + sources[1]).all()
    return fabric.network.now - begin - late


def _counted(fabric: Fabric, what: str) -> int:
    return sum(getattr(core.state(0, kind).counters, what) for core in fabric.cores for kind in (AGREEMENT, DATA))


@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1), (2,), (3,), (2, 3)])
def test_what_is_lost_last_is_asked_for_after_two_round_trips(lost: tuple[int, ...]) -> None:
    """Where packets were lost before, the last one is repaired long before a timer of 2 ms or more runs out."""
    fabric = make_fabric([0, 1], _network({MIDDLE: (0,), LAST: lost}))
    assert _fold(fabric, 1) < 12 * ROUND_TRIP
    assert _counted(fabric, "timeouts") == 0


def test_losses_are_remembered_in_the_next_operation_and_by_the_stream_of_the_signature() -> None:
    """A loss in one operation shortens the wait for the last packet, or for the only one, of the next one."""
    fabric = make_fabric([0, 1], _network({MIDDLE: (0,), PACKETS + LAST: (0,)}))
    _fold(fabric, 1)
    assert _fold(fabric, 2) < 12 * ROUND_TRIP
    network = fabric.network
    assert isinstance(network, LosesSome)
    network.losses, network.seen = {2: (0,)}, {}  # PSN 2 of the agreement: no other has it from here on
    assert _fold(fabric, 3) < 12 * ROUND_TRIP
    assert _counted(fabric, "timeouts") == 0
    assert network.lost == 3


class RepeatsOne(LosesSome):
    """A result of the first operation comes every 50 us again, for a second."""

    def send(self, packet: Any, deliver: Any) -> None:
        """Puts the packet on its link, and the result once more, and again."""
        if isinstance(packet, Packet) and packet.psn == LAST and self.seen.get(LAST, 0) >= 2:
            for n in range(1, SECOND // (50 * MICROSECOND)):
                self.at(self.now + n * 50 * MICROSECOND, lambda: deliver(packet))
        super().send(packet, deliver)


def test_results_that_come_again_without_end_put_off_no_timer() -> None:
    """What is agreed on is lost in the second operation, and asked for though second results of data never end.  In a
    fabric whose switch made copies of one packet without end, ranks waited for their timeout."""
    network = RepeatsOne(random.Random(1))
    network.losses, network.seen = {}, {}
    fabric = make_fabric([0, 1], network)
    _fold(fabric, 1)
    network.losses, network.seen = {1: (0, 1)}, {}  # PSN 1 of the agreement: no other has it from here on
    assert _fold(fabric, 2) < 100 * MILLISECOND


def test_losses_are_forgotten_after_some_thousand_packets_without_one() -> None:
    """4,096 packets after a loss the network counts as clean: who waits asks when the timer does, and no earlier."""
    fabric = make_fabric([0, 1], _network({MIDDLE: (0,)}))
    for number in range(1, 2 + 4096 // PACKETS):
        _fold(fabric, number)
    timeouts, asks = _counted(fabric, "timeouts"), _counted(fabric, "asks")
    _fold(fabric, 1000, late=SECOND)
    timeouts, asks = _counted(fabric, "timeouts") - timeouts, _counted(fabric, "asks") - asks
    assert 0 < timeouts <= asks <= 2 * timeouts


def test_where_nothing_was_lost_only_the_timer_asks() -> None:
    """A clean network is not probed, however long its ranks wait for one: the first ask is the timer's."""
    fabric = make_fabric([0, 1], _network({}))
    _fold(fabric, 1)
    _fold(fabric, 2, late=SECOND)
    timeouts, asks = _counted(fabric, "timeouts"), _counted(fabric, "asks")
    assert 0 < timeouts <= asks <= 2 * timeouts
    assert retransmissions(fabric) == 0


def test_a_straggler_costs_no_repeat_where_packets_are_lost() -> None:
    """Who waits for a late rank probes a few times and leaves the rest to the timer, which backs off; nothing that was
    not lost is sent again, by a rank or by a switch."""
    fabric = make_fabric([0, 1], _network({MIDDLE: (0,)}))
    _fold(fabric, 1)
    repeats, asks, left = retransmissions(fabric), _counted(fabric, "asks"), fabric.left[Packet]
    assert _fold(fabric, 2, late=SECOND) < 4 * ROUND_TRIP
    assert retransmissions(fabric) == repeats
    assert fabric.left[Packet] - left == 2 * (PACKETS + 1)
    waited = SECOND / (50 * MILLISECOND)
    assert _counted(fabric, "asks") - asks < 3 * (waited + 10) + 2 * 8 * 16


def test_probes_follow_each_other_after_twice_the_time_until_the_timer_takes_over() -> None:
    """The clock of a rank whose network has fallen silent: it asks two round trips after the last result, and four,
    eight.. after it, while that is before the timer's first time-out, which comes as if there were no probes."""
    network = _network({MIDDLE: (0,), LAST: range(1000)})
    network.loses_naks_from = LAST
    fabric = make_fabric([0, 1], network)
    core, times = fabric.cores[0], []
    send = core.send

    def watched(now: int) -> Run | None:
        before = core.state(0, DATA).counters.asks
        found = send(now)
        if core.state(0, DATA).counters.asks > before and core.state(0, DATA).results == LAST:
            times.append(now)
        return found

    core.send = watched  # type: ignore[method-assign]

    def mend() -> None:
        network.losses, network.loses_naks_from = {}, None

    network.at(3 * MILLISECOND, mend)
    _fold(fabric, 1)
    begin = 2 * times[0] - times[1]
    print([(time - begin) / ROUND_TRIP for time in times])
    assert [time - begin for time in times[:6]] == [*(2**n * ROUND_TRIP for n in range(1, 6)), 2 * MILLISECOND]
