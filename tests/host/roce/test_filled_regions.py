# SPDX-License-Identifier: Apache-2.0
"""Memory that is to be filled as a whole, writes that nobody is told of, and events that need not end a wait."""

from __future__ import annotations

import os
import random
import time
from itertools import pairwise

import numpy as np
import pytest

from netfold.host.native.sockets import bind_port
from netfold.host.roce.endpoint import Connection, Endpoint, EndpointIo
from netfold.host.roce.native import ARRIVED, BROKEN, QUIET_ARRIVED, QUIET_SENT, SENT, UNTOLD
from netfold.host.roce.sockets import open_endpoint
from support.models.roce import Bytes, Wires, address, connect, some_bytes
from support.models.slot_model import MICROSECOND, TerribleNetwork
from switch_support.ports import wait_for

HOSTS = "127.77.1.1", "127.77.1.2"


def two(loss: float) -> Wires:
    """Two endpoints with two connections between them, over a network that loses packets."""
    network = TerribleNetwork(random.Random(8), packet_time=10 * MICROSECOND)
    network.loss = loss
    wires = Wires(network, [Endpoint(address(i), window=64) for i in range(2)])
    for number in (1, 2):
        connect(*wires.endpoints, number=number)
    return wires


def fill(wires: Wires, data: Bytes, cuts: list[tuple[int, int, int]], into: Bytes) -> int:
    """Writes parts (pair, first, last) of the data into memory to be filled at endpoint 1; returns its key."""
    key = wires.endpoints[1].register(into.ctypes.data, into.size, fill=True)
    for pair, first, last in cuts:
        assert wires.endpoints[0].write(pair, data.ctypes.data + first, last - first, key=key, offset=first, id=UNTOLD)
    return key


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_one_event_tells_that_all_parts_have_arrived(loss: float) -> None:
    """Three writes over two queue pairs fill the memory: one ARRIVED, when every byte is in place, and no SENT."""
    wires, data = two(loss), some_bytes(1, 50_000)
    into = np.zeros_like(data)
    key = fill(wires, data, [(0, 0, 20_000), (1, 20_000, 49_999), (0, 49_999, 50_000)], into)
    assert wires.endpoints[1].unfilled(key) == 50_000
    wires.run(lambda: wires.count(1, ARRIVED) > 0)
    assert (into == data).all()
    assert [(e.key, e.offset, e.length) for e in wires.events[1]] == [(key, 0, 0)]
    wires.run(lambda: all(wires.endpoints[0].state(pair).acknowledged == wires.endpoints[0].state(pair).posted
                          for pair in (0, 1)))
    assert wires.count(0, SENT) == 0


def test_what_is_missing_is_known() -> None:
    """With one of two parts in, the memory still lacks the other, and there is no event."""
    wires, data = two(0.0), some_bytes(2, 3_000)
    into = np.zeros_like(data)
    key = fill(wires, data, [(0, 0, 1_000)], into)
    wires.run(lambda: wires.endpoints[0].state(0).acknowledged == 1)
    assert wires.endpoints[1].unfilled(key) == 2_000
    assert wires.count(1, ARRIVED) == 0


def test_filled_memory_takes_no_more_writes() -> None:
    """Its key ends with the event: the next write by it is refused, and changes nothing."""
    wires, data = two(0.0), some_bytes(3, 2_000)
    into = np.zeros_like(data)
    key = fill(wires, data, [(0, 0, 2_000)], into)
    wires.run(lambda: wires.count(1, ARRIVED) == 1)
    other = 255 - data
    assert wires.endpoints[0].write(0, other.ctypes.data, 2_000, key=key, offset=0, id=9)
    wires.run(lambda: wires.endpoints[1].state(0).refused > 0)
    assert (into == data).all()
    assert wires.endpoints[1].unfilled(key) == 0


@pytest.mark.parametrize("seed", range(5))
def test_parts_may_arrive_in_any_order(seed: int) -> None:
    """Parts that cover the memory once fill it, however they are cut, shuffled and spread over queue pairs."""
    print("seed", seed)
    draw = random.Random(seed)
    wires, data = two(0.05), some_bytes(seed, 30_000)
    into = np.zeros_like(data)
    ends = sorted({0, data.size, *(draw.randrange(data.size) for _ in range(12))})
    cuts = [(draw.randrange(2), first, last) for first, last in pairwise(ends)]
    draw.shuffle(cuts)
    key = fill(wires, data, cuts, into)
    wires.run(lambda: wires.count(1, ARRIVED) > 0)
    assert (into == data).all()
    assert [(e.what, e.key) for e in wires.events[1]] == [(ARRIVED, key)]


