# SPDX-License-Identifier: Apache-2.0
"""The rail "innet" where machines have several ranks: NetReduce's parallel scheme (its section on many GPUs a machine).

n ranks of a machine, M bytes, processed in windows of shared memory:

    reduce-scatter in the machine   each rank ends with the sum of its n-th of the window
    fold                            each rank folds that with the ranks of the same index on the other machines
    all-gather in the machine       each rank copies all n pieces

The machine's link carries M bytes each way, not n M.  While the switches fold one window, the ranks gather the one
before and reduce the one after: folding has a thread of its own, in native code.

Where shared memory is fast enough beside the machine's link (``netreduce_conditions``), this is known to be the
fastest; otherwise the links are measured (``selection.chooser``).

A result has the same bits on all ranks: each piece is summed by one rank of a machine, in order of ranks, and folded
once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import cast

from msgspec import structs

from netfold.host.client.fold_control import NO_CONTROLLER, FoldControl
from netfold.host.collectives.barrier import barrier
from netfold.host.collectives.flow import run, split_evenly
from netfold.host.collectives.shared_memory import SharedRows
from netfold.host.errors import NetFoldError, PeerLost
from netfold.host.innet import native
from netfold.host.innet.fold import FoldRail
from netfold.host.innet.fold_loop import TRIAL
from netfold.host.innet.netreduce_conditions import beats_ring, ratio
from netfold.host.mesh.mesh import Subset
from netfold.host.native.reuseport import by_remainder, steer
from netfold.host.native.sockets import check_free
from netfold.host.operation.arrays import Array
from netfold.host.operation.coding import Coding, LaneBits
from netfold.host.operation.rail import Flat, RailStats, folds
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest, RowsRequest
from netfold.host.selection.measure import measure_inside
from netfold.host.selection.peers import Peers
from netfold.host.tracing.timeline import Timeline
from netfold.wire.jobs import Plan


class ParallelFold:
    """Allreduce by shared memory and the trees of a plan.  All ranks of a machine make it together.

    peers    all ranks of the job: those of a machine wait for each other over its mesh
    address  of this machine on the fabric
    timeout, control, timeline, falls_back  as for ``FoldRail``
    """

    name = "innet"
    narrows = True

    def __init__(
        self,
        plan: Plan,
        peers: Peers,
        address: str,
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
        machine = next(ranks for ranks in plan.machines if plan.rank in ranks)
        native.library()  # built before the others wait for us
        with ExitStack() as undo:  # whoever is told that it failed may try again at once, at the same UDP port
            with peers.operation("the ranks of each machine bind their sockets") as mesh:
                self._local = Subset(mesh, machine)
                self._rows = SharedRows(self._local)
                undo.callback(self._rows.close)
                for place in range(self._local.size):
                    if place == self._local.rank:
                        self._fold = self._bind(plan, address, timeout)
                        undo.callback(self._fold.close)
                        if place == 0:
                            steer(self._fold.receiver, by_remainder(self._local.size))
                    run(self._local, barrier(self._local))
                self._shared_memory = measure_inside(mesh, self._local, self._rows)
            undo.pop_all()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="netfold-fold")
        self._operations = 0
        self._bytes = 0
        self._seconds = 0.0

    def _bind(self, plan: Plan, address: str, timeout: float) -> FoldRail:
        """Binds this rank's sockets, one rank after another, since the kernel numbers a machine's sockets in that
        order."""
        if self._local.rank == 0:
            check_free(address)  # sockets of another job would join our group, and mix up its numbers
        return FoldRail(
            plan,
            address,
            timeout=timeout,
            control=replace(self._control, job_error=self._job_error),
            shared=True,
            timeline=self._timeline,
            members=len(plan.machines),
            falls_back=self._falls_back,
        )

    def takes(self, reduction: Reduction, coding: Coding) -> bool:
        """Whether the switches can make this reduction; shared memory wraps around, so that sums cannot saturate."""
        return folds(reduction.op, reduction.element) and not coding.saturate

    carries_rows = "several ranks share a machine, and fold their parts of allreduces alone"

    def collect(self, request: RowsRequest) -> None:
        """Never called (``carries_rows``)."""
        raise NotImplementedError(self.carries_rows)

    @property
    def fallback(self) -> str:
        return self._fold.fallback

    def begin(self, number: int) -> bool:
        return self._fold.begin(number)

    def repeated(self, request: AllreduceRequest) -> None:
        """None: what is reduced within machines takes many more steps than these."""

    def repeat(self, like: object, source: Array, out: Array, number: int, name: str) -> None:
        """None: to be called as ``allreduce``."""

    def allreduce(self, request: AllreduceRequest) -> int:
        """Carries a request (``Rail``).  Raises what ``FoldRail`` raises, and PeerLost."""
        out = request.out
        what = f"{request.reduction.op} of {out.size} x {out.dtype}, folded on {self._local.size} ranks a machine"
        begin = time.monotonic()
        if not request.in_place:
            out[...] = request.source
        try:
            with self._peers.operation(what):
                self._reduce(structs.replace(request, source=out))
        except PeerLost as error:
            # A rank that gave up names the one that it lost only to its own machine; the controller names it to all.
            ended = self._control.job_error()
            raise error if ended is None else type(ended)(f"{error}; {ended}") from error
        self._operations += 1
        self._bytes += out.nbytes
        self._seconds += time.monotonic() - begin
        return 0

    def _reduce(self, request: AllreduceRequest) -> None:
        """Reduces arrays in place."""
        out, reduction = request.out, request.reduction
        # an empty array still checks that all ranks agree
        windows = [request.part(cut) for cut in self._rows.windows(out.size, out.itemsize)] or [request]
        inside = Reduction("sum", reduction.element) if reduction.op == "average" else reduction
        folding: Future[int] | None = None
        try:
            for index, window in enumerate(windows):
                run(self._local, self._rows.reduce_scatter(window.out, inside))
                if folding is not None:
                    folding.result()
                mine = split_evenly(window.out.size, self._local.size)[self._local.rank]
                folding = self._thread.submit(self._fold.allreduce, window.part(mine))
                if index:
                    run(self._local, self._rows.all_gather(windows[index - 1].out))
            folding = cast("Future[int]", folding)
            folding.result()
            run(self._local, self._rows.all_gather(windows[-1].out))
        except BaseException:
            self._gave_up.set()  # nobody may touch the sockets or the array behind the back of whoever hears of this
            if folding is not None:
                folding.exception()
            raise

    @property
    def shared_memory_rate(self) -> float:
        return 1 / self._shared_memory.beta

    @property
    def suffices(self) -> bool:
        """Whether NetReduce's condition holds, so that links need not be measured."""
        return bool(self._rate) and beats_ring(self._peers.size, self._local.size, self.shared_memory_rate, self._rate)

    def trial(self, data: Flat, number: int) -> None:
        with self._fold.uncounted():
            self._reduce(AllreduceRequest(data, data, TRIAL, number))

    def _job_error(self) -> NetFoldError | None:
        """What ends a fold early: the controller's event, or that this rank gave up meanwhile."""
        return NetFoldError("this rank gave up") if self._gave_up.is_set() else self._control.job_error()

    @property
    def retransmissions(self) -> int:
        return self._fold.retransmissions

    def progress(self) -> RailStats:
        return replace(self._fold.progress(), operations=self._operations, bytes_reduced=self._bytes)

    def stats(self) -> RailStats:
        folded = self._fold.stats()
        return replace(folded, operations=self._operations, bytes_reduced=self._bytes, seconds=self._seconds)

    def describe(self, nbytes: int, lane_bits: LaneBits = 32) -> str:
        ranks = self._local.size
        folds = (
            f"{nbytes} bytes are reduced by the {ranks} ranks of each machine in shared memory, and each of them folds "
            f"its part: {self._fold.describe(-(-nbytes // ranks), lane_bits)}"
        )
        inside, needed = self.shared_memory_rate, ratio(self._peers.size, ranks)
        if not self._rate:
            return f"{folds}; {inside / 1e9:.3g} GB/s in a machine"
        have = f"{inside / self._rate:.3g} times its link's {self._rate / 1e9:.3g}"
        return f"{folds}; {inside / 1e9:.3g} GB/s in a machine, {have}, more than {needed:.3g} suffices"

    def halt(self, number: int) -> None:
        """Requests a recovery round of the fold (``FoldRail.halt``)."""
        self._fold.halt(number)

    def settle(self, done: Callable[[], None]) -> None:
        """Calls ``done`` once every operation is finished (``FoldRail.settle``)."""
        self._fold.settle(done)

    def interrupt(self, error: NetFoldError) -> None:
        """See ``FoldRail``."""
        self._fold.interrupt(error)

    def close(self) -> None:
        self._thread.shutdown()
        self._fold.close()
        self._rows.close()
