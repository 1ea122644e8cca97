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
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Literal, Self, cast, get_args

import numpy as np

from netfold.host.collectives.elements import ReduceOp, Reduction, element_name
from netfold.host.errors import JoinRefused, NetFoldError, PlanError
from netfold.host.flight import Flight
from netfold.host.folding.coding import Coding, LaneBits, Rounding, check_levels, lane_bits_said, narrows, take_back
from netfold.host.folding.fold import FoldRail
from netfold.host.folding.jobs import JobClient
from netfold.host.folding.parallel import ParallelFold
from netfold.host.group import Array, Group
from netfold.host.halves import HALVES, narrow, widen
from netfold.host.mesh.link import listen
from netfold.host.mesh.memory import MemoryFabric
from netfold.host.mesh.mesh import Mesh
from netfold.host.mesh.tcp import TcpMesh
from netfold.host.peers import Peers
from netfold.host.rails.joining import Joined, join_rails
from netfold.host.rails.multirail import MultiRail
from netfold.host.rails.planes import RAILS_VARIABLE, RailSpec, specs_of
from netfold.host.rails.rail import DTYPES, LaneRail, Op, Rail, RailStats
from netfold.host.roce.path_client import PlannedPaths
from netfold.host.timeline import asked
from netfold.host.work import Turns, Work
from netfold.wire import roce
from netfold.wire.flight import Operation
from netfold.wire.jobs import Join, Missing, Peer, Plan, Report

RailName = Literal["auto", "innet", "tcp", "roce"]
CONTROLLER_VARIABLE = "NETFOLD_CONTROLLER"
MAX_WORLD = 1023
"""Ranks that the encoding of Inf and NaN can count (native/quantise.h)."""

log = logging.getLogger("netfold")