@pytest.mark.parametrize("parts", [
    [(0, 0, 60), (0, 0, 60)],
    [(0, 0, 60), (1, 40, 100)],
    [(0, 0, 50), (0, 0, 50)],
    [(0, 0, 50), (1, 0, 50)],
    [(0, 25, 75), (1, 25, 75)],
    [(0, 0, 50), (0, 40, 90)],
    [(0, 0, 40), (0, 30, 70), (1, 80, 100)],
])
def test_parts_that_overlap_break_the_queue_pair(parts: list[tuple[int, int, int]]) -> None:
    """Writes of 100 bytes or more that do not cover 100 bytes: nobody is told that they have arrived, and both ends
    hear of an invalid request."""
    wires, data = two(0.0), some_bytes(4, 100)
    fill(wires, data, parts, np.zeros_like(data))
    wires.run(lambda: wires.count(0, BROKEN) > 0 and wires.count(1, BROKEN) > 0)
    assert wires.count(1, ARRIVED) == 0
    broken = [next(e for e in events if e.what == BROKEN) for events in wires.events]
    assert [(e.syndrome, bool(e.by_peer)) for e in broken] == [(0x61, True), (0x61, False)]


def test_a_part_that_is_whole_after_its_memory_ended_breaks_the_queue_pair() -> None:
    """It came before the memory was filled, behind a lost packet of another message, so it has overwritten a part."""
    wires, data = two(0.0), some_bytes(5, 100)
    into, other = np.zeros_like(data), np.zeros_like(data)
    before = wires.endpoints[1].register(other.ctypes.data, other.size)
    assert wires.endpoints[0].write(1, data.ctypes.data, data.size, key=before, offset=0, id=1)
    wires.path = lambda datagram: None if len(wires.sent) == 1 else datagram
    key = fill(wires, data, [(1, 0, 60), (0, 0, 100)], into)
    wires.run(lambda: wires.count(0, BROKEN) > 0 and wires.count(1, BROKEN) > 0)
    assert [(e.what, e.key) for e in wires.events[1] if e.what == ARRIVED] == [(ARRIVED, key), (ARRIVED, before)]
    assert [(e.what, e.pair) for e in wires.events[0] if e.what == BROKEN] == [(BROKEN, 1)]


@pytest.mark.timeout(60, method="thread")
@pytest.mark.parametrize("told", [0, 2])
def test_queue_pair_that_breaks_gives_back_the_events_it_reserved(told: int) -> None:
    """A queue pair breaks with writes that nobody is told of, and some that somebody is; then messages still arrive on
    another one.  A count of reserved events below 0 would be one of 2^32, for which there is never room: the time limit
    is for a search for that room, in native code, where no signal ends it."""
    wires, data = two(0.0), np.ones(64, np.uint8)
    a, b = wires.endpoints
    for identity in [UNTOLD] * 6 + list(range(told)):
        assert a.write(0, data.ctypes.data, 64, key=77, offset=0, id=identity)
    wires.run(lambda: wires.count(0, BROKEN) > 0)
    into = np.zeros(64, np.uint8)
    key = a.register(into.ctypes.data, 64)
    assert b.write(1, data.ctypes.data, 64, key=key, offset=0, id=3)
    wires.run(lambda: wires.count(1, SENT) > 0 and wires.count(0, ARRIVED) > 0)
    assert (into == 1).all()


@pytest.mark.parametrize("quiet", [0, QUIET_SENT, QUIET_ARRIVED])
def test_quiet_events_end_no_wait_and_come_with_the_next(quiet: int) -> None:
    """Over real sockets: a wait ends with SENT and looks at no descriptor, unless SENT is quiet; then a descriptor that
    is ready ends it, and the event comes all the same."""
    ends = [Endpoint(host, window=16) for host in HOSTS]
    sockets = [open_endpoint(bind_port(host), [0], room=1 << 18) for host in HOSTS]
    readable, writable = os.pipe()
    os.write(writable, b"ready")
    ios = [EndpointIo(end, own.receiver, own.senders, others)
           for end, own, others in zip(ends, sockets, ([readable], []), strict=True)]
    ports = [next(iter(own.senders)) for own in sockets]

    def acknowledged() -> bool:
        with ios[0].locked():
            return ends[0].state(0).acknowledged == 1

    try:
        pair = ends[0].connect(Connection(HOSTS[1], 2, 1, ports[0], 5, 9))
        ends[1].connect(Connection(HOSTS[0], 1, 2, ports[1], 9, 5))
        memory, data = np.zeros(64, np.uint8), np.ones(64, np.uint8)
        key = ios[1].register(memory.ctypes.data, 64)
        assert ios[0].write(pair, data.ctypes.data, 64, key=key, offset=0, id=3)
        wait_for(acknowledged)  # the endpoints' own threads send and receive
        events, error = ios[0].run(time.monotonic_ns() + 10**10, quiet=quiet)
        assert error == 0
        assert [(event.what, event.id) for event in events] == [(SENT, 3)]
        assert ios[0].ready(0) == (quiet == QUIET_SENT)
        assert (memory == 1).all()
    finally:
        for io in ios:
            io.close()
        os.close(readable)
        os.close(writable)
