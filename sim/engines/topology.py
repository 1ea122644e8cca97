# SPDX-License-Identifier: Apache-2.0
"""Folded Clos fabrics for thousands of hosts: numbers of directed links and paths, and the links of each path.

    two tiers     hosts - leaves - spines                   pods=1, cores=0; "aggs" are the spines
    three tiers   hosts - leaves - aggs - cores             every pod has the same leaves and aggs; agg a of every pod
                                                            is cabled to the same `cores` core switches

Directed links are numbered in six blocks; each pair of blocks has the two directions of the same cables:

    0 host up | 1 host down | 2 leaf up | 3 leaf down | 4 core up | 5 core down
    [host]      [host]        [leaf, agg]               [pod, agg, core]

A path is one number: the agg where source and destination share a pod, agg x cores + core where they do not.
native/fabric.c has the same numbering, which a test compares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from netfold.fabric.graph import Fabric


class ClosCable(NamedTuple):
    """A full-duplex link inside the fabric, ``("leaf", leaf, agg)`` or ``("core", pod, agg, core)``."""

    tier: Literal["leaf", "core"]
    a: int
    b: int
    c: int = 0


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Sizes, rates and delays.  The default is Ethereal's leaf-spine: 256 hosts, 16 leaves, 16 spines, 400 Gb/s."""

    hosts: int = 16
    """Hosts on each leaf."""
    leaves: int = 16
    """Leaves in each pod."""
    aggs: int = 16
    """Aggregation switches in each pod; the spines of a two-tier fabric."""
    pods: int = 1
    cores: int = 0
    """Core switches above each agg; 0: two tiers."""
    host_rate: float = 400e9
    """Bit/s of the links between hosts and leaves."""
    leaf_rate: float = 400e9
    """Bit/s of the links between leaves and aggs."""
    uplinks: tuple[float, ...] = ()
    """Bit/s of a leaf's link to each agg, in order, where those differ: of every leaf alike, or of all leaves in turn;
    empty: ``leaf_rate`` to all."""
    core_rate: float = 400e9
    """Bit/s of the links between aggs and cores."""
    delay: float = 500e-9
    """Seconds of propagation over one link."""

    def __post_init__(self) -> None:
        for name in ("hosts", "leaves", "aggs", "pods"):
            if not 1 <= getattr(self, name) <= 65535:
                raise ValueError(f"topology.{name}: expected 1..65535, got {getattr(self, name)}")
        if self.cores < 0 or (self.pods > 1) != (self.cores > 0):
            raise ValueError(f"topology: {self.pods} pods with {self.cores} cores an agg; more than one pod "
                             "needs cores, one pod has none")
        for name in ("host_rate", "leaf_rate", "core_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"topology.{name}: expected bit/s above 0, got {getattr(self, name)}")
        if self.uplinks and (len(self.uplinks) not in (self.aggs, self.blocks[2]) or not min(self.uplinks) > 0):
            raise ValueError(f"topology.uplinks: expected bit/s above 0 to each of {self.aggs} aggs, or of all "
                             f"{self.blocks[2]} uplinks, got {len(self.uplinks)}: {self.uplinks[:8]}")
        if not self.delay >= 0:
            raise ValueError(f"topology.delay: expected seconds of at least 0, got {self.delay}")

    @property
    def size(self) -> int:
        """Number of hosts."""
        return self.hosts * self.leaves * self.pods

    @property
    def blocks(self) -> tuple[int, int, int, int, int, int]:
        """Sizes of the six blocks of directed links."""
        leaf, core = self.pods * self.leaves * self.aggs, self.pods * self.aggs * self.cores
        return self.size, self.size, leaf, leaf, core, core

    @property
    def slowest_uplink(self) -> float:
        """Bit/s of the slowest link between leaves and aggs."""
        return min(self.uplinks, default=self.leaf_rate)

    @property
    def links(self) -> int:
        """Number of directed links."""
        return sum(self.blocks)

    def leaf(self, host: int) -> int:
        """The leaf of a host, counted through all pods."""
        return host // self.hosts

    def paths(self, source_leaf: int, destination_leaf: int) -> int:
        """How many paths lead from leaf to leaf; 1, the empty one, from a leaf to itself."""
        if source_leaf == destination_leaf:
            return 1
        same_pod = source_leaf // self.leaves == destination_leaf // self.leaves
        return self.aggs if same_pod else self.aggs * self.cores

    def route(self, source: int, destination: int, path: int) -> list[int]:
        """Directed links from host to host."""
        leaf, to = self.leaf(source), self.leaf(destination)
        return [source, *self.between(leaf, to, path), self.size + destination]

    def between(self, leaf: int, to: int, path: int) -> list[int]:
        """Directed links from leaf to leaf."""
        if leaf == to:
            return []
        up = 2 * self.size
        down = up + self.blocks[2]
        pod, to_pod = leaf // self.leaves, to // self.leaves
        if pod == to_pod:
            return [up + leaf * self.aggs + path, down + to * self.aggs + path]
        agg, core = divmod(path, self.cores)
        core_up = down + self.blocks[3]
        core_down = core_up + self.blocks[4]
        return [
            up + leaf * self.aggs + agg,
            core_up + (pod * self.aggs + agg) * self.cores + core,
            core_down + (to_pod * self.aggs + agg) * self.cores + core,
            down + to * self.aggs + agg,
        ]

    def directions(self, cable: ClosCable) -> tuple[int, int]:
        """A cable's two directed links, the upward one first.  Raises ValueError where there is no such cable."""
        up = 2 * self.size
        if cable.tier == "leaf" and 0 <= cable.a < self.leaves * self.pods and 0 <= cable.b < self.aggs:
            first = up + cable.a * self.aggs + cable.b
            return first, first + self.blocks[2]
        if cable.tier == "core" and cable.a < self.pods and cable.b < self.aggs and cable.c < self.cores:
            first = up + 2 * self.blocks[2] + (cable.a * self.aggs + cable.b) * self.cores + cable.c
            return first, first + self.blocks[4]
        raise ValueError(f"{cable}: the fabric has {self.leaves * self.pods} leaves with {self.aggs} uplinks, and "
                         f"{self.pods} pods of {self.aggs} aggs with {self.cores} uplinks")

    def dead(self, cables: Iterable[ClosCable]) -> frozenset[int]:
        """All directed links of cables."""
        return frozenset(link for cable in cables for link in self.directions(cable))

    def live_paths(self, leaf: int, to: int, dead: frozenset[int]) -> list[int]:
        """Paths that touch no dead link."""
        return [p for p in range(self.paths(leaf, to)) if not dead or dead.isdisjoint(self.between(leaf, to, p))]

    def shares(self, paths: Sequence[int], leaf: int, to: int) -> list[Fraction]:
        """The relative capacity of each live path of a pair: paths over one agg share its leaf links.

        This is `Clos.weights` in closed form for a regular fabric.
        """
        uplinks = [Fraction(min(self.uplink(leaf, agg), self.uplink(to, agg))) for agg in range(self.aggs)]
        if leaf // self.leaves == to // self.leaves:
            return [uplinks[path] if self.uplinks else Fraction(1) for path in paths]
        over = Counter(path // self.cores for path in paths)
        core_rate = Fraction(self.core_rate)
        return [min(core_rate, uplinks[path // self.cores] / over[path // self.cores]) for path in paths]

    def uplink(self, leaf: int, agg: int) -> float:
        """Bit/s of the link between a leaf, counted through all pods, and an agg of its pod."""
        return self.uplinks[(leaf * self.aggs + agg) % len(self.uplinks)] if self.uplinks else self.leaf_rate

    def rate(self, link: int) -> float:
        """Bit/s of a directed link."""
        if link < 2 * self.size:
            return self.host_rate
        if link >= 2 * self.size + 2 * self.blocks[2]:
            return self.core_rate
        return self.uplink(*divmod((link - 2 * self.size) % self.blocks[2], self.aggs))

    def rates(self) -> NDArray[np.float64]:
        """float64[links]: bit/s of all directed links."""
        uplinks = self.uplinks or (self.leaf_rate,)
        parts = ([self.host_rate] * (2 * self.size), [*uplinks] * (2 * self.blocks[2] // len(uplinks)),
                 [self.core_rate] * (2 * self.blocks[4]))
        return np.concatenate([np.array(part, np.float64) for part in parts])

    def graph(self) -> nx.MultiGraph[str]:
        """This fabric as the controller's planners have it (`Fabric.graph`), edges numbered by their upward link."""
        graph: nx.MultiGraph[str] = nx.MultiGraph()
        for host in range(self.size):
            graph.add_node(f"h{host}", kind="host")
        for number, low, high in self._cables():
            for node in (low, high):
                if node not in graph:
                    graph.add_node(node, kind="switch")
            graph.add_edge(low, high, number, rate=round(self.rate(number)), loss=0.0)
        return graph

    def _cables(self) -> Iterator[tuple[int, str, str]]:
        """(number of the upward link, lower node, upper node) of every cable."""
        for host in range(self.size):
            yield host, f"h{host}", f"leaf{self.leaf(host)}"
        for leaf in range(self.leaves * self.pods):
            for agg in range(self.aggs):
                number, _ = self.directions(ClosCable("leaf", leaf, agg))
                yield number, f"leaf{leaf}", f"agg{leaf // self.leaves}.{agg}"
        for pod in range(self.pods):
            for agg in range(self.aggs):
                for core in range(self.cores):
                    number, _ = self.directions(ClosCable("core", pod, agg, core))
                    yield number, f"agg{pod}.{agg}", f"core{agg}.{core}"


def leaf_spine(*, hosts: int = 256, leaves: int = 16, spines: int = 16, rate: float = 400e9,
               delay: float = 500e-9) -> Topology:
    """A leaf-spine fabric of ``hosts`` hosts in all.  Raises ValueError where they do not divide among the leaves."""
    if leaves < 1 or hosts % leaves:
        raise ValueError(f"leaf_spine: {hosts} hosts do not divide over {leaves} leaves")
    return Topology(hosts=hosts // leaves, leaves=leaves, aggs=spines, host_rate=rate, leaf_rate=rate, delay=delay)


def of_fabric(fabric: Fabric, *, delay: float, rate: float | None = None) -> Topology:
    """The topology of a real leaf-spine fabric, or one in Mininet, so that measurements can be compared.

    Host n of a leaf, in the fabric's order, is host n of that leaf here; leaves and spines likewise.
    delay   seconds over one link, which fabric files do not have
    rate    bit/s of links without a rate
    A leaf's links to one spine, side by side, count as one of their rates together.
    Raises ValueError where leaves differ in hosts or in their spines, since `Topology` is regular there.
    """
    graph = fabric.graph()
    leaf_of = {host.name: next(iter(graph[host.name])) for host in fabric.hosts}
    below = Counter(leaf_of.values())
    spines = [s.name for s in fabric.switches if s.name not in below]
    expected = {(leaf, spine) for leaf in below for spine in spines}
    fabric_links = [(a, b) if a in below else (b, a) for a, b in graph.edges() if not {a, b} & leaf_of.keys()]
    if len(set(below.values())) != 1 or set(fabric_links) != expected:
        raise ValueError(f"fabric {fabric.name}: the simulator takes leaf-spine fabrics with equally many hosts on "
                         f"each leaf and links from each leaf to each spine; got hosts {dict(below)}, and links "
                         f"between {len(set(fabric_links))} pairs of switches where {len(expected)} are expected; "
                         "`netfold sim fabric` takes any")
    host_rates: set[float | None] = set()
    uplinks: dict[tuple[str, str], float | None] = {}
    for a, b, stated in graph.edges(data="rate"):
        each = stated or rate
        if {a, b} & leaf_of.keys():
            host_rates.add(each)
            continue
        pair = (a, b) if a in below else (b, a)
        uplinks[pair] = None if each is None else (uplinks.get(pair) or 0) + each
    to_spines = {leaf: tuple(uplinks[leaf, spine] for spine in spines) for leaf in dict.fromkeys(leaf_of.values())}
    if len(host_rates) > 1 or None in host_rates or any(None in ups for ups in to_spines.values()):
        raise ValueError(f"fabric {fabric.name}: expected one rate for all host links, and a rate of each uplink, got "
                         f"{host_rates} and {to_spines} bit/s; state rates in the file, or give `rate`")
    (host_rate,) = host_rates
    of_leaves = [tuple(float(up) for up in ups if up is not None) for ups in to_spines.values()]
    rates = of_leaves[0] if len(set(of_leaves)) == 1 else tuple(up for ups in of_leaves for up in ups)
    return Topology(hosts=next(iter(below.values())), leaves=len(below), aggs=max(1, len(spines)),
                    host_rate=host_rate or 0, leaf_rate=max(rates, default=host_rate or 0), delay=delay,
                    uplinks=rates if len(set(rates)) > 1 else ())


def paper_fat_tree() -> Topology:
    """Ethereal's three-tier fabric: 512 hosts, 32 leaves, 32 aggs, 16 cores, fabric links of 1600 Gb/s, no
    oversubscription."""
    return Topology(hosts=16, leaves=4, aggs=4, pods=8, cores=4, leaf_rate=1600e9, core_rate=1600e9)


def large_fat_tree() -> Topology:
    """16,384 hosts at 400 Gb/s: 16 pods of 32 leaves and 8 aggs, 256 cores, fabric links of 1600 Gb/s, no
    oversubscription."""
    return Topology(hosts=32, leaves=32, aggs=8, pods=16, cores=32, leaf_rate=1600e9, core_rate=1600e9)
