# SPDX-License-Identifier: Apache-2.0
"""The rail "innet": the switches fold.  It runs the native engine over UDP sockets; native/fold.h describes the
algorithm."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager

from msgspec import structs

from netfold.host.client.fold_control import NO_CONTROLLER, FoldControl
from netfold.host.errors import NetFoldError
from netfold.host.innet.abi import DATA, FoldOperation
from netfold.host.innet.core import CREDITS_VARIABLE, Core, Credits, parameters_of
from netfold.host.innet.fallback import fold_ranks
from netfold.host.innet.fold_loop import TRIAL, FoldLoop
from netfold.host.innet.fold_totals import FoldTotals
from netfold.host.innet.opening import open_over_sockets
from netfold.host.innet.packet_link import DONE, OS_ERROR, REFUSED, Io, PacketLink
from netfold.host.innet.repeated import RepeatedFold
from netfold.host.innet.stall_detector import SHORTEST_PAUSE
from netfold.host.operation.arrays import Array
from netfold.host.operation.coding import Coding, LaneBits
from netfold.host.operation.rail import Flat, Op, RailStats, folds
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest, RowsRequest
from netfold.host.tracing.timeline import Timeline
from netfold.wire.plan import Plan

MAX_ELEMENTS = 1 << 28
"""Largest number of elements of one operation (1 GiB), since RETH's offset has 32 bits."""


