# SPDX-License-Identifier: Apache-2.0
"""The destinations that every switch of a folded Clos reaches, and through which links, in the live part of the fabric.

Sets of leaves, and of the switches above them, are whole numbers with a bit for each member: unions and differences for
a thousand leaves are single operations, and all switches of a fabric of five hundred are gone through in milliseconds.

    Climbs    the whole fabric: tiers, links up and down, numbers
    LeafSets     its live part: the leaves below each switch, and those that it reaches by climbing
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from operator import or_
from typing import TYPE_CHECKING, Final, NamedTuple

from netfold.fabric.routing.clos import has_single_climbs, tiers
from netfold.fabric.routing.routes import NextHop

if TYPE_CHECKING:
    import networkx as nx

MOST_AROUND: Final = 8
"""Most next hops of a switch that can only send packets down and up again, around a failure."""


class Adjacency(NamedTuple):
    """A link of a switch to a neighbour."""

    link: int
    """Its number in the fabric."""
    hop: NextHop


Nodes = tuple[str, ...]
"""Neighbours of a switch, by port."""


class Above(NamedTuple):
    """The switches and leaves that switches with the same live neighbours above reach by climbing, without
    themselves."""

    names: int
    """The numbers of the switches above."""
    reached: tuple[int, ...]
    """The leaves that they reach, by the greatest number of tiers that they climb for that, from 1."""
    most: frozenset[int]
    """The leaves that the neighbours reach."""


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
        self.ends = {line.link: (low, line.hop.node) for low, lines in self.up.items() for line in lines}
        """The switches at the ends of each link between switches, by its number."""
        alike: dict[Nodes, Nodes] = {}
        self.uppers = {switch: alike.setdefault(nodes := _nodes(self.up[switch]), nodes) for switch in self.tier}
        """The neighbours above each switch, by port: one object for those that have the same, as leaves of a pod."""
        self.lowers = {switch: alike.setdefault(nodes := _nodes(self.down[switch]), nodes) for switch in self.tier}
        """The neighbours below each switch."""

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

    def toward(self, switch: str) -> list[tuple[int, Adjacency]]:
        """The links up of a switch, with the numbers of the switches to which climbs over them lead."""
        above = self.whole.above
        return [(self.name_bit[line.hop.node] | above[line.hop.node], line) for line in self.up[switch]]

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
        return LeafSets(self, self.ends, self.tier)


class LeafSets:
    """The live part of a fabric.

    links     numbers of the links that are up, `Fabric.graph`'s
    switches  the switches that are up
    """

    def __init__(self, climbs: Climbs, links: Collection[int], switches: Collection[str]) -> None:
        self.climbs = climbs
        self._alive = [switch for switch in climbs.rising if switch in switches]
        alive, dead = frozenset(self._alive), climbs.ends.keys() - links
        touched = {end for link in dead for end in climbs.ends[link]}
        touched.update(*(climbs.uppers[switch] + climbs.lowers[switch] for switch in climbs.rising
                         if switch not in alive))

        def left(all_lines: Mapping[str, list[Adjacency]]) -> dict[str, list[Adjacency]]:
            found = {switch: all_lines[switch] for switch in self._alive}
            for switch in touched & alive:
                lines = [line for line in found[switch] if line.link not in dead and line.hop.node in alive]
                if len(lines) < len(found[switch]):
                    found[switch] = lines
            return found

        self.up = left(climbs.up)
        """Links that are up towards the next tier, by port."""
        self.down = left(climbs.down)
        self._uppers = {switch: _nodes(self.up[switch]) if switch in touched else climbs.uppers[switch]
                        for switch in self._alive}
        """Their neighbours above, by port."""
        self._lowers = {switch: _nodes(self.down[switch]) if switch in touched else climbs.lowers[switch]
                        for switch in self._alive}
        self.leaves = 0
        """All leaves that are up."""
        self.below: dict[str, int] = {}
        """Leaves that a switch reaches downwards, itself included."""
        under: dict[Nodes, int] = {}
        for switch in self._alive:
            below = climbs.leaf_bit.get(switch, 0)
            self.leaves |= below
            if (lowers := self._lowers[switch]) not in under:
                under[lowers] = union(self.below[node] for node in lowers)
            self.below[switch] = below | under[lowers]
        self.above: dict[str, int] = {}
        """Numbers of the switches that a switch reaches upwards."""
        self._above: dict[Nodes, Above] = {}
        self._reached: dict[str, list[int]] = {}
        """Leaves that a switch reaches, by the greatest number of tiers that it climbs for that."""
        for switch in reversed(self._alive):
            if (uppers := self._uppers[switch]) not in self._above:
                self._above[uppers] = self._over(uppers)
            over, below = self._above[uppers], self.below[switch]
            self.above[switch] = over.names
            self._reached[switch] = [below, *[below | more for more in over.reached]]
        self._distances: dict[str, dict[str, int]] = {}
        self._hops: dict[str, tuple[tuple[NextHop, ...], Mapping[str, tuple[NextHop, ...]]]] = {}
        self._as_in_whole: dict[tuple[Nodes, Nodes], bool] = {}
        """True if switches with the same neighbours above and below reach the same as in the whole fabric."""
        self._apart_above: dict[tuple[Nodes, int], list[tuple[int, tuple[int, ...]]]] = {}
        self._defaults: dict[str, tuple[NextHop, ...]] = {}
        self._detours: dict[str, dict[tuple[NextHop, ...], int]] = {}
        self._blocks: dict[int, list[str]] = {}

    def _over(self, uppers: Nodes) -> Above:
        """The switches and leaves that switches with these neighbours above reach."""
        tiers_above = max((len(self._reached[node]) for node in uppers), default=0)
        return Above(union(self.climbs.name_bit[node] | self.above[node] for node in uppers),
                     tuple([union(self._at_most(node, climbed) for node in uppers) for climbed in range(tiers_above)]),
                     frozenset(self._reached[node][-1] for node in uppers))

    def _at_most(self, switch: str, climbed: int) -> int:
        reached = self._reached[switch]
        return reached[min(climbed, len(reached) - 1)]

    def hops(self, switch: str) -> tuple[tuple[NextHop, ...], Mapping[str, tuple[NextHop, ...]]]:
        """The answers of `default` and `apart`: those of the whole fabric if nothing differs on which they depend."""
        whole = self.climbs.whole
        if self is not whole and self._is_as_in_whole(switch):
            return whole.hops(switch)
        if switch not in self._hops:
            self._hops[switch] = self.default(switch), self.apart(switch)
        return self._hops[switch]

    def _is_as_in_whole(self, switch: str) -> bool:
        """True if a switch has the next hops that it has in the whole fabric, since its own links are up, and its
        neighbours reach the same leaves.  False if no climb leads from it to some leaf even there: the next hops to
        that leaf depend on links anywhere in the fabric."""
        whole, uppers, lowers = self.climbs.whole, self._uppers[switch], self._lowers[switch]
        if whole.leaves & ~whole._reached[switch][-1]:
            return False
        if (self.leaves != whole.leaves or self.up[switch] is not self.climbs.up[switch]
                or self.down[switch] is not self.climbs.down[switch]):
            return False
        if (uppers, lowers) not in self._as_in_whole:
            self._as_in_whole[uppers, lowers] = (
                all(self.below[node] == whole.below[node] for node in lowers)
                and all(self._reached[node] == whole._reached[node] for node in uppers))
        return self._as_in_whole[uppers, lowers]

    def default(self, switch: str) -> tuple[NextHop, ...]:
        """The next hops by which a switch reaches most leaves: those of its links up that lead anywhere else."""
        if switch not in self._defaults:
            own, lines = self.below[switch], self.up[switch]
            if not self._all_lead(switch):
                lines = [line for line in lines if self._reached[line.hop.node][-1] & ~own]
            self._defaults[switch] = tuple([line.hop for line in lines])
        return self._defaults[switch]

    def _all_lead(self, switch: str) -> bool:
        """True if all links up of a switch lead to leaves that are not below it."""
        own = self.below[switch]
        return all(most & ~own for most in self._above[self._uppers[switch]].most)

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
        for block in self.blocks_of(told):
            mask = self.climbs.blocks[block]
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
        seen = 0
        for line in self.down[switch]:
            bits = self.below[line.hop.node]
            if bits & seen:
                below = [part for some, hops in below
                         for part in ((some & bits, (*hops, line.hop)), (some & ~bits, hops)) if part[0]]
            if rest := bits & ~seen:
                below.append((rest, (line.hop,)))
            seen |= bits
        own = reached[0]
        key = self._uppers[switch], 0 if self._all_lead(switch) else own
        if key not in self._apart_above:
            self._apart_above[key] = self._split(*key)
        found = below + [(rest, tuple([self.up[switch][place].hop for place in places]))
                         for bits, places in self._apart_above[key] if (rest := bits & ~own)]
        return found + [(bits, hops) for hops, bits in self._around(switch).items() if hops != self.default(switch)]

    def _split(self, uppers: Nodes, own: int) -> list[tuple[int, tuple[int, ...]]]:
        """Disjoint sets of leaves to which not all neighbours above lead on shortest paths that lead anywhere else than
        to a switch's own leaves, each with the places of those that do."""
        found: list[tuple[int, tuple[int, ...]]] = []
        ups = [node for node in uppers if self._reached[node][-1] & ~own]
        before = 0
        for climbed, reached in enumerate(self._above[uppers].reached):
            new = reached & ~before & ~own
            before = reached
            leading = [self._at_most(node, climbed) for node in uppers]
            differ = union(new & ~self._at_most(node, climbed) for node in ups)
            parts: list[tuple[int, tuple[int, ...]]] = [(differ, ())] if differ else []
            for place, leads in enumerate(leading if differ else ()):
                parts = [part for some, places in parts
                         for part in ((some & leads, (*places, place)), (some & ~leads, places)) if part[0]]
            found += parts
        return found

    def blocks_of(self, bits: int) -> list[str]:
        """The blocks that have any of these leaves."""
        if bits not in self._blocks:
            self._blocks[bits] = [block for block, mask in self.climbs.blocks.items() if bits & mask]
        return self._blocks[bits]

    def beyond(self, switch: str) -> int:
        """Leaves to which only ways around a failure lead, over all links up of a switch, and its default route with
        them: the switches above, or further on, know the way."""
        default = self.default(switch) if self.leaves & ~self._reached[switch][-1] else ()
        return self._around(switch).get(default, 0) if default and len(default) == len(self.up[switch]) else 0

    def _around(self, switch: str) -> dict[tuple[NextHop, ...], int]:
        """The leaves to which no climb leads, by the next hops there: all links up where all of them lead nearer, and
        else MOST_AROUND at most."""
        if switch not in self._detours:
            found = self._detours[switch] = defaultdict(int)
            alike: dict[int, tuple[NextHop, ...]] = {}
            for leaf in self.climbs.leaves_of(self.leaves & ~self._reached[switch][-1]):
                # of a core no leaf is a neighbour, so that those with the same switches above are equally far
                kind = self.above[leaf] if self.climbs.tier[switch] > 2 else self.climbs.leaf_bit[leaf]
                if kind not in alike:
                    alike[kind] = self._detour(switch, leaf)
                found[alike[kind]] |= self.climbs.leaf_bit[leaf]
        return self._detours[switch]

    def _detour(self, switch: str, leaf: str) -> tuple[NextHop, ...]:
        """The next hops to a leaf where only a way down and up again leads there."""
        distance = self._distance(leaf) if self.up[switch] or self.down[switch] else {}
        if switch not in distance:
            return ()

        def nearer(lines: Sequence[Adjacency]) -> list[NextHop]:
            return [line.hop for line in lines if distance[line.hop.node] < distance[switch]]

        ups = nearer(self.up[switch])
        if ups and len(ups) == len(self.up[switch]):
            return tuple(ups)
        return tuple(sorted(ups + nearer(self.down[switch]))[:MOST_AROUND])

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
                for node in self._uppers[at] + self._lowers[at]:
                    if node not in found:
                        found[node] = found[at] + 1
                        queue.append(node)
            self._distances[leaf] = found
        return self._distances[leaf]


def members(bits: int) -> Iterator[int]:
    """The places of the bits that are set, the lowest first."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def union(sets: Iterable[int]) -> int:
    """All members of some sets."""
    return reduce(or_, sets, 0)


def _nodes(lines: Iterable[Adjacency]) -> Nodes:
    return tuple([line.hop.node for line in lines])
