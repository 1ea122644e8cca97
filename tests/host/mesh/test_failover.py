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
from netfold.host.errors import Closed, NetFoldError
from netfold.host.job_secret import draw
from netfold.host.mesh import arriving, failover, logged
from netfold.host.mesh.arriving import Arriving
from netfold.host.mesh.connecting import Attempt, Connecting, Unconnected
from netfold.host.mesh.connection import PeerConnection
from netfold.host.mesh.handshake import Outcome, Responder, StreamTurn
from netfold.host.mesh.lanes import Condition, OutLane, Silence, path_of
from netfold.host.mesh.mesh import Call, Mesh
from netfold.host.mesh.poller import Poller
from netfold.host.mesh.tcp import TcpMesh
from netfold.wire.jobs import Peer, Plan
from netfold.wire.paths import tcp_ports
from support.collectives import TcpRanks, allreduce, expected, inputs, values
from support.planned import LONG, PORTS, check_swapped, on_plan, pattern, planned, swap


@contextmanager
def moves(patch: pytest.MonkeyPatch, seed: int, often: float, *, loses: bool) -> Iterator[random.Random]:
    """At each turn of the poll loop a stream moves, with this probability, whether its path answers or not.

    loses  of what a connection had, a part is dropped, as if it had still been on its way; the kernels acknowledge
           nothing then, as far as the ranks hear
    """
    rng = random.Random(seed)
    drain, withdraw, succeed, recv_into = (
        Arriving.drain, Arriving.withdraw_successor, Arriving.succeed, Arriving.recv_into)
    late: dict[Arriving, memoryview] = {}

    def look(mesh: TcpMesh, source: object, now: float) -> None:
        del source
        for stream in mesh._out_streams():
            chance = rng.random()
            if stream.out is not None and stream.moving and chance < often / 4:
                mesh._withdraw(stream)
            elif chance < often and (stream.out is not None or mesh._connecting.connecting(stream.rank)
                                     or isinstance(stream, OutLane)):
                mesh._move(stream, rng.choice(PORTS), now)  # also one that moves already, or was never connected

    def drained(stream: Arriving) -> int:
        restore(stream)
        before = len(stream.kept)
        drain(stream)
        cut = rng.randint(before, len(stream.kept))
        late[stream], stream.kept = stream.kept[cut:], stream.kept[:cut]
        return stream.received + len(stream.kept)

    def restore(stream: Arriving) -> None:
        stream.kept = memoryview(bytes(stream.kept) + bytes(late.pop(stream, b"")))

    def withdrawn(stream: Arriving) -> None:
        """What was late has come, where the connection before goes on after all."""
        withdraw(stream)
        restore(stream)

    def succeeded(stream: Arriving) -> None:
        """What comes late on the connection before counts for nothing."""
        late.pop(stream, None)
        succeed(stream)

    def reads(stream: Arriving, view: memoryview) -> int:
        if stream.successor is None:  # the other connection broke before it was taken
            restore(stream)
        return recv_into(stream, view)

    patch.setattr(TcpMesh, "_look_at_streams", look)
    patch.setattr(failover, "LOOK_SECONDS", 0.0)
    patch.setattr(failover, "FORGIVE_SECONDS", 0.0)
    if loses:
        patch.setattr(Arriving, "drain", drained)
        patch.setattr(Arriving, "withdraw_successor", withdrawn)
        patch.setattr(Arriving, "succeed", succeeded)
        patch.setattr(Arriving, "recv_into", reads)
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
    port = path_of(stream.out)
    assert port is not None
    mesh._suspect(stream.rank, port, 0.0)
    mesh._move(stream, mesh.source_ports.usable_port(stream.rank, port), 0.0, left=port)
    assert stream.moving


def let_move(mesh: TcpMesh, other: TcpMesh, stream: Any) -> None:
    """Lets both ranks handle what comes, until a stream has moved."""
    assert stream.moving
    while stream.moving:
        mesh._poll(0.001)
        other._poll(0.001)


