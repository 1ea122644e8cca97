# SPDX-License-Identifier: Apache-2.0
"""Client of the controller's job service (wire/jobs.py): gRPC without generated code, msgspec at both ends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import grpc
import msgspec

from netfold.host.client.controller_channel import AWAY, ControllerChannel
from netfold.host.client.watcher import Watcher
from netfold.host.errors import CollectiveTimeout, Evicted, JobEnded, JoinRefused, PlanError
from netfold.rpc import channel as tls
from netfold.rpc import tokens
from netfold.rpc.certificates import TlsError
from netfold.wire import plan as wire_plan
from netfold.wire.bounds import MAX_LAST, MAX_TEXT
from netfold.wire.jobs import SERVICE, Done, Event, GroupOf, Join, Leave, RankReport, Reform, Reformed, Settled, Watch
from netfold.wire.plan import Plan, RailEnd, Secret

ANSWER_MARGIN = 5.0
"""Seconds that an answer may take beyond the request's own timeout, so that the controller's refusal arrives first."""
MAX_RESUME = 600.0
"""Longest time in seconds that ranks wait for new trees."""
REFORM_MARGIN = 10.0
"""Seconds that the answer to ``Reform`` may take beyond the request's own timeout: silent ranks get some time before
they are evicted, and then the new plan must be made."""
REPORT_TIMEOUT = 2.0
"""Timeout in seconds of requests whose answer is not needed, so that a finished rank does not wait for a controller
that hangs."""
RANK_SECONDS = 0.1
"""Further seconds for each rank of the job: all of them report and leave at once, on machines that may be busy with
this."""
TAKE_OVER_SECONDS = 5.0
"""Seconds to wait for an absent controller when a request needs one."""
RETRY_SECONDS = 0.1
"""Seconds between two attempts to join while no controller answers."""
LEAVE_TIMEOUT = 12.0
"""Timeout in seconds of ``Leave``: the controller waits at most 10 s until no other rank needs this one."""

T = TypeVar("T")

log = logging.getLogger("netfold")


class JobClient:
    """One rank's connection to the controller, over TLS where NETFOLD_CA is set (rpc/channel.py).  Raises JoinRefused.

    controller  "host:port" or "unix:/path"; several with commas: the first that answers, and the others when it is gone
    token       the fabric's shared token, if it has one; default: that of $NETFOLD_TOKEN_FILE, or $NETFOLD_TOKEN
    """

    def __init__(self, controller: str, *, token: str = "") -> None:
        self.controller = controller
        self._token = token
        self._secret = Secret()
        """This rank's secret, from its plan."""
        self._world = 1
        self._watcher: Watcher | None = None
        self.planning = threading.Lock()
        """Held while a plan may be replaced, so that a rank registers by its latest one."""
        try:
            metadata = tokens.metadata(tokens.checked(token, "token") if token else tokens.given())
            addresses = [address.strip() for address in controller.split(",") if address.strip()]
            self.connection = ControllerChannel(addresses, metadata)
        except (tokens.TokenError, TlsError) as error:
            raise JoinRefused(f"{controller}: {error}") from error
        self.unary, self.stream = self.connection.unary, self.connection.stream
        self._join = self.unary(f"{SERVICE}/Join", Plan)
        self._report = self.unary(f"{SERVICE}/Report", Done)
        self._leave = self.unary(f"{SERVICE}/Leave", Done)
        self._settled = self.unary(f"{SERVICE}/Settled", Done)
        self._reform = self.unary(f"{SERVICE}/Reform", Reformed)
        self._watch = self.stream(f"{SERVICE}/Watch", Event)

    def join(self, request: Join, planning: float = ANSWER_MARGIN) -> Plan:
        """Joins the job.  Returns this rank's plan once all ranks have joined.  Raises JoinRefused, PlanError.

        planning  seconds that the answer may take once all ranks have joined

        Where nobody answers at any address, it is tried again for TAKE_OVER_SECONDS, if there is a standby or a
        controller has died over it."""
        who = f"job {request.job!r}, rank {request.rank} of {request.world}"
        try:
            plan = whole(self._joined(request, planning))
            self._secret, self._world = plan.rank_secret, plan.world
            self.connection.learn(plan.controllers)
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
            # gRPC's own text is twenty lines a rank and says no more
            raise JoinRefused(f"{who}: {what}", code.name, error.details() or "") from None

    def _joined(self, request: Join, planning: float) -> Plan:
        """The answer to Join.  Raises RpcError of the last attempt."""
        began = time.monotonic()
        gone: float | None = None
        while True:
            channel, asked = self.connection.channel, time.monotonic()
            left = began + request.timeout - asked
            try:
                plan: Plan = self._join(
                    msgspec.structs.replace(request, timeout=max(left, 0.01)), timeout=left + planning
                )
                return plan
            except grpc.RpcError as error:
                now = time.monotonic()
                if now - asked > RETRY_SECONDS:
                    gone = None  # somebody was there
                elif gone is None and asked == began and len(self.connection.addresses) == 1:
                    raise
                gone = gone or now
                if error.code() not in AWAY or now > min(gone + TAKE_OVER_SECONDS, began + request.timeout):
                    raise
            self.connection.go_on(channel)
            time.sleep(RETRY_SECONDS)

    def reform(
        self, plan: Plan, tcp: str, finished: int, *, grows: bool, timeout: float, rails: Sequence[RailEnd] = ()
    ) -> Plan | None:
        """Waits until all ranks that are there want to go on, as a new incarnation of the job.  Returns this rank's
        plan in it, or None where the job goes on as it was.  Raises Evicted, CollectiveTimeout, JobEnded.

        tcp       ``address:port`` at which this rank's next mesh listens
        finished  number of the last operation that this rank has finished
        grows     whether ranks that wait to join are to be let in
        timeout   seconds to wait for the other ranks
        rails     as in `Reform`
        """
        who = f"job {plan.job!r}, rank {plan.rank} of {plan.world}"

        def ask(left: float) -> Reformed:
            request = Reform(plan.job, plan.rank, plan.epoch, tcp, finished, grows, left, plan.rank_secret, list(rails))
            answer: Reformed = self._reform(request, timeout=left + REFORM_MARGIN)
            return answer

        try:
            answer = self.ask(ask, min(timeout, MAX_RESUME))
        except grpc.RpcError as error:
            said = f"{who}: going on with the ranks that are there: {self.controller} says {error.code().name}: "
            said += error.details() or "no details"
            if error.code() is grpc.StatusCode.ABORTED:
                raise Evicted(said) from None
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise CollectiveTimeout(said) from None
            raise JobEnded(said) from None
        return None if answer.plan is None else whole(answer.plan)

    def follow(self, plan: Plan) -> JobClient:
        """Another connection to the same controllers, for the plan of this rank in the next incarnation of its job."""
        client = JobClient(",".join(self.connection.addresses), token=self._token)
        client._secret, client._world = plan.rank_secret, plan.world
        client.connection.learn(plan.controllers)
        return client

    def join_group(
        self, plan: Plan, members: Sequence[int], number: int, lane_bits: int, udp_port: int, lacks: str,
        timeout: float, *, kind: Literal["windowed", "rc"], planning: float,
    ) -> tuple[Plan, JobClient]:
        """Joins a group of some ranks of this rank's job, which folds by itself.  Returns this rank's plan there, and
        a connection of its own for it.  Raises JoinRefused, PlanError.

        plan     this rank's in the job
        members  the ranks there, in the group's order
        number   which the group of these members has for itself (`wire.jobs.GroupOf`)
        udp_port, lacks, kind  as in `Join`
        timeout  seconds to wait for the other members
        planning  as of ``join``
        """
        client = JobClient(",".join(self.connection.addresses), token=self._token)
        try:
            mine = plan.peers[plan.rank]
            group = GroupOf(plan.job, plan.epoch, plan.rank, plan.rank_secret, list(members), number)
            return client.join(Join(
                plan.job, len(members), group.members.index(plan.rank), mine.address, mine.tcp, plan.path_mtu,
                timeout=timeout, lane_bits=lane_bits, kind=kind, udp_port=udp_port, lacks=lacks, group=group,
            ), planning), client
        except BaseException:
            client.close()
            raise

    def watch(self, plan: Callable[[], Plan]) -> Watcher:
        """Opens the stream by which the controller notices this rank's death and reports that of others.  To be closed
        after ``leave``.

        plan  returns the latest plan"""
        first, channel = plan(), self.connection.channel
        settled = Settled(first.job, first.rank, first.epoch, first.rank_secret)

        def call(heard: int) -> Any:
            nonlocal channel
            with self.planning:
                now = plan()
            channel = self.connection.channel
            return self._watch(Watch(now.job, now.rank, now.epoch, now.rank_secret, now.ticket, now.waits, now.round,
                                     now.folds and not now.stand_in, heard))

        self._watcher = Watcher(
            call, f"job {first.job!r}, rank {first.rank} of {first.world}",
            lambda: self.post(self._settled, settled),
            # an RC rank gets its first ticket once it has connected; until then the next controller refuses it
            (lambda: self.connection.go_on(channel)) if first.registers or first.fold_address else None,
            folds=first.folds, rank=first.rank,
        )
        return self._watcher

    def tell(self, report: RankReport) -> None:
        """Sends how far this rank is, without waiting; a controller that is away does not hear it."""
        self.post(self._report, msgspec.structs.replace(report, secret=self._secret))

    def leave(self, report: RankReport, reason: str = "", last: str = "", folded: int = 0) -> None:
        """Sends this rank's totals, leaves the job, and waits until no other rank can need this one.  A controller that
        is away is waited for TAKE_OVER_SECONDS; where none comes, that is logged, never raised.

        reason, last, folded  as in `Leave`
        """
        report = msgspec.structs.replace(report, secret=self._secret)
        leave = Leave(job=report.job, rank=report.rank, epoch=report.epoch, reason=reason[:MAX_TEXT],
                      secret=self._secret, last=last[:MAX_LAST], folded=folded)

        def ask(left: float) -> None:
            del left  # the controller answers soon, or is away
            try:
                self._report(report, timeout=REPORT_TIMEOUT + RANK_SECONDS * self._world)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
                log.warning("job %r, rank %d: %s did not take the totals in time", report.job, report.rank,
                            self.controller)  # it must hear all the same that this rank leaves
            self._leave(leave, timeout=LEAVE_TIMEOUT + RANK_SECONDS * self._world)

        try:
            self.ask(ask, TAKE_OVER_SECONDS)
        except grpc.RpcError as error:
            log.warning(
                "job %r, rank %d: left, but %s did not hear of it: %s %s",
                report.job, report.rank, self.controller, error.code().name, error.details(),
            )

    def ask(self, call: Callable[[float], T], seconds: float) -> T:
        """The answer of the controller that is there; where it dies meanwhile, the next one is asked.

        call     asks once, and is given the seconds that are left; it raises RpcError
        seconds  until no further controller is waited for
        Raises RpcError of the last attempt.
        """
        until = time.monotonic() + seconds
        while True:
            times = self._registered(until)
            try:
                return call(max(until - time.monotonic(), 0.01))
            except grpc.RpcError as error:
                if error.code() not in AWAY or not self._registers_again(times, until - time.monotonic()):
                    raise

    def _registered(self, until: float) -> int:
        """How often this rank has registered, once it has with the controller that is there now, or at ``until``."""
        if self._watcher is None:
            return 0
        times = self._watcher.registrations
        if not self._watcher.is_registered:
            self._registers_again(times, until - time.monotonic())
        return self._watcher.registrations

    def _registers_again(self, times: int, timeout: float) -> bool:
        """True if this rank has registered with a controller more than ``times`` times within ``timeout`` seconds."""
        return self._watcher is not None and self._watcher.registers_again(times, max(timeout, 0.0))

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

    def post(self, method: Any, request: msgspec.Struct) -> None:
        """Sends a request without waiting for the answer; a failure is logged at level DEBUG."""
        self.notify(
            method, request, lambda why: log.debug("%s: %s was not received: %s", self.controller, request, why)
        )

    def close(self) -> None:
        """Closes the connection, waiting ``CLOSE_SECONDS`` at most."""
        self.connection.close()


def whole(plan: Plan) -> Plan:
    """The plan with all that it shares with other ranks'.  Raises PlanError."""
    try:
        return wire_plan.whole(plan)
    except ValueError as error:
        raise PlanError(str(error)) from error
