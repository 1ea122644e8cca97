# SPDX-License-Identifier: Apache-2.0
"""Which bytes a collective puts on which links, by each way to carry it.

    gloo              rings in the order of ranks over TCP; a reduce_scatter is an allreduce, as torch's gloo has it
    ring              rings in the fabric's order (`fabric/placement/ring.py`) over TCP
    halving-doubling  partners at distances n/2 .. 1 and back; groups of other than 2^k ranks take rings
    planned           the same over planned paths (`fabric/routing/paths.py`) instead of hashed ones
    innet, -16, -8  sums in the switches (`fabric/folding/trees.py`), in lanes of 32, 16 and 8 bits; what they do not
                      fold takes rings
    two-planes        the same in 32 bits over two such fabrics, half of the bytes on each
    hierarchical      several ranks a machine: reduce-scatter inside, rings between machines, all-gather inside

A collective is a few phases, one after another.  In a phase all of its links fill in proportion, since the steps of a
ring are alike and a fold is a stream: it goes as fast as the link with the least room allows.  docs/collectives.md has
the bytes and messages of each.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from netfold.fabric.folding import trees
from netfold.fabric.generate.grids import mesh_of, ring_along
from netfold.fabric.graph import Fabric
from netfold.fabric.placement.ring import ring_order
from netfold.fabric.routing import collectives
from netfold.fabric.routing.paths import PLANNERS, Flow, plan
from netfold.sim.engines.any_fabric import DirectedLinks
from netfold.sim.whatif.costs import LANE_SECONDS, TCP_SECONDS, HostCosts
from netfold.sim.whatif.program import FLOATS, FOLDED, Operation

Pairs = Mapping[tuple[int, int], float]
"""Bytes from rank to rank."""


@dataclass(frozen=True)
class WhatIfWay:
    """A way to carry collectives."""

    name: str
    algorithm: str = "ring"
    """"ring", "halving-doubling", or "fold"."""
    lane_bits: int = 32
    planes: int = 1
    planned: bool = False
    """True if flows take planned paths; False: hashed ones."""
    gloo: bool = False
    machines: bool = False
    """True if the ranks of a machine reduce among themselves first."""


WAYS: Final = {way.name: way for way in (
    WhatIfWay("gloo", gloo=True), WhatIfWay("ring"), WhatIfWay("halving-doubling", "halving-doubling"),
    WhatIfWay("planned", "halving-doubling", planned=True), WhatIfWay("innet", "fold", machines=True),
    WhatIfWay("innet-16", "fold", 16, machines=True), WhatIfWay("innet-8", "fold", 8, machines=True),
    WhatIfWay("two-planes", "fold", planes=2, machines=True), WhatIfWay("hierarchical", machines=True))}
"""By name, in the order of tables."""


@dataclass(frozen=True)
class Phase:
    """A part of a collective: what it puts on each resource, and what it takes beside that."""

    loads: Mapping[int, float] = field(default_factory=dict)
    """Resource of `RankFabric` -> bytes of a link or of memory, seconds of a processor; all above 0."""
    latency: float = 0.0
    """Seconds, after the last byte."""


class RankFabric:
    """The ranks of a job on a fabric: its links in both directions, twice for two planes, and the hosts' resources.

    rate      bit/s of links of which the fabric states none
    world     ranks, of which ``per_host`` are on each host, in order
    Raises ValueError where the hosts do not suffice.
    """

    def __init__(self, fabric: Fabric, rate: float, world: int, *, per_host: int = 1, costs: HostCosts, delay: float
                 ) -> None:
        if world > per_host * len(fabric.hosts):
            raise ValueError(f"{fabric.name}: {len(fabric.hosts)} hosts of {per_host} ranks each: expected room for "
                             f"{world} ranks; give a larger fabric, or --ranks-per-host")
        self.fabric, self.costs, self.delay = fabric, costs, delay
        self.graph = fabric.graph()
        self.links = DirectedLinks(fabric, rate)
        self.hosts = [fabric.hosts[rank // per_host].name for rank in range(world)]
        places = mesh_of(self.graph, self.hosts) if per_host == 1 else None
        order = ring_along(places) if places else ring_order(
            ((a.node, b.node) for a, b in (link.ends for link in fabric.links)), self.hosts)
        self.place = {rank: place for place, rank in enumerate(order)}
        """Place of each rank, in the fabric's order."""
        count = len(self.links.capacity)
        used = list(dict.fromkeys(self.hosts))
        self._memory = {host: 2 * count + number for number, host in enumerate(used)}
        self._processor = 2 * count + len(used)
        self.capacity = np.concatenate([
            self.links.capacity, self.links.capacity, np.full(len(used), costs.memory / 8), np.ones(world)])
        """float64[resources]: bytes, or processor seconds, a second."""
        self.link_names = [""] * count
        for link in fabric.links:
            a, b = link.ends
            for end, other in ((a, b), (b, a)):
                self.link_names[self.links.number[end.node, end.port]] = f"{end.node} to {other.node}"

    def phases(self, operation: Operation, way: WhatIfWay, seed: int) -> list[Phase]:
        """A collective's phases; hashed flows take paths by the seed.  Raises PathError, trees.NoTree."""
        members = operation.members
        if not way.gloo and operation.kind != "send":
            members = tuple(sorted(members, key=self.place.__getitem__))
        if operation.kind in ("broadcast", "reduce", "gather", "scatter"):
            root = operation.members[operation.root]
            members = (root, *(rank for rank in members if rank != root))
        if len(members) == 1:
            return [Phase()]
        sent = operation.nbytes if operation.kind != "barrier" else 0
        if operation.reduces and not way.gloo and operation.dtype in FLOATS:
            sent = 4 * int(operation.elements)  # halves are summed as float32
        machines = self._machines(members) if way.machines else None
        if way.algorithm == "fold" and self._folds(operation):
            lanes = operation.elements * way.lane_bits / 8 if operation.dtype in FLOATS and operation.reduces else sent
            if machines is None:
                return [self._fold(operation.kind, members, lanes, way)]
            return self._with_machines(operation.kind, machines, sent, [
                self._fold(operation.kind, [machine[0] for machine in machines], lanes, way)])
        if machines is not None and operation.kind in ("all_reduce", "reduce_scatter", "all_gather"):
            pairs: Counter[tuple[int, int]] = Counter()
            for ranks in zip(*machines, strict=True):  # a ring of those with the same place in their machines
                part = sent / len(machines[0])
                pairs.update(_around(ranks, _passes(operation.kind) * part / len(ranks)))
            return self._with_machines(operation.kind, machines, sent, [
                self._flows(pairs, _passes(operation.kind) * (len(machines) - 1), way, seed)])
        return [self._flows(pairs, messages, way, seed) for pairs, messages in steps(operation, members, sent, way)]

    # ---- between hosts -----------------------------------------------------------------------------------------------
    def _flows(self, pairs: Pairs, messages: float, way: WhatIfWay, seed: int) -> Phase:
        """Flows between ranks by TCP, at the same time."""
        loads: defaultdict[int, float] = defaultdict(float)
        flows: Counter[Flow] = Counter()
        rng = np.random.default_rng(seed)
        hops = 0
        for (a, b), nbytes in pairs.items():
            if self.hosts[a] == self.hosts[b]:
                loads[self._memory[self.hosts[a]]] += nbytes
                continue
            flows[Flow(self.hosts[a], self.hosts[b], max(1, round(nbytes * self.costs.tcp_bytes)))] += 1
            for rank in (a, b):
                loads[self._processor + rank] += nbytes * TCP_SECONDS / 2
        every = [flow for flow, count in flows.items() for _ in range(count)]
        if way.planned:
            planned = plan(self.links.paths, every, planner=PLANNERS[self.fabric.planner])
            parts = [(self.links.pinned(piece, every[piece.flow]), piece.size) for piece in planned.pieces]
        else:
            parts = [(self.links.sprayed(flow, lambda n: [int(rng.integers(n))]), flow.size) for flow in every]
        for links, size in parts:
            hops = max(hops, len(links))
            for link, part in links.items():
                loads[link] += part * size
        return Phase(_some(loads), messages * (self.costs.message + hops * self.delay))

    # ---- in the switches ---------------------------------------------------------------------------------------------
    def _folds(self, operation: Operation) -> bool:
        return (operation.kind in ("all_gather", "broadcast", "barrier")
                or (operation.reduces and operation.dtype in FOLDED))

    def _fold(self, kind: str, members: Sequence[int], nbytes: float, way: WhatIfWay) -> Phase:
        hosts = [self.hosts[rank] for rank in members]
        planned = trees.plan(self.graph, hosts)
        loads: defaultdict[int, float] = defaultdict(float)
        n, depth = len(members), max(tree.depth for tree in planned)
        for tree in planned:
            for up, down, below in self.links.of_tree(tree, hosts):
                for link, part in ((up, _upward(kind, below, n)), (down, _downward(kind, below, n))):
                    for plane in range(way.planes):
                        loads[plane * len(self.links.capacity) + link] += (
                            part * nbytes * tree.weight * self.costs.fold_bytes / way.planes)
        for rank in members:
            loads[self._processor + rank] += nbytes * LANE_SECONDS[way.lane_bits]
        trips = 2 if kind in ("all_reduce", "reduce_scatter", "reduce") else 1  # scales first, then sums
        return Phase(_some(loads), trips * (self.costs.message + 2 * depth * self.delay))

    # ---- in machines -------------------------------------------------------------------------------------------------
    def _machines(self, members: Sequence[int]) -> list[list[int]] | None:
        """The members on each host; None where there is one on each, or not the same number on all."""
        found: dict[str, list[int]] = {}
        for rank in members:
            found.setdefault(self.hosts[rank], []).append(rank)
        machines = list(found.values())
        alike = len({len(machine) for machine in machines}) == 1
        return machines if len(machines) > 1 and alike and len(machines[0]) > 1 else None

    def _with_machines(self, kind: str, machines: Sequence[Sequence[int]], nbytes: float, between: list[Phase]
                       ) -> list[Phase]:
        """The traffic between machines, and the passes inside them before and after it."""
        inside = len(machines[0])
        one = Phase(_some({self._memory[self.hosts[machine[0]]]: (inside - 1) * nbytes for machine in machines}),
                    (inside - 1) * self.costs.message)
        before = [one] if kind not in ("all_gather", "broadcast", "barrier") else []
        after = [one] if kind not in ("reduce_scatter", "reduce", "barrier") else []
        return [*before, *between, *after]