def let_accept(first: TcpMesh, second: TcpMesh) -> tuple[PeerConnection, PeerConnection]:
    """Lets rank 0's messages leave their path, until rank 1 has accepted the other connection, and rank 0 has not heard
    that.  Returns what each has of the other."""
    here, there = first._links[1], second._links[0]
    leave(first, here)
    while there.successor is None:
        first._poll(0)
        if there.successor is None:
            second._poll(0.001)
    return here, there


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
        first, _ = connected(tcp)
        link = first._links[1]
        assert first._admit_stream(1, StreamTurn(0, 1)) == (Outcome.ACCEPTED, link.received + len(link.kept))
        link.latest_turn = 3
        assert first._admit_stream(1, StreamTurn(0, 3)) == (Outcome.TAKEN, 0)
        assert first._admit_stream(1, StreamTurn(0, 4, now=2)) == (Outcome.TAKEN, 0), "not what is read"
        lane = first._lanes[1].incoming[0]
        again = StreamTurn(lane.number)
        assert first._admit_stream(1, again) == (Outcome.ACCEPTED, 0), "turn 0 begins a lane"
        assert first._admit_stream(1, StreamTurn(lane.number, 1, now=1)) == (Outcome.TAKEN, 0), "it has written"
        outcome, received = first._admit_stream(1, StreamTurn(lane.number, 1))
        assert (outcome, received) == (Outcome.ACCEPTED, lane.received)
        check_swapped(values(tcp.run(on_plan(swap))))


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


def test_a_stream_whose_peer_refuses_another_connection_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both go on as they were, and after some refusals nobody asks any more."""
    with planned(2) as tcp:
        first, second = connected(tcp)
        monkeypatch.setattr(first._connecting, "_admit_stream", lambda rank, stream: (Outcome.TAKEN, 0))
        link = second._links[0]

        def work(mesh: TcpMesh) -> Any:
            if mesh is second:
                leave(mesh, link)
            return swap(mesh)

        for refusals in range(1, 4):
            assert second._may_move(link)
            check_swapped(values(tcp.run(on_plan(work))))
            assert not link.moving
            assert second._refusals[link] == refusals
        assert not second._may_move(link)
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
            for stream in mesh._out_streams():
                assert stream.log is not None
                assert not stream.log.borrowed


def test_a_dead_path_is_left_by_all_streams_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stream that finds its path silent takes along what is in flight to the same leaf on that path."""
    with planned(2) as tcp:
        first, _ = connected(tcp)
        link = first._links[1]
        port = path_of(link.out)  # type: ignore[arg-type]
        assert port is not None
        asked: list[tuple[object, int, int | None]] = []
        monkeypatch.setattr(first, "_move", lambda stream, to, now, *, left: asked.append((stream, to, left)))
        for stream in first._out_streams():
            first._logging.add(stream)
            first._silences[stream] = _Silent()
        first._leave(link, port, 1.0)
        same = [stream for stream in first._out_streams() if stream.out and path_of(stream.out) == port]
        to = first.source_ports.usable_port(1, port)
        assert same
        assert {id(stream): (to, left) for stream, to, left in asked} == {id(stream): (to, port) for stream in same}
        assert first.source_ports.is_suspect(1, port)
        assert first.source_ports.usable_port(1, port) in set(PORTS) - {port}


class _Silent(Silence):
    """A silence that has lasted for a second."""

    def lasts(self, condition: Condition, now: float) -> float:
        del condition, now
        return 1.0


@pytest.mark.parametrize("known", [True, False])
def test_a_stream_on_a_path_that_nobody_named_takes_a_planned_one(known: bool) -> None:
    """Where the plan came after the first connection, or its ports were taken, the switches' hash has chosen."""
    with planned(2, known=known) as tcp:
        first, second = connected(tcp)
        link = first._links[1]

        def work(mesh: TcpMesh) -> Any:
            if mesh is first:
                mesh._leave(link, None, 0.0)
                assert link.moving
            return swap(mesh)

        assert link.out is not None
        assert (path_of(link.out) in PORTS) == known
        check_swapped(values(tcp.run(on_plan(work))))
        assert path_of(link.out) in PORTS
        assert link.out is not link.socket
        assert (first.moved, second.moved) == (1, 1)


