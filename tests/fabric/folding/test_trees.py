# SPDX-License-Identifier: Apache-2.0
"""Trees: what must hold for any fabric and any set of ranks."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.fabric.folding import trees
from netfold.fabric.folding.slots import Allocator, sizes_of
from netfold.fabric.folding.trees import NoTree
from netfold.fabric.generate import leafspine, parse, threetier
from netfold.fabric.graph import Fabric, Link
from support.fabrics.plans import fabrics_and_ranks


def check_tree(fabric: Fabric, tree: trees.Tree, ranks: list[str]) -> None:
    """Every rank once; parents and children agree; every port is the graph's."""
    graph = fabric.graph()
    by_switch = {fold.switch: fold for fold in tree.folds}
    found = [child for fold in tree.folds for child in fold.children if child.rank is not None]
    assert sorted(child.rank or 0 for child in found) == list(range(len(ranks)))
    assert all(child.node == ranks[child.rank] for child in found if child.rank is not None)
    assert [fold.switch for fold in tree.folds if fold.is_root] == [tree.root] == [tree.folds[0].switch]
    for fold in tree.folds:
        for child in fold.children:
            assert any(d["ports"][fold.switch] == child.port for d in graph.adj[fold.switch][child.node].values())
            if child.rank is None:
                assert by_switch[child.node].parent == fold.switch
        if fold.parent is not None:
            assert fold.switch in [child.node for child in by_switch[fold.parent].children]
            assert any(d["ports"][fold.switch] == fold.parent_port
                       for d in graph.adj[fold.switch][fold.parent].values())
        assert len({child.port for child in fold.children}) == len(fold.children)
    assert len(by_switch) == len(tree.folds)


@given(fabrics_and_ranks())
def test_every_rank_is_once_in_every_tree(case: tuple[Fabric, list[str]]) -> None:
    """Trees are trees, over all ranks, on real links; one for each spine, or the leaf alone where one leaf has all."""
    fabric, ranks = case
    planned = trees.plan(fabric.graph(), ranks)
    for tree in planned:
        check_tree(fabric, tree, ranks)
    below = {next(iter(fabric.graph().adj[host])) for host in ranks}
    spines = {s.name for s in fabric.switches if s.role == "spine"}
    assert {tree.root for tree in planned} == (below if len(below) == 1 else spines)
    assert abs(sum(tree.weight for tree in planned) - 1) < 1e-9


@given(fabrics_and_ranks(), st.integers(0, 3))
def test_dead_spines_have_no_trees(case: tuple[Fabric, list[str]], dead: int) -> None:
    """Planned without some spines, the others carry the job; without all, only ranks under one leaf are folded."""
    fabric, ranks = case
    graph = fabric.graph()
    gone = [f"spine{i + 1}" for i in range(dead)]
    graph.remove_nodes_from(gone)
    below = {next(iter(fabric.graph().adj[host])) for host in ranks}
    left = {s.name for s in fabric.switches if s.role == "spine"} - set(gone)
    if len(below) > 1 and not left:
        with pytest.raises(NoTree, match="reaches all"):
            trees.plan(graph, ranks)
    else:
        roots = {tree.root for tree in trees.plan(graph, ranks)}
        assert roots == (below if len(below) == 1 else left)


def test_trees_of_three_tiers() -> None:
    """A job over two pods folds at leaf, pod and spine; one in a single pod stays in it."""
    fabric = threetier(2, 2, 2, 2, 8)
    everyone = [host.name for host in fabric.hosts]
    planned = trees.plan(fabric.graph(), everyone)
    assert {tree.root for tree in planned} == {"spine1", "spine2"}
    for tree in planned:
        check_tree(fabric, tree, everyone)
        assert tree.depth == 3
    pod = trees.plan(fabric.graph(), ["h1", "h2", "h3", "h4"])
    assert {tree.root for tree in pod} == {"agg1", "agg2"}
    assert all(tree.depth == 2 for tree in pod)


def test_trees_stand_in_the_order_of_the_fabrics_switches() -> None:
    """A plan's trees do not depend on how this process hashes names, so that controllers plan the same."""
    fabric = leafspine(4, 9, 8)
    roots = [tree.root for tree in trees.plan(fabric.graph(), ["h1", "h3", "h5", "h7"])]
    assert roots == [f"spine{number}" for number in range(1, 10)]


def test_the_search_of_a_tree_looks_at_ways_to_its_ranks_alone() -> None:
    """Layers behind the last one with a rank are not searched, nor leaves without one: every switch is tried as a
    root."""
    near = trees.neighbours(leafspine(40, 8, 80).graph())
    nearest, depth = trees.nearest_to(near, {"leaf1", "leaf40"})
    assert (nearest, depth) == ({f"spine{number}" for number in range(1, 9)}, 1)
    found = trees.parents_of(near, "spine1", trees.switches_within(near, {"leaf1", "leaf40"}, depth))
    assert found == {"leaf1": "spine1", "leaf40": "spine1"}


