# SPDX-License-Identifier: Apache-2.0
"""Queue pairs that close when others need their place: no byte is lost, and neither end has to ask the other."""

from __future__ import annotations

import logging
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.host.collectives.all_to_all import AHEAD
from netfold.host.mesh.mesh import Call, Mesh
from netfold.host.mesh.sockets import listen
from netfold.host.native.library import Origin
from netfold.host.opening.open_mesh import OPEN_PAIRS_VARIABLE, open_mesh
from netfold.host.roce.endpoint import Endpoint
from netfold.host.roce.queue_pairs import MAX_OPEN
from netfold.wire.plan import Peer, Plan
from support.hosts.roce_ranks import RoceRanks
from support.models.roce import Wires, Writer, address, connect, some_bytes
from support.models.slot_model import MICROSECOND, TerribleNetwork

Burst = list[tuple[int, int, int]]
"""Messages that are posted at once, as (queue pair, writer, bytes)."""
PAIRS = 5
bursts = st.lists(
    st.lists(st.tuples(st.integers(0, PAIRS - 1), st.integers(0, 1), st.integers(1, 20_000)), min_size=1, max_size=4),
    min_size=1, max_size=8,
)


def ends(bounds: tuple[int, int], pairs: int, seed: int = 1, **faults: float) -> Wires:
    """Two endpoints with so many queue pairs between them, and how many each has open at once."""
    a, b = (Endpoint(address(index), window=16) for index in range(2))
    for endpoint, bound in zip((a, b), bounds, strict=True):
        endpoint.limit_open(bound)
    for number in range(pairs):
        connect(a, b, number=1 + number, psn=0xFFFFF0 + number)
    network = TerribleNetwork(random.Random(seed), packet_time=MICROSECOND, **faults)  # type: ignore[arg-type]
    return Wires(network, [a, b])


def open_of(endpoint: Endpoint, pairs: int) -> list[int]:
    """The queue pairs that are open."""
    found = [pair for pair in range(pairs) if endpoint.state(pair).open]
    assert endpoint.open_now() == len(found)
    return found


def carry(wires: Wires, burst: Burst) -> list[Writer]:
    """Posts everything, and waits until it has arrived and is acknowledged; one queue pair's messages of one direction
    have one writer."""
    lengths: dict[tuple[int, int], list[int]] = {}
    for pair, by, nbytes in burst:
        lengths.setdefault((pair, by), []).append(nbytes)
    for events in wires.events:
        events.clear()
    writers = [Writer(wires, by, 1 - by, pair, [some_bytes(pair + n, nbytes) for n, nbytes in enumerate(messages)])
               for (pair, by), messages in lengths.items()]
    wires.run(lambda: all(writer.done() for writer in writers))
    for writer in writers:
        writer.check()
        wires.endpoints[1 - writer.source].deregister(writer.key)
    return writers


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), todo=bursts, bounds=st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 1000])),
    loss=st.sampled_from([0.0, 0.05, 0.3]), duplicate=st.sampled_from([0.0, 0.3]), reorder=st.sampled_from([0.0, 0.3]),
)
def test_every_byte_arrives_once_however_often_pairs_close(
    seed: int, todo: list[Burst], bounds: tuple[int, int], loss: float, duplicate: float, reorder: float
) -> None:
    """Both ends write, close and open when they like, and late packets meet closed queue pairs; more are open than the
    bound only where more are busy."""
    wires = ends(bounds, PAIRS, seed, loss=loss, duplicate=duplicate, reorder=reorder)
    for burst in todo:
        carry(wires, burst)
    busy = max(len({pair for pair, _, _ in burst}) for burst in todo)
    for endpoint, bound in zip(wires.endpoints, bounds, strict=True):
        assert endpoint.open_now() <= endpoint.open_most() <= max(bound, busy)


