# SPDX-License-Identifier: Apache-2.0
"""A peer that does not know a job's secret gets nothing from its mesh, and keeps no rank out of it."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from netfold.host.errors import CollectiveTimeout, PeerLost, PlanError
from netfold.host.job_secret import draw
from netfold.host.mesh.connecting import ATTEMPTS, Connecting, Proven, Unconnected
from netfold.host.mesh.handshake import CHALLENGE, HELLO, MAGIC, PROOF_BYTES, VERDICT, Outcome, Responder
from netfold.host.mesh.sockets import listen
from netfold.host.mesh.tcp import TcpMesh
from netfold.host.mesh.unproven import HANDSHAKE_SECONDS, SPARE
from netfold.wire.plan import Peer, Plan, Secret
from support.hosts.collectives import Awake, TcpRanks, allreduce, values
from support.hosts.handshakes import mesh_identity, prove


def knock(mesh: TcpMesh, timeout: float = 30.0) -> socket.socket:
    """A stranger's connection to a rank's listener."""
    return socket.create_connection(mesh.operations.connections.listener.getsockname(), timeout=timeout)


def sums(tcp: TcpRanks, number: int = 1) -> None:
    """All ranks sum ones, exactly."""
    for result in values(tcp.run(lambda mesh: allreduce(mesh, np.ones(10, np.float32), number=number))):
        np.testing.assert_array_equal(result, np.full(10, tcp.meshes[0].size, np.float32))


def descriptors() -> int:
    """Open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


# ---- the mesh --------------------------------------------------------------------------------------------------------
def test_a_rank_with_another_secret_is_told_so_and_so_are_the_others() -> None:
    """Ranks whose secrets differ do not hang: both name the other one and say what to do, well before the timeout where
    they can know."""
    with TcpRanks(2, timeout=3) as tcp:
        plan, listener = tcp.meshes[1].operations.plan, tcp.meshes[1].operations.connections.listener
        tcp.meshes[1] = TcpMesh(structs.replace(plan, secret=draw()), listener, timeout=30, clock=Awake())
        first, second = tcp.run(lambda mesh: allreduce(mesh, np.ones(10, np.float32)), timeout=30)
    assert isinstance(second, PeerLost), second
    assert "rank 0" in str(second)
    assert "refuses this rank's proof of the job's secret: all ranks of a job need" in str(second)
    assert isinstance(first, CollectiveTimeout), first
    assert "rank 1 gone, stopped, or never called" in str(first)
    assert "says that it is rank 1, but does not know the job's secret: all ranks" in str(first)


def test_a_plan_without_a_secret_opens_no_mesh() -> None:
    """The plan may come from a controller without secrets, or be written by hand."""
    plan = Plan("j", 1, 0, 2, [Peer(0, "127.0.0.1", "127.0.0.1:1"), Peer(1, "127.0.0.1", "127.0.0.1:1")], [])
    with listen("127.0.0.1") as listener, pytest.raises(PlanError, match="secret: expected 32 bytes"):
        TcpMesh(plan, listener, timeout=1)


def test_who_listens_in_a_ranks_place_gets_no_data() -> None:
    """A stranger at rank 0's address who goes through the motions of a handshake learns a hello and a proof, not a byte
    of the message that waits for rank 0; and rank 1 says who it was."""
    heard = bytearray()
    with TcpRanks(2, timeout=20) as tcp, listen("127.0.0.1") as place, ThreadPoolExecutor(1) as pool:
        mesh, where = tcp.meshes[1], "{}:{}".format(*place.getsockname())
        mesh.operations.connections.links[0].address = where

        def impostor() -> None:
            place.settimeout(30)
            sock, _ = place.accept()
            with sock:
                responder = Responder(replace(mesh_identity(tcp.meshes[0].operations.plan), key=bytes(32)))
                heard.extend(sock.recv(1 << 16))
                sock.sendall(responder.receive(bytes(heard)))
                heard.extend(sock.recv(1 << 16))
                responder.peer = 1  # whatever the proof was
                sock.sendall(responder.verdict(Outcome.ACCEPTED))
                while more := sock.recv(1 << 16):
                    heard.extend(more)

        played = pool.submit(impostor)
        error = tcp.run(lambda mesh: allreduce(mesh, np.ones(10, np.float32)), only=[1])[1]
        played.result()
    assert len(heard) == HELLO.size + PROOF_BYTES
    assert isinstance(error, PeerLost), error
    assert f"whoever listens at {where} does not prove that it knows the job's secret" in str(error)


