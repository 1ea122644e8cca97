# SPDX-License-Identifier: Apache-2.0
"""Long messages on planned paths over real TCP on loopback: cut over lanes whose source ports name paths."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from netfold.host.collectives import ALLREDUCE
from netfold.host.errors import PeerLost, RankMismatch
from netfold.host.mesh.connection import FAILURE_REPORT, HEADER, STRIPED, PeerConnection, Receive
from netfold.host.mesh.lanes import MOST_LANES, PART, InLane, OutLane, StripedPart
from netfold.host.mesh.mesh import Call, Mesh
from netfold.host.mesh.planned import OnePort, PathSource
from netfold.host.mesh.sockets import path_of
from netfold.host.mesh.source_ports import SourcePorts
from netfold.host.mesh.tcp import TcpMesh
from netfold.host.operation.arrays import Flat
from netfold.wire import roce
from netfold.wire.paths import PathPiece, Paths, Reach, tcp_ports
from netfold.wire.plan import Peer, Plan
from support.hosts.collectives import TcpRanks, allreduce, expected, inputs, values
from support.hosts.planned import LONG, PORTS, check_swapped, on_plan, pattern, planned, swap


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
        assert all(not lanes.assemblies for mesh in tcp.meshes for lanes in mesh.posted.lanes.of.values())


def test_a_message_is_cut_by_its_weights() -> None:
    """Three quarters leave by the port that names one path, a quarter by that of another."""
    with planned(2) as tcp:
        check_swapped(values(tcp.run(on_plan(swap))))
        for mesh in tcp.meshes:
            out = mesh.posted.lanes.of[1 - mesh.rank].out
            assert {port: path_of(lane.socket) for port, lane in out.items() if lane.socket} == {
                PORTS[0]: PORTS[0], PORTS[2]: PORTS[2]}
            names = {lane.socket.getpeername()[1] for lane in mesh.posted.lanes.of[1 - mesh.rank].incoming}
            assert names == {tcp_ports(PORTS[0])[0], tcp_ports(PORTS[2])[0]}
            assert path_of(mesh.operations.connections.links[1 - mesh.rank].socket) in PORTS  # type: ignore[arg-type]
            parts = mesh.posted.lanes.cut(1 - mesh.rank, LONG)
            assert [(last - first) * 4 // LONG for _, first, last in parts] == [2, 1], "3/4 and 1/4 of whole pages"


def test_what_is_to_be_sprayed_leaves_by_one_port(caplog: pytest.LogCaptureFixture) -> None:
    """Without a controller: one lane to each peer, whole messages, by the port that the leaves spray; nobody else takes
    it, so that no warning comes."""

    def plans(rank: int) -> PathSource:
        return OnePort(Plan("loop", 1, rank, 2, [Peer(r, "", "") for r in range(2)], []), roce.PATH_PORT)

    with TcpRanks(2, planned=plans) as tcp:
        check_swapped(values(tcp.run(on_plan(swap))))
        for mesh in tcp.meshes:
            (lane,) = mesh.posted.lanes.of[1 - mesh.rank].out.values()
            assert lane.socket is not None
            assert lane.socket.getsockname()[1] in tcp_ports(roce.PATH_PORT)
    assert not caplog.records


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
        address = tcp.meshes[1].operations.connections.listener.getsockname()[0]
        first, second = tcp_ports(PORTS[0])
        with socket.create_server((address, first)):
            check_swapped(values(tcp.run(on_plan(swap))))
        (lane,) = tcp.meshes[1].posted.lanes.of[0].out.values()
        assert lane.socket is not None
        assert lane.socket.getsockname()[1] == second
    with planned(2, [(PORTS[0], 1)]) as tcp, caplog.at_level(logging.WARNING, "netfold"):
        address = tcp.meshes[1].operations.connections.listener.getsockname()[0]
        with socket.create_server((address, first)), socket.create_server((address, second)):
            check_swapped(values(tcp.run(on_plan(swap))))
        (lane,) = tcp.meshes[1].posted.lanes.of[0].out.values()
        assert lane.socket is not None
        assert path_of(lane.socket) is None
    assert f"rank 1: the TCP ports {first}, {second} of a path to rank 0 are taken here" in caplog.text


def after_a_lie(change: Callable[[OutLane], None]) -> Any:
    """The result of rank 0, which sends a message to rank 1 as ``change`` leaves it; rank 1 must refuse it by name."""

    def lying(mesh: TcpMesh) -> Flat:
        if mesh.rank == 0:
            with mesh.operation(Call(1, "swap")):
                mesh.send(1, np.zeros(LONG, np.uint8))
                (lane,) = mesh.posted.lanes.of[1].out.values()
                change(lane)
                mesh.wait([mesh.receive(1, np.empty(1, np.uint8))])
        got = np.full(LONG, 7, np.uint8)
        with mesh.operation(Call(1, "swap")):
            mesh.wait([mesh.receive(0, got)])
        return got

    with planned(2, [(PORTS[0], 1)]) as tcp:
        results = tcp.run(on_plan(lying))  # type: ignore[arg-type]
        assert isinstance(results[1], RankMismatch), results[1]
        assert "rank 0 sends bytes" in str(results[1])
        return results[0]


@pytest.mark.parametrize(("offset", "size"), [(LONG - 10, 20), (0, LONG + 1), (1 << 63, 10), (0, 0)])
def test_a_part_beyond_its_message_ends_the_operation(offset: int, size: int) -> None:
    """A rank that lies about where a part belongs writes nowhere: the other one names it."""

    def misplaced(lane: OutLane) -> None:
        lane.sends[0].parts[0] = memoryview(PART.pack(0, offset, size))

    assert isinstance(after_a_lie(misplaced), PeerLost)


def test_a_rank_that_dies_in_the_middle_is_named() -> None:
    """A rank that waits for the rest of a message learns of it at once, though part of it still arrives."""

    def work(mesh: TcpMesh) -> None:
        with mesh.operation(Call(1, "dies")):
            if mesh.rank == 1:
                mesh.send(0, np.zeros(64 << 20, np.uint8))
                mesh.wait([mesh.receive(0, np.empty(1, np.uint8))])
                mesh.close()
                return
            pending = mesh.receive(1, np.empty(64 << 20, np.uint8))
            mesh.wait([mesh.send(1, np.ones(1, np.uint8)), pending])

    with planned(2) as tcp:
        results = tcp.run(on_plan(work))  # type: ignore[arg-type]
        assert isinstance(results[0], PeerLost)
        assert "rank 1" in str(results[0])


@pytest.mark.parametrize("sent", [
    [(0, LONG // 2), (0, LONG // 2)], [(0, LONG - 10), (LONG - 20, 10)], [(LONG - 10, 10), (10, LONG - 10)],
], ids=["twice the same", "over the end of an earlier one", "over the beginning of a later one"])
def test_parts_that_overlap_end_the_operation(sent: list[tuple[int, int]]) -> None:
    """As many bytes as the message has are not the message where some came twice: the rest would be unwritten."""

    def repeated(lane: OutLane) -> None:
        (whole,) = lane.sends
        assert isinstance(whole, StripedPart)
        lane.sends.clear()
        whole.whole.left += len(sent)
        lane.sends.extend(StripedPart(whole.whole, memoryview(PART.pack(0, offset, size)), memoryview(bytes(size)))
                          for offset, size in sent)

    after_a_lie(repeated)


def test_two_lanes_cannot_fill_the_same_bytes() -> None:
    """A part that has begun has its bytes: what another lane says of them is refused before anything is written."""
    with planned(2) as tcp:
        mesh = tcp.meshes[1]
        memory = memoryview(bytearray(100))
        mesh.posted.lanes.place(0, Receive(0, memory))
        pairs = [socket.socketpair() for _ in range(2)]
        lanes = [InLane(0, theirs) for _, theirs in pairs]
        for lane, (ours, _), (offset, size) in zip(lanes, pairs, [(0, 60), (50, 50)], strict=True):
            lane.socket.setblocking(False)
            ours.sendall(PART.pack(0, offset, size))
        assert mesh.posted.lanes.read(lanes[0])
        with pytest.raises(RankMismatch, match="rank 0 sends bytes 50"):
            mesh.posted.lanes.read(lanes[1])
        for pair in pairs:
            for sock in pair:
                sock.close()


def test_a_plan_without_a_path_left_keeps_the_lanes_as_they_are() -> None:
    """The controller lists no path to a peer any more, in the middle of an operation: parts stay on their ports, which
    the switches lead over what comes back, and nothing breaks."""
    ports = SourcePorts((), [1])
    pieces = [PathPiece(1, 0, 3, PORTS[0]), PathPiece(1, 3, 1, PORTS[2])]
    ports.adopt(Paths(1, PORTS, pieces, [Reach(1, "leaf1", PORTS)]))
    before = list(ports.weighted_ports(1))
    ports.restrict(Paths(2, PORTS, [], [Reach(1, "leaf1", [])]))
    assert list(ports.weighted_ports(1)) == before


def test_many_lanes_at_once_crowd_nobody_out() -> None:
    """All ranks open more lanes to one than it keeps unproven connections: each is let in, in turn."""
    weights = [(roce.PATH_PORT + 100 + number, 1) for number in range(31)]
    size = 31 * (16 << 10)

    def gather(mesh: Mesh) -> None:
        with mesh.operation(Call(1, "gather")):
            if mesh.rank:
                mesh.wait([mesh.send(0, pattern(size, mesh.rank))])
                return
            got = [np.empty(size, np.uint8) for _ in range(mesh.size - 1)]
            mesh.wait([mesh.receive(peer, into) for peer, into in enumerate(got, 1)])
            for peer, into in enumerate(got, 1):
                np.testing.assert_array_equal(into, pattern(size, peer))

    with planned(5, weights) as tcp:
        values(tcp.run(on_plan(gather)))
        assert tcp.meshes[0].posted.lanes.open_lanes() == 4 * 31
        assert not tcp.meshes[0].operations.connections.connecting.refusals()


def test_more_ports_than_lanes_share_those_there_are(caplog: pytest.LogCaptureFixture) -> None:
    """Plan after plan names other ports: the peer never sees more lanes than it takes, and all bytes come."""
    def work(mesh: TcpMesh) -> None:
        size = 40 * (16 << 10)
        for turn in range(3):
            ports = [roce.PATH_PORT + 100 + 40 * turn + number for number in range(40)]
            pieces = [PathPiece(1 - mesh.rank, number, 1, port) for number, port in enumerate(ports)]
            mesh.posted.lanes.adopt(Paths(turn, ports, pieces, [Reach(1 - mesh.rank, "leaf", ports)]))
            with mesh.operation(Call(turn + 1, "turn")):
                got = np.empty(size, np.uint8)
                mesh.wait([mesh.send(1 - mesh.rank, pattern(size, mesh.rank)), mesh.receive(1 - mesh.rank, got)])
                np.testing.assert_array_equal(got, pattern(size, 1 - mesh.rank))
            assert len(mesh.posted.lanes.of[1 - mesh.rank].out) <= MOST_LANES

    with planned(2) as tcp, caplog.at_level(logging.WARNING, "netfold"):
        values(tcp.run(work))  # type: ignore[arg-type]
    assert "more than 32 source ports lead to rank 0" in caplog.text


def test_a_lane_has_as_long_as_the_mesh() -> None:
    """The kernel gives a silent lane up no earlier than the rank itself does, however often it has repeated."""
    with planned(2) as tcp:
        check_swapped(values(tcp.run(on_plan(swap))))
        for mesh in tcp.meshes:
            lanes = mesh.posted.lanes.of[1 - mesh.rank]
            for sock in [*(lane.socket for lane in lanes.out.values()), *(lane.socket for lane in lanes.incoming)]:
                assert sock is not None
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) >= mesh.operations.timeout * 1000


def test_a_path_that_no_tcp_port_names_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Path numbers that are too large for TCP's ports: the lane takes the switches' hash, and the log says so once."""
    with planned(2, [(roce.PATH_PORT + 1500, 1)]) as tcp, caplog.at_level(logging.WARNING, "netfold"):
        check_swapped(values(tcp.run(on_plan(swap))))
    assert len([one for one in caplog.messages if "rank 1: no TCP port names the path of source port" in one]) == 1


def test_a_rank_that_gives_up_reads_nothing_more_of_lanes() -> None:
    """Its memory is the caller's again, whatever peers send until all is closed."""
    with planned(2) as tcp:
        mesh = tcp.meshes[1]
        memory = memoryview(bytearray(100))
        mesh.posted.lanes.place(0, Receive(0, memory))
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.setblocking(False)
            ours.sendall(PART.pack(0, 0, 100) + b"x" * 100)
            mesh.operations.give_up(ValueError("a test"))
            assert not mesh.posted.lanes.read(InLane(0, theirs))
        assert bytes(memory) == bytes(100)


def test_the_reason_behind_a_cut_message_is_heard() -> None:
    """On a connection that has broken: a cut message has no payload there, so a report may follow its header."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = PeerConnection(1, "x")
        link.socket = theirs
        theirs.setblocking(False)
        ours.sendall(HEADER.pack(2, STRIPED | LONG, 0, b"sum") + HEADER.pack(FAILURE_REPORT, 2, 1, b"is lost: a test"))
        assert link.read_header() == HEADER.size
        assert link.reports_behind_held_message() == [(1, 2, "is lost: a test")]
