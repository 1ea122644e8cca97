# SPDX-License-Identifier: Apache-2.0
"""Runs what a rank folds to its end, in slices, between which it looks at signals, stalls, timeouts and lost trees."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable

import numpy as np

from netfold.host import shared_log
from netfold.host.client.fold_control import FoldControl, Waits
from netfold.host.errors import NetFoldError, PlanError, TransportError
from netfold.host.innet import failures, long_wait
from netfold.host.innet.abi import AGREEMENT, DATA, StreamState
from netfold.host.innet.core import Core
from netfold.host.innet.fallback import Fallback
from netfold.host.innet.packet_link import AGAIN, DONE, FAILED, OS_ERROR, PacketLink
from netfold.host.innet.recovery_rounds import RecoveryRounds
from netfold.host.innet.repeated import RepeatedFold
from netfold.host.innet.settling import settle
from netfold.host.innet.stall_detector import StallDetector
from netfold.host.mesh.mesh import LOST_RANK_SECONDS, WATCHED_SLICE_SECONDS
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest, Request
from netfold.host.tracing.timeline import Timeline
from netfold.wire import roce
from netfold.wire.plan import Plan

log = logging.getLogger("netfold")

SLICE_SECONDS = 0.02
"""Seconds in native code between two checks of Python's signals (Ctrl-C), the timeout, and stalled streams."""
SLICE_NS, WATCHED_SLICE_NS = int(SLICE_SECONDS * 1e9), int(WATCHED_SLICE_SECONDS * 1e9)
LOST_RANK_NS = int(LOST_RANK_SECONDS * 1e9)
TRIAL = Reduction("sum", "float32")
"""The reduction of a trial."""
NOTHING = np.empty(0, np.float32)
"""Array of a request that was never made: before the first operation there is none to continue."""


