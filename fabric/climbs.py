# SPDX-License-Identifier: Apache-2.0
"""The destinations that every switch of a folded Clos reaches, and through which links, in the live part of the fabric.

Sets of leaves, and of the switches above them, are whole numbers with a bit for each member: unions and differences for
a thousand leaves are single operations, and all switches of a fabric of five hundred are gone through in milliseconds.

    Climbs    the whole fabric: tiers, links up and down, numbers
    LeafSets     its live part: the leaves below each switch, and those that it reaches by climbing
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from netfold.fabric.clos import has_single_climbs, tiers
from netfold.fabric.routes import NextHop

if TYPE_CHECKING:
    import networkx as nx

MOST_AROUND: Final = 8
"""Most next hops of a switch that can only send packets down and up again, around a failure."""


class Adjacency(NamedTuple):
    """A link of a switch to a neighbour."""

    link: int
    """Its number in the fabric."""
    hop: NextHop


class Climbs:
    """The tiers of a fabric, which is a Clos (`clos.is_clos`).

    graph  `Fabric.graph`, with nothing down
    """

    def __init__(self, graph: nx.MultiGraph[str]) -> None:
        self.tier = tiers(graph)
        """The tier of each switch that a host reaches, in the fabric's order; leaves are of tier 1."""
        self.rising = sorted(self.tier, key=lambda switch: self.tier[switch])
        """All switches, the lowest tier first."""
        self.leaf_bit = {leaf: 1 << place for place, leaf in
                         enumerate(switch for switch in self.tier if self.tier[switch] == 1)}
        self.name_bit = {switch: 1 << number for number, switch in
                         enumerate((switch for switch in self.tier if self.tier[switch] > 1), 1)}
        """A bit for each switch where paths may turn: that of the path's number (`Clos.middles`)."""
        self.named = {bit.bit_length() - 1: switch for switch, bit in self.name_bit.items()}
        """The switch of each bit, by the bit's place."""
        self.names_of_tier: dict[int, int] = Counter()
        for switch, bit in self.name_bit.items():
            self.names_of_tier[self.tier[switch]] |= bit
        self.up: dict[str, list[Adjacency]] = defaultdict(list)
        self.down: dict[str, list[Adjacency]] = defaultdict(list)
        for a, b, number, ports in graph.edges(keys=True, data="ports"):
            if a in self.tier and b in self.tier:
                low, high = sorted((a, b), key=self.tier.__getitem__)
                self.up[low].append(Adjacency(number, NextHop(ports[low], high)))
                self.down[high].append(Adjacency(number, NextHop(ports[high], low)))
        for lines in (*self.up.values(), *self.down.values()):
            lines.sort(key=lambda line: line.hop.port)
        self.links = frozenset(line.link for lines in self.up.values() for line in lines)
        """Numbers of all links between switches."""

    def leaves_of(self, bits: int) -> list[str]:
        """The leaves of a set."""
        return [self._leaves[place] for place in members(bits)]

    @cached_property
    def _leaves(self) -> list[str]:
        return list(self.leaf_bit)

    @cached_property
    def blocks(self) -> dict[str, int]:
        """Sets of leaves with the same switches above, as in a pod, by the names of their first and last one.  None
        where all leaves are one set, and no set of a single leaf."""
        found: dict[int, list[str]] = defaultdict(list)
        for leaf in self.leaf_bit:
            found[self.whole.above[leaf]].append(leaf)
        return {f"{leaves[0]}..{leaves[-1]}": sum(self.leaf_bit[leaf] for leaf in leaves)
                for leaves in found.values() if len(leaves) > 1 and len(found) > 1}

    @cached_property
    def block_of(self) -> dict[str, str]:
        """The block of each leaf that has one."""
        return {leaf: block for block, bits in self.blocks.items() for leaf in self.leaves_of(bits)}

    @cached_property
    def toward(self) -> dict[str, list[tuple[int, Adjacency]]]:
        """The links up of each switch, with the numbers of the switches to which climbs over them lead."""
        above = self.whole.above
        return {switch: [(self.name_bit[line.hop.node] | above[line.hop.node], line) for line in self.up[switch]]
                for switch in self.rising}

    @cached_property
    def is_regular(self) -> bool:
        """True if one climb leads from every switch to each one above it, and any two leaves that share a switch of a
        tier share all switches of that tier that either reaches."""
        if not has_single_climbs({switch: [line.hop.node for line in self.up[switch]] for switch in self.tier},
                                 self.tier):
            return False
        whole = self.whole.above
        for names in self.names_of_tier.values():
            masks = {whole[leaf] & names for leaf in self.leaf_bit}
            union = 0
            for mask in masks:
                if mask & union:
                    return False
                union |= mask
        return True

    @cached_property
    def whole(self) -> LeafSets:
        """With nothing down."""
        return LeafSets(self, self.links, self.tier)


