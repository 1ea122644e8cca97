# SPDX-License-Identifier: Apache-2.0
"""Trees, routes and slots: what must hold for any fabric and any set of ranks."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import msgspec
import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.controller.switch import fold_tables
from netfold.fabric import routes, trees
from netfold.fabric.generate import leafspine, parse, threetier
from netfold.fabric.graph import Fabric, Link, ip_number
from netfold.fabric.pools import Cycle, Exhausted, RandomPool, Slots, runs
from netfold.fabric.slots import FLOWS, Allocator, Sizes, Stream, holdings, sizes_of
from netfold.fabric.trees import NoTree
from netfold.wire.roce import LaneOperation
from support.plans import admitted, allocator_of, fabrics_and_ranks


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
    near = trees._neighbours(leafspine(40, 8, 80).graph())
    nearest, depth = trees._nearest(near, {"leaf1", "leaf40"})
    assert (nearest, depth) == ({f"spine{number}" for number in range(1, 9)}, 1)
    found = trees._parents(near, "spine1", trees._within(near, {"leaf1", "leaf40"}, depth))
    assert found == {"leaf1": "spine1", "leaf40": "spine1"}


def test_weights_follow_the_narrowest_link() -> None:
    """A spine whose links are half as fast carries half as much."""
    fast = leafspine(2, 2, 4, rate="1gbit")
    links = tuple(Link(x.a, x.b, "500mbit") if "spine2" in x.b else x for x in fast.links)
    slow = msgspec.structs.replace(fast, links=links)
    weights = {tree.root: tree.weight for tree in trees.plan(slow.graph(), ["h1", "h3"])}
    assert weights["spine1"] == pytest.approx(2 / 3)
    assert weights["spine2"] == pytest.approx(1 / 3)


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


@given(fabrics_and_ranks())
def test_routes_shorten_the_way_at_every_hop(case: tuple[Fabric, list[str]]) -> None:
    """From every switch every way leads to the host in as many hops as the shortest path has, by all equal ways."""
    fabric, _ = case
    graph = fabric.graph()
    planned = list(routes.plan(graph))
    assert len(planned) == len(fabric.switches) * len(fabric.hosts)
    transit = graph.subgraph(s.name for s in fabric.switches)
    for route in planned:
        last = next(iter(graph.adj[route.host]))
        if route.switch == last:
            assert [hop.node for hop in route.hops] == [route.host]
            continue
        steps = nx.shortest_path_length(transit, route.switch, last)
        nearer = {n for n in transit.adj[route.switch] if nx.shortest_path_length(transit, n, last) == steps - 1}
        assert {hop.node for hop in route.hops} == nearer
        for hop in route.hops:
            assert any(d["ports"][route.switch] == hop.port for d in graph.adj[route.switch][hop.node].values())


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8)), max_size=60))
def test_slot_ranges_are_aligned_and_disjoint(steps: list[tuple[bool, int]]) -> None:
    """Whatever is taken and given back: ranges are aligned powers of two that no two holders share."""
    pool = Slots(256)
    for give_back, number in steps:
        if give_back and pool.ranges:
            pool.release(sorted(pool.ranges)[number % len(pool.ranges)])
            continue
        length = 1 << number
        free = [base for base in range(0, 256, length)
                if not any(b < base + length and base < b + n for b, n in pool.ranges.items())]
        if free:
            assert pool.allocate(length) in free
        else:
            with pytest.raises(Exhausted, match=f"{256 - pool.used} of 256"):
                pool.allocate(length)
    cells = [cell for base, length in pool.ranges.items() for cell in range(base, base + length)]
    assert len(cells) == len(set(cells)) == pool.used
    assert not cells or max(cells) < 256


def test_slots_are_not_wasted() -> None:
    """All slots can be handed out, and given back."""
    pool = Slots(64)
    assert [pool.allocate(16) for _ in range(4)] == [0, 16, 32, 48]
    with pytest.raises(Exhausted, match="no 16 slots in a row, 0 of 64 are free"):
        pool.allocate(16)
    with pytest.raises(ValueError, match="power of two"):
        pool.allocate(3)


@given(st.lists(st.booleans(), max_size=60))
def test_numbers_come_back_as_late_as_possible(steps: list[bool]) -> None:
    """A number in use is never handed out, and one given back waits for the others."""
    circle = Cycle(1, 5, 3)
    held: list[int] = []
    for take in steps:
        if take and len(held) < 5:
            number = circle.allocate("things")
            assert number not in held
            held.append(number)
        elif take:
            with pytest.raises(Exhausted, match="all 5 things are in use"):
                circle.allocate("things")
        elif held:
            circle.used.discard(held.pop(0))
    fresh = Cycle(1, 3, 2)
    order = []
    for _ in range(6):
        order.append(fresh.allocate("things"))
        fresh.used.clear()
    assert order == [2, 3, 1, 2, 3, 1]


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 2**32))
def test_connections_are_drawn_at_random_and_never_early_again(steps: list[bool], seed: int) -> None:
    """A number in use is never handed out, one that was released not before half of all were, unless no other is
    left."""
    pool = RandomPool(1, 20, random.Random(seed))
    held: list[int] = []
    resting: list[int] = []
    for take in steps:
        if not take:
            if held:
                pool.release(held[0])
                resting = [*resting, held.pop(0)][-10:]
        elif len(held) == 20:
            with pytest.raises(Exhausted, match="all 20 things are in use"):
                pool.allocate("things")
        else:
            number = pool.allocate("things")
            assert 1 <= number <= 20
            assert number not in held
            if len(held) + len(resting) < 20:
                assert number not in resting
            else:
                assert number == resting[0], "the one released first"
            resting = [one for one in resting if one != number]
            held.append(number)


def test_numbers_of_a_job_cannot_be_told_from_those_of_another() -> None:
    """Two controllers draw other queue pairs and first PSNs, and no two neighbours follow one another; where no
    generator is injected, it is the operating system's."""
    fabric = leafspine(2, 2, 4)
    names = [switch.name for switch in fabric.switches]
    ranks = [host.name for host in fabric.hosts]
    seen: list[set[int]] = []
    assert isinstance(Allocator(names, Sizes(64, 8))._rng, random.SystemRandom)
    for seed in range(2):
        streams = admitted(fabric, ranks, Allocator(names, Sizes(64, 8), random.Random(seed)))
        numbers = [number for stream in streams for number in (*stream.connections, *stream.up.values())]
        assert not any(b - a == 1 for a, b in itertools.pairwise(numbers))
        assert len({stream.psn for stream in streams}) == len(streams)
        seen.append({*numbers, *(stream.psn for stream in streams)})
    assert not seen[0] & seen[1]


