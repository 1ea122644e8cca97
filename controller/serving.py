# SPDX-License-Identifier: Apache-2.0
"""The gRPC server of a controller: at the address of its fabric, of which it is the only one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import grpc

from netfold.controller import client, exposure
from netfold.controller.switch import reach
from netfold.fabric.graph import Fabric
from netfold.rpc import rpc
from netfold.rpc.certificates import Certificates
from softswitch.runtime import connections
from softswitch.runtime.connections import ConnectionWatch

MAX_CALLS: Final = 1 << 17
"""Most calls that are open at once: 32 streams of each of 4,096 ranks."""
_SERVER_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    # gRPC ends calls as CANCELLED, which says to ranks that the controller is gone, where nobody has taken them within
    # 30 s, and at random where more than 1,000 wait for that: all ranks of a job call at once, each with a deadline
    ("grpc.server_max_unrequested_time_in_server", 600),
    ("grpc.server.max_pending_requests", MAX_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", MAX_CALLS),
    # a process that dies closes its connection, a machine that dies does not
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
)
MAX_CONNECTIONS: Final = 17 << 10
"""Most connections at once.  Half of them are served, the others are left for newcomers; each of 4,096 ranks has
two."""
STOP_GRACE: Final = 1.0
"""Seconds that open calls have when the server stops."""
CHECK_TIMEOUT: Final = 2.0
"""Seconds within which a controller that runs already answers."""


class StartError(Exception):
    """The controller cannot start; the message names the switch or address and what to check.

    Remedy: the message has each switch's own problem, or the address in use.  Start the switches first, and compare
    their addresses with the fabric file's.  A second controller of one fabric must be a standby (`netfold up
    --standby`).
    """


async def check_unused(address: str, *, token: str) -> None:
    """Raises StartError where a controller answers at a unix socket already, which gRPC would take over without a word,
    or anything listens at a ``host:port``: what cannot serve must not have claimed the switches before it finds out.

    token  an operator's, where callers need one
    """
    if await (_answers(address, token) if address.startswith("unix:") else reach.listens(address)):
        raise StartError(f"a controller, or another program, is running at {address} already: stop it, or give this "
                         "fabric another address (fabric.jobs)")


async def _answers(address: str, token: str) -> bool:
    try:
        await client.status(address, timeout=CHECK_TIMEOUT, token=token)
    except rpc.CallRefused:
        return True
    except rpc.Unreachable:
        return False
    return True


class JobServer(NamedTuple):
    """The running server, and what bounds its connections."""

    server: grpc.aio.Server
    watch: ConnectionWatch

    async def stop(self) -> None:
        """End it, and its open calls after STOP_GRACE seconds."""
        self.watch.close()
        await self.server.stop(STOP_GRACE)


async def serve(
    fabric: Fabric, handlers: Iterable[grpc.GenericRpcHandler[bytes, bytes]], *, tls: Certificates | None, token: bool,
) -> JobServer:
    """Serve at ``fabric.jobs``.  Raises StartError where the address cannot be bound.

    tls    the certificates, where the address is not a unix socket
    token  whether callers must give one; where not, a unix socket is for its owner and the owner's group alone
    """
    most = connections.most(MAX_CONNECTIONS)
    options = [*_SERVER_OPTIONS, *connections.options(most)]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=MAX_CALLS)
    server.add_generic_rpc_handlers(tuple(handlers))
    try:
        if fabric.jobs.startswith("unix:"):
            with exposure.umask(token=token):
                bound = server.add_insecure_port(fabric.jobs)
        elif tls is None:
            bound = server.add_insecure_port(fabric.jobs)
        else:
            bound = server.add_secure_port(fabric.jobs, tls.server())
    except RuntimeError as error:
        raise StartError(f"cannot serve jobs at {fabric.jobs}: {error}. Is the address in use, or the folder of the "
                         "socket missing?") from error
    if bound == 0:
        raise StartError(f"cannot serve jobs at {fabric.jobs}: the address cannot be bound. Is it in use, or not of "
                         "this machine?")
    await server.start()
    at = fabric.jobs.removeprefix("unix:") if fabric.jobs.startswith("unix:") else bound
    return JobServer(server, ConnectionWatch([at], most=most))
