# SPDX-License-Identifier: Apache-2.0
"""A rail that has joined its job on a plane, and all that belongs to it.

Each rail is a job of its own at its plane's controller: JOB+0, JOB+1, ...; JOB+1.2 in its second life; JOB+1:7 for the
ranks of the job's incarnation of epoch 7, after a change of ranks.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import replace

from netfold.host.client.fold_control import FoldControl
from netfold.host.client.jobs import JobClient
from netfold.host.client.membership import Membership
from netfold.host.client.plans import check_plan, fabric_of, ring_order
from netfold.host.errors import NetFoldError, PlanError, RailDown
from netfold.host.innet.fold import FoldRail
from netfold.host.mesh.mesh import Mesh
from netfold.host.mesh.sockets import listen
from netfold.host.opening.open_mesh import open_mesh
from netfold.host.opening.own_port import own_port, udp_port_of
from netfold.host.opening.planes import RailSpec
from netfold.host.operation.coding import Coding, LaneBits
from netfold.host.operation.rail import RailStats
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest, RowsRequest
from netfold.host.rails.mesh_rail import carry_between
from netfold.host.rails.policy import RailOptions
from netfold.host.rails.rail_set import JobCounts
from netfold.host.selection.choice import INNET
from netfold.host.selection.peers import Peers
from netfold.host.tracing.timeline import Timeline
from netfold.wire.jobs import GroupOf, Join

EXTRA_TIMEOUT = 1.0
"""Seconds by which a rail's own timeout is longer than that of all rails, so that missing ranks are known by then."""
FOLDING = ("innet", "verbs")
"""Kinds of rails on which the switches compute the sums."""


