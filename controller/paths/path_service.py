# SPDX-License-Identifier: Apache-2.0
"""The path service: ranks get the paths of their flows, and new ones after each change; operators see and change them.

    ranks      Follow, Suspect                    wire/paths.py
    operators  Table, SetMode, SetPlanner, SetPin  `netfold paths`
       both -> Steering -> Controller.replan -> switches;  `changed` -> all ranks that follow
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import grpc
import msgspec

from netfold.controller.jobs import callers
from netfold.controller.jobs.job import Job
from netfold.controller.jobs.registry import Registry
from netfold.controller.paths.planning import PathPlanner, View
from netfold.controller.paths.steering import SUSPECT_SECONDS, Steering, path_of
from netfold.controller.switch import tables
from netfold.controller.switch.path_tables import ALL_BITS, NO_PORT, Forwarding
from netfold.fabric.folding import trees
from netfold.fabric.graph import End, Fabric, PlannerName, Up
from netfold.fabric.routing.path_graph import Path
from netfold.rpc import rpc
from netfold.rpc.limits import Shared
from netfold.rpc.rpc import Code, Refusal
from netfold.wire.bounds import Int32, Name
from netfold.wire.operator import PinnedPath
from netfold.wire.paths import SERVICE, Follow, Noted, Paths, Suspect

if TYPE_CHECKING:
    import networkx as nx

log = logging.getLogger("netfold.controller")

OPERATOR: Final = "netfold.PathTable"
MAX_PINNED: Final = 256
"""Most paths of flows that the page shows."""
TIMEOUT: Final = 10.0
"""Seconds that an operator waits for an answer."""


class AskTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for the table of all modes, uplinks and pins."""



class SetMode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sets how packets to these leaves choose among uplinks; without leaves: to all of them."""

    mode: tables.Mode
    leaves: list[Name] = []


class SetPlanner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sets how flows are cut over paths from now on; ranks get their new paths at once."""

    planner: PlannerName


class SetPin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pins packets to a leaf with this source port, and those that the switch does not tell apart from it, to one of
    the switch's ports; port 0: as planned."""

    switch: Name
    leaf: Name
    source_port: Int32
    port: Int32


class LeafRow(msgspec.Struct, frozen=True):
    """How packets to one leaf choose among uplinks."""

    name: str
    mode: tables.Mode


class UplinkRow(msgspec.Struct, frozen=True):
    """The state of one link between switches."""

    a: str
    b: str
    up: bool
    drained: bool
    suspect_for: list[str]
    """Destination leaves for which hosts suspect it."""


class PinRow(msgspec.Struct, frozen=True):
    """The port at which a switch sends packets with this source port."""

    switch: str
    leaf: str
    """Destination leaf, or a block of them, "first..last"; empty: all leaves without a row of their own."""
    source_port: int
    """UDP or TCP source port, which stands for all that the switch does not tell apart, as those of a plane."""
    port: int
    """Switch port; 0: the hash chooses it."""
    towards: str
    """The neighbour at that port; empty for port 0."""
    chosen: bool
    """True if an operator has chosen the port."""


class Table(msgspec.Struct, frozen=True):
    """Everything that determines the path of a packet: modes, uplinks and pins."""

    leaves: list[LeafRow]
    uplinks: list[UplinkRow]
    pins: list[PinRow]
    unpinned: dict[str, int]
    """Packets in mode "pinned" without a pin, by the switch that met them."""
    planner: PlannerName = "fewest_pieces"
    """How flows are split over paths."""


