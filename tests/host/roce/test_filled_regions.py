# SPDX-License-Identifier: Apache-2.0
"""Memory that is to be filled as a whole, writes that nobody is told of, and events that need not end a wait."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from netfold.host.roce.native import (
    ARRIVED,
    QUIET_ARRIVED,
    QUIET_SENT,
    SENT,
    UNTOLD,
    Connection,
    Endpoint,
    EndpointIo,
)
from netfold.host.roce.sockets import open_endpoint
from support.roce import Bytes, Wires, address, connect, some_bytes
from support.slot_model import MICROSECOND, TerribleNetwork

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


@pytest.mark.parametrize(("quiet", "kinds"), [(0, [SENT]), (QUIET_SENT, []), (QUIET_ARRIVED, [SENT])])
def test_quiet_events_end_no_wait_and_come_with_the_next(quiet: int, kinds: list[int]) -> None:
    """Over real sockets: a wait ends with SENT unless that is quiet; then it lasts to its time, and has the event
    all the same."""
    ends = [Endpoint(host, window=16) for host in HOSTS]
    sockets = [open_endpoint(host, [0], room=1 << 18, shared=False) for host in HOSTS]
    ios = [EndpointIo(end, own.receiver, own.senders) for end, own in zip(ends, sockets, strict=True)]
    ports = [next(iter(own.senders)) for own in sockets]
    try:
        pair = ends[0].connect(Connection(HOSTS[1], 2, 1, ports[0], 5, 9))
        ends[1].connect(Connection(HOSTS[0], 1, 2, ports[1], 9, 5))
        memory, data = np.zeros(64, np.uint8), np.ones(64, np.uint8)
        key = ios[1].register(memory.ctypes.data, 64)
        assert ios[0].write(pair, data.ctypes.data, 64, key=key, offset=0, id=3)
        ios[0].run(0)
        arrived, _ = ios[1].run(time.monotonic_ns() + 10**10)
        assert [event.what for event in arrived] == [ARRIVED]
        patience = 10**10 if kinds else 10**8
        begin = time.monotonic_ns()
        events, error = ios[0].run(begin + patience, quiet=quiet)
        assert error == 0
        assert [(event.what, event.id) for event in events] == [(SENT, 3)]
        assert bool(kinds) == (time.monotonic_ns() < begin + patience)
        assert (memory == 1).all()
    finally:
        for io in ios:
            io.close()