class FoldLoop:
    """Runs the operations of one rank, one at a time.  Whoever calls its private methods holds the lock ``turn``.

    plan, address, timeout, control, timeline, falls_back  as for ``FoldRail``
    core  the engine over the plan's trees
    link  carries its packets
    """

    def __init__(
        self, plan: Plan, address: str, core: Core, link: PacketLink, *, timeout: float, control: FoldControl,
        timeline: Timeline | None, falls_back: bool,
    ) -> None:
        self._plan = plan
        self.core, self._io = core, link
        self.control = control
        self.timeout = timeout
        self._timeline = timeline
        self.turn = threading.Lock()
        """The lock held by the thread that drives the core."""
        self._lost: NetFoldError | None = None
        """The error that has ended the rail; later operations raise it too.  None while the rail works."""
        self._closed = False
        """True once ``close`` was called, which frees the core and its link."""
        self._last: Request | RepeatedFold = AllreduceRequest(NOTHING, NOTHING, TRIAL)
        self._resent = 0
        """Contributions sent again so far, as of the last run."""
        self.begun = 0
        """The highest number of an operation that has begun."""
        self._watch: Callable[[float], bool] | None = None
        self._watched = False
        """True if the watcher reports the ranks for which this operation waits."""
        self._stalls = StallDetector()
        self._told_of = 0
        """The last result after which a long silence was already logged."""
        self._dropped_warning = 1
        """Dropped packets at which a warning is logged."""
        self.fallback = ""
        self._fallback = Fallback(address, timeout)
        self._falls_back = falls_back
        self._rounds = RecoveryRounds(self._serve)
        link.interrupt_by(self._rounds.fd)
        if timeline is not None:
            link.trace()

    def watched_by(self, watch: Callable[[float], bool] | None) -> None:
        """Calls ``watch`` every ``WATCHED_SLICE_SECONDS`` from now on while an operation waits, with the monotonic
        seconds of its last progress; what it raises ends the operation, and where it returns True it says itself for
        whom the operation waits.  None: stops that."""
        self._watch, self._watched = watch, False

    def settle(self, number: int, done: Callable[[], None]) -> None:
        """Calls ``done`` once these operations are finished (``FoldingRail.settle``)."""
        settle(lambda: self.begun, self.turn, number, done)

    def interrupt(self, error: NetFoldError) -> None:
        """Called by another thread: the operation under way ends with this error within ``SLICE_SECONDS``."""

        def end(moved: float) -> bool:
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
            totals = self.core.totals
            progress, self._resent = totals.progress, totals.retransmitted
            if totals.dropped >= self._dropped_warning:
                self._warn_of_dropped()
            if status == DONE:
                return totals.saturated
            if self._watch is not None and status == AGAIN:
                self._watched = self._watch(self.core.progress() / 1e9)
            if status == AGAIN and self._is_stalled():
                self.control.suspect(self._waits())
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
            progress, now = self.core.progress(), time.monotonic_ns()
        end = progress + int(self.timeout * 1e9)
        if now >= end:
            raise self._timed_out(request)
        if now >= progress + LOST_RANK_NS and (news := self.control.job_error()) is not None:
            raise type(news)(f"{self._who(request)}: {news}")
        if now >= progress + long_wait.WAIT_NS and self._told_of != progress and not self._watched:
            self._told_of, waits = progress, self._waits()
            long_wait.tell(self._who(request), self._plan, lambda: self.control.missing(waits))
        slice_ns = SLICE_NS if self._watch is None else WATCHED_SLICE_NS
        until = min(now + slice_ns, end, self._stalls.due(progress, now))
        if self.fallback:
            status = self._fallback.run(until)
            self.core.count()
            return status, 0
        return self._io.run(until)

    def _broken(self, request: Request | RepeatedFold, error: int) -> None:
        """Called where the link cannot send or receive any more, for the reason that this errno tells.  Raises
        TransportError; a rail that has another way to go on returns instead."""
        mtu = roce.ip_packet_bytes(roce.Opcode.WRITE_FIRST, self._plan.path_mtu)
        hint = f"; every link needs an MTU of {mtu} or more (`ip link`)" if error == errno.EMSGSIZE else ""
        raise TransportError(error, f"{self._who(request)}: the kernel refused a packet: {os.strerror(error)}{hint}")

    def _warn_of_dropped(self) -> None:
        """Logs warnings that somebody sends to this rank's queue pairs who may not, and that packets change on the way;
        the next ones come when there are ten times as many packets."""
        refused, last = self.core.refused()
        corrupt = self.core.corrupt()
        self._dropped_warning = 10 * (refused + corrupt)
        who = f"job {self._plan.job!r}, rank {self._plan.rank}"
        if refused:
            log.warning(
                "%s: %d packets so far to this rank's queue pairs were dropped, the last one from %s: "
                "results come from the rank before it in the ring, with TTL %d; see docs/security.md",
                who, refused, last, roce.RESULT_TTL,
            )
        if corrupt:
            log.warning(
                "%s: %d results so far were dropped and asked for again, as their ICRC is wrong: they changed on the "
                "way from this rank's switch; look at the cable, the port and the NIC of %s",
                who, corrupt, self._plan.peers[self._plan.rank].address,
            )

    def halt(self, number: int) -> None:
        """Requests recovery round ``number``, because trees have failed; it is served even while no operation runs.
        Returns at once."""
        if self.control.resume is not None:
            self._rounds.request(number)

    def _go_on(self) -> None:
        """Goes on over other trees, from what the slowest rank lacks.  Raises TreesLost, PlanError."""
        assert self.control.resume is not None
        offer = self._fallback.offer() if self._falls_back else ""
        missing = {key: self.core.lowest(tree, kind) for key, tree, kind in self._streams()}
        plan = self.control.resume(missing, self.begun, offer)
        try:
            self.core.resume(plan.trees, self.core.now())
        except ValueError as error:
            raise PlanError(f"job {plan.job!r}, rank {plan.rank}: cannot go on as planned: {error}") from error
        self._io.discard()
        self._plan = plan
        self._rounds.complete(plan.round)
        if plan.stand_in:
            self._fallback.begin(plan, self.core)
            self.fallback = self._fallback.why
            return
        self._fallback.decline()
        self._connect()
        log.log(shared_log.level(plan.rank), "job %r, rank %d: goes on over %s", plan.job, plan.rank,
                ", ".join(t.name for t in plan.trees))

    def _connect(self) -> None:
        """Connects what carries the packets to the other ranks of a plan that is new.  Raises TransportError."""

    def _streams(self) -> list[tuple[int, int, int]]:
        """For each stream: its place in the plan (`wire.jobs.AskMissing`), the index of its tree, and its kind."""
        return [(2 * tree + place, tree, kind)
                for tree in range(len(self._plan.trees)) for place, kind in enumerate((DATA, AGREEMENT))]

    def _serve(self) -> None:
        """Serves a recovery round between operations, since other ranks may lack what this rank had long ago."""
        with self.turn:
            if self._lost is not None or self._closed:
                return
            try:
                if self._rounds.pending:
                    self._go_on()
                if not self.core.finished():
                    self._drive(self._last, self.core.progress(), time.monotonic_ns())
            except NetFoldError as error:
                self._lost = error
                log.warning("between operations: %s", error)

    # ---- errors ----------------------------------------------------------------------------------------------------
    def _who(self, request: Request | RepeatedFold) -> str:
        return f"job {self._plan.job!r}, rank {self._plan.rank} of {self._plan.world}, {request}"

    def _timed_out(self, request: Request | RepeatedFold) -> NetFoldError:
        missing = self.control.missing(self._waits())
        return failures.timed_out(self._who(request), self.timeout, missing, self.core, self._io, self._plan.trees)

    def _is_stalled(self) -> bool:
        """True if the controller should be told that a stream has been waiting too long."""
        round_trip = max((self.core.state(tree, DATA).srtt for tree in range(len(self._plan.trees))), default=0)
        waits = [state.waits_since for state in self._waiting().values()]
        return self._stalls.check(waits, time.monotonic_ns(), round_trip)

    def _waits(self) -> Waits:
        """Stream, as the controller calls it -> the lowest PSN that was sent on it and has no result."""
        return {key: state.una_psn for key, state in self._waiting().items()}

    def _waiting(self) -> dict[int, StreamState]:
        """The streams on which something was sent that has no result, as the controller calls them."""
        states = {key: self.core.state(tree, kind) for key, tree, kind in self._streams()}
        return {key: state for key, state in states.items() if state.sent_ahead > state.results}

    def _failed(self, request: Request | RepeatedFold) -> NetFoldError:
        return failures.disagreed(self._who(request), self.core.failure(), self._plan.trees)