@given(fabrics_and_ranks(), st.integers(1, 4), st.integers(0, 2**32))
def test_jobs_share_no_slot_group_or_connection(case: tuple[Fabric, list[str]], jobs: int, seed: int) -> None:
    """Streams of all jobs have slot ranges, groups and connections of their own; a job has one epoch, none twice."""
    fabric, ranks = case
    allocator = allocator_of(fabric, seed=seed)
    streams = [stream for _ in range(jobs) for stream in admitted(fabric, ranks, allocator)]
    cells: list[tuple[str, int]] = []
    groups: list[tuple[str, int]] = []
    connections: list[int] = []
    for stream in streams:
        cells += [(s, cell) for s, base in stream.bases.items() for cell in range(base, base + stream.slots)]
        groups += list(stream.groups.items())
        connections += [*stream.connections, *stream.up.values(), *stream.down.values()]
        assert all(base % stream.slots == 0 for base in stream.bases.values())
        assert 0 <= stream.psn < 2**24
        assert all(0xC000 <= port <= 0xFFFF for port in stream.source_ports)
    assert len(cells) == len(set(cells))
    assert len(groups) == len(set(groups))
    assert all(1 <= group <= 4095 for _, group in groups)
    assert len(connections) == len(set(connections))
    assert all(0 < number < 2**21 for number in connections)
    assert len({stream.epoch for stream in streams}) == jobs * len({stream.tree.root for stream in streams})
    assert len({(stream.epoch, stream.tree.root) for stream in streams}) == len({stream.epoch for stream in streams})
    assert all(1 <= stream.epoch < 2**31 for stream in streams)
    for epoch in {stream.epoch for stream in streams}:
        allocator.release(epoch)
    assert set(allocator.used().values()) == {0}


