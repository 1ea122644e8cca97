# SPDX-License-Identifier: Apache-2.0
"""Aggregation trees: which switches fold for a job, who their children are, and in what order.

    spine1            one tree for each root that is as near to all ranks as any switch is: ranks under one leaf are
    |  \\              folded right there, others at spines.  Breadth first from its root, pruned to the switches that
    leaf1 leaf2       lead to ranks.  Any depth: the same program serves every level.
    | |   | |
    0 1   2 3
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from netfold.fabric.graph import End, Fabric

if TYPE_CHECKING:
    import networkx as nx

FEW_CHILDREN: Final = 64
"""MAX_CHILDREN of p4src/sizes.p4 by default: the bits of a slot's bitmap."""
MAX_CHILDREN: Final = 256
"""The same where a switch of the fabric has more neighbours than FEW_CHILDREN (`children_of`)."""

Neighbours = dict[str, list[tuple[str, float]]]
"""The switches beside each switch, in the graph's order, with the rate in bit/s of the best link between them."""

Links = Mapping[str, Mapping[str, Mapping[int, Mapping[str, Any]]]]
"""The links of a graph by their two ends: its own dictionaries, without the views that `Graph.adj` makes of each."""

_known: Final = WeakKeyDictionary["nx.MultiGraph[str]", Neighbours]()
"""The neighbours in graphs that do not change."""
MOST_TREES: Final = 16
"""Most trees of a job: each takes slots, flows and entries of every switch below it.  As many spread the job well
enough over the fabric, and over the remaining fabric when a switch fails."""
CANDIDATES: Final = 4 * MOST_TREES
"""Most roots for which candidate trees are made."""


class NoTree(Exception):
    """No switch can fold for these ranks; the message says why.

    Remedy: the job goes on over TCP between the hosts. To fold: repair the link or switch that is down (`netfold
    status`), end a drain (`netfold undrain`), or place the ranks so that one switch reaches all of them.
    """


@dataclass(frozen=True)
class Child:
    """A child of a switch in a tree: its index among the children is its bit in a slot's bitmap."""

    node: str
    port: int
    """Port of the folding switch that leads to the child."""
    rank: int | None
    """Index of the child among the ranks that fold together; None if the child is a switch."""


@dataclass(frozen=True)
class Fold:
    """One switch of a tree, with its children and its parent."""

    switch: str
    children: tuple[Child, ...]
    parent: str | None
    """None at the root."""
    parent_port: int
    """Port that leads to the parent; 0 at the root."""

    @property
    def is_root(self) -> bool:
        """True if this switch is the tree's root, where sums turn into results."""
        return self.parent is None


@dataclass(frozen=True)
class Tree:
    """A tree over all ranks of a job; ``folds`` has parents before their children."""

    root: str
    weight: float
    """Share of the job's bytes; the weights of a job's trees add up to 1."""
    folds: tuple[Fold, ...]

    def fold(self, switch: str) -> Fold:
        """The fold of this switch.  Raises KeyError if it is not in the tree."""
        for fold in self.folds:
            if fold.switch == switch:
                return fold
        raise KeyError(switch)

    @property
    def depth(self) -> int:
        """Number of levels of switches."""
        level: dict[str, int] = {}
        for fold in self.folds:
            level[fold.switch] = 1 if fold.parent is None else level[fold.parent] + 1
        return max(level.values())


def children_of(fabric: Fabric) -> int:
    """The number of bits that the bitmaps of a fabric's switches need, FEW_CHILDREN or MAX_CHILDREN: no switch has more
    children in a tree than neighbours."""
    beside: dict[str, set[str]] = {}
    for a, b in (link.ends for link in fabric.links):
        beside.setdefault(a.node, set()).add(b.node)
        beside.setdefault(b.node, set()).add(a.node)
    most = max((len(beside.get(switch.name, ())) for switch in fabric.switches), default=0)
    return FEW_CHILDREN if most <= FEW_CHILDREN else MAX_CHILDREN


