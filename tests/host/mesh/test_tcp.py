# SPDX-License-Identifier: Apache-2.0
"""Meshes over real TCP on loopback and their failures: nothing hangs, and errors name the ranks."""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from netfold.host.collectives import ALLREDUCE
from netfold.host.collectives.barrier import barrier
from netfold.host.collectives.flow import run
from netfold.host.errors import Closed, CollectiveTimeout, NetFoldError, PeerLost, RankMismatch
from netfold.host.job_secret import draw
from netfold.host.mesh import operations
from netfold.host.mesh.connection import FAILURE_REPORT, HEADER, WAITING
from netfold.host.mesh.handshake import Initiator, Outcome
from netfold.host.mesh.mesh import Call, Mesh, Subset
from netfold.host.mesh.sockets import listen
from netfold.host.operation.arrays import Flat
from netfold.testing import MemoryFabric
from support.hosts.collectives import InStep, TcpRanks, allreduce, expected, inputs, values
from support.hosts.handshakes import mesh_identity, prove


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_every_algorithm_sums_over_tcp(ranks: int) -> None:
    """One mesh carries all algorithms one after another, with small and large tensors, as a job does."""
    sizes = [0, 1, 1000, 300_001]
    with TcpRanks(ranks) as tcp:
        for number, (name, size) in enumerate((name, size) for name in sorted(ALLREDUCE) for size in sizes):
            arrays = inputs(ranks, size, "float32", number)
            results = tcp.run(lambda mesh, a=arrays, n=name, i=number: allreduce(mesh, a[mesh.rank].copy(), n, i))  # type: ignore[misc]
            for result in values(results):
                np.testing.assert_array_equal(result, expected(arrays, "sum", "float32"))


def test_messages_larger_than_all_buffers_cross_each_other() -> None:
    """Both ranks send 32 MB before either receives, so the mesh must move bytes in both directions at once."""
    arrays = inputs(2, 4 << 20, "float64", 1)

    def work(mesh: Mesh) -> Flat:
        got = np.empty_like(arrays[0])
        with mesh.operation(Call(1, "swap")):
            mesh.send(1 - mesh.rank, arrays[mesh.rank])
            mesh.wait([mesh.receive(1 - mesh.rank, got)])
        return got

    with TcpRanks(2) as tcp:
        for rank, got in enumerate(values(tcp.run(work))):
            np.testing.assert_array_equal(got, arrays[1 - rank])


def test_tags_overtake_each_other() -> None:
    """A message with a tag that nobody receives yet does not block one with another tag; within a tag the order
    stays."""

    def work(mesh: Mesh) -> list[int]:
        with mesh.operation(Call(1, "tags")):
            if mesh.rank == 0:
                for tag, value in ((1, 10), (1, 11), (2, 20), (1, 12), (2, 21)):
                    mesh.send(1, np.array([value]), tag=tag)
                return []
            got = []
            for tag in (2, 2, 1, 1, 1):
                into = np.zeros(1, np.int64)
                mesh.wait([mesh.receive(0, into, tag=tag)])
                got.append(int(into[0]))
            return got

    with TcpRanks(2) as tcp:
        assert values(tcp.run(work))[1] == [20, 21, 10, 11, 12]


def test_a_subset_is_a_mesh_of_its_own() -> None:
    """Ranks 3, 1 and 2 of four reduce among themselves in that order, and rank 0 takes no part."""
    arrays = inputs(4, 50, "float32", 1)

    def work(mesh: Mesh) -> Flat | None:
        return None if mesh.rank == 0 else allreduce(Subset(mesh, [3, 1, 2]), arrays[mesh.rank].copy())

    with TcpRanks(4) as tcp:
        for result in values(tcp.run(work))[1:]:
            np.testing.assert_array_equal(result, expected(arrays[1:], "sum", "float32"))


def test_connections_of_strangers_are_refused() -> None:
    """Connections without a handshake, with a wrong one, or of another job do not disturb a collective."""
    with TcpRanks(3) as tcp:
        address = tcp.meshes[0].operations.connections.listener.getsockname()
        strangers = [socket.create_connection(address, timeout=30) for _ in range(3)]
        strangers[0].sendall(b"GET / HTTP/1.1\r\n" * 10)
        strangers[1].sendall(Initiator(replace(mesh_identity(tcp.meshes[1].operations.plan), epoch=2), 0).hello)
        results = tcp.run(lambda mesh: allreduce(mesh, np.ones(10, np.float32)))
        for sock in strangers:
            sock.close()

    for result in values(results):
        np.testing.assert_array_equal(result, np.full(10, 3, np.float32))


