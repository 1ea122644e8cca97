# SPDX-License-Identifier: Apache-2.0
"""The switches' entries for routes and paths: they are few, and mean the same as one for each pair of leaves."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from netfold.controller.paths.steering import Steering
from netfold.controller.switch import tables
from netfold.controller.switch.entities import Entry, state
from netfold.controller.switch.path_tables import RING
from netfold.controller.switch.reconcile import diff
from netfold.fabric.generate import leafspine, parse, threetier
from netfold.fabric.generate.graph_file import of_graph
from netfold.fabric.graph import Fabric
from netfold.fabric.routing import routes
from netfold.fabric.routing.clos import is_clos
from netfold.fabric.routing.path_graph import PathError
from netfold.wire.paths import tcp_ports
from support.control import ways


def wired(*lines: str) -> Fabric:
    """A fabric of links between switches, "l1 s1" for each, where a host is at each switch whose name begins with l."""
    graph = nx.MultiGraph([line.split() for line in lines])
    for name in graph:
        graph.nodes[name].update(kind="switch", hosts=int(name.startswith("l")))
    return of_graph(graph, "wired")


FABRICS = [leafspine(3, 2, 6), leafspine(4, 4, 4), leafspine(5, 3, 10), threetier(2, 2, 2, 2, 4),
           threetier(3, 2, 2, 4, 6), threetier(2, 3, 3, 6, 6), parse("leafspine,3,2,6,uplinks=2:1"),
           wired("l1 s1", "l2 s1", "l2 s2", "l3 s1", "l3 s2")]


@st.composite
def partly_wired(draw: st.DrawFn) -> Fabric:
    """A Clos of two or three tiers, of which any switch may lack links, and some have two."""
    spines, cores = draw(st.integers(2, 4)), draw(st.integers(0, 2))
    lines = [f"l{leaf} s{spine}" for leaf in range(draw(st.integers(3, 5)))
             for spine in draw(st.lists(st.integers(1, spines), min_size=1, max_size=spines))]
    lines += [f"{spine} c{core}" for spine in dict.fromkeys(line.split()[1] for line in lines) if cores
              for core in draw(st.sets(st.integers(1, cores), min_size=1))]
    assume(nx.is_connected(nx.Graph(line.split() for line in lines)))
    fabric = wired(*lines)
    assume(is_clos(fabric.graph()))
    return fabric


QUICKLY = (Phase.explicit, Phase.reuse, Phase.generate)
"""Without the search for a smaller example, which takes minutes."""


def damaged(fabric: Fabric, data: st.DataObject, most: int = 5) -> nx.MultiGraph[str]:
    """The graph without some links between switches, and without some switches."""
    graph = fabric.graph()
    inner = [n for n, link in enumerate(fabric.links) if not any(end.node.startswith("h") for end in link.ends)]
    dead = data.draw(st.sets(st.sampled_from(inner), max_size=most))
    graph.remove_edges_from([edge for edge in graph.edges(keys=True) if edge[2] in dead])
    names = [switch.name for switch in fabric.switches]
    graph.remove_nodes_from(data.draw(st.sets(st.sampled_from(names), max_size=1)))
    return graph


@settings(max_examples=100)
@given(st.sampled_from(FABRICS) | partly_wired(), st.data())
def test_every_host_is_routed_by_shortest_ways(fabric: Fabric, data: st.DataObject) -> None:
    """Whatever is down: a switch has a route to a host where there is one, and over next hops alone that are nearer."""
    graph = damaged(fabric, data)
    found = ways.routes(Steering(fabric), graph)
    wanted = {(route.switch, route.host): route.hops for route in routes.plan(graph)}
    unreached = {way for way in found if way not in wanted}
    assert {way for way in wanted if way not in found} == set()
    for way, hops in wanted.items():
        assert set(found[way]) <= set(hops), way
    whole = {(route.switch, route.host) for route in routes.plan(fabric.graph())}
    assert unreached <= whole, "a default route leads up, where what nobody reaches is dropped"
    for switch, host in unreached:
        assert Steering(fabric).leaf_of[host] != switch


@settings(max_examples=100, phases=QUICKLY)
@given(st.sampled_from(FABRICS) | partly_wired(), st.data())
def test_packets_take_the_paths_that_they_name(fabric: Fabric, data: st.DataObject) -> None:
    """By what switches hold, hop by hop, for every name of every two leaves, by UDP and by TCP: over its path if that
    is up, else over live ones; no packet goes in a circle, and one that nobody reaches is dropped."""
    graph = damaged(fabric, data)
    steering = Steering(fabric)
    held = {switch: state(entities) for switch, entities in steering.base(graph).items()}
    left, whole = steering.left(graph), steering.whole
    wanted = {(route.switch, route.host) for route in routes.plan(graph)}
    for a, host in ((leaf, host) for leaf in left.leaves for host in fabric.hosts):
        b = steering.leaf_of[host.name]
        if a == b:
            continue
        arrives = {host.name if (a, host.name) in wanted else "dropped"}
        assert {way[-1] for way in ways.arrivals(fabric, held, a, host.address, 50_000)} == arrives
        live = steering.ports(left, a, b) if b in graph and left.reaches(a, b) else {}
        for source_port in steering.ports(whole, a, b):
            for name in (source_port, *tcp_ports(source_port)):
                found = ways.arrivals(fabric, held, a, host.address, name)
                assert {way[-1] for way in found} == arrives, (a, host.name, name)
                if source_port in live:
                    assert found == {(a, *(hop.head for hop in live[source_port]), host.name)}, (a, host.name, name)


@pytest.mark.parametrize("drained", [False, True])
def test_a_way_around_changes_where_a_link_elsewhere_is_lost(drained: bool) -> None:
    """A switch from which no climb leads to a leaf sends packets there by no leaf that would send them back, although
    its own links are all up."""
    fabric = wired("l1 s1", "l2 s1", "l2 s2", "l3 s1", "l3 s2")
    steering, graph = Steering(fabric), fabric.graph()
    assert {hop.node for hop in ways.plan(steering, graph)["s2"].hops("l1")} == {"l2", "l3"}
    lost = next(link for link in fabric.links if {end.node for end in link.ends} == {"l2", "s1"})
    if drained:
        steering.drains.mark(steering.drains.canonical(lost.a), True)
    else:
        graph.remove_edge("l2", "s1")
    held = {switch: state(entities) for switch, entities in steering.base(graph).items()}
    host = next(host for host, leaf in steering.leaf_of.items() if leaf == "l1")
    names = steering.ports(steering.whole, "l2", "l1")
    for name in (50_000, *names, *(tcp for port in names for tcp in tcp_ports(port))):
        assert ways.arrivals(fabric, held, "l2", fabric.host(host).address, name) == {
            ("l2", "s2", "l3", "s1", "l1", host)}


@settings(max_examples=60, phases=QUICKLY)
@given(st.sampled_from(FABRICS), st.data())
def test_a_name_whose_path_is_gone_is_pinned_for_connections_alone(fabric: Fabric, data: st.DataObject) -> None:
    """At a leaf without a link to where the path leads: RoCE's packets are hashed, TCP's have another uplink."""
    graph = damaged(fabric, data)
    steering = Steering(fabric)
    planned, left, whole = ways.plan(steering, graph), steering.left(graph), steering.whole
    for a, b in ((a, b) for a in left.leaves for b in left.leaves if a != b and left.reaches(a, b)):
        hops, live = planned[a].hops(b), steering.ports(left, a, b)
        for source_port, path in steering.ports(whole, a, b).items():
            if source_port not in live and len(hops) > 1 and not graph.has_edge(a, path[0].head, path[0].link):
                assert ways.pinned(planned[a], b, source_port) is None, (a, b, source_port)
                assert ways.pinned(planned[a], b, tcp_ports(source_port)[0]) in [hop.port for hop in hops]


@settings(max_examples=30, phases=QUICKLY)
@given(st.sampled_from(FABRICS[:6]), st.data())
def test_a_clos_is_pinned_as_if_each_pair_of_leaves_were_pinned(fabric: Fabric, data: st.DataObject) -> None:
    """With suspicions too: the two ways of planning agree about every name of every two leaves, but for which of the
    live paths a connection takes whose own is not to be used, and, in pods, where packets of a dead path are hashed."""
    graph = damaged(fabric, data, most=3)
    by_sets, by_pairs = Steering(fabric), Steering(fabric)
    by_pairs.climbs.is_regular = False  # type: ignore[union-attr]
    pairs = [(a, b) for a in by_sets.whole.leaves for b in by_sets.whole.leaves if a != b]
    for a, b in data.draw(st.lists(st.sampled_from(pairs), max_size=3)):
        try:
            suspect = data.draw(st.sampled_from(by_sets.left(graph).paths(a, b)))
        except PathError:
            continue
        by_sets.suspect(suspect)
        by_pairs.suspect(suspect)
    one, other = ways.plan(by_sets, graph), ways.plan(by_pairs, graph)
    leaves = by_sets.modes
    assert {(switch, leaf): here.hops(leaf) for switch, here in one.items() for leaf in leaves if leaf != switch} == {
        (switch, leaf): here.hops(leaf) for switch, here in other.items() for leaf in leaves if leaf != switch}
    left, plain = by_sets.left(graph), ways.plan(Steering(fabric), graph)
    usable = by_sets.usable(*by_sets.usable_parts(graph))
    for a, b in pairs:
        if not left.reaches(a, b) or len(one[a].hops(b)) < 2:
            continue
        free = not any((suspect[-1].head, suspect[0].tail) == (a, b)
                       for suspect in by_sets.inputs(by_sets.everything).suspects)
        for source_port, path in by_sets.ports(by_sets.whole, a, b).items():
            if path in left.paths(a, b) or not by_sets.names.planes:
                assert ways.pinned(one[a], b, source_port) == ways.pinned(other[a], b, source_port), (a, b, source_port)
            over = [ways.pinned(planned[a], b, tcp_ports(source_port)[0]) for planned in (one, other)]
            assert {*over} <= {hop.port for hop in plain[a].hops(b)}, (a, b, source_port)
            if free and usable.reaches(a, b) and usable.paths(a, b).count(path):
                own = graph.edges[path[0].tail, path[0].head, path[0].link]["ports"][a]
                assert over == [own, own], (a, b, source_port)


def count(fabric: Fabric, table: str, switch: str) -> int:
    """Entries of one table at a switch."""
    return sum(isinstance(entity, Entry) and entity.table == table
               for entity in Steering(fabric).base(fabric.graph())[switch])


def test_what_a_leaf_holds_does_not_grow_with_the_fabric() -> None:
    """A pin for each uplink, a route for each of its own hosts and two more, however many leaves there are; a spine has
    a route for each leaf."""
    for leaves in (2, 20):
        fabric = leafspine(leaves, 4, 3 * leaves)
        assert [count(fabric, table, "leaf1") for table in (tables.PIN, tables.ROUTE, tables.BENT, tables.POLICY)] == [
            4, 3 + 2, 0, 0]
        assert count(fabric, tables.ROUTE, "spine1") == leaves


@pytest.mark.parametrize(("leaves", "spines", "hosts"), [(2, 2, 2), (8, 3, 4), (30, 16, 2)])
def test_switches_hold_what_the_handbook_says(leaves: int, spines: int, hosts: int) -> None:
    """The sums of "What a switch holds" in docs/control-plane.md."""
    fabric = leafspine(leaves, spines, leaves * hosts)
    made = tables.merge([Steering(fabric).base(fabric.graph()), tables.fixed_entries(fabric)])
    assert {len(made[f"leaf{n}"]) for n in range(1, leaves + 1)} == {3 * hosts + 7 * spines + 5}
    assert {len(made[f"spine{n}"]) for n in range(1, spines + 1)} == {4 * leaves + 4}


@pytest.mark.parametrize(("pods", "leaves", "aggs", "cores", "hosts"), [
    (4, 2, 2, 2, 2), (3, 4, 2, 3, 3), (8, 4, 4, 4, 4)])
def test_switches_of_pods_hold_what_the_handbook_says(
    pods: int, leaves: int, aggs: int, cores: int, hosts: int,
) -> None:
    """The sums of "What a switch holds" in docs/control-plane.md for three tiers."""
    fabric = threetier(pods, leaves, aggs, aggs * cores, pods * leaves * hosts)
    made = tables.merge([Steering(fabric).base(fabric.graph()), tables.fixed_entries(fabric)])
    sums = {"leaf": 3 * hosts + 7 * aggs + 5, "agg": 5 * leaves + 7 * cores + 5, "spine": 4 * pods + 4}
    assert {(switch.role, len(made[switch.name])) for switch in fabric.switches} == set(sums.items())


def test_a_failure_between_tiers_touches_its_plane_alone() -> None:
    """A lost link of a core: at other aggregation switches of the plane a route and an exception for the pod, and at
    the core the ways around; no leaf has anything to change."""
    fabric = threetier(8, 4, 4, 16, 32)
    steering, graph = Steering(fabric), fabric.graph()
    before = steering.base(graph)
    graph.remove_edge("agg1", "spine1")
    after = steering.base(graph)
    updates = {switch: diff(state(before[switch]), state(after[switch])) for switch in after}
    plane = [f"agg{1 + 4 * pod}" for pod in range(8)]
    assert {switch for switch, changes in updates.items() if changes} == {*plane, "spine1"}
    assert {len(updates[switch]) for switch in plane[1:]} == {2}
    assert sum(map(len, updates.values())) <= 2 * 7 + 15


def test_a_leafs_lost_link_in_pods_changes_leaves_and_no_other_switch_further_up() -> None:
    """At each other leaf a route to that leaf and an exception, and ways around at the link's other end: cores, and
    aggregation switches elsewhere, send on as before to where a way around is known."""
    fabric = threetier(8, 4, 4, 16, 32)
    steering, graph = Steering(fabric), fabric.graph()
    before = steering.base(graph)
    graph.remove_edge("leaf1", "agg1")
    after = steering.base(graph)
    updates = {switch: diff(state(before[switch]), state(after[switch])) for switch in after}
    leaves = [f"leaf{n}" for n in range(1, 33)]
    assert {switch for switch, changes in updates.items() if changes} == {*leaves, "agg1"}
    assert {len(updates[leaf]) for leaf in leaves} == {2}
    assert len(updates["agg1"]) <= 1 + 3 + 4, "a route by the other leaves, these as a group, and its cores' names"
    held = {switch: state(entities) for switch, entities in after.items()}
    taken = ways.arrivals(fabric, held, "leaf5", fabric.hosts[0].address, 50_000)
    assert not any("agg1" in way for way in taken), "leaves avoid the lost link"


@pytest.mark.parametrize("lost", ["link", "spine"])
def test_a_failure_changes_two_entries_a_leaf(lost: str) -> None:
    """A lost link: at other leaves a route to its leaf and an exception; a lost spine: the default route and a pin."""
    fabric = leafspine(20, 4, 40)
    steering = Steering(fabric)
    graph = fabric.graph()
    before = steering.base(graph)
    if lost == "link":
        graph.remove_edge("leaf3", "spine2")
    else:
        graph.remove_node("spine2")
    after = steering.base(graph)
    updates = {switch: diff(state(before[switch]), state(after[switch])) for switch in after}
    others = [updates[f"leaf{n}"] for n in range(1, 21) if n != 3]
    assert {len(changes) for changes in others} == {2}
    touched = {u.entity.table for changes in others for u in changes if isinstance(u.entity, Entry)}
    assert touched == ({tables.ROUTE, tables.BENT} if lost == "link" else {tables.ROUTE, tables.PIN})
    assert sum(map(len, updates.values())) - 2 * len(others) <= 15, "at the ends of the link itself"


def test_a_group_is_a_part_of_the_ring_where_it_can_be() -> None:
    """Two uplinks that are not side by side are lost: a group of its own holds the rest, in the order of ports."""
    fabric = leafspine(3, 5, 3)
    steering = Steering(fabric)
    for lost, group in ((("spine5", "spine1"), RING), (("spine1", "spine3"), RING + 1)):
        graph = fabric.graph()
        for spine in lost:
            graph.remove_node(spine)
        held = state(steering.base(graph)["leaf1"])
        up = ways.route(held, fabric.hosts[-1].address)
        assert up is not None
        assert dict(up.params)["group"] == group
        kept = {2, 3, 4, 5, 6} - {1 + int(spine[-1]) for spine in lost}
        assert ways.next_ports(held, fabric.hosts[-1].address) == kept


def test_addresses_of_nobody_end_at_the_leaf_that_they_would_belong_to() -> None:
    """A packet that came down does not go up again by the default route: not for a host that is down, nor for an
    address among those of a leaf's hosts that none has."""
    fabric = leafspine(3, 2, 9)
    graph = fabric.graph()
    graph.remove_edge("leaf2", "h5")
    planned = Steering(fabric).base(graph)
    down = fabric.host("h5").address
    unknown = down.rpartition(".")[0] + ".0"
    held = {switch: state(made) for switch, made in planned.items()}
    for address in (down, unknown):
        assert ways.next_ports(held["spine1"], address) == {2}
        assert ways.next_ports(held["leaf2"], address) == set()
    assert ways.next_ports(held["spine1"], "192.0.2.1") == set()
    assert ways.next_ports(held["leaf1"], "192.0.2.1") == {4, 5}, "up, where it is dropped"
