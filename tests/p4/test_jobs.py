# SPDX-License-Identifier: Apache-2.0
"""Several jobs on the compiled program: beside each other on the same switches, and one after the other in the same
slots, of which a controller can clear none."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from netfold.fabric.folding.slots import Stream
from netfold.host.innet.abi import AGREEMENT, DATA
from support.models.slot_model import MICROSECOND, TerribleNetwork, udp_port
from support.p4.folding import P4Fabric, reduce

LONG = 256 * 150
"""Elements of more packets than a job has slots on two trees, so that slots are used again within an operation."""
SHORT = 256 * 50
"""Of fewer, so that the slots keep the first packet that each of them got."""


def network(loss: float) -> TerribleNetwork:
    """A network that loses, repeats and reorders packets; it only marks none for congestion."""
    return TerribleNetwork(random.Random(3), loss=loss, duplicate=loss, reorder=loss, packet_time=2 * MICROSECOND)


def arrays(hosts: int, size: int, seed: int) -> list[NDArray[np.int32]]:
    """An array for each host; their sums wrap around."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-(2**31), 2**31, size, dtype=np.int64).astype(np.int32) for _ in range(hosts)]


def total(sources: Sequence[NDArray[np.int32]], members: Sequence[int]) -> NDArray[np.int32]:
    """The sum of these hosts' arrays."""
    return np.sum([sources[place] for place in members], axis=0, dtype=np.int32)


@pytest.mark.parametrize("loss", [0.0, 0.03])
@pytest.mark.parametrize("apart", [([0, 3], [1, 4], [2, 5]), ([5, 1, 3], [0, 2, 4])], ids=str)
def test_jobs_on_the_same_switches_keep_to_their_own_slots(apart: Sequence[Sequence[int]], loss: float) -> None:
    """Three hosts under each of two leaves, and jobs across both: operations that run at the same time are exact, each
    the sum of its own job, whatever is lost, repeated or late; and where nothing is, no job takes a slot from another,
    which would cost a repeat."""
    fabric = P4Fabric(2, 2, 6, network(loss), apart=apart, ports=[udp_port(place) for place in range(6)])
    try:
        for number in (1, 2):
            sources = arrays(6, LONG, number)
            outs = reduce(fabric, sources, number)
            for members in apart:
                for place in members:
                    assert (outs[place] == total(sources, members)).all(), f"job {members}, host {place}"
            repeats = sum(core.state(tree, kind).counters.retransmitted for core in fabric.cores
                          for tree in (0, 1) for kind in (AGREEMENT, DATA))
            assert (repeats > 0) == (loss > 0)
    finally:
        fabric.close()


@pytest.mark.parametrize("own_epoch", [True, False])
def test_an_epoch_tells_a_job_from_the_one_whose_slots_it_has(own_epoch: bool) -> None:
    """The next job gets the slots as they are, and at worst the same PSNs: full, done, with the old sums.  Under an
    epoch of its own its sums are exact; under the old one, on purpose, it is answered with those of the dead."""
    fabric = P4Fabric(2, 1, 4, network(0.0))
    try:
        old = {stream.kind: stream for stream in fabric.streams}
        before = reduce(fabric, arrays(4, SHORT, 1), 1)
        fabric.allocator.release(old["data"].epoch)

        def the_worst(stream: Stream) -> Stream:
            was = old[stream.kind]
            assert stream.bases == was.bases, "the slots of the one before"
            assert stream.epoch != was.epoch
            return replace(stream, psn=was.psn, epoch=stream.epoch if own_epoch else was.epoch)

        fabric.admit(range(4), the_worst)
        sources = arrays(4, SHORT, 2)
        expected = total(sources, range(4)) if own_epoch else before[0]
        for out in reduce(fabric, sources, 1):
            assert (out == expected).all()
    finally:
        fabric.close()
