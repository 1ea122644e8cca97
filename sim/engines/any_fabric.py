# SPDX-License-Identifier: Apache-2.0
"""`netfold sim fabric`: collectives on any fabric, by planned paths, by sprayed packets and by hashed flows.

The fabric is that of `netfold up --topo`, with the paths that the controller would plan there
(`fabric/routing/paths.py` on `fabric.routing.clos.paths_of`), and flows have max-min fair rates (`fluid.flow`): links
are what they wait for.

    netfold     fewest pieces, the flows of a leaf together, in proportion to what paths carry
    ethereal    equal pieces, each host's flows by themselves, where flows and paths are alike; else as netfold
    spray       every packet takes any of the equally short links, at each switch
    ecmp        every flow takes one of them, by the seed
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Final

import numpy as np

from netfold.disk import files
from netfold.fabric.folding.trees import Tree
from netfold.fabric.generate.grids import mesh_of, ring_along
from netfold.fabric.graph import Fabric
from netfold.fabric.placement.ring import ring_order
from netfold.fabric.routing import routes
from netfold.fabric.routing.clos import paths_of
from netfold.fabric.routing.path_graph import PathGraph
from netfold.fabric.routing.paths import Flow, Piece, equal_where_possible, fewest_pieces, plan
from netfold.sim.engines import fluid
from netfold.sim.engines.placement import Placement
from netfold.sim.workloads.workload import COLLECTIVES, Workload

SCHEMES: Final = ("netfold", "ethereal", "spray", "ecmp")
Parts = dict[int, float]
"""Directed links of a piece, and the part of it that each carries."""


@dataclass(frozen=True)
class AnyFabricRow:
    """One collective by one scheme."""

    fabric: str
    collective: str
    nbytes: int
    """Bytes of the buffer on each host."""
    scheme: str
    seed: int
    seconds: float
    over_spray: float
    """Time over that of spraying."""
    busiest: float
    """Seconds that the busiest link between switches would take for its bytes alone: no order of flows is faster."""
    pieces: int
    """Flows, and parts of those that are cut."""


class DirectedLinks:
    """The directed links of a fabric by number, and how flows spread over them."""

    def __init__(self, fabric: Fabric, rate: float) -> None:
        graph = fabric.graph()
        self.hosts = [host.name for host in fabric.hosts]
        self.paths: PathGraph = paths_of(graph)(graph)
        self.number: dict[tuple[str, int], int] = {}
        """By node and port from where it leads."""
        self._by_hop: dict[tuple[int, str], int] = {}
        rates: list[float] = []
        for at, link in enumerate(fabric.links):
            for end in link.ends:
                self.number[end.node, end.port] = len(rates)
                self._by_hop[at, end.node] = len(rates)
                rates.append(graph.edges[link.ends[0].node, link.ends[1].node, at]["rate"] or rate)
        self.capacity = np.array(rates, np.float64) / 8
        switches = {switch.name for switch in fabric.switches}
        self.inner = [number for (at, node), number in self._by_hop.items()
                      if {end.node for end in fabric.links[at].ends} <= switches]
        self._up = {end.node: self._by_hop[at, end.node] for at, link in enumerate(fabric.links) for end in link.ends
                    if end.node not in switches}
        self._hops = {(route.switch, route.host): route.hops for route in routes.plan(graph)}

    def pinned(self, piece: Piece, flow: Flow) -> Parts:
        """The links of a planned piece."""
        leaf = self.paths.leaf_of[flow.destination]
        last = self.number[leaf, self._hops[leaf, flow.destination][0].port]
        return dict.fromkeys([self._up[flow.source], *(self._by_hop[hop.link, hop.tail] for hop in piece.path), last],
                             1.0)

    def of_tree(self, tree: Tree, hosts: Sequence[str]) -> list[tuple[int, int, frozenset[int]]]:
        """The links of an aggregation tree: upward and downward, with the ranks below.

        hosts  node of each rank
        """
        below: dict[str, frozenset[int]] = {}
        links = []
        for fold in reversed(tree.folds):  # children before their parents
            ranks: set[int] = set()
            for child in fold.children:
                under = below[child.node] if child.rank is None else frozenset([child.rank])
                up = (self.number[child.node, tree.fold(child.node).parent_port] if child.rank is None
                      else self._up[hosts[child.rank]])
                links.append((up, self.number[fold.switch, child.port], under))
                ranks |= under
            below[fold.switch] = frozenset(ranks)
        return links

    def sprayed(self, flow: Flow, take: Callable[[int], Sequence[int]] = range) -> Parts:
        """The links of a flow whose packets take any of the equally short ones.

        take  which of so many links are taken; default: all
        """
        parts: Parts = {self._up[flow.source]: 1.0}
        share = {self.paths.leaf_of[flow.source]: 1.0}
        while share:
            reached: Counter[str] = Counter()
            for switch, part in share.items():
                hops = self._hops[switch, flow.destination]
                taken = take(len(hops))
                for place in taken:
                    number = self.number[switch, hops[place].port]
                    parts[number] = parts.get(number, 0.0) + part / len(taken)
                    reached[hops[place].node] += part / len(taken)  # type: ignore[assignment]
            share = {node: part for node, part in reached.items() if node != flow.destination}
        return parts


def simulate(links: DirectedLinks, work: Workload, scheme: str, *, seed: int = 0, delay: float = 500e-9) -> tuple[
        fluid.FluidOutcome, float]:
    """Let a workload run to its end; also returns the seconds of the busiest link between switches (`AnyFabricRow`).

    Raises ValueError for a scheme that there is not, PathError where hosts cannot reach each other.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"no scheme is called {scheme!r}; there are {', '.join(SCHEMES)}")
    rng = np.random.default_rng(seed)
    names = links.hosts
    flows = {int(i): Flow(names[work.source[i]], names[work.destination[i]], int(work.size[i]))
             for i in np.flatnonzero(work.size)}
    rows: list[tuple[int, int, Parts]] = []  # task, bytes, links
    if scheme in ("netfold", "ethereal"):
        steps: dict[int, list[int]] = {}
        for i in flows:
            steps.setdefault(int(work.step[i]), []).append(i)
        known: dict[tuple[Flow, ...], tuple[Piece, ...]] = {}
        for members in steps.values():
            step = tuple(flows[i] for i in members)
            if step not in known:
                known[step] = plan(links.paths, step, scope="leaf" if scheme == "netfold" else "host",
                                   planner=fewest_pieces if scheme == "netfold" else equal_where_possible).pieces
            rows += [(members[p.flow], p.size, links.pinned(p, step[p.flow])) for p in known[step]]
    elif scheme == "spray":
        whole = {flow[:2]: links.sprayed(flow) for flow in flows.values()}
        rows = [(i, flow.size, whole[flow[:2]]) for i, flow in flows.items()]
    else:
        rows = [(i, flow.size, links.sprayed(flow, lambda n: [int(rng.integers(n))])) for i, flow in flows.items()]
    rows.sort(key=lambda row: row[0])
    size = np.array([nbytes for _, nbytes, _ in rows], np.int64)
    tasks = np.array([task for task, _, _ in rows], np.int64)
    first = np.cumsum([0, *(len(parts) for *_, parts in rows)]).astype(np.int64)
    flat = np.array([link for *_, parts in rows for link in parts], np.uint32)
    weight = np.array([part for *_, parts in rows for part in parts.values()], np.float32)
    placed = Placement(tasks, size, np.zeros(len(rows), np.int64), np.ones(len(rows)))
    latency = np.zeros(len(work))
    np.maximum.at(latency, tasks, delay * np.diff(first))
    carried = np.bincount(flat, np.repeat(size, np.diff(first)) * weight, minlength=len(links.capacity))
    busiest = float((carried / links.capacity)[links.inner].max(initial=0.0))
    usage = fluid.Usage(first, flat, weight)
    return fluid.flow(work, placed, size.astype(np.float64), usage, links.capacity, latency), busiest


