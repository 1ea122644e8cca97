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
import threading
import warnings
from types import TracebackType
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from netfold.host.errors import Busy, Closed, JoinRefused, NetFoldError, PlanError
from netfold.host.jobs import JobClient
from netfold.host.rail import DTYPES, Op, Rail, RailStats
from netfold.wire import roce
from netfold.wire.jobs import Join, Plan, Report

RailName = Literal["auto", "innet", "tcp"]
CONTROLLER_VARIABLE = "NETFOLD_CONTROLLER"
MAX_WORLD = 1023
"""Ranks that the encoding of Inf and NaN can count (native/quantise.h)."""

log = logging.getLogger("netfold")


class Communicator:
    """All ranks of one job, ready to reduce.  Make one with ``join``, or from a ``Plan`` that came some other way.

    address    IPv4 address of this rank on the fabric
    rail       "innet": fold in the switches; "tcp": ring over TCP; "auto": innet where the plan has trees, else tcp,
               with a warning that says why
    timeout    seconds without any progress after which a collective gives up with CollectiveTimeout
    listener   bound TCP socket for the ring, whose port stands in the plan; needed where the ring is used
    """

    def __init__(
        self,
        plan: Plan,
        *,
        address: str,
        rail: RailName = "auto",
        timeout: float = 10.0,
        listener: socket.socket | None = None,
        client: JobClient | None = None,
    ) -> None:
        if rail not in get_args(RailName):
            raise ValueError(f"rail={rail!r}: expected one of {', '.join(get_args(RailName))}")
        if not timeout > 0:
            raise ValueError(f"timeout={timeout!r}: expected seconds above 0")
        check_plan(plan)
        self._plan = plan
        self._client = client
        self._lock = threading.Lock()
        self._number = 0
        self._broken: NetFoldError | None = None
        self._closed = False
        self._why = ""
        self._rail = self._make_rail(rail, address, timeout, listener)

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
        token: str = "",
    ) -> Self:
        """Joins a job and waits until all its ranks have.

        controller   address of the job service, "host:port" or "unix:/path"; default: $NETFOLD_CONTROLLER
        join_timeout seconds to wait for the other ranks
        Raises JoinRefused, PlanError, TransportError, ValueError.
        """
        if not 0 <= rank < world:
            raise ValueError(f"rank={rank}, world={world}: expected 0 <= rank < world")
        if world > MAX_WORLD:
            raise ValueError(f"world={world}: at most {MAX_WORLD} ranks fold into one sum")
        where = controller or os.environ.get(CONTROLLER_VARIABLE, "")
        if not where:
            raise JoinRefused(
                f"job {job!r}, rank {rank}: no controller named; give controller='host:port' or set "
                f"{CONTROLLER_VARIABLE} (`netfold up` prints the address)"
            )
        from netfold.host.ring import listen

        listener = listen(address)
        client = None
        try:
            client = JobClient(where)
            plan = client.join(
                Join(
                    job=job,
                    world=world,
                    rank=rank,
                    address=address,
                    tcp="{}:{}".format(*listener.getsockname()),
                    path_mtu=roce.PATH_MTU,
                    timeout=join_timeout,
                    token=token,
                )
            )
            if (plan.job, plan.rank, plan.world) != (job, rank, world):
                raise PlanError(
                    f"job {job!r}: asked to be rank {rank} of {world}, the plan of {where} is for job {plan.job!r}, "
                    f"rank {plan.rank} of {plan.world}: the controller mixed two joins up"
                )
            return cls(plan, address=address, rail=rail, timeout=timeout, listener=listener, client=client)
        except BaseException:
            listener.close()
            if client is not None:
                client.close()
            raise

    # ---- collectives ---------------------------------------------------------------------------------------------
    def allreduce(self, array: NDArray[Any], out: NDArray[Any] | None = None, op: Op = "sum") -> NDArray[Any]:
        """The sum or average of every rank's array, the same bits on every rank.

        array  float32 or int32, any shape (0-d and empty too); the same shape and dtype on all ranks
        out    where the result goes, may be ``array`` itself; default: a new array
        op     "sum" (int32 wraps) or "average" (float32 only)
        Arrays that are not C-contiguous, aligned and of native byte order go through a copy.
        float32 in the network: block floating point, see native/quantise.h for the error bound.
        Raises TypeError and ValueError for what it cannot take, CollectiveTimeout, RankMismatch, PeerLost,
        TransportError, Busy, Closed.
        """
        array = np.asarray(array)
        self._check(array, out, op)
        result = np.empty(array.shape, array.dtype.newbyteorder("=")) if out is None else out
        self._begin()
        try:
            self._number += 1
            self._reduce(array, result, op)
        except NetFoldError as error:
            self._broken = error
            raise
        except BaseException as error:  # Ctrl-C in the middle: packets of this operation are out already
            self._broken = NetFoldError(
                f"{self._me()}: operation {self._number} was interrupted ({type(error).__name__}); join anew"
            )
            raise
        finally:
            self._lock.release()
        return result

    def barrier(self) -> None:
        """Returns once every rank has called it."""
        self.allreduce(np.zeros(1, np.int32))

    # ---- what it is and does ---------------------------------------------------------------------------------------
    @property
    def rank(self) -> int:
        """This rank, 0 .. size - 1."""
        return self._plan.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._plan.world

    @property
    def plan(self) -> Plan:
        """What the controller decided."""
        return self._plan

    @property
    def rail(self) -> str:
        """Name of the rail in use: "innet", "tcp", or "self" for a job of one rank."""
        return self._rail.name

    def stats(self) -> RailStats:
        """Operations, bytes, packets and retransmissions so far, in all and by tree."""
        return self._rail.stats()

    def explain(self, nbytes: int) -> str:
        """Which path a tensor of ``nbytes`` bytes takes, and why."""
        return f"{self._rail.describe(nbytes)}; {self._why}"

    def close(self) -> None:
        """Reports totals, leaves the job and gives everything back.  Never raises for an absent controller."""
        if self._closed:
            return
        self._closed = True
        stats = self._rail.stats()
        self._rail.close()
        if self._client is not None:
            report = Report(
                job=self._plan.job,
                rank=self.rank,
                epoch=self._plan.epoch,
                operations=stats.operations,
                bytes_reduced=stats.bytes_reduced,
                packets_sent=stats.packets_sent,
                retransmissions=stats.retransmissions,
                by_tree={name: tree.bytes_reduced for name, tree in stats.by_tree.items()},
            )
            self._client.leave(report, reason="" if self._broken is None else str(self._broken))
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
    def _make_rail(self, wanted: RailName, address: str, timeout: float, listener: socket.socket | None) -> Rail:
        plan = self._plan
        if plan.world == 1:
            from netfold.host.alone import AloneRail

            self._why = "this job has one rank"
            rail: Rail = AloneRail()
        elif wanted == "tcp" or (wanted == "auto" and not plan.trees):
            from netfold.host.ring import RingRail

            if wanted == "tcp":
                self._why = "asked for by rail='tcp'"
            else:
                self._why = f"nothing folds for this job: {plan.reason or 'the controller gave no reason'}"
                warnings.warn(
                    f"{self._me()}: no aggregation tree, every allreduce goes over a TCP ring between the hosts. "
                    f"Reason: {plan.reason or 'none given by the controller'}",
                    RuntimeWarning,
                    stacklevel=4,
                )
            if listener is None:
                raise ValueError("the TCP ring needs the listening socket whose port stands in the plan (listener=)")
            rail = RingRail(plan, listener, timeout=timeout)
            listener = None  # the ring owns it now
        elif not plan.trees:
            raise PlanError(
                f"{self._me()}: rail='innet' asked for, but the plan has no tree: "
                f"{plan.reason or 'the controller gave no reason'}; use rail='auto' to fall back to a TCP ring"
            )
        else:
            from netfold.host.fold import FoldRail

            names = ", ".join(tree.name for tree in plan.trees)
            self._why = f"the controller planned {len(plan.trees)} tree(s) for this job: {names}"
            rail = FoldRail(plan, address, timeout=timeout)
        if listener is not None:
            listener.close()
        log.info("%s: %s (%s)", self._me(), rail.name, self._why)
        return rail

    def _check(self, array: NDArray[Any], out: NDArray[Any] | None, op: str) -> None:
        names = " and ".join(d.name for d in DTYPES)
        if array.dtype.newbyteorder("=") not in DTYPES:
            raise TypeError(f"allreduce of dtype {array.dtype}: {names} are supported; convert with .astype()")
        if op not in get_args(Op):
            raise ValueError(f"op={op!r}: expected one of {', '.join(get_args(Op))}")
        if op == "average" and array.dtype.kind == "i":
            raise TypeError("op='average' of int32: an average of integers is no integer; sum, or convert to float32")
        if out is None:
            return
        if not isinstance(out, np.ndarray):
            raise TypeError(f"out is a {type(out).__name__}: expected a numpy array")
        if out.shape != array.shape or out.dtype.newbyteorder("=") != array.dtype.newbyteorder("="):
            raise ValueError(
                f"out is {out.dtype}{list(out.shape)}, array is {array.dtype}{list(array.shape)}: they must be alike"
            )
        if not out.flags.writeable:
            raise ValueError("out is read-only")

    def _begin(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise Busy(f"{self._me()}: another thread is inside a collective; call from one thread, or use a lock")
        try:
            if self._closed:
                raise Closed(f"{self._me()}: the communicator was closed")
            if self._broken is not None:
                raise self._broken
        except BaseException:
            self._lock.release()
            raise

    def _reduce(self, array: NDArray[Any], result: NDArray[Any], op: Op) -> None:
        native = array.dtype.newbyteorder("=")
        source = np.require(array, native, ["C", "A"]).reshape(-1)
        plain = result.flags.c_contiguous and result.flags.aligned and result.dtype == native
        # Results arrive while later contributions still leave: what overlaps must be the same memory or none.
        same = plain and source.ctypes.data == result.ctypes.data
        if plain and (same or not np.may_share_memory(source, result)):
            self._rail.allreduce(source, result.reshape(-1), op, self._number)
            return
        flat = np.empty(source.shape, native)
        self._rail.allreduce(source, flat, op, self._number)
        result[...] = flat.reshape(result.shape)

    def _me(self) -> str:
        return f"job {self._plan.job!r}, rank {self._plan.rank} of {self._plan.world}"


def check_plan(plan: Plan) -> None:
    """Raises PlanError where a plan contradicts itself."""

    def refuse(what: str) -> PlanError:
        return PlanError(f"plan of job {plan.job!r} for rank {plan.rank}: {what}")

    if not 0 <= plan.rank < plan.world <= MAX_WORLD:
        raise refuse(f"rank {plan.rank} of world {plan.world}: expected 0 <= rank < world <= {MAX_WORLD}")
    if sorted(peer.rank for peer in plan.peers) != list(range(plan.world)):
        raise refuse(f"peers are ranks {[peer.rank for peer in plan.peers]}: expected each of 0..{plan.world - 1} once")
    seen: dict[int, str] = {}
    for tree in plan.trees:
        if not 0 < tree.weight < float("inf"):
            raise refuse(f"tree {tree.name!r} has weight {tree.weight}: expected a positive number")
        for kind, stream in (("sum", tree.sum), ("max", tree.max)):
            name = f"tree {tree.name!r}, {kind} stream"
            if stream.slots < 2 or stream.slots & (stream.slots - 1) or stream.slots > 1 << 20:
                raise refuse(f"{name}: {stream.slots} slots: expected a power of two, 2 .. 2^20")
            if not 0 <= stream.psn <= roce.PSN_MASK:
                raise refuse(f"{name}: first PSN {stream.psn}: expected 24 bits")
            if not (0 < stream.qp <= 0xFFFFFF and 0 < stream.peer_qp <= 0xFFFFFF):
                raise refuse(f"{name}: queue pairs {stream.qp} and {stream.peer_qp}: expected 1 .. 2^24 - 1")
            if not 0 < stream.source_port <= 0xFFFF or stream.source_port == roce.UDP_PORT:
                raise refuse(f"{name}: source port {stream.source_port}: expected 1 .. 65535, not {roce.UDP_PORT}")
            if stream.qp in seen:
                raise refuse(f"{name}: queue pair {stream.qp} is also that of {seen[stream.qp]}")
            seen[stream.qp] = name