class Communicator(Group):
    """All ranks of one job, ready to reduce.  Make one with ``join``, or from a ``Plan`` that came some other way.

    address    IPv4 address of this rank on the fabric
    rail       "innet": fold in the switches what they can fold, sums, averages, maxima and minima of float32 and int32,
               and as float32 those of float16 and bfloat16;
               "tcp": all over TCP between the hosts; "roce": all over queue pairs between the hosts (docs/roce.md);
               "auto": innet where the plan has trees, else tcp, with a warning that says why
    lane_bits  of folded sums and averages of floats where a call says nothing else: 32, 16 or 8; default
               $NETFOLD_LANE_BITS, or 32
    algorithm  of allreduce between the hosts: one of ``peers.KNOWN``; "auto": the cheapest by measurement; default
               $NETFOLD_ALGO, or "auto"
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
        self._coding = Coding(lane_bits or lane_bits_said(), seed=zlib.crc32(plan.job.encode()))
        check_plan(plan)
        self._plan = plan
        self._joined = joined
        self._saturations = 0
        self._client = client
        self._watcher = None if client is None or plan.world == 1 else client.watch(plan)
        me = f"job {plan.job!r}, rank {plan.rank} of {plan.world}"
        if rail == "innet" and plan.world > 1 and not plan.trees:
            raise PlanError(
                f"{me}: rail='innet' asked for, but the plan has no tree: "
                f"{plan.reason or 'the controller gave no reason'}; use rail='auto' to fall back to TCP"
            )
        if rail == "innet" and helpers:
            raise ValueError(f"rail='innet', helpers={list(helpers)}: switches fold what every rank sends; use 'tcp'")
        self._fold: Rail | None = None
        self._lanes: LaneRail | None = None
        self._whole = plan.world > 1  # lanes are whole, whatever was asked for
        if joined is not None:
            flight = Flight(plan.job, plan.rank, plan.world, timeline=joined.timeline)
            super().__init__(joined.peers(), Turns(me, flight))
            self._fold, self._between = joined.rails, "tcp"
            joined.rails.note = flight.note
            joined.rails.on_change(self._follow)
            self._why = f"asked for by rails= or {RAILS_VARIABLE}"
            if self._coding.lane_bits != 32:
                self._narrow(self._coding.lane_bits)
            return
        shared = any(len(ranks) > 1 for ranks in plan.machines)
        if rail == "roce" and shared:
            raise PlanError(f"{me}: rail='roce' needs an address for each rank, and {_sharing(plan)}; use rail='tcp'")
        mesh = _mesh(plan, listener, timeout, rail, client)
        machines = plan.machines if shared else ()
        peers = Peers(mesh, algorithm=algorithm, order=_ring_order(plan), helpers=helpers, machines=machines)
        timeline = mesh.timeline = asked(plan.job, plan.rank, plan.world)
        super().__init__(peers, Turns(me, Flight(plan.job, plan.rank, plan.world, timeline=timeline)))
        self._between = "roce" if rail == "roce" else "tcp"
        if plan.world == 1:
            self._why = "this job has one rank"
        elif rail in ("tcp", "roce"):
            self._why = f"asked for by rail={rail!r}"
        elif helpers:
            self._why = f"ranks {list(helpers)} help"
        elif plan.trees:
            names = ", ".join(tree.name for tree in plan.trees)
            self._why = f"the controller planned {len(plan.trees)} tree(s) for this job: {names}"

            def resume(missing: dict[int, int]) -> Plan:
                assert client is not None, "only the controller halts ranks"
                self._plan = client.resume(plan, missing, timeout)
                return self._plan

            try:
                if shared:
                    self._lanes = ParallelFold(
                        plan, peers, address, always=rail == "innet", timeout=timeout, news=self._hear,
                        missing=self._ask, resume=resume, suspect=self._suspect, timeline=timeline,
                    )
                else:
                    self._lanes = FoldRail(
                        plan, address, timeout=timeout, news=self._hear, missing=self._ask, resume=resume,
                        suspect=self._suspect, timeline=timeline,
                    )
            except BaseException:
                mesh.close()
                raise
            self._fold, self._whole = self._lanes, False
            if self._watcher is not None:
                self._watcher.on_halt(self._lanes.halt)
                self._watcher.on_settle(self._lanes.settle)
        else:
            self._why = f"nothing folds for this job: {plan.reason or 'the controller gave no reason'}"
            warnings.warn(
                f"{me}: no aggregation tree, every allreduce goes over TCP between the hosts. "
                f"Reason: {plan.reason or 'none given by the controller'}",
                RuntimeWarning,
                stacklevel=3,
            )
        log.info("%s: %s (%s)", me, self.rail, self._why)
        try:
            if self._coding.lane_bits != 32:
                self._narrow(self._coding.lane_bits)
        except ValueError:
            self.close()
            raise

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
        return self._fold.name if self._fold else self._between if self.size > 1 else "self"

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
        )  # fmt: skip
        if self._fold is None:
            return own
        folded = self._fold.stats()
        return replace(
            folded,
            operations=folded.operations + own.operations,
            bytes_reduced=folded.bytes_reduced + own.bytes_reduced,
            seconds=folded.seconds + own.seconds,
            saturated=own.saturated,
        )

    def flight(self) -> list[Operation]:
        """The last operations of this rank, groups' included, the oldest first (``flight.KEPT``)."""
        return self._turns.flight.operations()

    def explain(self, nbytes: int, op: str = "sum", dtype: str = "float32") -> str:
        """Which path an allreduce of ``nbytes`` bytes takes where nothing else is said, and why."""
        if self._fold is None:
            return f"{self._peers.explain(nbytes)}; {self._why}"
        if _folds(op, dtype):
            said = ""
            if dtype in HALVES:
                said, nbytes = f"{dtype} folds as float32: ", 2 * nbytes
            if self._lanes is not None and narrows(op, dtype):
                return f"{said}{self._lanes.describe(nbytes, self._coding.lane_bits)}; {self._why}"
            return f"{said}{self._fold.describe(nbytes)}; {self._why}"
        return (
            f"{self._peers.explain(nbytes)}; {op} of {dtype} does not fold: sums, averages, maxima and minima of "
            "float32, float16, bfloat16 and int32 do"
        )

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
        """The rail that carries such an allreduce where the call names no algorithm: ``rail``, or "tcp" or "roce"."""
        return self.rail if self.size == 1 or _folds(op, dtype) else self._between

    def close(self) -> None:
        """Reports totals, leaves the job and gives everything back.  Never raises for an absent controller."""
        if not self._turns.close():
            return
        stats = self.stats()
        if self._client is not None:  # before all else: until it is answered, others may need what we have sent
            if self._watcher is not None:
                self._watcher.leaving()
            broken = self._turns.broken
            self._client.leave(
                Report(
                    job=self._plan.job,
                    rank=self.rank,
                    epoch=self._plan.epoch,
                    operations=stats.operations,
                    bytes_reduced=stats.bytes_reduced,
                    packets_sent=stats.packets_sent,
                    retransmissions=stats.retransmissions,
                    by_tree={name: tree.bytes_reduced for name, tree in stats.by_tree.items()},
                ),
                reason="" if broken is None else str(broken),
            )
        if self._fold is not None:
            self._fold.close()
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

    # ---- reductions ------------------------------------------------------------------------------------------------
    def allreduce(
        self,
        array: Array,
        out: Array | None = None,
        op: ReduceOp = "sum",
        *,
        dtype: str | None = None,
        algorithm: str | None = None,
        name: str = "allreduce",
        lane_bits: LaneBits | None = None,
        rounding: Rounding | None = None,
        feedback: Array | None = None,
        saturate: bool = False,
    ) -> Array:
        """``Group.allreduce``, and how the switches are to do it.

        lane_bits  16 or 8: half and a quarter of the bytes of a folded sum or average of floats (docs/host.md has the
                   error bounds); all ranks must say the same.  Default: the communicator's
        rounding   of narrow lanes: "stochastic", the default, repeats with the job's name, the operation's number and
                   the rank; "nearest", the default with ``feedback``
        feedback   error feedback: float32 zeros of the array's shape at first, and the same array in every later call
                   on the same quantity.  It holds what narrow lanes left out so far, which is added before
        saturate   a sum of int32 stops at -2**31 and 2**31 - 1 instead of wrapping: a partial sum that gets there
                   stays.  ``stats().saturated`` counts elements that stand there, and a RuntimeWarning says how many
        """
        array = np.asarray(array)
        reduction = Reduction(op, element_name(array, dtype))
        coding = self._coding.asked(
            array, reduction.op, reduction.element, lane_bits, rounding, feedback, saturate
        )
        if coding.lane_bits != 32:
            self._narrow(coding.lane_bits)
        result, saturated = self._reduced(array, out, reduction, algorithm, name, coding, feedback)
        if saturated:
            self._saturations += saturated
            warnings.warn(
                f"{self._turns.me}, {name}: {saturated} of {result.size} elements of a saturating sum stand at an end "
                "of int32's range: their sums are lost",
                RuntimeWarning,
                stacklevel=2,
            )
        return result

    def iallreduce(
        self,
        array: Array,
        out: Array | None = None,
        op: ReduceOp = "sum",
        *,
        dtype: str | None = None,
        algorithm: str | None = None,
        name: str = "allreduce",
        lane_bits: LaneBits | None = None,
        rounding: Rounding | None = None,
        feedback: Array | None = None,
        saturate: bool = False,
    ) -> Work[Array]:
        """``allreduce`` that returns at once; several may be under way, and are done in the order of their calls."""
        call = lambda: self.allreduce(  # noqa: E731
            array, out, op, dtype=dtype, algorithm=algorithm, name=name, lane_bits=lane_bits, rounding=rounding,
            feedback=feedback, saturate=saturate,
        )  # fmt: skip
        return self._turns.later(call, f"{name}, {op} of {np.size(array)} x {np.asarray(array).dtype}")

    # ---- inside ----------------------------------------------------------------------------------------------------
    def _narrow(self, lane_bits: int) -> None:
        """Checks that narrow lanes can be; says once where they are not."""
        if self._lanes is not None:
            check_levels(lane_bits, self._lanes.members)
        if self._whole:
            self._whole = False
            log.warning(
                "%s: lanes of %d bits are for what the switches fold; this job's floats go over %s whole",
                self._turns.me, lane_bits, self.rail,
            )  # fmt: skip

    def _follow(self) -> None:
        """A rail has died or is back, on all ranks in the same operation: the peers are those of the first one up."""
        assert self._joined is not None
        before, self._peers = self._peers, self._joined.peers()
        self._peers.note, self._peers.number = before.note, before.number

    def _hear(self) -> NetFoldError | None:
        return None if self._watcher is None else self._watcher.news()

    def _suspect(self, waits: dict[int, int]) -> None:
        """Repeats bring nothing."""
        if self._client is not None:
            self._client.suspect(self._plan, waits)

    def _ask(self, waits: dict[int, int]) -> Missing:
        """For whom the switches wait."""
        return Missing([], []) if self._client is None else self._client.missing(self._plan, waits)

    def _allreduce(
        self,
        array: Array,
        result: Array,
        reduction: Reduction,
        algorithm: str | None,
        number: int,
        coding: Coding,
        feedback: Array | None,
    ) -> int:
        folds = self._fold is not None and algorithm is None and _folds(reduction.op, reduction.element)
        lanes = self._lanes
        if self._fold is None or not folds or (coding.saturate and not (lanes and lanes.saturates)):
            return super()._allreduce(array, result, reduction, algorithm, number, coding, feedback)
        if reduction.element in HALVES:
            wide = widen(array, reduction.element)
            self._allreduce(wide, wide, Reduction(reduction.op, "float32"), None, number, coding, feedback)
            narrow(wide, reduction.element, result)
            return 0
        if feedback is not None and (lanes is None or coding.lane_bits == 32):
            array, feedback = take_back(array, feedback), None
        op, native = cast(Op, reduction.op), reduction.dtype
        source = np.require(array, native, ["C", "A"]).reshape(-1)
        plain = result.flags.c_contiguous and result.flags.aligned and result.dtype == native
        # Results arrive while later contributions still leave: what overlaps must be the same memory or none.
        same = plain and source.ctypes.data == result.ctypes.data
        direct = plain and (same or not np.may_share_memory(source, result))
        out = result.reshape(-1) if direct else np.empty(source.shape, native)
        left_out = None if feedback is None else feedback.reshape(-1)
        flight, before = self._turns.flight, self._fold.retransmissions
        if self._joined is None:  # several rails say themselves which carries what
            flight.note(self._fold.name)
        try:
            if lanes is None:
                self._fold.allreduce(source, out, op, number)
            else:
                lanes.allreduce(source, out, op, number, coding, left_out)
        finally:
            flight.now.retransmissions += self._fold.retransmissions - before
        if not direct:
            result[...] = out.reshape(result.shape)
        return lanes.saturated if lanes is not None and coding.saturate else 0


