# SPDX-License-Identifier: Apache-2.0
"""A Clos fabric as planners see it: which live paths lead from leaf to leaf, and what they can carry.

A path climbs from the source's leaf to a switch that both leaves reach, and comes down again.  In a folded Clos the
turning switch fixes the path, so a path is as good as the name of a spine (two tiers) or of a core (three tiers):

    leaf1 ---> spine2 ---> leaf3              leaf1 ---> agg2 ---> core4 ---> agg6 ---> leaf7
       one path a spine                         one path a core; inside a pod, one path an agg

Tiers are not declared: a switch's tier is its distance from the nearest host.  `paths_of` says which fabrics are a
Clos; all others have `ShortestPaths`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from netfold.fabric.routing.path_graph import Hop, Path, PathError, PathGraph, Way
from netfold.fabric.routing.shortest_paths import ShortestPaths

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["Clos", "Hop", "Path", "PathError", "is_clos", "paths_of", "tiers"]


class Clos(PathGraph):
    """The paths of a folded Clos."""

    def __init__(self, graph: nx.MultiGraph[str], **options: Any) -> None:
        super().__init__(graph, **options)
        self.tier = tiers(graph)
        self._up: dict[str, list[Hop]] = {switch: [] for switch in self.tier}
        for a, b, number in self._cables:
            if number not in self._barred and a in self.tier and b in self.tier and self.tier[a] != self.tier[b]:
                low, high = sorted((a, b), key=self.tier.__getitem__)
                self._up[low].append(Hop(number, low, high))
        for hops in self._up.values():
            hops.sort()
        self._climbs: dict[str, dict[str, list[Path]]] = {}
        self._rising: dict[str, list[str]] = {}
        """The switches that each leaf climbs to, the lowest first."""

    @property
    def middles(self) -> list[str]:
        return [switch for switch in self.tier if self.tier[switch] > 1]

    @property
    def layers(self) -> int:
        if has_single_climbs({switch: [hop.head for hop in hops] for switch, hops in self._up.items()}, self.tier):
            return 1
        most: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))  # climbs of the two leaves that have most
        for leaf in self.leaves:
            for top, ways in self.climbs(leaf).items():
                if top != leaf:
                    _, *two = sorted((*most[top], len(ways)))
                    most[top] = two[0], two[1]
        return max((a * b for a, b in most.values()), default=1)

    def uplinks(self, switch: str) -> tuple[Hop, ...]:
        """Live links of a switch towards the next tier, by number."""
        return tuple(self._up[switch])

    def climbs(self, leaf: str) -> Mapping[str, Sequence[Path]]:
        """The live paths from a leaf up to every switch above it, by that switch's name."""
        if leaf not in self._climbs:
            ways: dict[str, list[Path]] = {leaf: [()]} if leaf in self._up and leaf not in self._dead_switches else {}
            frontier = list(ways)
            while frontier:
                above: dict[str, None] = {}
                for switch in frontier:
                    for hop in self._up[switch]:
                        ways.setdefault(hop.head, []).extend((*way, hop) for way in ways[switch])
                        above[hop.head] = None
                frontier = list(above)
            self._climbs[leaf] = ways
        return self._climbs[leaf]

    def reaches(self, source: str, destination: str) -> bool:
        if self._suspects and any((destination, hop.link) in self._suspects for hop in self._up.get(source, ())):
            return super().reaches(source, destination)
        up, down = self.climbs(source), self.climbs(destination)
        return source == destination or not up.keys().isdisjoint(down)

    def single_ways(self, source: str, destination: str) -> list[tuple[str, Path]] | None:
        """The switches where paths between two leaves turn, in a fixed order, with the climb from the source; None
        where one has several ways there, as over parallel links, or some uplinks are suspect: see `paths`."""
        if self._suspects:
            return None
        up, down = self.climbs(source), self.climbs(destination)
        if source not in self._rising:
            self._rising[source] = sorted(up, key=lambda switch: (self.tier[switch], switch))
        found: list[tuple[str, Path]] = []
        for top in self._rising[source]:
            if found and self.tier[top] > self.tier[found[0][0]]:
                break
            if top in down:
                if len(up[top]) > 1 or len(down[top]) > 1:
                    return None
                found.append((top, up[top][0]))
        return found

    def choices(self, source: str, destination: str) -> Sequence[Way]:
        single = self.single_ways(source, destination)
        if single is not None:  # the usual case, and that of large fabrics: no need to make the paths
            return [Way(top, 0, rise) for top, rise in single]
        down = self.climbs(destination)
        return [Way(top, layer, tuple([hop for at, hop in enumerate(path)
                                       if at < len(path) // 2 or len(down[hop.tail]) > 1]))
                for top, layer, path in super().choices(source, destination)]

    def _find(self, source: str, destination: str) -> list[Way]:
        """Paths that turn at the lowest tier where they can."""
        up, down = self.climbs(source), self.climbs(destination)
        found: list[Path] = []
        for tier in sorted({self.tier[switch] for switch in up.keys() & down.keys()}):
            for top in sorted(s for s in up.keys() & down.keys() if self.tier[s] == tier):
                for rise in up[top]:
                    for way in down[top]:
                        fall = tuple(Hop(hop.link, hop.head, hop.tail) for hop in reversed(way))
                        if not rise or (destination, rise[0].link) not in self._suspects:
                            found.append(rise + fall)
            if found:
                break
        layers: Counter[str] = Counter()
        ways = []
        for path in sorted(found):
            top = path[len(path) // 2 - 1].head
            ways.append(Way(top, layers[top], path))
            layers[top] += 1
        return ways


def tiers(graph: nx.MultiGraph[str]) -> dict[str, int]:
    """The tier of each switch that a host reaches, in the graph's order: its distance from the nearest one."""
    kinds: dict[str, str] = dict(graph.nodes(data="kind"))
    distance = {node: 0 for node, kind in kinds.items() if kind == "host"}
    pending = list(distance)
    for node in pending:
        for far in graph.adj[node]:
            if far not in distance:
                distance[far] = distance[node] + 1
                pending.append(far)
    return {node: distance[node] for node, kind in kinds.items() if kind == "switch" and node in distance}


def is_clos(graph: nx.MultiGraph[str]) -> bool:
    """True if this is a folded Clos of at most three tiers: links join neighbouring tiers, and every two leaves have a
    switch above both.  In such a graph no path is shorter than one that climbs and comes down."""
    tier = tiers(graph)
    if max(tier.values(), default=1) > 3 or any(
            tier.get(a) == tier.get(b) for a, b in graph.edges() if a in tier and b in tier):
        return False
    above = climbed({switch: [far for far in graph.adj[switch] if tier.get(far, 0) > tier[switch]] for switch in tier},
                    tier)
    leaves = [switch for switch in tier if tier[switch] == 1]
    masks = {above[leaf] for leaf in leaves}
    return len(leaves) < 2 or all(a & b for a in masks for b in masks)


def climbed(up: Mapping[str, Sequence[str]], tier: Mapping[str, int]) -> dict[str, int]:
    """The switches above each switch, as numbers with a bit for each: the n-th bit is that of the n-th in ``tier``.

    up  the neighbours of the next tier, once for each link
    """
    bits = {switch: 1 << place for place, switch in enumerate(tier)}
    above: dict[str, int] = {}
    for switch in sorted(tier, key=tier.__getitem__, reverse=True):
        found = 0
        for far in up[switch]:
            found |= bits[far] | above[far]
        above[switch] = found
    return above


def has_single_climbs(up: Mapping[str, Sequence[str]], tier: Mapping[str, int]) -> bool:
    """True if at most one climb leads from every switch to each one above it; arguments as of `climbed`."""
    above = climbed(up, tier)
    return all(len(set(far)) == len(far) and sum(above[node].bit_count() for node in far) + len(far)
               == above[switch].bit_count() for switch, far in up.items())


def paths_of(graph: nx.MultiGraph[str]) -> type[PathGraph]:
    """The kind of paths that a whole fabric has; it keeps them whatever is down."""
    return Clos if is_clos(graph) else ShortestPaths