def plan(
    graph: nx.MultiGraph[str], ranks: Sequence[str], *, carried: Mapping[int, float] = MappingProxyType({}),
    most: int = MOST_TREES, folding: Mapping[str, int] = MappingProxyType({}), roots: Collection[str] = (),
) -> list[Tree]:
    """Trees whose roots are as near to all ranks as any switch is, spines where there are such, ``most`` at the most.

    graph    `Fabric.graph`, less whatever is down
    ranks    host names in the order of ranks
    carried  bit/s that other jobs' trees take of links (`tree_loads`): weights leave them room
    folding  trees that others have, by root: of equally good roots, those with few are taken
    roots    roots of trees that these replace: they are kept where they can be
    No two trees share a link, but for those that carry more together all the same, as some of a torus do.  Raises
    NoTree.
    """
    leaves, links = [], dict(graph.adjacency())
    for rank, host in enumerate(ranks):
        if not links.get(host):
            raise NoTree(f"rank {rank}: no link to {host} is up")
        leaf = next(iter(links[host]))
        leaves.append((leaf, Child(host, _port(links, leaf, host), rank)))
    near, wanted = neighbours(graph), {leaf for leaf, _ in leaves}
    nearest, depth = nearest_to(near, wanted)
    if not nearest:
        raise NoTree(f"no switch reaches all {len(ranks)} ranks over links that are up")
    candidates = [switch for switch in near if switch in nearest]
    candidates = [switch for switch in candidates if graph.nodes[switch]["role"] == "spine"] or candidates
    place = {root: place for place, root in enumerate(candidates)}
    preferred = sorted(_interleaved(near, candidates), key=lambda root: (root not in roots, folding.get(root, 0)))
    within = switches_within(near, wanted, depth)
    trees = [_tree(links, near, root, leaves, within) for root in preferred[:max(CANDIDATES, most)]]
    fitting = [tree for tree in trees if all(len(fold.children) <= MAX_CHILDREN for fold in tree.folds)]
    if not fitting:
        widest = max((fold for fold in trees[0].folds), key=lambda fold: len(fold.children))
        raise NoTree(f"{widest.switch} would fold {len(widest.children)} children, expected at most {MAX_CHILDREN}; "
                     "spread the ranks over more leaves")
    return sorted(_weighted(links, fitting, carried, most, roots), key=lambda tree: place[tree.root])


def neighbours(graph: nx.MultiGraph[str]) -> Neighbours:
    """The switches beside each switch, with the rate of the best link between them: read out of the graph once, and of
    one that is frozen once for all jobs."""
    if (found := _known.get(graph)) is not None:
        return found
    whole = graph.graph.get("whole")
    if whole is None:
        found = _read_neighbours(graph)
    else:  # most of it is as there
        before, known = dict(whole.adjacency()), neighbours(whole)
        found = {switch: known[switch] if beside is before[switch] else _read_beside(beside, known)
                 for switch, beside in graph.adjacency() if switch in known}
    if getattr(graph, "frozen", False):  # what networkx.freeze leaves
        _known[graph] = found
    return found


def _read_neighbours(graph: nx.MultiGraph[str]) -> Neighbours:
    switches = {name for name, kind in graph.nodes(data="kind") if kind == "switch"}
    return {switch: _read_beside(beside, switches) for switch, beside in graph.adjacency() if switch in switches}


def _read_beside(beside: Mapping[str, Any], switches: Collection[str]) -> list[tuple[str, float]]:
    return [(other, _rate(links[best(links)])) for other, links in beside.items() if other in switches]


def nearest_to(near: Neighbours, wanted: set[str]) -> tuple[set[str], int]:
    """The switches from which the farthest of the ``wanted`` ones is the fewest links away, and how many those are;
    empty where none reaches all of them."""
    reached = {switch: {switch} for switch in wanted if switch in near}
    edges = {switch: [switch] for switch in reached}
    depth = 0
    while len(reached) == len(wanted) and any(edges.values()):
        if found := set.intersection(*reached.values()):
            return found, depth
        depth += 1
        for switch, edge in edges.items():
            edges[switch] = list({other for at in edge for other, _ in near[at]} - reached[switch])
            reached[switch].update(edges[switch])
    return set(), 0


def switches_within(near: Neighbours, wanted: set[str], depth: int) -> list[set[str]]:
    """The switches that are at most 0, 1, ... ``depth`` links away from one of the ``wanted`` ones."""
    within = [wanted]
    for _ in range(depth):
        within.append(within[-1].union(other for at in within[-1] for other, _ in near[at]))
    return within


