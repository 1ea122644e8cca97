# SPDX-License-Identifier: Apache-2.0
"""The path service: ranks get the paths of their flows, and new ones after each change; operators see and change them.

    ranks      Follow, Suspect                    wire/paths.py
    operators  Table, SetMode, SetPin              `netfold paths`
       both -> Steering -> Controller.replan -> switches;  `changed` -> all ranks that follow
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Final

import grpc
import msgspec
import networkx as nx

from netfold.controller.jobs import callers
from netfold.controller.jobs.job import Job
from netfold.controller.jobs.jobs import Jobs
from netfold.controller.paths.steering import SUSPECT_SECONDS, Steering
from netfold.controller.switch import tables
from netfold.fabric import collectives
from netfold.fabric import paths as planners
from netfold.fabric.clos import Clos, Path, PathError
from netfold.fabric.graph import End, Fabric
from netfold.rpc import rpc
from netfold.rpc.rpc import Code, Refusal
from netfold.wire.paths import SERVICE, Follow, Noted, PathFlow, PathPiece, Paths, Reach, Suspect

log = logging.getLogger("netfold.controller")

OPERATOR: Final = "netfold.PathTable"
CACHED_PLANS: Final = 256
"""Plans that are cached, since all ranks of a job ask for the same steps."""
MAX_JOINT_FLOWS: Final = 4096
"""Scope "auto" plans up to this many flows of all ranks together: all-to-all of 64 ranks, halving-doubling of
256."""
TIMEOUT: Final = 10.0
"""Seconds that an operator waits for an answer."""


class AskTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for the table of all modes, uplinks and pins."""



class SetMode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sets how packets to these leaves choose among uplinks; without leaves: to all of them."""

    mode: tables.Mode
    leaves: list[str] = []


class SetPin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pins packets to a leaf with this source port, at a switch, to one of its ports; port 0: as planned."""

    switch: str
    leaf: str
    source_port: int
    port: int


class LeafRow(msgspec.Struct, frozen=True):
    """How packets to one leaf choose among uplinks."""

    name: str
    mode: tables.Mode
    unpinned: dict[str, int]
    """RoCE packets to this leaf in mode "pinned" that no pin was for, by switch."""


class UplinkRow(msgspec.Struct, frozen=True):
    """The state of one link between switches."""

    a: str
    b: str
    up: bool
    drained: bool
    suspect_for: list[str]
    """Destination leaves for which hosts suspect it."""


class PinRow(msgspec.Struct, frozen=True):
    """The port at which a switch sends packets to a leaf with this source port."""

    switch: str
    leaf: str
    source_port: int
    port: int
    towards: str
    """The neighbour at that port."""
    chosen: bool
    """Whether an operator has chosen the port."""


class Table(msgspec.Struct, frozen=True):
    """Everything that determines the path of a packet: modes, uplinks and pins."""

    leaves: list[LeafRow]
    uplinks: list[UplinkRow]
    pins: list[PinRow]


