# SPDX-License-Identifier: Apache-2.0
"""The controller's HTTP server: metrics for Prometheus, and a page for people (answers.py says what there is).

It has a thread for each connection (softswitch/runtime/http_server.py), so that drawing a large fabric does not delay
the controller's loop; only what comes from the controller runs in that loop.  Scopes and rates are those of the gRPC
services (jobs/callers.py).  If the fabric has tokens, the viewer's or the operator's is the password, with any user
name.  If it has none, everybody who reaches the page is a viewer, and whoever has its address from the launcher, with
the key in it, is the operator: a page is reached by more people than the unix socket of gRPC.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import ipaddress
import logging
import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec

from netfold.controller.jobs.callers import OPERATOR, VIEWER, Caller, Callers
from netfold.controller.web import listeners
from netfold.controller.web.answers import Answers, Sources, WebAnswer
from netfold.fabric.graph import FabricError
from netfold.rpc.certificates import Certificates
from netfold.rpc.rpc import Code, Refusal
from softswitch.runtime.http_server import POLL, BoundedHandler, BoundedServer

log = logging.getLogger("netfold.controller")

TIMEOUT: Final = 10.0
"""Seconds of a connection, from its acceptance to the end of its answer."""
MAX_CONNECTIONS: Final = 32
"""Connections at once of operators, of viewers, and of those who have not said who they are; a thread serves each, and
one more takes the place of the oldest."""
READ_WITHIN: Final = 9.0
"""Seconds for reading a status: the reason why there is none comes before the connection ends."""
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
REFUSALS: Final = {
    Code.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED, Code.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    Code.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS, Code.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Code.FAILED_PRECONDITION: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""HTTP's status for each gRPC code; others are 400."""
OPERATORS: Final = frozenset({"/slots.json", "/faults.json", "/fault", "/packet"})
"""Paths for operators alone, as the gRPC method Slots and the launcher's fault service are; the others are for
viewers."""


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
        self._looks: asyncio.Task[None] | None = None
        self.url = ""
        """Its address; empty while it does not listen."""

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
        self._looks = asyncio.create_task(self._answers.look(), name="samples")
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
            self._server = _Server((host, int(port)), _Handler, places=MAX_CONNECTIONS, within=TIMEOUT,
                                   listener=listeners.adopted(address),
                                   tls=None if self._tls is None else self._tls.context())
        except OSError as error:
            raise FabricError(f"fabric.metrics: cannot listen at {address}: {error.strerror or error}. Is the address "
                              "in use, or not of this machine?") from error
        self._server.web = self
        self._server.loop = loop
        threading.Thread(target=self._server.serve_forever, args=(POLL,), name="web", daemon=True).start()
        self.url = f"http{'s' if self._tls else ''}://{host}:{self._server.server_address[1]}"

    async def stop(self) -> None:
        """Stop listening and end the server's thread."""
        tasks = [task for task in (self._retries, self._looks) if task is not None]
        self._retries = self._looks = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
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
            return refused(refusal)

    def caller(self, authorization: str, path: str, where: str) -> Caller:
        """The caller of a path at an address, by the token or key in an Authorization header: a Basic password with any
        user, or Bearer.  Raises Refusal for whoever may not, or asks too often."""
        kind, _, said = authorization.partition(" ")
        password = said.strip().encode()
        if kind.lower() == "basic":
            try:
                password = base64.b64decode(password, validate=True).partition(b":")[2]
            except binascii.Error:
                password = b""
        if self._callers.exist:
            caller = self._callers.caller(password.decode(errors="replace"))
        else:
            caller = Caller("operator" if self._faults.knows(password) else "viewer", self._callers.default)
        self._callers.check(path, caller, OPERATOR if path in OPERATORS else VIEWER,
                            got="one that this controller does not know" if password else "none",
                            limited=True, where="" if self._callers.exist else where)
        assert caller is not None
        return caller


def refused(refusal: Refusal) -> WebAnswer:
    """The answer that says why not, and where the operator's key is."""
    hint = ("; where the fabric has no tokens, open the page by the whole address that its launcher has printed, with "
            "the key in it" if refusal.code is Code.PERMISSION_DENIED else "")
    return WebAnswer(REFUSALS.get(refusal.code, HTTPStatus.BAD_REQUEST), "text/plain", f"{refusal}{hint}\n".encode())


class _Server(BoundedServer):
    web: Web
    loop: asyncio.AbstractEventLoop

    def __init__(self, address: tuple[str, int], handler: type[BoundedHandler], **settings: Any) -> None:
        self.names = {"localhost", socket.gethostname().lower(), address[0].lower()}
        super().__init__(address, handler, **settings)

    def ours(self, host: str) -> bool:
        """True if a Host header names this server: by an address, or by one of its names.  A foreign page whose name
        was made to resolve to this address (DNS rebinding) sends that foreign name."""
        name = urlsplit(f"//{host}").hostname or ""
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self.names
        return True


class _Handler(BoundedHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _caller(self) -> Caller | None:
        """The caller; None: the request is refused, and answered."""
        if problem := self._stranger():
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", f"{problem}\n".encode())
            return None
        if len(self.path) > MAX_PATH:
            self._answer(HTTPStatus.REQUEST_URI_TOO_LONG, "text/plain", f"expected at most {MAX_PATH} bytes\n".encode())
            return None
        try:
            caller = self.server.web.caller(self.headers.get("Authorization", ""), self.path.partition("?")[0],
                                            self.place.address)
        except Refusal as refusal:
            self._answer(*refused(refusal))
            return None
        self.server.know(self.place, caller.scope)
        return caller

    def do_POST(self) -> None:
        """Only an operator's, and only such as no other site's page can make a browser send: with a type of content
        that needs the browser to ask before, which is never granted."""
        if self._caller() is None:
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
        except CancelledError:  # the connection has lost its place
            return
        except Exception as error:
            log.warning("web: %s: %r", self.path, error)
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"no status: {error!r}\n".encode())
            return
        self._answer(*found)

    def _run(self, work: Awaitable[Any]) -> Any:
        """The result of a coroutine that runs in the controller's loop."""
        async def waited() -> Any:
            return await work

        result = asyncio.run_coroutine_threadsafe(waited(), self.server.loop)
        with self.place.interruptible(result.cancel):
            try:
                return result.result(READ_WITHIN)
            except TimeoutError:
                result.cancel()
                raise

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
        if status is HTTPStatus.TOO_MANY_REQUESTS:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("web: " + format, *args)
