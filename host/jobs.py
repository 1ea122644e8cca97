# SPDX-License-Identifier: Apache-2.0
"""Client of the controller's job service (wire/jobs.py): gRPC without generated code, msgspec at both ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import grpc
import msgspec

from netfold.host.errors import JoinRefused, PlanError
from netfold.wire.jobs import SERVICE, Done, Join, Leave, Plan, Report

ANSWER_MARGIN = 5.0
"""Seconds that the controller gets beyond the join's own timeout, so that its own refusal arrives first."""
GOODBYE_TIMEOUT = 2.0
"""Seconds for Report and Leave: a finished rank does not wait for a controller that is gone."""

log = logging.getLogger("netfold")


class JobClient:
    """One rank's line to the controller.  ``controller`` is "host:port" or "unix:/path"."""

    def __init__(self, controller: str) -> None:
        self.controller = controller
        # A job's ranks and controller talk directly: an HTTP proxy of the environment has no place between them.
        self._channel = grpc.insecure_channel(controller, options=[("grpc.enable_http_proxy", 0)])
        self._join = self._unary("Join", Plan)
        self._report = self._unary("Report", Done)
        self._leave = self._unary("Leave", Done)

    def _unary(self, method: str, answer: type[Any]) -> Callable[..., Any]:
        return self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=msgspec.json.encode,
            response_deserializer=msgspec.json.Decoder(answer).decode,
        )

    def join(self, request: Join) -> Plan:
        """Returns this rank's plan once all ranks are in.  Raises JoinRefused, PlanError."""
        who = f"job {request.job!r}, rank {request.rank} of {request.world}"
        try:
            plan: Plan = self._join(request, timeout=request.timeout + ANSWER_MARGIN)
            return plan
        except grpc.RpcError as error:
            code, details = error.code(), error.details() or "no details"
            if code is grpc.StatusCode.UNAVAILABLE:
                what = f"nobody answers at {self.controller} ({details}); is the controller up (`netfold status`)?"
            elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
                what = f"no plan from {self.controller} within {request.timeout:g} s ({details})"
            elif code is grpc.StatusCode.INTERNAL and "deserializ" in details.lower():
                raise PlanError(
                    f"{who}: the answer of {self.controller} is no plan ({details}); host and controller are of "
                    "different versions: install the same one"
                ) from error
            else:
                what = f"{self.controller} says {code.name}: {details}"
            raise JoinRefused(f"{who}: {what}") from error

    def leave(self, report: Report, reason: str = "") -> None:
        """Sends totals and goodbye; a controller that is gone is logged, never raised."""
        try:
            self._report(report, timeout=GOODBYE_TIMEOUT)
            goodbye = Leave(job=report.job, rank=report.rank, epoch=report.epoch, reason=reason)
            self._leave(goodbye, timeout=GOODBYE_TIMEOUT)
        except grpc.RpcError as error:
            log.warning(
                "job %r, rank %d: left, but %s did not take the report: %s %s",
                report.job, report.rank, self.controller, error.code().name, error.details(),
            )  # fmt: skip

    def close(self) -> None:
        """Ends the connection."""
        self._channel.close()