def test_weights_follow_the_narrowest_link() -> None:
    """A spine whose links are half as fast carries half as much."""
    fast = leafspine(2, 2, 4, rate="1gbit")
    links = tuple(Link(x.a, x.b, "500mbit") if "spine2" in x.b else x for x in fast.links)
    slow = msgspec.structs.replace(fast, links=links)
    weights = {tree.root: tree.weight for tree in trees.plan(slow.graph(), ["h1", "h3"])}
    assert weights["spine1"] == pytest.approx(2 / 3)
    assert weights["spine2"] == pytest.approx(1 / 3)


def test_trees_take_the_fastest_of_parallel_links() -> None:
    """Whatever their order, and the first of equally fast ones: a link without a limit is the fastest of all.  Weights,
    and loads for the other jobs, are those of this link."""
    fabric = leafspine(2, 2, 4, rate="1gbit")
    slow = tuple(Link(f"leaf{leaf}:9", f"spine1:{leaf + 6}", "100mbit") for leaf in (1, 2))
    fast = tuple(Link(f"leaf{leaf}:8", f"spine1:{leaf + 8}", "3gbit") for leaf in (1, 2))
    equal = tuple(Link(f"leaf{leaf}:7", f"spine1:{leaf + 10}", "3gbit") for leaf in (1, 2))
    graph = msgspec.structs.replace(fabric, links=(*slow, *fast, *equal, *fabric.links)).graph()
    planned = trees.plan(graph, ["h1", "h3"])
    assert {tree.root: tree.weight for tree in planned} == pytest.approx({"spine1": 3 / 4, "spine2": 1 / 4})
    root, *leaves = planned[0].folds
    assert [child.port for child in root.children] == [9, 10]
    assert [fold.parent_port for fold in leaves] == [8, 8]
    assert trees.tree_loads(graph, [(planned[:1], ["h1", "h3"])]) == pytest.approx({2: 0.75e9, 3: 0.75e9})
    unlimited = tuple(Link(f"leaf{leaf}:6", f"spine1:{leaf + 12}") for leaf in (1, 2))
    graph = msgspec.structs.replace(fabric, links=(*slow, *fast, *fabric.links, *unlimited)).graph()
    assert [fold.parent_port for fold in trees.plan(graph, ["h1", "h3"])[0].folds] == [0, 6, 6]


def test_a_tree_prefers_links_without_a_limit() -> None:
    """A tree goes by that of two equally near switches whose links state no rate, not by that with slow ones."""
    fabric = leafspine(2, 3, 2)
    near = trees.neighbours(msgspec.structs.replace(fabric, links=(
        Link("spine1:1", "spine3:1", "100mbit"), Link("spine2:1", "spine3:2"), Link("leaf1:1", "spine1:2", "100mbit"),
        Link("leaf1:2", "spine2:2"))).graph())
    assert trees.parents_of(near, "spine3", trees.switches_within(near, {"leaf1"}, 2))["leaf1"] == "spine2"


def test_trees_share_no_link_where_fewer_carry_as_much() -> None:
    """Spines 1 and 3 hang on the same aggs, spine 2 on others of its own: a tree of spine 3 would add nothing."""
    graph = threetier(2, 1, 2, 4, 4, rate="1gbit").graph()
    graph.remove_node("spine4")
    weights = {tree.root: tree.weight for tree in trees.plan(graph, ["h1", "h2", "h3", "h4"])}
    assert weights == pytest.approx({"spine1": 0.5, "spine2": 0.5})


def test_trees_over_one_link_have_a_share_of_it_each() -> None:
    """Where spines' links are a quarter as fast as leaves', the leaves' have room for both spines of an agg: spine 2
    alone has aggs of its own, and each spine carries the same."""
    graph = threetier(2, 1, 2, 4, 4, rate="1gbit").graph()
    graph.remove_node("spine4")
    for a, b, key in graph.edges(keys=True):
        if "spine" in a + b:
            graph.edges[a, b, key]["rate"] = 250_000_000
    weights = {tree.root: tree.weight for tree in trees.plan(graph, ["h1", "h2", "h3", "h4"])}
    assert weights == pytest.approx({"spine1": 1 / 3, "spine2": 1 / 3, "spine3": 1 / 3})


def test_a_job_has_sixteen_trees_at_most() -> None:
    """At the spines where others fold least, in a fabric of many; and each job has slots, also with several ranks on a
    host."""
    fabric = leafspine(2, 64, 8)
    hosts, graph = [host.name for host in fabric.hosts], fabric.graph()
    folding: Counter[str] = Counter()
    for _ in range(4):
        planned = trees.plan(graph, hosts, folding=folding)
        assert len(planned) == trees.MOST_TREES
        assert sum(tree.weight for tree in planned) == pytest.approx(1)
        folding.update(tree.root for tree in planned)
    assert folding == Counter({f"spine{number}": 1 for number in range(1, 65)})
    sizes = sizes_of("softswitch", 4096)
    for ranks_per_host in (1, 2, 8, 64):
        groups = [list(range(place, 8 * ranks_per_host, ranks_per_host)) for place in range(ranks_per_host)]
        planned = trees.plan(graph, hosts, most=sizes.most_trees(len(groups)))
        allocator = Allocator([switch.name for switch in fabric.switches], sizes, random.Random(1))
        allocator.admit(planned, groups)
        assert max(allocator.used().values()) <= sizes.quota


