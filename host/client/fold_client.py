# SPDX-License-Identifier: Apache-2.0
"""A rank's requests to the controller about what folds: who is missing, what is broken, and which trees come next."""

from __future__ import annotations

import logging
from collections.abc import Callable

import grpc
import msgspec

from netfold.host.client.fold_control import FoldControl
from netfold.host.client.jobs import ANSWER_MARGIN, MAX_RESUME, JobClient, whole
from netfold.host.errors import CollectiveTimeout, JobEnded, NetFoldError, TreesLost
from netfold.wire.bounds import MAX_TEXT
from netfold.wire.jobs import (
    SERVICE,
    AllOpened,
    AskMissing,
    Connect,
    Connected,
    Done,
    MissingContributions,
    Opened,
    OwnPairs,
    Resume,
)
from netfold.wire.plan import Plan

MISSING_TIMEOUT = 3.0
"""Seconds that a timed-out operation spends on asking for the reason."""
CONNECT_TIMEOUT = 30.0
"""Least seconds for which an RC rank waits for the others to connect: they may have joined much later."""

log = logging.getLogger("netfold")


class FoldClient:
    """The part of the job service that a folding rank needs, over the connection of ``jobs``."""

    def __init__(self, jobs: JobClient) -> None:
        self._jobs = jobs
        self._missing = jobs.unary(f"{SERVICE}/Missing", MissingContributions)
        self._suspect = jobs.unary(f"{SERVICE}/Suspect", Done)
        self._opened = jobs.unary(f"{SERVICE}/Opened", AllOpened)
        self._connect = jobs.unary(f"{SERVICE}/Connect", Connected)
        self._resume = jobs.unary(f"{SERVICE}/Resume", Plan)

    def missing(self, plan: Plan, waits: dict[int, int]) -> MissingContributions:
        """Asks the controller whose contributions the switches wait for, within MISSING_TIMEOUT; where it cannot say,
        the answer holds the reason.

        waits  as in AskMissing
        """
        request = AskMissing(plan.job, plan.rank, plan.epoch, waits, plan.rank_secret)
        try:
            answer: MissingContributions = self._missing(request, timeout=MISSING_TIMEOUT)
            return answer
        except grpc.RpcError as error:
            said = f"cannot say who is missing: {error.code().name}: {error.details() or 'no details'}"
            return MissingContributions([], [f"the controller at {self._jobs.controller} {said}"])

    def suspect(self, plan: Plan, waits: dict[int, int]) -> None:
        """Reports that retransmissions bring no result, so that the controller checks the trees' links.  Returns at
        once.

        waits  as in AskMissing
        """
        self._jobs.post(self._suspect, AskMissing(plan.job, plan.rank, plan.epoch, waits, plan.rank_secret))

    def broken(self, plan: Plan, waits: dict[int, int], why: str) -> None:
        """Reports that queue pairs of this RC rank are in error, so that all ranks are halted.  Returns at once.

        waits, why  as in AskMissing
        """
        request = AskMissing(plan.job, plan.rank, plan.epoch, waits, plan.rank_secret, why[:MAX_TEXT])
        self._jobs.notify(
            self._suspect, request,
            lambda said: log.warning("%s did not hear that a queue pair is in error: %s", self._jobs.controller, said),
        )

    def opened(self, plan: Plan, lacks: str, timeout: float) -> AllOpened:
        """Says that this rank has opened what it folds with, and waits until all ranks have.  Returns what each of them
        lacks.  Raises CollectiveTimeout, JobEnded.

        lacks    what this rank lacks; empty: nothing
        timeout  seconds to wait for the other ranks
        """

        def ask(left: float) -> AllOpened:
            request = Opened(plan.job, plan.rank, plan.epoch, lacks[:MAX_TEXT], left, plan.rank_secret)
            answer: AllOpened = self._opened(request, timeout=left + ANSWER_MARGIN)
            return answer

        try:
            return self._jobs.ask(ask, timeout)
        except grpc.RpcError as error:
            said = f"job {plan.job!r}, rank {plan.rank} of {plan.world}: before it folds: {self._jobs.controller} says "
            said += f"{error.code().name}: {error.details() or 'no details'}"
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise CollectiveTimeout(said) from None
            raise JobEnded(said) from None

    def connect(
        self, plan: Plan, pairs: list[OwnPairs], timeout: float, follow: Callable[[Plan], None] = lambda plan: None
    ) -> Connected | None:
        """Tells the queue pairs that this RC rank has made for a plan, and waits until the switches know those of all
        ranks.  Returns those of its neighbours, or None where the trees have changed meanwhile, and the ranks are
        halted.  Raises TreesLost.

        timeout  seconds
        follow   called with the plan, once it has the ticket that knows the queue pairs
        """

        def ask(left: float) -> Connected:
            request = Connect(plan.job, plan.rank, plan.epoch, plan.round, pairs, left, plan.rank_secret)
            answer: Connected = self._connect(request, timeout=left + ANSWER_MARGIN)
            return answer

        try:
            answer = self._jobs.ask(ask, min(timeout, MAX_RESUME))
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.ABORTED:
                log.info("job %r, rank %d: %s", plan.job, plan.rank, error.details())
                return None
            said = f"{error.code().name}: {error.details() or 'no details'}"
            raise TreesLost(f"job {plan.job!r}, rank {plan.rank}: connecting its queue pairs: {self._jobs.controller} "
                            f"says {said}") from error
        if answer.ticket.value:
            follow(msgspec.structs.replace(plan, ticket=answer.ticket))
        return answer

    def resume(
        self, plan: Plan, missing: dict[int, int], timeout: float, begun: int, stand_in: str,
        follow: Callable[[Plan], None] = lambda plan: None,
    ) -> Plan:
        """Waits until all ranks have halted and new trees are planned.  Returns the plan to go on by.  Raises
        TreesLost.  Where the controller dies meanwhile, the next one is asked.

        missing, begun, stand_in  as in Resume
        timeout                   seconds
        follow                    called with the new plan, before this rank can register by an older one
        """

        def ask(left: float) -> Plan:
            request = Resume(plan.job, plan.rank, plan.epoch, missing, left, plan.rank_secret, begun, stand_in)
            with self._jobs.planning:
                answer = whole(self._resume(request, timeout=left + ANSWER_MARGIN))
                follow(answer)
            return answer

        try:
            return self._jobs.ask(ask, min(timeout, MAX_RESUME))
        except grpc.RpcError as error:
            said = f"{error.code().name}: {error.details() or 'no details'}"
            raise TreesLost(f"job {plan.job!r}, rank {plan.rank}: {self._jobs.controller} says {said}") from error

    def fold_control(
        self,
        plan: Plan,
        job_error: Callable[[], NetFoldError | None],
        timeout: float,
        follow: Callable[[Plan], None],
    ) -> FoldControl:
        """The functions by which a fold talks to the controller.

        job_error  that of the plan's ``Watcher``
        timeout    seconds that a fold waits for new trees
        follow     called with every plan that replaces this one
        """
        now = plan

        def resume(missing: dict[int, int], begun: int, stand_in: str) -> Plan:
            nonlocal now
            now = self.resume(plan, missing, timeout, begun, stand_in, follow)
            return now

        def connect(planned: Plan, pairs: list[OwnPairs]) -> Connected | None:
            return self.connect(planned, pairs, max(timeout, CONNECT_TIMEOUT), follow)

        return FoldControl(
            job_error, lambda waits: self.suspect(now, waits), lambda waits: self.missing(now, waits), resume, connect,
            lambda waits, why: self.broken(now, waits, why),
        )
