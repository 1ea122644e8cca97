# SPDX-License-Identifier: Apache-2.0
"""Shortest routes to all hosts for packets that are not folded; equally short next hops form a group (ECMP)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx


@dataclass(frozen=True, order=True)
class NextHop:
    """A port of a switch on a shortest path, and the neighbour behind it."""

    port: int
    node: str
    """The neighbour at the other end of the link."""


@dataclass(frozen=True)
class Route:
    """The next hops of one switch towards one host."""

    switch: str
    host: str
    hops: tuple[NextHop, ...]
    """Equally short, in order of ports; each of several parallel links is a next hop of its own."""


def plan(graph: nx.MultiGraph[str]) -> Iterator[Route]:
    """The route of every switch to every host that it reaches.

    ``graph`` is `Fabric.graph`, less whatever is down.  Hosts forward nothing.
    """
    switches = graph.subgraph(n for n, kind in graph.nodes(data="kind") if kind == "switch")
    hosts: dict[str, list[str]] = {}
    for host, kind in graph.nodes(data="kind"):
        if kind == "host" and graph.adj[host]:
            hosts.setdefault(next(iter(graph.adj[host])), []).append(host)
    for last, attached in hosts.items():
        distance = nx.single_source_shortest_path_length(switches, last)
        for switch, steps in distance.items():
            if switch == last:
                for host in attached:
                    yield Route(switch, host, _hops(graph, switch, [host]))
                continue
            nearer = [n for n in switches.adj[switch] if distance.get(n) == steps - 1]
            hops = _hops(graph, switch, nearer)
            for host in attached:
                yield Route(switch, host, hops)


def _hops(graph: nx.MultiGraph[str], here: str, neighbours: list[str]) -> tuple[NextHop, ...]:
    return tuple(sorted(NextHop(data["ports"][here], n) for n in neighbours for data in graph.adj[here][n].values()))
