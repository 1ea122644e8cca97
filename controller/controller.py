# SPDX-License-Identifier: Apache-2.0
"""The controller: one process that holds every switch of a fabric to its state, and serves jobs.

    async with Controller(load(Path("lab.toml"))) as controller:      # every switch is up, jobs are served
        await controller.run()                                        # until cancelled

Leaving the block leaves the switches as they are: a controller that starts again finds the pipeline in place and what
it wants to be there already, and takes away what it does not know.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Final

import grpc
import networkx as nx

from netfold.controller import operator, stall, status
from netfold.controller.jobs import Job, Jobs
from netfold.controller.links import Links
from netfold.controller.operator import JobSlots, Status
from netfold.controller.path_service import PathService
from netfold.controller.plan import routes, slots
from netfold.controller.plan.fabric import End, Fabric, Switch
from netfold.controller.probe import SlotState
from netfold.controller.stall import Stall
from netfold.controller.status import Counters
from netfold.controller.steering import Steering
from netfold.controller.switch import pipeline, rpc, tables
from netfold.controller.switch.entities import Entity
from netfold.controller.switch.pipeline import Pipeline
from netfold.controller.switch.rpc import Code, Refusal
from netfold.controller.switch.switch import Session, SwitchError
from netfold.controller.switch.target import Client, Target
from netfold.wire import jobs as wire
from netfold.wire.roce import OPERATION_BITS

log = logging.getLogger("netfold.controller")

START_TIMEOUT: Final = 60.0
"""Seconds for all switches to come up: connected, pipeline compiled and loaded, entries in place."""
CONNECT_TIMEOUT: Final = 10.0
"""Seconds for one attempt to connect to a switch."""
COUNTER_TIMEOUT: Final = 5.0
"""Seconds for a switch's counters; a status does not wait longer for a switch that hangs."""
STOP_GRACE: Final = 1.0

_SERVER_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    # a process that dies closes its connection, a machine that dies does not
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
)


class StartError(Exception):
    """The controller cannot start; says which switch or address, and what to check."""


