# SPDX-License-Identifier: Apache-2.0
"""Queue pairs leave dead paths, on a simulated network with a clock of its own and hosts that look rarely."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.host.mesh.source_ports import SourcePorts
from netfold.host.roce.endpoint import Connection, Endpoint
from netfold.host.roce.failover import GRACE_NS, PathFailover
from netfold.host.roce.native import ANSWERED, STALLED
from netfold.wire.paths import Paths, Reach
from netfold.wire.roce import Opcode
from support.models.roce import PORT, Datagram, Wires, Writer, address, some_bytes
from support.models.slot_model import MICROSECOND, MILLISECOND, TerribleNetwork


class Leaf:
    """Endpoint 0 writes to ``peers`` others under one leaf; ``ports`` are the paths there.

    look  nanoseconds between the moments at which endpoint 0's owner sees what happened: processes do not always run
    """

    def __init__(self, *, peers: int, ports: int, look: int, nbytes: int = 400_000) -> None:
        self.look, self.next_look = look, 0
        self.ports = [PORT + n for n in range(ports)]
        self.wires = Wires(TerribleNetwork(random.Random(1), packet_time=10 * MICROSECOND),
                           [Endpoint(address(n), window=64) for n in range(peers + 1)])
        for end in self.wires.endpoints:
            end.ports(self.ports)
        sender = self.wires.endpoints[0]
        source_ports = SourcePorts(self.ports, range(1, peers + 1))
        source_ports.adopt(Paths(1, self.ports, [], [Reach(peer, "leaf2", self.ports) for peer in range(1, peers + 1)]))
        self.failover = PathFailover(
            sender, source_ports, me="test", locked=nullcontext, clock=lambda: self.wires.network.now
        )
        self.writers = []
        self.blamed: list[tuple[int, int]] = []
        self.handled = 0
        for peer in range(1, peers + 1):
            psn, other, port = peer * 1000, peer * 2000, self.ports[0]
            sender.connect(Connection(address(peer), 0x800000 + peer, 0x700000 + peer, port, psn, other))
            self.wires.endpoints[peer].connect(
                Connection(address(0), 0x700000 + peer, 0x800000 + peer, self.ports[0], other, psn))
            self.failover.add(peer - 1, peer, port)
            self.writers.append(Writer(self.wires, 0, peer, peer - 1, [some_bytes(peer, nbytes)]))
        self.paths: Callable[[Datagram], int | None] = lambda datagram: 0
        """Path -> nanoseconds by which its packets are later; None: they are lost."""
        network = self.wires.network

        def path(datagram: Datagram) -> Datagram | None:
            late = self.paths(datagram)
            if late is None:
                return None
            if not late:
                return datagram
            to = self.towards
            network.at(network.now + late, lambda: to(datagram))
            return None

        self.wires.path = path

    @property
    def towards(self) -> Callable[[Datagram], None]:
        """The endpoint that a packet is for: requests go to their queue pair's owner, answers to endpoint 0."""
        payload = self.wires.sent[-1]
        number = int.from_bytes(payload[5:8], "big")
        return self.wires.deliver[max(0, number - 0x800000)]

    def run(self) -> None:
        """Runs until everything has arrived and is acknowledged, and checks every byte."""

        def done() -> bool:
            if self.wires.network.now >= self.next_look:
                self.next_look = self.wires.network.now + self.look
                self._look()
                self.wires.drain()
            return all(writer.done() for writer in self.writers)

        self.wires.run(done, limit=20_000 * MILLISECOND)
        self.wires.network.step(self.wires.network.now + GRACE_NS)
        self._look()
        for writer in self.writers:
            writer.check()

    def _look(self) -> None:
        for event in self.wires.events[0][self.handled :]:
            if event.what == STALLED:
                self.failover.stalled(event)
            elif event.what == ANSWERED:
                self.failover.answered(event)
        self.handled = len(self.wires.events[0])
        self.blamed += self.failover.confirmed_failures()

    def stalled(self) -> float:
        """Longest stall of any queue pair, in milliseconds."""
        return max(self.wires.endpoints[0].state(n).stalled for n in range(len(self.writers))) / MILLISECOND


@pytest.mark.parametrize("peers", [1, 2, 5])
@pytest.mark.parametrize("look", [0, 30 * MILLISECOND])
def test_all_that_share_a_dead_path_leave_it_once(peers: int, look: int) -> None:
    """Queue pairs that stall together are reported together.  The second event is about the path that the first one
    made its queue pair leave; applied to the path that it is on by then, it led straight back, for ever."""
    leaf = Leaf(peers=peers, ports=2, look=look)
    leaf.paths = lambda datagram: None if datagram.source_port == PORT else 0
    leaf.run()
    assert {port for _, port in leaf.blamed} == {PORT}
    assert leaf.stalled() < 200


def test_a_path_that_the_controller_reports_dead_is_left_at_once() -> None:
    """The controller reports a dead path before this rank can tell: all leave it then, what was in flight is sent
    again, and no path is blamed."""
    leaf = Leaf(peers=3, ports=2, look=0)
    cut, told = 5 * MILLISECOND, 25 * MILLISECOND
    leaf.paths = lambda d: None if d.source_port == PORT and leaf.wires.network.now >= cut else 0
    news = Paths(2, leaf.ports, [], [Reach(peer, "leaf2", leaf.ports[1:]) for peer in (1, 2, 3)])
    leaf.wires.network.at(told, lambda: leaf.failover.restrict(news))
    leaf.run()
    assert not leaf.blamed
    assert leaf.wires.count(0, STALLED) == 0
    assert leaf.stalled() < 50


