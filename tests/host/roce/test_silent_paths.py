# SPDX-License-Identifier: Apache-2.0
"""A silent path or a silent peer: the oldest packet asks over another path; and what a broken path costs after that."""

from __future__ import annotations

import random

import pytest

from netfold.host.native.library import Origin
from netfold.host.roce.endpoint import Endpoint
from netfold.host.roce.native import STALLED
from netfold.wire import roce
from netfold.wire.roce import Opcode
from support.models.roce import PORT, Datagram, Wires, Writer, address, connect, some_bytes
from support.models.slot_model import MICROSECOND, MILLISECOND, TerribleNetwork

pytestmark = pytest.mark.slow

OTHER = PORT + 5
"""The source port of the other path."""
ASK = 25 * MILLISECOND
"""Nanoseconds: NF_RC_ASK of native/rc.h."""
ALONE = 110 * MILLISECOND
"""Nanoseconds: NF_RC_STALL_ALONE of native/rc.h."""
NAK = 0x60
"""AETH syndrome of a NAK for a packet that is missing."""


class TwoPaths(Wires):
    """Endpoint 0 has two queue pairs to endpoint 1, one on each of two paths.

    delay  nanoseconds that a packet is under way
    """

    def __init__(self, *, delay: int = 20 * MICROSECOND) -> None:
        network = TerribleNetwork(random.Random(4), packet_time=10 * MICROSECOND, delay=delay)
        super().__init__(network, [Endpoint(address(i), window=64) for i in range(2)])
        for end in self.endpoints:
            end.ports([PORT, OTHER])
        for number in (1, 2):
            connect(*self.endpoints, number=number)
        self.endpoints[0].move(1, OTHER, network.now)
        self.dead: dict[int, int] = {}
        """Source port of a path that loses everything -> since when."""
        self.stuck: dict[int, list[tuple[int, int]]] = {}
        """Source port of a path -> from when to when it holds everything back."""
        self.path = self.on_its_way
        self.writers: list[Writer] = []
        """They own the memory that packets are made of."""

    def on_its_way(self, datagram: Datagram) -> Datagram | None:
        now, port = self.network.now, datagram.source_port
        if now >= self.dead.get(port, now + 1):
            return None
        for begin, end in self.stuck.get(port, ()):
            if begin <= now < end:
                self.later(datagram, end - now)
                return None
        return datagram

    def write(self, pair: int, nbytes: int) -> Writer:
        """Writes so many bytes on a queue pair of endpoint 0."""
        self.writers.append(Writer(self, 0, 1, pair, [some_bytes(pair + 1, nbytes)]))
        return self.writers[-1]

    def later(self, datagram: Datagram, nanoseconds: int) -> None:
        """Delivers a datagram so much later than now."""
        to = self.deliver[datagram.source == address(0)]
        self.network.at(self.network.now + nanoseconds, lambda: to(datagram))

    def blamed(self, pair: int) -> int:
        """Runs until this queue pair's path is blamed.  Returns when."""
        self.run(lambda: any(event.what == STALLED and event.pair == pair for event in self.events[0]))
        return self.network.now


def test_a_path_is_blamed_where_another_one_answers() -> None:
    """The peer has nothing else to say, and answers what it is asked over the other path: 50 ms of silence are enough,
    and the queue pair has had an answer by then."""
    wires, cut = TwoPaths(), 10 * MILLISECOND
    wires.dead = {PORT: cut}
    writer = wires.write(0, 3_000_000)
    assert 2 * ASK <= wires.blamed(0) - cut < 3 * ASK
    wires.endpoints[0].move(0, OTHER, wires.network.now, lost=True)
    wires.run(writer.done)
    writer.check()
    assert wires.endpoints[0].state(0).stalled < 2 * ASK


def test_a_peer_that_is_silent_on_both_paths_gets_more_time() -> None:
    """Where the other path is silent as well it may be the peer, and nothing is blamed for 110 ms."""
    wires, cut = TwoPaths(), 10 * MILLISECOND
    wires.dead = {PORT: cut, OTHER: cut}
    wires.write(0, 3_000_000)
    assert ALONE <= wires.blamed(0) - cut < ALONE + 2 * ASK


def test_peers_behind_a_single_path_are_not_asked_over_another() -> None:
    """Group 0 has one path, whatever the port: an answer by another port would tell nothing about it."""
    wires, cut = TwoPaths(), 10 * MILLISECOND
    for pair in (0, 1):
        wires.endpoints[0].set_group(pair, 0)
    wires.dead = {PORT: cut}
    wires.write(0, 3_000_000)
    assert ALONE <= wires.blamed(0) - cut < ALONE + 2 * ASK
    assert OTHER not in wires.ports


@pytest.mark.parametrize("before", [False, True])
def test_paths_that_were_silent_and_came_back_earn_patience(before: bool) -> None:
    """A path stands still for 60 ms, which is blamed on it; not so where one has stood still for 45 ms before, as on
    machines whose switches do not always run."""
    wires = TwoPaths()
    first, second = 10 * MILLISECOND, 100 * MILLISECOND
    wires.stuck = {PORT: [(second, second + 60 * MILLISECOND)]}
    if before:
        wires.stuck[PORT].append((first, first + 45 * MILLISECOND))
    writer = wires.write(0, 15_000_000)
    wires.run(writer.done)
    writer.check()
    assert wires.network.now > second + 60 * MILLISECOND, "the path stood still in the middle"
    assert wires.count(0, STALLED) == (not before)


