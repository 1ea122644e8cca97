# SPDX-License-Identifier: Apache-2.0
"""Queue pairs on paths that die: which are blamed, when, and how flows go on; entropies that are recycled (REPS)."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from netfold.host.roce.endpoint import Endpoint
from netfold.host.roce.native import STALLED
from netfold.wire.roce import Opcode
from support.models.roce import PORT, Datagram, Wires, Writer, address, connect, some_bytes
from support.models.slot_model import MICROSECOND, MILLISECOND, TerribleNetwork

BLAMED, BLAMED_ALONE = 50 * MILLISECOND, 110 * MILLISECOND
"""Nanoseconds: twice NF_RC_ASK, and NF_RC_STALL_ALONE, of native/rc.h."""
ENTROPIES = range(61_000, 61_016)


def two(*, ports: list[int], packet_time: int = 10 * MICROSECOND, patience: int = 3) -> Wires:
    """Two endpoints on a network on which a packet takes 10 us."""
    network = TerribleNetwork(random.Random(4), packet_time=packet_time)
    ends = [Endpoint(address(i), window=64, reorder=patience) for i in range(2)]
    for end in ends:
        end.ports(ports)
    return Wires(network, ends)


class Cut:
    """A path that dies in both directions at a given time."""

    def __init__(self, wires: Wires, port: int, at: int) -> None:
        self.wires, self.dead, self.at = wires, {port}, at
        wires.path = self

    def __call__(self, datagram: Datagram) -> Datagram | None:
        gone = datagram.source_port in self.dead and self.wires.network.now >= self.at
        return None if gone else datagram


def test_acknowledgements_carry_the_source_port_of_the_request() -> None:
    """Every packet about a message, from either end, carries the sender's source port; else a path would be blamed for
    the failure of another."""
    wires = two(ports=[PORT, PORT + 1])
    connect(*wires.endpoints)
    writer = Writer(wires, 0, 1, 0, [some_bytes(1, 200_000)])
    wires.run(writer.done)
    writer.check()
    assert set(wires.ports) == {PORT}


def test_acknowledgements_use_an_own_port_where_the_requests_has_no_socket() -> None:
    """A source port for which this end has no socket is not used."""
    wires = two(ports=[PORT + 1])
    connect(*wires.endpoints)
    writer = Writer(wires, 0, 1, 0, [some_bytes(1, 20_000)])
    wires.run(writer.done)
    assert set(wires.ports) == {PORT, PORT + 1}


def stall(wires: Wires, pair: int) -> int:
    """Runs until this queue pair of endpoint 0 stalls.  Returns when."""
    wires.run(lambda: any(e.what == STALLED and e.pair == pair for e in wires.events[0]))
    return wires.network.now


def test_a_path_that_dies_is_blamed_and_left() -> None:
    """Where the peer answers on another path, the path is blamed after 50 ms; the flow goes on at once from another
    port, complete and exact, and has stalled for less than 100 ms."""
    wires = two(ports=[PORT, PORT + 5])
    for number in (1, 2):
        connect(*wires.endpoints, number=number)
    wires.endpoints[0].move(1, PORT + 5, wires.network.now)
    cut = 10 * MILLISECOND
    Cut(wires, PORT, cut)
    doomed = Writer(wires, 0, 1, 0, [some_bytes(2, 3_000_000)])
    other = Writer(wires, 0, 1, 1, [some_bytes(3, 9_000_000)])
    when = stall(wires, 0)
    assert BLAMED <= when - cut < BLAMED + 20 * MILLISECOND
    assert not any(e.what == STALLED and e.pair == 1 for e in wires.events[0])
    wires.endpoints[0].move(0, PORT + 5, wires.network.now, lost=True)
    wires.run(lambda: doomed.done() and other.done())
    doomed.check()
    other.check()
    assert wires.endpoints[0].state(0).stalled < 100 * MILLISECOND


def test_a_peer_that_is_silent_everywhere_gets_more_time() -> None:
    """Nothing shows whether the path or the peer has failed: it is blamed after 110 ms instead of 50, and so is the
    next path if it is no better."""
    wires = two(ports=[PORT, PORT + 5])
    connect(*wires.endpoints)
    cut = Cut(wires, PORT, 10 * MILLISECOND)
    cut.dead |= {PORT + 5}
    writer = Writer(wires, 0, 1, 0, [some_bytes(2, 3_000_000)])
    when = stall(wires, 0)
    assert BLAMED_ALONE <= when - cut.at < BLAMED_ALONE + 40 * MILLISECOND
    wires.endpoints[0].move(0, PORT + 5, wires.network.now, lost=True)
    wires.events[0].clear()
    assert BLAMED_ALONE <= stall(wires, 0) - when < BLAMED_ALONE + 110 * MILLISECOND
    assert not writer.done()


def test_losses_alone_blame_nobody() -> None:
    """With 5 % of all packets lost, acknowledgements too, there are timeouts and retransmissions, and not one
    STALLED."""
    wires = two(ports=[PORT])
    wires.network.loss = 0.05
    connect(*wires.endpoints)
    writer = Writer(wires, 0, 1, 0, [some_bytes(5, 2_000_000)])
    wires.run(writer.done)
    writer.check()
    assert wires.endpoints[0].state(0).timeouts > 0
    assert wires.count(0, STALLED) == 0


def test_idle_time_is_no_stall() -> None:
    """The stall clock of a queue pair does not run while it has nothing to send."""
    wires = two(ports=[PORT])
    connect(*wires.endpoints)
    for seed in (1, 2):
        writer = Writer(wires, 0, 1, 0, [some_bytes(seed, 5_000)])
        wires.run(writer.done)
        wires.network.step(wires.network.now + 1000 * MILLISECOND)
    assert wires.endpoints[0].state(0).stalled < MILLISECOND


# ---- REPS ------------------------------------------------------------------------------------------------------------


def data_ports(wires: Wires, since: int = 0) -> Counter[int]:
    """Source ports of the data packets."""
    return Counter(port for port, payload in zip(wires.ports[since:], wires.sent[since:], strict=True)
                   if payload[0] != Opcode.ACKNOWLEDGE)


def recycling(**settings: int) -> Wires:
    """Endpoint 0 writes on queue pair 0, with REPS over 16 ports; any packet of the window may overtake."""
    wires = two(ports=list(ENTROPIES), patience=64, **settings)
    connect(*wires.endpoints)
    for end in wires.endpoints:
        end.use_reps(0, 12345)
    return wires


def test_first_packets_explore_every_port() -> None:
    """Before any acknowledgement, packets take one port after the other."""
    wires = recycling()
    writer = Writer(wires, 0, 1, 0, [some_bytes(6, 16 * 1024)])
    wires.drain()
    assert data_ports(wires) == Counter(dict.fromkeys(ENTROPIES, 1))
    wires.run(writer.done)
    writer.check()


def test_every_packet_is_answered_by_its_own_port() -> None:
    """However many packets arrive together, each gets an ACK from its own port, with a mark where that packet had one,
    so that each returns an entropy or withdraws it."""
    wires = recycling()
    congested = set(list(ENTROPIES)[:5])
    wires.path = lambda datagram: datagram._replace(marked=datagram.source_port in congested)
    writer = Writer(wires, 0, 1, 0, [some_bytes(6, 20 * 1024)])
    wires.drain()
    asked = len(wires.sent)
    wires.network.step(5 * MILLISECOND)
    assert (asked, wires.endpoints[1].state(0).received) == (20, 20), "all arrived before any was answered"
    wires.drain()
    answers = list(zip(wires.ports[asked:], wires.sent[asked:], strict=True))
    assert Counter(port for port, _ in answers) == Counter(wires.ports[:asked])
    for port, answer in answers:
        assert answer[0] == Opcode.ACKNOWLEDGE
        assert bool(answer[4] & 0x40) == (port in congested), "BECN"
    wires.run(writer.done)
    writer.check()


def test_marked_ports_are_not_used_again() -> None:
    """Ports of which a quarter are congested: those carry a small part of the packets, and every byte is right."""
    wires = recycling()
    congested = set(list(ENTROPIES)[:4])
    wires.path = lambda datagram: datagram._replace(marked=datagram.source_port in congested)
    writer = Writer(wires, 0, 1, 0, [some_bytes(7, 4_000_000)])
    wires.run(writer.done)
    writer.check()
    taken = data_ports(wires)
    share = sum(taken[port] for port in congested) / taken.total()
    print(taken)
    assert share < 0.1, "a random choice would give them a quarter"


@pytest.mark.parametrize("dead", [1, 4, 12])
def test_ports_of_a_dead_path_are_avoided_after_a_time_out(dead: int) -> None:
    """After a timeout it retransmits from ports that were acknowledged: the transfer ends, exact, and no path is
    blamed."""
    wires = recycling()
    cut = Cut(wires, 0, 5 * MILLISECOND)
    cut.dead = set(list(ENTROPIES)[:dead])
    writer = Writer(wires, 0, 1, 0, [some_bytes(8, 6_000_000)])
    wires.run(writer.done)
    writer.check()
    state = wires.endpoints[0].state(0)
    print(state.timeouts, state.stalled / MILLISECOND, data_ports(wires))
    assert state.timeouts > 0
    assert wires.count(0, STALLED) == 0
    before = len(wires.ports)
    again = Writer(wires, 0, 1, 0, [some_bytes(9, 1_000_000)])
    wires.run(again.done)
    again.check()
    taken = data_ports(wires, before)
    assert sum(taken[port] for port in cut.dead) / taken.total() < dead / len(ENTROPIES)


def test_recycling_without_ports_is_refused() -> None:
    """REPS needs ports to choose from."""
    end = Endpoint(address(0))
    with pytest.raises(ValueError, match="no ports"):
        end.use_reps(0, 1)
    with pytest.raises(ValueError, match="at least one"):
        end.ports([])
