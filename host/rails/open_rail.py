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
from netfold.host.client.membership import Membership
from netfold.host.errors import NetFoldError, PlanError, RailDown
from netfold.host.innet.fold import FoldRail
from netfold.host.mesh.connection import listen
from netfold.host.mesh.tcp import TcpMesh
from netfold.host.operation.coding import Coding, LaneBits
from netfold.host.operation.rail import RailStats
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.host.rails.planes import RailSpec
from netfold.host.rails.rail_set import WatchedRail
from netfold.host.roce.mesh import RoceMesh
from netfold.host.selection.peers import Peers
from netfold.host.tracing.timeline import Timeline
from netfold.wire.jobs import Join

EXTRA_TIMEOUT = 1.0
"""Seconds by which a rail's own timeout is longer than that of all rails, so that missing ranks are known by then."""


class OpenRail:
    """A rail that has joined its job, and all that belongs to it: a ``rail_set.WatchedRail``.  Raises what joining
    raises.

    job       the rail's own job, see above
    timeout   seconds without progress after which ranks count as missing
    timeline  of the rank, where one was asked for
    note      called with what carries the rank's other collectives
    """

    narrows = False

    def __init__(
        self, spec: RailSpec, job: str, rank: int, world: int, *, timeout: float, join_timeout: float, token: str,
        timeline: Timeline | None = None, note: Callable[[str], None] = lambda path: None,
    ) -> None:
        self.spec = spec
        self.name = str(spec)
        self._closing = threading.Lock()
        self._closed = False
        self._membership: Membership | None = None
        client = JobClient(spec.plane.controller, token=token)
        listener: socket.socket | None = None
        try:
            listener = listen(spec.plane.address)
            self.plan = client.join(
                Join(
                    job=job, world=world, rank=rank, address=spec.plane.address,
                    tcp="{}:{}".format(*listener.getsockname()), path_mtu=0, timeout=join_timeout,
                    fold=spec.kind == "innet",
                )
            )
            self._membership = Membership(self.plan, client)
            if spec.kind != "tcp" and any(len(ranks) > 1 for ranks in self.plan.machines):
                raise PlanError(f"rail {self} needs an address for each rank on its plane; use tcp")
            if spec.kind == "innet" and not self.plan.trees:
                raise PlanError(f"rail {self}: no tree: {self.plan.reason or 'the controller gave no reason'}")
            patience = timeout + EXTRA_TIMEOUT
            own = None if timeline is None else timeline.part(self.name)
            mesh = (RoceMesh if spec.kind == "roce" else TcpMesh)(self.plan, listener, timeout=patience, timeline=own)
            self.others = Peers(mesh, note=note)
            """The ranks of this rail for collectives that are not split."""
            self._rail: WatchedRail = Peers(mesh, label="rail ")
            if spec.kind == "innet":
                control = FoldControl(self._membership.job_error)  # trees that go away end the rail
                try:
                    self._rail = FoldRail(
                        self.plan, spec.plane.address, timeout=patience, control=control, timeline=own
                    )
                except BaseException:
                    mesh.close()
                    raise
        except BaseException as error:
            if listener is not None:
                listener.close()
            if self._membership is None:
                client.close()
            else:
                self._membership.leave(RailStats(), str(error))
                self._membership.close()
            raise

    def job_error(self) -> NetFoldError | None:
        """What has ended the rail's job, according to the plane's controller, or None."""
        return None if self._membership is None else self._membership.job_error()

    def watched_by(self, watch: Callable[[float], None] | None) -> None:
        """Sets the function that watches the rail (``rail_set.WatchedRail``)."""
        self._rail.watched_by(watch)

    def takes(self, reduction: Reduction, coding: Coding) -> bool:
        """Whether the rail's kind can make this reduction."""
        return self._rail.takes(reduction, coding)

    def allreduce(self, request: AllreduceRequest) -> int:
        """Carries a request (``Rail``).  Raises RailDown where the rail was closed."""
        if self._closed:
            raise RailDown(f"{self} was closed")
        return self._rail.allreduce(request)

    @property
    def retransmissions(self) -> int:
        return self._rail.retransmissions

    def stats(self) -> RailStats:
        return self._rail.stats()

    def describe(self, nbytes: int, lane_bits: LaneBits = 32) -> str:
        return self._rail.describe(nbytes, lane_bits)

    def close(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        stats = self._rail.stats()
        self._rail.close()
        self.others.close()
        if self._membership is not None:
            self._membership.leave(stats)
            self._membership.close()

    def __str__(self) -> str:
        return self.name