def test_a_job_too_many_is_refused_with_figures_and_leaves_nothing() -> None:
    """When a switch is full the refusal names it and its figures; what the job got elsewhere goes back."""
    fabric = leafspine(2, 1, 4)
    allocator = allocator_of(fabric, Sizes(data=4096, agreement=128, quota=16384))
    epochs = [admitted(fabric, ["h1", "h3"], allocator)[0].epoch for _ in range(3)]
    before = allocator.used()
    with pytest.raises(Exhausted, match=r"spine1 has no 4096 slots in a row, 3712 of 16384 are free"):
        allocator.admit(trees.plan(fabric.graph(), ["h1", "h3"]), [range(2)])
    assert allocator.used() == before
    allocator.release(epochs[0])
    assert admitted(fabric, ["h1", "h3"], allocator)


def test_many_trees_get_smaller_ranges_within_the_quota() -> None:
    """A job's trees through one switch keep to the quota; where even the least is too much, it is refused."""
    fabric = leafspine(2, 8, 4)
    allocator = allocator_of(fabric, Sizes(data=2048, agreement=128, quota=8192))
    streams = admitted(fabric, ["h1", "h3"], allocator)
    assert {stream.slots for stream in streams[::2]} == {512}
    assert max(allocator.used().values()) <= 8192
    with pytest.raises(Exhausted, match=r"8 trees through one switch need 256 slots at the least, a job may have 100"):
        admitted(fabric, ["h1", "h3"], allocator_of(fabric, Sizes(data=64, agreement=16, quota=100)))


@pytest.mark.parametrize("seed", range(3))
def test_nobody_can_count_until_an_epochs_turn_comes(seed: int) -> None:
    """A tenant that has used an epoch and starts one job after the other does not have the next job get it; it comes
    again no sooner than after 65,536 others."""
    allocator = Allocator(["leaf1"], Sizes(64, 16), random.Random(seed))
    first = allocator.draw()
    drawn = [allocator.draw() for _ in range(2**16 - 2)]
    assert first not in drawn
    assert not any(b == a + 1 for a, b in itertools.pairwise(drawn)), "a circle would have dealt them in order"


@given(fabrics_and_ranks(), st.data())
def test_rc_ranks_have_a_ring_of_their_own_and_every_sender_has_its_flow(
    case: tuple[Fabric, list[str]], data: st.DataObject
) -> None:
    """Each rank is the predecessor of its successor, of its own kind if it is an RC rank; no two senders of all jobs
    on a switch share a flow, and what is released comes back."""
    fabric, ranks = case
    allocator = allocator_of(fabric)
    planned = trees.plan(fabric.graph(), ranks)
    taken: dict[str, list[int]] = {}
    epochs = []
    for bits in (32, 8):
        rc = data.draw(st.sets(st.sampled_from(range(len(ranks)))))
        streams = allocator.admit(planned, [range(len(ranks))], rc=rc, lane_bits=bits)
        epochs += [stream.epoch for stream in streams]
        for stream in streams:
            rings: dict[bool, set[int]] = {True: set(), False: set()}
            assert [stream.ranks[place] for place in stream.rc_ranks] == sorted(rc)
            for place in range(len(stream.ranks)):
                ring = rings[place in stream.rc_ranks]
                ring.add(stream.successor(place))
                if place in stream.rc_ranks:
                    assert stream.predecessor(stream.successor(place)) == place
                else:
                    assert stream.successor(place) == (place + 1) % len(ranks)
                    assert stream.predecessor(place) == (place - 1) % len(ranks)
            assert rings[True] == set(stream.rc_ranks)
            assert stream.operation == (LaneOperation.MAX32 if stream.kind == "agreement" else
                                        {32: LaneOperation.SUM32, 8: LaneOperation.SUM8}[bits])
            for fold in stream.tree.folds:
                first = stream.flows[fold.switch]
                flows = range(first, first + len(fold.children) + (fold.parent is not None))
                assert stream.flows_on(fold.switch) == flows
                taken.setdefault(fold.switch, []).extend(flows)
    for held in taken.values():
        assert len(held) == len(set(held))
        assert max(held) < FLOWS
    for epoch in epochs:
        allocator.release(epoch)
    assert all(not cells.used for cells in allocator._flows.values())


