# SPDX-License-Identifier: Apache-2.0
"""Browsers that another site's page has sent to ours, and clients that hold connections open."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from netfold.controller.web import serve
from support.control.controller import BOUND
from support.control.jobs import rig

ANYWHERE = "127.0.0.1:0"
REQUESTS = {
    "our address": (b"GET /live.json HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n", 200),
    "localhost": (b"GET /live.json HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n", 200),
    "an address behind a forward": (b"GET /live.json HTTP/1.1\r\nHost: 10.1.2.3:8080\r\n\r\n", 200),
    "IPv6": (b"GET /live.json HTTP/1.1\r\nHost: [::1]:{port}\r\n\r\n", 200),
    "no port": (b"GET /live.json HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
    "HTTP/1.0": (b"GET /live.json HTTP/1.0\r\n\r\n", 200),
    "our own page": (b"GET /status HTTP/1.1\r\nHost: localhost:{port}\r\nOrigin: http://localhost:{port}\r\n\r\n", 200),
    "rebound name": (b"GET /status HTTP/1.1\r\nHost: evil.example:{port}\r\n\r\n", 421),
    "rebound name for metrics": (b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
    "name like ours": (b"GET /status HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n", 421),
    "name like an address": (b"GET /status HTTP/1.1\r\nHost: 127.0.0.1.nip.example\r\n\r\n", 421),
    "a user before the name": (b"GET /status HTTP/1.1\r\nHost: localhost@evil.example\r\n\r\n", 421),
    "two of them": (b"GET /status HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 421),
    "none": (b"GET /status HTTP/1.1\r\n\r\n", 421),
    "empty": (b"GET /status HTTP/1.1\r\nHost:\r\n\r\n", 421),
    "no address in brackets": (b"GET /status HTTP/1.1\r\nHost: [evil]\r\n\r\n", 421),
    "no text": (b"GET /status HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n", 421),
    "another site": (b"GET /status HTTP/1.1\r\nHost: localhost:{port}\r\nOrigin: http://evil.example\r\n\r\n", 421),
    "a page from a file": (b"GET /status HTTP/1.1\r\nHost: localhost:{port}\r\nOrigin: null\r\n\r\n", 421),
    "another port of ours": (b"GET /status HTTP/1.1\r\nHost: localhost:2\r\nOrigin: http://localhost:1\r\n\r\n", 421),
}


def ask(port: int, data: bytes) -> bytes:
    """Send bytes and return what comes back until the status line is there."""
    with socket.create_connection(("127.0.0.1", port), timeout=BOUND) as connection:
        connection.sendall(data.replace(b"{port}", str(port).encode()))
        answer = b""
        while b"\r\n" not in answer and (more := connection.recv(4096)):
            answer += more
        return answer


@pytest.mark.parametrize("name", REQUESTS)
async def test_only_our_names_are_served(name: str, tmp_path: Path) -> None:
    """Addresses and our own names; a name of somebody else that leads here is DNS rebinding, and refused."""
    data, status = REQUESTS[name]
    async with rig(tmp_path, metrics=ANYWHERE) as r:
        port = int(r.controller.page.rpartition(":")[2])
        answer = await asyncio.to_thread(ask, port, data)
        assert answer.split()[1] == str(status).encode()


async def test_a_connection_has_one_request(tmp_path: Path) -> None:
    """The answer says so and is the last; what was sent behind it is not served."""
    async with rig(tmp_path, metrics=ANYWHERE) as r:
        port = int(r.controller.page.rpartition(":")[2])

        def twice() -> bytes:
            with socket.create_connection(("127.0.0.1", port), timeout=BOUND) as connection:
                connection.sendall(2 * b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = b""
                with contextlib.suppress(ConnectionResetError):  # what it did not read is refused
                    while more := connection.recv(1 << 16):
                        answer += more
                return answer

        answer = await asyncio.to_thread(twice)
        assert answer.count(b"HTTP/1.1 200") == 1
        assert b"\r\nConnection: close\r\n" in answer


async def test_connections_that_trickle_keep_nobody_from_the_page(tmp_path: Path) -> None:
    """More of them than there are places, each with a part of a request: who asks is answered at once."""
    async with rig(tmp_path, metrics=ANYWHERE) as r:
        port = int(r.controller.page.rpartition(":")[2])
        with contextlib.ExitStack() as stack:
            for _ in range(3 * serve.MAX_CONNECTIONS):
                held = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=BOUND))
                held.sendall(b"G")
            assert (await asyncio.to_thread(ask, port, REQUESTS["localhost"][0])).split()[1] == b"200"