def test_ranks_that_call_different_things_learn_of_it() -> None:
    """The error names both calls, and ranks that made no mistake learn which rank gave up."""

    def work(mesh: Mesh) -> Flat:
        return allreduce(mesh, np.ones(100 if mesh.rank == 2 else 101, np.float32))

    with TcpRanks(4, timeout=20) as tcp:
        results = tcp.run(work)
    assert all(isinstance(result, NetFoldError) for result in results)
    mismatch = [str(result) for result in results if isinstance(result, RankMismatch)]
    assert any("float32 x 100" in text and "float32 x 101" in text for text in mismatch)


def test_sizes_that_differ_under_one_name_are_a_mismatch() -> None:
    """The size of each message is checked too."""

    def work(mesh: Mesh) -> None:
        with mesh.operation(Call(1, "same")):
            if mesh.rank:
                mesh.send(0, np.zeros(3, np.uint8))
            else:
                mesh.wait([mesh.receive(1, np.zeros(4, np.uint8))])

    for results in (TcpRanksRun(2).run(work), MemoryFabric(2).run(work)):
        assert isinstance(results[0], RankMismatch)
        assert "3 bytes" in str(results[0])


class TcpRanksRun:
    """A context with TCP meshes for all ranks."""

    def __init__(self, ranks: int, *, timeout: float = 20.0) -> None:
        self._ranks, self._timeout = ranks, timeout

    def run(self, work) -> list[object]:  # type: ignore[no-untyped-def]
        with TcpRanks(self._ranks, timeout=self._timeout) as tcp:
            return tcp.run(work)


@pytest.mark.parametrize("name", sorted(ALLREDUCE))
def test_a_rank_that_never_calls_is_named_by_all(name: str) -> None:
    """Ranks that do not wait for it themselves name it too, since wait reports are passed on."""
    callers = [0, 1, 2, 4, 5]
    steps = InStep(callers)

    def work(mesh: Mesh) -> Flat:
        try:
            return allreduce(mesh, np.ones(5000, np.float32), name)
        finally:
            steps.end(mesh.rank)

    with TcpRanks(6, timeout=1.0, clock=steps.of) as tcp:
        results = tcp.run(work, only=callers)

    for rank in callers:
        assert isinstance(results[rank], CollectiveTimeout), results[rank]
        assert ": rank 3 gone, stopped, or never called" in str(results[rank]), results[rank]


@pytest.mark.parametrize("name", sorted(ALLREDUCE))
def test_a_rank_that_dies_is_named_by_all(name: str) -> None:
    """When a rank's connections close in the middle of a job, every other rank's error names it, long before the
    timeout."""

    def work(mesh: Mesh) -> Flat:
        allreduce(mesh, np.ones(5000, np.float32), name)
        if mesh.rank == 3:
            mesh.close()
            return np.zeros(0)
        return allreduce(mesh, np.ones(5000, np.float32), name, number=2)

    with TcpRanks(6, timeout=90) as tcp:
        results = tcp.run(work, timeout=60)

    for rank in (0, 1, 2, 4, 5):
        assert isinstance(results[rank], PeerLost), results[rank]
        assert "rank 3" in str(results[rank]), results[rank]


def test_a_rank_that_connects_after_the_others_gave_up_learns_which_rank_is_lost() -> None:
    """Rank 1 has not even connected when rank 0 finds rank 2 dead: it learns of rank 2, and does not blame rank 0."""
    gave_up = threading.Event()

    def work(mesh: Mesh) -> None:
        with mesh.operation(Call(1, "late")):
            if mesh.rank == 0:
                own = mesh.operations  # type: ignore[attr-defined]
                hear = own.report_lost

                def learn(whom: int, why: str) -> None:
                    gave_up.set()
                    hear(whom, why)

                own.report_lost = learn
                mesh.wait([mesh.receive(peer, np.empty(9, np.uint8)) for peer in (2, 1)])
            elif mesh.rank == 1:
                assert gave_up.wait(30)
                mesh.wait([mesh.send(0, np.ones(9, np.uint8)), mesh.receive(0, np.empty(9, np.uint8))])
            else:
                mesh.wait([mesh.send(0, np.ones(9, np.uint8), tag=1)])  # not what it waits for
                mesh.close()

    with TcpRanks(3, timeout=60) as tcp:
        results = tcp.run(work)
    for rank in (0, 1):
        assert isinstance(results[rank], PeerLost), results[rank]
        assert "rank 2 is lost" in str(results[rank]), results[rank]