def _interleaved(near: Neighbours, roots: Sequence[str]) -> list[str]:
    """Roots in an order in which those with the same neighbours, whose trees cross each other above the leaves, are far
    apart."""
    alike: dict[frozenset[str], list[str]] = {}
    for root in roots:
        alike.setdefault(frozenset(other for other, _ in near[root]), []).append(root)
    return [root for turn in zip_longest(*alike.values()) for root in turn if root is not None]


def _tree(
    links: Links, near: Neighbours, root: str, leaves: Sequence[tuple[str, Child]], near_leaves: Sequence[set[str]]
) -> Tree:
    """The breadth-first tree from a root that reaches all leaves.

    leaves       the switch of each rank, and the rank as its child
    near_leaves  as of `switches_within`, up to the distance of the farthest leaf from the root
    """
    parent = parents_of(near, root, near_leaves)
    children: dict[str, list[Child]] = {root: []}
    within = {root}
    for leaf, rank in leaves:
        children.setdefault(leaf, []).append(rank)
        below = leaf
        while below not in within:
            within.add(below)
            up = parent[below]
            children.setdefault(up, []).append(Child(below, _port(links, up, below), None))
            below = up

    folds: list[Fold] = []
    queue = [root]
    for switch in queue:
        queue += [child.node for child in children[switch] if child.rank is None]
        above = None if switch == root else parent[switch]
        folds.append(Fold(switch, tuple(children[switch]), above, _port(links, switch, above) if above else 0))
    return Tree(root, 1.0, tuple(folds))


def parents_of(near: Neighbours, start: str, within: Sequence[set[str]]) -> dict[str, str]:
    """The parents of the switches of a breadth-first tree, as far as those that are wanted need them: of equally near
    ones that with the fastest link, and the first found of those.

    within  as of `switches_within`: a switch that is too far from all wanted ones for what is left of the depth leads
            to none
    """
    parent: dict[str, str] = {}
    layer = [start]
    for useful in reversed(within[:-1]):
        found: dict[str, tuple[float, str]] = {}
        for up in layer:
            for child, rate in near[up]:
                if child in useful and child not in parent and child != start and (
                    child not in found or rate > found[child][0]
                ):
                    found[child] = rate, up
        parent |= {child: up for child, (_, up) in found.items()}
        layer = list(found)
    return parent


def moved(trees: Sequence[Tree], planned: Sequence[Tree]) -> list[Tree]:
    """Replacements of ``trees``, as many and with the same weights, since running operations are striped over them.

    Each takes the tree of ``planned`` with its own root; where there is none, that with the fewest replacements."""
    by_root = {tree.root: tree for tree in planned}
    load = Counter(tree.root for tree in trees if tree.root in by_root)
    result = []
    for tree in trees:
        root = tree.root
        if root not in by_root:
            root = min(by_root, key=lambda name: load[name])
            load[root] += 1
        result.append(Tree(root, tree.weight, by_root[root].folds))
    return result


@dataclass(frozen=True)
class Footprint:
    """The part of the fabric that trees use."""

    trees: Sequence[Tree]
    switches: frozenset[str]
    links: frozenset[End]
    """The lower end of each link."""
    crowding: float
    """`crowding` of the trees, and the least that as many with the same weights could have."""
    least: float


def footprint(trees: Sequence[Tree]) -> Footprint:
    """The part of the fabric that trees use."""
    return Footprint(
        trees, frozenset(fold.switch for tree in trees for fold in tree.folds),
        frozenset(End(fold.switch, fold.parent_port) for tree in trees for fold in tree.folds if not fold.is_root),
        crowding(trees), max((tree.weight for tree in trees if len(tree.folds) > 1), default=0.0),
    )


def crowding(trees: Sequence[Tree]) -> float:
    """Share of a job's bytes that the busiest link between switches carries each way; 0 if none carries any."""
    load: dict[frozenset[str], float] = {}
    for tree in trees:
        for fold in tree.folds:
            if fold.parent is not None:
                link = frozenset((fold.switch, fold.parent))  # trees use the best of parallel links
                load[link] = load.get(link, 0.0) + tree.weight
    return max(load.values(), default=0.0)