class PathService:
    """The path service of one controller.

    graph            returns the part of the fabric that is up
    replan           plans routes and pins anew and writes them to the switches
    unpinned         reads the counter `unpinned`: packets by switch
    links_respond    whether probes come through all these links within so many seconds
    sleep            waits so many seconds
    """

    def __init__(
        self,
        steering: Steering,
        jobs: Registry,
        *,
        graph: Callable[[], nx.MultiGraph[str]],
        replan: Callable[[], Awaitable[None]],
        unpinned: Callable[[], Awaitable[dict[str, int]]],
        links_respond: Callable[[Collection[int], float], Awaitable[bool]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._steering = steering
        self._fabric: Fabric = steering.fabric
        self._jobs = jobs
        self._graph = graph
        self.replan = Shared(replan)
        self._table = Shared(self._read_table)
        self._read_unpinned = unpinned
        self.links_respond = links_respond
        self.sleep = sleep
        self._version = 0
        self._view: View | None = None
        """The fabric of the present version; None until a path is planned on it."""
        self.planner = PathPlanner(steering)
        self._changed = asyncio.Event()
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[None] | None = None
        """Plans again at the ends of all suspicions, while there are some."""
        self._probing: set[Path] = set()
        """Suspect paths over whose links probes are under way."""
        self._pieces: dict[object, tuple[Job, int, Paths]] = {}
        """Open stream -> the job, rank and paths that were sent on it last."""

    def handlers(self, known: callers.Callers) -> Sequence[grpc.GenericRpcHandler[bytes, bytes]]:
        """The gRPC services of ranks and of operators."""
        return (
            rpc.service(SERVICE, {"Suspect": (Suspect, self.suspect)}, {"Follow": (Follow, self.follow)},
                        admit=known.admit(callers.JOB)),
            rpc.service(OPERATOR, {
                "Table": (AskTable, self.table),
                "SetMode": (SetMode, self.set_mode),
                "SetPlanner": (SetPlanner, self.set_planner),
                "SetPin": (SetPin, self.set_pin),
            }, admit=known.admit(callers.OPERATOR, {"Table": callers.VIEWER}, limited=True)),
        )

    def changed(self) -> None:
        """Forget cached plans and wake all ranks that follow, since paths may have changed."""
        self._version += 1
        self._view = None
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """End all streams, so that the server can stop."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        self.changed()
        self.planner.close()

    # ---- ranks -----------------------------------------------------------------------------------------------------
    async def follow(self, request: Follow) -> AsyncGenerator[Paths, None]:
        """A rank's paths, now and whenever they change.  Raises Refusal."""
        job = self._job(request)
        before: Paths | None = None
        stream = object()
        with self.planner.stream(request, job), self._told(stream):
            while not self._closing:
                changed = self._changed
                view = self.current_view()
                carried = trees.tree_loads(view.left, self._jobs.folding_beside(job))
                found = await self.planner.plan(view, request, job, carried)
                if before is None or msgspec.structs.replace(found, version=before.version) != before:
                    before = found
                    self._pieces[stream] = (job, request.rank, found)
                    yield found
                await changed.wait()

    @contextlib.contextmanager
    def _told(self, stream: object) -> Iterator[None]:
        """Forget what a stream was told when it ends."""
        try:
            yield
        finally:
            self._pieces.pop(stream, None)

    def pinned(self) -> list[PinnedPath]:
        """The paths that flows of jobs have by now, MAX_PINNED at most: what ranks were told last."""
        found: list[PinnedPath] = []
        for job, rank, told in list(self._pieces.values()):
            sizes: Counter[int] = Counter()
            for piece in told.pieces:
                sizes[piece.peer] += piece.size
            for piece in told.pieces:
                if len(found) == MAX_PINNED:
                    return found
                source, destination = job.hosts[rank], job.hosts[piece.peer]
                path = self._steering.path(source, destination, piece.source_port)
                if path is not None:
                    found.append(PinnedPath(job.name, source, destination, [hop.link for hop in path],
                                            piece.size / sizes[piece.peer]))
        return found

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
            await self.replan()
            if self._ending is None or self._ending.done():
                self._ending = self._start(self._replan_at_ends(), "suspicions end")
        if path not in self._probing:
            self._probing.add(path)
            self._start(self._verify_suspicion(path, end), "a suspicion is looked into")
        return Noted(str(end))

    def _start(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _replan_at_ends(self) -> None:
        """Plan again whenever a suspicion may have ended, until there is none; one that was renewed ends later."""
        while (seconds := self._steering.next_end()) is not None:
            await self.sleep(seconds + 0.01)
            await self.replan()

    async def _verify_suspicion(self, path: Path, end: End) -> None:
        """Clear a suspicion if probes come through all links of the path.  Where that was done not long ago, the path
        stays suspect, and is used if its leaves have no other one."""
        try:
            came = await self.links_respond({hop.link for hop in path}, SUSPECT_SECONDS)
        finally:
            self._probing.discard(path)
        if came and self._steering.may_clear(path):
            log.warning("probes come through %s to %s: suspect no more", end, path[-1].head)
            self._steering.clear_suspicion(path)
        elif not self._steering.probed(path, came):
            return
        elif came:
            log.warning("probes come through %s to %s, and hosts suspect it again: used where all paths are suspect",
                        end, path[-1].head)
        self.changed()
        await self.replan()

    def current_view(self) -> View:
        """The fabric of the present version."""
        if self._view is None:
            self._view = View(self._steering, self._version, *self._steering.usable_parts(self._graph()))
        return self._view

    def _job(self, request: Follow | Suspect) -> Job:
        job = self._jobs.find(request)
        if len(job.hosts) != job.world:
            raise Refusal(Code.FAILED_PRECONDITION, f"{job}: expected every rank at a host of the fabric "
                                                    f"{self._fabric.name}, got {len(job.hosts)} of {job.world} there")
        return job

    # ---- operators -------------------------------------------------------------------------------------------------
    async def table(self, _: AskTable) -> Table:
        """The table, with counters read after the call."""
        return await self._table()

    async def _read_table(self) -> Table:
        unpinned = await self._read_unpinned()
        up = Up.of(self._graph())
        switches = {switch.name for switch in self._fabric.switches}
        suspects, drained = self._steering.suspects(), self._steering.drains.links
        planned = await asyncio.to_thread(self._steering.plan, self._steering.inputs(up))
        return Table(
            leaves=[LeafRow(leaf, mode) for leaf, mode in self._steering.modes.items()],
            uplinks=[
                UplinkRow(link.a, link.b, number in up.links, number in drained,
                          sorted(leaf for leaf, blamed in suspects if blamed == number))
                for number, link in enumerate(self._fabric.links) if {e.node for e in link.ends} <= switches
            ],
            pins=[row for switch, ways in sorted(planned.items()) for row in self._pin_rows(switch, ways)],
            unpinned={switch: count for switch, count in unpinned.items() if count},
            planner=self._steering.planner,
        )

    def _pin_rows(self, switch: str, ways: Forwarding) -> Iterator[PinRow]:
        """A switch's pins, then their exceptions; of each path by its UDP port, then by its TCP port
        (`Steering.pinned_names`)."""
        far = {end.port: other.node for link in self._fabric.links
               for end, other in (link.ends, link.ends[::-1]) if end.node == switch}
        for (leaf, path), ports in [*(((("", path), ports)) for path, ports in ways.pins.items()), *ways.bent.items()]:
            for source_port, port in zip(self._steering.pinned_names(path), ports, strict=False):
                if port != NO_PORT:
                    yield PinRow(switch, leaf, source_port, port, far[port],
                                 self._steering.chosen.get((switch, leaf, source_port)) == port)
                elif leaf:
                    yield PinRow(switch, leaf, source_port, 0, "", False)

    async def set_mode(self, request: SetMode) -> Table:
        """Set the mode of leaves.  Raises Refusal for an unknown leaf."""
        for leaf in request.leaves:
            self._known_leaf(leaf)
        for leaf in request.leaves or self._steering.modes:
            self._steering.modes[leaf] = request.mode
        return await self._done(f"{', '.join(request.leaves) or 'all leaves'}: packets there are {request.mode}")

    async def set_planner(self, request: SetPlanner) -> Table:
        """Set how flows are cut."""
        self._steering.planner = request.planner
        self.changed()
        return await self._done(f"flows are cut over paths by {request.planner}")

    async def set_pin(self, request: SetPin) -> Table:
        """Set or remove a pin: of all paths that the switch does not tell apart, as those of a plane.  Raises Refusal
        for an unknown leaf, source port or uplink, and for a leaf's pin to itself."""
        self._known_leaf(request.leaf)
        if request.switch == request.leaf:
            raise Refusal(Code.INVALID_ARGUMENT, f"leaf: expected another one than {request.leaf}, which sends nothing "
                                                 "to its own hosts by its uplinks")
        given = self._steering.inputs(self._steering.everything)
        whole = await asyncio.to_thread(self._steering.plan, given)
        ways, (path, kind) = whole.get(request.switch, Forwarding()), path_of(request.source_port)
        uplinks = [hop.port for hop in ways.hops(request.leaf)]
        if (not self._steering.names_path(request.source_port) or len(uplinks) < 2
                or getattr(ways.ports(request.leaf, path), kind) == NO_PORT):
            raise Refusal(Code.NOT_FOUND, f"{request.switch} pins no source port {request.source_port} for "
                                          f"{request.leaf}; `netfold paths show --pins` lists them")
        if request.port and request.port not in uplinks:
            raise Refusal(Code.INVALID_ARGUMENT, f"port: expected an uplink of {request.switch} towards "
                                                 f"{request.leaf}, one of {uplinks}, or 0, got {request.port}")
        name = self._steering.pinned_name(ways, request.source_port)
        if request.port:
            self._steering.chosen[request.switch, request.leaf, name] = request.port
        else:
            self._steering.chosen.pop((request.switch, request.leaf, name), None)
        others = "" if ways.names == ALL_BITS else ", with all paths of that plane"
        return await self._done(f"{request.switch}: {request.leaf} by source port {name} leaves at port "
                                f"{request.port or '(as planned)'}{others}")

    def _known_leaf(self, leaf: str) -> None:
        if leaf not in self._steering.modes:
            raise Refusal(Code.NOT_FOUND, f"no leaf {leaf!r}; the fabric {self._fabric.name} has "
                                          f"{', '.join(self._steering.modes)}")

    async def _done(self, what: str) -> Table:
        log.info("%s", what)
        await self.replan()
        return await self.table(AskTable())

    def _end_at(self, link: int, switch: str) -> End:
        return next(end for end in self._fabric.links[link].ends if end.node == switch)
