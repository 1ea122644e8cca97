# SPDX-License-Identifier: Apache-2.0
"""Planners on fabrics of any shape: trees span the ranks, paths are short and simple, and no link carries too much."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from fractions import Fraction

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.fabric.folding import trees
from netfold.fabric.generate import parse
from netfold.fabric.graph import Fabric
from netfold.fabric.routing.clos import Clos, is_clos, paths_of
from netfold.fabric.routing.paths import PLANNERS, Flow, plan
from netfold.fabric.routing.shortest_paths import ShortestPaths
from support.fabrics.graphs import any_fabrics


@settings(max_examples=40)
@given(any_fabrics(), st.data())
def test_trees_span_the_ranks_without_loops(fabric: Fabric, data: st.DataObject) -> None:
    """Every rank is once in every tree, every tree is one, and all of one job have the least depth."""
    ranks = data.draw(st.permutations([host.name for host in fabric.hosts]))
    graph = fabric.graph()
    planned = trees.plan(graph, ranks)
    assert len({tree.depth for tree in planned}) == 1
    assert sum(tree.weight for tree in planned) == pytest.approx(1)
    for tree in planned:
        edges = [(fold.switch, child.node) for fold in tree.folds for child in fold.children]
        drawn = nx.Graph(edges)
        assert nx.is_tree(drawn), tree
        assert len(drawn) == len(edges) + 1
        assert all(graph.has_edge(*edge) for edge in edges)
        found = {child.rank: child.node for fold in tree.folds for child in fold.children if child.rank is not None}
        assert found == dict(enumerate(ranks))


@settings(max_examples=40)
@given(any_fabrics())
def test_trees_fill_no_link_beyond_its_rate(fabric: Fabric) -> None:
    """All trees together, each at its weight of what they can carry, load each link to its rate at most."""
    graph = fabric.graph()
    planned = trees.plan(graph, [host.name for host in fabric.hosts])
    users: dict[int, list[int]] = defaultdict(list)
    for number, tree in enumerate(planned):
        for fold in tree.folds:
            if fold.parent is not None:
                users[next(link for link, data in graph.adj[fold.switch][fold.parent].items()
                           if data["ports"][fold.switch] == fold.parent_port)].append(number)
    rates = {key: rate for *_, key, rate in graph.edges(keys=True, data="rate")}
    width = [min((rates[link] / len(users[link]) for link in users if tree in users[link]), default=0.0)
             for tree in range(len(planned))]
    for link, through in users.items():
        assert sum(planned[tree].weight for tree in through) * sum(width) <= rates[link] * (1 + 1e-9)


@settings(max_examples=40)
@given(any_fabrics(), st.data())
def test_paths_are_shortest_and_their_shares_fit_the_links(fabric: Fabric, data: st.DataObject) -> None:
    """From any leaf to any other, whatever is down that leaves them connected: also where links differ in rate."""
    graph = fabric.graph()
    inner = [(a, b, key) for a, b, key in graph.edges(keys=True) if {a, b} <= {s.name for s in fabric.switches}]
    dead = set()
    for a, b, key in data.draw(st.lists(st.sampled_from(inner), max_size=3, unique=True)):
        graph.remove_edge(a, b, key)
        dead.add(key)
        if not nx.is_connected(graph):
            graph.add_edge(a, b, key, **fabric.graph().edges[a, b, key])
            dead.discard(key)
    kind = paths_of(fabric.graph())
    for found in (kind(graph), kind(fabric.graph(), dead_links=dead)):
        for a in found.leaves:
            for b in found.leaves:
                if a == b or (kind is Clos and not found.choices(a, b)):
                    continue
                ways = found.ways(a, b)
                assert len({way.path for way in ways}) == len({(way.middle, way.layer) for way in ways}) == len(ways)
                for way in ways:
                    visited = [a, *(hop.head for hop in way.path)]
                    assert visited[-1] == b
                    assert way.middle in visited
                    assert len(set(visited)) == len(visited)
                    if kind is ShortestPaths:
                        assert len(way.path) == nx.shortest_path_length(graph, a, b)
                    assert all(graph.has_edge(hop.tail, hop.head, hop.link) for hop in way.path)
                paths = found.paths(a, b)
                loads: Counter[object] = Counter()
                for path, weight in zip(paths, found.weights(paths), strict=True):
                    assert weight > 0
                    for hop in path:
                        loads[hop] += weight
                assert all(load <= found.capacity(hop) for hop, load in loads.items())  # type: ignore[arg-type]


@settings(max_examples=60)
@given(any_fabrics())
def test_weights_are_max_min_fair(fabric: Fabric) -> None:
    """Exactly: every path has a link that is full and on which no other path of the pair carries more, which only the
    max-min fair rates fulfil."""
    found = paths_of(fabric.graph())(fabric.graph())
    for a, b in itertools.permutations(found.leaves, 2):
        paths = found.paths(a, b)
        weights = found.weights(paths)
        users: dict[object, list[Fraction]] = defaultdict(list)
        for path, weight in zip(paths, weights, strict=True):
            for hop in path:
                users[hop].append(weight)
        for path, weight in zip(paths, weights, strict=True):
            assert any(sum(users[hop]) == found.capacity(hop) and max(users[hop]) == weight for hop in path), (a, b)


@settings(max_examples=40)
@given(any_fabrics(), st.sampled_from(sorted(PLANNERS)), st.integers(1000, 10**6))
def test_planners_load_paths_in_proportion_to_what_they_carry(fabric: Fabric, planner: str, size: int) -> None:
    """The pieces of the flows between two leaves cover each byte once; a path has its share to within a byte for each
    of its pieces."""
    found = paths_of(fabric.graph())(fabric.graph())
    hosts = sorted(found.leaf_of)
    flows = [Flow(a, b, size) for a in hosts for b in hosts if a != b]
    planned = plan(found, flows, planner=PLANNERS[planner])  # type: ignore[index]
    covered: Counter[int] = Counter()
    carried: dict[tuple[str, str], Counter[object]] = defaultdict(Counter)
    for piece in planned.pieces:
        assert piece.offset == covered[piece.flow]
        covered[piece.flow] += piece.size
        if piece.path:
            carried[piece.path[0].tail, piece.path[-1].head][piece.path] += piece.size
    assert covered == dict.fromkeys(range(len(flows)), size)
    shares = found.shares({pair: by_path.total() for pair, by_path in carried.items()})
    for (a, b), by_path in carried.items():
        paths, weights = found.paths(a, b), shares[a, b]
        for path, weight in zip(paths, weights, strict=True):
            ideal = by_path.total() * weight / sum(weights)
            assert abs(by_path[path] - ideal) <= 1 + sum(piece.path == path for piece in planned.pieces), (a, b, path)


@pytest.mark.parametrize(("text", "clos"), [
    ("leafspine,2,2,4", True), ("leafspine,2,2,4,uplinks=1gbit:2x100mbit", True), ("threetier,2,2,2,4,8", True),
    ("leafspine,1,0,2", True), ("mesh,2,3", False), ("torus,3,3", False), ("mesh,1,2", False),
])
def test_a_clos_is_told_from_other_graphs(text: str, clos: bool) -> None:
    """By its links alone: they join neighbouring tiers, and all leaves have a switch above them."""
    assert is_clos(parse(text).graph()) is clos


def test_opposite_corners_of_a_mesh_have_a_path_through_each_place_between() -> None:
    """On 3 x 3 through the three places of the diagonal, of which all rates together are what the corner's links
    carry."""
    paths = ShortestPaths(parse("mesh,3,3", rate="1gbit").graph())
    assert [way.middle for way in paths.ways("r1c1", "r3c3")] == ["r1c3", "r2c2", "r3c1"]
    assert sum(paths.weights(paths.paths("r1c1", "r3c3"))) == Fraction(2 * 10**9)
    assert [way.middle for way in paths.ways("r1c1", "r1c2")] == ["r1c2"]
