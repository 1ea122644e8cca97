# SPDX-License-Identifier: Apache-2.0
"""Bounds of a server's connections: whose they are, which ones end, and the limit of open files."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

import pytest

from softswitch.runtime import connections
from softswitch.runtime.connections import ConnectionWatch

BOUND = 30.0


class Listener:
    """A server that accepts, and says and does nothing."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        listening.listen(64)
        self.accepted: list[socket.socket] = []

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        """A client, from this address where it is one of TCP."""
        client = socket.socket(self.listening.family)
        client.settimeout(BOUND)
        if self.listening.family != socket.AF_UNIX:
            client.bind((source, 0))
        client.connect(self.listening.getsockname())
        self.accepted.append(self.listening.accept()[0])
        return client


@contextlib.contextmanager
def tcp(family: int = socket.AF_INET, address: str = "127.0.0.1") -> Iterator[Listener]:
    """A listener at a free port, where this machine has this kind of address."""
    with socket.socket(family) as listening:
        try:
            listening.bind((address, 0))
        except OSError:
            pytest.skip(f"{address} is no address of this machine")
        made = Listener(listening)
        yield made
        for connection in made.accepted:
            connection.close()


@contextlib.contextmanager
def watching(at: int | str, most: int) -> Iterator[ConnectionWatch]:
    """A watch that looks when it is told to."""
    watch = ConnectionWatch([at], most=most)
    try:
        yield watch
    finally:
        watch.close()


def lives(client: socket.socket) -> bool:
    """True if the server has not ended a connection."""
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True


@pytest.fixture(autouse=True)
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look but those of the tests."""
    monkeypatch.setattr(connections, "LOOK_SECONDS", 3600.0)


def test_a_flood_from_one_peer_drives_out_itself_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The newest of the peer that has most go, until half of all places are free; others keep theirs, old and new."""
    monkeypatch.setattr(connections, "local_users", dict)
    with tcp() as listener, watching(listener.listening.getsockname()[1], 20) as watch:
        clients = [(source, listener.connect(source))
                   for source in ("127.0.0.2", "127.0.0.2", *["127.0.0.9"] * 12, "127.0.0.3", "127.0.0.2")]
        assert watch.look()
        assert [source for source, client in clients if not lives(client)] == ["127.0.0.9"] * 6
        assert [lives(client) for source, client in clients if source == "127.0.0.9"] == [True] * 6 + [False] * 6
        assert "127.0.0.9 had 12 of 16 connections at port" in caplog.text
        assert "expected at most 10 together. 6 were ended since" in caplog.text
        for _, client in clients:
            client.close()


def test_who_has_spoken_stays_before_who_says_nothing() -> None:
    """Of one peer, too, however new: silent connections of the same user do not cost a controller its own."""
    with tcp() as listener, watching(listener.listening.getsockname()[1], 20) as watch:
        clients = [listener.connect() for _ in range(14)]
        for spoken in (5, 13):
            clients[spoken].sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        clients[12].sendall(b"PRI * HTTP/2.0\r\n")
        assert watch.look()
        assert [number for number, client in enumerate(clients) if not lives(client)] == [9, 10, 11, 12]
        for client in clients:
            client.close()


def test_what_a_server_can_carry_is_left_alone() -> None:
    """Up to half of all, whoever has them; connections elsewhere do not count."""
    with tcp() as listener, tcp() as other, watching(listener.listening.getsockname()[1], 20) as watch:
        clients = [listener.connect() for _ in range(10)] + [other.connect() for _ in range(10)]
        assert not watch.look()
        assert all(map(lives, clients))
        clients.append(listener.connect())
        assert watch.look()
        assert [lives(client) for client in clients] == [True] * 20 + [False]
        for client in clients:
            client.close()


def ends(monkeypatch: pytest.MonkeyPatch, peers: Sequence[str], most: int, admitted: Container[str] = ()) -> list[str]:
    """Whose connections end where these peers have one each time they are named, all of which have spoken."""
    every = [connections.AcceptedConnection(number, number, peer, True, (peer, number))
             for number, peer in enumerate(peers)]
    ended: list[str] = []
    monkeypatch.setattr(connections, "accepted", lambda at: iter(every))
    monkeypatch.setattr(connections, "end_connection", lambda connection: ended.append(connection.peer))
    monkeypatch.setattr(os, "listdir", lambda place: range(len(every)))
    with watching(1, most) as watch:
        for number, peer in enumerate(peers):
            if peer in admitted:
                watch.admit(f"ipv4:{peer}:{number}")
        assert watch.look() is bool(ended)
    return ended


JOB = [f"10.0.{number // 256}.{number % 256}" for number in range(256)]
STRANGERS = [f"10.9.{number // 256}.{number % 256}" for number in range(4000)]


