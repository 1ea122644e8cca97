# SPDX-License-Identifier: Apache-2.0
"""The controller's HTTP server: metrics for Prometheus, and a page for people (answers.py says what there is).

It is http.server of the standard library with a thread for each connection, so that drawing a large fabric does not
delay the controller's loop; only what comes from the controller runs in that loop.  If the fabric has tokens, the
viewer's (or the operator's) is the password, with any user name.  If it has none, everybody who reaches the page may
look, and whoever has its address from the launcher, with the key in it, may inject faults and record packets.
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
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec

from netfold.controller.jobs.callers import OPERATOR, VIEWER, Caller, Callers
from netfold.controller.web import listeners
from netfold.controller.web.answers import Answers, Sources, WebAnswer
from netfold.fabric.graph import FabricError
from netfold.rpc.certificates import Certificates
from netfold.rpc.rpc import Code, Refusal

log = logging.getLogger("netfold.controller")

TIMEOUT: Final = 10.0
"""Seconds for reading a status, and for a client to send its request."""
MAX_CONNECTIONS: Final = 64
"""Connections at once, a thread for each; more are closed."""
RETRY: Final = 1.0
"""Seconds between two tries to listen, where the address is another controller's."""
MAX_PATH: Final = 2048
"""Most bytes of a request's path and query."""
MAX_BODY: Final = 4096
"""Most bytes of a request's body."""
MAX_FIELDS: Final = 16
"""Most fields of a query."""
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
                               "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
                               "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Headers of every answer: whatever a job, switch or host is called, nothing of it runs as script, nothing is loaded
from elsewhere, and no other site shows the page as its own."""
REFUSALS: Final = {Code.NOT_FOUND: HTTPStatus.NOT_FOUND, Code.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE}
POLL: Final = 0.1
"""Seconds between the server's checks whether it is to stop."""


class Web:
    """The HTTP server.  What ``sources`` offers runs in the event loop that calls `start`; with ``tls`` it is HTTPS."""

    def __init__(self, sources: Sources, callers: Callers, *, tls: Certificates | None = None) -> None:
        self._fabric = sources.fabric
        self._tls = tls
        self._answers = Answers(sources)
        self._callers = callers
        self._faults = sources.faults
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
            self._server = _Server((host, int(port)), _Handler, listeners.adopted(address))
        except OSError as error:
            raise FabricError(f"fabric.metrics: cannot listen at {address}: {error.strerror or error}. Is the address "
                              "in use, or not of this machine?") from error
        self._server.web = self
        self._server.tls = None if self._tls is None else self._tls.context()
        self._server.loop = loop
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

    def post(self, target: str, body: bytes) -> WebAnswer:
        """The answer to an operator's POST."""
        try:
            return self._answers.post(target.partition("?")[0], body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return WebAnswer(HTTPStatus.BAD_REQUEST, "text/plain", f"{error}\n".encode())

    def answer(self, target: str, run: Callable[[Awaitable[Any]], Any], *, operator: bool) -> WebAnswer:
        """The answer to a GET of a path with its query; see `Answers.get`."""
        path, _, query = target.partition("?")
        try:
            said = dict(parse_qsl(query, max_num_fields=MAX_FIELDS))
            return self._answers.get(path, said, run, operator=operator)
        except ValueError as error:  # BadRequest, and what parse_qsl raises
            return WebAnswer(HTTPStatus.BAD_REQUEST, "text/plain", f"{error}\n".encode())
        except Refusal as refusal:
            return WebAnswer(REFUSALS.get(refusal.code, HTTPStatus.BAD_REQUEST), "text/plain", f"{refusal}\n".encode())

    def caller(self, authorization: str) -> Caller | None:
        """Who may look, by the token or key in an Authorization header: as a Basic password with any user, or as
        Bearer; None: nobody who may."""
        kind, _, said = authorization.partition(" ")
        password = said.strip().encode()
        if kind.lower() == "basic":
            try:
                password = base64.b64decode(password, validate=True).partition(b":")[2]
            except binascii.Error:
                password = b""
        if not self._callers.exist and self._faults.is_there and not self._faults.knows(password):
            return Caller("viewer", self._callers.default)
        caller = self._callers.caller(password.decode(errors="replace"))
        return caller if caller is not None and caller.scope in VIEWER else None


class _Server(ThreadingHTTPServer):
    web: Web
    loop: asyncio.AbstractEventLoop
    tls: ssl.SSLContext | None
    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], listener: socket.socket | None
    ) -> None:
        self.names = {"localhost", socket.gethostname().lower(), address[0].lower()}
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, handler, bind_and_activate=listener is None)
        if listener is not None:  # from the launcher, outside of this controller's network
            self.socket.close()
            self.socket = listener
            self.server_address = listener.getsockname()
            self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

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

    def _caller(self) -> Caller | None:
        """Who asks; None: the request is refused, and answered."""
        if problem := self._stranger():
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", f"{problem}\n".encode())
            return None
        caller = self.server.web.caller(self.headers.get("Authorization", ""))
        if caller is None:
            self._answer(HTTPStatus.UNAUTHORIZED, "text/plain", b"the token of scope viewer is the password\n")
        elif len(self.path) > MAX_PATH:
            self._answer(HTTPStatus.REQUEST_URI_TOO_LONG, "text/plain", f"expected at most {MAX_PATH} bytes\n".encode())
            return None
        return caller

    def do_POST(self) -> None:
        """Only an operator's, and only such as no other site's page can make a browser send: with a type of content
        that needs the browser to ask before, which is never granted."""
        self.close_connection = True  # what is left of the body is no request
        caller = self._caller()
        if caller is None:
            return
        if caller.scope not in OPERATOR:
            self._answer(HTTPStatus.FORBIDDEN, "text/plain",
                         b"expected the token of scope operator; where the fabric has none, open the page by the whole "
                         b"address that its launcher has printed, with the key in it\n")
            return
        if self.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
            self._answer(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "text/plain", b"Content-Type: expected application/json\n")
            return
        said = self.headers.get_all("Content-Length") or []
        if len(said) != 1 or not (said[0].isascii() and said[0].isdecimal()) or "Transfer-Encoding" in self.headers:
            self._answer(HTTPStatus.LENGTH_REQUIRED, "text/plain", b"Content-Length: expected one\n")
            return
        if len(said[0]) > 9 or int(said[0]) > MAX_BODY:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "text/plain",
                         f"expected at most {MAX_BODY} bytes\n".encode())
            return
        body = self.rfile.read(int(said[0]))
        if len(body) == int(said[0]):
            self._answer(*self.server.web.post(self.path, body))

    def do_GET(self) -> None:
        caller = self._caller()
        if caller is None:
            return
        try:
            found = self.server.web.answer(self.path, self._run, operator=caller.scope in OPERATOR)
        except Exception as error:
            log.warning("web: %s: %r", self.path, error)
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"no status: {error!r}\n".encode())
            return
        self._answer(*found)

    def _run(self, work: Awaitable[Any]) -> Any:
        """The result of a coroutine that runs in the controller's loop."""
        async def waited() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(waited(), self.server.loop).result(TIMEOUT)

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
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("web: " + format, *args)