@given(fabrics_and_ranks(), st.data())
def test_replacements_keep_the_roots_that_are_left(case: tuple[Fabric, list[str]], data: st.DataObject) -> None:
    """Whatever others fold by now: a tree whose root still reaches all ranks is where it was."""
    fabric, ranks = case
    graph = fabric.graph()
    before = trees.plan(graph, ranks)
    folding = Counter({tree.root: 7 for tree in before})
    dead = data.draw(st.lists(st.sampled_from(before), unique_by=lambda tree: tree.root, max_size=len(before) - 1))
    graph.remove_nodes_from(tree.root for tree in dead)
    roots = {tree.root for tree in before}
    after = trees.plan(graph, ranks, most=len(before), folding=folding, roots=roots)
    assert {tree.root for tree in after} >= roots - {tree.root for tree in dead}


def test_trees_leave_room_for_those_of_other_jobs() -> None:
    """What a job folds over is a load on its links, as fast as its slowest host, by the trees' weights; another job's
    trees weigh less there, in proportion to its fair share."""
    fabric = leafspine(2, 2, 8, rate="100mbit")
    graph, all_links = fabric.graph(), fabric.links
    one = [tree for tree in trees.plan(graph, ["h1", "h5"]) if tree.root == "spine1"]
    loads = trees.tree_loads(graph, [([trees.Tree("spine1", 0.5, one[0].folds)], ["h1", "h5"])])
    assert {(all_links[number].a[:5], all_links[number].b[:6]): load for number, load in loads.items()} == {
        ("leaf1", "spine1"): 50e6, ("leaf2", "spine1"): 50e6}
    weights = {tree.root: tree.weight for tree in trees.plan(graph, ["h2", "h6"], carried=loads)}
    assert weights == pytest.approx({"spine1": (2 / 3) / (2 / 3 + 1), "spine2": 1 / (2 / 3 + 1)})
    both = trees.tree_loads(graph, [(trees.plan(graph, ["h1", "h5"]), ["h1", "h5"])])
    assert {tree.weight for tree in trees.plan(graph, ["h2", "h6"], carried=both)} == {0.5}, "even loads change nothing"


def test_loads_of_trees_count_where_they_are_known() -> None:
    """Not over links that are down, nor of jobs whose hosts' links state no rate."""
    fabric = leafspine(2, 2, 4, rate="100mbit")
    graph = fabric.graph()
    planned = trees.plan(graph, ["h1", "h3"])
    assert sum(trees.tree_loads(graph, [(planned, ["h1", "h3"])]).values()) == 4 * 50e6
    graph.remove_edge("leaf1", "spine1")
    assert sum(trees.tree_loads(graph, [(planned, ["h1", "h3"])]).values()) == 3 * 50e6
    assert not trees.tree_loads(leafspine(2, 2, 4).graph(), [(planned, ["h1", "h3"])])


def test_where_leaves_are_cabled_to_each_other_trees_stay_at_the_spines() -> None:
    """A leaf would be as near to all ranks, but one tree a spine is what spreads a job over the fabric."""
    fabric = leafspine(2, 2, 4)
    crossed = msgspec.structs.replace(fabric, links=(*fabric.links, Link("leaf1:5", "leaf2:5")))
    assert {tree.root for tree in trees.plan(crossed.graph(), ["h1", "h3"])} == {"spine1", "spine2"}


def test_more_children_than_the_bitmap_are_refused_with_figures() -> None:
    """256 leaves under a spine fold, 257 do not."""
    fabric = leafspine(257, 1, 257)
    names = [host.name for host in fabric.hosts]
    assert len(trees.plan(fabric.graph(), names[:256])[0].folds[0].children) == 256
    with pytest.raises(NoTree, match="spine1 would fold 257 children, expected at most 256"):
        trees.plan(fabric.graph(), names)


@pytest.mark.parametrize(("text", "children"), [
    ("leafspine,1,0,64", 64), ("leafspine,1,0,65", 256), ("leafspine,2,2,124", 64), ("leafspine,2,2,126", 256),
    ("leafspine,64,2,64", 64), ("leafspine,65,2,65", 256), ("leafspine,2,16,4,uplinks=" + ":".join(["9"] * 16), 64),
])
def test_bitmaps_are_as_wide_as_the_switch_with_the_most_neighbours_needs(text: str, children: int) -> None:
    """Hosts and switches count, links side by side do not: 64 bits, and 256 where that is too few."""
    assert trees.children_of(parse(text)) == children


def test_a_rank_without_a_link_is_named() -> None:
    """A host whose leaf is down cannot take part."""
    fabric = leafspine(2, 1, 2)
    graph = fabric.graph()
    graph.remove_node("leaf2")
    with pytest.raises(NoTree, match="rank 1: no link to h2"):
        trees.plan(graph, ["h1", "h2"])
