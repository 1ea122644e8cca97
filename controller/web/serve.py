# SPDX-License-Identifier: Apache-2.0
"""The controller's HTTP server: metrics for Prometheus, and a page for people.

    GET /           the page (page.py)          /metrics    Prometheus' text format (metrics.py)
    GET /live       the page's content          /status     what `netfold status --json` prints

It is http.server of the standard library with a thread for each connection, so that drawing a large fabric does not
delay the controller's loop; only the status is read in that loop, once for all requests within MAX_AGE.  All requests
are read-only.  If the fabric has tokens, the viewer's (or the operator's) is the password, with any user name.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import ipaddress
import logging
import socket
import ssl
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from netfold.controller.jobs.callers import VIEWER, Callers
from netfold.controller.web import metrics, page
from netfold.fabric.graph import Fabric, FabricError
from netfold.rpc.certificates import Certificates
from netfold.wire.operator import Status

log = logging.getLogger("netfold.controller")

MAX_AGE: Final = 0.9
"""Seconds for which a status is reused for further requests."""
TIMEOUT: Final = 10.0
"""Seconds for reading a status, and for a client to send its request."""
MAX_CONNECTIONS: Final = 64
"""Connections at once, a thread for each; more are closed."""
RETRY: Final = 1.0
"""Seconds between two tries to listen, where the address is another controller's."""
POLL: Final = 0.1
"""Seconds between the server's checks whether it is to stop."""


class StatusPair(NamedTuple):
    """A status, the one before it, and the seconds in between."""

    before: Status
    now: Status
    seconds: float