def test_a_second_process_of_a_rank_does_not_take_the_firsts_place(caplog: pytest.LogCaptureFixture) -> None:
    """It proves to be rank 1, and is told that rank 1 is there; the first goes on, and the log says it."""
    with TcpRanks(2) as tcp, caplog.at_level(logging.WARNING, "netfold"):
        sums(tcp)
        with knock(tcp.meshes[0]) as second, ThreadPoolExecutor(1) as pool:
            verdict = pool.submit(prove, second, mesh_identity(tcp.meshes[1].operations.plan), 0)
            while not verdict.done():
                tcp.meshes[0].operations.poll(0.05)
            assert verdict.result() == Outcome.TAKEN
            sums(tcp, 2)
    assert "proves to be rank 1, which has, or had, a connection already" in caplog.text


def test_a_flood_of_strangers_costs_bounded_descriptors_and_keeps_nobody_out() -> None:
    """Strangers hold more connections than a rank keeps, from its own ranks' addresses too, and say nothing: the ranks
    connect and sum, and at no time does a rank keep more of them than it should."""
    most = [0] * 3

    def count(mesh: TcpMesh) -> Callable[[float], bool]:
        """On the mesh's own thread: in the middle of an accept another one would see one more."""

        def counted(moved: float) -> None:
            most[mesh.rank] = max(most[mesh.rank], len(mesh.operations.connections.connecting.incoming))

        return counted

    with TcpRanks(3) as tcp, contextlib.ExitStack() as held:
        for mesh in tcp.meshes:
            mesh.watched_by(count(mesh))
        for number in range(600):
            sock = held.enter_context(socket.socket())
            sock.bind((f"127.0.0.{number % 3 + 1}", 0))
            sock.connect(tcp.meshes[number % 2].operations.connections.listener.getsockname())
            if number % 5 == 0:
                sock.sendall(MAGIC)
        before = descriptors()
        sums(tcp)
        for mesh in tcp.meshes:
            count(mesh)(0.0)
        assert descriptors() - before <= 3 * (3 + SPARE) + 2 * 3
        assert SPARE // 2 < max(most) <= 3 + SPARE


# ---- one connection --------------------------------------------------------------------------------------------------
@dataclass
class Side:
    """One rank's connections in the making, with a clock that stands still unless told."""

    rank: int
    secret: Secret
    world: int = 2
    now: float = 0.0
    got: list[Proven | Unconnected] = field(default_factory=list)
    began: bool = False

    def __post_init__(self) -> None:
        self.listener = listen("127.0.0.1")
        self.where = "{}:{}".format(*self.listener.getsockname())
        self.poller = select.poll()
        peers = [Peer(rank, "127.0.0.1", "127.0.0.1:1") for rank in range(self.world)]
        plan = Plan("j", 1, self.rank, self.world, peers, [], secret=self.secret)
        self.connecting = Connecting(plan, self.listener, self.poller, self.admit, clock=lambda: self.now)

    def admit(self, rank: int) -> Outcome:
        """As a mesh does."""
        if self.proven():
            return Outcome.TAKEN
        return Outcome.CROSSED if rank < self.rank and self.connecting.connecting(rank) else Outcome.ACCEPTED

    def proven(self) -> list[socket.socket]:
        return [one.socket for one in self.got if isinstance(one, Proven)]

    def step(self, seconds: float = 0.0) -> bool:
        """Handles what is ready.  Returns whether anything was."""
        ready = self.poller.poll(seconds * 1000)
        for fd, _ in ready:
            if (one := self.connecting.on_ready(fd)) is not None:
                self.got.append(one)
        self.connecting.expire()
        return bool(ready)

    def until_got(self) -> Proven | Unconnected:
        """Handles events until a connection is proven or given up."""
        while not self.got:
            assert self.step(30), "nothing happens for 30 s"
        return self.got[-1]

    def close(self) -> None:
        for sock in self.proven():
            sock.close()
        self.connecting.close()


@contextlib.contextmanager
def sides(count: int, secret: Secret) -> Iterator[list[Side]]:
    """The sides of ranks 0 .. count - 1."""
    made = [Side(rank, secret, count) for rank in range(count)]
    try:
        yield made
    finally:
        for side in made:
            side.close()