def test_a_failure_report_that_is_an_oserror_is_not_taken_for_the_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """PeerLost is an OSError: raised from a report that a timed-out rank reads, it names the reported rank, and not the
    peer whose connection it was read from."""

    def work(mesh: Mesh) -> None:
        if mesh.rank == 0:
            with mesh.operation(Call(1, "news")):
                mesh.send(1, np.zeros(1, np.uint8))
                mesh.wait([mesh.receive(1, np.empty(1, np.uint8))])
        with mesh.operation(Call(1, "news")):
            mesh.wait([mesh.receive(0, np.empty(1, np.uint8))])
        one = tcp.meshes[1].operations
        while 0 not in one.reports.waits:
            one.connections.poll(5)
        one.report_lost(2, "is lost: a test")
        while not one.connections.links[0].lost:
            one.connections.poll(5)

    monkeypatch.setattr(operations, "REPORT_SECONDS", 5.0)  # rank 0 hears the report, however late it comes
    with TcpRanks(3, timeout=1) as tcp:
        tcp.meshes[1].operations.timeout = 60.0
        error = tcp.run(work, only=[0, 1], timeout=60)[0]
    assert isinstance(error, PeerLost), error
    assert "rank 2 is lost: a test" in str(error)


def test_an_address_where_nobody_listens_is_named() -> None:
    """A refused connection is an error at once, with rank and address."""
    with TcpRanks(2, timeout=90) as tcp:
        tcp.meshes[0].close()
        error = tcp.run(lambda mesh: allreduce(mesh, np.ones(8, np.float32)), only=[1], timeout=60)[1]

    assert isinstance(error, PeerLost)
    assert "rank 0" in str(error)
    assert "refused" in str(error).lower()


def test_an_interrupted_rank_tells_the_others() -> None:
    """An exception of the caller's own inside an operation is reported to the peers, which need not wait for the
    timeout."""

    def work(mesh: Mesh) -> None:
        allreduce(mesh, np.ones(8, np.float32))
        with mesh.operation(Call(2, "barrier")):
            if mesh.rank == 1:
                raise KeyError("a bug of the caller's")
            run(mesh, barrier(mesh))

    with TcpRanks(3, timeout=90) as tcp:
        results = tcp.run(work, timeout=60)
    assert isinstance(results[1], KeyError)
    for rank in (0, 2):
        assert isinstance(results[rank], PeerLost)
        assert "rank 1 gave up: KeyError" in str(results[rank])


def test_a_broken_or_closed_mesh_repeats_its_error() -> None:
    """After a failure nothing is sent any more, and every call raises the same error."""
    with TcpRanks(2, timeout=0.2) as tcp:
        first = tcp.run(lambda mesh: allreduce(mesh, np.ones(8, np.float32)), only=[0])[0]
        second = tcp.run(lambda mesh: allreduce(mesh, np.ones(8, np.float32)), only=[0])[0]
        tcp.meshes[1].close()
        tcp.meshes[1].close()
        closed = tcp.run(lambda mesh: allreduce(mesh, np.ones(8, np.float32)), only=[1])[1]
    assert isinstance(first, CollectiveTimeout)
    assert second is first
    assert isinstance(closed, Closed)


@pytest.mark.parametrize("fabric", ["tcp", "memory"])
def test_impossible_messages_are_refused(fabric: str) -> None:
    """Peers that do not exist, and memory that cannot be sent without a copy, are refused."""
    tcp = TcpRanks(2)
    with tcp:
        mesh: Mesh = tcp.meshes[0] if fabric == "tcp" else MemoryFabric(2).meshes[0]
        for peer in (0, 2, -1):
            with pytest.raises(ValueError, match="expected another rank of 0"):
                mesh.send(peer, np.zeros(1))
        with pytest.raises(ValueError, match="expected one dimension, contiguous"):
            mesh.receive(1, np.zeros((2, 2)))
        with pytest.raises(ValueError, match="expected one dimension, contiguous"):
            mesh.send(1, np.zeros(6)[::2])
        with pytest.raises(ValueError, match="rank 0 is not in its own subset"):
            Subset(mesh, [1])
        with pytest.raises(ValueError, match="expected different ranks"):
            Subset(mesh, [0, 0])


