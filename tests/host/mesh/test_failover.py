# SPDX-License-Identifier: Apache-2.0
"""Streams that go on over another connection, over real TCP on loopback: whenever they move, no byte is lost, changed
or read twice."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from netfold.host.collectives import ALLREDUCE
from netfold.host.errors import NetFoldError
from netfold.host.job_secret import draw
from netfold.host.mesh import failover, logged
from netfold.host.mesh.arriving import Arriving
from netfold.host.mesh.connecting import Connecting, Unconnected
from netfold.host.mesh.connection import CONFIRMATION, HEADER, PeerConnection
from netfold.host.mesh.handshake import Outcome, StreamTurn
from netfold.host.mesh.lanes import Condition, InLane, OutLane, Silence, path_of
from netfold.host.mesh.mesh import Call, Mesh
from netfold.host.mesh.poller import Poller
from netfold.host.mesh.tcp import TcpMesh
from netfold.wire.jobs import Peer, Plan
from support.collectives import TcpRanks, allreduce, expected, inputs, values
from support.planned import LONG, PORTS, check_swapped, on_plan, pattern, planned, swap


@contextmanager
def moves(patch: pytest.MonkeyPatch, seed: int, often: float, *, loses: bool) -> Iterator[random.Random]:
    """At each turn of the poll loop a stream moves, with this probability, whether its path answers or not.

    loses  of what a connection had, a part is dropped, as if it had still been on its way; the kernels acknowledge
           nothing then, as far as the ranks hear
    """
    rng = random.Random(seed)
    drain, forgets = Arriving.drain, TcpMesh._forget_coming
    late: dict[Arriving, memoryview] = {}

    def look(mesh: TcpMesh, source: object, now: float) -> None:
        del source
        streams = [stream for stream in mesh._out_streams() if stream.socket is not None and mesh._may_move(stream)]
        for stream in streams:
            port = path_of(stream.socket) if stream.socket is not None else None
            if port is not None and rng.random() < often:
                mesh._suspect(stream.rank, port, now)
                mesh._move(stream, port, now)

    def drained(stream: Arriving) -> int:
        before = len(stream.kept)
        restore(stream)
        drain(stream)
        cut = rng.randint(before, len(stream.kept))
        late[stream], stream.kept = stream.kept[cut:], stream.kept[:cut]
        return stream.received + len(stream.kept)

    def restore(stream: Arriving) -> None:
        """What was late has come, where the connection goes on after all."""
        stream.kept = memoryview(bytes(stream.kept) + bytes(late.pop(stream, b"")))

    def forget_coming(mesh: TcpMesh, link: PeerConnection) -> None:
        restore(link)
        forgets(mesh, link)

    def goes_on(kind: type[PeerConnection | InLane]) -> None:
        """What comes late on the connection before counts for nothing."""
        go_on = kind.go_on

        def without_late(stream: Any, sock: socket.socket, number: int) -> None:
            late.pop(stream, None)
            go_on(stream, sock, number)

        patch.setattr(kind, "go_on", without_late)

    patch.setattr(TcpMesh, "_look_at_streams", look)
    patch.setattr(failover, "LOOK_SECONDS", 0.0)
    patch.setattr(failover, "FORGIVE_SECONDS", 0.0)
    if loses:
        patch.setattr(Arriving, "drain", drained)
        patch.setattr(TcpMesh, "_forget_coming", forget_coming)
        goes_on(PeerConnection)
        goes_on(InLane)
        patch.setattr(logged, "unacknowledged", lambda sock: 1 << 60)
    yield rng


@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_streams_that_move_at_any_time_lose_nothing(
    monkeypatch: pytest.MonkeyPatch, seed: int, loses: bool
) -> None:
    """All algorithms, cut messages and whole ones, while messages and lanes of both sides move, several times, at once,
    and across each other."""
    with planned(3) as tcp, moves(monkeypatch, seed, 0.02, loses=loses) as rng:
        names = rng.sample(sorted(ALLREDUCE), 4)
        for number, (name, size) in enumerate((name, size) for name in names for size in (10, 100_001)):
            arrays = inputs(3, size, "float32", number)
            results = tcp.run(on_plan(lambda mesh, a=arrays, n=name, i=number: allreduce(  # type: ignore[misc]
                mesh, a[mesh.rank].copy(), n, i)))
            for result in values(results):
                np.testing.assert_array_equal(result, expected(arrays, "sum", "float32"))
        assert sum(mesh.moved for mesh in tcp.meshes) >= 2, f"seed {seed}: nothing moved"


def leave(mesh: TcpMesh, stream: Any) -> None:
    """Lets a stream leave its path, as if that were silent."""
    port = path_of(stream.socket)
    assert port is not None
    mesh._suspect(stream.rank, port, 0.0)
    mesh._move(stream, port, 0.0)
    assert stream.moving


def connected(tcp: TcpRanks) -> tuple[TcpMesh, TcpMesh]:
    """Two ranks that have exchanged cut messages."""
    check_swapped(values(tcp.run(on_plan(swap))))
    first, second = tcp.meshes
    return first, second


def test_memory_is_the_callers_once_the_operation_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 sends, overwrites what it has sent, and only then its streams move: rank 1 receives what was sent."""
    with planned(2) as tcp:
        connected(tcp)
        monkeypatch.setattr(logged, "unacknowledged", lambda sock: 1 << 60)
        monkeypatch.setattr(Arriving, "drain", lambda stream: stream.received)

        moved = threading.Event()

        def one_way(mesh: TcpMesh) -> Any:
            data = pattern(LONG, 7)
            if mesh.rank == 0:
                with mesh.operation(Call(2, "one way")):
                    mesh.send(1, data)
                data[:] = 0
                for stream in mesh._out_streams():
                    leave(mesh, stream)
                while any(stream.moving for stream in mesh._out_streams()):
                    mesh._poll(0.01)
                moved.set()
                return data
            got = np.empty(LONG, np.uint8)
            while not moved.is_set():  # nothing is posted: what has come is held, and dropped with the connections
                mesh._poll(0.01)
            with mesh.operation(Call(2, "one way")):
                mesh.wait([mesh.receive(0, got)])
            return got

        _, got = values(tcp.run(one_way))
    np.testing.assert_array_equal(got, pattern(LONG, 7))