class Controller:
    """Of one fabric.  ``election_id`` decides between controllers: the higher one has the switches, and by default
    the one started later."""

    def __init__(
        self,
        fabric: Fabric,
        *,
        pipeline: Pipeline | None = None,
        connect: Callable[[Switch], Awaitable[Client]] | None = None,
        rng: random.Random | None = None,
        election_id: int | None = None,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        self.fabric = fabric
        self._pipeline = pipeline
        self._start_timeout = start_timeout
        self._election_id = election_id if election_id is not None else time.time_ns() // 1_000_000
        self._opens_sessions = connect is None
        self._changed = asyncio.Event()
        self._targets = {
            s.name: Target(s.name, partial(connect or self._connect, s), on_change=self._changed.set)
            for s in fabric.switches
        }
        self._links = Links(fabric)
        self._miswired: set[str] = set()
        self._told_down: set[int] = set()
        self.steering = Steering(fabric)
        self._tasks: list[asyncio.Task[None]] = []
        ledger = slots.Ledger(self._targets, slots.SIZES[fabric.engine], rng or random.Random())
        self._ledger = ledger
        self.jobs = Jobs(fabric, ledger, self, self.graph)
        self.paths = PathService(
            self.steering, self.jobs, graph=self.graph, replan=self.replan, strays=self._strays
        )
        self._server: grpc.aio.Server | None = None
        self._token = ""
        self._ready = time.monotonic()

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
        """Bring all switches to their state, then serve.  Raises StartError, PipelineError, FabricError."""
        self._token, secrets = self.fabric.secret(), self.fabric.tls()
        if self._pipeline is None and self._opens_sessions:
            self._pipeline = await asyncio.to_thread(
                pipeline.build, self.fabric.engine, path_mtu=self.fabric.path_mtu
            )
        await self._nobody_else_serves()
        fixed, routing = tables.fixed(self.fabric), self._routing(self.fabric.graph())
        for target in self._targets.values():
            target.preset("fabric", fixed[target.name])
            target.preset("routes", routing.get(target.name, ()))
            target.start()
        outcomes = await asyncio.gather(
            *(target.wait_up(self._start_timeout) for target in self._targets.values()), return_exceptions=True
        )
        problems = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if problems:
            count = f"{len(problems)} of {len(self._targets)} switches of the fabric {self.fabric.name}"
            raise StartError(f"{count} did not come up:\n" + "\n".join(map(str, problems)))
        await self._serve(secrets)
        self._tasks.append(asyncio.create_task(self._keep_routes(), name="routes"))
        if self.fabric.probe:
            self._tasks.append(asyncio.create_task(self._keep_probing(), name="link probes"))
        self._ready = time.monotonic()

    async def run(self) -> None:
        """Serve until cancelled."""
        if self._server is None:
            raise RuntimeError("Controller.run before start")
        await self._server.wait_for_termination()

    async def stop(self) -> None:
        """End the service and the sessions; the switches stay as they are."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._server is not None:
            self.jobs.close()
            self.paths.close()
            await self._server.stop(STOP_GRACE)
            await self.jobs.settle()
            self._server = None
        await asyncio.gather(*(target.stop() for target in self._targets.values()))

    def graph(self) -> nx.MultiGraph[str]:
        """The fabric less the switches and links that are down."""
        graph = self.fabric.graph()
        down = self._links_down()
        graph.remove_edges_from([edge for edge in graph.edges(keys=True) if edge[2] in down])
        graph.remove_nodes_from(target.name for target in self._targets.values() if not target.is_up)
        return graph

    # ---- failures ------------------------------------------------------------------------------------------------

    async def check_links(self) -> None:
        """One round: what came of the last probes, and the next ones.  Links that went down or came back are logged,
        and routes and new jobs go around them or over them again."""
        up = {target.name: target.client for target in self._targets.values() if target.is_up}
        for name, client in up.items():
            while not client.packets.empty():
                packet = client.packets.get_nowait()
                problem = self._links.heard(name, packet.port, packet.payload)
                if problem and problem not in self._miswired:
                    self._miswired.add(problem)
                    log.error("%s", problem)
        for probe in self._links.round(up):
            try:
                await up[probe.switch].packet_out(probe.port, probe.frame)
            except SwitchError as error:
                log.warning("%s", error)
        if self._links_down().keys() != self._told_down:
            self._changed.set()

    def _links_down(self) -> dict[int, str]:
        """Numbers of the links that are down (in the fabric's order), and why."""
        down = dict.fromkeys(self._links.down(), "its probes are lost")
        dark = {End(name, port) for name, target in self._targets.items() for port in target.ports_down}
        for number, link in enumerate(self.fabric.links):
            for end in dark.intersection(link.ends):
                down[number] = f"{end} is down"
        return down

    def _tell_links(self) -> None:
        """Log what went down or came back since the last time."""
        now = self._links_down()
        for number in sorted(now.keys() ^ self._told_down):
            link = self.fabric.links[number]
            log.warning("link %s - %s is %s", link.a, link.b, f"down: {now[number]}" if number in now else "up")
        self._told_down = set(now)

    async def replan(self) -> None:
        """Routes without what is down.  A switch that is down keeps its own: when it is back, this runs again."""
        self._tell_links()
        self.jobs.notice()
        routing = self._routing(self.graph())
        await asyncio.gather(*(
            target.replace("routes", routing.get(target.name, ())) for target in self._targets.values() if target.is_up
        ))  # fmt: skip
        self.paths.changed()

    async def _strays(self) -> dict[str, dict[int, int]]:
        """By switch that answers: packets without a pin, by their leaf's number."""
        found: dict[str, dict[int, int]] = {}
        for name, target in self._targets.items():
            try:
                async with asyncio.timeout(COUNTER_TIMEOUT):
                    cells = await target.client.read_counter(tables.UNPINNED)
                found[name] = {number: cell.packets for number, cell in cells.items() if cell.packets}
            except (SwitchError, TimeoutError) as error:
                log.warning("no counters of %s: %s", name, error or f"no answer within {COUNTER_TIMEOUT:g} s")
        return found

    def _routing(self, graph: nx.MultiGraph[str]) -> tables.BySwitch:
        """Routes over what is left, and which of them each source port takes."""
        planned = self.steering.routes(graph, routes.plan(self.steering.live(graph)))
        return tables.merge([tables.routing(self.fabric, planned), self.steering.entries(graph)])

    async def _keep_probing(self) -> None:
        while True:
            await asyncio.sleep(self.fabric.probe)
            try:
                await self.check_links()
            except Exception:  # or nobody would notice any failure from now on
                log.exception("probing links failed")

    async def _keep_routes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.replan()
            except Exception:
                log.exception("routes could not be planned anew")

    # ---- recovery.Installer --------------------------------------------------------------------------------------

    async def install(self, part: str, entities: Mapping[str, Sequence[Entity]]) -> None:
        """Write to all switches at once; where one fails, take it back from all and raise SwitchError."""
        outcomes = await asyncio.gather(
            *(self._targets[name].install(part, wanted) for name, wanted in entities.items()), return_exceptions=True
        )
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failures:
            await self.uninstall(part)
            for failure in failures:
                if not isinstance(failure, SwitchError):
                    raise failure
            raise SwitchError("; ".join(map(str, failures)))

    def session(self, switch: str) -> int:
        """Counts the sessions with a switch."""
        return self._targets[switch].sessions

    async def uninstall(self, part: str) -> None:
        """Take it out everywhere; a switch that is down is cleaned when it comes back."""
        await asyncio.gather(*(target.uninstall(part) for target in self._targets.values()))

    # ---- connections ---------------------------------------------------------------------------------------------

    async def _connect(self, switch: Switch) -> Client:
        assert self._pipeline is not None
        return await Session.open(
            switch.name,
            switch.grpc,
            device_id=switch.device_id,
            pipeline=self._pipeline,
            election_id=self._election_id,
            timeout=min(CONNECT_TIMEOUT, self._start_timeout),
        )

    async def _nobody_else_serves(self) -> None:
        # gRPC would take over another process's unix socket without a word
        try:
            await operator.status(self.fabric.jobs, timeout=2.0, token=self._token)
        except rpc.TurnedDown:
            pass
        except rpc.Unreachable:
            return
        raise StartError(f"a controller is running at {self.fabric.jobs} already: stop it, or give this fabric another "
                         "address (fabric.jobs)")

    async def _serve(self, secrets: tuple[bytes, bytes] | None) -> None:
        server = grpc.aio.server(options=list(_SERVER_OPTIONS))
        server.add_generic_rpc_handlers((
            rpc.service(wire.SERVICE, {
                "Join": (wire.Join, self.jobs.join),
                "Report": (wire.Report, self.jobs.report),
                "Leave": (wire.Leave, self.jobs.leave),
                "Missing": (wire.AskMissing, self.missing),
                "Resume": (wire.Resume, self.jobs.resume),
            }, {
                "Watch": (wire.Watch, self.jobs.watch),
            }, token=self._token),
            rpc.service(operator.SERVICE, {
                "Status": (operator.Ask, self._answer_status),
                "Drop": (operator.Drop, self._answer_drop),
                "Slots": (operator.AskSlots, self._answer_slots),
                "Stall": (operator.AskStall, self._answer_stall),
            }, token=self._token),
            *self.paths.handlers(self._token),
        ))  # fmt: skip
        try:
            if secrets is None:
                bound = server.add_insecure_port(self.fabric.jobs)
            else:
                bound = server.add_secure_port(self.fabric.jobs, grpc.ssl_server_credentials([secrets]))
        except RuntimeError as error:
            raise StartError(f"cannot serve jobs at {self.fabric.jobs}: {error}. Is the address in use, the folder of "
                             "the socket missing, or certificate and key no pair?") from error
        if bound == 0:
            raise StartError(f"cannot serve jobs at {self.fabric.jobs}: the address cannot be bound")
        await server.start()
        self._server = server

    # ---- status --------------------------------------------------------------------------------------------------

    async def status(self) -> Status:
        """Everything an operator sees, with counters read from the switches at this moment."""
        names = list(self._targets)
        counters = dict(zip(names, await asyncio.gather(*map(self._counters, names)), strict=True))
        used = self._ledger.used()
        up = {number for *_, number in self.graph().edges(keys=True)}
        return Status(
            fabric=self.fabric.name,
            engine=self.fabric.engine,
            uptime=time.monotonic() - self._ready,
            switches=[
                status.of_switch(switch, self._targets[switch.name], used[switch.name], counters[switch.name])
                for switch in self.fabric.switches
            ],
            links=[
                status.of_link(link, counters, up=number in up) for number, link in enumerate(self.fabric.links)
            ],
            jobs=[status.of_job(job) for job in self.jobs.all()],
        )

    async def _counters(self, name: str) -> Counters:
        """Of one switch; empty where it is down or does not answer."""
        try:
            client = self._targets[name].client
            async with asyncio.timeout(COUNTER_TIMEOUT):
                return {counter: await client.read_counter(counter) for counter in status.COUNTERS}
        except (SwitchError, TimeoutError) as error:
            log.warning("no counters of %s: %s", name, error or f"no answer within {COUNTER_TIMEOUT:g} s")
            return {counter: {} for counter in status.COUNTERS}

    # ---- slots ---------------------------------------------------------------------------------------------------

    async def slots(self, switch: str, name: str | None = None) -> list[JobSlots]:
        """Every job's open slots on one switch, asked at this moment.  Raises Refusal."""
        if switch not in self._targets:
            raise Refusal(Code.NOT_FOUND, f"the fabric {self.fabric.name} has no switch {switch!r}; it has "
                                          f"{', '.join(self._targets)}")
        return [
            JobSlots(job.name, job.epoch, len(states), stall.open_slots(job.streams, job.hosts, {switch: states}))
            for job in self._holding(name)
            if (states := await self._probe(switch, stall.slots_of(job.streams, switch)))
        ]

    async def stall(self, name: str) -> list[Stall]:
        """Whom each incarnation of a job waits for.  Raises Refusal."""
        stalls = []
        for job in self._holding(name):
            switches = sorted({fold.switch for tree in job.trees for fold in tree.folds})
            states = await asyncio.gather(
                *(self._probe(switch, stall.slots_of(job.streams, switch)) for switch in switches)
            )
            stalls.append(stall.report(job.name, job.streams, job.hosts, dict(zip(switches, states, strict=True))))
        return stalls

    async def missing(self, request: wire.AskMissing) -> wire.Missing:
        """Whom a rank waits for: asks the few slots of the PSNs that it names, on all switches.  Raises Refusal."""
        job = self.jobs.find(request.job, request.epoch, request.rank)
        waits = [
            (stream, request.waits[qp])
            for stream in job.streams
            for rank, connection in zip(stream.ranks, stream.connections, strict=True)
            if rank == request.rank and (qp := connection << OPERATION_BITS) in request.waits
        ]
        wanted: dict[str, list[int]] = {}
        for stream, psn in waits:
            for switch, base in stream.bases.items():
                wanted.setdefault(switch, []).append(base + (psn & (stream.slots - 1)))
        states = await asyncio.gather(*(self._probe(switch, some) for switch, some in wanted.items()))
        held = dict(zip(wanted, states, strict=True))
        found = stall.report(job.name, [stream for stream, _ in waits], job.hosts, held)
        return wire.Missing(found.missing, [culprit.why for culprit in found.culprits[: stall.LINES]])

    def _holding(self, name: str | None) -> list[Job]:
        jobs = self.jobs.active(name)
        if not jobs and name is not None:
            others = ", ".join(sorted({job.name for job in self.jobs.active()})) or "none"
            raise Refusal(Code.NOT_FOUND, f"no job {name!r} holds slots; jobs that do: {others}")
        return jobs

    async def _probe(self, switch: str, held: Sequence[int]) -> dict[int, SlotState]:
        try:
            return await self._targets[switch].client.probe_all(held)
        except SwitchError as error:
            raise Refusal(Code.UNAVAILABLE, str(error)) from error

    async def _answer_slots(self, request: operator.AskSlots) -> operator.SwitchSlots:
        return operator.SwitchSlots(await self.slots(request.switch, request.job))

    async def _answer_stall(self, request: operator.AskStall) -> operator.Stalls:
        return operator.Stalls(await self.stall(request.job))

    async def _answer_status(self, _: operator.Ask) -> Status:
        return await self.status()

    async def _answer_drop(self, request: operator.Drop) -> operator.Dropped:
        return operator.Dropped(await self.jobs.drop(request.job))
