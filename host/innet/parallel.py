# SPDX-License-Identifier: Apache-2.0
"""The rail "innet" where machines have several ranks: NetReduce's parallel scheme (its section on many GPUs a machine).

n ranks of a machine, M bytes, processed in windows (``machine_windows``); n is the least of all machines:

    reduce-scatter in the machine   each of its first n ranks ends with the sum of its n-th of the window
    fold                            each of them folds that with the ranks of the same index on the other machines
    all-gather in the machine       each rank copies all n pieces

The machine's link carries M bytes each way, not n M.  While the switches fold one window, the ranks gather the one
before and reduce the one after: folding has a thread of its own, in native code.  What the ranks of a machine do among
themselves stands behind ``InnerStep``; here it is shared memory.  Ranks beyond the n-th have no trees (``Bystander``).

Where shared memory is fast enough beside the machine's link (``netreduce_conditions``), this is known to be the
fastest; otherwise the links are measured (``selection.chooser``).

A result has the same bits on all ranks: each piece is summed by one rank of a machine, in order of ranks, and folded
once.
"""

from __future__ import annotations

import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any

from netfold.host.client.fold_control import NO_CONTROLLER, FoldControl
from netfold.host.collectives.barrier import barrier
from netfold.host.collectives.flow import length, run
from netfold.host.collectives.inner_step import InnerStep
from netfold.host.collectives.open_on_all import Agreement, Unfit, open_on_all
from netfold.host.collectives.shared_memory import SharedRows
from netfold.host.errors import NetFoldError, PeerLost
from netfold.host.innet.bystander import Bystander
from netfold.host.innet.fold import FoldRail
from netfold.host.innet.fold_loop import TRIAL
from netfold.host.innet.machine_groups import MachineGroups
from netfold.host.innet.machine_windows import MachinePlace, Step, allreduce_steps, rows_steps
from netfold.host.innet.netreduce_conditions import beats_ring, ratio
from netfold.host.innet.settling import settle
from netfold.host.mesh.mesh import Subset
from netfold.host.operation.arrays import Array, held
from netfold.host.operation.coding import Coding, LaneBits
from netfold.host.operation.conversion import elements_at_ends
from netfold.host.operation.rail import Flat, RailStats, folds
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest, Request, RowsRequest
from netfold.host.selection.measure import measure_inside
from netfold.host.selection.peers import Peers
from netfold.host.tracing.timeline import Timeline
from netfold.wire.plan import Plan


