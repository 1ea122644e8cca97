# SPDX-License-Identifier: Apache-2.0
"""The live paths of a fabric, as planners see them: which lead from leaf to leaf, by what name, and what they carry.

    Clos             where every path can climb to a switch above both leaves, and come down       clos.py
    ShortestPaths    in any other graph: a mesh, a torus, whatever a file says                     shortest_paths.py

A path is named by the switch in its middle, which in a Clos is the one where it turns, and by a layer, where several
paths have that switch in the middle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from math import gcd
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from netfold.fabric.folding.trees import room_beside

if TYPE_CHECKING:
    import networkx as nx


class PathError(ValueError):
    """Paths cannot be planned; the message names the nodes, what was expected and what was found.

    Remedy: repair the links that are down or suspect (`netfold links`), or correct flows and shares as the message
    says.
    """


class Hop(NamedTuple):
    """One direction of a link: the link's number in the fabric, from which switch to which."""

    link: int
    tail: str
    head: str


Path = tuple[Hop, ...]
"""Hops from the source's leaf to the destination's leaf; empty if they are the same leaf."""


class Way(NamedTuple):
    """A path by its name, or the part of it where switches have a choice."""

    middle: str
    layer: int
    path: Path


class PathGraph(ABC):
    """The part of a fabric that is up: ``Clos(fabric.graph(), dead_links={7}, dead_switches={"spine2"})``.

    graph           nx.MultiGraph as of `Fabric.graph`: nodes with ``kind``, edges keyed by link number with ``rate``
    dead_links      link numbers that carry nothing
    dead_switches   names of switches that forward nothing
    barred          link numbers that no path may use, though the switches' routes still do
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
        barred: Collection[int] = (),
        suspects: Collection[tuple[str, int]] = (),
        carried: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        kinds: dict[str, str] = dict(graph.nodes(data="kind"))
        links = {number for _, _, number in graph.edges(keys=True)}
        if unknown := {*dead_links, *barred} - links:
            raise PathError(f"dead_links: the fabric has no link {min(unknown)}; it has {len(links)} links")
        if unknown_switches := {s for s in dead_switches if kinds.get(s) != "switch"}:
            raise PathError(f"dead_switches: the fabric has no switch {min(unknown_switches)}")
        hosts = [node for node, kind in kinds.items() if kind == "host"]
        self.leaf_of: dict[str, str] = {host: next(iter(graph[host])) for host in hosts if graph.degree(host)}
        self._suspects = frozenset(suspects)
        if unknown_marks := {mark for mark in suspects if mark[0] not in kinds or mark[1] not in links}:
            raise PathError(f"suspects: the fabric has no leaf or link {min(unknown_marks)}")
        stated = [rate for _, _, rate in graph.edges(data="rate") if rate]
        fastest = max(stated, default=1)
        self._capacity = {number: int(room_beside(rate, carried.get(number, 0.0))) if rate else fastest
                          for _, _, number, rate in graph.edges(keys=True, data="rate")}
        self._barred, self._dead_switches = frozenset(barred), frozenset(dead_switches)
        self._cables = [(a, b, number) for a, b, number in graph.edges(keys=True)
                        if kinds[a] == kinds[b] == "switch" and number not in dead_links
                        and not self._dead_switches & {a, b}]
        """Live links between switches."""
        self._ways: dict[tuple[str, str], tuple[Way, ...]] = {}
        self._weights: dict[tuple[Path, ...], list[Fraction]] = {}

    @property
    def leaves(self) -> list[str]:
        """Switches with hosts, in the order of their first host."""
        return list(dict.fromkeys(self.leaf_of.values()))

    @cached_property
    def place_of(self) -> dict[str, tuple[int, int]]:
        """How many hosts of its leaf come before each host, and how many the leaf has."""
        hosts_of, before = Counter(self.leaf_of.values()), Counter[str]()
        places = {}
        for host, leaf in self.leaf_of.items():
            places[host] = before[leaf], hosts_of[leaf]
            before[leaf] += 1
        return places

    def capacity(self, hop: Hop) -> int:
        """Bit/s of a hop; links without a stated rate count as the fastest stated one, or as 1 where none is."""
        return self._capacity[hop.link]

    @property
    @abstractmethod
    def middles(self) -> list[str]:
        """Switches that may be in the middle of a path, in the fabric's order: the n-th, from 1, names path n."""

    @property
    @abstractmethod
    def layers(self) -> int:
        """Paths at most that two leaves have over one middle, each with a name of its own."""

    @abstractmethod
    def _find(self, source: str, destination: str) -> list[Way]:
        """All usable paths between two different leaves, in a fixed order; none where there is none."""

    def ways(self, source: str, destination: str) -> tuple[Way, ...]:
        """All live paths between two leaves with their names, in a fixed order.  Raises PathError where there is
        none."""
        if (source, destination) not in self._ways:
            found = tuple(self._find(source, destination))
            if not found:
                raise PathError(f"no live path from {source} to {destination}: all uplinks they share are dead or "
                                "suspect; bring one back, or move the job's hosts")
            self._ways[source, destination] = found
        return self._ways[source, destination]

    def reaches(self, source: str, destination: str) -> bool:
        """True if a live path leads from one leaf to another, or they are the same one."""
        try:
            return source == destination or bool(self.ways(source, destination))
        except PathError:
            return False

    def paths(self, source: str, destination: str) -> tuple[Path, ...]:
        """The paths of `ways`."""
        return tuple([way.path for way in self.ways(source, destination)])

    def choices(self, source: str, destination: str) -> Sequence[Way]:
        """The live paths between two leaves, as far as switches have a choice there; none where there is no path."""
        try:
            return self.ways(source, destination)
        except PathError:
            return ()

    def weights(self, paths: Sequence[Path]) -> list[Fraction]:
        """The rates, in bit/s, of paths that are the only ones in use: their max-min fair rates.

        Two tiers: the slower of uplink and downlink.  Three tiers: paths that share an agg share its link.  Because
        there paths of one pair of leaves share links in nested groups, these rates add up to the pair's maximum flow;
        in other graphs they may be less.
        """
        known = self._weights.get(tuple(paths))
        if known is None:
            known = self._weights[tuple(paths)] = self._fill(paths)
        return list(known)

    def shares(self, demands: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], list[Fraction]]:
        """The share of each path of each pair of leaves, in any unit of the pair, when all pairs send at once.

        demands  bytes that each pair of different leaves sends
        Raises PathError if a pair has no live path.
        """
        return {pair: self.weights(self.paths(*pair)) for pair in demands}

    def _fill(self, paths: Sequence[Path]) -> list[Fraction]:
        # In whole numbers of 1/scale bit/s, which is a tenth of the time that fractions take.
        scale = 1
        room = {hop: self.capacity(hop) for path in paths for hop in path}
        rates = [0] * len(paths)
        active = [i for i, path in enumerate(paths) if path]
        while active:
            users: dict[Hop, int] = {}
            for i in active:
                for hop in paths[i]:
                    users[hop] = users.get(hop, 0) + 1
            least, shared_by = 1, 0  # room over users, where it is least
            for hop, count in users.items():
                if not shared_by or room[hop] * shared_by < least * count:
                    least, shared_by = room[hop], count
            if (finer := shared_by // gcd(least, shared_by)) > 1:
                scale, least = scale * finer, least * finer
                room = {hop: left * finer for hop, left in room.items()}
                rates = [rate * finer for rate in rates]
            step = least // shared_by
            for i in active:
                rates[i] += step
            for hop, count in users.items():
                room[hop] -= step * count
            active = [i for i in active if all(room[hop] for hop in paths[i])]
        return [Fraction(rate, scale) for rate in rates]