def test_a_slow_path_is_not_reported_to_the_controller() -> None:
    """A link breaks, and the rest is so slow that it seems dead as well: its late acknowledgements clear it, the flow
    returns to it, and only the broken link is reported."""
    leaf = Leaf(peers=2, ports=2, look=5 * MILLISECOND, nbytes=40_000)
    leaf.paths = lambda datagram: None if datagram.source_port == PORT else 90 * MILLISECOND
    leaf.run()
    assert leaf.wires.count(0, ANSWERED) > 0, "the slow path was given up, then answered"
    assert {port for _, port in leaf.blamed} == {PORT}


def test_queue_pairs_return_to_a_path_that_was_only_slow() -> None:
    """A path stands still for 125 ms, 15 more than it may: what left it returns once it answers, and nothing is
    reported."""
    leaf = Leaf(peers=1, ports=2, look=0, nbytes=20_000_000)
    begin, end = 10 * MILLISECOND, 135 * MILLISECOND

    def stuck(datagram: Datagram) -> int:
        now = leaf.wires.network.now
        return end - now if datagram.source_port == PORT and begin <= now < end else 0

    leaf.paths = stuck
    leaf.run()
    assert leaf.wires.count(0, STALLED) == leaf.wires.count(0, ANSWERED) == 1
    assert set(leaf.wires.ports) == {PORT, PORT + 1}
    assert leaf.wires.ports[-1] == PORT
    assert not leaf.blamed


def test_a_path_on_which_any_peer_answers_is_not_dead() -> None:
    """One peer under a leaf is silent and another is not: the path works, and nothing leaves it."""
    leaf = Leaf(peers=2, ports=2, look=0, nbytes=8_000_000)
    until = 200 * MILLISECOND

    def silent(datagram: Datagram) -> int | None:
        to_first = leaf.towards is leaf.wires.deliver[1]
        return None if to_first and leaf.wires.network.now < until else MILLISECOND

    leaf.paths = silent
    leaf.run()
    assert leaf.stalled() >= 200
    assert leaf.wires.count(0, STALLED) == 0
    assert set(leaf.wires.ports) == {PORT}


class SlowLinks:
    """Paths, one a source port, on which a data packet takes ``packet_time`` nanoseconds of a link, after those sent
    before it, and every packet ``delay`` more.  The path of ``dead`` loses everything from then on."""

    def __init__(self, leaf: Leaf, *, packet_time: int = 0, delay: int = 0, dead: dict[int, int] | None = None) -> None:
        self.leaf, self.packet_time, self.delay, self.dead = leaf, packet_time, delay, dead or {}
        self.free: dict[int, int] = {}

    def __call__(self, datagram: Datagram) -> int | None:
        now, port = self.leaf.wires.network.now, datagram.source_port
        if now >= self.dead.get(port, now + 1):
            return None
        if datagram.payload[0] == Opcode.ACKNOWLEDGE:
            return self.delay
        self.free[port] = max(now, self.free.get(port, 0)) + self.packet_time
        return self.free[port] - now + self.delay


@pytest.mark.parametrize("delay", [0, 145])
@pytest.mark.parametrize("peers", [1, 3])
def test_a_path_slower_than_any_timer_is_not_flooded(peers: int, delay: int) -> None:
    """With round trips of 300 ms, in queues or cables, a window is not sent again while its acknowledgements are under
    way; a first round trip, or 75 ms of silence, is probed with a packet."""
    leaf = Leaf(peers=peers, ports=1, look=0, nbytes=600_000)
    leaf.paths = SlowLinks(leaf, packet_time=0 if delay else 300 * MILLISECOND // (64 * peers),
                           delay=delay * MILLISECOND)
    leaf.run()
    for pair in range(peers):
        s = leaf.wires.endpoints[0].state(pair)
        print(f"{s.sent=} {s.retransmitted=} {s.timeouts=} {s.srtt=} {leaf.wires.network.now=}")
        assert s.srtt >= 200 * MILLISECOND
        assert s.retransmitted < s.posted / 10


@pytest.mark.parametrize("at", [200, 400, 1200])
def test_a_slow_path_that_dies_is_left_as_soon(at: int) -> None:
    """With round trips of 300 ms the retransmission timer is as long; failover does not wait for it."""
    leaf = Leaf(peers=2, ports=2, look=0, nbytes=800_000)
    leaf.paths = SlowLinks(leaf, packet_time=300 * MILLISECOND // 128, dead={PORT: at * MILLISECOND})
    leaf.run()
    print(f"{at=} {leaf.wires.network.now=} {leaf.stalled()=}")
    assert {port for _, port in leaf.blamed} == {PORT}
    assert leaf.stalled() < 200


@given(ports=st.integers(2, 4), peers=st.integers(1, 3), look=st.sampled_from([0, 7, 40, 110]), data=st.data())
@settings(max_examples=25, deadline=None)
def test_everything_arrives_while_any_path_works(ports: int, peers: int, look: int, data: st.DataObject) -> None:
    """Whichever paths die, whenever, and however rarely the host looks, every byte arrives, and only dead paths are
    reported."""
    leaf = Leaf(peers=peers, ports=ports, look=look * MILLISECOND, nbytes=100_000)
    dead = data.draw(st.dictionaries(st.sampled_from(leaf.ports), st.integers(0, 300), max_size=ports - 1))
    leaf.paths = lambda d: None if leaf.wires.network.now >= dead.get(d.source_port, 10**6) * MILLISECOND else 0
    leaf.run()
    assert {port for _, port in leaf.blamed} <= set(dead)