@given(fabrics_and_ranks(), st.integers(1, 4), st.integers(0, 2**32))
def test_no_two_jobs_have_the_same_source_port_of_a_host(
    case: tuple[Fabric, list[str]], jobs: int, seed: int
) -> None:
    """A rank binds its source port, which the kernel gives once: those of all jobs on a host differ, also where a new
    controller has read them off the switches; a job keeps its own with other trees, and they are free after its end."""
    fabric, ranks = case
    allocator = allocator_of(fabric, seed=seed)
    planned = trees.plan(fabric.graph(), ranks)
    hosts = [fabric.host(name) for name in ranks]
    taken: dict[str, set[int]] = {}

    def take(streams: list[Stream]) -> None:
        for stream in streams[::2]:  # both of a tree have the same
            for host, port in zip(ranks, stream.source_ports, strict=True):
                assert port not in taken.setdefault(host, set())
                taken[host].add(port)

    epochs = []
    for _ in range(jobs):
        streams = admitted(fabric, ranks, allocator)
        take(streams)
        again = allocator.admit(planned, [range(len(ranks))], like=streams)
        assert [one.source_ports for one in again] == [one.source_ports for one in streams]
        allocator.release(*(one.epoch for one in streams))
        epochs += [one.epoch for one in again]
    later = allocator_of(fabric, seed=seed + 1)
    names = {ip_number(host.address): host.name for host in fabric.hosts}
    for one in again:
        for switch, entities in fold_tables.fold_entries(fabric, hosts, one).items():
            assert later.reserve(one.epoch, {switch: fold_tables.holding(names, entities)})
    known = {key: set(epochs) for key, epochs in later._bound.items()}
    later.release(*(one.epoch for one in again))
    assert not later._bound
    assert all(later.reserve(one.epoch, holdings([one, other]))  # what an epoch has already is its own
               for _ in range(2) for one, other in zip(again[::2], again[1::2], strict=True))
    assert later._bound == known == {(host, port): {stream.epoch} for stream in again
                                     for host, port in zip(ranks, stream.source_ports, strict=True)}
    taken = {host: {port for name, port in known if name == host} for host in ranks}
    take(admitted(fabric, ranks, later))
    for epoch in epochs:
        allocator.release(epoch)
    assert not allocator._bound


def test_a_switch_without_flows_left_refuses_with_figures() -> None:
    """Flows run out as slots do, by name and with figures."""
    allocator = Allocator(["leaf1"], Sizes(16, 8), random.Random(1))
    fabric = leafspine(1, 0, 4)
    allocator._flows["leaf1"].take(0, FLOWS - 5)
    with pytest.raises(Exhausted, match=r"leaf1 has no 4 flows in a row, 1 of 16384 are free in all"):
        admitted(fabric, ["h1", "h2", "h3", "h4"], allocator)


@given(st.sets(st.integers(0, 60)))
def test_runs_are_the_numbers(numbers: set[int]) -> None:
    """Runs cover the numbers, and no two of them touch."""
    found = runs(numbers)
    assert [number for first, length in found for number in range(first, first + length)] == sorted(numbers)
    assert all(a + length < b for (a, length), (b, _) in itertools.pairwise(found))
