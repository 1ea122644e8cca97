# SPDX-License-Identifier: Apache-2.0
"""Shortest routes to all hosts for packets that are not folded; equally short next hops form a group (ECMP)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import networkx as nx


class NextHop(NamedTuple):
    """A port of a switch on a shortest path, and the neighbour behind it."""

    port: int
    node: str
    """The neighbour at the other end of the link."""


class Route(NamedTuple):
    """The next hops of one switch towards one host."""

    switch: str
    host: str
    hops: tuple[NextHop, ...]
    """Equally short, in order of ports; each of several parallel links is a next hop of its own."""


def plan(graph: nx.MultiGraph[str]) -> Iterator[Route]:
    """The route of every switch to every host that it reaches.

    ``graph`` is `Fabric.graph`, less whatever is down.  Hosts forward nothing.
    """
    kinds = dict(graph.nodes(data="kind"))
    ports: dict[str, list[NextHop]] = {node: [] for node, kind in kinds.items() if kind == "switch"}
    hosts: dict[str, list[tuple[str, tuple[NextHop, ...]]]] = {}
    for switch, near in ports.items():
        for neighbour, links in graph.adj[switch].items():
            there = [NextHop(data["ports"][switch], neighbour) for data in links.values()]
            if kinds[neighbour] == "switch":
                near += there
            elif next(iter(graph.adj[neighbour])) == switch:
                hosts.setdefault(switch, []).append((neighbour, tuple(sorted(there))))
        near.sort()
    for last, attached in hosts.items():
        for host, direct in attached:
            yield Route(last, host, direct)
        for switch, hops in _towards(last, ports):
            for host, _ in attached:
                yield Route(switch, host, hops)


def _towards(last: str, ports: Mapping[str, Sequence[NextHop]]) -> Iterator[tuple[str, tuple[NextHop, ...]]]:
    """Every other switch that reaches the switch ``last``, the nearest ones first, with its ports on shortest paths."""
    reached, ring = {last}, [last]
    while ring:
        nearer = set(ring)
        ring = list(dict.fromkeys(hop.node for switch in ring for hop in ports[switch] if hop.node not in reached))
        reached.update(ring)
        for switch in ring:
            yield switch, tuple([hop for hop in ports[switch] if hop.node in nearer])