class ParallelFold:
    """Collectives by shared memory and the trees of a plan.  All ranks of a machine make it together.

    peers    all ranks of the job: those of a machine wait for each other over its mesh
    agree    how all ranks tell each other what they lack to fold
    address  of this machine on the fabric
    receiver as for ``FoldRail``
    timeout, control, timeline, falls_back  as for ``FoldRail``
    Raises Unfit on all ranks where one of them cannot fold.
    """

    name = "innet"
    narrows = True

    def __init__(
        self,
        plan: Plan,
        peers: Peers,
        agree: Agreement,
        address: str,
        receiver: socket.socket | None = None,
        *,
        timeout: float,
        control: FoldControl = NO_CONTROLLER,
        timeline: Timeline | None = None,
        falls_back: bool = False,
    ) -> None:
        self._falls_back = falls_back
        self._control = control
        self._timeline = timeline
        self._peers = peers
        self._rate = plan.rate
        self._gave_up = threading.Event()
        self.members = len(plan.machines)
        self._place = MachinePlace(plan.machines, plan.rank)
        self._turn = threading.Lock()
        """Held by an operation until all of its windows are folded."""
        with ExitStack() as undo:  # whoever is told that it failed may try again at once, at the same UDP port
            with peers.operation("the ranks of each machine open what they fold with") as mesh:
                self._local = Subset(mesh, self._place.ranks)

                def open_() -> tuple[FoldRail | Bystander, InnerStep]:
                    with ExitStack() as opened:
                        try:
                            opened.callback((fold := self._open(plan, address, receiver, timeout)).close)
                        finally:  # the other ranks of the machine wait for this one
                            opened.callback((inner := SharedRows(self._local)).close)
                        opened.pop_all()
                    return fold, inner

                opened = open_on_all(agree, open_, _close)
                if not isinstance(opened, Unfit):
                    undo.callback(_close, opened)
                    self.fold, self._inner = opened
                    self._shared_memory = measure_inside(mesh, self._local, self._inner, parts=self._place.folding)
            if isinstance(opened, Unfit):
                raise opened
            undo.pop_all()
        self.groups = MachineGroups(
            peers, self._local, self._place, address, timeout, link=plan.rate, memory=self.shared_memory_rate
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="netfold-fold")
        self._operations = 0
        self._bytes = 0
        self._seconds = 0.0

    def _open(
        self, plan: Plan, address: str, receiver: socket.socket | None, timeout: float
    ) -> FoldRail | Bystander:
        """Opens what this rank folds with, or, where others of its machine fold, what it knows of them."""
        if plan.inside:
            return Bystander(plan, address, timeout=timeout, control=self._control, falls_back=self._falls_back)
        return FoldRail(
            plan,
            address,
            receiver=receiver,
            timeout=timeout,
            control=replace(self._control, job_error=self._job_error),
            timeline=self._timeline,
            falls_back=self._falls_back,
        )

    def takes(self, reduction: Reduction, coding: Coding) -> bool:
        """As of a ``FoldRail`` of windowed ranks."""
        return folds(reduction.op, reduction.element)

    joins_nothing = ""
    """Empty: an exchange is worth it."""

    def collect(self, request: RowsRequest) -> None:
        """Carries a collective of rows, or a barrier.  Raises what ``allreduce`` raises."""
        reduced = "" if request.reduction is None else f", {request.reduction.op}{_in_lanes(request.coding)}"
        rows = [length(row) for row in (*request.rows, *request.gathered_rows)]
        what = "" if request.collective == "barrier" else (
            f" of {request.source.size} x {held(request.source)}{reduced}, rows {zlib.crc32(repr(rows).encode()):08x}"
        )
        steps = rows_steps(request, self._place, self._inner, lambda: barrier(self._local))
        nbytes = request.source.nbytes + (0 if request.gathered is None else request.gathered.nbytes)
        self._carry(f"{request.collective}{what}, folded by machines", steps, nbytes)

    @property
    def fallback(self) -> str:
        return self.fold.fallback

    def begin(self, number: int) -> bool:
        return self.fold.begin(number)

    def prepare(self, request: AllreduceRequest) -> None:
        """None: what is reduced inside machines takes many more steps than these."""

    def repeat(self, like: object, source: Array, out: Array, number: int, name: str) -> None:
        """None: to be called as ``allreduce``."""

    def allreduce(self, request: AllreduceRequest) -> int:
        """Carries a request (``Rail``).  Raises what ``FoldRail`` raises, and PeerLost."""
        out, coding, inside = request.out, request.coding, ""
        inner: InnerStep = self._inner
        if request.inner is not None:
            inner, inside = request.inner, f", {request.inner.kind} inside"
        what = f"{request.reduction.op} of {out.size} x {out.dtype}{_in_lanes(coding)}, folded by machines{inside}"
        self._carry(what, allreduce_steps(request, self._place, inner), out.nbytes)
        return elements_at_ends(out) if coding.saturate else 0

    def _carry(self, what: str, steps: Iterator[Step], nbytes: int) -> None:
        """Makes an operation of these steps; ``what`` it is is the same on all ranks."""
        begin = time.monotonic()
        try:
            with self._peers.operation(what):
                self._run(steps)
        except PeerLost as error:
            # A rank that gave up names the one that it lost only to its own machine; the controller names it to all.
            ended = self._control.job_error()
            raise error if ended is None else type(ended)(f"{error}; {ended}") from error
        self._operations += 1
        self._bytes += nbytes
        self._seconds += time.monotonic() - begin

    def _run(self, steps: Iterator[Step]) -> None:
        """Makes these steps, of which there is one at least; one window is folded while its neighbours are inside."""
        folding: Future[None] | None = None
        last: Step | None = None
        try:
            with self._turn:
                for step in steps:
                    run(self._local, step.before())
                    if folding is not None:
                        folding.result()
                    folding = None if step.fold is None else self._thread.submit(self._folded, step.fold)
                    if last is not None:
                        run(self._local, last.after())
                    last = step
                if folding is not None:
                    folding.result()
                assert last is not None
                run(self._local, last.after())
        except BaseException:
            self._gave_up.set()  # nobody may touch the sockets or the array behind the back of whoever hears of this
            if folding is not None:
                folding.exception()
            raise

    def _folded(self, request: Request) -> None:
        """Folds this rank's piece of a window, on the thread that folds."""
        assert isinstance(self.fold, FoldRail)
        if isinstance(request, RowsRequest):
            self.fold.collect(request)
        else:
            self.fold.allreduce(request)

    @property
    def shared_memory_rate(self) -> float:
        return 1 / self._shared_memory.beta

    @property
    def suffices(self) -> bool:
        """True if NetReduce's condition holds, so that links need not be measured."""
        return bool(self._rate) and beats_ring(
            self._peers.size, self._place.largest, self.shared_memory_rate, self._rate
        )

    @property
    def devices(self) -> str:
        return self.groups.describe()

    def inside(self, opener: Any, operation: Callable[[], AbstractContextManager[object]]) -> Any | None:
        return self.groups.of(opener, operation)

    def trial(self, data: Flat, number: int) -> None:
        with self.fold.uncounted():
            self._run(allreduce_steps(AllreduceRequest(data, data, TRIAL, number), self._place, self._inner))

    def _job_error(self) -> NetFoldError | None:
        """The error that ends a fold early: the controller's event, or this rank's own earlier failure."""
        return NetFoldError("this rank gave up") if self._gave_up.is_set() else self._control.job_error()

    @property
    def retransmissions(self) -> int:
        return self.fold.retransmissions

    def progress(self) -> RailStats:
        return replace(self.fold.progress(), operations=self._operations, bytes_reduced=self._bytes)

    def stats(self) -> RailStats:
        folded = self.fold.stats()
        return replace(folded, operations=self._operations, bytes_reduced=self._bytes, seconds=self._seconds)

    def describe(self, nbytes: int, lane_bits: LaneBits = 32) -> str:
        place = self._place
        piece = -(-nbytes // place.folding)
        each = "each of them folds its part" if place.folding == place.largest else (
            f"the first {'rank' if place.folding == 1 else place.folding} of each folds its part"
        )
        folds = (
            f"{nbytes} bytes are reduced by {place} in shared memory, and {each}: "
            f"{self.fold.describe(piece, lane_bits)}"
        )
        inside, needed = self.shared_memory_rate, ratio(self._peers.size, place.largest)
        if not self._rate:
            return f"{folds}; {inside / 1e9:.3g} GB/s in a machine"
        have = f"{inside / self._rate:.3g} times its link's {self._rate / 1e9:.3g}"
        return f"{folds}; {inside / 1e9:.3g} GB/s in a machine, {have}, more than {needed:.3g} suffices"

    def halt(self, number: int) -> None:
        """Requests a recovery round of the fold (``FoldRail.halt``)."""
        self.fold.halt(number)

    @property
    def begun(self) -> int:
        return self.fold.begun

    def settle(self, number: int, done: Callable[[], None]) -> None:
        """Calls ``done`` once these operations are finished, all their windows (``FoldingRail.settle``)."""
        settle(lambda: self.fold.begun, self._turn, number, done)

    def interrupt(self, error: NetFoldError) -> None:
        """See ``FoldRail``."""
        self.fold.interrupt(error)

    def close(self) -> None:
        self._thread.shutdown()
        self.fold.close()
        self._inner.close()
        self.groups.close()


def _close(opened: tuple[FoldRail | Bystander, InnerStep]) -> None:
    for one in opened:
        one.close()


def _in_lanes(coding: Coding) -> str:
    """Special lanes that a call asks for, in words, so that ranks can compare them."""
    narrow = "" if coding.lane_bits == 32 else f", in lanes of {coding.lane_bits} bits"
    return narrow + (", saturating" if coding.saturate else "")