@given(st.lists(st.sampled_from(["0 connects", "1 connects", "0 steps", "1 steps"]), min_size=4, max_size=24))
def test_two_ranks_that_connect_to_each_other_agree_on_one_connection(order: list[str]) -> None:
    """However their steps fall between each other, each gets one proven connection, and it is the same one."""
    with sides(2, Secret("5e" * 32)) as both:
        for step in [*order, "1 connects"]:
            side, other = both[int(step[0])], both[1 - int(step[0])]
            if step.endswith("steps"):
                side.step()
            elif not side.began and not side.proven():
                side.began = True
                side.connecting.connect(other.rank, other.where)
        for _ in range(1000):
            if all(side.proven() for side in both) and not any(side.step(0.001) for side in both):
                break
            for side in both:
                side.step(0.001)
        assert [len(side.got) for side in both] == [1, 1], [side.got for side in both]
        first, second = (side.proven()[0] for side in both)
        assert first.getsockname() == second.getpeername()
        assert first.getpeername() == second.getsockname()
        assert not any(side.connecting.incoming or side.connecting.outgoing for side in both)


@pytest.mark.parametrize("first_to_look", [0, 1])
def test_meshes_that_connect_to_each_other_at_once_keep_the_connection_of_the_higher_rank(
    first_to_look: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each takes the same one for its only connection to the other, sums go over it, and nobody takes the other
    connection for that of a second process."""
    with TcpRanks(2) as tcp, caplog.at_level(logging.WARNING, "netfold"):
        both = [mesh.operations.connections for mesh in tcp.meshes]
        links = [connections.links[1 - connections.rank] for connections in both]
        for connections, link in zip(both, links, strict=True):
            connections.connect(link)
        for _ in range(1000):
            moved = [both[rank].poll(0.001) for rank in (first_to_look, 1 - first_to_look)]
            if not any(moved) and all(link.socket is not None for link in links):
                break
        first, second = (link.socket for link in links)
        assert first is not None
        assert second is not None
        assert second.getpeername() == first.getsockname() == both[0].listener.getsockname()
        assert second.getsockname() == first.getpeername()
        assert not any(connections.attempts() for connections in both)
        sums(tcp)
    assert not caplog.records


def test_a_stranger_who_starts_a_handshake_does_not_stop_the_rank_that_he_names() -> None:
    """A hello is no reason to wait: only a proof decides anything."""
    with sides(2, draw()) as (first, second):
        with socket.create_connection(first.listener.getsockname(), timeout=30) as stranger:
            stranger.sendall(HELLO.pack(MAGIC, 1, 1, 0, 2, bytes(32)))
            first.step(30)
            first.step(30)
            assert len(stranger.recv(1000)) == CHALLENGE.size
            second.connecting.connect(0, first.where)
            while not first.got or not second.got:
                first.step(0.01)
                second.step(0.01)
            assert isinstance(first.got[0], Proven)
            assert isinstance(second.got[0], Proven)
            stranger.sendall(os.urandom(PROOF_BYTES))
            first.step(30)
            assert len(stranger.recv(1000)) == VERDICT.size, "a refusal"
            assert stranger.recv(1000) == b""
        assert "rank 1, but does not know the job's secret" in first.connecting.refusals()


def test_connections_that_say_nothing_are_closed_in_time() -> None:
    """After their seconds, and not before; what arrived while nobody looked counts."""
    with sides(2, draw()) as (first, second):
        with socket.create_connection(first.listener.getsockname(), timeout=30) as silent:
            first.step(30)
            second.connecting.connect(0, first.where)
            second.step(30)
            first.step(30)
            first.now = HANDSHAKE_SECONDS - 0.1
            first.step()
            silent.setblocking(False)
            with pytest.raises(BlockingIOError):
                silent.recv(1)
            first.now = HANDSHAKE_SECONDS + 100
            while not second.got:  # its hello and proof come after the time, and before the next look
                first.step(0.01)
                second.step(0.01)
            silent.setblocking(True)
            assert silent.recv(1) == b""
        assert "does not finish its handshake in time" in first.connecting.refusals()


def test_a_connection_that_ends_too_early_is_opened_again() -> None:
    """A peer under a flood may close one of ours before it has seen who we are; one that always does is given up."""
    secret = draw()
    with listen("127.0.0.1") as place, sides(2, secret) as (first, second):
        place.settimeout(30)
        second.connecting.connect(0, "{}:{}".format(*place.getsockname()))

        def close(times: int) -> None:
            for _ in range(times):
                sock, _ = place.accept()
                sock.recv(10)
                sock.close()

        with ThreadPoolExecutor(1) as pool:
            closing = pool.submit(close, ATTEMPTS - 1)
            while not closing.done():
                second.step(0.01)
            closing.result()
            assert second.connecting.connecting(0)
            closing = pool.submit(close, 1)
            lost = second.until_got()
            closing.result()
        assert isinstance(lost, Unconnected)
        assert f"{ATTEMPTS} times before the end of the handshake" in lost.why
        assert not first.got


def test_another_service_at_a_ranks_port_is_named_at_once() -> None:
    """One that answers in a protocol of its own."""
    with listen("127.0.0.1") as place, sides(2, draw()) as (_, second):
        where = "{}:{}".format(*place.getsockname())
        place.settimeout(30)
        second.connecting.connect(0, where)
        with ThreadPoolExecutor(1) as pool:

            def serve() -> None:
                sock, _ = place.accept()
                with sock:
                    sock.sendall(b"220 mail.example ESMTP ready; what else\r\n")
                    sock.recv(1000)

            served = pool.submit(serve)
            lost = second.until_got()
            served.result()
        assert lost == Unconnected(0, f"whoever listens at {where} answers, but not as a rank of this version of "
                                      "NetFold")


def test_where_nobody_listens_is_known_at_once() -> None:
    """A refused connection is not tried again."""
    with sides(2, draw()) as (first, second):
        first.connecting.close()
        second.connecting.connect(0, first.where)
        assert second.until_got() == Unconnected(0, "Connection refused")


def test_no_descriptors_left_is_said() -> None:
    """The oldest unproven connection makes room, and the reason stands in errors."""
    with sides(2, draw()) as (first, _):
        with socket.create_connection(first.listener.getsockname(), timeout=30) as oldest:
            first.step(30)

            class Full:
                def accept(self) -> None:
                    raise OSError(24, "Too many open files")

                def fileno(self) -> int:
                    return listener.fileno()

                def close(self) -> None:
                    listener.close()

            listener, first.connecting.listener = first.connecting.listener, Full()  # type: ignore[assignment]
            with socket.create_connection(listener.getsockname(), timeout=30):
                first.step(30)
            assert oldest.recv(1) == b""
        assert "2 connections were refused here" in first.connecting.refusals()


# ---- processes -------------------------------------------------------------------------------------------------------
RANK_PROGRAM = """
import os, resource, socket, sys
import numpy as np
from netfold.host.api.communicator import Communicator
from netfold.wire.plan import Peer, Plan, Secret

rank, fd, *wheres = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
peers = [Peer(r, where.rpartition(":")[0], where) for r, where in enumerate(wheres)]
plan = Plan("flooded", 1, rank, len(peers), peers, [], "a test", secret=Secret(sys.stdin.readline().strip()))
with Communicator.of_plan(
    plan, address=peers[rank].address, rail="tcp", timeout=60, listener=socket.socket(fileno=fd)
) as comm:
    print("listens", flush=True)
    sys.stdin.readline()
    for _ in range(3):
        assert comm.allreduce(np.ones(1000), algorithm="ring").tolist() == [len(peers)] * 1000
    print("sums with", len(os.listdir("/proc/self/fd")), "descriptors", flush=True)
"""


def test_processes_with_few_descriptors_sum_under_a_flood() -> None:
    """Each rank may open 160 files, and strangers open 300 connections to it while it waits for the last rank: what it
    keeps stays below that, and the last rank is found among them."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(listen("127.0.0.1")) for _ in range(3)]
        wheres = ["{}:{}".format(*listener.getsockname()) for listener in listeners]
        secret, ranks = draw(), []
        for rank, listener in enumerate(listeners):
            command = [sys.executable, "-c", RANK_PROGRAM, str(rank), str(listener.fileno()), *wheres]
            process = subprocess.Popen(command, pass_fds=[listener.fileno()], stdin=subprocess.PIPE, text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            stack.callback(process.kill)
            ranks.append(process)
            tell(process, secret.value)
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "listens\n"
        tell(ranks[0], "go")
        tell(ranks[1], "go")
        for _ in range(300):
            for listener in listeners:
                stack.enter_context(socket.create_connection(listener.getsockname(), timeout=30))
        tell(ranks[2], "go")
        said = [process.communicate(timeout=60)[0] for process in ranks]
    for rank, text in enumerate(said):
        assert ranks[rank].returncode == 0, text
        assert int(text.split()[-2]) <= 3 + SPARE + 30, text


def tell(process: subprocess.Popen[str], line: str) -> None:
    """Writes a line to a process's standard input."""
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
