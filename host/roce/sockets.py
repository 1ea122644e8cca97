# SPDX-License-Identifier: Apache-2.0
"""The UDP sockets of an endpoint of queue pairs, and how it shares port 4791 with the folding engine.

Both are bound to it, and the kernel hands each datagram to one of them by its destination queue pair (``reuseport``):
numbers from ``CONNECTION_BIT`` up are the endpoint's, those below belong to trees.  The endpoint must be bound first.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from netfold.host.native.reuseport import by_highest_bit, steer
from netfold.host.native.sockets import Sockets, open_sockets

log = logging.getLogger("netfold")

CONNECTION_BIT = 0x800000
"""Bit that is set in the queue pair numbers of connections between ranks."""


def open_endpoint(address: str, ports: Sequence[int], *, room: int, shared: bool) -> Sockets:
    """Opens the endpoint's sockets (``sockets.open_sockets``).

    shared  the folding engine is going to use the same address and port
    Raises TransportError.
    """
    sockets = open_sockets(address, ports, room=room, shared=shared)
    try:
        if shared:
            steer(sockets.receiver, by_highest_bit(CONNECTION_BIT))
    except BaseException:
        sockets.close()
        raise
    if sockets.room < room:
        log.warning(
            "%s: the receive buffer has %d bytes instead of %d, so bursts may be lost and sent again; for full "
            "speed: sysctl -w net.core.rmem_max=%d, or CAP_NET_ADMIN", address, sockets.room, room, room,
        )
    return sockets
