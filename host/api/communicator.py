# SPDX-License-Identifier: Apache-2.0
"""The communicator: what a training loop holds on to.

    with Communicator.join("digits", rank, world, address="10.0.1.1", controller="unix:/run/netfold") as comm:
        comm.allreduce(gradient, out=gradient, op="average")

Life: join (all ranks get their plan together) -> any number of collectives, in the same order on every rank -> close.
"""

from __future__ import annotations

import logging
import os
import socket
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Literal, Self, get_args

import numpy as np

from netfold.host.api.group import Group
from netfold.host.api.open_mesh import open_mesh
from netfold.host.api.work import Turns
from netfold.host.client.fold_control import NO_CONTROLLER
from netfold.host.client.jobs import JobClient
from netfold.host.client.plans import MAX_WORLD, check_plan, fabric_of, path_reason, ring_order, sharing
from netfold.host.errors import JoinRefused, PlanError
from netfold.host.innet.fold import FoldRail
from netfold.host.innet.folded import allreduce as folded_allreduce
from netfold.host.innet.parallel import ParallelFold
from netfold.host.mesh.connection import listen
from netfold.host.operation.arrays import Array, native
from netfold.host.operation.coding import Coding, LaneBits, check_levels, lane_bits_said
from netfold.host.operation.rail import LaneRail, RailStats
from netfold.host.operation.reduction import ReduceOp, Reduction
from netfold.host.rails.joining import Joined, join_rails
from netfold.host.rails.multirail import MultiRail
from netfold.host.rails.planes import RAILS_VARIABLE, RailSpec, specs_of
from netfold.host.selection.choice import INNET
from netfold.host.selection.dispatch import Dispatch
from netfold.host.selection.peers import ALGORITHM_VARIABLE, AUTO, Peers
from netfold.host.tracing.flight import Flight
from netfold.host.tracing.timeline import asked
from netfold.wire.flight import OperationRecord
from netfold.wire.jobs import Join, Plan

RailName = Literal["auto", "innet", "tcp", "roce"]
CONTROLLER_VARIABLE = "NETFOLD_CONTROLLER"

log = logging.getLogger("netfold")