def test_late_answers_from_an_old_path_are_no_sign_of_life_of_the_new_one() -> None:
    """A queue pair moves to a dead path.  Answers that come over the old one, for what was sent there, do not clear the
    new one."""
    wires = TwoPaths()
    wires.dead = {OTHER: 0}
    late = iter(range(10, 2000, 10))

    def slow_answers(datagram: Datagram) -> Datagram | None:
        if datagram.payload[0] != Opcode.ACKNOWLEDGE or datagram.source_port != PORT:
            return wires.on_its_way(datagram)
        wires.later(datagram, next(late) * MILLISECOND)
        return None

    wires.path = slow_answers
    wires.write(0, 3_000_000)
    wires.drain()
    wires.endpoints[0].move(0, OTHER, wires.network.now)
    assert wires.blamed(0) < 100 * MILLISECOND
    assert [event.source_port for event in wires.events[0] if event.what == STALLED] == [OTHER]
    assert wires.endpoints[0].state(0).acknowledged > 2, "answers came meanwhile, over the old path"


def test_packets_that_come_by_two_paths_at_once_are_answered_over_both() -> None:
    """What is read together is answered together, but each path by itself: else the one whose packet was read first
    would seem dead."""
    wires = TwoPaths()
    wires.write(0, 500)
    taken: list[Datagram] = []
    wires.path = taken.append  # type: ignore[assignment]
    wires.drain()
    for port in (PORT, OTHER):
        payload = roce.sealed(taken[0].payload, address(0), port, address(1), 0)
        wires.endpoints[1].receive(payload, wires.network.now, Origin.of(address(0), port))
    before = len(wires.ports)
    wires.drain()
    assert sorted(wires.ports[before:]) == [PORT, OTHER]


def test_a_nak_said_again_repeats_nothing_again() -> None:
    """Five more copies of a NAK within a round trip name a packet that is on its way already."""
    wires = TwoPaths()
    lost: list[bytes] = []

    def lossy(datagram: Datagram) -> Datagram | None:
        payload = datagram.payload
        if payload[0] == Opcode.WRITE_MIDDLE and not lost:
            lost.append(payload)
            return None
        if payload[0] == Opcode.ACKNOWLEDGE and payload[12] == NAK:
            for copy in range(1, 6):
                wires.later(datagram, 100 * MICROSECOND * copy)
        return datagram

    wires.path = lossy
    writer = wires.write(0, 300_000)
    wires.run(writer.done)
    writer.check()
    state = wires.endpoints[0].state(0)
    assert (state.naks > 1, state.retransmitted) == (True, 1)


@pytest.mark.parametrize("late", [0, 30])
def test_what_a_dead_path_swallowed_goes_again_in_a_few_round_trips(late: int) -> None:
    """A window is lost with its path.  One packet asks on the new path what has arrived, the rest follows its answer at
    once; also where that answer came late, compared with which the next ones seem too soon to be true."""
    trip = 20 * MILLISECOND
    wires = TwoPaths(delay=trip // 2)
    other = wires.write(1, 50_000)
    wires.run(other.done)
    cut = wires.network.now + 3 * trip // 2
    wires.dead = {PORT: cut}
    writer = wires.write(0, 96 * 1024)
    wires.blamed(0)
    moved, timeouts = wires.network.now, wires.endpoints[0].state(0).timeouts
    wires.endpoints[0].move(0, OTHER, moved, lost=True)
    wires.stuck = {OTHER: [(moved, moved + late * MILLISECOND)]}
    wires.run(writer.done)
    writer.check()
    print(f"{(wires.network.now - moved) / trip=}, {wires.endpoints[0].state(0).timeouts - timeouts=}")
    assert wires.network.now - moved < late * MILLISECOND + 5 * trip


def test_what_is_lost_again_after_a_dead_path_goes_again_together() -> None:
    """Of a window that was lost with its path, 40 packets arrive on the next one, each acknowledged, and the rest is
    lost again: all of it follows the answer to one probe of the timer, not a packet a time-out."""
    trip = 20 * MILLISECOND
    wires = TwoPaths(delay=trip // 2)
    before = [wires.write(pair, 1 << 20) for pair in (0, 1)]  # until a whole window may be in flight
    wires.run(lambda: all(writer.done() for writer in before))
    wires.dead = {PORT: wires.network.now}
    writer = wires.write(0, 64 * 1024)
    wires.blamed(0)
    wires.endpoints[0].move(0, OTHER, wires.network.now, lost=True)
    last = wires.endpoints[0].state(0).next
    lost: dict[int, int] = {}
    """PSN -> when it was lost on the second path."""

    def lossy(datagram: Datagram) -> Datagram | None:
        opcode, _, _, _, psn = roce.BTH.unpack_from(datagram.payload)
        psn &= roce.PSN_MASK
        if opcode != Opcode.ACKNOWLEDGE and last - 24 <= psn < last and psn not in lost:
            lost[psn] = wires.network.now
            return None
        return wires.on_its_way(datagram)

    wires.path = lossy
    wires.run(writer.done)
    writer.check()
    took = wires.network.now - max(lost.values())
    print(f"{len(lost)=}, {took / trip=}, {wires.endpoints[0].state(0).timeouts=}")
    assert len(lost) == 24
    assert took < 20 * trip
