# SPDX-License-Identifier: Apache-2.0
"""Long messages on planned paths over real TCP on loopback: cut over lanes whose source ports name paths."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from netfold.host.collectives import ALLREDUCE
from netfold.host.errors import PeerLost, RankMismatch
from netfold.host.mesh.lanes import PART, path_of
from netfold.host.mesh.mesh import Call, Mesh
from netfold.host.mesh.planned import Collective, OnePort, PathSource
from netfold.host.mesh.tcp import TcpMesh
from netfold.host.operation.arrays import Flat
from netfold.wire import roce
from netfold.wire.jobs import Peer, Plan
from netfold.wire.paths import PathPiece, Paths, Reach, tcp_ports
from support.collectives import TcpRanks, allreduce, expected, inputs, values

PORTS = [roce.PATH_PORT + number for number in (3, 4, 5)]
LONG = 300_000


class Plans:
    """One plan for all collectives: each peer by these source ports, with these weights."""

    def __init__(self, rank: int, ranks: int, weights: Sequence[tuple[int, int]]) -> None:
        self.ports = PORTS
        self.queue_pairs = len(PORTS)
        self.changed_fd = -1
        self.suspected: list[tuple[int, int]] = []
        self.closed = False
        peers = [peer for peer in range(ranks) if peer != rank]
        pieces, reaches = [], [Reach(peer, f"leaf{peer}", PORTS) for peer in peers]
        for peer in peers:
            at = 0
            for port, weight in weights:
                pieces.append(PathPiece(peer, at, weight, port))
                at += weight
        self._paths: Paths | None = Paths(1, PORTS, pieces, reaches)

    def changed(self, wanted: Collective) -> Paths | None:
        del wanted
        paths, self._paths = self._paths, None
        return paths

    def newer(self) -> Paths | None:
        return None

    def suspect(self, peer: int, port: int) -> None:
        self.suspected.append((peer, port))

    def close(self) -> None:
        self.closed = True


def planned(ranks: int, weights: Sequence[tuple[int, int]] = ((PORTS[0], 3), (PORTS[2], 1))) -> TcpRanks:
    """Ranks over TCP whose messages are cut so."""

    def plans(rank: int) -> PathSource:
        return Plans(rank, ranks, weights)

    return TcpRanks(ranks, planned=plans)


def on_plan(work: Callable[[Mesh], object]) -> Callable[[Mesh], object]:
    """The same work after the mesh has been told which collective comes."""

    def told(mesh: Mesh) -> object:
        mesh.expect("all_to_all")
        return work(mesh)

    return told


def pattern(size: int, seed: int) -> Flat:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.mark.parametrize("ranks", [2, 5])
def test_every_algorithm_sums_over_lanes(ranks: int) -> None:
    """One mesh carries all algorithms one after another, small tensors whole and large ones cut."""
    with planned(ranks) as tcp:
        cases = [(name, size) for name in sorted(ALLREDUCE) for size in (1, 1000, 300_001)]
        for number, (name, size) in enumerate(cases):
            arrays = inputs(ranks, size, "float32", number)
            results = tcp.run(on_plan(lambda mesh, a=arrays, n=name, i=number: allreduce(  # type: ignore[misc]
                mesh, a[mesh.rank].copy(), n, i)))
            for result in values(results):
                np.testing.assert_array_equal(result, expected(arrays, "sum", "float32"))
        assert all(not lanes.assemblies for mesh in tcp.meshes for lanes in mesh._lanes.values())


def swap(mesh: Mesh) -> Flat:
    """Two ranks exchange long messages."""
    got = np.empty(LONG, np.uint8)
    with mesh.operation(Call(1, "swap")):
        mesh.send(1 - mesh.rank, pattern(LONG, mesh.rank))
        mesh.wait([mesh.receive(1 - mesh.rank, got)])
    return got


def check_swapped(results: Sequence[Flat]) -> None:
    for rank, got in enumerate(results):
        np.testing.assert_array_equal(got, pattern(LONG, 1 - rank))


def test_a_message_is_cut_by_its_weights() -> None:
    """Three quarters leave by the port that names one path, a quarter by that of another."""
    with planned(2) as tcp:
        check_swapped(values(tcp.run(on_plan(swap))))
        for mesh in tcp.meshes:
            out = mesh._lanes[1 - mesh.rank].out
            assert {port: path_of(lane.socket) for port, lane in out.items() if lane.socket} == {
                PORTS[0]: PORTS[0], PORTS[2]: PORTS[2]}
            names = {lane.socket.getpeername()[1] for lane in mesh._lanes[1 - mesh.rank].incoming}
            assert names == {tcp_ports(PORTS[0])[0], tcp_ports(PORTS[2])[0]}
            assert path_of(mesh._links[1 - mesh.rank].socket) in PORTS  # type: ignore[arg-type]
            parts = mesh.cut(1 - mesh.rank, LONG)
            assert [(last - first) * 4 // LONG for _, first, last in parts] == [2, 1], "3/4 and 1/4 of whole pages"


def test_what_is_to_be_sprayed_leaves_by_one_port() -> None:
    """Without a controller: one lane to each peer, whole messages, by the port that the leaves spray."""

    def plans(rank: int) -> PathSource:
        return OnePort(Plan("loop", 1, rank, 2, [Peer(r, "", "") for r in range(2)], []), roce.PATH_PORT)

    with TcpRanks(2, planned=plans) as tcp:
        check_swapped(values(tcp.run(on_plan(swap))))
        for mesh in tcp.meshes:
            (lane,) = mesh._lanes[1 - mesh.rank].out.values()
            assert lane.socket is not None
            assert lane.socket.getsockname()[1] in tcp_ports(roce.PATH_PORT)


def test_long_and_short_messages_keep_their_order() -> None:
    """With one tag they arrive as sent, long or short, posted late or early; another tag may overtake them."""
    sizes = [LONG, 8, LONG, 100, 40_000, LONG]

    def work(mesh: Mesh) -> list[Flat]:
        with mesh.operation(Call(1, "order")):
            if mesh.rank == 0:
                for number, size in enumerate(sizes):
                    mesh.send(1, pattern(size, number), tag=1)
                mesh.send(1, pattern(LONG, 99), tag=2)
                mesh.flush()
                return []
            other = np.empty(LONG, np.uint8)
            mesh.wait([mesh.receive(0, other, tag=2)])
            got = [np.empty(size, np.uint8) for size in sizes]
            mesh.wait([mesh.receive(0, into, tag=1) for into in got])
            return [other, *got]

    with planned(2) as tcp:
        other, *got = values(tcp.run(on_plan(work)))[1]
        np.testing.assert_array_equal(other, pattern(LONG, 99))
        for number, (size, into) in enumerate(zip(sizes, got, strict=True)):
            np.testing.assert_array_equal(into, pattern(size, number))


def test_who_leaves_after_sending_is_heard_to_the_end() -> None:
    """A rank that closes once its messages are sent leaves nothing unread behind, however late the other one reads."""
    sent = threading.Event()

    def work(mesh: TcpMesh) -> Flat | None:
        if mesh.rank == 0:
            with mesh.operation(Call(1, "last")):
                mesh.wait([mesh.send(1, pattern(LONG, 5))])
            mesh.close()
            sent.set()
            return None
        got = np.empty(LONG, np.uint8)
        with mesh.operation(Call(1, "last")):
            pending = mesh.receive(0, got)
            mesh.wait([pending])
        return got

    with planned(2) as tcp:
        np.testing.assert_array_equal(values(tcp.run(on_plan(work)))[1], pattern(LONG, 5))  # type: ignore[arg-type]
        assert sent.is_set()


def test_a_port_that_is_taken_has_another_of_its_path(caplog: pytest.LogCaptureFixture) -> None:
    """Where something listens at the first port, the second one names the path; where both are taken, a warning says
    that the switches choose."""
    with planned(2, [(PORTS[0], 1)]) as tcp:
        address = tcp.meshes[1]._connecting.listener.getsockname()[0]
        first, second = tcp_ports(PORTS[0])
        with socket.create_server((address, first)):
            check_swapped(values(tcp.run(on_plan(swap))))
        (lane,) = tcp.meshes[1]._lanes[0].out.values()
        assert lane.socket is not None
        assert lane.socket.getsockname()[1] == second
    with planned(2, [(PORTS[0], 1)]) as tcp, caplog.at_level(logging.WARNING, "netfold"):
        address = tcp.meshes[1]._connecting.listener.getsockname()[0]
        with socket.create_server((address, first)), socket.create_server((address, second)):
            check_swapped(values(tcp.run(on_plan(swap))))
        (lane,) = tcp.meshes[1]._lanes[0].out.values()
        assert lane.socket is not None
        assert path_of(lane.socket) is None
    assert f"rank 1: the TCP ports {first}, {second} of a path to rank 0 are taken here" in caplog.text


@pytest.mark.parametrize(("offset", "size"), [(LONG - 10, 20), (0, LONG + 1), (1 << 63, 10), (0, 0)])
def test_a_part_beyond_its_message_ends_the_operation(offset: int, size: int) -> None:
    """A rank that lies about where a part belongs writes nowhere: the other one names it."""

    def lying(mesh: TcpMesh) -> Flat:
        if mesh.rank == 0:
            with mesh.operation(Call(1, "swap")):
                mesh.send(1, np.zeros(LONG, np.uint8))
                (lane,) = mesh._lanes[1].out.values()
                lane.sends[0].parts[0] = memoryview(PART.pack(0, offset, size))
                mesh.wait([mesh.receive(1, np.empty(1, np.uint8))])
        got = np.full(LONG, 7, np.uint8)
        with mesh.operation(Call(1, "swap")):
            mesh.wait([mesh.receive(0, got)])
        return got

    with planned(2, [(PORTS[0], 1)]) as tcp:
        results = tcp.run(on_plan(lying))  # type: ignore[arg-type]
        assert isinstance(results[0], PeerLost)
        assert isinstance(results[1], RankMismatch)
        assert "rank 0 sends bytes" in str(results[1])


def test_a_rank_that_dies_in_the_middle_is_named() -> None:
    """Who waits for the rest of a message learns of it at once, though part of it still comes."""

    def work(mesh: TcpMesh) -> None:
        with mesh.operation(Call(1, "dies")):
            if mesh.rank == 1:
                mesh.send(0, np.zeros(64 << 20, np.uint8))
                mesh.wait([mesh.receive(0, np.empty(1, np.uint8))])
                mesh._close_connections()
                return
            pending = mesh.receive(1, np.empty(64 << 20, np.uint8))
            mesh.wait([mesh.send(1, np.ones(1, np.uint8)), pending])

    with planned(2) as tcp:
        results = tcp.run(on_plan(work))  # type: ignore[arg-type]
        assert isinstance(results[0], PeerLost)
        assert "rank 1" in str(results[0])