def test_a_suspect_path_is_forgiven() -> None:
    """After a while the path is tried again, and a lane that had left it returns."""
    with planned(2) as tcp:
        first, second = connected(tcp)
        lane = first._lanes[1].out[PORTS[0]]
        leave(first, lane)
        let_move(first, second, lane)
        assert lane.out is not None
        assert path_of(lane.out) != PORTS[0]
        (since,) = [since for (_, port), since in first._suspected.items() if port == PORTS[0]]
        first._forgive(since + failover.FORGIVE_SECONDS / 2)
        assert first.source_ports.is_suspect(1, PORTS[0])
        first._forgive(since + failover.FORGIVE_SECONDS)
        assert not first.source_ports.is_suspect(1, PORTS[0])
        let_move(first, second, lane)
        assert path_of(lane.out) == PORTS[0]
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


class _Named:
    """A socket whose source port names a path."""

    def fileno(self) -> int:
        return 3

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", tcp_ports(PORTS[0])[0]


@pytest.mark.parametrize(("messages", "repeats", "waited", "moves", "suspect"), [
    (True, True, 0.1, True, True),  # what was sent there is lost
    (False, True, 0.1, True, True),
    (True, False, 0.1, False, False),  # the peer may be computing
    (True, False, 0.6, True, False),  # or its answer is lost
    (False, False, 0.6, True, False),
])
def test_a_handshake_without_an_answer_is_begun_over_another_path(
    monkeypatch: pytest.MonkeyPatch, messages: bool, repeats: bool, waited: float, moves: bool, suspect: bool
) -> None:
    """The first connection for messages, and a lane's: at once where the kernel repeats in vain, else after a while,
    and then the path is not to blame."""
    with planned(2) as tcp:
        first, _ = connected(tcp)
        link = first._links[1]
        stream: Any = link if messages else first._lanes[1].out[PORTS[0]]
        asked = None if messages else StreamTurn(stream.number)
        attempt = Attempt(1, asked, _Named(), 0.0, greeted=True, tries=0)  # type: ignore[arg-type]
        went: list[tuple[object, int]] = []
        monkeypatch.setattr(stream, "out", None)
        monkeypatch.setattr(first._connecting, "unproven", lambda before: [attempt])
        monkeypatch.setattr(failover, "condition_of", lambda sock: Condition(True, repeats, 0, 0, 0.0))
        monkeypatch.setattr(first, "_move", lambda one, port, now, **rest: went.append((one, port)))
        first._look_at_attempts(waited)
        assert [one for one, _ in went] == ([stream] if moves else [])
        assert all(port in PORTS[1:] for _, port in went)
        assert first.source_ports.is_suspect(1, PORTS[0]) == suspect


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


def test_a_move_that_is_withdrawn_leaves_the_connection_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer has accepted already, which this rank has not heard, and reads nothing on the connection before, until
    it sees the other one end."""
    with planned(2) as tcp:
        first, second = connected(tcp)
        here, there = let_accept(first, second)
        assert there.successor is not None
        with monkeypatch.context() as patch:
            patch.setattr(first._connecting, "settle", lambda rank, number: None)
            first._withdraw(here)
        check_swapped(values(tcp.run(on_plan(swap))))
        assert there.successor is None
        assert (here.out is here.socket, here.turn, there.arriving_turn, first.moved) == (True, 0, 0, 0)


def test_a_move_that_the_peer_has_accepted_meanwhile_is_not_withdrawn() -> None:
    """Its answer has come: so this rank goes on there."""
    with planned(2) as tcp:
        first, second = connected(tcp)
        here, _ = let_accept(first, second)
        first._withdraw(here)
        assert not here.moving
        check_swapped(values(tcp.run(on_plan(swap))))
        assert (here.out is here.socket, here.turn, first.moved) == (False, 1, 1)


def test_a_stream_whose_moves_bring_nothing_stays() -> None:
    """Where small packets pass, and long ones do not, each path answers, and none helps."""
    with planned(2) as tcp:
        first, second = connected(tcp)
        link = first._links[1]
        for _ in range(4):
            assert first._may_move(link)
            leave(first, link)
            let_move(first, second, link)
        assert not first._may_move(link)
        first._suspect(1, PORTS[0], 0.0)
        first._forgive(failover.FORGIVE_SECONDS)
        assert first._may_move(link)


def test_a_rank_that_gives_up_reads_nothing_more_of_lanes() -> None:
    """Its memory is the caller's again, whatever peers send, or ask for, until all is closed."""
    with planned(2) as tcp:
        first, _ = connected(tcp)
        lane = first._lanes[1].incoming[0]
        first._error = Closed("this rank gave up")
        assert first._admit_stream(1, StreamTurn(lane.number, 1)) == (Outcome.TAKEN, 0)
        lane.kept = memoryview(b"x" * 100)
        assert not first._read_lane(lane)
        assert len(lane.kept) == 100


