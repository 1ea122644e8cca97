# SPDX-License-Identifier: Apache-2.0
"""Opens what a rank folds with: the engine over a plan's trees, and the UDP sockets of its streams."""

from __future__ import annotations

import logging
import socket

from netfold.host.innet.core import Core, Credits
from netfold.host.innet.packet_link import Io
from netfold.host.native.library import RUN_PACKETS
from netfold.host.native.sockets import bind_port, check_mtu, open_sockets
from netfold.wire import roce
from netfold.wire.plan import Plan

log = logging.getLogger("netfold")

SKB_BYTES = {1024: 2304, 4096: 8448}
"""Path MTU -> bytes of a socket's receive buffer that the kernel charges for one packet that was not merged."""


def open_over_sockets(
    plan: Plan, address: str, receiver: socket.socket | None, *, members: int, credits: Credits | None
) -> tuple[Core, Io]:
    """The core, and the loop that carries its packets.

    address   this rank's address on the fabric
    receiver  bound to it and to the rank's UDP port; taken over.  None: it is bound here, by the plan
    members   number of ranks that fold together

    Raises TransportError, ValueError, MemoryError.
    """
    receiver = receiver or bind_port(address, plan.peers[plan.rank].udp_port)
    streams = [stream for tree in plan.trees for stream in (tree.agreement, tree.data)]
    charge = SKB_BYTES[plan.path_mtu]
    wanted = sum(stream.slots // 2 for stream in streams) * charge
    ports = sorted({stream.source_port for stream in streams})
    try:
        for peer in sorted({stream.peer for stream in streams}):
            check_mtu(address, peer, plan.path_mtu)
    except BaseException:
        receiver.close()
        raise
    sockets = open_sockets(receiver, ports, room=wanted, ttl=roce.CONTRIBUTION_TTL)
    try:
        # A window that the receive buffer cannot hold would turn every burst into loss.
        most = max(2, sockets.room // charge // len(streams))
        run = RUN_PACKETS if sockets.super_packets else 1
        core = Core(
            address, members, plan.trees, port=receiver.getsockname()[1], path_mtu=plan.path_mtu, max_run=run,
            max_window=most, credits=credits, message=plan.message if plan.verb == "send" else 0,
            presence=plan.presence,
        )
        planned = max(stream.slots // 2 for stream in streams)
        if most < planned:
            log.warning(
                "job %r, rank %d: the receive buffer has %d bytes, so windows are at most %d packets instead of %d; "
                "for full speed: sysctl -w net.core.rmem_max=%d, or CAP_NET_ADMIN",
                plan.job, plan.rank, sockets.room, 1 << (most.bit_length() - 1), planned, wanted,
            )
        return core, Io(core, sockets.receiver, sockets.senders)
    except BaseException:
        sockets.close()
        raise
