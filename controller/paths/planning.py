# SPDX-License-Identifier: Apache-2.0
"""Plans the paths of ranks' flows on a thread of its own, so that no request holds up the controller's loop.

    Follow --checked against its job--> waits for its job's turn --> planned on the one thread --> Paths

What a request may cost is bounded beforehand: MAX_JOINT_FLOWS flows that are planned together, MAX_FOLLOWS streams of a
rank, MAX_HELD_FLOWS flows that a job makes the controller remember.  Jobs take turns, so that a job with many ranks
delays another by one plan, not by all of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from netfold.controller.jobs.job import Job
from netfold.controller.paths.steering import Steering, SuspectUplink
from netfold.fabric.routing import collectives
from netfold.fabric.routing import paths as planners
from netfold.fabric.routing.path_graph import PathError, PathGraph
from netfold.rpc.rpc import Code, Refusal
from netfold.wire.bounds import MAX_FLOWS
from netfold.wire.paths import Follow, PathFlow, PathPiece, Paths, Reach

if TYPE_CHECKING:
    import networkx as nx

log = logging.getLogger("netfold.controller")

MAX_JOINT_FLOWS: Final = MAX_FLOWS
"""Most flows that are planned together: all-to-all of 64 ranks, halving-doubling of 256."""
MAX_FOLLOWS: Final = 64
"""Most streams of paths that a rank holds open, one for each collective."""
MAX_HELD_FLOWS: Final = 1 << 16
"""Most flows that the ranks of a job name one by one in the streams that they hold open."""
MAX_CACHED_FLOWS: Final = 1 << 16
"""Flows of plans that are cached, since all ranks of a job ask for the same steps."""
MAX_CLOS: Final = 16
"""Fabrics of one moment that are kept, one for what each job's others fold."""
MAX_NAME: Final = 64
"""Most characters of a collective's name."""
MAX_BYTES: Final = 1 << 63
"""Upper bound on the bytes of any flow."""


@dataclass
class View:
    """The basis of path plans: the fabric at one moment.  Only the planning thread changes it."""

    steering: Steering
    version: int
    left: nx.MultiGraph[str]
    suspects: set[SuspectUplink]
    shared: frozenset[int]
    plans: dict[bytes, planners.PathPlan] = field(default_factory=dict)
    """Plans by flows, scope, planner, and what trees carry."""

    _clos: dict[frozenset[tuple[int, float]], PathGraph] = field(default_factory=dict)

    def clos(self, carried: Mapping[int, float]) -> PathGraph:
        """The paths that may be used, beside what trees carry (`trees.tree_loads`)."""
        key = frozenset(carried.items())
        if key not in self._clos:
            if len(self._clos) >= MAX_CLOS:
                self._clos.clear()
            self._clos[key] = self.steering.usable(self.left, self.suspects, self.shared, carried)
        return self._clos[key]


