# SPDX-License-Identifier: Apache-2.0
"""Client of the controller's job service (wire/jobs.py): gRPC without generated code, msgspec at both ends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import msgspec

from netfold.host.client.controller_channel import AWAY, ControllerChannel
from netfold.host.client.fold_control import FoldControl
from netfold.host.client.watcher import Watcher
from netfold.host.errors import CollectiveTimeout, Evicted, JobEnded, JoinRefused, NetFoldError, PlanError, TreesLost
from netfold.rpc import channel as tls
from netfold.rpc import tokens
from netfold.rpc.certificates import TlsError
from netfold.wire import plans
from netfold.wire.bounds import MAX_LAST, MAX_TEXT
from netfold.wire.jobs import (
    SERVICE,
    AllOpened,
    AskMissing,
    Connect,
    Connected,
    Done,
    Event,
    GroupOf,
    Join,
    Leave,
    MissingContributions,
    Opened,
    OwnPairs,
    Plan,
    RankReport,
    Reform,
    Reformed,
    Resume,
    Secret,
    Settled,
    Watch,
)

ANSWER_MARGIN = 5.0
"""Seconds that an answer may take beyond the request's own timeout, so that the controller's refusal arrives first."""
MISSING_TIMEOUT = 3.0
"""Seconds that a timed-out operation spends on asking for the reason."""
MAX_RESUME = 600.0
"""Longest time in seconds that ranks wait for new trees."""
REFORM_MARGIN = 10.0
"""Seconds that the answer to ``Reform`` may take beyond the request's own timeout: silent ranks get some time before
they are evicted, and then the new plan must be made."""
CONNECT_TIMEOUT = 30.0
"""Least seconds for which an RC rank waits for the others to connect: they may have joined much later."""
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
        self._planning = threading.Lock()
        """Held while a plan may be replaced, so that a rank registers by its latest one."""
        try:
            metadata = tokens.metadata(tokens.checked(token, "token") if token else tokens.given())
            addresses = [address.strip() for address in controller.split(",") if address.strip()]
            self._connection = ControllerChannel(addresses, metadata)
        except (tokens.TokenError, TlsError) as error:
            raise JoinRefused(f"{controller}: {error}") from error
        self.unary, self.stream = self._connection.unary, self._connection.stream
        self._join = self.unary(f"{SERVICE}/Join", Plan)
        self._report = self.unary(f"{SERVICE}/Report", Done)
        self._leave = self.unary(f"{SERVICE}/Leave", Done)
        self._missing = self.unary(f"{SERVICE}/Missing", MissingContributions)
        self._suspect = self.unary(f"{SERVICE}/Suspect", Done)
        self._settled = self.unary(f"{SERVICE}/Settled", Done)
        self._resume = self.unary(f"{SERVICE}/Resume", Plan)
        self._reform = self.unary(f"{SERVICE}/Reform", Reformed)
        self._opened = self.unary(f"{SERVICE}/Opened", AllOpened)
        self._connect = self.unary(f"{SERVICE}/Connect", Connected)
        self._watch = self.stream(f"{SERVICE}/Watch", Event)

    def join(self, request: Join) -> Plan:
        """Joins the job.  Returns this rank's plan once all ranks have joined.  Raises JoinRefused, PlanError.

        Where nobody answers at any address, it is tried again for TAKE_OVER_SECONDS, if there is a standby or a
        controller has died over it."""
        who = f"job {request.job!r}, rank {request.rank} of {request.world}"
        try:
            plan = _whole(self._joined(request))
            self._secret, self._world = plan.rank_secret, plan.world
            self._connection.learn(plan.controllers)
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

    def _joined(self, request: Join) -> Plan:
        """The answer to Join.  Raises RpcError of the last attempt."""
        began = time.monotonic()
        gone: float | None = None
        while True:
            channel, asked = self._connection.channel, time.monotonic()
            left = began + request.timeout - asked
            try:
                plan: Plan = self._join(
                    msgspec.structs.replace(request, timeout=max(left, 0.01)), timeout=left + ANSWER_MARGIN
                )
                return plan
            except grpc.RpcError as error:
                now = time.monotonic()
                if now - asked > RETRY_SECONDS:
                    gone = None  # somebody was there
                elif gone is None and asked == began and len(self._connection.addresses) == 1:
                    raise
                gone = gone or now
                if error.code() not in AWAY or now > min(gone + TAKE_OVER_SECONDS, began + request.timeout):
                    raise
            self._connection.go_on(channel)
            time.sleep(RETRY_SECONDS)

    def reform(self, plan: Plan, tcp: str, finished: int, *, grows: bool, timeout: float) -> Plan | None:
        """Waits until all ranks that are there want to go on, as a new incarnation of the job.  Returns this rank's
        plan in it, or None where the job goes on as it was.  Raises Evicted, CollectiveTimeout, JobEnded.

        tcp       ``address:port`` at which this rank's next mesh listens
        finished  number of the last operation that this rank has finished
        grows     whether ranks that wait to join are to be let in
        timeout   seconds to wait for the other ranks
        """
        who = f"job {plan.job!r}, rank {plan.rank} of {plan.world}"
        until = time.monotonic() + min(timeout, MAX_RESUME)
        while True:
            times = self._registered(until)
            left = max(until - time.monotonic(), 0.01)
            request = Reform(plan.job, plan.rank, plan.epoch, tcp, finished, grows, left, plan.rank_secret)
            try:
                answer: Reformed = self._reform(request, timeout=left + REFORM_MARGIN)
                return None if answer.plan is None else _whole(answer.plan)
            except grpc.RpcError as error:
                if error.code() in AWAY and self._registers_again(times, until - time.monotonic()):
                    continue
                said = f"{who}: going on with the ranks that are there: {self.controller} says {error.code().name}: "
                said += error.details() or "no details"
                if error.code() is grpc.StatusCode.ABORTED:
                    raise Evicted(said) from None
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise CollectiveTimeout(said) from None
                raise JobEnded(said) from None

    def follow(self, plan: Plan) -> JobClient:
        """Another connection to the same controllers, for the plan of this rank in the next incarnation of its job."""
        client = JobClient(",".join(self._connection.addresses), token=self._token)
        client._secret, client._world = plan.rank_secret, plan.world
        client._connection.learn(plan.controllers)
        return client

    def join_group(
        self, plan: Plan, members: Sequence[int], number: int, lane_bits: int, udp_port: int, lacks: str,
        timeout: float,
    ) -> tuple[Plan, JobClient]:
        """Joins a group of some ranks of this rank's job, which folds by itself.  Returns this rank's plan there, and
        a connection of its own for it.  Raises JoinRefused, PlanError.

        plan     this rank's in the job
        members  the ranks there, in the group's order
        number   which the group of these members has for itself (`wire.jobs.GroupOf`)
        udp_port, lacks  as in `Join`
        timeout  seconds to wait for the other members
        """
        client = JobClient(",".join(self._connection.addresses), token=self._token)
        try:
            mine = plan.peers[plan.rank]
            group = GroupOf(plan.job, plan.epoch, plan.rank, plan.rank_secret, list(members), number)
            return client.join(Join(
                plan.job, len(members), group.members.index(plan.rank), mine.address, mine.tcp, plan.path_mtu,
                timeout=timeout, lane_bits=lane_bits, udp_port=udp_port, lacks=lacks, group=group,
            )), client
        except BaseException:
            client.close()
            raise

    def watch(self, plan: Callable[[], Plan]) -> Watcher:
        """Opens the stream by which the controller notices this rank's death and reports that of others.  To be closed
        after ``leave``.

        plan  returns the latest plan"""
        first, channel = plan(), self._connection.channel
        settled = Settled(first.job, first.rank, first.epoch, first.rank_secret)

        def call(heard: int) -> Any:
            nonlocal channel
            with self._planning:
                now = plan()
            channel = self._connection.channel
            return self._watch(Watch(now.job, now.rank, now.epoch, now.rank_secret, now.ticket, now.waits, now.round,
                                     now.folds and not now.stand_in, heard))

        self._watcher = Watcher(
            call, f"job {first.job!r}, rank {first.rank} of {first.world}",
            lambda: self._notify(self._settled, settled),
            # an RC rank gets its first ticket once it has connected; until then the next controller refuses it
            (lambda: self._connection.go_on(channel)) if first.registers or first.fold_address else None,
            folds=first.folds, rank=first.rank,
        )
        return self._watcher

    def tell(self, report: RankReport) -> None:
        """Sends how far this rank is, without waiting; a controller that is away does not hear it."""
        self._notify(self._report, msgspec.structs.replace(report, secret=self._secret))

    def leave(self, report: RankReport, reason: str = "", last: str = "") -> None:
        """Sends this rank's totals, leaves the job, and waits until no other rank can need this one.  A controller that
        is away is waited for TAKE_OVER_SECONDS; where none comes, that is logged, never raised."""
        report = msgspec.structs.replace(report, secret=self._secret)
        leave = Leave(job=report.job, rank=report.rank, epoch=report.epoch, reason=reason[:MAX_TEXT],
                      secret=self._secret, last=last[:MAX_LAST])
        until = time.monotonic() + TAKE_OVER_SECONDS
        while True:
            times = self._registered(until)
            try:
                self._report(report, timeout=REPORT_TIMEOUT + RANK_SECONDS * self._world)
                self._leave(leave, timeout=LEAVE_TIMEOUT + RANK_SECONDS * self._world)
                return
            except grpc.RpcError as error:
                if error.code() in AWAY and self._registers_again(times, until - time.monotonic()):
                    continue
                log.warning(
                    "job %r, rank %d: left, but %s did not take the report: %s %s",
                    report.job, report.rank, self.controller, error.code().name, error.details(),
                )
                return

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

    def broken(self, plan: Plan, waits: dict[int, int], why: str) -> None:
        """Reports that queue pairs of this RC rank are in error, so that all ranks are halted.  Returns at once.

        waits, why  as in AskMissing
        """
        request = AskMissing(plan.job, plan.rank, plan.epoch, waits, plan.rank_secret, why[:MAX_TEXT])
        self.notify(
            self._suspect, request,
            lambda said: log.warning("%s did not hear that a queue pair is in error: %s", self.controller, said),
        )

    def opened(self, plan: Plan, lacks: str, timeout: float) -> AllOpened:
        """Says that this rank has opened what it folds with, and waits until all ranks have.  Returns what each of them
        lacks.  Raises CollectiveTimeout, JobEnded.

        lacks    what this rank lacks; empty: nothing
        timeout  seconds to wait for the other ranks
        """
        until = time.monotonic() + timeout
        while True:
            times = self._registered(until)
            left = max(until - time.monotonic(), 0.01)
            request = Opened(plan.job, plan.rank, plan.epoch, lacks[:MAX_TEXT], left, plan.rank_secret)
            try:
                answer: AllOpened = self._opened(request, timeout=left + ANSWER_MARGIN)
                return answer
            except grpc.RpcError as error:
                if error.code() in AWAY and self._registers_again(times, until - time.monotonic()):
                    continue
                said = f"job {plan.job!r}, rank {plan.rank} of {plan.world}: before it folds: {self.controller} says "
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
        until = time.monotonic() + min(timeout, MAX_RESUME)
        while True:
            times = self._registered(until)
            left = max(until - time.monotonic(), 0.01)
            request = Connect(plan.job, plan.rank, plan.epoch, plan.round, pairs, left, plan.rank_secret)
            try:
                answer: Connected = self._connect(request, timeout=left + ANSWER_MARGIN)
            except grpc.RpcError as error:
                if error.code() in AWAY and self._registers_again(times, until - time.monotonic()):
                    continue
                if error.code() is grpc.StatusCode.ABORTED:
                    log.info("job %r, rank %d: %s", plan.job, plan.rank, error.details())
                    return None
                said = f"{error.code().name}: {error.details() or 'no details'}"
                raise TreesLost(f"job {plan.job!r}, rank {plan.rank}: connecting its queue pairs: {self.controller} "
                                f"says {said}") from error
            if answer.ticket.value:
                follow(msgspec.structs.replace(plan, ticket=answer.ticket))
            return answer

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
        until = time.monotonic() + min(timeout, MAX_RESUME)
        while True:
            times = self._registered(until)
            left = max(until - time.monotonic(), 0.01)
            request = Resume(plan.job, plan.rank, plan.epoch, missing, left, plan.rank_secret, begun, stand_in)
            try:
                with self._planning:
                    answer = _whole(self._resume(request, timeout=left + ANSWER_MARGIN))
                    follow(answer)
                return answer
            except grpc.RpcError as error:
                if error.code() in AWAY and self._registers_again(times, until - time.monotonic()):
                    continue
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
            now = self.resume(plan, missing, timeout, begun, stand_in, follow)
            return now

        def connect(planned: Plan, pairs: list[OwnPairs]) -> Connected | None:
            return self.connect(planned, pairs, max(timeout, CONNECT_TIMEOUT), follow)

        return FoldControl(
            job_error, lambda waits: self.suspect(now, waits), lambda waits: self.missing(now, waits), resume, connect,
            lambda waits, why: self.broken(now, waits, why),
        )

    def close(self) -> None:
        """Closes the connection, waiting ``CLOSE_SECONDS`` at most."""
        self._connection.close()


def _whole(plan: Plan) -> Plan:
    """The plan with all that it shares with other ranks'.  Raises PlanError."""
    try:
        return plans.whole(plan)
    except ValueError as error:
        raise PlanError(str(error)) from error