class LeafSets:
    """The live part of a fabric.

    links     numbers of the links that are up, `Fabric.graph`'s
    switches  the switches that are up
    """

    def __init__(self, climbs: Climbs, links: Collection[int], switches: Collection[str]) -> None:
        self.climbs = climbs
        self._alive = [switch for switch in climbs.rising if switch in switches]
        alive = frozenset(self._alive)
        dead = climbs.links.difference(links)

        def left(lines: list[Adjacency]) -> list[Adjacency]:
            found = [line for line in lines if line.link not in dead and line.hop.node in alive]
            return lines if len(found) == len(lines) else found

        self.up = {switch: left(climbs.up[switch]) for switch in self._alive}
        """Links that are up towards the next tier, by port."""
        self.down = {switch: left(climbs.down[switch]) for switch in self._alive}
        self.leaves = 0
        """All leaves that are up."""
        self.below: dict[str, int] = {}
        """Leaves that a switch reaches downwards, itself included."""
        for switch in self._alive:
            below = climbs.leaf_bit.get(switch, 0)
            self.leaves |= below
            for line in self.down[switch]:
                below |= self.below[line.hop.node]
            self.below[switch] = below
        self.above: dict[str, int] = {}
        """Numbers of the switches that a switch reaches upwards."""
        self._reached: dict[str, list[int]] = {}
        """Leaves that a switch reaches, by the greatest number of tiers that it climbs for that."""
        for switch in reversed(self._alive):
            above, reached = 0, [self.below[switch]]
            for line in self.up[switch]:
                above |= climbs.name_bit[line.hop.node] | self.above[line.hop.node]
            tiers_above = max((len(self._reached[line.hop.node]) for line in self.up[switch]), default=0)
            for climbed in range(1, 1 + tiers_above):
                more = reached[0]
                for line in self.up[switch]:
                    more |= self._at_most(line.hop.node, climbed - 1)
                reached.append(more)
            self.above[switch], self._reached[switch] = above, reached
        self._distances: dict[str, dict[str, int]] = {}
        self._hops: dict[str, tuple[tuple[NextHop, ...], Mapping[str, tuple[NextHop, ...]]]] = {}
        """The answers of `hops` about the whole fabric, by switch."""

    def _at_most(self, switch: str, climbed: int) -> int:
        reached = self._reached[switch]
        return reached[min(climbed, len(reached) - 1)]

    def hops(self, switch: str) -> tuple[tuple[NextHop, ...], Mapping[str, tuple[NextHop, ...]]]:
        """The answers of `default` and `apart`: those of the whole fabric if nothing differs on which they depend."""
        whole = self.climbs.whole
        if self is not whole and self.leaves == whole.leaves and (
                self.up[switch] is self.climbs.up[switch] and self.down[switch] is self.climbs.down[switch]
                and all(self.below[line.hop.node] == whole.below[line.hop.node] for line in self.down[switch])
                and all(self._reached[line.hop.node] == whole._reached[line.hop.node] for line in self.up[switch])):
            return whole.hops(switch)
        if self is not whole:
            return self.default(switch), self.apart(switch)
        if switch not in self._hops:
            self._hops[switch] = self.default(switch), self.apart(switch)
        return self._hops[switch]

    def default(self, switch: str) -> tuple[NextHop, ...]:
        """The next hops by which a switch reaches most leaves: those of its links up that lead anywhere else."""
        own = self.below[switch]
        return tuple([line.hop for line in self.up[switch] if self._reached[line.hop.node][-1] & ~own])

    def apart(self, switch: str) -> dict[str, tuple[NextHop, ...]]:
        """The next hops of a switch on shortest paths to leaves, by port, where they are not its `default` ones: to
        those below it, and those that some of its links up do not lead to.  MOST_AROUND at most where no climb leads
        to a leaf; none where there is no path.

        Where most leaves of a block have the same, the block has, and the other leaves of it have what is theirs: none
        if they are down.  A switch that is above a whole block, and has a default, sends to no other address of the
        block.
        """
        parts = self._parts(switch)
        default, routes = self.default(switch), dict[str, tuple[NextHop, ...]]()
        whole = self.climbs.whole.below[switch]
        told = blocked = 0
        for bits, _ in parts:
            told |= bits
        alike = dict(parts)
        for block, mask in self.climbs.blocks.items() if told else ():
            if not mask & told:
                continue
            live, inside = mask & self.leaves, mask & told
            common: tuple[NextHop, ...] = ()
            if default and not mask & ~whole:
                most = 0
            elif mask in alike:
                routes[block] = alike[mask]
                blocked |= mask
                continue
            else:
                most, common = max(((bits & mask, hops) for bits, hops in parts if bits & mask),
                                   key=lambda part: part[0].bit_count())
                if (live & ~most).bit_count() + 1 >= inside.bit_count():
                    continue
            blocked |= mask
            routes[block] = common
            for bits, hops in (*parts, (live & ~told, default), (mask & ~live, ())):
                if hops != common:
                    routes.update(dict.fromkeys(self.climbs.leaves_of(bits & mask), hops))
        for bits, hops in parts:
            routes.update(dict.fromkeys(self.climbs.leaves_of(bits & ~blocked), hops))
        return routes

    def _parts(self, switch: str) -> list[tuple[int, tuple[NextHop, ...]]]:
        """Disjoint sets of leaves, each with the next hops that a switch has to it where they are not `default`."""
        reached = self._reached[switch]
        below: list[tuple[int, tuple[NextHop, ...]]] = []
        union = 0
        for line in self.down[switch]:
            bits = self.below[line.hop.node]
            if bits & union:
                below = [part for some, hops in below
                         for part in ((some & bits, (*hops, line.hop)), (some & ~bits, hops)) if part[0]]
            if rest := bits & ~union:
                below.append((rest, (line.hop,)))
            union |= bits
        found = below
        ups = [line for line in self.up[switch] if self._reached[line.hop.node][-1] & ~reached[0]]
        for climbed in range(1, len(reached)):
            new, differ = reached[climbed] & ~reached[climbed - 1], 0
            if not new:
                continue
            for line in ups:
                differ |= new & ~self._at_most(line.hop.node, climbed - 1)
            parts: list[tuple[int, tuple[NextHop, ...]]] = [(differ, ())] if differ else []
            for line in self.up[switch] if differ else ():
                leads = self._at_most(line.hop.node, climbed - 1)
                parts = [part for some, hops in parts
                         for part in ((some & leads, (*hops, line.hop)), (some & ~leads, hops)) if part[0]]
            found += parts
        around: dict[tuple[NextHop, ...], int] = defaultdict(int)
        alike: dict[int, tuple[NextHop, ...]] = {}
        for leaf in self.climbs.leaves_of(self.leaves & ~reached[-1]):
            if self.climbs.tier[switch] < 3:
                hops = self._around(switch, leaf)
            else:  # no leaf is a neighbour, so that those with the same switches above are equally far
                if self.above[leaf] not in alike:
                    alike[self.above[leaf]] = self._around(switch, leaf)
                hops = alike[self.above[leaf]]
            around[hops] |= self.climbs.leaf_bit[leaf]
        return found + [(bits, hops) for hops, bits in around.items()]

    def _around(self, switch: str, leaf: str) -> tuple[NextHop, ...]:
        """The next hops to a leaf where only a way down and up again leads there."""
        lines = (*self.up[switch], *self.down[switch])
        distance = self._distance(leaf) if lines else {}
        if switch not in distance:
            return ()
        return tuple(sorted(line.hop for line in lines if distance[line.hop.node] < distance[switch])[:MOST_AROUND])

    def lowest(self, names: int) -> int:
        """The switches of the lowest tier, among some switches, by number."""
        return next((found for tier in sorted(self.climbs.names_of_tier)
                     if (found := names & self.climbs.names_of_tier[tier])), 0)

    def _distance(self, leaf: str) -> dict[str, int]:
        """Hops from a leaf to every switch that it reaches."""
        if leaf not in self._distances:
            found = {leaf: 0} if leaf in self.below else {}
            queue = list(found)
            for at in queue:
                for line in (*self.up[at], *self.down[at]):
                    if line.hop.node not in found:
                        found[line.hop.node] = found[at] + 1
                        queue.append(line.hop.node)
            self._distances[leaf] = found
        return self._distances[leaf]


def members(bits: int) -> Iterator[int]:
    """The places of the bits that are set, the lowest first."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