@pytest.mark.parametrize(("peers", "most", "end"), [
    (16 * JOB + ["viewer"], 8192, 0),
    (2 * STRANGERS[:2048] + ["viewer"], 8192, 0),
    (["controller", *JOB], 512, 0),
    (16 * JOB + 100 * ["viewer"], 8192, 84),
    (8 * JOB + 4000 * ["viewer"], 8192, 1952),
])
def test_only_what_is_too_much_ends(monkeypatch: pytest.MonkeyPatch, peers: list[str], most: int, end: int) -> None:
    """One connection too many costs nobody else any: each keeps its first one, and as many as the others have."""
    assert ends(monkeypatch, peers, most) == ["viewer"] * end


def test_admitted_callers_keep_theirs_whoever_floods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers of thousands of addresses cost a job of many ranks none; a caller that is admitted cannot take all."""
    assert ends(monkeypatch, [*16 * JOB, *STRANGERS], 8192, JOB) == []
    ended = ends(monkeypatch, [*15 * JOB, *STRANGERS[:2000], *STRANGERS[:2000]], 8192, JOB)
    assert len(ended) == 2000
    assert not set(ended) & set(JOB)
    assert ends(monkeypatch, [*16 * JOB, *4000 * ["10.8.0.1"]], 8192, [*JOB, "10.8.0.1"]) == 3984 * ["10.8.0.1"]


def test_a_call_names_the_connection_that_stays() -> None:
    """By what gRPC calls its other end, of IPv4 and of IPv6; the connection's own are told from it."""
    for family, address, form in ((socket.AF_INET, "127.0.0.1", "ipv4:{}:{}"),
                                  (socket.AF_INET6, "::1", "ipv6:%5B{}%5D:{}")):
        with tcp(family, address) as listener, watching(listener.listening.getsockname()[1], 8) as watch:
            clients = [listener.connect(address) for _ in range(6)]
            watch.admit(form.format(*clients[5].getsockname()[:2]))
            watch.admit("unix:")
            assert watch.look()
            assert [lives(client) for client in clients] == [True, True, True, False, False, True]
            for client in clients:
                client.close()


def test_a_descriptor_that_is_another_files_by_now_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection may end between a look and its own end, and its number be given to another one."""
    with tcp() as listener, watching(listener.listening.getsockname()[1], 8) as watch:
        clients = [listener.connect() for _ in range(6)]
        numbers, now = {connection.fileno() for connection in listener.accepted}, os.fstat

        def then(number: int) -> os.stat_result:
            mode, inode, *rest = now(number)[:10]
            return os.stat_result((mode, inode + (number in numbers), *rest))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fstat", then)
            assert watch.look()
        assert all(map(lives, clients))
        assert watch.look()
        assert [lives(client) for client in clients] == [True] * 4 + [False] * 2
        for client in clients:
            client.close()


def test_a_network_of_ipv6_is_one_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One machine may have all its addresses."""
    monkeypatch.setattr(connections, "local_users", dict)
    with tcp(socket.AF_INET6, "::1") as listener, listener.connect("::1"):
        (one,) = connections.accepted(frozenset([listener.listening.getsockname()[1]]))
        assert one.peer == "::/64"


@pytest.mark.parametrize(("family", "address"), [
    (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::"), (socket.AF_UNIX, ""),
    (socket.AF_UNIX, "//")])
def test_peers_of_this_machine_are_users(
    family: int, address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On loopback all have one address, and at a unix socket none; the kernel says whose a connection is."""
    with contextlib.ExitStack() as stack:
        if family == socket.AF_UNIX:
            at: int | str = str(tmp_path / "socket")
            listening = stack.enter_context(socket.socket(family))
            listening.bind(str(at))
            listener = Listener(listening)
            at = f"{address}{at}"
        else:
            listener = stack.enter_context(tcp(family, address))
            at = int(listener.listening.getsockname()[1])
        watch = stack.enter_context(watching(at, 4))
        for _ in range(3):
            if address == "::":  # IPv4 at a socket of IPv6
                stack.enter_context(socket.create_connection(("127.0.0.1", int(at)), timeout=BOUND))
                listener.accepted.append(listener.listening.accept()[0])
            else:
                stack.enter_context(listener.connect(address))
        assert watch.look()
        assert f"user {os.getuid()} had 3 of 3 connections at" in caplog.text
        for connection in listener.accepted:
            connection.close()


@pytest.mark.parametrize(("soft", "hard", "wanted", "most", "raised"), [
    (64, 4096, 512, 512, 768), (1024, 4096, 512, 512, 1024), (300, 300, 512, 44, 300), (100, 100, 512, 16, 100),
    (1024, 4096, 8192, 3840, 4096),
])
def test_the_soft_limit_of_open_files_is_raised_as_far_as_needed(
    soft: int, hard: int, wanted: int, most: int, raised: int
) -> None:
    """No further than the hard one, and never lowered; what is left for connections is known."""
    program = ("import resource, sys; from softswitch.runtime import connections\n"
               f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
               f"print(connections.most({wanted}), *resource.getrlimit(resource.RLIMIT_NOFILE))")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=BOUND)
    assert done.stdout.split() == [str(most), str(raised), str(hard)]
    assert (f"expected room for {wanted} connections, got room for {most}" in done.stderr) == (most < wanted)
