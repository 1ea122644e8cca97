# SPDX-License-Identifier: Apache-2.0
"""A rail that has joined its job on a plane, and all that belongs to it.

Each rail is a job of its own at its plane's controller (JOB, JOB+1, ...; JOB+1.2 in its second life), so a controller
knows nothing of rails.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from netfold.host.client.fold_control import FoldControl
from netfold.host.client.jobs import JobClient
from netfold.host.client.watcher import Watcher
from netfold.host.errors import NetFoldError, PlanError, RailDown
from netfold.host.innet.fold import FoldRail
from netfold.host.mesh.connected import ConnectedMesh
from netfold.host.mesh.connection import listen
from netfold.host.mesh.tcp import TcpMesh
from netfold.host.operation.rail import Flat, Op, RailStats
from netfold.host.operation.reduction import Reduction
from netfold.host.rails.planes import RailSpec
from netfold.host.rails.rail_set import WatchedRail
from netfold.host.roce.mesh import RoceMesh
from netfold.host.selection.peers import Peers
from netfold.host.tracing.timeline import Timeline
from netfold.wire.jobs import Join

LATER = 1.0
"""Seconds that a rail's own timeout is longer than that of all rails: who is missing is then known already."""


class PeerRail:
    """The rails "tcp" and "roce" as one of several: allreduce between the hosts, by the cheapest algorithm."""

    def __init__(self, peers: Peers, mesh: ConnectedMesh, name: str) -> None:
        self.name = name
        self._peers = peers
        self._mesh = mesh

    @property
    def watch(self) -> Callable[[float], None] | None:
        """See ``multirail.WatchedRail``."""
        return self._mesh.watch

    @watch.setter
    def watch(self, watch: Callable[[float], None] | None) -> None:
        self._mesh.watch = watch

    def allreduce(self, source: Flat, out: Flat, op: Op, number: int) -> None:
        self._peers.allreduce(source, out, Reduction(op, source.dtype.name))

    @property
    def retransmissions(self) -> int:
        return 0  # the kernel's are not ours to count

    def stats(self) -> RailStats:
        peers = self._peers
        return RailStats(operations=peers.operations, bytes_reduced=peers.bytes_reduced, seconds=peers.seconds)

    def describe(self, nbytes: int) -> str:
        return self._peers.explain(nbytes)

    def close(self) -> None:
        self._peers.close()


class OpenRail:
    """A rail that has joined its job, and all that belongs to it: a ``multirail.WatchedRail``.  Raises what joining
    raises.

    job       the rail's own, see above
    timeout   seconds without progress after which ranks are missing
    timeline  of the rank, where one is asked for
    """

    def __init__(
        self, spec: RailSpec, job: str, rank: int, world: int, *, timeout: float, join_timeout: float, token: str,
        timeline: Timeline | None = None,
    ) -> None:
        self.spec = spec
        self.name = str(spec)
        self._closing = threading.Lock()
        self._closed = False
        self._client = JobClient(spec.plane.controller, token=token)
        self._watcher: Watcher | None = None
        listener: socket.socket | None = None
        try:
            listener = listen(spec.plane.address)
            self.plan = self._client.join(
                Join(
                    job=job, world=world, rank=rank, address=spec.plane.address,
                    tcp="{}:{}".format(*listener.getsockname()), path_mtu=0, timeout=join_timeout,
                    token=self._client.token, fold=spec.kind == "innet",
                )
            )
            self._watcher = self._client.watch(self.plan)
            if spec.kind != "tcp" and any(len(ranks) > 1 for ranks in self.plan.machines):
                raise PlanError(f"rail {self} needs an address for each rank on its plane; use tcp")
            if spec.kind == "innet" and not self.plan.trees:
                raise PlanError(f"rail {self}: no tree: {self.plan.reason or 'the controller gave no reason'}")
            patience = timeout + LATER
            mesh = (RoceMesh if spec.kind == "roce" else TcpMesh)(self.plan, listener, timeout=patience)
            mesh.timeline = None if timeline is None else timeline.part(self.name)
            self.others = Peers(mesh)
            """For collectives that are not cut."""
            self._rail: WatchedRail = PeerRail(Peers(mesh, name="rail "), mesh, spec.kind)
            if spec.kind == "innet":
                try:
                    self._rail = FoldRail(
                        self.plan,
                        spec.plane.address,
                        timeout=patience,
                        control=FoldControl(self.job_error),
                        timeline=mesh.timeline,
                    )
                except BaseException:
                    mesh.close()
                    raise
        except BaseException as error:
            if listener is not None:
                listener.close()
            self._leave(RailStats(), str(error))
            raise

    def job_error(self) -> NetFoldError | None:
        """What the plane's controller says has ended the rail."""
        return None if self._watcher is None else self._watcher.job_error()

    @property
    def watch(self) -> Callable[[float], None] | None:
        """See ``multirail.WatchedRail``."""
        return self._rail.watch

    @watch.setter
    def watch(self, watch: Callable[[float], None] | None) -> None:
        self._rail.watch = watch

    def allreduce(self, source: Flat, out: Flat, op: Op, number: int) -> None:
        if self._closed:
            raise RailDown(f"{self} was closed")
        self._rail.allreduce(source, out, op, number)

    @property
    def retransmissions(self) -> int:
        return self._rail.retransmissions

    def stats(self) -> RailStats:
        return self._rail.stats()

    def describe(self, nbytes: int) -> str:
        return self._rail.describe(nbytes)

    def close(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        stats = self._rail.stats()
        self._rail.close()
        self.others.close()
        self._leave(stats, "")

    def _leave(self, stats: RailStats, reason: str) -> None:
        if self._watcher is not None:
            self._watcher.leaving()
            self._client.leave(stats.report(self.plan), reason)
            self._watcher.close()
        self._client.close()

    def __str__(self) -> str:
        return self.name
