# SPDX-License-Identifier: Apache-2.0
"""The controller: one process that keeps every switch of a fabric in its desired state, and serves jobs.

    async with Controller(load(Path("lab.toml"))) as controller:      # every switch is up, jobs are served
        await controller.run()                                        # until cancelled

Leaving the block leaves the switches as they are: a controller that starts again finds the pipeline and its entries in
place, goes on with the jobs whose ranks register with it (jobs/adoption.py), and removes entries that it does not know.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final

import grpc
import networkx as nx  # noqa: F401  # by what plans when it first does: a standby that takes over has it by then

from netfold.controller import exposure, heartbeat, serving, starting
from netfold.controller.health import wiring
from netfold.controller.health.drains import Drains
from netfold.controller.health.liveness import Liveness
from netfold.controller.jobs import fabric_key
from netfold.controller.jobs.adoption import Adoption
from netfold.controller.jobs.callers import ANY, CALLER, JOB, OPERATOR, VIEWER, Callers
from netfold.controller.jobs.jobs import Jobs
from netfold.controller.jobs.standstill import Standstill
from netfold.controller.operations import differences, state_file
from netfold.controller.operations.events import EventLog
from netfold.controller.operations.history import History
from netfold.controller.operations.injection import Injection
from netfold.controller.operations.inspection import Inspection
from netfold.controller.operations.maintenance import Maintenance
from netfold.controller.operations.status import limited
from netfold.controller.paths.path_service import PathService
from netfold.controller.paths.routing import Routing
from netfold.controller.paths.steering import Steering
from netfold.controller.switch import credentials, pipeline, tables
from netfold.controller.switch.election import Candidacy, Elections, Superseded
from netfold.controller.switch.installer import Installer
from netfold.controller.switch.pipeline import Pipeline
from netfold.controller.switch.switch import NotPrimary, Session, SwitchError
from netfold.controller.switch.target import Client, Target
from netfold.controller.switch.turns import Turns
from netfold.fabric.folding import slots
from netfold.fabric.graph import Fabric, Switch
from netfold.rpc import rpc
from netfold.rpc.certificates import TlsError, is_local
from netfold.rpc.limits import Shared
from netfold.wire import jobs as wire
from netfold.wire import operator, stalls
from netfold.wire.operator import Status

if TYPE_CHECKING:
    from netfold.controller.web.serve import Web

log = logging.getLogger("netfold.controller")

START_TIMEOUT: Final = 60.0
"""Seconds for all switches to come up: connected, pipeline compiled and loaded, entries in place."""
CONNECT_TIMEOUT: Final = 10.0
"""Seconds for one attempt to connect to a switch."""
ROUTES_WAIT: Final = 0.05
"""Seconds for which routes wait at most until jobs whose ranks stand still go on: a switch takes one write after the
other."""


class Controller:
    """The controller of one fabric.

    pipeline       the compiled program; default: it is compiled when the controller starts
    connect        opens a session with a switch; default: P4Runtime over gRPC
    rng            draws PSNs and where numbers begin
    start_timeout  seconds for all switches to come up
    insecure       whether addresses that other machines reach may go without token and TLS
    needed         names of the switches without which it does not start; default: all
    seen           election ids of the controller that it succeeds, by switch, where somebody has watched it
    """

    def __init__(
        self,
        fabric: Fabric,
        *,
        pipeline: Pipeline | None = None,
        connect: Callable[[Switch], Awaitable[Client]] | None = None,
        rng: random.Random | None = None,
        start_timeout: float = START_TIMEOUT,
        insecure: bool = False,
        needed: Collection[str] | None = None,
        seen: Mapping[str, int] | None = None,
    ) -> None:
        self.fabric = fabric
        self._seen = seen or {}
        self._needed = {switch.name for switch in fabric.switches} if needed is None else set(needed)
        self._pipeline = pipeline
        self._start_timeout = start_timeout
        self._insecure = insecure
        self.events = EventLog()
        self.candidacies: dict[str, Candidacy] = {}
        """The candidacy for each switch; made when the controller starts."""
        self.superseded = asyncio.Event()
        """Set when a later controller of this fabric has taken a switch."""
        self._superseded_by = ""
        self._opens_sessions = connect is None
        self._changed = asyncio.Event()
        """Set when something may have gone down or come up."""
        self._stale = asyncio.Event()
        """Set when routes may have to change."""
        self.targets: dict[str, Target] = {}
        allocator = slots.Allocator(
            [switch.name for switch in fabric.switches], slots.sizes_of(fabric.engine, fabric.path_mtu), rng
        )
        self.adoption = Adoption(fabric, allocator, self.targets)
        turns = Turns()
        for s in fabric.switches:
            self.targets[s.name] = Target(
                s.name, partial(connect or self._connect, s), turns=turns, on_change=self._changed.set,
                on_found=partial(self.adoption.reserve, s.name), on_superseded=self.supersede,
            )
        self.drains = Drains(fabric)
        self.liveness = Liveness(
            fabric, self.targets, self._changed.set, self.events.note, drained=lambda: self.drains.links,
        )
        self.steering = Steering(fabric, self.drains)
        self._routing = Routing(self.steering, self.targets)
        self._tasks: list[asyncio.Task[None]] = []
        self.allocator = allocator
        self._standstill = Standstill()
        self.installer = Installer(self.targets)
        self.jobs = Jobs(fabric, allocator, self.installer, self.liveness, self.drains, self.adoption,
                         self.events.note, self._standstill)
        self.inspection = Inspection(fabric, self.targets, self.jobs, allocator, self.drains)
        self.injection = Injection(fabric, self.targets)
        self.paths = PathService(
            self.steering, self.jobs.registry, graph=self.liveness.graph, replan=self.replan,
            unpinned=self.inspection.unpinned, links_respond=self.liveness.links_respond,
        )
        self.maintenance = Maintenance(
            self.drains, self.jobs, file=fabric.state, graph=self.liveness.graph, replan=self.replan,
            note=self.events.note,
        )
        self._server: serving.JobServer | None = None
        self._web: Web | None = None
        self._callers = Callers(fabric)
        self._ready = time.monotonic()
        self._status = Shared(self._read_status)
        self.history = History()

    async def __aenter__(self) -> Controller:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.stop()

    async def start(self) -> None:
        """Bring all switches to their desired state, then serve.  Raises StartError, PipelineError and FabricError."""
        self._callers.load()
        tls = exposure.certificates(self.fabric)
        exposure.check(self.fabric, token=self._callers.exist, insecure=self._insecure)
        self.jobs.registry.key = fabric_key.load(self.fabric)
        key = self.jobs.registry.key
        self.candidacies = {switch.name: Candidacy(Elections(key, switch.device_id), self._seen.get(switch.name, 0))
                             for switch in self.fabric.switches}
        state_file.restore(self.drains, self.fabric.state)
        if self._pipeline is None and self._opens_sessions:
            self._pipeline = await asyncio.to_thread(pipeline.of_fabric, self.fabric)
        await serving.check_unused(self.fabric.jobs, token=self._callers.operator_token)
        await asyncio.to_thread(self._preset)
        await self._routing.preset(self.liveness.whole)
        for target in self.targets.values():
            target.start()
        await starting.wait_for_switches(self.fabric.name, self.targets, self._needed, self.adoption,
                                         timeout=self._start_timeout)
        await starting.check_cpu_ports(self.fabric.name, self.targets.values(), self.adoption)
        self._server = await serving.serve(self.fabric, self._handlers(), tls=tls, token=self._callers.exist)
        self._callers.tell_admitted = self._server.watch.admit
        self._tasks.append(asyncio.create_task(self._watch_changes(), name="changes"))
        self._tasks.append(asyncio.create_task(self._update_routes(), name="routes"))
        self._tasks.append(asyncio.create_task(self.liveness.run(), name="link probes"))
        self._tasks.append(asyncio.create_task(self._end_grace(), name="grace"))
        self._tasks.append(asyncio.create_task(self._standstill.run(), name="ticks"))
        self._ready = time.monotonic()
        if self.fabric.metrics is not None:
            from netfold.controller.web.answers import Sources
            from netfold.controller.web.faults import FaultForwarder
            from netfold.controller.web.serve import Web

            sources = Sources(self.fabric, self.status, self.history, self.events.since, self.paths.pinned,
                              self.inspection.slots, FaultForwarder.of_environment(self.events.note),
                              self.jobs.ask_progress)
            self._web = Web(sources, self._callers, tls=None if is_local(self.fabric.metrics) else tls)
            self._web.start(self.fabric.metrics)

    def _preset(self) -> None:
        """Give all switches what they hold whatever happens."""
        for name, entities in tables.fixed_entries(self.fabric).items():
            self.targets[name].preset({"fabric": entities})

    @property
    def page(self) -> str:
        """URL of the page; empty if there is none, or none yet."""
        return "" if self._web is None else self._web.url

    async def run(self) -> None:
        """Serve until cancelled.  Raises Superseded when a later controller of this fabric has taken over."""
        if self._server is None:
            raise RuntimeError("Controller.run before start")
        await self.superseded.wait()
        raise Superseded(self._superseded_by)

    async def stop(self) -> None:
        """End the service and all sessions; the switches keep their entries."""
        if self._web is not None:
            await self._web.stop()
            self._web = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self.liveness.close()
        if self._server is not None:
            self.jobs.close()
            self.paths.close()
            await self._server.stop()
            await self.jobs.settle()
            self._server = None
        await asyncio.gather(*(target.stop() for target in self.targets.values()))

    # ---- failures ------------------------------------------------------------------------------------------------

    async def replan(self) -> None:
        """Plan jobs and routes anew around what is down or drained.  A switch that is down gets its routes when it is
        back, since this runs again then."""
        self._notice()
        await self._reroute()

    def _notice(self) -> None:
        self.liveness.log_changes()
        self.jobs.notice()

    async def _reroute(self) -> None:
        await self._routing.update(self.liveness.up())
        self.paths.changed()

    async def _watch_changes(self) -> None:
        """Tell jobs of every change at once, even while the writing of routes waits for a switch that hangs."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                self._notice()
            except Exception:
                log.exception("jobs could not be checked after a change")
            self._stale.set()

    async def _update_routes(self) -> None:
        while True:
            await self._stale.wait()
            self._stale.clear()
            await self.jobs.wait_for_rounds(ROUTES_WAIT)
            try:
                await self._reroute()
            except Exception:
                log.exception("routes could not be planned anew")

    async def _end_grace(self) -> None:
        """Wait for ranks of jobs that are found on the switches, then remove what nobody has claimed."""
        await asyncio.sleep(self.fabric.grace)
        try:
            await self.jobs.end_grace()
        except Exception:
            log.exception("what is left of unknown jobs could not be removed")

    # ---- connections ---------------------------------------------------------------------------------------------

    async def _connect(self, switch: Switch) -> Client:
        assert self._pipeline is not None
        if self.superseded.is_set():  # the later controller would take a claim for that of its own successor
            raise Superseded(self._superseded_by)
        candidacy = self.candidacies[switch.name]
        try:
            session = await Session.open(
                switch.name,
                switch.grpc,
                device_id=switch.device_id,
                pipeline=self._pipeline,
                election_id=candidacy.number,
                credentials=self._credentials(switch),
                others=candidacy.others,
                trusts=candidacy.trusts,
                looking=candidacy.looking,
                claim=candidacy.claim,
                timeout=min(CONNECT_TIMEOUT, self._start_timeout),
            )
        except NotPrimary as error:
            candidacy.lost(error.other, str(error))
            raise
        session.on_taken = partial(self._on_taken, candidacy)
        return session

    def _on_taken(self, candidacy: Candidacy, error: NotPrimary) -> None:
        """Another client has taken a switch.  If it is a later controller of this fabric, it has the jobs, too: this
        one must not take the switch for down and halt anybody."""
        if candidacy.yields_to(error.other):
            self.supersede(f"{error}: a later controller, to which this one yields")

    def supersede(self, why: str) -> None:
        """End the service, since a later controller of this fabric has taken a switch."""
        if not self.superseded.is_set():  # each switch says so
            log.error("%s", why)
            self._superseded_by = why
        self.jobs.stand_back()
        self.superseded.set()

    def _credentials(self, switch: Switch) -> grpc.ChannelCredentials | None:
        try:
            return credentials.of(self.fabric, switch)
        except TlsError as error:
            raise SwitchError(str(error)) from error

    def _handlers(self) -> list[grpc.GenericRpcHandler[bytes, bytes]]:
        """Handlers of the requests of ranks, operators and planned paths."""
        discovery = wiring.Discovery(self.fabric, self.liveness, self.drains)
        cables = Shared(lambda: discovery.answer(wiring.AskWiring()))
        return [
            rpc.service(wire.SERVICE, {
                "Join": (wire.Join, self.jobs.join),
                "Report": (wire.RankReport, self.jobs.report),
                "Leave": (wire.Leave, self.jobs.leave),
                "Missing": (wire.AskMissing, self.inspection.missing),
                "Suspect": (wire.AskMissing, self.jobs.suspect),
                "Resume": (wire.Resume, self.jobs.resume),
                "Connect": (wire.Connect, self.jobs.connect),
                "Settled": (wire.Settled, self.jobs.settled),
                "Opened": (wire.Opened, self.jobs.opened),
                "Reform": (wire.Reform, self.jobs.reform),
            }, {
                "Watch": (wire.Watch, self.jobs.watch),
            }, admit=self._callers.admit(JOB), large=["Watch"]),
            rpc.service(operator.SERVICE, {
                "Status": (operator.AskStatus, self._answer_status),
                "Drop": (operator.Drop, self._answer_drop),
                "Drain": (operator.SetDrain, self.maintenance.drain),
                "Wiring": (wiring.AskWiring, lambda _: cables()),
                "Diff": (differences.AskDiff, differences.SwitchComparison(self.targets).answer),
                "Events": (operator.AskEvents, self._answer_events),
                "Slots": (stalls.AskSlots, self.inspection.answer_slots),
                "Stall": (stalls.AskStall, self.inspection.answer_stall),
                "Faults": (operator.SetFaults, self.injection.answer),
                "Beat": (operator.AskBeat, self._answer_beat),
                "Connections": (operator.AskConnections, self.inspection.answer_connections),
            }, admit=self._callers.admit(OPERATOR, {"Status": ANY, "Wiring": VIEWER, "Events": VIEWER}, limited=True),
                large=["Faults"]),
            *self.paths.handlers(self._callers),
        ]

    # ---- operators -----------------------------------------------------------------------------------------------

    async def status(self) -> Status:
        """The status of fabric and jobs, with counters read from the switches after the call."""
        return await self._status()

    async def _read_status(self) -> Status:
        up, why = self.liveness.links_up(), self.liveness.links_down()
        status = await self.inspection.status(up, why, time.monotonic() - self._ready)
        await asyncio.to_thread(self.history.note, status)
        return status

    async def _answer_status(self, _: operator.AskStatus) -> Status:
        status, caller = await self.status(), CALLER.get()
        return limited(status, caller.tenant.name) if caller.scope == "job" else status

    async def _answer_events(self, request: operator.AskEvents) -> operator.Events:
        self.jobs.ask_progress()  # who asks for events looks at the jobs, too
        return await self.events.answer(request)

    async def _answer_beat(self, request: operator.AskBeat) -> operator.Beat:
        return operator.Beat(heartbeat.proof(self.jobs.registry.key, request.nonce))

    async def _answer_drop(self, request: operator.Drop) -> operator.Dropped:
        return operator.Dropped(await self.jobs.drop(request.job))
