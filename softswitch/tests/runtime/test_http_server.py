# SPDX-License-Identifier: Apache-2.0
"""The bounded HTTP server: clients that stand still, trickle, read nothing, or come in numbers."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from softswitch.runtime import http_server
from softswitch.runtime.http_server import BoundedHandler, BoundedServer
from switch_support.certificates import Authority

WITHIN = 10.0
BOUND = 30.0
"""Seconds for what comes at once, and for what must end."""
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Handler(BoundedHandler):
    """Answers at once; /known as a client that is known, /large with more than a connection holds, /wait when told."""

    server: Server

    def do_GET(self) -> None:
        if self.path == "/wait":
            with self.place.interruptible(self.server.interrupted.set):
                self.server.waits.set()
                self.server.interrupted.wait(BOUND)
        if self.path != "/":
            self.server.know(self.place, "known")
        body = bytes(64 << 20) if self.path == "/large" else b"fine"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


class Server(BoundedServer):
    """A server whose time the test turns on."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0.0
        self.waits, self.interrupted = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), Handler, places=4, within=WITHIN, clock=lambda: self.now, **settings)

    def connect(self, data: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
        """A connection that has sent something, from this address."""
        connection = socket.create_connection(self.server_address[:2], timeout=BOUND, source_address=(source, 0))
        connection.sendall(data)
        return connection

    def status(self, data: bytes = GET) -> bytes:
        """The status line's number that a request gets; empty where the connection ends without."""
        with self.connect(data) as connection, contextlib.suppress(ConnectionResetError):
            return connection.recv(12)[9:]
        return b""


@contextlib.contextmanager
def serving(**settings: Any) -> Iterator[Server]:
    """A running server."""
    with Server(**settings) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ended(connection: socket.socket) -> bool:
    """True if the server has ended a connection, of which it read everything; waits until it has."""
    with connection:
        while connection.recv(1 << 20):
            pass
    return True


def test_who_stands_still_makes_room_for_who_comes() -> None:
    """However many say nothing or half of a request: a new one is served at once, and the oldest one has gone."""
    with serving() as server:
        held = [server.connect(data) for data in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost:", b"\x16\x03")]
        assert server.status() == b"200"
        assert ended(held[0])
        held[-2].sendall(b" localhost\r\n\r\n")
        assert held[-2].recv(12)[9:] == b"200"
        for connection in held[1:]:
            connection.close()


def test_one_address_takes_no_place_of_others() -> None:
    """However many connections it opens, whether it is known or not: its own oldest one makes room for the next."""
    with serving() as server:
        operator = server.connect(b"GET / HTTP/1.1\r\n", "127.0.0.2")
        flood = [server.connect(source="127.0.0.9") for _ in range(9)]
        assert all(ended(one) for one in flood[:6])
        operator.sendall(b"Host: localhost\r\n\r\n")
        assert operator.recv(12)[9:] == b"200"
        for connection in (operator, *flood[6:]):
            connection.close()


def test_strangers_take_no_place_of_those_who_are_known() -> None:
    """A client that is known keeps its place, however many strangers come, until more come who are known."""
    with serving() as server:
        waiting = server.connect(GET.replace(b"/", b"/wait", 1))
        assert server.waits.wait(BOUND)
        server.interrupted.clear()
        known = [server.connect(GET.replace(b"/", b"/large", 1)) for _ in range(4)]
        assert all(one.recv(12)[9:] == b"200" for one in known)
        held = [server.connect() for _ in range(9)]
        assert all(ended(one) for one in held[:4])
        assert server.status(GET.replace(b"/", b"/known", 1)) == b"200"
        assert len(known[1].recv(1 << 20)) > 0
        for connection in (waiting, *known, *held[4:]):
            connection.close()


def test_a_byte_now_and_then_does_not_prolong_a_connection() -> None:
    """All of request and answer has so many seconds, also for who does not read, and the answer that it waits for is
    interrupted."""
    with serving() as server:
        trickle = server.connect(b"G")
        deaf = server.connect(GET.replace(b"/", b"/large", 1))
        waiting = server.connect(GET.replace(b"/", b"/wait", 1))
        assert server.waits.wait(BOUND)
        assert deaf.recv(12)[9:] == b"200"
        server.now = WITHIN - 1
        trickle.sendall(b"E")
        assert server.status() == b"200"
        assert not server.interrupted.is_set()
        server.now = WITHIN + 1
        assert ended(trickle)
        assert server.interrupted.wait(BOUND)
        with deaf:
            assert len(deaf.recv(1 << 26, socket.MSG_WAITALL)) < 64 << 20
        waiting.close()


def test_a_handshake_that_stops_half_way_ends_and_holds_up_nobody(tmp_path: Path) -> None:
    """With TLS, too, the connection of a client that says nothing goes when its time is over."""
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("page"))
    with serving(tls=context) as server:
        silent = server.connect()
        trusting = ssl.create_default_context(cafile=authority.certificate)
        with trusting.wrap_socket(server.connect(), server_hostname="localhost") as other:
            other.sendall(GET)
            assert other.recv(12)[9:] == b"200"
        server.now = WITHIN + 1
        assert ended(silent)


def test_a_request_has_a_bound() -> None:
    """Longer requests are not even read: many connections hold little memory."""
    long = b"".join(b"A: " + 1000 * b"b" + b"\r\n" for _ in range(40))
    assert len(long) > http_server.MAX_REQUEST
    with serving() as server:
        assert server.status(GET[:-2] + long[: http_server.MAX_REQUEST // 2].rpartition(b"\n")[0] + b"\n\r\n") == b"200"
        assert server.status(GET[:-2] + long + b"\r\n") == b""
