# SPDX-License-Identifier: Apache-2.0
"""A Clos fabric as planners see it: which live paths lead from leaf to leaf, and what they can carry.

A path climbs from the source's leaf to a switch that both leaves reach, and comes down again.  In a folded Clos the
turning switch fixes the path, so a path is as good as the name of a spine (two tiers) or of a core (three tiers):

    leaf1 ---> spine2 ---> leaf3              leaf1 ---> agg2 ---> core4 ---> agg6 ---> leaf7
       one path a spine                         one path a core; inside a pod, one path an agg

Tiers are not declared: a switch's tier is its distance from the nearest host.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple

import networkx as nx

from netfold.fabric.trees import room_beside


class PathError(ValueError):
    """Paths cannot be planned; the message names the nodes, what was expected and what was found.

    Remedy: mend the links that are down or suspected (`netfold links`), or give flows and shares as the message expects
    them.
    """


class Hop(NamedTuple):
    """One direction of a link: the link's number in the fabric, from which switch to which."""

    link: int
    tail: str
    head: str


Path = tuple[Hop, ...]
"""Hops from the source's leaf to the destination's leaf; empty where they are the same leaf."""


class Clos:
    """The part of a fabric that is up: ``Clos(fabric.graph(), dead_links={7}, dead_switches={"spine2"})``.

    graph           nx.MultiGraph as of `Fabric.graph`: nodes with ``kind``, edges keyed by link number with ``rate``
    dead_links      link numbers that carry nothing
    dead_switches   names of switches that forward nothing
    suspects        (destination leaf, link number) pairs: host time-outs blame this uplink for this destination
    carried         bit/s that aggregation trees take of links, by number (`trees.tree_loads`): paths get what is left
    Raises PathError for numbers and names that the graph does not have.
    """

    def __init__(
        self,
        graph: nx.MultiGraph[str],
        *,
        dead_links: Collection[int] = (),
        dead_switches: Collection[str] = (),
        suspects: Collection[tuple[str, int]] = (),
        carried: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        kinds: dict[str, str] = dict(graph.nodes(data="kind"))
        links = {number for _, _, number in graph.edges(keys=True)}
        if unknown := set(dead_links) - links:
            raise PathError(f"dead_links: the fabric has no link {min(unknown)}; it has {len(links)} links")
        if unknown_switches := {s for s in dead_switches if kinds.get(s) != "switch"}:
            raise PathError(f"dead_switches: the fabric has no switch {min(unknown_switches)}")
        hosts = [node for node, kind in kinds.items() if kind == "host"]
        self.leaf_of: dict[str, str] = {host: next(iter(graph[host])) for host in hosts if graph.degree(host)}
        self._suspects = frozenset(suspects)
        if unknown_marks := {mark for mark in suspects if mark[0] not in kinds or mark[1] not in links}:
            raise PathError(f"suspects: the fabric has no leaf or link {min(unknown_marks)}")

        distance = nx.multi_source_dijkstra_path_length(graph, set(hosts), weight=None) if hosts else {}
        self.tier: dict[str, int] = {n: int(d) for n, d in distance.items() if kinds[n] == "switch"}
        stated = [rate for _, _, rate in graph.edges(data="rate") if rate]
        fastest = max(stated, default=1)
        self._capacity: dict[int, int] = {}
        self._up: dict[str, list[Hop]] = {switch: [] for switch in self.tier}
        for a, b, number, rate in graph.edges(keys=True, data="rate"):
            self._capacity[number] = int(room_beside(rate, carried.get(number, 0.0))) if rate else fastest
            if a not in self.tier or b not in self.tier or number in dead_links or {a, b} & set(dead_switches):
                continue
            if self.tier[a] != self.tier[b]:
                low, high = sorted((a, b), key=self.tier.__getitem__)
                self._up[low].append(Hop(number, low, high))
        for hops in self._up.values():
            hops.sort()
        self._dead_switches = frozenset(dead_switches)
        self._climbs: dict[str, dict[str, list[Path]]] = {}
        self._rising: dict[str, list[str]] = {}
        """The switches that each leaf climbs to, the lowest first."""
        self._paths: dict[tuple[str, str], tuple[Path, ...]] = {}
        self._weights: dict[tuple[Path, ...], list[Fraction]] = {}

    @property
    def leaves(self) -> list[str]:
        """Switches with hosts, in the order of their first host."""
        return list(dict.fromkeys(self.leaf_of.values()))

    def capacity(self, hop: Hop) -> int:
        """Bit/s of a hop; links without a stated rate count as the fastest stated one, or as 1 where none is."""
        return self._capacity[hop.link]

    def uplinks(self, switch: str) -> tuple[Hop, ...]:
        """Live links of a switch towards the next tier, by number."""
        return tuple(self._up[switch])

    def climbs(self, leaf: str) -> Mapping[str, Sequence[Path]]:
        """The live paths from a leaf up to every switch above it, by that switch's name."""
        if leaf not in self._climbs:
            ways: dict[str, list[Path]] = {leaf: [()]} if leaf not in self._dead_switches else {}
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

    def paths(self, source: str, destination: str) -> tuple[Path, ...]:
        """All live paths between two leaves that turn at the lowest tier where they can, in a fixed order.

        Raises PathError where there is none.
        """
        if (source, destination) not in self._paths:
            self._paths[source, destination] = self._find(source, destination)
        return self._paths[source, destination]

    def _find(self, source: str, destination: str) -> tuple[Path, ...]:
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
                return tuple(sorted(found))
        raise PathError(f"no live path from {source} to {destination}: all uplinks they share are dead or suspect; "
                        f"bring one back, or move the job's hosts")

    def weights(self, paths: Sequence[Path]) -> list[Fraction]:
        """What each path carries if only these paths are used: their max-min fair rates, in bit/s.

        Two tiers: the slower of uplink and downlink.  Three tiers: paths that share an agg share its link.  Because
        paths of one pair of leaves share links in nested groups, these rates add up to the pair's maximum flow.
        """
        known = self._weights.get(tuple(paths))
        if known is None:
            known = self._weights[tuple(paths)] = self._fill(paths)
        return list(known)

    def _fill(self, paths: Sequence[Path]) -> list[Fraction]:
        room = {hop: Fraction(self.capacity(hop)) for path in paths for hop in path}
        rates = [Fraction(0)] * len(paths)
        active = {i for i, path in enumerate(paths) if path}
        while active:
            users: dict[Hop, int] = {}
            for i in active:
                for hop in paths[i]:
                    users[hop] = users.get(hop, 0) + 1
            step = min(room[hop] / count for hop, count in users.items())
            for i in active:
                rates[i] += step
            for hop, count in users.items():
                room[hop] -= step * count
            active = {i for i in active if all(room[hop] for hop in paths[i])}
        return rates