@dataclass
class Followers:
    """The open streams of one job."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    streams: Counter[int] = field(default_factory=Counter)
    """Number of streams, by rank."""
    flows: int = 0
    """Flows that they name one by one."""


class PathPlanner:
    """Plans paths for the jobs of one fabric."""

    def __init__(self, steering: Steering) -> None:
        self._steering = steering
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paths")
        self._turn = asyncio.Lock()
        self._is_closed = False
        self.followers: dict[int, Followers] = {}
        """By epoch of the job."""
        self._all_ports: dict[str, list[int]] = {}
        self._not_equal: set[int] = set()
        """Epochs of jobs for which it was logged that flows could not be split equally."""

    def close(self) -> None:
        """End the thread, once it has finished what it plans; whoever waits for a turn is refused."""
        self._is_closed = True
        self._thread.shutdown(wait=False)

    @contextmanager
    def stream(self, request: Follow, job: Job) -> Iterator[None]:
        """Count a rank's stream while it is open.  Raises Refusal where the rank or its job has too many."""
        followers = self.followers.setdefault(job.epoch, Followers())
        flows, who = sum(map(len, request.steps)), f"{job}, rank {request.rank}"
        if followers.streams[request.rank] >= MAX_FOLLOWS:
            raise Refusal(Code.RESOURCE_EXHAUSTED, f"{who}: expected at most {MAX_FOLLOWS} streams of paths at once; "
                                                   "close one before")
        if flows > MAX_JOINT_FLOWS or followers.flows + flows > MAX_HELD_FLOWS:
            raise Refusal(Code.RESOURCE_EXHAUSTED, f"{who}: steps: expected at most {MAX_JOINT_FLOWS} flows a stream "
                                                   f"and {MAX_HELD_FLOWS} of all ranks of a job, got {flows} and "
                                                   f"{followers.flows + flows}; name the collective instead")
        followers.streams[request.rank] += 1
        followers.flows += flows
        try:
            yield
        finally:
            followers.flows -= flows
            followers.streams[request.rank] -= 1
            if not followers.streams.total():
                self.followers.pop(job.epoch, None)
                self._not_equal.discard(job.epoch)

    async def plan(
        self, view: View, request: Follow, job: Job, carried: Mapping[int, float] = MappingProxyType({})
    ) -> Paths:
        """The paths of a rank whose stream is counted.  Raises Refusal.

        carried  bit/s that other jobs' trees take of links
        """
        hosts = tuple(job.hosts)
        async with self.followers[job.epoch].turn, self._turn:
            if self._is_closed:
                raise Refusal(Code.UNAVAILABLE, f"{job}, rank {request.rank}: the controller is ending")
            work = asyncio.get_running_loop().run_in_executor(self._thread, self.paths, view, request, hosts, carried)
            return await work

    # ---- on the thread -----------------------------------------------------------------------------------------------

    def paths(self, view: View, request: Follow, hosts: Sequence[str], carried: Mapping[int, float]) -> Paths:
        """The paths of a rank, by the hosts of all ranks.  Raises Refusal."""
        request = _as_flows(request, len(hosts))
        _check(request, len(hosts))
        steering, here = self._steering, self._steering.leaf_of[hosts[request.rank]]
        leaf_of = {rank: steering.leaf_of[name] for rank, name in enumerate(hosts)}
        clos = view.clos(carried)
        try:
            port_of = {leaf: {path: port for port, path in steering.ports(clos, here, leaf).items()}
                       for leaf in set(leaf_of.values()) - {here}}
            pieces = [
                PathPiece(flow.destination, piece.offset, piece.size, port_of[leaf_of[flow.destination]][piece.path])
                for step in request.steps
                for flow, piece in self._pieces(view, carried, hosts, request, step)
                if piece.path
            ]
        except PathError as error:
            raise Refusal(Code.UNAVAILABLE, str(error)) from error
        reaches = [Reach(rank, leaf, sorted(port_of[leaf].values()) if leaf != here else [])
                   for rank, leaf in leaf_of.items() if rank != request.rank]
        return Paths(view.version, self._ports(here), sorted(pieces, key=lambda p: (p.peer, p.offset)), reaches)

    def _ports(self, leaf: str) -> list[int]:
        """Every source port that may name a path from a leaf, whatever is down."""
        if leaf not in self._all_ports:
            whole = self._steering.whole
            ports = {port for other in whole.leaves if other != leaf
                     for port in self._steering.ports(whole, leaf, other)}
            self._all_ports[leaf] = sorted(ports)
        return self._all_ports[leaf]

    def _pieces(
        self, view: View, carried: Mapping[int, float], hosts: Sequence[str], request: Follow, step: Sequence[PathFlow]
    ) -> list[tuple[PathFlow, planners.Piece]]:
        """The requesting rank's pieces of a step, with their flows."""
        assert request.scope != "auto", "_as_flows has replaced it"
        flows = [planners.Flow(hosts[f.source], hosts[f.destination], f.size) for f in step]
        planner = self._steering.planner
        key = msgspec.json.encode((flows, request.scope, planner, sorted(carried.items())))
        if key not in view.plans:
            if sum(len(plan.flows) for plan in view.plans.values()) + len(flows) > MAX_CACHED_FLOWS:
                view.plans.clear()
            view.plans[key] = planners.plan(view.clos(carried), flows, planner=planners.PLANNERS[planner],
                                              scope=request.scope)
        plan = view.plans[key]
        if plan.not_equal and request.epoch not in self._not_equal:
            self._not_equal.add(request.epoch)
            log.warning("job %r: planner %r: flows or paths of %s are not equal, as on links that are slower, fewer, "
                        "or carry trees: such flows are cut into the fewest pieces instead", request.job, planner,
                        plan.not_equal)
        return [(step[piece.flow], piece) for piece in plan.pieces if step[piece.flow].source == request.rank]


