# SPDX-License-Identifier: Apache-2.0
"""The UDP sockets of an endpoint of queue pairs."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence

from netfold.host.native.sockets import Sockets, open_sockets

log = logging.getLogger("netfold")


def open_endpoint(receiver: socket.socket, ports: Sequence[int], *, room: int) -> Sockets:
    """Opens the endpoint's sockets (``sockets.open_sockets``).  Raises TransportError."""
    sockets = open_sockets(receiver, ports, room=room, paths=True)
    if sockets.room < room:
        log.warning(
            "%s:%d: the receive buffer has %d bytes instead of %d, so bursts may be lost and sent again; for full "
            "speed: sysctl -w net.core.rmem_max=%d, or CAP_NET_ADMIN",
            *receiver.getsockname(), sockets.room, room, room,
        )
    return sockets