class StatusCache:
    """Caches the last two statuses.  ``ask`` reads the switches; ``clock``: monotonic seconds."""

    def __init__(self, ask: Callable[[], Awaitable[Status]], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._busy = asyncio.Lock()
        self._last: tuple[float, Status] | None = None
        self._pair: StatusPair | None = None

    async def look(self) -> StatusPair:
        """The last two statuses; a new one is read unless the last is younger than MAX_AGE."""
        async with self._busy:
            if self._pair is None or self._last is None or self._clock() - self._last[0] >= MAX_AGE:
                status, now = await self._ask(), self._clock()
                then, before = self._last or (now - 1.0, status)
                self._last, self._pair = (now, status), StatusPair(before, status, now - then)
            return self._pair


class Web:
    """The HTTP server.  ``status`` is awaited in the event loop that calls `start`; with ``tls`` it is HTTPS."""

    def __init__(
        self, fabric: Fabric, status: Callable[[], Awaitable[Status]], callers: Callers, *,
        tls: Certificates | None = None,
    ) -> None:
        self._fabric = fabric
        self._tls = tls
        self._statuses = StatusCache(status)
        self._callers = callers
        self._server: _Server | None = None
        self._retries: asyncio.Task[None] | None = None
        self.url = ""
        """Where it listens; empty while it does not."""

    def start(self, address: str) -> str:
        """Listen at ``host:port`` (port 0: any free one) and return the URL.  Raises FabricError where that cannot be;
        but in a fabric with a standby it warns, returns an empty one, and tries again until it can: two controllers
        share the setting there, so that the address may still be the other one's, or of its machine alone."""
        try:
            self._listen(address)
        except FabricError as error:
            if self._fabric.standby is None:
                raise
            log.warning("%s Serving jobs without it, and trying again each %g s", error, RETRY)
            self._retries = asyncio.create_task(self._retry(address), name="page")
        return self.url

    async def _retry(self, address: str) -> None:
        while not self.url:
            await asyncio.sleep(RETRY)
            with contextlib.suppress(FabricError):
                self._listen(address)
        log.warning("page and metrics at %s", self.url)

    def _listen(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            self._server = _Server((host, int(port)), _Handler)
        except OSError as error:
            raise FabricError(f"fabric.metrics: cannot listen at {address}: {error.strerror or error}. Is the address "
                              "in use, or not of this machine?") from error
        self._server.web = self
        self._server.tls = None if self._tls is None else self._tls.context()
        self._server.look = lambda: asyncio.run_coroutine_threadsafe(self._statuses.look(), loop).result(TIMEOUT)
        threading.Thread(target=self._server.serve_forever, args=(POLL,), name="web", daemon=True).start()
        self.url = f"http{'s' if self._tls else ''}://{host}:{self._server.server_address[1]}"

    async def stop(self) -> None:
        """Stop listening and end the server's thread."""
        if self._retries is not None:
            self._retries.cancel()
            await asyncio.gather(self._retries, return_exceptions=True)
            self._retries = None
        if self._server is not None:
            await asyncio.to_thread(self._server.shutdown)
            self._server.server_close()
            self._server, self.url = None, ""

    def render(self, path: str, look: Callable[[], StatusPair]) -> tuple[str, bytes] | None:
        """Content type and body of a path; None for an unknown path."""
        match path:
            case "/":
                return "text/html; charset=utf-8", page.PAGE.encode()
            case "/live":
                return "text/html; charset=utf-8", page.live(self._fabric, *look()).encode()
            case "/status":
                return "application/json", msgspec.json.encode(look().now)
            case "/metrics":
                return metrics.CONTENT_TYPE, metrics.text(look().now)
        return None

    def allowed(self, authorization: str) -> bool:
        """Whether an Authorization header has a token that may look: as a Basic password with any user, or as
        Bearer."""
        kind, _, said = authorization.partition(" ")
        password = said.strip().encode()
        if kind.lower() == "basic":
            try:
                password = base64.b64decode(password, validate=True).partition(b":")[2]
            except binascii.Error:
                password = b""
        caller = self._callers.caller(password.decode(errors="replace"))
        return caller is not None and caller.scope in VIEWER


class _Server(ThreadingHTTPServer):
    web: Web
    look: Callable[[], StatusPair]
    tls: ssl.SSLContext | None
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.names = {"localhost", socket.gethostname().lower(), address[0].lower()}
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, handler)

    def ours(self, host: str) -> bool:
        """Whether a Host header names this server: by an address, or by a name that is ours.  A page of somebody else
        whose name was made to resolve to this address (DNS rebinding) sends that name."""
        name = urlsplit(f"//{host}").hostname or ""
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self.names
        return True

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("web: %s: %r", client_address, sys.exc_info()[1])

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer asks DNS for the name of its address, which may take long
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT
    server: _Server

    def setup(self) -> None:
        """Shake hands in the connection's own thread, so that a client that stops half-way holds up nobody."""
        if self.server.tls is not None:
            self.request.settimeout(TIMEOUT)
            self.request = self.server.tls.wrap_socket(self.request, server_side=True)
        super().setup()

    def finish(self) -> None:
        """Close the connection; with TLS it is another socket than the one that the server knows."""
        super().finish()
        if self.server.tls is not None:
            self.request.close()

    def do_GET(self) -> None:
        if problem := self._stranger():
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", f"{problem}\n".encode())
            return
        if not self.server.web.allowed(self.headers.get("Authorization", "")):
            self._answer(HTTPStatus.UNAUTHORIZED, "text/plain", b"the token of scope viewer is the password\n")
            return
        try:
            found = self.server.web.render(self.path.partition("?")[0], self.server.look)
        except Exception as error:
            log.warning("web: %s: %r", self.path, error)
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"no status: {error!r}\n".encode())
            return
        kind, body = found or ("text/plain", b"there are /, /live, /metrics and /status\n")
        self._answer(HTTPStatus.OK if found else HTTPStatus.NOT_FOUND, kind, body)

    def _stranger(self) -> str:
        """Why a browser that another page sent here is refused; empty for everybody else."""
        hosts, origin = self.headers.get_all("Host") or [], self.headers.get("Origin")
        try:
            if len(hosts) > 1 or not all(map(self.server.ours, hosts)):
                return (f"Host: expected an address, or one of {', '.join(sorted(self.server.names))}. Name others in "
                        "fabric.metrics")
            if not hosts and self.request_version != "HTTP/1.0":
                return "Host: expected one, as HTTP/1.1 has it"
            if origin is not None and urlsplit(origin).netloc.lower() != (hosts[0].lower() if hosts else ""):
                return "Origin: another site's page has no business here"
        except ValueError as error:  # such as an address in brackets that is none
            return f"Host: {error}"
        return ""

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Basic realm="NetFold"')
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("web: " + format, *args)
