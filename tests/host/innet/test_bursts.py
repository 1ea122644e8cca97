# SPDX-License-Identifier: Apache-2.0
"""The packets that native/stream.c asks for, and when, if links let packets through in bursts and windows queue at the
sender, in simulated time: an ask too early brings a whole result once more, over the link that is the limit."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from netfold.host.innet.abi import AGREEMENT, DATA
from netfold.host.innet.slot_switch import Packet
from netfold.wire import roce
from support.models.shaped_links import RUN, ShapedLinks
from support.models.slot_model import MICROSECOND, Call, Fabric, Layout, make_fabric, run
from support.models.sources import retransmissions

SLOW, FAST = 664_640, 33_232
"""Nanoseconds that a packet of path MTU 4096 takes at 50 Mb/s and at 1 Gb/s."""
PACKETS = 64
"""Packets of a tensor of 256 KiB."""
SEEDS = (0, 1, 2, 3)
SUM, MAX = roce.LaneOperation.SUM32, roce.LaneOperation.MAX32
"""Kinds of lanes: of the data of a sum, and of what ranks agree on."""


class LosesChosen(ShapedLinks):
    """Loses those packets of which ``loses`` says so."""

    losses: set[tuple[int, int, int]]
    """The kind of lanes (``SUM`` or ``MAX``), PSN and number of what is lost: with two ranks 0 and 1 are the
    contributions with this PSN, 2 and 3 the results."""
    seen: Counter[tuple[int, int]]

    def send(self, packet: Any, deliver: Callable[[Any], None]) -> None:
        """Loses the packet, or puts it on the link."""
        if isinstance(packet, Packet):
            key = packet.operation, packet.psn
            self.seen[key] += 1
            if (*key, self.seen[key] - 1) in self.losses:
                self.lost += 1
                return
        super().send(packet, deliver)


def _network(packet_time: int, loss: float = 0.0, seed: int = 0) -> ShapedLinks:
    print(f"seed {seed}")
    return ShapedLinks(random.Random(seed), loss=loss, packet_time=packet_time, delay=100 * MICROSECOND)


def _sums(fabric: Fabric, packets: int, operations: int, first: int = 1) -> float:
    """Sums of all ranks, one after the other.  Returns the nanoseconds of one."""
    world, begin = len(fabric.cores), fabric.network.now
    sources = [np.full(1024 * packets, rank + 1, np.int32) for rank in range(world)]
    calls = [[Call(source, np.empty_like(source), number=first + k) for k in range(operations)] for source in sources]
    for _ in run(fabric, calls):
        pass
    for own in calls:
        for call in own:
            assert (call.out == world * (world + 1) // 2).all()
    return (fabric.network.now - begin) / operations


def _counted(fabric: Fabric, what: str) -> int:
    return sum(getattr(core.state(0, kind).counters, what) for core in fabric.cores for kind in (AGREEMENT, DATA))


@pytest.mark.parametrize(("layout", "packet_time", "packets", "loss", "most"), [
    ([0, 1], SLOW, PACKETS, 0.01, 1.1),
    ([0, 1, 2, 3], SLOW, PACKETS, 0.01, 1.1),
    ([[0, 1], [2, 3]], SLOW, PACKETS, 0.01, 1.12),
    ([0, 1, 2, 3], SLOW, PACKETS, 0.05, 1.35),
    ([0, 1, 2, 3], FAST, 4 * PACKETS, 0.05, 1.25),
])
@pytest.mark.slow
def test_losses_on_shaped_links_cost_little_more_than_their_repair(
    layout: list[Layout], packet_time: int, packets: int, loss: float, most: float
) -> None:
    """Sums one after the other take hardly longer than without loss, and few packets come twice that were not lost."""
    clean = _sums(make_fabric(layout, _network(packet_time), path_mtu=4096, slots=512), packets, 12)
    fabrics = [make_fabric(layout, _network(packet_time, loss, seed), path_mtu=4096, slots=512) for seed in SEEDS]
    times = [_sums(fabric, packets, 12) for fabric in fabrics]
    lost = sum(fabric.network.lost for fabric in fabrics)
    assert sum(times) / len(SEEDS) < most * clean
    assert sum(_counted(fabric, "duplicates") for fabric in fabrics) < 1.2 * lost
    assert sum(retransmissions(fabric) for fabric in fabrics) < 0.7 * lost


def _after_a_loss(layout: list[Layout]) -> Fabric:
    """A fabric that has lost one contribution, of its first sum."""
    network = LosesChosen(random.Random(1), packet_time=SLOW, delay=100 * MICROSECOND)
    network.losses, network.seen = {(SUM, 10, 0)}, Counter()
    fabric = make_fabric(layout, network, path_mtu=4096, slots=512)
    _sums(fabric, PACKETS, 1)
    return fabric


@pytest.mark.parametrize("lost", [(SUM, 2 * PACKETS - 1, 0), (SUM, 2 * PACKETS - 1, 2), (MAX, 1, 0), (MAX, 1, 2)])
def test_a_last_packet_or_a_signature_that_is_lost_costs_one_burst(lost: tuple[int, int, int]) -> None:
    """After a sum with a loss the last contribution or result of the next one, or one of its signature, is asked for
    once silence is longer than bursts are apart, and with few asks."""
    clean = _sums(_after_a_loss([0, 1]), PACKETS, 1, first=2)
    fabric = _after_a_loss([0, 1])
    network = fabric.network
    assert isinstance(network, LosesChosen)
    asks, repeats = _counted(fabric, "asks"), retransmissions(fabric)
    network.losses.add(lost)
    took = _sums(fabric, PACKETS, 1, first=2)
    assert network.lost == 2
    assert took < clean + 2 * RUN * SLOW
    assert _counted(fabric, "asks") - asks <= 4
    assert retransmissions(fabric) - repeats <= 1


def test_bursts_after_a_loss_are_no_silence() -> None:
    """Where packets were lost lately but none is lost now, nothing is asked for, though links are silent between bursts
    for many round trips of the first packets."""
    fabric = _after_a_loss([0, 1, 2, 3])
    asks, begin = _counted(fabric, "asks"), fabric.network.now
    _sums(fabric, PACKETS, 10, first=2)
    assert fabric.network.lost == 1
    assert fabric.network.now - begin > 10 * PACKETS * SLOW * 0.9
    assert _counted(fabric, "asks") == asks
