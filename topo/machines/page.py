# SPDX-License-Identifier: Apache-2.0
"""The controller's page of a fabric over machines, at an address of the launcher's machine."""

from __future__ import annotations

import secrets
import socket
from typing import Final, NamedTuple

from netfold.topo.network.listeners import KEY_BYTES
from netfold.topo.processes.failures import FabricFailed

BACKLOG: Final = 64
"""Connections that wait to be accepted."""


class MachinesPage(NamedTuple):
    """Where the page is reached: what comes to ``listener`` here goes to the same port of the controller's machine.

    key  in the address of the page, for whoever may inject faults there; it is known to the launcher, the controller
         and the page's reader alone
    """

    listener: socket.socket
    port: int
    key: str

    @property
    def url(self) -> str:
        """Its address with the key, which a browser keeps to itself, as in topo/network/listeners.py."""
        return f"http://127.0.0.1:{self.port}/#key={self.key}"


def listen(metrics: str) -> MachinesPage:
    """Listen for a page at ``host:port``.  Raises FabricFailed."""
    host, _, port = metrics.rpartition(":")
    if host not in ("127.0.0.1", "localhost") or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise FabricFailed(f"--metrics {metrics}: expected 127.0.0.1:PORT, on this machine: who may look is decided by "
                           "who may log in here")
    listener = socket.socket(socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", int(port)))
    except OSError as error:
        listener.close()
        raise FabricFailed(f"--metrics {metrics}: {error.strerror}: give another port") from error
    listener.listen(BACKLOG)
    return MachinesPage(listener, int(port), secrets.token_urlsafe(KEY_BYTES))