class FoldRail(FoldLoop):
    """Collectives over the trees of a plan.

    address  this rank's address on the fabric, at which results arrive
    receiver bound to it and to the rank's UDP port (``native.sockets.bind_port``); taken over.  Default: bound here, by
             the plan
    timeout  seconds without any new result after which an operation gives up
    control  talks to the controller: where it says that the job has ended, an operation ends after PATIENCE
    timeline  records what the native loop does, where one was asked for
    falls_back  where no trees are left, what is under way ends over TCP (``fallback``), instead of with TreesLost
    lane_bits   of the job: in one with RC queue pairs sums have lanes of this width alone
    """

    name = "innet"
    narrows = True

    def __init__(
        self,
        plan: Plan,
        address: str,
        *,
        timeout: float,
        control: FoldControl = NO_CONTROLLER,
        timeline: Timeline | None = None,
        receiver: socket.socket | None = None,
        falls_back: bool = False,
        lane_bits: LaneBits = 32,
    ) -> None:
        self._lane_bits = lane_bits
        self._plan = plan
        said = os.environ.get(CREDITS_VARIABLE, "")
        self._credits = Credits.parse(said, plan.path_mtu) if said else None
        ranks = fold_ranks(plan)
        self.members, self._place = len(ranks), ranks.index(plan.rank)
        core, link = self._open(address, receiver)
        try:
            super().__init__(
                plan, address, core, link, timeout=timeout, control=control, timeline=timeline, falls_back=falls_back
            )
        except BaseException:
            link.close()
            core.close()
            raise
        self._final: RailStats | None = None  # once closed
        self._totals = FoldTotals(core, plan.trees)
        self._windows = [core.state(index, DATA).window for index in range(len(plan.trees))]
        self._first_slice = min(SHORTEST_PAUSE, int(timeout * 1e9))
        """Nanoseconds for which a repeated operation runs before it checks for stalls, timeout and watchers."""

    def _open(self, address: str, receiver: socket.socket | None) -> tuple[Core, PacketLink]:
        """The core over the plan's trees, and what carries its packets.  Raises TransportError, ValueError."""
        return open_over_sockets(self._plan, address, receiver, members=self.members, credits=self._credits)

    def takes(self, reduction: Reduction, coding: Coding) -> bool:
        """True if the switches can do this reduction, with narrow lanes and saturating sums of int32 included.

        In a job with RC queue pairs, whose numbers do not encode the lanes, a queue pair has one operation: sums in
        lanes of the job's width, and maxima, which include minima.  The answer is the same on all ranks, windowed ones
        too.
        """
        if self._plan.verb == "send" and reduction.op in ("sum", "average") and (
            coding.saturate or coding.lane_bits != self._lane_bits
        ):
            return False
        return folds(reduction.op, reduction.element)

    def begin(self, number: int) -> bool:
        with self.turn:  # while trees are planned anew, nobody knows
            if self._lost is not None:
                raise self._lost
            if self.fallback and not self._fallback.takes(number):
                return False
            if number > self.begun:
                self.begun = number
            return True

    def allreduce(self, request: AllreduceRequest) -> int:
        """Carries a request (``Rail``).  Raises what ended the rail, CollectiveTimeout, RankMismatch, TransportError,
        PlanError."""
        # kept short: beside a small tensor each step counts, since ranks that share cores find no cache warm
        elements, plan, saturated, operations = request.source.size, self._plan, 0, 1
        op: Op = request.reduction.op  # type: ignore[assignment]  # products do not fold
        divisor = float(plan.world) if op == "average" else 1.0
        pieces: Iterable[AllreduceRequest] = (request,)  # an empty array still checks that all ranks agree
        if elements > MAX_ELEMENTS:
            pieces = (request.part(slice(at, at + MAX_ELEMENTS)) for at in range(0, elements, MAX_ELEMENTS))
        with self.turn:
            if self._lost is not None:
                raise self._lost
            now = time.monotonic_ns()
            try:
                for piece in pieces:
                    self.core.start(
                        piece.number & 0xFFFFFFFF, piece.source, piece.out, divisor, now, op=op,
                        called=piece.reduction.called, coding=piece.coding, feedback=piece.feedback, rank=plan.rank,
                    )
                    self._last = piece
                    saturated += self._drive(piece, now, now)
                    begin, now = now, time.monotonic_ns()
                    self._totals.count(piece, now - begin, operations)
                    operations = 0
            except BaseException as error:
                self._cut_off(error)
                raise
            return saturated

    def prepare(self, request: AllreduceRequest) -> RepeatedFold | None:
        """Prepares the kind of a request that has just been carried, for ``repeat``.  None where it has to go through
        ``allreduce`` each time: over other links than sockets, with a timeline, feedback, stochastic rounding, or
        saturating sums."""
        source, coding = request.source, request.coding
        op: Op = request.reduction.op  # type: ignore[assignment]  # products do not fold
        if (
            not isinstance(self._io, Io) or self._timeline is not None or request.feedback is not None
            or coding.saturate or coding.rounding != "nearest" or not 0 < source.size <= MAX_ELEMENTS
            or self.fallback or self._lost is not None
        ):
            return None
        known = None if request.prepared is None else request.prepared.fold
        if isinstance(known, RepeatedFold) and known.link is self._io:
            return known
        divisor = float(self._plan.world) if op == "average" else 1.0
        operation = FoldOperation(**parameters_of(source.dtype, op, request.reduction.called, coding, divisor))
        what = f"{source.size} x {source.dtype.name}"
        repeated = RepeatedFold(self._io, operation, source.size, self._totals.stripes(source.itemsize), what)
        self._totals.include(repeated)
        return repeated

    def repeat(self, like: RepeatedFold, source: Array, out: Array, number: int, name: str) -> int | None:
        """Carries an allreduce as ``begin`` and ``allreduce`` do, of plain arrays that are the same memory or do not
        overlap.  Returns the packets sent again; None, and has sent nothing, where trees or rail are not as they were,
        so that those are to be called.  Raises what ``allreduce`` raises."""
        # nothing but what an operation must do: each object that is touched here is in no cache
        with self.turn:
            if (
                self._lost is not None or self.fallback or self._rounds.pending or self._watch is not None
                or self._closed
            ):
                return None
            if number > self.begun:
                self.begun = number
            self._last, before = like, self._resent
            self.core.arrays[:] = source, out, None
            try:
                status = like.carry(number, name, source, out, self._first_slice)
                totals = self.core.totals
                if status != DONE or totals.dropped >= self._dropped_warning:
                    self._end_slowly(like, status)
            except BaseException as error:
                like.failed(self._resent - before)
                self._cut_off(error)
                raise
            self._resent = totals.retransmitted
            return self._resent - before

    def _end_slowly(self, like: RepeatedFold, status: int) -> None:
        """Goes on with a repeated operation whose first run ended with this status."""
        if status == REFUSED:
            raise self.core.refused_to_begin(like.elements, str(like))
        error = self._io.error if status == OS_ERROR and isinstance(self._io, Io) else 0
        self._drive(like, self.core.progress(), time.monotonic_ns(), ended=(status, error))
        if status != DONE:
            like.ended(time.monotonic_ns())

    def _cut_off(self, error: BaseException) -> None:
        """Ends the rail where an operation has ended in the middle."""
        if not self.core.finished():  # the arrays are the caller's again: nobody may go on with them
            self._lost = error if isinstance(error, NetFoldError) else NetFoldError(f"cut off by {error!r}")

    @property
    def joins_nothing(self) -> str:
        """See ``FoldingRail``."""
        return "beside ranks with RDMA NICs all send lanes both times" if self._plan.verb == "send" else ""

    def collect(self, request: RowsRequest) -> None:
        """Carries a collective of rows: those of the ranks that fold together, in their order.  Raises what
        ``allreduce`` raises."""
        reduction = request.reduction
        if self._plan.verb == "send" and reduction is None:  # bytes and zeros add up in lanes of any width
            request = structs.replace(request, coding=Coding(self._lane_bits))
        divisor = float(self._plan.world) if reduction is not None and reduction.op == "average" else 1.0
        with self.turn:
            if self._lost is not None:
                raise self._lost
            operations = 1
            try:
                for part in request.parts(MAX_ELEMENTS):
                    now = time.monotonic_ns()
                    self.core.start_rows(part, self._place, now, divisor=divisor)
                    self._last = part
                    self._drive(part, now, now)
                    self._totals.count_rows(time.monotonic_ns() - now, operations)
                    operations = 0
            except BaseException as error:
                self._cut_off(error)
                raise

    @property
    def shared_memory_rate(self) -> float:
        return 0.0

    devices = ""
    """Empty: they are copied to the host."""

    def inside(self, opener: object, operation: object) -> None:
        """None: each rank is alone on its machine."""

    @property
    def suffices(self) -> bool:
        return False

    def uncounted(self) -> AbstractContextManager[None]:
        """A context whose operations are left out of the statistics of operations, bytes and seconds."""
        return self._totals.uncounted()

    def trial(self, data: Flat, number: int) -> None:
        with self.uncounted():
            self.allreduce(AllreduceRequest(data, data, TRIAL, number))

    @property
    def retransmissions(self) -> int:
        """Number of contributions sent again since the rail was made."""
        return self._resent

    def progress(self) -> RailStats:
        return self._totals.progress(self._resent)

    def stats(self) -> RailStats:
        return self._totals.stats(self.fallback) if self._final is None else self._final

    def describe(self, nbytes: int, lane_bits: LaneBits = 32) -> str:
        total = sum(tree.weight for tree in self._plan.trees)
        shares = ", ".join(f"{tree.weight / total:.0%} by {tree.name}" for tree in self._plan.trees)
        packets = -(-nbytes * lane_bits // 32 // self._plan.path_mtu)
        window = "/".join(str(w) for w in sorted(set(self._windows)))
        lanes = "" if lane_bits == 32 else f"in lanes of {lane_bits} bits, "
        if self._credits is not None:
            window += f" packets, {self._credits.messages} messages of {self._credits.packets}"
        return f"{nbytes} bytes fold in the network: {lanes}{packets} packets, {shares}, window {window} packets"

    def close(self) -> None:
        self._rounds.close()
        if not self._closed:
            self._final, self._closed = self.stats(), True
            self._fallback.close()
            self._io.close()
            self.core.close()
