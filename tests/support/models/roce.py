# SPDX-License-Identifier: Apache-2.0
"""Endpoints of queue pairs on a simulated network, which is seeded and has a clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from netfold.host.native.library import Origin
from netfold.host.roce.endpoint import Connection, Endpoint
from netfold.host.roce.native import ARRIVED, BROKEN, SENT, EndpointEvent
from support.models.slot_model import SECOND, TerribleNetwork, check_icrc, ip_packet

Bytes = NDArray[np.uint8]
PORT = 50_000


class Datagram(NamedTuple):
    """A UDP payload on its way through the network."""

    payload: bytes
    source: str
    """IPv4 address that it comes from."""
    marked: bool = False
    source_port: int = 0


def address(index: int) -> str:
    """The IPv4 address of an endpoint."""
    return f"10.1.0.{index + 1}"


def connect(a: Endpoint, b: Endpoint, *, ends: tuple[int, int] = (0, 1), number: int = 1, psn: int = 0) -> int:
    """Makes a connection between two endpoints.  Returns its index, which is the same at both."""
    other = (psn * 7 + 13) & 0xFFFFFF
    first = a.connect(Connection(address(ends[1]), 0x800000 + number, 0x700000 + number, PORT, psn, other))
    second = b.connect(Connection(address(ends[0]), 0x700000 + number, 0x800000 + number, PORT + 1, other, psn))
    assert first == second
    return first


class Wires:
    """Carries what endpoints send over a hostile network, and checks the ICRC of every packet as it is sent."""

    def __init__(self, network: TerribleNetwork, endpoints: Sequence[Endpoint]) -> None:
        self.network = network
        self.endpoints = list(endpoints)
        self.events: list[list[EndpointEvent]] = [[] for _ in endpoints]
        self.sent: list[bytes] = []
        """UDP payloads of the packets sent so far."""
        self.packets: list[bytes] = []
        """The same packets from the IPv4 header on."""
        self.path: Callable[[Datagram], Datagram | None] = lambda datagram: datagram
        """The packet at the end of the path of its source port; None: it is lost."""
        self.ports: list[int] = []
        """The source port of each of ``packets``."""
        self.deliver = [self._receiver(index) for index in range(len(endpoints))]

    def _receiver(self, index: int) -> Callable[[Datagram], None]:
        def receive(datagram: Datagram) -> None:
            origin = Origin.of(datagram.source, datagram.source_port)
            payload = self.network.last_hop(datagram.payload)
            self.endpoints[index].receive(payload, self.network.now, origin, marked=datagram.marked)

        return receive

    def drain(self) -> None:
        """Sends everything that may be sent."""
        for index, endpoint in enumerate(self.endpoints):
            endpoint.tick(self.network.now)
            while run := endpoint.send(self.network.now):
                for ip_id, payload in enumerate(run.packets()):
                    check_icrc(payload, ip_id, address(index), run.source_port, run.destination)
                    self.sent.append(payload)
                    self.packets.append(ip_packet(payload, ip_id, address(index), run.source_port, run.destination))
                    self.ports.append(run.source_port)
                    to = int(run.destination.rpartition(".")[2]) - 1
                    if datagram := self.path(Datagram(payload, address(index), source_port=run.source_port)):
                        self.network.send(datagram, self.deliver[to])
            self.events[index].extend(endpoint.events())

    def run(self, until: Callable[[], bool], *, limit: int = 60 * SECOND) -> None:
        """Runs until the condition holds; fails at the limit, or when nothing is left that could happen."""
        while True:
            self.drain()
            if until():
                return
            then = min([self.network.next_time(), *(endpoint.deadline() for endpoint in self.endpoints)])
            assert then < limit, f"stuck at {self.network.now} ns: {self.queue_pair_states()}"
            self.network.step(max(then, self.network.now))

    def queue_pair_states(self) -> str:
        """All states in words, for failures."""
        rows = []
        for index, endpoint in enumerate(self.endpoints):
            s = endpoint.state(0)
            rows.append(f"{index}: {s.acknowledged}/{s.next}/{s.posted} out, {s.expected} in, rto {s.rto}")
        return "; ".join(rows)

    def count(self, index: int, what: int) -> int:
        """Number of events of a kind at an endpoint."""
        return sum(event.what == what for event in self.events[index])


class Writer:
    """Writes messages from one endpoint into a region of another, and knows when all have arrived and are
    acknowledged."""

    def __init__(self, wires: Wires, source: int, target: int, pair: int, messages: Sequence[Bytes]) -> None:
        self.wires, self.source, self.target, self.pair = wires, source, target, pair
        self.data = np.concatenate(messages) if messages else np.zeros(0, np.uint8)
        self.into = np.zeros(max(1, self.data.size), np.uint8)
        self.lengths = [message.size for message in messages]
        self.key = wires.endpoints[target].register(self.into.ctypes.data, self.into.size)
        offset = 0
        for identity, length in enumerate(self.lengths):
            assert wires.endpoints[source].write(
                pair, self.data.ctypes.data + offset, length, key=self.key, offset=offset, id=identity
            )
            offset += length

    def done(self) -> bool:
        """True if all messages have arrived and all are acknowledged."""
        return len(self.sent()) == len(self.arrived()) == len(self.lengths)

    def sent(self) -> list[int]:
        """Ids of acknowledged writes, in the order of their events."""
        events = self.wires.events[self.source]
        return [event.id for event in events if event.what == SENT and event.pair == self.pair]

    def arrived(self) -> list[tuple[int, int]]:
        """(offset, length) of complete messages, in the order of their events."""
        events = self.wires.events[self.target]
        return [(e.offset, e.length) for e in events if e.what == ARRIVED and e.key == self.key]

    def check(self) -> None:
        """Checks that every byte is in place, every message was reported once and in order, and nothing is broken."""
        assert (self.into[: self.data.size] == self.data).all()
        offsets = [sum(self.lengths[:i]) for i in range(len(self.lengths))]
        assert self.arrived() == list(zip(offsets, self.lengths, strict=True))
        assert self.sent() == list(range(len(self.lengths)))
        assert not any(event.what == BROKEN for events in self.wires.events for event in events)


def some_bytes(seed: int, length: int) -> Bytes:
    """The random bytes of one message."""
    return np.random.default_rng(seed).integers(0, 256, length, np.uint8)
