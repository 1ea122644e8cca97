# SPDX-License-Identifier: Apache-2.0
"""Paths in any graph of switches: a mesh, a torus, whatever a file says.

A path from leaf a to leaf b is a shortest one, through a switch w half-way between the two, which names it:

    a --> . --> w --> . --> b        towards w first, and from there to b, always over one of the links that lead nearer
                                     there.  Which one, a hash of switch and name decides, fast links more often

So where a packet goes next follows from where it is, where it goes and its path's name alone: paths of all sources
agree about it, and since every hop leads nearer to b, no path has a loop, whatever some switches do not know yet of a
change elsewhere in what they pin.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from netfold.fabric.routing.joint_shares import joint_shares
from netfold.fabric.routing.path_graph import Hop, PathGraph, Way

if TYPE_CHECKING:
    import networkx as nx

Near = dict[str, list[Hop]]
"""Links by the neighbour that they lead to."""


class ShortestPaths(PathGraph):
    """The paths of a fabric of any shape."""

    def __init__(self, graph: nx.MultiGraph[str], **options: Any) -> None:
        super().__init__(graph, **options)
        self._switches = [node for node, kind in graph.nodes(data="kind") if kind == "switch"]
        self.near: dict[str, Near] = defaultdict(lambda: defaultdict(list))
        for a, b, number in sorted(self._cables, key=lambda cable: cable[2]):
            self.near[a][b].append(Hop(number, a, b))
            self.near[b][a].append(Hop(number, b, a))
        self._side_by_side = max((len(hops) for near in self.near.values() for hops in near.values()), default=1)
        """Most parallel links between two neighbours: as many paths may have the same switches."""
        self._distances: dict[str, dict[str, int]] = {}
        self._choices: dict[tuple[str, str], list[Way]] = {}
        self._next: dict[tuple[str, str, str, int], Hop] = {}
        """(switch, destination, name, layer) -> the next hop of all paths of this name, which paths of many sources
        share."""
        self._rings: dict[str, dict[int, list[str]]] = {}
        self._choice_at: dict[tuple[str, str], bool] = {}

    @property
    def middles(self) -> list[str]:
        return self._switches

    @property
    def layers(self) -> int:
        return self._side_by_side

    def choices(self, source: str, destination: str) -> list[Way]:
        if (source, destination) not in self._choices:
            self._choices[source, destination] = [
                Way(middle, layer, tuple([hop for hop in path if self._has_choice(hop.tail, destination)]))
                for middle, layer, path in super().choices(source, destination)
            ]
        return self._choices[source, destination]

    def shares(self, demands: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], list[Fraction]]:
        return joint_shares(self, demands)

    def _has_choice(self, switch: str, destination: str) -> bool:
        known = self._choice_at.get((switch, destination))
        if known is None:
            nearest = self.distances(destination)
            nearer = sum(len(hops) for far, hops in self.near[switch].items() if nearest[far] < nearest[switch])
            known = self._choice_at[switch, destination] = nearer > 1
        return known

    def _find(self, source: str, destination: str) -> list[Way]:
        there = self.distances(destination)
        if source not in there or {source, destination} & self._dead_switches:
            return []
        half = (there[source] + 1) // 2
        found: list[Way] = []
        seen: set[tuple[Hop, ...]] = set()
        for middle in self._ring(source)[half]:
            if there[middle] != there[source] - half:
                continue
            for layer in range(self._side_by_side):
                path = (*self._walk(source, middle, middle, layer), *self._walk(middle, destination, middle, layer))
                usable = (destination, path[0].link) not in self._suspects and not self._barred & {
                    hop.link for hop in path}
                if usable and path not in seen:
                    seen.add(path)
                    found.append(Way(middle, layer, path))
        return found

    def _walk(self, at: str, to: str, name: str, layer: int) -> Iterator[Hop]:
        """The hops of a named path from one switch to another."""
        while at != to:
            hop = self._next.get((at, to, name, layer))
            if hop is None:
                hop = self._next[at, to, name, layer] = self._choose(at, to, name, layer)
            yield hop
            at = hop.head

    def _choose(self, at: str, to: str, name: str, layer: int) -> Hop:
        """The hop of a named path at one of its switches, towards another."""
        nearest = self.distances(to)
        nearer = {far: hops for far, hops in self.near[at].items() if nearest[far] < nearest[at]}
        free = {far: left for far, hops in nearer.items()
                if (left := [hop for hop in hops if hop.link not in self._barred])}
        found = free or nearer
        if len(found) == 1:
            (hops,) = found.values()
        else:
            _, hops = max(found.items(), key=lambda item: (self._score(at, item[1], name), item[0]))
        return hops[layer % len(hops)]

    def _score(self, at: str, hops: list[Hop], name: str) -> float:
        """The links with the greatest score are taken: the rest do not change it, and the odds are as the rates."""
        drawn = (zlib.crc32(f"{at} {hops[0].head} {name}".encode()) + 0.5) / 2**32
        return sum(map(self.capacity, hops)) / -math.log(drawn)

    def _ring(self, switch: str) -> dict[int, list[str]]:
        """The switches that this one reaches, by their distance, sorted."""
        if switch not in self._rings:
            rings: dict[int, list[str]] = defaultdict(list)
            for far, hops in sorted(self.distances(switch).items()):
                rings[hops].append(far)
            self._rings[switch] = rings
        return self._rings[switch]

    def distances(self, switch: str) -> dict[str, int]:
        """Hops to every switch that this one reaches."""
        if switch not in self._distances:
            found = {switch: 0}
            queue = [switch]
            for at in queue:
                for far in self.near[at]:
                    if far not in found:
                        found[far] = found[at] + 1
                        queue.append(far)
            self._distances[switch] = found
        return self._distances[switch]
