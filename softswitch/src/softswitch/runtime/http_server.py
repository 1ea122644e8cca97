# SPDX-License-Identifier: Apache-2.0
"""An HTTP server that its clients cannot take from each other: the standard library's, with bounds.

A thread serves each connection, and each connection has one request.  It has `within` seconds from its acceptance to
the end of its answer, however it spends them: a byte now and then, a handshake that stops half-way, an answer that it
does not read.  Each kind of clients has `places`: those who have not said who they are, and those of each name that
`BoundedServer.know` is told.  Where all places of a kind are taken, one more takes that of the oldest one from the
address that has most.  So who holds connections open keeps nobody out, strangers take nothing from those who are known,
and one address floods out itself alone.
"""

from __future__ import annotations

import contextlib
import io
import logging
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer
from typing import Any, Final

from softswitch.runtime.connections import network

log = logging.getLogger(__name__)

POLL: Final = 0.1
"""Seconds between two checks for overdue connections and for the end of the server."""
BACKLOG: Final = 64
"""Most connections that wait to be accepted."""
MAX_REQUEST: Final = 32 << 10
"""Most bytes of a request with its body: 64 connections hold at most 2 MiB."""


class ConnectionPlace:
    """The place of one connection at the server."""

    def __init__(self, connection: socket.socket, since: float, address: str) -> None:
        self.since = since
        self.address = network(address)
        self.kind = ""
        """The kind of place that it holds; empty: one of the places of clients that have not identified themselves."""
        self._connection = connection.dup()  # with TLS, the handler reads from another object than the server knows
        self.ended = False
        self._interrupt: Callable[[], object] = bool

    def end(self) -> None:
        """End the connection, which wakes up the thread that reads from it or writes to it."""
        self.ended = True
        with contextlib.suppress(OSError):  # the client has gone already
            self._connection.shutdown(socket.SHUT_RDWR)
        self._interrupt()

    @contextlib.contextmanager
    def interruptible(self, interrupt: Callable[[], object]) -> Iterator[None]:
        """Call ``interrupt`` where the place is lost, while its thread waits for something else than the connection."""
        self._interrupt = interrupt
        if self.ended:
            interrupt()
        yield
        self._interrupt = bool

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()


class BoundedServer(HTTPServer):
    """Serves the requests of one listener."""

    request_queue_size = BACKLOG

    def __init__(
        self, address: tuple[str, int], handler: type[BoundedHandler], *, places: int, within: float,
        listener: socket.socket | None = None, tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Listens.  Raises OSError and OverflowError where it cannot.

        places    connections of one kind of clients at the same time
        within    seconds of each
        listener  a socket that listens already; None: one at ``address``
        tls       makes it HTTPS
        """
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.tls = tls
        self.within = within
        self._handler = handler
        self._most = places
        self._clock = clock
        self._lock = threading.Lock()
        self._places: dict[ConnectionPlace, None] = {}
        """The connections of each kind, oldest first."""
        super().__init__(address, handler, bind_and_activate=listener is None)
        if listener is not None:
            self.socket.close()
            self.socket = listener
            self._take_name()

    def server_bind(self) -> None:
        """Bind the listener.  HTTPServer asks DNS for the name of its address, which may take long."""
        TCPServer.server_bind(self)
        self._take_name()

    def _take_name(self) -> None:
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a new connection a place and a thread."""
        place = None
        try:
            place = ConnectionPlace(request, self._clock(), str(client_address[0]))
            self.know(place, "")
            threading.Thread(target=self._serve, args=(request, client_address, place), name="web", daemon=True).start()
        except (OSError, RuntimeError) as error:  # no descriptor or no thread is free
            log.warning("web: a connection of %s was closed: %s", client_address[0], error)
            self._leave(request, place)

    def know(self, place: ConnectionPlace, kind: str) -> None:
        """Give a client a place among those of its kind, of which one may have to go: the oldest of the address that
        has most, with this one."""
        with self._lock:
            if place.ended:
                return
            self._places.pop(place, None)
            alike = [one for one in self._places if one.kind == kind]
            if len(alike) >= self._most:
                had = Counter(one.address for one in (*alike, place))
                self._end(max(alike, key=lambda one: had[one.address]))  # the first of them is the oldest
            place.kind = kind
            self._places[place] = None

    def _serve(self, request: Any, client_address: Any, place: ConnectionPlace) -> None:
        try:
            self._handler(request, client_address, self, place)
        except Exception as error:  # a client that goes away or stands still is nobody's mistake here
            log.debug("web: %s: %r", client_address, error)
        finally:
            self._leave(request, place)

    def _leave(self, request: Any, place: ConnectionPlace | None) -> None:
        self.shutdown_request(request)
        if place is not None:
            with self._lock:
                self._places.pop(place, None)
                place.close()

    def service_actions(self) -> None:
        """End what is overdue; called every POLL seconds, and after each accepted connection."""
        overdue = self._clock() - self.within
        with self._lock:
            for place in [place for place in self._places if place.since < overdue]:
                self._end(place)

    def _end(self, place: ConnectionPlace) -> None:
        self._places.pop(place, None)
        place.end()

    def server_close(self) -> None:
        """Stop listening, and end all connections."""
        super().server_close()
        with self._lock:
            for place in list(self._places):
                self._end(place)


class BoundedHandler(BaseHTTPRequestHandler):
    """Serves the one request of a connection."""

    server: BoundedServer

    def __init__(self, request: Any, client_address: Any, server: BoundedServer, place: ConnectionPlace) -> None:
        self.place = place
        super().__init__(request, client_address, server)

    def setup(self) -> None:
        """Shake hands in the connection's own thread, so that a client that stops half-way holds up nobody."""
        self.request.settimeout(self.server.within)
        if self.server.tls is not None:
            self.request = self.server.tls.wrap_socket(self.request, server_side=True)
        super().setup()
        self.rfile = io.BufferedReader(_Limited(self.rfile, MAX_REQUEST))

    def handle(self) -> None:
        """Serve one request, and no other on the same connection."""
        self.close_connection = True
        self.handle_one_request()

    def finish(self) -> None:
        """Close the connection; with TLS it is another socket than the one that the server knows."""
        super().finish()
        if self.server.tls is not None:
            self.request.close()

    def send_response(self, code: int, message: str | None = None) -> None:
        """Begin an answer, the only one of this connection."""
        super().send_response(code, message)
        self.send_header("Connection", "close")


class _Limited(io.RawIOBase):
    """A file that cannot be read beyond so many bytes: its end would be taken for that of the request."""

    def __init__(self, file: io.BufferedIOBase, left: int) -> None:
        self._file = file
        self._left = left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            raise ConnectionAbortedError(f"a request of more than {MAX_REQUEST} bytes")
        data = self._file.read1(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()
