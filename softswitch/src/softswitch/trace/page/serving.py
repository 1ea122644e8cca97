# SPDX-License-Identifier: Apache-2.0
"""Serves the page of a running switch, with the packets as they come: `softswitch run --page 127.0.0.1:8080`.

    recent = Recent()                  # Settings(trace=recent): a switch adds its packets, from threads of its own
    with serve(recent, "127.0.0.1:8080") as url:
        ...

Who reads the page sees frames and the program's source.  So it listens on loopback addresses alone, and answers only
requests that name such an address: a web page of another site cannot read it by a name of its own (DNS rebinding).  It
gives both only to those who have the key in the address that `serve` gives, drawn anew each time: other users of the
machine reach its loopback, too.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import secrets
import threading
from collections import deque
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from softswitch.runtime.http_server import POLL, BoundedHandler, BoundedServer
from softswitch.trace.page import packet_json, program_json, render
from softswitch.trace.program import TracedProgram
from softswitch.trace.recording import KEEP_SHOWN, Following, Lost
from softswitch.trace.steps import PacketTrace

KEPT = 500
"""Most packets that the page can show."""
KEPT_BYTES = 32 << 20
"""Most bytes of their JSON, about."""
MAX_CLIENTS = 16
"""Most requests served at the same time, separately for those with the key and for all others; one more replaces the
oldest."""
CLIENT_WITHIN = 10.0
"""Seconds for a request, up to the end of its answer."""
KEY_BYTES = 24
"""Random bytes of the key in the page's address."""
_PER_ANSWER = 100


class PageError(Exception):
    """The page cannot be served; the message says why.

    Remedy: give --page a loopback address with a free port; from elsewhere: ssh -L.
    """


class Recent(Following):
    """The last packets of a switch and the program that they passed."""

    def __init__(self, *, kept: int = KEPT, kept_bytes: int = KEPT_BYTES, keep: int = KEEP_SHOWN) -> None:
        """kept: packets, and the bytes of their JSON, that are remembered; keep: bytes of each frame."""
        super().__init__(keep=keep)
        self._lock = threading.Lock()
        self._kept, self._kept_bytes = kept, kept_bytes
        self._program: TracedProgram | None = None
        self._source = "null"
        """The program as JSON."""
        self._programs = 0
        self._packets: deque[tuple[int, str]] = deque()
        self._bytes = 0
        self._next = 0
        self._lost = 0

    def put(self, found: PacketTrace | Lost) -> None:
        """Keeps a packet, the first of another program instead of all of the one before; counts what was lost."""
        if isinstance(found, PacketTrace):
            self._add(found)
        elif found.frames is not None:
            with self._lock:
                self._lost += found.frames

    def _add(self, trace: PacketTrace) -> None:
        text = json.dumps(packet_json(trace))
        with self._lock:
            if trace.program is not self._program:
                self._program, self._source = trace.program, json.dumps(program_json(trace.program))
                self._programs += 1
                self._packets.clear()
                self._bytes = 0
            self._packets.append((self._next, text))
            self._next += 1
            self._bytes += len(text)
            while len(self._packets) > self._kept or (self._bytes > self._kept_bytes and len(self._packets) > 1):
                self._bytes -= len(self._packets.popleft()[1])

    def since(self, after: int, program: int) -> str:
        """The packets after packet number `after`, as JSON. It includes the program, unless the page already has it,
        according to the number `program` from an earlier answer."""
        with self._lock:
            known = program == self._programs
            new = [text for number, text in self._packets if number > after or not known][-_PER_ANSWER:]
            head = {"after": self._next - 1, "running": self._programs, "lost": self._lost}
            source = "null" if known else self._source
        return f'{json.dumps(head)[:-1]}, "program": {source}, "packets": [{", ".join(new)}]}}'


class _Handler(BoundedHandler):
    recent: ClassVar[Recent]
    page: ClassVar[bytes]
    key: ClassVar[str]
    server_version, sys_version = "softswitch", ""

    def do_GET(self) -> None:
        if not _is_local(self.headers.get("Host", "")):
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "expected a loopback address in the Host header\n")
            return
        try:
            url = urlsplit(self.path)
        except ValueError as error:
            self._answer(HTTPStatus.BAD_REQUEST, "text/plain", f"{error}\n")
            return
        if url.path == "/":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", self.page)
        elif url.path == "/packets" and not self._has_key():
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "open the page by the whole address that the switch has "
                         "printed, with the key in it\n")
        elif url.path == "/packets":
            self.server.know(self.place, "reader")
            try:
                query = parse_qs(url.query, max_num_fields=8)
                after, program = (int(query[name][0]) for name in ("after", "program"))
            except (KeyError, ValueError):
                self._answer(HTTPStatus.BAD_REQUEST, "text/plain", "expected after=NUMBER&program=NUMBER\n")
                return
            self._answer(HTTPStatus.OK, "application/json", self.recent.since(after, program))
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there are / and /packets\n")

    def _has_key(self) -> bool:
        said = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return hmac.compare_digest(said.encode(errors="replace"), self.key.encode())

    def _answer(self, status: HTTPStatus, kind: str, text: str | bytes) -> None:
        data = text if isinstance(text, bytes) else text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), "Cache-Control": "no-store",
                            "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"}.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: the page asks every second."""


def _is_local(host: str) -> bool:
    """True if HOST or HOST:PORT names this machine's loopback."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT, a loopback address. Raises PageError."""
    try:
        url = urlsplit(f"//{text}")
        host, port = url.hostname or "", url.port
    except ValueError:
        host, port = "", None
    if port is None or not host:
        raise PageError(f"--page {text}: expected HOST:PORT, for example 127.0.0.1:8080")
    if not _is_local(text):
        raise PageError(f"--page {text}: expected a loopback address, such as 127.0.0.1:{port}: the page shows frames "
                        "to whoever reads it")
    return ("127.0.0.1" if host == "localhost" else host), port


@contextlib.contextmanager
def serve(recent: Recent, address: str) -> Iterator[str]:
    """Serves the page at HOST:PORT (port 0: any), gives its URL with the key, and ends with the context. Raises
    PageError."""
    host, port = parse_address(address)
    key = secrets.token_urlsafe(KEY_BYTES)
    page = render(None, [], live=True).encode()
    handler = type("Handler", (_Handler,), {"recent": recent, "page": page, "key": key})
    try:
        server = BoundedServer((host, port), handler, places=MAX_CLIENTS, within=CLIENT_WITHIN)
    except (OSError, OverflowError) as error:
        raise PageError(f"--page {address}: cannot listen there: {error}") from None
    thread = threading.Thread(target=server.serve_forever, args=(POLL,), name="page", daemon=True)
    thread.start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_address[1]}/#key={key}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
