# SPDX-License-Identifier: Apache-2.0
"""Notices that a controller hangs: none of its connections ends then, and no call is answered.

A rank leaves it only where another controller serves already: a standby that has taken over listens at its address.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Final

import grpc

from netfold.rpc import channel as tls

log = logging.getLogger("netfold")

INTERVAL: Final = 2.0
"""Seconds between two probes of the other addresses, where usually nobody listens: they refuse at once."""
CONNECT: Final = 1.0
"""Seconds for a connection to one of them."""
GREETING: Final = 3.0
"""Seconds within which a controller greets a new connection; gRPC's own threads do that, however busy it is."""


class HangWatch:
    """Looks every INTERVAL seconds, on a thread of its own, until closed.

    addresses  returns the address of the controller of this moment, and the others
    on_hang    called when that one hangs and another address takes connections
    takes      whether an address takes connections
    greets     whether a controller greets at an address
    """

    def __init__(
        self, addresses: Callable[[], tuple[str, Sequence[str]]], on_hang: Callable[[], None], *,
        takes: Callable[[str], bool] | None = None, greets: Callable[[str], bool] | None = None,
    ) -> None:
        self._addresses = addresses
        self._on_hang = on_hang
        self._takes = takes or takes_connections
        self._greets = greets or greets_connections
        self._closed = threading.Event()

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, name="netfold-hang-watch", daemon=True).start()

    def close(self) -> None:
        """End the thread soon."""
        self._closed.set()

    def look(self) -> None:
        """Look once."""
        here, others = self._addresses()
        if any(map(self._takes, others)) and not self._greets(here) and self._addresses()[0] == here:
            self._on_hang()

    def _run(self) -> None:
        while not self._closed.wait(INTERVAL):
            try:
                self.look()
            except Exception:  # a certificate that is just exchanged: the next look may succeed
                log.warning("cannot look whether the controller hangs", exc_info=True)


def takes_connections(address: str) -> bool:
    """True if something accepts connections at ``unix:PATH`` or ``HOST:PORT``; sends nothing."""
    with contextlib.suppress(OSError, ValueError):  # TimeoutError is an OSError
        if address.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as plain:
                plain.settimeout(CONNECT)
                plain.connect(address.removeprefix("unix:"))
        else:
            host, _, port = address.rpartition(":")
            with socket.create_connection((host.removeprefix("[").removesuffix("]"), int(port)), CONNECT):
                pass
        return True
    return False


def greets_connections(address: str) -> bool:
    """True if a controller answers gRPC's handshake within GREETING seconds, or refuses the connection at once, which
    is no hang."""
    with tls.channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(GREETING)
        except grpc.FutureTimeoutError:
            return not takes_connections(address)
    return True