def _folds(op: str, element: str) -> bool:
    """Whether the switches can: their lanes add integers, the hosts make them of floats."""
    return op in get_args(Op) and (element in HALVES or element in (dtype.name for dtype in DTYPES))


def _sharing(plan: Plan) -> str:
    ranks = next(ranks for ranks in plan.machines if len(ranks) > 1)
    return f"ranks {', '.join(map(str, ranks))} have one, {plan.peers[ranks[0]].address}"


def _ring_order(plan: Plan) -> list[int]:
    """The controller's; a plan that came some other way has none, and then ranks go by address: hosts under one leaf
    are mostly numbered side by side."""
    if plan.ring:
        return plan.ring

    def place(peer: Peer) -> tuple[list[int], int]:
        parts = peer.address.split(".")
        return [int(part) for part in parts] if all(part.isdigit() for part in parts) else [], peer.rank

    return [peer.rank for peer in sorted(plan.peers, key=place)]


def _mesh(
    plan: Plan, listener: socket.socket | None, timeout: float, rail: RailName, client: JobClient | None
) -> Mesh:
    if plan.world == 1:
        if listener is not None:
            listener.close()
        return MemoryFabric(1).meshes[0]
    if listener is None:
        raise ValueError("a job of several ranks needs the listening socket whose port stands in the plan (listener=)")
    if rail == "roce":
        from netfold.host.roce.mesh import RoceMesh  # its native library is built only where it is wanted

        return RoceMesh(plan, listener, timeout=timeout, planned=_planned(plan, client))
    return TcpMesh(plan, listener, timeout=timeout)


