# SPDX-License-Identifier: Apache-2.0
"""Routes: from every switch to every host, by all shortest ways."""

from __future__ import annotations

import networkx as nx
from hypothesis import given

from netfold.fabric.graph import Fabric
from netfold.fabric.routing import routes
from support.fabrics.plans import fabrics_and_ranks


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