class OpenRail:
    """A rail that has joined its job, and all that belongs to it: a ``rail_set.WatchedRail``.  Raises what joining
    raises.

    job       the rail's own job, see above
    timeline  of the rank, where one was asked for
    note      called with what carries the rank's other collectives
    group     marks the rail's job as a group of some ranks of ``job``
    """

    def __init__(
        self, spec: RailSpec, job: str, rank: int, world: int, options: RailOptions, *,
        timeline: Timeline | None = None, note: Callable[[str], None] = lambda path: None,
        group: GroupOf | None = None,
    ) -> None:
        self.spec = spec
        self.name = str(spec)
        self._closing = threading.Lock()
        self._closed = False
        self._last = ""
        """The message that this rank leaves for the others: its last operation."""
        self._ended = ""
        """Why it leaves without waiting for the others."""
        self._membership: Membership | None = None
        self._leaving = threading.Lock()
        self._left = False
        self._counts: Callable[[], JobCounts] | None = None
        if spec.kind == "verbs":
            from netfold.host.verbs.rail import check_host  # its library is built only where it is wanted

            check_host(spec.plane.address)
        client = JobClient(spec.plane.controller, token=options.token)
        listener: socket.socket | None = None
        receiver: socket.socket | None = None
        try:
            listener = listen(spec.plane.address)
            receiver, lacks = own_port(spec.kind, spec.plane.address)
            self.plan = client.join(
                Join(
                    job=job, world=world, rank=rank, address=spec.plane.address,
                    tcp="{}:{}".format(*listener.getsockname()), path_mtu=options.path_mtu or 0,
                    timeout=options.join_timeout, fold=spec.kind in FOLDING, lane_bits=options.lane_bits,
                    kind="rc" if spec.kind == "verbs" else "windowed",
                    udp_port=udp_port_of(receiver), lacks=lacks, group=group,
                )
            )
            check_plan(self.plan)
            self._membership = Membership(self.plan, client)
            if spec.kind != "tcp" and any(len(ranks) > 1 for ranks in self.plan.machines):
                raise PlanError(f"rail {self} needs an address for each rank on its plane; use tcp")
            if spec.kind in FOLDING and not self.plan.trees:
                raise PlanError(f"rail {self}: no tree: {self.plan.reason or 'the controller gave no reason'}")
            patience = options.timeout + EXTRA_TIMEOUT
            own = None if timeline is None else timeline.part(self.name)
            mesh = open_mesh(
                self.plan, listener, patience, spec.kind, client, own, options.paths,
                receiver=receiver if spec.kind == "roce" else None,
            )
            try:
                self.others = self._peers(mesh, options, note=note)
                """The ranks of this rail for collectives that are not split."""
                self.between = self._peers(mesh, options, label="rail ")
                """The same ranks, for operations that several rails carry together."""
                self.rail: FoldRail | Peers = self.between
                if spec.kind in FOLDING:
                    self.rail = self._fold(self._membership, receiver, patience, options.lane_bits, own)
                self._takes_all = spec.kind == "innet" and self.plan.verb != "send"
                """True if its switches fold every operation that several rails carry by their own ways."""
                self._membership.on_tell(self._progress)
            except BaseException:
                mesh.close()
                raise
        except BaseException as error:
            if listener is not None:
                listener.close()
            if receiver is not None:
                receiver.close()
            if self._membership is None:
                client.close()
            else:
                self._membership.leave(RailStats(), str(error))
                self._membership.close()
            raise

    def _peers(
        self, mesh: Mesh, options: RailOptions, *, label: str = "", note: Callable[[str], None] = lambda path: None
    ) -> Peers:
        plan = self.plan
        return Peers(
            mesh, label=label, algorithm=options.algorithm, order=ring_order(plan), fabric=fabric_of(plan), note=note,
            places=plan.places,
        )

    def _fold(
        self, membership: Membership, receiver: socket.socket | None, patience: float, bits: LaneBits,
        timeline: Timeline | None,
    ) -> FoldRail:
        """The rail over the plan's trees.  Trees that go away end it, and so does a queue pair in error: the other
        rails carry on, and it is opened anew."""
        plan, address = self.plan, self.spec.plane.address
        if self.spec.kind == "innet":
            control = FoldControl(membership.job_error)
            return FoldRail(
                plan, address, receiver=receiver, timeout=patience, control=control, timeline=timeline, lane_bits=bits
            )
        from netfold.host.verbs.devices import port_of
        from netfold.host.verbs.rail import VerbsRail

        control = replace(membership.fold_control(patience), resume=None)
        return VerbsRail(
            plan, address, port_of(address), timeout=patience, control=control, timeline=timeline, lane_bits=bits
        )

    def give_up_with(self, give_up: Callable[[NetFoldError], None]) -> None:
        """From now on the rank leaves the rail's job once the controller takes back its trees, which have failed or
        which another job needs, and calls this, so that the rail counts as dead."""

        def halted(number: int) -> None:
            give_up(RailDown(f"{self}: the controller takes back the trees of {self.plan.job!r}"))
            threading.Thread(target=self._leave, args=(self.rail.stats(),), name="netfold-rail", daemon=True).start()

        if self._membership is not None:
            self._membership.on_halt(halted)

    def _leave(self, stats: RailStats) -> None:
        """Leaves the rail's job with these totals, once."""
        with self._leaving:
            if self._membership is not None and not self._left:
                self._left = True
                self._membership.leave(self._of_job(stats), self._ended, self._last)

    def job_error(self, left: bool) -> NetFoldError | None:
        """The error that has ended the rail's job, according to the plane's controller, or None.

        left  whether a rank that has left in order ends it, as for operations of all ranks
        """
        return None if self._membership is None else self._membership.job_error(left)

    def watched_by(self, watch: Callable[[float], bool] | None) -> None:
        """Sets the function that watches the rail (``rail_set.WatchedRail``)."""
        self.rail.watched_by(watch)
        if self.rail is not self.between:
            self.between.watched_by(watch)

    def takes(self, reduction: Reduction, coding: Coding) -> bool:
        """Always true: what its switches cannot make goes between the plane's hosts."""
        return True

    def counted_by(self, counts: Callable[[], JobCounts]) -> None:
        """Sets what says how much all rails have done together (``rail_set.WatchedRail``)."""
        self._counts = counts

    def _progress(self) -> RailStats:
        """How far the rail is, for the plane's controller; read on the thread of its events."""
        known = self.rail.progress() if isinstance(self.rail, FoldRail) else self.rail.stats()
        return self._of_job(known)

    def _of_job(self, stats: RailStats) -> RailStats:
        """The rail's own totals as its plane's controller is to know them: with the operations of all rails."""
        counts = JobCounts() if self._counts is None else self._counts()
        return replace(stats, operations=counts.operations, by_rail=dict(counts.by_rail))

    @property
    def between_name(self) -> str:
        """Its mesh and its plane, for people."""
        kind, at, plane = self.name.partition("@")
        return f"{self.between.mesh.rail}@{plane}" if at else f"{self.between.mesh.rail} of {kind}"

    def between_hosts(self, number: int, operation: Callable[[Peers], None]) -> None:
        """Makes an operation between the plane's hosts (``rail_set.WatchedRail``).  Raises RailDown where the rail was
        closed."""
        if self._closed:
            raise RailDown(f"{self} was closed")
        self.between.count_from(number)
        operation(self.between)

    @property
    def narrows(self) -> bool:
        """True if it has lanes narrower than 32 bits."""
        return self.rail.narrows

    def allreduce(self, request: AllreduceRequest) -> int:
        """Carries a request (``Rail``), between the plane's hosts where the rail's switches cannot.  Raises RailDown
        where the rail was closed."""
        if self._closed:
            raise RailDown(f"{self} was closed")
        rail, coding = self.rail, request.coding
        own = request.algorithm is None or request.algorithm == INNET
        if own and rail is not self.between and (self._takes_all or rail.takes(request.reduction, coding)):
            return rail.allreduce(request)
        return carry_between(self.between, request)

    def way(self, coding: Coding, algorithm: str | None) -> Callable[[AllreduceRequest], int]:
        """The function that carries requests with this coding and algorithm (``rail_set.WatchedRail``)."""
        own = self._takes_all and (algorithm is None or algorithm == INNET)
        return self.rail.allreduce if own else self.allreduce

    @property
    def carries_rows(self) -> bool:
        """True if its switches carry a ``RowsRequest`` in whatever lanes; beside RDMA NICs lanes have the job's width.
        """
        return isinstance(self.rail, FoldRail) and not self.rail.joins_nothing

    def collect(self, request: RowsRequest) -> None:
        """Carries a collective of rows through its switches.  Raises RailDown where the rail was closed."""
        assert isinstance(self.rail, FoldRail), self.name
        if self._closed:
            raise RailDown(f"{self} was closed")
        self.rail.collect(request)

    @property
    def retransmissions(self) -> int:
        return self.rail.retransmissions

    def stats(self) -> RailStats:
        return self.rail.stats()

    def describe(self, nbytes: int, lane_bits: LaneBits = 32) -> str:
        return self.rail.describe(nbytes, lane_bits)

    def leave(self, why: str, *, at_once: bool = False) -> None:
        if at_once:
            self._ended = why
        else:
            self._last = why

    def close(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        stats = self.rail.stats()
        self.rail.close()
        self.between.close()
        self.others.close()
        if self._membership is not None:
            self._leave(stats)
            self._membership.close()

    def __str__(self) -> str:
        return self.name
