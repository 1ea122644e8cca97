# SPDX-License-Identifier: Apache-2.0
"""Routes, pins and hashes of switches in a fabric of any shape: every packet arrives, by the shortest way."""

from __future__ import annotations

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.controller.paths.steering import Steering
from netfold.fabric.generate import parse
from netfold.fabric.generate.graph_file import of_graph
from netfold.fabric.graph import Fabric
from netfold.wire.paths import tcp_ports
from support.control import ways
from support.fabrics.graphs import any_fabrics


@settings(max_examples=40)
@given(any_fabrics(), st.data())
def test_no_packet_goes_round_in_circles(fabric: Fabric, data: st.DataObject) -> None:
    """Whatever its source port, whatever is down or suspect: each switch sends it nearer to its host's leaf, by the
    route, by the pin of its port, or by any choice of the hash."""
    graph = fabric.graph()
    switches = {switch.name for switch in fabric.switches}
    inner = [edge for edge in graph.edges(keys=True) if {edge[0], edge[1]} <= switches]
    for edge in data.draw(st.lists(st.sampled_from(inner), max_size=2, unique=True)):
        kept = fabric.graph().edges[edge]
        graph.remove_edge(*edge)
        if not nx.is_connected(graph):
            graph.add_edge(*edge, **kept)
    steering = Steering(fabric)
    pairs = [(a, b) for a in steering.whole.leaves for b in steering.whole.leaves if a != b]
    for a, b in data.draw(st.lists(st.sampled_from(pairs), max_size=3)):
        ports = steering.ports(steering.left(graph), a, b)
        steering.suspect(ports[data.draw(st.sampled_from(sorted(ports)))])
    check_that_hops_lead_nearer(steering, graph)


def check_that_hops_lead_nearer(steering: Steering, graph: nx.MultiGraph[str]) -> None:
    """Every switch sends every packet, by whatever port, one hop nearer to its host's leaf."""
    fabric = steering.fabric
    switches = {switch.name for switch in fabric.switches}
    pairs = [(a, b) for a in steering.whole.leaves for b in steering.whole.leaves if a != b]
    planned, routes = ways.plan(steering, graph), ways.routes(steering, graph)
    far = {(end.node, end.port): other.node for link in fabric.links for end, other in (link.ends, link.ends[::-1])}
    named = sorted({port for a, b in pairs for one in steering.ports(steering.whole, a, b) for port in
                    (one, tcp_ports(one)[0])})
    for host in fabric.hosts:
        leaf = steering.leaf_of[host.name]
        distance = nx.shortest_path_length(graph.subgraph(switches), leaf)
        for port in named:
            for start in switches - {leaf}:
                hops = routes[start, host.name]
                pin = ways.pinned(planned[start], leaf, port)
                nexts = {far[start, pin]} if len(hops) > 1 and pin is not None else {hop.node for hop in hops}
                assert all(distance[node] == distance[start] - 1 for node in nexts), (start, leaf, port)


def test_no_detour_around_suspect_links_leads_back() -> None:
    """On a ring of five, with both links between two neighbours suspect: the switches' routes still lead over them, and
    a connection that was sent the long way round would come back from the first switch there."""
    graph = nx.MultiGraph([("a", "b"), ("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "a"), ("e", "a")])
    steering = Steering(of_graph(graph, "ring"))
    for pair in (("a", "b"), ("b", "e")):
        for path in steering.whole.paths(*pair):
            steering.suspect(path)
    assert steering.shared_links() == {path[0].link for path in steering.whole.paths("a", "b")}
    check_that_hops_lead_nearer(steering, steering.fabric.graph())


def test_planned_paths_of_a_torus_are_those_that_packets_take() -> None:
    """Hop by hop, at every switch that has a choice, and named alike by all who use a port."""
    fabric = parse("torus,3,4", rate="1gbit")
    steering = Steering(fabric)
    graph = fabric.graph()
    planned = ways.plan(steering, graph)
    far = {(end.node, end.port): other.node for link in fabric.links for end, other in (link.ends, link.ends[::-1])}
    several = 0
    for a in steering.whole.leaves:
        for b in set(steering.whole.leaves) - {a}:
            ports = steering.ports(steering.whole, a, b)
            several += len(ports) > 1
            for port, path in ports.items():
                for hop in path:
                    hops = planned[hop.tail].hops(b)
                    taken = hops[0].port if len(hops) == 1 else ways.pinned(planned[hop.tail], b, port)
                    assert taken is not None
                    assert far[hop.tail, taken] == hop.head
    assert several > 60, "of 132 pairs of places"