class Communicator(Group):
    """All ranks of one job, ready to reduce.  Make one with ``join``, or from a ``Plan`` that came some other way.

    address    IPv4 address of this rank on the fabric
    rail       "innet": fold in the switches what they can fold, sums, averages, maxima and minima of float32 and int32,
               and as float32 those of float16 and bfloat16;
               "tcp": all over TCP between the hosts; "roce": all over queue pairs between the hosts (docs/roce.md);
               "auto": where the plan has trees, what the switches can fold goes by the cheapest way of all, measured
               at the first such operation (``explain``); else tcp, with a warning that says why
    lane_bits  of folded sums and averages of floats where a call says nothing else: 32, 16 or 8; default
               $NETFOLD_LANE_BITS, or 32
    algorithm  of allreduce: one of ``peers.KNOWN``, then nothing folds but with rail="innet"; "innet": as the rail;
               "auto": the cheapest by measurement; default $NETFOLD_ALGO, or "auto"
    helpers    ranks that have no data and only add for the others (``Peers``); nothing folds then
    timeout    seconds without any progress after which a collective gives up with CollectiveTimeout
    listener   bound TCP socket whose port stands in the plan, for all that does not fold
    joined     several rails that are one (``join(rails=)``); then nothing of the above is used
    """

    def __init__(
        self,
        plan: Plan,
        *,
        address: str,
        rail: RailName = "auto",
        lane_bits: LaneBits | None = None,
        algorithm: str | None = None,
        helpers: Sequence[int] = (),
        timeout: float = 10.0,
        listener: socket.socket | None = None,
        client: JobClient | None = None,
        joined: Joined | None = None,
    ) -> None:
        if rail not in get_args(RailName):
            raise ValueError(f"rail={rail!r}: expected one of {', '.join(get_args(RailName))}")
        if not timeout > 0:
            raise ValueError(f"timeout={timeout!r}: expected seconds above 0")
        if (algorithm or os.environ.get(ALGORITHM_VARIABLE)) == INNET and joined is None:
            if rail not in ("auto", INNET):
                raise ValueError(f"algorithm='innet' (argument or {ALGORITHM_VARIABLE}), rail={rail!r}: give either")
            rail, algorithm = "innet", AUTO
        coding = Coding(lane_bits or lane_bits_said(), seed=zlib.crc32(plan.job.encode()))
        check_plan(plan)
        self._plan = plan
        self._joined = joined
        self._client = client
        self._watcher = None if client is None or plan.world == 1 else client.watch(plan)
        self._lanes: LaneRail | None = None
        me = f"job {plan.job!r}, rank {plan.rank} of {plan.world}"
        if rail == "innet" and plan.world > 1 and not plan.trees:
            raise PlanError(
                f"{me}: rail='innet' asked for, but the plan has no tree: "
                f"{plan.reason or 'the controller gave no reason'}; use rail='auto' to fall back to TCP"
            )
        if rail == "innet" and helpers:
            raise ValueError(f"rail='innet', helpers={list(helpers)}: switches fold what every rank sends; use 'tcp'")
        if joined is not None:
            self._take(joined, me, coding)
            return
        shared = any(len(ranks) > 1 for ranks in plan.machines)
        if rail == "roce" and shared:
            raise PlanError(f"{me}: rail='roce' needs an address for each rank, and {sharing(plan)}; use rail='tcp'")
        mesh = open_mesh(plan, listener, timeout, rail, client)
        machines = plan.machines if shared else ()
        peers = Peers(mesh, algorithm=algorithm, order=ring_order(plan), helpers=helpers, machines=machines,
                      fabric=fabric_of(plan))
        timeline = mesh.timeline = asked(plan.job, plan.rank, plan.world)
        super().__init__(peers, Turns(me, Flight(plan.job, plan.rank, plan.world, timeline=timeline)), coding)
        self._dispatch = Dispatch(peers, "roce" if rail == "roce" else "tcp", path_reason(plan, rail, helpers))
        if plan.trees and plan.world > 1 and rail in ("auto", INNET) and not helpers:
            opened: Callable[..., LaneRail]
            opened = partial(ParallelFold, plan, peers, address) if shared else partial(FoldRail, plan, address)
            try:
                control = NO_CONTROLLER
                if client is not None and self._watcher is not None:
                    control = client.fold_control(plan, self._watcher.job_error, timeout, self._go_on_by)
                self._lanes = opened(timeout=timeout, control=control, timeline=timeline)
            except BaseException:
                mesh.close()
                raise
            self._dispatch.fold = self._dispatch.lanes = self._lanes
            self._dispatch.always = rail == INNET
            self._whole = False
            peers.chooser.trial = self._lanes.trial
            if self._watcher is not None:
                self._watcher.on_halt(self._lanes.halt)
                self._watcher.on_settle(self._lanes.settle)
        elif plan.world > 1 and rail == "auto" and not helpers:
            warnings.warn(
                f"{me}: no aggregation tree, every allreduce goes over TCP between the hosts. "
                f"Reason: {plan.reason or 'none given by the controller'}",
                RuntimeWarning,
                stacklevel=3,
            )
        log.info("%s: %s (%s)", me, self.rail, self._dispatch.why)
        try:
            if coding.lane_bits != 32:
                self._narrow(coding.lane_bits)
        except ValueError:
            self.close()
            raise

    def _take(self, joined: Joined, me: str, coding: Coding) -> None:
        """Several rails that are one."""
        flight = Flight(self._plan.job, self._plan.rank, self._plan.world, timeline=joined.timeline)
        super().__init__(joined.peers(), Turns(me, flight), coding)
        self._dispatch = Dispatch(self._peers, "tcp", f"asked for by rails= or {RAILS_VARIABLE}")
        self._dispatch.fold = joined.rails
        self._dispatch.always = self._dispatch.several = True
        joined.rails.note = flight.note
        joined.rails.on_change(self._follow)
        if coding.lane_bits != 32:
            self._narrow(coding.lane_bits)

    @classmethod
    def join(
        cls,
        job: str,
        rank: int,
        world: int,
        *,
        address: str,
        controller: str | None = None,
        timeout: float = 10.0,
        join_timeout: float = 30.0,
        rail: RailName = "auto",
        lane_bits: LaneBits | None = None,
        algorithm: str | None = None,
        helpers: Sequence[int] = (),
        path_mtu: int | None = None,
        token: str = "",
        rails: str | Sequence[RailSpec] | None = None,
    ) -> Self:
        """Joins a job and waits until all its ranks have.

        controller   address of the job service, "host:port" or "unix:/path"; default: $NETFOLD_CONTROLLER
        join_timeout seconds to wait for the other ranks
        path_mtu     payload bytes of a packet, refused where the fabric has another; default: what it has
        rails        several at once, "innet@a+tcp@b" with planes a and b of $NETFOLD_PLANES, or RailSpecs; instead of
                     ``rail``, ``address`` and ``controller``; default: $NETFOLD_RAILS (docs/rails.md)
        Raises JoinRefused, PlanError, TransportError, ValueError.
        """
        if not 0 <= rank < world:
            raise ValueError(f"rank={rank}, world={world}: expected 0 <= rank < world")
        if world > MAX_WORLD:
            raise ValueError(f"world={world}: at most {MAX_WORLD} ranks fold into one sum")
        specs = specs_of(rails, asked=rail != "auto")
        if len(specs) > 1 and (algorithm is not None or helpers):
            said = f"algorithm={algorithm!r}" if algorithm is not None else f"helpers={list(helpers)}"
            raise ValueError(f"rails={rails!r}, {said}: several rails choose for themselves; give either")
        if len(specs) > 1 and world > 1:
            joined = join_rails(specs, job, rank, world, timeout=timeout, join_timeout=join_timeout, token=token)
            return cls(joined.plan, address=address, timeout=timeout, joined=joined)
        if specs:
            rail, address, controller = specs[0].kind, specs[0].plane.address, specs[0].plane.controller
        where = controller or os.environ.get(CONTROLLER_VARIABLE, "")
        if not where:
            raise JoinRefused(
                f"job {job!r}, rank {rank}: no controller named; give controller='host:port' or set "
                f"{CONTROLLER_VARIABLE} (`netfold up` prints the address)"
            )
        listener = listen(address)
        client = None
        try:
            client = JobClient(where, token=token)
            plan = client.join(
                Join(
                    job=job,
                    world=world,
                    rank=rank,
                    address=address,
                    tcp="{}:{}".format(*listener.getsockname()),
                    path_mtu=path_mtu or 0,
                    timeout=join_timeout,
                    token=client.token,
                    fold=rail in ("auto", "innet") and not helpers,
                    lane_bits=lane_bits or lane_bits_said(),
                )
            )
            if (plan.job, plan.rank, plan.world) != (job, rank, world):
                raise PlanError(
                    f"job {job!r}: asked to be rank {rank} of {world}, the plan of {where} is for job {plan.job!r}, "
                    f"rank {plan.rank} of {plan.world}: the controller mixed two joins up"
                )
            return cls(
                plan,
                address=address,
                rail=rail,
                lane_bits=lane_bits,
                algorithm=algorithm,
                helpers=helpers,
                timeout=timeout,
                listener=listener,
                client=client,
            )
        except BaseException:
            listener.close()
            if client is not None:
                client.close()
            raise

    # ---- what it is and does ---------------------------------------------------------------------------------------
    @property
    def plan(self) -> Plan:
        """What the controller decided."""
        return self._plan

    @property
    def rail(self) -> str:
        """The rail of what folds: "innet", or "tcp" or "roce", or "self" for a job of one rank."""
        return self._dispatch.rail

    @property
    def rails(self) -> MultiRail | None:
        """The several rails of ``join(rails=)``: their shares, states and what is known of them; else None."""
        return None if self._joined is None else self._joined.rails

    def stats(self) -> RailStats:
        """Operations, bytes, packets and retransmissions so far, in all and by tree."""
        peers = self._peers
        own = RailStats(
            operations=peers.operations, bytes_reduced=peers.bytes_reduced, seconds=peers.seconds,
            saturated=self._saturations,
        )
        if self._dispatch.fold is None:
            return own
        folded = self._dispatch.fold.stats()
        return replace(
            folded,
            operations=folded.operations + own.operations,
            bytes_reduced=folded.bytes_reduced + own.bytes_reduced,
            seconds=folded.seconds + own.seconds,
            saturated=own.saturated,
        )

    def flight(self) -> list[OperationRecord]:
        """The last operations of this rank, groups' included, the oldest first (``flight.KEPT``)."""
        return self._turns.flight.operations()

    def explain(
        self, nbytes: int, op: ReduceOp = "sum", dtype: str = "float32", *, algorithm: str | None = None
    ) -> str:
        """Which path an allreduce of ``nbytes`` bytes takes, and why: what each way is expected to cost, once that is
        measured.  Sends nothing.

        algorithm  what the call would ask for
        """
        return self._dispatch.explain(nbytes, Reduction(op, dtype), algorithm, self._coding)

    def lanes(self, lane_bits: LaneBits | None = None) -> LaneBits:
        """Bits of the lanes that a sum of floats gets where a call says ``lane_bits``: 32 where nothing folds.

        Raises ValueError for what cannot be.
        """
        bits = replace(self._coding, lane_bits=lane_bits or self._coding.lane_bits).lane_bits
        if self._lanes is None:
            return 32
        check_levels(bits, self._lanes.members)
        return bits

    def path(self, op: str = "sum", dtype: str = "float32") -> str:
        """The rail that carries such an allreduce where the call names no algorithm: ``rail``, or "tcp" or "roce".
        Where nobody asked for folding, small ones may go between the hosts all the same (``explain``)."""
        return self._dispatch.path(op, dtype)

    def close(self) -> None:
        """Reports totals, leaves the job and gives everything back.  Never raises for an absent controller."""
        if not self._turns.close():
            return
        stats = self.stats()
        if self._client is not None:  # before all else: until it is answered, others may need what we have sent
            if self._watcher is not None:
                self._watcher.leaving()
            broken = self._turns.broken
            self._client.leave(stats.report(self._plan), reason="" if broken is None else str(broken))
        if self._dispatch.fold is not None:
            self._dispatch.fold.close()
        self._peers.close()
        if self._watcher is not None:
            self._watcher.close()
        if self._client is not None:
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Communicator job={self._plan.job!r} rank={self.rank} of {self.size} over {self.rail}>"

    # ---- inside ----------------------------------------------------------------------------------------------------
    def _narrow(self, lane_bits: int) -> None:
        if self._lanes is not None:
            check_levels(lane_bits, self._lanes.members)
        super()._narrow(lane_bits)

    def _follow(self) -> None:
        """A rail has died or is back, on all ranks in the same operation: the peers are those of the first one up."""
        assert self._joined is not None
        before, self._peers = self._peers, self._joined.peers()
        self._peers.note, self._peers.number = before.note, before.number
        self._dispatch.peers = self._peers

    def _go_on_by(self, plan: Plan) -> None:
        """Other trees are there."""
        self._plan = plan

    def _check_algorithm(self, algorithm: str | None, reduction: Reduction, coding: Coding) -> None:
        self._dispatch.check(algorithm, reduction, coding)

    def _allreduce(
        self, array: Array, result: Array, reduction: Reduction, algorithm: str | None, number: int, coding: Coding,
        feedback: Array | None,
    ) -> int:
        fold, lanes = self._dispatch.fold, self._lanes
        way = self._dispatch.allreduce(array.nbytes, reduction, algorithm, coding)
        if fold is None or way != INNET:
            return super()._allreduce(array, result, reduction, way, number, coding, feedback)
        flight, before = self._turns.flight, fold.retransmissions
        if self._joined is None:  # several rails say themselves which carries what
            flight.note(fold.name)
        try:
            return folded_allreduce(fold, lanes, array, result, reduction, number, coding, feedback)
        finally:
            flight.now.retransmissions += fold.retransmissions - before

    def _reduce_scatter(
        self, array: Array, result: Array, pieces: Sequence[slice], reduction: Reduction, algorithm: str | None,
        number: int, coding: Coding,
    ) -> None:
        way = self._dispatch.reduce_scatter(array.nbytes, reduction, algorithm, coding)
        if way != INNET:
            return super()._reduce_scatter(array, result, pieces, reduction, way, number, coding)
        # The switches give the whole sum to every rank in the packets of one multicast: all links are as busy as one.
        whole = np.empty(array.shape, native(array))
        self._allreduce(array, whole, reduction, INNET, number, coding, None)
        result[...] = whole.reshape(-1)[pieces[self.rank]].reshape(result.shape)