RANK_PROGRAM = """
import os, signal, socket, sys
import numpy as np
from netfold.host.api.communicator import Communicator
from netfold.wire.plan import Peer, Plan, Secret

rank, fd = int(sys.argv[1]), int(sys.argv[2])
peers = [Peer(r, where.rpartition(":")[0], where) for r, where in enumerate(sys.argv[3:])]
listener = socket.socket(fileno=fd)
plan = Plan("killed", 1, rank, len(peers), peers, [], "a test", secret=Secret(sys.stdin.readline()))
with Communicator.of_plan(plan, address=peers[rank].address, rail="tcp", timeout=60, listener=listener) as comm:
    assert comm.allreduce(np.full(100_000, rank + 1.0), algorithm="hierarchical")[-1] == 10
    data = np.ones(300_000)
    works = [comm.iallreduce(data, data, 'max') for _ in range(200)]
    works[1].wait()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        works[-1].wait()
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.slow
def test_a_process_that_is_killed_in_the_middle_is_named_by_all() -> None:
    """Four processes share memory, then have many allreduces in flight when one of them is killed by SIGKILL."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(listen("127.0.0.1")) for _ in range(4)]
        wheres = ["{}:{}".format(*listener.getsockname()) for listener in listeners]
        ranks = []
        secret = draw()
        for rank, listener in enumerate(listeners):
            fd = listener.fileno()
            command = [sys.executable, "-c", RANK_PROGRAM, str(rank), str(fd), *wheres]
            pipe, out = subprocess.PIPE, subprocess.STDOUT
            process = subprocess.Popen(command, pass_fds=[fd], stdin=pipe, stdout=pipe, stderr=out, text=True)
            stack.callback(process.kill)
            ranks.append(process)
        for listener in listeners:
            listener.close()  # only its own rank keeps it
        for process in ranks:  # all of them must have it before any is waited for
            assert process.stdin is not None
            process.stdin.write(secret.value)
            process.stdin.close()
            process.stdin = None
        said = [process.communicate(timeout=60)[0] for process in ranks]

    assert ranks[2].returncode == -signal.SIGKILL
    for rank in (0, 1, 3):
        assert ranks[rank].returncode == 0, said[rank]
        assert said[rank].startswith("PeerLost"), said[rank]
        assert "rank 2 is lost" in said[rank]


def say_hello(peer: socket.socket, tcp: TcpRanks) -> None:
    """Take rank 1's place at rank 0, by one operation."""
    mesh = tcp.meshes[0]

    def greet() -> None:
        assert prove(peer, mesh_identity(tcp.meshes[1].operations.plan), 0) == Outcome.ACCEPTED
        peer.sendall(HEADER.pack(1, 1, 0, b"hello") + b"!")

    with ThreadPoolExecutor(1) as pool:
        greeting = pool.submit(greet)
        with mesh.operation(Call(1, "hello")):
            mesh.wait([mesh.receive(1, np.zeros(1, np.uint8))])
        greeting.result()


@pytest.mark.parametrize("awaited", [False, True])
def test_a_rank_that_gave_up_is_not_taken_for_the_lost_one(awaited: bool) -> None:
    """Its report of the lost rank counts, also where it stands behind the last message that is awaited, or one that
    nobody receives yet, and the connection has been reset since."""
    call = Call(2, "barrier")
    with TcpRanks(3) as tcp:
        mesh = tcp.meshes[0]
        where = mesh.operations.connections.listener.getsockname()
        with socket.create_connection(where, timeout=30) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what was not sent yet, a reset drops
            say_hello(peer, tcp)
            peer.sendall(HEADER.pack(2, 3, 0, call.text.encode()) + b"abc" + HEADER.pack(2, 1, 1, b"") + b"d")
            peer.sendall(HEADER.pack(FAILURE_REPORT, 2, 1, b"is lost: it was killed"))
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets
        posted = [mesh.receive(1, np.zeros(3, np.uint8))] if awaited else []
        with pytest.raises(PeerLost, match="rank 2 is lost: it was killed"), mesh.operation(call):
            mesh.wait([*posted, mesh.send(1, np.zeros(1 << 20, np.uint8))])


def test_the_word_of_a_peer_that_waits_is_no_progress() -> None:
    """Ranks that wait for each other tell each other so, which must not put off their timeouts."""
    with TcpRanks(2) as tcp:
        mesh = tcp.meshes[0]
        operations = mesh.operations
        where = operations.connections.listener.getsockname()
        with socket.create_connection(where, timeout=30) as peer:
            say_hello(peer, tcp)
            peer.sendall(HEADER.pack(WAITING, 2, 1, b"0"))
            moved = False
            while operations.reports.to_name(2, [1, 3]) != ([3], True):  # until the word is there
                moved |= operations.poll(0.1)
            assert not moved