def test_an_earlier_turn_moves_nothing() -> None:
    """A connection that comes late, or a second time, is refused; a later one is told what has come."""
    with planned(2) as tcp:
        first, second = connected(tcp)
        link = first._links[1]
        assert link.log is not None
        first._settle()
        assert first._admit_stream(1, StreamTurn(0, link.turn)) == (Outcome.TAKEN, 0)
        lane = first._lanes[1].incoming[0]
        again = StreamTurn(lane.stream, lane.turn)
        assert first._admit_stream(1, again) == (Outcome.ACCEPTED, 0), "turn 0 begins a lane"
        outcome, received = first._admit_stream(1, StreamTurn(lane.stream, lane.turn + 1))
        assert (outcome, received) == (Outcome.ACCEPTED, lane.received)
        check_swapped(values(tcp.run(on_plan(swap))))
        del second


def test_a_peer_that_says_what_cannot_be_is_lost_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict with an impossible count ends the operation: nothing is sent that might not follow what came before."""
    with planned(2) as tcp:
        first, second = connected(tcp)
        monkeypatch.setattr(first._connecting, "_admit_stream", lambda rank, stream: (Outcome.ACCEPTED, 1 << 40))

        def work(mesh: TcpMesh) -> Any:
            if mesh is second:
                leave(mesh, mesh._links[0])
            while not second._links[0].lost:
                mesh._poll(0.01)
            return swap(mesh)

        results = tcp.run(on_plan(work))
    assert isinstance(results[1], NetFoldError), results[1]
    assert "it says that it has received 1099511627776 bytes; expected" in str(results[1])


def test_a_rank_whose_peer_takes_no_other_connection_stays() -> None:
    """Where the peer plans no paths it has no log, and refuses; then both go on as they were."""
    with planned(2) as tcp:
        first, second = connected(tcp)
        first._keeps_logs = False

        def work(mesh: TcpMesh) -> Any:
            if mesh is second:
                leave(mesh, mesh._links[0])
            return swap(mesh)

        check_swapped(values(tcp.run(on_plan(work))))
        assert not second._links[0].moving
        assert second._refusals[second._links[0]] == 1
        assert (first.moved, second.moved) == (0, 0)


def test_without_other_paths_nothing_is_kept() -> None:
    """No plan: no logs."""
    with TcpRanks(2) as tcp:
        check_swapped(values(tcp.run(swap)))
        assert all(link.log is None for mesh in tcp.meshes for link in mesh._links.values())


def test_logs_hold_no_memory_of_callers_between_operations() -> None:
    """After an operation nothing that a rank has sent is still looked at."""
    with planned(2) as tcp:
        arrays = [pattern(LONG, 1), pattern(LONG, 2)]

        def work(mesh: Mesh) -> Any:
            got = np.empty(LONG, np.uint8)
            with mesh.operation(Call(1, "swap")):
                mesh.send(1 - mesh.rank, arrays[mesh.rank])
                mesh.wait([mesh.receive(1 - mesh.rank, got)])
            return got

        values(tcp.run(on_plan(work)))
        for mesh in tcp.meshes:
            assert not mesh._unsettled
            for stream in mesh._out_streams():
                assert stream.log is not None
                assert stream.log._owned == len(stream.log._pieces)


def test_a_dead_path_is_left_by_all_streams_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stream that finds its path silent takes along what is in flight to the same leaf on that path."""
    with planned(2) as tcp:
        first, _ = connected(tcp)
        link = first._links[1]
        port = path_of(link.socket)  # type: ignore[arg-type]
        assert port is not None
        asked: list[tuple[object, int]] = []
        monkeypatch.setattr(first, "_move", lambda stream, left, now: asked.append((stream, left)))
        for stream in first._out_streams():
            first._silences[stream] = _Silent()
        first._leave(1, port, 1.0)
        same = [stream for stream in first._out_streams() if stream.socket and path_of(stream.socket) == port]
        assert asked == [(stream, port) for stream in same]
        assert first.source_ports.is_suspect(1, port)
        assert first.source_ports.usable_port(1, port) in set(PORTS) - {port}


