# SPDX-License-Identifier: Apache-2.0
"""The communicator, the object that a training loop uses.

    with Communicator.join("digits", rank, world, address="10.0.1.1", controller="unix:/run/netfold") as comm:
        comm.allreduce(gradient, out=gradient, op="average")

Life: join (all ranks receive their plan together) -> any number of collectives, in the same order on every rank ->
close.  When a rank is lost, the remaining ranks ``shrink`` the communicator.  New ranks ``join_running``, and the
others ``grow``.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from netfold.host.api import assembly
from netfold.host.api.change import RankChange
from netfold.host.api.group import Group
from netfold.host.api.join_settings import JoinSettings, RailName
from netfold.host.api.members import Members
from netfold.host.api.parts import Parts
from netfold.host.errors import Aborted, CollectiveTimeout, NetFoldError
from netfold.host.mesh.mesh import Informed
from netfold.host.opening.open_mesh import PathChoice
from netfold.host.opening.planes import RailSpec
from netfold.host.operation.coding import LaneBits
from netfold.wire.flight import OperationRecord
from netfold.wire.plan import Plan

if TYPE_CHECKING:  # imported where several rails are asked for
    from netfold.host.rails.multirail import MultiRail

log = logging.getLogger("netfold")

OnLoss = Literal["raise", "shrink"]
_kinds: dict[OnLoss, type[Communicator]] = {}
"""Values of ``on_loss`` other than "raise" -> their classes, whose modules ``netfold.host.api`` imports."""
_open: weakref.WeakSet[Communicator] = weakref.WeakSet()
"""The open communicators of this process, which leave their jobs when it ends."""


class Communicator(Group):
    """All ranks of one job, ready to reduce.  Create it with ``join``, or with ``of_plan`` from a plan of another
    source.

    parts  what ``assembly`` has put together
    """

    def __init__(self, parts: Parts) -> None:
        change = parts.membership.plan.change
        first = 1 if change is None else min(change.finished) + 1
        super().__init__(parts.dispatch, parts.sequencer, parts.coding, first)
        self._parts = parts
        _open.add(self)

    @classmethod
    def join(
        cls,
        job: str,
        rank: int,
        world: int,
        *,
        address: str = "",
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
        on_loss: OnLoss = "raise",
        reproducible: bool | None = None,
        paths: PathChoice | None = None,
    ) -> Communicator:
        """Joins a job and waits until all its ranks have.

        address      IPv4 address of this rank on the fabric; default: $NETFOLD_ADDRESS, or with ``rails``
                     those of their planes
        controller   address of the job service, "host:port" or "unix:/path"; default: $NETFOLD_CONTROLLER
        timeout      seconds without any progress after which a collective gives up with CollectiveTimeout
        join_timeout seconds to wait for the other ranks
        rail         "verbs": as "innet", by the queue pairs of the host's RDMA device (docs/verbs.md);
                     "innet": fold in the switches what they can fold, sums, averages, maxima and minima of float32 and
                     int32, and as float32 those of float16 and bfloat16;
                     "tcp": all over TCP between the hosts; "roce": all over queue pairs between the hosts
                     (docs/roce.md);
                     "auto": where the plan has trees, what the switches can fold goes by the cheapest way of all,
                     measured at the first such operation (``explain``); else tcp, with a warning that says why
        lane_bits    of folded sums and averages of floats where a call says nothing else: 32, 16 or 8; default
                     $NETFOLD_LANE_BITS, or 32
        algorithm    of allreduce: one of ``peers.KNOWN``, then nothing folds but with rail="innet"; "innet": as the
                     rail; "auto": the cheapest by measurement; default $NETFOLD_ALGO, or "auto"
        helpers      ranks that have no data and only add for the others (``Peers``); nothing folds then
        path_mtu     payload bytes of a packet, refused where the fabric has another; default: what it has
        token        the fabric's, if it has one; default: that of
                     $NETFOLD_TOKEN_FILE, or $NETFOLD_TOKEN
        rails        several at once, "innet@a+tcp@b" with planes a and b of $NETFOLD_PLANES, or RailSpecs; instead of
                     ``rail``, ``address`` and ``controller``; default: $NETFOLD_RAILS.  What the other parameters mean
                     then is in docs/rails.md
        on_loss      "raise": where a rank is lost, operations end with its name, and the ranks that are left may
                     ``shrink``; "shrink": an allreduce does that by itself, and is finished all the same
                     (``enduring``), for two copies of its tensor
        reproducible of reductions of floats where a call says nothing else: bits that depend on the contributions
                     alone (``allreduce``); default: whether $NETFOLD_REPRODUCIBLE is 1
        paths        how what goes between the hosts chooses among equally short paths: "planned", by the controller;
                     "hashed", by the switches; "spray", each packet at random; "reps", each packet by the host, over
                     rail="roce" alone; default $NETFOLD_PATHS, or "planned" (docs/ethereal.md)
        Raises JoinRefused, PlanError, TransportError, ValueError.
        """
        kind = cls._kind(on_loss)
        settings = JoinSettings(address, rail, lane_bits, algorithm, helpers, timeout, reproducible, paths)
        return kind(assembly.join(
            job, rank, world, settings, controller=controller, join_timeout=join_timeout, path_mtu=path_mtu,
            token=token, rails=rails,
        ))

    @classmethod
    def join_running(
        cls,
        job: str,
        *,
        address: str = "",
        controller: str | None = None,
        timeout: float = 10.0,
        join_timeout: float = 30.0,
        rail: RailName = "auto",
        lane_bits: LaneBits | None = None,
        algorithm: str | None = None,
        token: str = "",
        rails: str | Sequence[RailSpec] | None = None,
        on_loss: OnLoss = "raise",
        reproducible: bool | None = None,
        paths: PathChoice | None = None,
    ) -> Communicator:
        """Joins a running job as its last rank, and waits until the other ranks admit it (``grow``).  The rank may be
        new, or return after a loss.  Its next operation is the one that the others call after ``grow``.

        The parameters and errors are those of ``join``; ``join_timeout`` is for the others' ``grow``.
        """
        kind = cls._kind(on_loss)
        settings = JoinSettings(address, rail, lane_bits, algorithm, (), timeout, reproducible, paths)
        return kind(assembly.join(
            job, 0, 1, settings, controller=controller, join_timeout=join_timeout, token=token, rails=rails,
            joining=True,
        ))

    def __init_subclass__(cls, *, on_loss: OnLoss = "raise", **kwargs: Any) -> None:
        """Declares which ``join(on_loss=)`` makes objects of this subclass; "raise": none."""
        super().__init_subclass__(**kwargs)
        if on_loss != "raise":
            _kinds[on_loss] = cls

    @classmethod
    def _kind(cls, on_loss: OnLoss) -> type[Communicator]:
        """The class of communicators that treat a lost rank this way.  Raises ValueError."""
        if on_loss == "raise":
            return cls
        if on_loss not in _kinds:
            raise ValueError(f"on_loss={on_loss!r}: expected 'raise' or 'shrink'")
        return _kinds[on_loss]

    @classmethod
    def of_plan(
        cls,
        plan: Plan,
        *,
        address: str,
        rail: RailName = "auto",
        lane_bits: LaneBits | None = None,
        algorithm: str | None = None,
        helpers: Sequence[int] = (),
        timeout: float = 10.0,
        listener: socket.socket | None = None,
        reproducible: bool | None = None,
        group_of: tuple[Communicator, Sequence[int]] | None = None,
    ) -> Self:
        """A communicator for a plan that did not come from a controller's job service; no controller watches the rank.

        listener  bound TCP socket whose port stands in the plan, for all that does not fold; taken over
        group_of  a communicator, and some ranks of it, in order, that these are: they fold as a group of it does, where
                  it has a controller
        The other parameters are those of ``join``.  Raises PlanError, TransportError, ValueError.
        """
        settings = JoinSettings(address, rail, lane_bits, algorithm, helpers, timeout, reproducible)
        within = None if group_of is None else (group_of[0]._parts, group_of[1])
        return cls(assembly.of_plan(plan, settings, listener, within))

    # ---- what it is and does ---------------------------------------------------------------------------------------
    @property
    def plan(self) -> Plan:
        """The plan that the controller made for this rank."""
        return self._parts.membership.plan

    @property
    def rail(self) -> str:
        """Name of the rail that folds: "innet" or "verbs"; else "tcp" or "roce", or "self" for a job of one rank."""
        return self._parts.dispatch.rail

    @property
    def timeout(self) -> float:
        """Seconds without progress after which a collective gives up."""
        return self._parts.settings.timeout

    @property
    def problem(self) -> NetFoldError | None:
        """Why no operation can begin, or the controller's report that will end the next one, such as the loss of a
        rank; None if all is well."""
        return self._parts.sequencer.broken or self._parts.membership.job_error()

    @property
    def rails(self) -> MultiRail | None:
        """The several rails of ``join(rails=)``, with their shares, states and figures; else None."""
        return self._parts.rails

    @property
    def may_reduce_inside(self) -> bool:
        """True if some of the ranks share a machine, and fold or may fold later (``machine_group``); it never
        changes."""
        dispatch, peers = self._parts.dispatch, self.plan.peers
        return (dispatch.switches is not None or dispatch.may_open) and len({one.address for one in peers}) < len(peers)

    @property
    def shared_memory_rate(self) -> float:
        """Measured rate, in bytes per second, of the shared memory in which the ranks of a machine reduce before the
        switches do; 0 if each rank has a machine of its own, or nothing folds."""
        switches = self._parts.dispatch.switches
        return 0.0 if switches is None else switches.shared_memory_rate

    def flight(self) -> list[OperationRecord]:
        """The last operations of this rank and its groups, oldest first; at most ``flight.MAX_OPERATIONS``."""
        return self._parts.sequencer.flight.operations()

    # ---- other ranks -------------------------------------------------------------------------------------------------
    def shrink(self, *, timeout: float | None = None) -> RankChange:
        """Continues without the lost ranks: all remaining ranks call it, after an operation has named a lost rank.

        From then on this communicator consists of the remaining ranks, in their order, over new trees; its groups must
        be created again.  The returned change says which operations all ranks have finished (``last``).  All ranks
        repeat the later ones; or, if some ranks have finished them (``ahead``), the others take the results from
        those.  If no rank is lost, it is a new beginning for all.

        timeout  seconds to wait for live ranks that have not called it; then they are evicted, provided that more than
                 half of the ranks have called it; default: the communicator's timeout
        Raises Evicted if this rank is no longer in the job, CollectiveTimeout if too few ranks have called it,
        JobEnded, PlanError, TransportError; ValueError if the job has no controller, or has helpers.
        """
        return self._reform(None, grows=False, timeout=timeout)

    def grow(self, *, timeout: float | None = None) -> RankChange:
        """Admits the ranks that wait to join (``join_running``): all ranks call it between the same two operations.

        The new ranks come last in the order of ranks, over new trees, and still need the state of the computation
        (``broadcast``).  If no rank waits, nothing changes; this costs one request to the controller.  If a rank is
        lost meanwhile, it acts as ``shrink`` and admits nobody.  Parameters and errors are those of ``shrink``.
        """
        return self._reform(None, grows=True, timeout=timeout)

    def _reform(self, finished: int | None, *, grows: bool, timeout: float | None) -> RankChange:
        """``finished``: number of the last operation that this rank has finished; default: as counted here."""
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout={timeout!r}: expected seconds above 0")
        parts = self._parts
        with parts.sequencer.paused():
            done = self._ranks.finished() if finished is None else finished
            try:
                self._parts = assembly.reform(parts, done, grows=grows, timeout=timeout)
            except CollectiveTimeout:  # it may be called again
                raise
            except NetFoldError as error:
                parts.sequencer.fail(error)
                raise
            if self._parts is parts:
                return RankChange.none(self.size, done)
            change = RankChange.of_plan(self.plan)
            ranks = Members(self._parts.dispatch, parts.sequencer, change.last + 1, self._ranks.saturated)
            self._begin_anew(ranks, self._parts.coding)
        return change

    def inform(self, mesh: Informed) -> None:
        """Passes the controller's reports of lost and departed ranks on to another mesh between these ranks."""
        mesh.told_by(self._parts.membership.lost_rank, self._parts.membership.ranks_left)

    def abort(self, why: str = "the program gave it up") -> None:
        """Ends operations under way with Aborted within a tenth of a second; later ones raise it too.  Any thread may
        call it.  ``close`` then returns soon, and ends the operations of the other ranks, if nothing did before."""
        error = Aborted(f"{self._parts.sequencer.me}: aborted: {why}")
        self._parts.sequencer.fail(error)
        self._parts.dispatch.interrupt(error)
        if self._parts.folds is not None:
            self._parts.folds.interrupt(error)

    def close(self, reason: str = "") -> None:
        """Reports totals, leaves the job and releases everything.  An absent controller is no error.

        reason  why the program leaves although the others may go on: ranks that then wait for this one learn it,
                together with the number of this rank's last operation
        """
        self._parts.close(reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("" if error is None else in_a_line(error))

    def __repr__(self) -> str:
        return f"<Communicator job={self.plan.job!r} rank={self.rank} of {self.size} over {self.rail}>"


def in_a_line(error: BaseException) -> str:
    """An error's name, followed by the first line of its text if it has any."""
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])


def end_of_process() -> str:
    """The reason reported for a process that ended without closing its communicator, with its last exception if any."""
    error = getattr(sys, "last_value", None)
    return "its process ended" + (f" by {in_a_line(error)}" if error is not None else "")


@atexit.register
def _leave_at_exit() -> None:
    """Leaves in order if nothing is under way; otherwise the others detect the end of the process by themselves."""
    for comm in list(_open):
        if comm._parts.sequencer.idle:
            try:
                comm.close(end_of_process())
            except Exception:  # the others are to be closed, too
                log.exception("%r could not be closed", comm)


os.register_at_fork(after_in_child=_open.clear)
