# SPDX-License-Identifier: Apache-2.0
"""Shares of paths that all pairs of a step have planned together, in meshes and tori."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.fabric import generate
from netfold.fabric.graph import Fabric
from netfold.fabric.routing import paths as planners
from netfold.fabric.routing.clos import Clos
from netfold.fabric.routing.joint_shares import joint_shares
from netfold.fabric.routing.path_graph import Hop, PathError, PathGraph
from netfold.fabric.routing.shortest_paths import ShortestPaths

Pair = tuple[str, str]


def busiest(graph: PathGraph, demands: Mapping[Pair, int], shares: Mapping[Pair, Sequence[int | Fraction]]) -> float:
    """Bytes over bit/s of the link that is loaded most, where each pair's bytes go by these shares."""
    load: dict[Hop, float] = {}
    for pair, sent in demands.items():
        total = sum(shares[pair])
        for path, share in zip(graph.paths(*pair), shares[pair], strict=True):
            for hop in path:
                load[hop] = load.get(hop, 0.0) + float(sent * share / total) / graph.capacity(hop)
    return max(load.values())


def everyone(fabric: Fabric, size: int) -> dict[Pair, int]:
    """The same number of bytes from each switch with hosts to each other one."""
    leaves = ShortestPaths(fabric.graph()).leaves
    return {(a, b): size for a in leaves for b in leaves if a != b}


def by_hops(fabric: Fabric, demands: Mapping[Pair, int]) -> float:
    """The busiest link where each switch spreads evenly over its links that lead nearer, as spraying does."""
    graph = ShortestPaths(fabric.graph())
    load: dict[Hop, float] = {}
    for (source, destination), sent in demands.items():
        nearest, at = graph.distances(destination), {source: float(sent)}
        while at:
            onward: dict[str, float] = {}
            for switch, amount in at.items():
                hops = [hop for far, links in graph.near[switch].items() if nearest[far] < nearest[switch]
                        for hop in links]
                for hop in hops:
                    load[hop] = load.get(hop, 0.0) + amount / len(hops) / graph.capacity(hop)
                    if hop.head != destination:
                        onward[hop.head] = onward.get(hop.head, 0.0) + amount / len(hops)
            at = onward
    return max(load.values())


@pytest.mark.parametrize("shape", [
    "torus,4,4", "mesh,4,4", "torus,4,6", "mesh,3,5", "mesh,4,4,rows=1gbit,columns=4gbit",
])
def test_an_all_to_all_loads_no_link_more_than_spraying_would(shape: str) -> None:
    """Where switches that spread packets evenly would have a busiest link, planned paths have none above 1.03 times
    that, and less than where each pair is planned by itself."""
    fabric = generate.parse(shape)
    graph, demands = ShortestPaths(fabric.graph()), everyone(fabric, 1 << 20)
    together = busiest(graph, demands, joint_shares(graph, demands))
    alone = busiest(graph, demands, {pair: graph.weights(graph.paths(*pair)) for pair in demands})
    assert together <= 1.03 * by_hops(fabric, demands)
    assert together < 0.9 * alone


@given(st.sampled_from(["torus,3,4", "mesh,3,4", "mesh,2,5"]), st.data())
def test_joint_shares_are_no_worse_than_each_pairs_own(shape: str, data: st.DataObject) -> None:
    """For any demands each pair's shares are whole and some are above 0, and no link is loaded more than where each
    pair is planned by itself, but for what rounding adds."""
    fabric = generate.parse(shape)
    graph = ShortestPaths(fabric.graph())
    pairs = data.draw(st.lists(st.sampled_from(sorted(everyone(fabric, 1))), min_size=1, max_size=30, unique=True))
    demands = {pair: data.draw(st.integers(1, 1 << 30)) for pair in pairs}
    shares = joint_shares(graph, demands)
    assert shares.keys() == demands.keys()
    for pair, own in shares.items():
        assert len(own) == len(graph.paths(*pair))
        assert min(own) >= 0
        assert sum(own) > 0
    alone = busiest(graph, demands, {pair: graph.weights(graph.paths(*pair)) for pair in demands})
    assert busiest(graph, demands, shares) <= 1.1 * alone
    assert joint_shares(graph, demands) == shares, "the same again"


def test_plans_of_a_torus_carry_every_byte_once() -> None:
    """A step that is planned together has all bytes of its flows, each in one piece, over paths of its own leaves."""
    fabric = generate.parse("torus,4,4")
    graph, hosts = ShortestPaths(fabric.graph()), [host.name for host in fabric.hosts]
    flows = [planners.Flow(a, b, 100_003) for a in hosts for b in hosts if a != b]
    for scope in ("leaf", "host"):
        plan = planners.plan(graph, flows, unit=1024, scope=scope)  # type: ignore[arg-type]
        at = dict.fromkeys(range(len(flows)), 0)
        for piece in plan.pieces:
            assert piece.offset == at[piece.flow]
            at[piece.flow] += piece.size
            flow = flows[piece.flow]
            assert piece.path in graph.paths(graph.leaf_of[flow.source], graph.leaf_of[flow.destination])
        assert set(at.values()) == {100_003}


def test_a_step_of_flows_without_bytes_is_refused_by_name() -> None:
    """A flow of no bytes is a caller's mistake in a torus as it is in a Clos."""
    graph = ShortestPaths((fabric := generate.parse("torus,3,3")).graph())
    hosts = [host.name for host in fabric.hosts]
    with pytest.raises(PathError, match="expected at least 1 byte a flow, got 0"):
        planners.plan(graph, [planners.Flow(a, b, 0) for a in hosts for b in hosts if a != b])


def test_in_a_clos_each_pairs_shares_stay_its_own() -> None:
    """There even shares of each pair are even loads of all links, exactly."""
    graph = Clos(generate.leafspine(4, 3, 8).graph())
    demands = {("leaf1", "leaf2"): 5, ("leaf1", "leaf3"): 7}
    assert graph.shares(demands) == {pair: graph.weights(graph.paths(*pair)) for pair in demands}


def test_a_pair_without_a_path_is_named() -> None:
    """Nothing is planned where two leaves have no live path."""
    graph = ShortestPaths(generate.parse("mesh,1,3").graph(), dead_links=[0, 1, 2, 3, 4])
    with pytest.raises(PathError, match="no live path"):
        joint_shares(graph, {(graph.leaves[0], graph.leaves[-1]): 1})