def _as_flows(request: Follow, world: int) -> Follow:
    """The request with a named collective replaced by its flows.  Raises Refusal for an invalid request."""
    if not request.collective:
        if request.scope == "auto":
            raise Refusal(Code.INVALID_ARGUMENT, 'scope "auto" goes with a named collective; for steps say "host" or '
                                                 '"leaf", as the flows given are a rank\'s or everybody\'s')
        return request
    if len(request.collective) > MAX_NAME or len(request.ranks) > world:
        raise Refusal(Code.INVALID_ARGUMENT, f"collective: expected a name of at most {MAX_NAME} characters and at "
                                             f"most {world} ranks, got {len(request.collective)} and "
                                             f"{len(request.ranks)}")
    ranks = request.ranks or list(range(world))
    where = f"{request.collective} among {len(ranks)} ranks with root {request.root}"
    if request.steps:
        raise Refusal(Code.INVALID_ARGUMENT, f"{where}: expected a collective or steps, got both")
    if len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(world)) or request.rank not in ranks:
        raise Refusal(Code.INVALID_ARGUMENT, f"{where}: expected different ranks below {world}, and rank "
                                             f"{request.rank} among them")
    try:
        flows = collectives.count(request.collective, len(ranks), request.root)
        scope = request.scope
        if scope == "auto":
            scope = "leaf" if flows <= MAX_JOINT_FLOWS else "host"
        if scope == "leaf" and flows > MAX_JOINT_FLOWS:
            raise Refusal(Code.INVALID_ARGUMENT, f"{request.collective} among {len(ranks)} ranks has {flows} flows: "
                                                 f'expected at most {MAX_JOINT_FLOWS} for scope "leaf"; ask for scope '
                                                 '"host" or "auto"')
        mine = None if scope == "leaf" else ranks.index(request.rank)
        steps = collectives.steps(request.collective, len(ranks), request.root, sender=mine)
    except ValueError as error:
        raise Refusal(Code.INVALID_ARGUMENT, str(error)) from error
    return msgspec.structs.replace(
        request, collective="", ranks=[], scope=scope,
        steps=[[PathFlow(ranks[a], ranks[b], size) for (a, b), size in step.items()] for step in steps],
    )


def _check(request: Follow, world: int) -> None:
    """Raise Refusal for invalid flows."""
    seen: set[int] = set()
    for at, step in enumerate(request.steps):
        for flow in step:
            where = f"steps[{at}]: flow of {flow.size} bytes from rank {flow.source} to {flow.destination}"
            if not (0 <= flow.source < world and 0 <= flow.destination < world
                    and flow.source != flow.destination and 0 < flow.size < MAX_BYTES):
                raise Refusal(Code.INVALID_ARGUMENT, f"{where}: expected two different ranks below {world}, and at "
                                                     "least 1 byte, less than 2^63")
            if flow.source == request.rank and flow.destination in seen:
                raise Refusal(Code.INVALID_ARGUMENT, f"{where}: expected one flow to each peer in all steps; follow "
                                                     "the others by another call")
            if request.scope == "host" and flow.source != request.rank:
                raise Refusal(Code.INVALID_ARGUMENT, f'{where}: scope "host" plans rank {request.rank}\'s flows alone; '
                                                     'give those, or scope "leaf"')
            if flow.source == request.rank:
                seen.add(flow.destination)