def steps(operation: Operation, members: Sequence[int], nbytes: float, way: WhatIfWay) -> Sequence[tuple[Pairs, float]]:
    """The phases of a collective between hosts: bytes between ranks, and messages one after another.

    members  in the order of the ring; the root first, where there is one
    """
    n, kind = len(members), operation.kind
    if kind == "barrier":
        return [({}, (n - 1).bit_length())]
    if kind == "send":
        return [({(members[0], members[1]): nbytes}, 1)]
    if kind in ("broadcast", "reduce"):
        tree = collectives.binomial(n) if kind == "broadcast" else collectives.binomial_reduce(n)
        return [({(members[a], members[b]): nbytes for a, b in step}, 1) for step in tree]
    if kind in ("gather", "scatter", "all_to_all"):
        (step,) = {"gather": collectives.gather, "scatter": collectives.scatter,
                   "all_to_all": collectives.all_to_all}[kind](n)
        return [({(members[a], members[b]): nbytes / n for a, b in step}, n - 1 if kind == "all_to_all" else 1)]
    if way.algorithm == "halving-doubling" and n & (n - 1) == 0:
        back = [({(members[a], members[b]): nbytes * (a ^ b) / n for a, b in step}, 1)
                for step in collectives.halving_doubling(n)]
        return {"reduce_scatter": back[::-1], "all_gather": back}.get(kind, back[::-1] + back)
    passes = 2 if way.gloo and kind == "reduce_scatter" else _passes(kind)
    return [(_around(members, passes * nbytes / n), passes * (n - 1))]


