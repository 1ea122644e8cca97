# SPDX-License-Identifier: Apache-2.0
"""The planners: exact balance, fewest pieces, nothing on dead paths, over all small cases."""

from __future__ import annotations

from fractions import Fraction
from math import gcd, lcm

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.fabric.generate import leafspine
from netfold.fabric.routing import paths as planners
from netfold.fabric.routing.clos import Clos, Hop, PathError
from netfold.fabric.routing.collectives import all_to_all as all_to_all_steps
from netfold.fabric.routing.paths import Cut, Flow, equal_split, fewest_pieces, plan
from netfold.sim.engines.topology import Topology
from support.fabrics.plans import hop_loads

PLANNERS = pytest.mark.parametrize("planner", [equal_split, fewest_pieces])


def loads(cuts: list[Cut], paths: int) -> list[int]:
    carried = [0] * paths
    for cut in cuts:
        carried[cut.path] += cut.size
    return carried


def assert_covers(cuts: list[Cut], sizes: list[int]) -> None:
    for flow, size in enumerate(sizes):
        end = 0
        for cut in sorted((c for c in cuts if c.flow == flow), key=lambda c: c.offset):
            assert cut.offset == end
            assert cut.size > 0
            end += cut.size
        assert end == size


@PLANNERS
def test_equal_flows_load_every_path_exactly_alike_in_all_small_cases(planner) -> None:
    """n flows over s paths: each path carries exactly n/s flows, in the planner's number of pieces."""
    for s in range(1, 20):
        for n in range(1, 41):
            size = s * gcd(n, s)  # divisible by all pieces of both planners
            cuts = planner([size] * n, [1] * s)
            assert loads(cuts, s) == [n * size // s] * s
            assert_covers(cuts, [size] * n)
            r = n % s
            pieces = n + r * (s // gcd(r, s) - 1) if planner is equal_split else n + s - gcd(n, s)
            assert len(cuts) == pieces


def test_the_papers_counts() -> None:
    """Counts published for the paper's sizes, and what wrap-around makes of them."""
    published = {(16, 16): (16, 16), (16, 15): (30, 30), (16, 14): (28, 28), (17, 16): (32, 32), (1, 16): (16, 16),
                 (10, 16): (80, 24), (15, 16): (240, 30), (3, 4): (12, 6)}
    for (n, s), counts in published.items():
        assert counts == tuple(len(p([s * s] * n, [1] * s)) for p in (equal_split, fewest_pieces))


@given(
    sizes=st.lists(st.integers(1, 10_000), min_size=1, max_size=12),
    shares=st.lists(st.integers(0, 9), min_size=1, max_size=9).filter(any),
    unit=st.sampled_from([1, 7, 256]),
    start=st.integers(0, 20),
)
def test_unequal_flows_over_unequal_paths_are_proportional_within_a_unit(sizes, shares, unit, start) -> None:
    """Each path's load is its share to within a unit, in at most n + s - 1 pieces, cut on units, none on dead paths."""
    cuts = fewest_pieces(sizes, shares, unit=unit, start=start)

    assert_covers(cuts, sizes)
    for load, share in zip(loads(cuts, len(shares)), shares, strict=True):
        assert abs(load - Fraction(sum(sizes) * share, sum(shares))) < unit
        assert share or not load
    assert len(cuts) <= len(sizes) + sum(map(bool, shares)) - 1
    assert all(cut.offset % unit == 0 for cut in cuts)
    assert cuts == fewest_pieces(sizes, shares, unit=unit, start=start)


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    shares=st.lists(st.integers(1, 9), min_size=1, max_size=6),
)
def test_proportional_loads_are_exact_where_they_are_whole(sizes, shares) -> None:
    """Where a path's share is a whole number of bytes, it carries exactly that."""
    sizes = [size * sum(shares) for size in sizes]
    carried = loads(fewest_pieces(sizes, shares), len(shares))
    assert carried == [sum(sizes) * share // sum(shares) for share in shares]


@given(n=st.integers(1, 30), s=st.integers(1, 20), size=st.integers(1, 5000), unit=st.sampled_from([1, 64]))
def test_equal_split_rounds_by_less_than_a_unit_a_piece(n, s, size, unit) -> None:
    """Sizes that do not divide: every byte is placed, and no path is off by a unit for each of its pieces or more."""
    cuts = equal_split([size] * n, [1] * s, unit=unit)
    assert_covers(cuts, [size] * n)
    pieces = s // gcd(n % s, s) * (n % s) // s
    assert all(abs(load - Fraction(n * size, s)) <= unit * pieces for load in loads(cuts, s))


@pytest.mark.parametrize(("sizes", "shares", "says"), [
    ([1, 2], [1, 1], "use fewest_pieces"),
    ([1, 1], [1, 2], "use fewest_pieces"),
    ([0], [1], "at least 1 byte"),
    ([1], [0, 0], "all 2 shares are 0"),
    ([1], [-1, 2], "none below 0"),
])
def test_what_cannot_be_planned_is_refused(sizes, shares, says) -> None:
    """Caller mistakes are named, with what to do."""
    with pytest.raises(PathError, match=says):
        equal_split(sizes, shares)


def test_the_papers_rule_can_be_chosen_for_a_fabric() -> None:
    """By its name it cuts what it takes as the paper does, and unequal flows or paths into the fewest pieces."""
    chosen = planners.PLANNERS["equal_split"]
    assert chosen([30] * 5, [1] * 3) == equal_split([30] * 5, [1] * 3) != fewest_pieces([30] * 5, [1] * 3)
    assert chosen([30] * 5, [1, 0, 1], start=1) == equal_split([30] * 5, [1, 0, 1], start=1)
    for sizes, shares in (([30, 20], [1, 1]), ([30, 30], [1, 2])):
        assert chosen(sizes, shares) == fewest_pieces(sizes, shares)


def test_a_plan_says_where_it_could_not_split_equally() -> None:
    """The first two leaves, where the paper's rule was asked for; nothing where it was not, or where it held."""
    clos = Clos(leafspine(2, 2, 4).graph())
    for sizes, planner, says in (
        ([8, 8], planners.PLANNERS["equal_split"], ""), ([8, 4], fewest_pieces, ""),
        ([8, 4], planners.PLANNERS["equal_split"], "leaf1 -> leaf2"),
    ):
        flows = [Flow(source, "h3", size) for source, size in zip(("h1", "h2"), sizes, strict=True)]
        assert plan(clos, flows, planner=planner).not_equal == says


def all_to_all(clos: Clos, size: int) -> list[Flow]:
    hosts = sorted(clos.leaf_of)
    return [Flow(a, b, size) for a in hosts for b in hosts if a != b]


def between(loaded: dict[Hop, int], tail: str, head: str) -> list[int]:
    return [load for hop, load in loaded.items() if hop.tail.startswith(tail) and hop.head.startswith(head)]


@PLANNERS
@pytest.mark.parametrize("scope", ["host", "leaf"])
@pytest.mark.parametrize(("leaves", "spines", "hosts"), [(4, 4, 16), (3, 4, 6), (4, 3, 8), (2, 5, 6), (5, 2, 15)])
def test_two_tiers_carry_all_to_all_evenly(planner, scope, leaves, spines, hosts) -> None:
    """Every uplink and every downlink of a healthy leaf-spine carries the same."""
    clos = Clos(leafspine(leaves, spines, hosts).graph())
    plans = plan(clos, all_to_all(clos, spines * 12), planner=planner, scope=scope)
    assert len(hop_loads(plans)) == 2 * leaves * spines
    assert len(set(hop_loads(plans).values())) == 1
    assert plans == plan(clos, all_to_all(clos, spines * 12), planner=planner, scope=scope)


@pytest.mark.parametrize(
    ("leaves", "spines", "hosts"), [(2, 2, 4), (3, 3, 9), (4, 4, 16), (3, 2, 12), (2, 4, 16), (4, 2, 8)])
@pytest.mark.parametrize("missing", [0, 1])
def test_no_link_of_an_all_to_all_carries_more_than_its_share_at_any_time(leaves, spines, hosts, missing) -> None:
    """Ranks go through an all-to-all in steps, each to the rank so many places on: in each of them an uplink has the
    flows of as many hosts as it can carry, whichever leaves these go to, and a downlink no more.  Where the last host
    is not of the job, one flow more."""
    clos = Clos(leafspine(leaves, spines, hosts).graph())
    ranks = [f"h{number + 1}" for number in range(hosts - missing)]
    world = len(ranks)
    flows = [Flow(ranks[a], ranks[b], 60) for step in all_to_all_steps(world) for a, b in step]
    pieces = plan(clos, flows).pieces
    share = hosts // leaves // spines
    for step in range(1, world):
        load: dict[Hop, int] = {}
        for piece in pieces:
            flow = flows[piece.flow]
            if (ranks.index(flow.source) + step) % world == ranks.index(flow.destination):
                for hop in piece.path:
                    load[hop] = load.get(hop, 0) + piece.size
        assert max(load.values(), default=0) <= 60 * (share + missing)


THREE_TIERS = Topology(hosts=2, leaves=2, aggs=2, pods=3, cores=3)


@PLANNERS
@pytest.mark.parametrize("scope", ["host", "leaf"])
def test_three_tiers_carry_all_to_all_evenly(planner, scope) -> None:
    """Leaf uplinks are alike, core uplinks are alike, and so are the ways down."""
    clos = Clos(THREE_TIERS.graph())
    loaded = hop_loads(plan(clos, all_to_all(clos, 36), planner=planner, scope=scope))
    for tail, head, hops in [("leaf", "agg", 12), ("agg", "leaf", 12), ("agg", "core", 18), ("core", "agg", 18)]:
        assert len(between(loaded, tail, head)) == hops
        assert len(set(between(loaded, tail, head))) == 1


def test_planning_whole_leaves_needs_fewer_pieces_than_planning_hosts() -> None:
    """16 hosts that each send one flow to the same leaf: 16 pieces by leaf, 256 as in the paper."""
    clos = Clos(leafspine(2, 16, 32).graph())
    flows = [Flow(f"h{i}", f"h{i + 16}", 160) for i in range(1, 17)]
    counts = {scope: len(plan(clos, flows, scope=scope).pieces) for scope in ("leaf", "host")}
    assert counts == {"leaf": 16, "host": 256}


@given(data=st.data(), tiers=st.sampled_from([2, 3]))
def test_no_piece_takes_a_dead_path_and_pairs_stay_proportional(data, tiers) -> None:
    """With dead links and switches every pair that still has a path uses live ones only, and refuses otherwise."""
    topology = THREE_TIERS if tiers == 3 else Topology(hosts=2, leaves=4, aggs=4)
    graph = topology.graph()
    cables = [number for a, b, number in graph.edges(keys=True) if not {a[0], b[0]} & {"h"}]
    dead = data.draw(st.sets(st.sampled_from(cables), max_size=4))
    tops = [n for n in graph if n.startswith("core" if tiers == 3 else "agg")]
    down = data.draw(st.sets(st.sampled_from(tops), max_size=1))
    clos = Clos(graph, dead_links=dead, dead_switches=down)
    for a in clos.leaves:
        for b in clos.leaves:
            if a == b:
                continue
            if not clos.climbs(a).keys() & clos.climbs(b).keys():
                with pytest.raises(PathError, match="no live path"):
                    clos.paths(a, b)
                continue
            paths = clos.paths(a, b)
            weights = clos.weights(paths)
            unit = lcm(*(w.denominator for w in weights))
            size = int(sum(weights) * unit)
            sources = [h for h, leaf in clos.leaf_of.items() if leaf == a]
            target = next(h for h, leaf in clos.leaf_of.items() if leaf == b)
            plans = plan(clos, [Flow(h, target, size) for h in sources])
            carried = dict.fromkeys(paths, 0)
            for piece in plans.pieces:
                assert not {hop.link for hop in piece.path} & dead
                assert not {hop.head for hop in piece.path} & down
                carried[piece.path] += piece.size
            assert [carried[p] for p in paths] == [len(sources) * w * unit for w in weights]
            assert all(sum(w for p, w in zip(paths, weights, strict=True) if hop in p) <= clos.capacity(hop)
                       for p in paths for hop in p)


def test_weights_are_the_pairs_maximum_flow() -> None:
    """Three tiers with a slow agg and a dead core link: the weights add up to what networkx's max-flow finds."""
    graph = THREE_TIERS.graph()
    slow = next(iter(graph["leaf0"]["agg0.0"]))
    graph["leaf0"]["agg0.0"][slow]["rate"] //= 3
    dead = next(iter(graph["agg1.1"]["core1.2"]))
    clos = Clos(graph, dead_links={dead})
    digraph = nx.DiGraph()
    for a, b, number, rate in graph.edges(keys=True, data="rate"):
        if number != dead:
            digraph.add_edge(a, b, capacity=rate)
            digraph.add_edge(b, a, capacity=rate)
    for b in ("leaf2", "leaf4"):
        expected, _ = nx.maximum_flow(digraph, "leaf0", b)
        assert sum(clos.weights(clos.paths("leaf0", b))) == expected


def test_unequal_uplinks_are_loaded_in_proportion() -> None:
    """An uplink of a quarter of the rate gets a quarter of the bytes; the paper's planner says it cannot."""
    graph = leafspine(2, 3, 4, rate="4gbit").graph()
    for leaf in ("leaf1", "leaf2"):
        graph[leaf]["spine3"][next(iter(graph[leaf]["spine3"]))]["rate"] //= 4
    clos = Clos(graph)
    flows = [Flow("h1", "h3", 900), Flow("h2", "h4", 900)]
    assert sorted(between(hop_loads(plan(clos, flows)), "leaf1", "spine")) == [200, 800, 800]
    with pytest.raises(PathError, match="use fewest_pieces"):
        plan(clos, flows, planner=equal_split)


def test_suspects_bar_an_uplink_for_one_destination_only() -> None:
    """(destination leaf, uplink) marks of a host's time-out leave the uplink to other destinations."""
    graph = leafspine(3, 2, 3).graph()
    bad = next(iter(graph["leaf1"]["spine1"]))
    clos = Clos(graph, suspects=[("leaf3", bad)])
    assert [len(clos.paths("leaf1", b)) for b in ("leaf2", "leaf3")] == [2, 1]
    assert len(clos.paths("leaf2", "leaf3")) == 2


@pytest.mark.parametrize("mistake", [{"dead_links": [999]}, {"dead_switches": ["h1"]}, {"suspects": [("leaf1", 999)]}])
def test_marks_on_what_is_not_there_are_refused(mistake) -> None:
    """A typing error in what is dead must not pass for a healthy fabric."""
    with pytest.raises(PathError, match="the fabric has no"):
        Clos(leafspine(2, 2, 2).graph(), **mistake)


def test_flows_inside_a_leaf_take_no_path() -> None:
    """Neighbours under one leaf are neither cut nor put on an uplink."""
    clos = Clos(leafspine(2, 2, 4).graph())
    (piece,) = plan(clos, [Flow("h1", "h2", 10)]).pieces
    assert (piece.path, piece.size) == ((), 10)
    with pytest.raises(PathError, match="no host h9"):
        plan(clos, [Flow("h1", "h9", 10)])