def run(fabric: Fabric, *, collectives: Sequence[str] = tuple(COLLECTIVES), schemes: Sequence[str] = SCHEMES,
        nbytes: int = 16 << 20, rate: float = 400e9, delay: float = 500e-9, seeds: Sequence[int] = (1, 2, 3),
        out: Path | None = None, echo: Callable[[str], None] = print) -> list[AnyFabricRow]:
    """Simulate and print a table, and write fabric.csv into ``out``.

    rate    bit/s of links of which the fabric states none
    seeds   of hashed flows, in turn; other schemes draw nothing
    Raises ValueError for names that there are not, OSError where ``out`` cannot be written.
    """
    for kind, given, known in (("collective", collectives, COLLECTIVES), ("scheme", schemes, SCHEMES)):
        if unknown := [name for name in given if name not in known]:
            raise ValueError(f"no {kind} is called {unknown[0]!r}; there are {', '.join(known)}")
    links = DirectedLinks(fabric, rate)
    graph, names = fabric.graph(), links.hosts
    if len(names) < 2 or nbytes < 1:
        raise ValueError(f"{fabric.name}: {len(names)} hosts, {nbytes} bytes: expected 2 hosts and 1 byte or more")
    places = mesh_of(graph, names)
    order = ring_along(places) if places else ring_order(
        ((a.node, b.node) for a, b in (link.ends for link in fabric.links)), names)
    rows: list[AnyFabricRow] = []
    echo(f"# {fabric.name}: {len(names)} hosts, {nbytes} bytes each; us (over spraying; busiest link alone)")
    for name in collectives:
        if name == "halving-doubling" and len(names) & (len(names) - 1):
            echo(f"# {name}: left out, since {len(names)} hosts are no power of two")
            continue
        work = COLLECTIVES[name](order, nbytes)
        sprayed = simulate(links, work, "spray", delay=delay)[0].time
        said = []
        for scheme in schemes:
            for seed in seeds if scheme == "ecmp" else seeds[:1]:
                outcome, busiest = simulate(links, work, scheme, seed=seed, delay=delay)
                rows.append(AnyFabricRow(fabric.name, name, nbytes, scheme, seed, outcome.time, outcome.time / sprayed,
                                      busiest, outcome.pieces))
                row = rows[-1]
                said.append(f"{scheme} {row.seconds * 1e6:.0f} ({row.over_spray:.2f}; {row.busiest * 1e6:.0f})")
        echo(f"{name:<18} {'  '.join(said)}")
    if out is not None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([field.name for field in fields(AnyFabricRow)])
        writer.writerows(map(astuple, rows))
        out.mkdir(parents=True, exist_ok=True)
        files.replace(out / "fabric.csv", text.getvalue())
        echo(f"wrote fabric.csv in {out}")
    return rows
