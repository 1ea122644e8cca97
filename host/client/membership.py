# SPDX-License-Identifier: Apache-2.0
"""A rank's membership of its job, from its plan until it has left and no other rank needs it any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import structs

from netfold.host.client.fold_client import FoldClient
from netfold.host.client.fold_control import NO_CONTROLLER, FoldControl
from netfold.host.client.jobs import JobClient
from netfold.host.errors import NetFoldError
from netfold.host.operation.rail import FoldingRail, RailStats
from netfold.wire.plan import Plan


class Membership:
    """A rank of a job that has its plan.

    client  the connection to the controller, which watches the rank from here on; taken over.  None: the plan came from
            elsewhere, and no controller watches
    """

    def __init__(self, plan: Plan, client: JobClient | None = None) -> None:
        self._plan = plan
        self._client = client
        self._left = self._closed = False
        self._watcher = None if client is None else client.watch(lambda: self._plan)
        self._rail: FoldingRail | None = None

    @property
    def plan(self) -> Plan:
        """The latest plan of the controller."""
        return self._plan

    @property
    def client(self) -> JobClient | None:
        """The connection to the controller, or None."""
        return self._client

    def job_error(self, left: bool = True) -> NetFoldError | None:
        """The error that has ended the job according to the controller, or None; ``left``: see ``Watcher.job_error``.
        """
        return None if self._watcher is None else self._watcher.job_error(left)

    def lost_rank(self) -> tuple[int, str] | None:
        """A rank that the controller has lost, and how, or None."""
        return None if self._watcher is None else self._watcher.lost_rank()

    def wait_registered(self, timeout: float) -> None:
        """Waits until the controller watches this rank, so that its death would be noticed; at most so many seconds."""
        if self._watcher is not None:
            self._watcher.registers_again(0, timeout)

    def fold_control(self, timeout: float) -> FoldControl:
        """The functions by which a fold talks to the controller; it waits for ``timeout`` seconds for new trees."""
        if self._client is None or self._watcher is None:
            return NO_CONTROLLER
        return FoldClient(self._client).fold_control(self._plan, self._watcher.job_error, timeout, self._go_on_by)

    def steer(self, rail: FoldingRail) -> None:
        """Lets the controller halt this rail from now on, and wait until it has settled."""
        self._rail = rail
        if self._watcher is not None:
            self._watcher.on_halt(rail.halt)
            self._watcher.on_settle(rail.settle)

    def on_halt(self, call: Callable[[int], None]) -> None:
        """Calls this where the controller halts the rank, with the number of the round; it must return at once."""
        if self._watcher is not None:
            self._watcher.on_halt(call)

    def opened(self, lacks: str, timeout: float) -> Mapping[int, str]:
        """Tells the controller what this rank lacks to fold, "" for nothing, and returns what each rank lacks, by rank.
        Call it only where there is a controller.  Raises CollectiveTimeout, JobEnded.

        timeout  seconds to wait for the other ranks
        """
        assert self._client is not None
        answer = FoldClient(self._client).opened(self._plan, lacks, timeout)
        if answer.ticket.value:
            self._plan = structs.replace(self._plan, ticket=answer.ticket)
        return answer.lacking

    def unfold(self, why: str) -> None:
        """Goes on without the plan's trees, which the ranks have agreed not to use.

        why  which ranks lack what to fold
        """
        self._plan = structs.replace(self._plan, trees=[], inside=False, reason=why)
        if self._watcher is not None:
            self._watcher.unfold()

    def on_tell(self, progress: Callable[[], RailStats]) -> None:
        """Reports ``progress`` whenever the controller asks, until this rank leaves.  It is called on another thread
        than the operations': it must read counts alone that may be read at any time."""
        client, watcher = self._client, self._watcher
        if client is not None and watcher is not None:
            watcher.on_tell(lambda: None if self._left else client.tell(progress().report(self._plan)))

    def ranks_left(self) -> dict[int, str]:
        """Ranks that have left in order, as the controller says, and after what."""
        return {} if self._watcher is None else self._watcher.ranks_left()

    def leave(self, stats: RailStats, reason: str = "", last: str = "") -> None:
        """Reports totals and leaves the job, before any rail is closed: until the controller answers, other ranks may
        need packets of this one.  Never raises because a controller is absent.

        reason  why the job has failed here, if it has
        last    after what it leaves, for the other ranks
        """
        self._left = True
        if self._client is not None and not self._closed:
            if self._watcher is not None:
                self._watcher.leaving()
            folded = 0 if self._rail is None else self._rail.begun
            self._client.leave(stats.report(self._plan), reason, last, folded)

    def close(self) -> None:
        """Closes the connection; the controller takes it for this rank's death if it has not left before."""
        self._closed = True
        if self._watcher is not None:
            self._watcher.close()
        if self._client is not None:
            self._client.close()

    def _go_on_by(self, plan: Plan) -> None:
        self._plan = plan