def test_a_peer_cannot_fill_the_memory_by_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept has a limit; then it is not known how much has come, and the peer is refused."""
    monkeypatch.setattr(arriving, "MOST_KEPT", 1000)
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        stream = Arriving()
        stream.socket = near
        far.sendall(b"x" * 900)
        assert stream.drain() == 900
        far.sendall(b"x" * 900)
        assert stream.drain() is None
        assert len(stream.kept) == 1800


def test_a_rank_that_has_sent_everything_does_not_leave_in_the_middle_of_a_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its peer, which does not answer, would wait for it: it goes back to the connection before."""
    with planned(2) as tcp:
        first, _ = connected(tcp)
        link = first._links[1]
        leave(first, link)
        seconds = iter(range(100))
        monkeypatch.setattr(first, "_clock", lambda: next(seconds))
        first.finish_moves()
        assert not link.moving
        assert not first._moves
        monkeypatch.undo()
        check_swapped(values(tcp.run(on_plan(swap))))


def test_what_is_acknowledged_during_a_move_counts_for_nothing() -> None:
    """The peer has said how much it has read, and its kernel acknowledges more: nobody reads that, and it is sent
    again.  So nothing is forgotten until the stream goes on."""
    with planned(2) as tcp:
        first, _ = connected(tcp)
        for stream in first._out_streams():
            leave(first, stream)
            assert stream.log is not None
            first._settle()
            stream.log.add(memoryview(b"late"))  # the kernels have acknowledged all that was written
            first._logging.add(stream)
            assert stream in first._unacknowledged()
            assert len(stream.log) >= 4, "late bytes were forgotten"


def test_ranks_do_without_a_first_connection_whose_path_dies_under_the_handshake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0 has accepted it, and rank 1 does not hear that: what rank 0 sends goes on elsewhere, and then so does what
    rank 1 sends."""
    with planned(2) as tcp:
        first, second = tcp.meshes
        link, initiate = first._links[1], second._connecting._initiate
        waits = threading.Event()

        def deaf(one: Any) -> Any:
            if one.stream is None and one.initiator._challenge:
                return None
            try:
                return initiate(one)
            finally:
                if one.initiator._challenge:
                    waits.set()

        def answer(responder: Responder, *what: Any) -> bytes:
            assert waits.wait(30)
            return verdict(responder, *what)

        def look(source: object, now: float) -> None:
            del source
            if link.out is not None and not link.asked:
                first._move(link, PORTS[1], now)

        verdict = Responder.verdict
        monkeypatch.setattr(Responder, "verdict", answer)
        monkeypatch.setattr(second._connecting, "_initiate", deaf)
        monkeypatch.setattr(first, "_look_at_streams", look)
        monkeypatch.setattr(failover, "LOOK_SECONDS", 0.0)
        check_swapped(values(tcp.run(on_plan(swap))))
        check_swapped(values(tcp.run(on_plan(swap))))
        assert not second._connecting.connecting(0)
        here, there = first._links[1], second._links[0]
        assert (here.lost, there.lost) == ("", "")
        assert here.turn == there.arriving_turn >= 1
        assert there.turn == here.arriving_turn >= 1


def test_both_directions_move_at_once_and_back() -> None:
    """Each is a stream of its own: they cross each other, and end on two connections, neither of which is the first."""
    with planned(2) as tcp:
        first, second = connected(tcp)
        begun = first._links[1].socket

        def work(mesh: TcpMesh) -> Any:
            leave(mesh, mesh._links[1 - mesh.rank])
            return swap(mesh)

        check_swapped(values(tcp.run(on_plan(work))))
        check_swapped(values(tcp.run(on_plan(swap))))
        for mesh in (first, second):
            link = mesh._links[1 - mesh.rank]
            assert link.socket is not link.out
            assert link.turn == link.arriving_turn == 1
            assert mesh.moved == 2
            assert sorted(fd for fd, one in mesh._by_fd.items() if one is link) == sorted(
                sock.fileno() for sock in link.sockets())
        assert begun is not None
        assert begun.fileno() == -1