def _some(loads: Mapping[int, float]) -> dict[int, float]:
    return {resource: load for resource, load in loads.items() if load > 0}


def _around(members: Sequence[int], nbytes: float) -> Pairs:
    """Once around a ring, n - 1 pieces over each edge.

    nbytes  of a piece
    """
    return {pair: (len(members) - 1) * nbytes for pair in pairwise([*members, members[0]])}


def _passes(kind: str) -> int:
    return 2 if kind == "all_reduce" else 1


def _upward(kind: str, below: frozenset[int], n: int) -> float:
    """The part of the whole buffer that goes up a link of a tree, by the members below it (docs/collectives.md)."""
    k = len(below)
    if kind == "all_gather":
        return k / n
    if kind == "broadcast":
        return float(0 in below)
    if kind == "reduce":
        return float(below != {0})
    if kind == "reduce_scatter":
        return 1.0 if k > 1 else (n - 1) / n  # a rank adds its own row by itself
    return float(kind == "all_reduce")


def _downward(kind: str, below: frozenset[int], n: int) -> float:
    k = len(below)
    if kind == "reduce_scatter":
        return k / n
    if kind == "all_gather":
        return 1.0 if k > 1 else (n - 1) / n  # a rank has its own row
    if kind == "broadcast":
        return float(below != {0})
    if kind == "reduce":
        return float(0 in below)
    return float(kind == "all_reduce")
