# SPDX-License-Identifier: Apache-2.0
"""Handshakes over blocking sockets, for ranks and strangers that tests play."""

from __future__ import annotations

import socket

from netfold.host.mesh.connecting import PURPOSE
from netfold.host.mesh.handshake import Identity, Initiator, Outcome
from netfold.wire.plan import Plan


def mesh_identity(plan: Plan) -> Identity:
    """The rank of a plan in handshakes of its mesh."""
    return Identity.of_plan(plan, PURPOSE)


def prove(sock: socket.socket, me: Identity, peer: int) -> Outcome:
    """Proves to ``peer`` at the other end of a connected socket that it is ``me``.  Returns the verdict.

    Raises HandshakeRefused, and ConnectionError where the other end closes the connection.
    """
    initiator = Initiator(me, peer)
    sock.sendall(initiator.hello)
    while initiator.outcome is None:
        data = sock.recv(initiator.wanted)
        if not data:
            raise ConnectionResetError("closed in the middle of the handshake")
        sock.sendall(initiator.receive(data))
    return initiator.outcome