class _Silent(Silence):
    """A silence that has lasted for a second."""

    def lasts(self, condition: Condition, now: float) -> float:
        del condition, now
        return 1.0


def test_a_suspect_path_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while the path is tried again, and a lane that had left it and is idle begins there anew."""
    with planned(2) as tcp:
        first, _ = connected(tcp)
        lane = first._lanes[1].out[PORTS[0]]
        first._settle()
        lane.turn = 1
        first._suspect(1, PORTS[0], now=10.0)
        first._forgive(10.0 + failover.FORGIVE_SECONDS / 2)
        assert first.source_ports.is_suspect(1, PORTS[0])
        while lane.log:
            first._forget_acknowledged(lane)
        first._forgive(10.0 + failover.FORGIVE_SECONDS)
        assert not first.source_ports.is_suspect(1, PORTS[0])
        assert PORTS[0] not in first._lanes[1].out
        check_swapped(values(tcp.run(on_plan(swap))))


def test_a_connection_that_nobody_answers_is_begun_from_another_port() -> None:
    """A listener whose backlog is full answers no SYN: the attempt is known as unanswered, and another one takes its
    place."""
    with socket.socket() as full, socket.create_server(("127.0.0.1", 0)) as own:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        where = f"127.0.0.1:{full.getsockname()[1]}"
        waiting = [socket.create_connection(full.getsockname())]
        peers = [Peer(0, "127.0.0.1", where), Peer(1, "127.0.0.1", "127.0.0.1:1")]
        plan = Plan("loop", 1, 1, 2, peers, [], secret=draw())
        connecting = Connecting(plan, own, Poller(), lambda rank: Outcome.ACCEPTED, clock=lambda: 5.0)
        connecting.connect(0, where, stream=StreamTurn(PORTS[0]))
        assert connecting.unproven(5.0) == []
        (one,) = connecting.unproven(5.1)
        assert (one.rank, one.stream, one.since, one.greeted, one.tries) == (0, StreamTurn(PORTS[0]), 5.0, False, 0)
        before = one.socket.getsockname()
        assert connecting.try_ports(0, one.stream, [PORTS[1]]) is None
        (one,) = connecting.unproven(5.1)
        assert one.tries == 1
        assert one.socket.getsockname() != before
        connecting.close()
        for sock in waiting:
            sock.close()


def test_a_move_in_vain_leaves_the_connection_as_it_is() -> None:
    """A peer that has finished may listen no more, and what it sent still come."""
    with planned(2) as tcp:
        first, _ = connected(tcp)
        link = first._links[1]
        leave(first, link)
        first._unconnected(link, Unconnected(1, "Connection refused", StreamTurn(0, 1)))
        assert not link.lost
        assert not link.moving
        check_swapped(values(tcp.run(on_plan(swap))))


def test_a_confirmation_ends_the_doubt_about_a_connection() -> None:
    """Until then, or for two seconds, nothing counts as acknowledged on a connection that a peer has opened."""
    link = PeerConnection(1, "nowhere")
    link.keep_log()
    link.doubt(7.0)
    assert link.doubtful_until == 7.0
    with planned(2) as tcp:
        first, _ = connected(tcp)
        link = first._links[1]
        first._settle()
        link.doubt(first._clock() + 1000)
        assert link.log is not None
        link.log.add(memoryview(b"abc"))
        first._forget_acknowledged(link)
        assert len(link.log) >= 3
        link.header[:] = HEADER.pack(CONFIRMATION, 0, 0, b"")
        first._header(link)
        assert link.doubtful_until == 0
        first._forget_acknowledged(link)
        assert isinstance(link, PeerConnection)
        assert not isinstance(link, OutLane)


@pytest.mark.parametrize("mover", [0, 1])
def test_what_is_acknowledged_during_a_move_counts_for_nothing(mover: int) -> None:
    """The peer has said how much it has read, and its kernel acknowledges more: nobody reads that, and it is sent
    again.  So neither rank forgets anything until both go on."""
    with planned(2) as tcp:
        connected(tcp)
        mine, other = tcp.meshes[mover], tcp.meshes[1 - mover]
        here, there = mine._links[1 - mover], other._links[mover]
        leave(mine, here)
        while not there.frozen:
            mine._poll(0)
            if not there.frozen:
                other._poll(0)
        assert here.moving
        for mesh, link in ((mine, here), (other, there)):
            assert link.log is not None
            link.log.add(memoryview(b"late"))  # the kernels have acknowledged all that was written
            mesh._unsettled.add(link)
            mesh._settle()
            assert len(link.log) >= 4, "late bytes were forgotten"