def tree_loads(graph: nx.MultiGraph[str], jobs: Iterable[tuple[Sequence[Tree], Sequence[str]]]) -> dict[int, float]:
    """Bit/s that jobs' trees take of each link between switches, each way, by the link's number in the fabric.

    jobs  the trees of each, and its hosts: a job folds at most as fast as the slowest of their links, over all trees
    Links that are down carry nothing, and a job whose hosts' links state no rate counts for nothing.
    """
    loads: dict[int, float] = {}
    for trees, hosts in jobs:
        rates = [rate for host in hosts if host in graph for *_, rate in graph.edges(host, data="rate")]
        if not rates or None in rates:
            continue
        for tree in trees:
            for fold in tree.folds:
                if fold.parent is not None and graph.has_edge(fold.switch, fold.parent):
                    number = best(graph.adj[fold.switch][fold.parent])
                    loads[number] = loads.get(number, 0.0) + tree.weight * min(rates)
    return loads


def room_beside(rate: float, carried: float) -> float:
    """Bit/s of a link of this rate for one more, where others ask for so many: a fair share."""
    return rate * rate / (rate + carried)


def best(links: Mapping[int, Mapping[str, Any]]) -> int:
    """The number of the link of trees among parallel ones: the fastest, and the first of equally fast ones."""
    return min(links, key=lambda number: (-_rate(links[number]), number))


def _rate(link: Mapping[str, Any]) -> float:
    """A link's bit/s: without bound where none is stated."""
    return math.inf if (rate := link.get("rate")) is None else rate


def _port(links: Links, here: str, there: str) -> int:
    """The port of node ``here`` that leads to its neighbour ``there``: that of the best of parallel links."""
    data = links[here][there]
    return int(data[best(data)]["ports"][here])


def _weighted(
    between: Links, trees: Sequence[Tree], carried: Mapping[int, float], most: int, kept: Collection[str]
) -> list[Tree]:
    """The trees that carry the most together, ``most`` at the most, with weights in proportion to what each carries.

    trees  in the order of preference
    kept   roots whose trees are taken whatever they share
    """
    links = [[_link(between, f.switch, f.parent) for f in tree.folds if f.parent is not None] for tree in trees]
    rates = {link: rate for tree in links for link, rate in tree}
    stated = None not in rates.values() and all(links)  # a tree without rates is not comparable
    room = {link: room_beside(rate, carried.get(link, 0.0)) if stated and rate else 1.0 for link, rate in rates.items()}

    def widths(chosen: Sequence[int]) -> list[float]:
        """The share of each tree, if trees that share a link share it equally: each uses it in both directions."""
        sharers = Counter(link for tree in chosen for link, _ in links[tree])
        return [min((room[link] / sharers[link] for link, _ in links[tree]), default=1.0) for tree in chosen]

    alone = [widths([tree])[0] for tree in range(len(trees))]
    widest = max(alone)
    order = sorted(range(len(trees)), key=lambda tree: (trees[tree].root not in kept, -round(alone[tree] / widest, 2)))
    chosen: list[int] = []
    used: set[int] = set()
    for tree in order:
        own = {link for link, _ in links[tree]}
        if len(chosen) < most and (trees[tree].root in kept or not own & used):
            chosen.append(tree)
            used |= own
    if len(chosen) < min(most, len(trees)):  # others cross these
        crossing: list[int] = []
        carry = 0.0
        for tree in order:
            together = sum(widths([*crossing, tree]))
            if len(crossing) < most and (trees[tree].root in kept or together >= carry * (1 - 1e-9)):
                crossing, carry = [*crossing, tree], together
        if carry > sum(widths(chosen)) * (1 + 1e-9):
            chosen = crossing
    shares = widths(chosen) if stated else [1.0] * len(chosen)
    return [Tree(trees[tree].root, share / sum(shares), trees[tree].folds)
            for tree, share in zip(chosen, shares, strict=True)]


def _link(links: Links, a: str, b: str) -> tuple[int, float | None]:
    """Number and rate of the link of trees between two switches."""
    number = best(links[a][b])
    return number, links[a][b][number]["rate"]
