# SPDX-License-Identifier: Apache-2.0
"""Meshes of queue pairs between ranks of one process, on loopback addresses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from netfold.host.job_secret import draw
from netfold.host.mesh.sockets import listen
from netfold.host.roce.mesh import RoceMesh
from netfold.testing import subnet
from netfold.wire import roce
from netfold.wire.plan import Peer, Plan
from support.hosts.collectives import TcpRanks


class RoceRanks(TcpRanks):
    """Meshes of all ranks of a job over queue pairs on loopback addresses; a context manager.

    udp_ports  at which they receive, by rank; default: RoCEv2's
    addresses  by rank; default: addresses that nobody else has
    clock      by rank, of which they look often; default: the machine's
    """

    def __init__(
        self, ranks: int, *, timeout: float = 30.0, udp_ports: Sequence[int] = (), addresses: Sequence[str] = (),
        clock: Callable[[int], Callable[[], float]] | None = None, **options: Any,
    ) -> None:
        net = subnet()
        self.addresses = list(addresses) or [f"{net}.{rank + 1}" for rank in range(ranks)]
        listeners = [listen(address) for address in self.addresses]
        ports = udp_ports or [roce.UDP_PORT] * ranks
        peers = [
            Peer(r, self.addresses[r], "{}:{}".format(*listeners[r].getsockname()), ports[r]) for r in range(ranks)
        ]
        secret = draw()
        self.roce = [
            RoceMesh(
                Plan("loop", 1, rank, ranks, peers, [], secret=secret), listeners[rank], timeout=timeout,
                clock=time.monotonic if clock is None else clock(rank), **options,
            )
            for rank in range(ranks)
        ]
        if clock is not None:
            for mesh in self.roce:
                mesh.watched_by(lambda moved: False)
        self.meshes = list(self.roce)

    def __enter__(self) -> RoceRanks:
        return self
