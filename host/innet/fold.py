# SPDX-License-Identifier: Apache-2.0
"""The rail "innet": the switches fold.  It runs the native engine over UDP sockets; native/fold.h describes the
algorithm."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import numpy as np

from netfold.host.client.fold_control import NO_CONTROLLER, FoldControl, Waits
from netfold.host.errors import NetFoldError, PlanError, TransportError
from netfold.host.innet import failures
from netfold.host.innet.abi import AGREEMENT, DATA, FoldOperation
from netfold.host.innet.core import CREDITS_VARIABLE, Core, Credits, parameters_of
from netfold.host.innet.fallback import Fallback
from netfold.host.innet.fold_totals import FoldTotals
from netfold.host.innet.opening import open_over_sockets
from netfold.host.innet.packet_link import AGAIN, DONE, FAILED, OS_ERROR, REFUSED, Io, PacketLink
from netfold.host.innet.recovery_rounds import RecoveryRounds
from netfold.host.innet.repeated import RepeatedFold
from netfold.host.innet.stall_detector import SHORTEST_PAUSE, StallDetector
from netfold.host.mesh.mesh import WATCHED_SLICE_SECONDS
from netfold.host.operation.arrays import Array
from netfold.host.operation.coding import Coding, LaneBits
from netfold.host.operation.rail import Flat, Op, RailStats, folds
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest, Request, RowsRequest
from netfold.host.tracing.timeline import Timeline
from netfold.wire import roce
from netfold.wire.jobs import Plan

log = logging.getLogger("netfold")

SLICE_SECONDS = 0.02
"""Seconds in native code between two checks of Python's signals (Ctrl-C), the timeout, and stalled streams."""
LOST_RANK_SECONDS = 0.2
"""Seconds without any new result after which a lost rank ends an operation; one that died after its last contribution
need not end it."""
SLICE_NS, WATCHED_SLICE_NS = int(SLICE_SECONDS * 1e9), int(WATCHED_SLICE_SECONDS * 1e9)
LOST_RANK_NS = int(LOST_RANK_SECONDS * 1e9)
MAX_ELEMENTS = 1 << 28
"""Largest number of elements of one operation (1 GiB), since RETH's offset has 32 bits."""
TRIAL = Reduction("sum", "float32")
"""The reduction of a trial."""
NOTHING = np.empty(0, np.float32)
"""Array of a request that was never made: before the first operation there is nothing to go on with."""


