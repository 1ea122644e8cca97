# SPDX-License-Identifier: Apache-2.0
"""Client of the controller's job service (wire/jobs.py): gRPC without generated code, msgspec at both ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
import msgspec

from netfold.host.client.fold_control import FoldControl
from netfold.host.client.stream_listener import CLOSE_SECONDS
from netfold.host.client.watcher import Watcher
from netfold.host.errors import JoinRefused, NetFoldError, PlanError, TreesLost
from netfold.rpc import channel as tls
from netfold.rpc import tokens
from netfold.rpc.certificates import TlsError
from netfold.wire.bounds import MAX_TEXT
from netfold.wire.jobs import (
    SERVICE,
    AskMissing,
    Done,
    Event,
    Join,
    Leave,
    MissingContributions,
    Plan,
    RankReport,
    Resume,
    Secret,
    Settled,
    Watch,
)

ANSWER_MARGIN = 5.0
"""Seconds that an answer may take beyond the request's own timeout, so that the controller's refusal arrives first."""
MISSING_TIMEOUT = 3.0
"""Seconds that an operation which has timed out spends on asking for the reason."""
MAX_RESUME = 600.0
"""Longest time in seconds that ranks wait for new trees."""
REPORT_TIMEOUT = 2.0
"""Timeout in seconds of requests whose answer is not needed, so that a finished rank does not wait for a controller
that hangs."""
LEAVE_TIMEOUT = 12.0
"""Timeout in seconds of ``Leave``: the controller waits at most 10 s until no other rank needs this one."""

log = logging.getLogger("netfold")


class JobClient:
    """One rank's connection to the controller, over TLS where NETFOLD_CA is set (rpc/channel.py).  Raises JoinRefused.

    controller  "host:port" or "unix:/path"
    token       the fabric's shared token, if it has one; default: that of $NETFOLD_TOKEN_FILE, or $NETFOLD_TOKEN
    """

    def __init__(self, controller: str, *, token: str = "") -> None:
        self.controller = controller
        try:
            self._metadata = tokens.metadata(tokens.checked(token, "token") if token else tokens.given())
            """What every call carries."""
        except tokens.TokenError as error:
            raise JoinRefused(f"{controller}: {error}") from error
        self._secret = Secret()
        """This rank's secret, from its plan."""
        try:
            self._channel = tls.channel(controller)
        except TlsError as error:
            raise JoinRefused(f"{controller}: {error}") from error
        self._join = self._unary("Join", Plan)
        self._report = self._unary("Report", Done)
        self._leave = self._unary("Leave", Done)
        self._missing = self._unary("Missing", MissingContributions)
        self._suspect = self._unary("Suspect", Done)
        self._settled = self._unary("Settled", Done)
        self._resume = self._unary("Resume", Plan)
        self._watch = self.stream(f"{SERVICE}/Watch", Event)

    def _unary(self, method: str, answer: type[Any]) -> Callable[..., Any]:
        return self.unary(f"{SERVICE}/{method}", answer)

    def unary(self, method: str, answer: Any) -> Callable[..., Any]:
        """A method of the controller, given as ``service/method``, with one answer."""
        return partial(self._channel.unary_unary(
            f"/{method}", msgspec.json.encode, msgspec.json.Decoder(answer).decode
        ), metadata=self._metadata)

    def stream(self, method: str, answer: Any) -> Callable[..., Any]:
        """A method of the controller, given as ``service/method``, with a stream of answers."""
        return partial(self._channel.unary_stream(
            f"/{method}", msgspec.json.encode, msgspec.json.Decoder(answer).decode
        ), metadata=self._metadata)

    def join(self, request: Join) -> Plan:
        """Joins the job.  Returns this rank's plan once all ranks have joined.  Raises JoinRefused, PlanError."""
        who = f"job {request.job!r}, rank {request.rank} of {request.world}"
        try:
            plan: Plan = self._join(request, timeout=request.timeout + ANSWER_MARGIN)
            self._secret = plan.rank_secret
            return plan
        except grpc.RpcError as error:
            code, details = error.code(), error.details() or "no details"
            if code is grpc.StatusCode.UNAVAILABLE:
                what = f"nobody answers at {self.controller} ({details}); is the controller up (`netfold status`)?"
                what += tls.hint(self.controller)
            elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
                what = f"no plan from {self.controller} within {request.timeout:g} s ({details})"
            elif code is grpc.StatusCode.INTERNAL and "deserializ" in details.lower():
                raise PlanError(
                    f"{who}: the answer of {self.controller} is no plan ({details}); host and controller are of "
                    "different versions: install the same one"
                ) from error
            else:
                what = f"{self.controller} says {code.name}: {details}"
            raise JoinRefused(f"{who}: {what}") from None  # gRPC's own text is twenty lines a rank and says no more

    def watch(self, plan: Plan) -> Watcher:
        """Opens the stream by which the controller notices this rank's death and reports that of others.  To be closed
        after ``leave``."""
        request = Watch(plan.job, plan.rank, plan.epoch, plan.rank_secret, plan.ticket)
        settled = Settled(plan.job, plan.rank, plan.epoch, plan.rank_secret)
        return Watcher(
            self._watch(request), f"job {plan.job!r}, rank {plan.rank} of {plan.world}",
            lambda: self._notify(self._settled, settled),
        )

    def leave(self, report: RankReport, reason: str = "") -> None:
        """Sends this rank's totals, leaves the job, and waits until no other rank can need this one; an unreachable
        controller is logged, never raised."""
        try:
            self._report(msgspec.structs.replace(report, secret=self._secret), timeout=REPORT_TIMEOUT)
            leave = Leave(job=report.job, rank=report.rank, epoch=report.epoch, reason=reason[:MAX_TEXT],
                          secret=self._secret)
            self._leave(leave, timeout=LEAVE_TIMEOUT)
        except grpc.RpcError as error:
            log.warning(
                "job %r, rank %d: left, but %s did not take the report: %s %s",
                report.job, report.rank, self.controller, error.code().name, error.details(),
            )

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
            said = f"{error.code().name}: {error.details() or 'no details'}"
            return MissingContributions([], [f"the controller at {self.controller} cannot say who is missing: {said}"])

    def suspect(self, plan: Plan, waits: dict[int, int]) -> None:
        """Reports that retransmissions bring no result, so that the controller checks the trees' links.  Returns at
        once.

        waits  as in AskMissing
        """
        self._notify(self._suspect, AskMissing(plan.job, plan.rank, plan.epoch, waits, plan.rank_secret))

    def notify(self, method: Any, request: msgspec.Struct, on_failure: Callable[[str], None]) -> None:
        """Sends a request without waiting for the answer; ``on_failure`` is called with the reason where there was
        none.

        It runs on a thread, since the future of a call has the same trouble as a stream (`StreamListener.close`).
        """

        def send() -> None:
            try:
                method(request, timeout=REPORT_TIMEOUT)
            except grpc.RpcError as error:
                on_failure(f"{error.code().name}: {error.details()}")
            except ValueError as error:  # the channel is closed: we have left
                on_failure(str(error))

        threading.Thread(target=send, name="netfold-notify", daemon=True).start()

    def _notify(self, method: Any, request: msgspec.Struct) -> None:
        """Sends a request without waiting for the answer; a failure is logged at level DEBUG."""
        self.notify(
            method, request, lambda why: log.debug("%s: %s was not received: %s", self.controller, request, why)
        )

    def resume(self, plan: Plan, missing: dict[int, int], timeout: float, begun: int, stand_in: str) -> Plan:
        """Waits until all ranks have halted and new trees are planned.  Returns the plan to go on by.  Raises
        TreesLost.

        missing, begun, stand_in  as in Resume
        timeout                   seconds
        """
        request = Resume(
            plan.job, plan.rank, plan.epoch, missing, min(timeout, MAX_RESUME), plan.rank_secret, begun, stand_in
        )
        try:
            answer: Plan = self._resume(request, timeout=request.timeout + ANSWER_MARGIN)
            return answer
        except grpc.RpcError as error:
            said = f"{error.code().name}: {error.details() or 'no details'}"
            raise TreesLost(f"job {plan.job!r}, rank {plan.rank}: {self.controller} says {said}") from error

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
            now = self.resume(plan, missing, timeout, begun, stand_in)
            follow(now)
            return now

        return FoldControl(
            job_error, lambda waits: self.suspect(now, waits), lambda waits: self.missing(now, waits), resume
        )

    def close(self) -> None:
        """Closes the connection, waiting ``CLOSE_SECONDS`` at most, because gRPC sets no bound to it and a rank that
        has left must not hang."""
        closing = threading.Thread(target=self._channel.close, name="netfold-close", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)
        if closing.is_alive():
            log.warning("the connection to %s did not close within %g s; left behind", self.controller, CLOSE_SECONDS)
