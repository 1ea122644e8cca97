# SPDX-License-Identifier: Apache-2.0
"""Messages with immediate data on the compiled program: slots do not hold it, so a switch cannot make such a packet
anew, and asks for a repeat instead.  Here every packet of a run is lost once, one run after another, and nothing hangs:
each rank gets each sum, and the immediate data that all ranks sent.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from netfold.fabric.graph import End
from support.models.nic_packets import Rc
from support.p4.modelled import ModelledFabric, Schedule
from support.p4.rc_fabric import Exact, Sender

Verb = Literal["send", "write"]
STEPS = 200
"""Turns in which everything arrives and, where nothing does, a timer fires, by which all must be done."""


class Run:
    """Two messages of two packets and of one, all of one job's ranks, over a network that loses what it is told.

    sizes   bytes of the last packets of both messages
    lost    the numbers of the frames that are lost, counted as they leave
    """

    def __init__(self, shape: tuple[int, int, int], rc: Sequence[int], verb: Verb, sizes: tuple[int, int],
                 lost: frozenset[int], path_mtu: int = 1024) -> None:
        self.network = Schedule(random.Random(1))
        self.fabric = ModelledFabric(*shape, self.network, rc=rc, size=8, path_mtu=path_mtu)
        self.left = 0
        self.lost = lost
        honest = self.fabric.bend

        def bend(end: End, data: bytes) -> bytes | None:
            self.left += 1
            return None if self.left - 1 in self.lost else honest(end, data)

        self.fabric.bend = bend  # type: ignore[method-assign]
        rng = random.Random(2)
        whole = {rank: [rng.randbytes(path_mtu + sizes[0]), rng.randbytes(sizes[1])] for rank in range(shape[2])}
        packets = [[one[0][:path_mtu], one[0][path_mtu:], one[1]] for one in whole.values()]
        self.fabric.give(packets, 1)
        for rank in self.fabric.windowed.values():
            rank.opcodes = [Rc.SEND_FIRST, Rc.SEND_LAST_IMMEDIATE, Rc.SEND_ONLY_IMMEDIATE]
            rank.immediates = [None, 0, 1]
        Exact(self.fabric, whole)
        self.senders = [Sender(self.fabric, rank, whole[rank], verb=verb, immediate=True) for rank in rc]

    @property
    def done(self) -> bool:
        """True if every rank has every result."""
        windowed = self.fabric.windowed.values()
        return all(sender.done for sender in self.senders) and all(len(rank.has) == 3 for rank in windowed)

    def go(self) -> None:
        """Runs to the end; fails where it does not come, or a NIC got other immediate data."""
        try:
            for _ in range(STEPS):
                for sender in self.senders:
                    sender.step()
                for rank in self.fabric.windowed.values():
                    rank.send()
                while self.network.flying:
                    self.network.arrive(0)
                if self.done:
                    break
                for rank in self.fabric.windowed.values():
                    rank.ask()
                if self.network.timers:
                    self.network.fire()
            assert self.done, f"stuck without frames {sorted(self.lost)}: {self.fabric.states()}"
            for sender in self.senders:
                received = [one for one in sender.mine.into.completions if one.what == "received"]
                assert [(one.status, one.immediate) for one in received] == [("success", 0), ("success", 1)]
        finally:
            self.fabric.close()


SIZES = [(1024, 1024), (4, 1), (516, 1020), (3, 256)]
CASES: list[Any] = [
    ((1, 0, 2), (0, 1), "write"), ((1, 0, 2), (0, 1), "send"), ((2, 1, 3), (0, 2), "send"),
    ((2, 1, 2), (0, 1), "write"),
]


@pytest.mark.parametrize(("shape", "rc", "verb"), CASES, ids=str)
def test_each_frame_may_be_lost(shape: tuple[int, int, int], rc: Sequence[int], verb: Verb) -> None:
    """NICs alone and beside a windowed rank, one level and two, WRITE and SEND: one run for each frame that leaves."""
    whole = Run(shape, rc, verb, SIZES[0], frozenset())
    whole.go()
    for lost in range(whole.left):
        Run(shape, rc, verb, SIZES[(lost + 1) % len(SIZES)], frozenset({lost})).go()


@pytest.mark.parametrize(("shape", "rc", "verb"), CASES, ids=str)
def test_several_frames_may_be_lost(shape: tuple[int, int, int], rc: Sequence[int], verb: Verb) -> None:
    """Drawn sets of frames, repeats and answers among them."""
    rng = random.Random(len(shape) + shape[2])
    for size in SIZES * 2:
        lost = frozenset(rng.sample(range(60), rng.randrange(2, 20)))
        Run(shape, rc, verb, size, lost).go()


@pytest.mark.parametrize("verb", ["write", "send"])
def test_at_a_path_mtu_of_4096(verb: Verb) -> None:
    """The same with last packets of any length up to 4096 bytes."""
    rng = random.Random(len(verb))
    for last in (4096, 1, 2052, 4092):
        lost = frozenset(rng.sample(range(40), 8))
        Run((2, 1, 2), (0, 1), verb, (last, 4096), lost, path_mtu=4096).go()