class FoldRail:
    """Collectives over the trees of a plan.

    address  this rank's address on the fabric: results arrive at its UDP port 4791
    timeout  seconds without any new result after which an operation gives up
    control  talks to the controller: where it says that the job has ended, an operation ends after PATIENCE
    timeline  records what the native loop does, where one was asked for
    shared   other sockets are open on the same address and port (``reuseport``)
    members  number of ranks that fold together; default: all of the plan
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
        shared: bool = False,
        members: int | None = None,
        falls_back: bool = False,
        lane_bits: LaneBits = 32,
    ) -> None:
        self._lane_bits = lane_bits
        self._watch: Callable[[float], None] | None = None
        self._receiver: socket.socket | None = None
        self._plan = plan
        self._control = control
        self._stalls = StallDetector()
        self._turn = threading.Lock()  # whoever drives the core
        self._lost: NetFoldError | None = None
        self._last: Request | RepeatedFold = AllreduceRequest(NOTHING, NOTHING, TRIAL)
        self._timeout = timeout
        self._resent = 0
        """Contributions sent again so far, as of the last run."""
        self.fallback = ""
        self._final: RailStats | None = None  # once closed
        self._fallback = Fallback(address, timeout)
        self._falls_back = falls_back
        self._begun = 0  # the highest number of an operation that ``begin`` has let in
        self._refused_warning = 1  # refused packets at which a warning is logged
        said = os.environ.get(CREDITS_VARIABLE, "")
        self._credits = Credits.parse(said, plan.path_mtu) if said else None
        self.members = members or plan.world
        self._core, self._io = self._open(address, shared)
        self._totals = FoldTotals(self._core, plan.trees)
        self._windows = [self._core.state(index, DATA).window for index in range(len(plan.trees))]
        self._rounds = RecoveryRounds(self._serve)
        self._io.interrupt_by(self._rounds.fd)
        self._timeline = timeline
        self._repeated: dict[tuple[object, ...], RepeatedFold] = {}
        """Dtype, elements, operation and lane bits -> allreduces of that kind."""
        self._first_slice = min(SHORTEST_PAUSE, int(timeout * 1e9))
        """Nanoseconds for which a repeated operation runs before stalls, timeout and others are looked at."""
        if timeline is not None:
            self._io.trace()

    def _open(self, address: str, shared: bool) -> tuple[Core, PacketLink]:
        """The core over the plan's trees, and what carries its packets.  Raises TransportError, ValueError."""
        core, link, self._receiver = open_over_sockets(
            self._plan, address, members=self.members, credits=self._credits, shared=shared
        )
        return core, link

    @property
    def receiver(self) -> socket.socket:
        """The socket at which results arrive."""
        assert self._receiver is not None
        return self._receiver

    def takes(self, reduction: Reduction, coding: Coding) -> bool:
        """Whether the switches can make this reduction, with narrow lanes and saturating sums of int32 included.

        In a job with RC queue pairs, whose numbers say nothing of the lanes, a queue pair has one operation: sums in
        lanes of the job's width, and maxima, which minima are as well.  All ranks answer alike, the windowed too."""
        if self._plan.verb == "send" and reduction.op in ("sum", "average") and (
            coding.saturate or coding.lane_bits != self._lane_bits
        ):
            return False
        return folds(reduction.op, reduction.element)

    def begin(self, number: int) -> bool:
        with self._turn:  # while trees are planned anew, nobody knows
            if self._lost is not None:
                raise self._lost
            if self.fallback and not self._fallback.takes(number):
                return False
            if number > self._begun:
                self._begun = number
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
        with self._turn:
            if self._lost is not None:
                raise self._lost
            now = time.monotonic_ns()
            try:
                for piece in pieces:
                    self._core.start(
                        piece.number & 0xFFFFFFFF, piece.source, piece.out, divisor, now, op=op, coding=piece.coding,
                        feedback=piece.feedback, rank=plan.rank,
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

    def repeated(self, request: AllreduceRequest) -> RepeatedFold | None:
        """What ``repeat`` takes for allreduces like this one, which has just been carried; None where each is looked
        at anew: over other links than sockets, with a timeline, feedback, stochastic rounding, or saturating sums."""
        source, coding = request.source, request.coding
        op: Op = request.reduction.op  # type: ignore[assignment]  # products do not fold
        if (
            not isinstance(self._io, Io) or self._timeline is not None or request.feedback is not None
            or coding.saturate or coding.rounding != "nearest" or not 0 < source.size <= MAX_ELEMENTS
            or self.fallback or self._lost is not None
        ):
            return None
        asked = source.dtype.char, source.size, op, coding.lane_bits
        if asked not in self._repeated:
            divisor = float(self._plan.world) if op == "average" else 1.0
            operation = FoldOperation(**parameters_of(source.dtype, op, coding, divisor))
            what = f"{source.size} x {source.dtype.name}"
            shares = self._totals.stripes(source.itemsize)
            self._repeated[asked] = RepeatedFold(self._io, operation, source.size, shares, what)
            self._totals.include(self._repeated[asked])
        return self._repeated[asked]

    def repeat(self, like: RepeatedFold, source: Array, out: Array, number: int, name: str) -> int | None:
        """Carries an allreduce as ``begin`` and ``allreduce`` do, of plain arrays that are the same memory or do not
        overlap.  Returns the packets sent again; None, and has sent nothing, where trees or rail are not as they were,
        so that those are to be called.  Raises what ``allreduce`` raises."""
        # nothing but what an operation must do: each object that is touched here is in no cache
        with self._turn:
            if (
                self._lost is not None or self.fallback or self._rounds.pending or self._watch is not None
                or self._final is not None
            ):
                return None
            if number > self._begun:
                self._begun = number
            self._last, before = like, self._resent
            self._core.arrays[:] = source, out, None
            try:
                status = like.carry(number, name, source, out, self._first_slice)
                totals = self._core.totals
                if status != DONE or totals.refused >= self._refused_warning:
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
            raise self._core.refused_to_begin(like.elements, str(like))
        error = self._io.error if status == OS_ERROR and isinstance(self._io, Io) else 0
        self._drive(like, self._core.progress(), time.monotonic_ns(), ended=(status, error))
        if status != DONE:
            like.ended(time.monotonic_ns())

    def _cut_off(self, error: BaseException) -> None:
        """Ends the rail where an operation has ended in the middle."""
        if not self._core.finished():  # the arrays are the caller's again: nobody may go on with them
            self._lost = error if isinstance(error, NetFoldError) else NetFoldError(f"cut off by {error!r}")

    @property
    def carries_rows(self) -> str:
        """Why ``collect`` carries nothing; empty where it does."""
        return "ranks with RDMA NICs fold allreduces alone" if self._plan.verb == "send" else ""

    def collect(self, request: RowsRequest) -> None:
        """Carries a collective of rows.  Raises what ``allreduce`` raises."""
        reduction, rank = request.reduction, self._plan.rank
        divisor = float(self._plan.world) if reduction is not None and reduction.op == "average" else 1.0
        with self._turn:
            if self._lost is not None:
                raise self._lost
            operations = 1
            try:
                for part in request.parts(MAX_ELEMENTS):
                    now = time.monotonic_ns()
                    self._core.start_rows(part, rank, now, divisor=divisor)
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

    @property
    def suffices(self) -> bool:
        return False

    def uncounted(self) -> AbstractContextManager[None]:
        """What is folded within counts in no statistics of operations, bytes and seconds."""
        return self._totals.uncounted()

    def trial(self, data: Flat, number: int) -> None:
        with self.uncounted():
            self.allreduce(AllreduceRequest(data, data, TRIAL, number))

    def watched_by(self, watch: Callable[[float], None] | None) -> None:
        """Calls ``watch`` every ``WATCHED_SLICE_SECONDS`` from now on while an operation waits, with the monotonic
        seconds of its last progress; what it raises ends the operation.  None: stops that."""
        self._watch = watch

    def interrupt(self, error: NetFoldError) -> None:
        """Called by another thread: the operation under way ends with this error within ``SLICE_SECONDS``."""

        def end(moved: float) -> None:
            raise error

        self._watch = end

    def _drive(
        self, request: Request | RepeatedFold, progress: int, now: int, *, ended: tuple[int, int] | None = None
    ) -> int:
        """Runs the operation that has been started to its end.  Returns how many elements of a saturating sum stand at
        an end of the range.

        progress  time in nanoseconds of the operation's last new result, or of its beginning
        now       the time itself
        ended     status and errno of a run that has ended already
        """
        while True:
            status, error = ended or self._run(request, progress, now)
            ended = None
            if self._timeline is not None:
                self._timeline.spans(*self._io.spans())
            totals = self._core.totals
            progress, self._resent = totals.progress, totals.retransmitted
            if totals.refused >= self._refused_warning:
                self._warn_of_refused()
            if status == DONE:
                return totals.saturated
            if self._watch is not None and status == AGAIN:
                self._watch(self._core.progress() / 1e9)
            if status == AGAIN and self._is_stalled(progress):
                self._control.suspect(self._waits())
            if status == FAILED:
                raise self._failed(request)
            if status == OS_ERROR:
                self._broken(request, error)
            now = time.monotonic_ns()

    def _run(self, request: Request | RepeatedFold, progress: int, now: int) -> tuple[int, int]:
        """Runs the operation until it is time to look at signals, stalls and the rest; serves a recovery round first.
        Returns status and errno.  Raises what ends it."""
        if self._rounds.pending:
            self._go_on()
            progress, now = self._core.progress(), time.monotonic_ns()
        end = progress + int(self._timeout * 1e9)
        if now >= end:
            raise self._timed_out(request)
        if now >= progress + LOST_RANK_NS and (news := self._control.job_error()) is not None:
            raise type(news)(f"{self._who(request)}: {news}")
        slice_ns = SLICE_NS if self._watch is None else WATCHED_SLICE_NS
        until = min(now + slice_ns, end, self._stalls.due(progress, now))
        if self.fallback:
            status = self._fallback.run(until)
            self._core.count()
            return status, 0
        return self._io.run(until)

    def _broken(self, request: Request | RepeatedFold, error: int) -> None:
        """What carries the packets cannot go on, with this errno: raises TransportError, or returns where there is
        another way."""
        mtu = roce.ip_packet_bytes(roce.Opcode.WRITE_FIRST, self._plan.path_mtu)
        hint = f"; every link needs an MTU of {mtu} or more (`ip link`)" if error == errno.EMSGSIZE else ""
        raise TransportError(error, f"{self._who(request)}: the kernel refused a packet: {os.strerror(error)}{hint}")

    def _warn_of_refused(self) -> None:
        """Logs a warning that somebody sends to this rank's queue pairs who may not; the next one comes when there are
        ten times as many packets."""
        count, last = self._core.refused()
        self._refused_warning = 10 * count
        log.warning(
            "job %r, rank %d: %d packets so far to this rank's queue pairs were dropped, the last one from %s: "
            "results come from the rank before it in the ring, with TTL %d; see docs/security.md",
            self._plan.job, self._plan.rank, count, last, roce.RESULT_TTL,
        )

    def halt(self, number: int) -> None:
        """Requests recovery round ``number``, because trees have failed; it is served even while no operation runs.
        Returns at once."""
        if self._control.resume is not None:
            self._rounds.request(number)

    def _go_on(self) -> None:
        """Goes on over other trees, from what the slowest rank lacks.  Raises TreesLost, PlanError."""
        assert self._control.resume is not None
        offer = self._fallback.offer() if self._falls_back else ""
        missing = {key: self._core.lowest(tree, kind) for key, tree, kind in self._streams()}
        plan = self._control.resume(missing, self._begun, offer)
        try:
            self._core.resume(plan.trees, self._core.now())
        except ValueError as error:
            raise PlanError(f"job {plan.job!r}, rank {plan.rank}: cannot go on as planned: {error}") from error
        self._io.discard()
        self._plan = plan
        self._rounds.complete(plan.round)
        if plan.stand_in:
            self._fallback.begin(plan, self._core)
            self.fallback = self._fallback.why
            return
        self._fallback.decline()
        self._connect()
        log.warning("job %r, rank %d: goes on over %s", plan.job, plan.rank, ", ".join(t.name for t in plan.trees))

    def _connect(self) -> None:
        """Connects what carries the packets to the other ranks of a plan that is new.  Raises TransportError."""

    def _streams(self) -> list[tuple[int, int, int]]:
        """What the controller calls each stream, its tree and its kind."""
        return [
            (stream.qp, index, kind)
            for index, tree in enumerate(self._plan.trees)
            for kind, stream in ((AGREEMENT, tree.agreement), (DATA, tree.data))
        ]

    def settle(self, done: Callable[[], None]) -> None:
        """Calls ``done``, on a thread of its own, once every operation that has begun is finished.  Returns at once."""

        def wait() -> None:
            with self._turn:
                pass
            done()

        threading.Thread(target=wait, name="netfold-settle", daemon=True).start()

    def _serve(self) -> None:
        """Serves a recovery round between operations, since other ranks may lack what this rank had long ago."""
        with self._turn:
            if self._lost is not None or self._final is not None:
                return
            try:
                if self._rounds.pending:
                    self._go_on()
                if not self._core.finished():
                    self._drive(self._last, self._core.progress(), time.monotonic_ns())
            except NetFoldError as error:
                self._lost = error
                log.warning("between operations: %s", error)

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
        if self._final is None:
            self._final = self.stats()
            self._fallback.close()
            self._io.close()
            self._core.close()

    # ---- errors ----------------------------------------------------------------------------------------------------
    def _who(self, request: Request | RepeatedFold) -> str:
        return f"job {self._plan.job!r}, rank {self._plan.rank} of {self._plan.world}, {request}"

    def _timed_out(self, request: Request | RepeatedFold) -> NetFoldError:
        missing = self._control.missing(self._waits())
        return failures.timed_out(self._who(request), self._timeout, missing, self._core, self._io, self._plan.trees)

    def _is_stalled(self, progress: int) -> bool:
        """Whether to tell the controller that a stream waits for longer than it should.

        progress  time in nanoseconds of the operation's last result
        """
        round_trip = max((self._core.state(tree, DATA).srtt for tree in range(len(self._plan.trees))), default=0)
        return self._stalls.check(self._waits(), progress, time.monotonic_ns(), round_trip)

    def _waits(self) -> Waits:
        """Stream, as the controller calls it -> the lowest PSN that was sent on it and has no result."""
        waits = {}
        for key, tree, kind in self._streams():
            state = self._core.state(tree, kind)
            if state.sent_ahead > state.results:
                waits[key] = state.una_psn
        return waits

    def _failed(self, request: Request | RepeatedFold) -> NetFoldError:
        return failures.disagreed(self._who(request), self._core.failure(), self._plan.trees)