def test_late_packets_are_acknowledged_and_open_nothing() -> None:
    """All packets of a closed queue pair arrive once more: nothing is written, it stays closed, and each batch gets an
    ACK."""
    wires = ends((1, 1), 2)
    into = carry(wires, [(0, 0, 5_000)])[0].into
    old = [packet for packet in wires.sent if packet[0] != 0x11]
    carry(wires, [(1, 0, 5_000)])
    a, b = wires.endpoints
    assert (open_of(a, 2), open_of(b, 2)) == ([1], [1])
    before, acks = b.state(0), sum(packet[0] == 0x11 for packet in wires.sent)
    into[:] = 0
    for packet in old:
        b.receive(packet, wires.network.now, Origin.of(address(0), 50_000))
    wires.drain()

    assert not into.any()
    assert (open_of(a, 2), open_of(b, 2)) == ([1], [1])
    assert b.state(0).duplicates == before.duplicates + len(old)
    assert sum(packet[0] == 0x11 for packet in wires.sent) == acks + 1
    carry(wires, [(0, 0, 3_000), (0, 1, 3_000)])


def test_those_idle_for_longest_close() -> None:
    """The last use in either direction counts, not when a queue pair was opened; no more of them close than must."""
    wires = ends((3, 3), 5)
    for pair, by in ((0, 0), (1, 0), (2, 0), (0, 1), (3, 0)):
        carry(wires, [(pair, by, 2_000)])
    assert [open_of(endpoint, 5) for endpoint in wires.endpoints] == [[0, 2, 3]] * 2
    carry(wires, [(4, 1, 1)])
    assert [open_of(endpoint, 5) for endpoint in wires.endpoints] == [[0, 3, 4]] * 2


def test_busy_pairs_stay_open() -> None:
    """With one place, three busy queue pairs are open at once, and only one when the next is used."""
    wires = ends((1, 1), 4, loss=0.02)
    carry(wires, [(pair, by, 100_000) for pair in range(3) for by in range(2)])
    assert [endpoint.open_most() for endpoint in wires.endpoints] == [3, 3]
    carry(wires, [(3, 0, 1)])
    assert [endpoint.open_now() for endpoint in wires.endpoints] == [1, 1]


def test_a_rank_of_256_has_no_more_open_than_it_should() -> None:
    """An all-to-all writes to 255 peers, with as many messages in flight as it allows, over a queue pair for data and
    one for control each; the peers, which have no bound, open all 510."""
    peers = 255
    wires = ends((MAX_OPEN, 1 << 20), 2 * peers)
    for first in range(0, peers, AHEAD + 1):
        now = range(first, min(first + AHEAD + 1, peers))
        carry(wires, [(2 * peer + lane, by, 3_000 if lane else 96) for peer in now for lane in (0, 1) for by in (0, 1)])
    assert [endpoint.open_most() for endpoint in wires.endpoints] == [MAX_OPEN, 2 * peers]


def test_the_environment_sets_how_many_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that is no number, or below one, is refused by name."""
    plan = Plan("j", 1, 0, 2, [Peer(0, "127.0.0.1", "127.0.0.1:1"), Peer(1, "127.0.0.2", "127.0.0.2:1")], [])
    for said, why in (("many", "NETFOLD_OPEN_PAIRS='many': expected an integer"), ("0", "open_pairs=0: expected 1")):
        monkeypatch.setenv(OPEN_PAIRS_VARIABLE, said)
        with listen("127.0.0.1") as listener, pytest.raises(ValueError, match=why):
            open_mesh(plan, listener, 1.0, "roce", None)


def test_a_rank_that_needs_more_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Each new maximum is logged once, with how many were open and how many were expected."""
    with RoceRanks(2, queue_pairs=3, open_pairs=1) as ranks, caplog.at_level(logging.WARNING, "netfold"):
        source, into = np.arange(300_000, dtype=np.uint8), np.zeros(300_000, np.uint8)

        def work(mesh: Mesh) -> None:
            for number in range(3):
                with mesh.operation(Call(number, "a message")):
                    if mesh.rank:
                        mesh.receive(0, into)
                    else:
                        mesh.send(1, source)

        for result in ranks.run(work):
            assert not isinstance(result, BaseException), result
    assert (into == source).all()
    assert any("rank 0: 3 queue pairs were open at once" in record.getMessage() for record in caplog.records)