def _planned(plan: Plan, client: JobClient | None) -> PlannedPaths | None:
    """The controller's paths for this job, where it has any; all ranks get them or none."""
    if client is None:
        return None
    try:
        return PlannedPaths(client, plan, order=_ring_order(plan))
    except PlanError as error:
        log.warning("%s; the switches choose paths by their hash", error)
        return None


def check_plan(plan: Plan) -> None:
    """Raises PlanError where a plan contradicts itself."""

    def refuse(what: str) -> PlanError:
        return PlanError(f"plan of job {plan.job!r} for rank {plan.rank}: {what}")

    if not 0 <= plan.rank < plan.world <= MAX_WORLD:
        raise refuse(f"rank {plan.rank} of world {plan.world}: expected 0 <= rank < world <= {MAX_WORLD}")
    if sorted(peer.rank for peer in plan.peers) != list(range(plan.world)):
        raise refuse(f"peers are ranks {[peer.rank for peer in plan.peers]}: expected each of 0..{plan.world - 1} once")
    machines = plan.machines or [[rank] for rank in range(plan.world)]
    if sorted(rank for ranks in machines for rank in ranks) != list(range(plan.world)):
        raise refuse(f"machines are {machines}: expected each of 0..{plan.world - 1} once")
    here = next(ranks for ranks in machines if plan.rank in ranks)
    if plan.trees and any(len(ranks) != len(here) for ranks in machines):
        raise refuse(f"machines are {machines}: expected equally many ranks on each, since there are trees")
    if plan.ring and sorted(plan.ring) != list(range(plan.world)):
        raise refuse(f"the ring visits {plan.ring}: expected each of 0..{plan.world - 1} once")
    seen: dict[int, str] = {}
    for tree in plan.trees:
        if not 0 < tree.weight < float("inf"):
            raise refuse(f"tree {tree.name!r} has weight {tree.weight}: expected a positive number")
        for kind, stream in (("data", tree.data), ("agreement", tree.agreement)):
            name = f"tree {tree.name!r}, {kind} stream"
            if stream.slots < 2 or stream.slots & (stream.slots - 1) or stream.slots > 1 << 20:
                raise refuse(f"{name}: {stream.slots} slots: expected a power of two, 2 .. 2^20")
            if not 0 <= stream.psn <= roce.PSN_MASK:
                raise refuse(f"{name}: first PSN {stream.psn}: expected 24 bits")
            for qp in (stream.qp, stream.peer_qp):
                if not 0 < qp <= 0xFFFFFF or qp % roce.QUEUE_PAIRS:
                    raise refuse(f"{name}: queue pair {qp}: expected a multiple of {roce.QUEUE_PAIRS} below 2^24")
            if not 0 < stream.source_port <= 0xFFFF or stream.source_port == roce.UDP_PORT:
                raise refuse(f"{name}: source port {stream.source_port}: expected 1 .. 65535, not {roce.UDP_PORT}")
            connection = stream.qp // roce.QUEUE_PAIRS
            if {connection % len(here), stream.source_port % len(here)} != {here.index(plan.rank)}:
                raise refuse(
                    f"{name}: connection {connection}, source port {stream.source_port}: expected both to leave "
                    f"{here.index(plan.rank)} divided by {len(here)}, this rank's place on its machine"
                )
            if stream.qp in seen:
                raise refuse(f"{name}: queue pair {stream.qp} is also that of {seen[stream.qp]}")
            seen[stream.qp] = name