class PathService:
    """The path service of one controller.

    graph            returns the part of the fabric that is up
    replan           plans routes and pins anew and writes them to the switches
    unpinned         reads the counter `unpinned`: packets by switch, then by the leaf's number
    links_respond    whether probes come through all these links within so many seconds
    """

    def __init__(
        self,
        steering: Steering,
        jobs: Jobs,
        *,
        graph: Callable[[], nx.MultiGraph[str]],
        replan: Callable[[], Awaitable[None]],
        unpinned: Callable[[], Awaitable[dict[str, dict[int, int]]]],
        links_respond: Callable[[Collection[int], float], Awaitable[bool]],
    ) -> None:
        self._steering = steering
        self._fabric: Fabric = steering.fabric
        self._jobs = jobs
        self._graph = graph
        self._replan = replan
        self._read_unpinned = unpinned
        self._links_respond = links_respond
        self._version = 0
        self._clos: Clos | None = None
        self._plans: dict[bytes, planners.PathPlan] = {}
        """Plans of the present version, by flows and scope."""
        self._changed = asyncio.Event()
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()

    def handlers(self, known: callers.Callers) -> Sequence[grpc.GenericRpcHandler[bytes, bytes]]:
        """The gRPC services of ranks and of operators."""
        return (
            rpc.service(SERVICE, {"Suspect": (Suspect, self.suspect)}, {"Follow": (Follow, self.follow)},
                        admit=known.admit(callers.JOB)),
            rpc.service(OPERATOR, {
                "Table": (AskTable, self.table),
                "SetMode": (SetMode, self.set_mode),
                "SetPin": (SetPin, self.set_pin),
            }, admit=known.admit(callers.OPERATOR, {"Table": callers.VIEWER})),
        )

    def changed(self) -> None:
        """Forget cached plans and wake all ranks that follow, since paths may have changed."""
        self._version += 1
        self._clos = None
        self._plans.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """End all streams, so that the server can stop."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        self.changed()

    # ---- ranks -----------------------------------------------------------------------------------------------------
    async def follow(self, request: Follow) -> AsyncGenerator[Paths, None]:
        """A rank's paths, now and whenever they change.  Raises Refusal."""
        job = self._job(request)
        request = _as_flows(request, job)
        _check(request, job)
        before: Paths | None = None
        while not self._closing:
            changed = self._changed
            found = self._paths(request, job)
            if before is None or msgspec.structs.replace(found, version=before.version) != before:
                before = found
                yield found
            await changed.wait()

    async def suspect(self, request: Suspect) -> Noted:
        """Keep all ranks off an uplink towards a leaf for SUSPECT_SECONDS, or until probes come through.  Raises
        Refusal."""
        job = self._job(request)
        if not 0 <= request.peer < job.world:
            raise Refusal(Code.INVALID_ARGUMENT, f"peer: expected a rank below {job.world}, got {request.peer}")
        path = self._steering.path(job.hosts[request.rank], job.hosts[request.peer], request.source_port)
        if path is None:
            return Noted("")
        end, leaf = self._end_at(path[0].link, path[0].tail), path[-1].head
        if self._steering.suspect(path):
            log.warning("job %r, rank %d: no answer from rank %d over %s: suspect for %s during %g s",
                        job.name, request.rank, request.peer, end, leaf, SUSPECT_SECONDS)
            self.changed()  # ranks first: the switches' pins do not change
            await self._replan()
            self._start(self._replan_after(SUSPECT_SECONDS), "a suspicion ends")
            if self._steering.may_clear(path):
                self._start(self._verify_suspicion(path, end), "a suspicion is looked into")
        return Noted(str(end))

    def _start(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _replan_after(self, seconds: float) -> None:
        """Plan again when a suspicion may have ended."""
        await asyncio.sleep(seconds + 0.01)
        if self._steering.next_end() is not None:
            self._start(self._replan_after(SUSPECT_SECONDS / 4), "a suspicion ends")  # it was renewed
        await self._replan()

    async def _verify_suspicion(self, path: Path, end: End) -> None:
        """Clear a suspicion if probes come through all links of the path."""
        if await self._links_respond({hop.link for hop in path}, SUSPECT_SECONDS):
            log.warning("probes come through %s to %s: suspect no more", end, path[-1].head)
            self._steering.clear_suspicion(path)
            self.changed()
            await self._replan()

    def _paths(self, request: Follow, job: Job) -> Paths:
        steering, here = self._steering, self._steering.leaf_of[job.hosts[request.rank]]
        clos = self._clos = self._clos or steering.clos(self._graph())
        leaf_of = {rank: steering.leaf_of[name] for rank, name in enumerate(job.hosts)}
        try:
            port_of = {leaf: {path: port for port, path in steering.ports(clos, here, leaf).items()}
                       for leaf in set(leaf_of.values()) - {here}}
            pieces = [
                PathPiece(flow.destination, piece.offset, piece.size, port_of[leaf_of[flow.destination]][piece.path])
                for step in request.steps
                for flow, piece in self._planned(clos, job, request, step)
                if piece.path
            ]
        except PathError as error:
            raise Refusal(Code.UNAVAILABLE, str(error)) from error
        reaches = [Reach(rank, leaf, sorted(port_of[leaf].values()) if leaf != here else [])
                   for rank, leaf in leaf_of.items() if rank != request.rank]
        whole = Clos(self._fabric.graph())
        ports = {port for leaf in whole.leaves if leaf != here for port in steering.ports(whole, here, leaf)}
        return Paths(self._version, sorted(ports), sorted(pieces, key=lambda p: (p.peer, p.offset)), reaches)

    def _planned(
        self, clos: Clos, job: Job, request: Follow, step: Sequence[PathFlow]
    ) -> list[tuple[PathFlow, planners.Piece]]:
        """The requesting rank's pieces of a step, with their flows."""
        assert request.scope != "auto", "_as_flows has replaced it"
        flows = [planners.Flow(job.hosts[f.source], job.hosts[f.destination], f.size) for f in step]
        key = msgspec.json.encode((flows, request.scope))
        if key not in self._plans:
            if len(self._plans) >= CACHED_PLANS:  # of jobs that ended long ago
                self._plans.clear()
            self._plans[key] = planners.plan(clos, flows, scope=request.scope)
        plan = self._plans[key]
        return [(step[piece.flow], piece) for piece in plan.pieces if step[piece.flow].source == request.rank]

    def _job(self, request: Follow | Suspect) -> Job:
        job = self._jobs.find(request)
        if len(job.hosts) != job.world:
            raise Refusal(Code.FAILED_PRECONDITION, f"{job}: expected every rank at a host of the fabric "
                                                    f"{self._fabric.name}, got {len(job.hosts)} of {job.world} there")
        return job

    # ---- operators -------------------------------------------------------------------------------------------------
    async def table(self, _: AskTable) -> Table:
        """The table, with counters read now."""
        unpinned, graph = await self._read_unpinned(), self._graph()
        up = {number for *_, number in graph.edges(keys=True)}
        numbers = tables.leaf_numbers(self._fabric)
        far = {a: b for link in self._fabric.links for a, b in (link.ends, link.ends[::-1])}
        suspects, drained = self._steering.suspects(), self._steering.drains.links
        planned = self._steering.pins(Clos(self._steering.drains.left(graph)))
        return Table(
            leaves=[
                LeafRow(leaf, mode, {s: counts[numbers[leaf]] for s, counts in unpinned.items()
                                     if numbers[leaf] in counts})
                for leaf, mode in self._steering.modes.items()
            ],
            uplinks=[
                UplinkRow(link.a, link.b, number in up, number in drained,
                          sorted(leaf for leaf, blamed in suspects if blamed == number))
                for number, link in enumerate(self._fabric.links) if {e.node for e in link.ends} <= set(numbers)
            ],
            pins=[
                PinRow(switch, leaf, source_port, port, far[End(switch, port)].node,
                       (switch, leaf, source_port) in self._steering.chosen)
                for (switch, leaf, source_port), port in sorted(planned.items())
            ],
        )

    async def set_mode(self, request: SetMode) -> Table:
        """Set the mode of leaves.  Raises Refusal for an unknown leaf."""
        for leaf in request.leaves:
            self._known_leaf(leaf)
        for leaf in request.leaves or self._steering.modes:
            self._steering.modes[leaf] = request.mode
        return await self._done(f"{', '.join(request.leaves) or 'all leaves'}: packets there are {request.mode}")

    async def set_pin(self, request: SetPin) -> Table:
        """Set or remove a pin.  Raises Refusal for an unknown leaf, source port or uplink."""
        self._known_leaf(request.leaf)
        key = (request.switch, request.leaf, request.source_port)
        pins = self._steering.pins(Clos(self._fabric.graph()))
        if key not in pins:
            raise Refusal(Code.NOT_FOUND, f"{request.switch} pins no source port {request.source_port} for "
                                          f"{request.leaf}; `netfold paths show --pins` lists them")
        others = sorted({port for (switch, leaf, _), port in pins.items() if (switch, leaf) == key[:2]})
        if request.port and request.port not in others:
            raise Refusal(Code.INVALID_ARGUMENT, f"port: expected an uplink of {request.switch} towards "
                                                 f"{request.leaf}, one of {others}, or 0, got {request.port}")
        if request.port:
            self._steering.chosen[key] = request.port
        else:
            self._steering.chosen.pop(key, None)
        return await self._done(f"{request.switch}: {request.leaf} by source port {request.source_port} leaves at port "
                                f"{request.port or '(as planned)'}")

    def _known_leaf(self, leaf: str) -> None:
        if leaf not in self._steering.modes:
            raise Refusal(Code.NOT_FOUND, f"no leaf {leaf!r}; the fabric {self._fabric.name} has "
                                          f"{', '.join(self._steering.modes)}")

    async def _done(self, what: str) -> Table:
        log.info("%s", what)
        await self._replan()
        return await self.table(AskTable())

    def _end_at(self, link: int, switch: str) -> End:
        return next(end for end in self._fabric.links[link].ends if end.node == switch)


def _as_flows(request: Follow, job: Job) -> Follow:
    """The request with a named collective replaced by its flows.  Raises Refusal for an invalid request."""
    if not request.collective:
        if request.scope == "auto":
            raise Refusal(Code.INVALID_ARGUMENT, 'scope "auto" goes with a named collective; for steps say "host" or '
                                                 '"leaf", as the flows given are a rank\'s or everybody\'s')
        return request
    ranks = request.ranks or list(range(job.world))
    where = f"{request.collective} among the ranks {ranks} with root {request.root}"
    if request.steps:
        raise Refusal(Code.INVALID_ARGUMENT, f"{where}: expected a collective or steps, got both")
    if len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(job.world)) or request.rank not in ranks:
        raise Refusal(Code.INVALID_ARGUMENT, f"{where}: expected different ranks below {job.world}, and rank "
                                             f"{request.rank} among them")
    try:
        steps = collectives.steps(request.collective, len(ranks), request.root)
    except ValueError as error:
        raise Refusal(Code.INVALID_ARGUMENT, str(error)) from error
    scope = request.scope
    if scope == "auto":
        scope = "leaf" if sum(map(len, steps)) <= MAX_JOINT_FLOWS else "host"
    return msgspec.structs.replace(
        request,
        collective="",
        ranks=[],
        scope=scope,
        steps=[
            [
                PathFlow(ranks[a], ranks[b], size)
                for (a, b), size in step.items()
                if scope == "leaf" or ranks[a] == request.rank
            ]
            for step in steps
        ],
    )


def _check(request: Follow, job: Job) -> None:
    """Raise Refusal for invalid flows."""
    seen: set[int] = set()
    for at, step in enumerate(request.steps):
        for flow in step:
            where = f"steps[{at}]: flow of {flow.size} bytes from rank {flow.source} to {flow.destination}"
            if not (0 <= flow.source < job.world and 0 <= flow.destination < job.world
                    and flow.source != flow.destination and flow.size > 0):
                raise Refusal(Code.INVALID_ARGUMENT, f"{where}: expected two different ranks below {job.world}, and at "
                                                     "least 1 byte")
            if flow.source == request.rank and flow.destination in seen:
                raise Refusal(Code.INVALID_ARGUMENT, f"{where}: expected one flow to each peer in all steps; follow "
                                                     "the others by another call")
            if request.scope == "host" and flow.source != request.rank:
                raise Refusal(Code.INVALID_ARGUMENT, f'{where}: scope "host" plans rank {request.rank}\'s flows alone; '
                                                     'give those, or scope "leaf"')
            if flow.source == request.rank:
                seen.add(flow.destination)
