# SPDX-License-Identifier: Apache-2.0
"""Which machine runs which switch and host, so that as many cables as possible stay inside machines.

    where = place(fabric.graph(), {"m1": 1, "m2": 1})          # {"leaf1": "m1", "h1": "m1", "spine1": "m2", ...}
    cables_between(fabric.graph(), where)                      # the numbers of links whose ends are on two machines

A leaf and its hosts are placed together, since a host's link carries the most.  Switches are spread over machines by
their shares.  Among the placements that are spread so, the search begins with contiguous ranges in breadth-first order
(which keeps pods together) and moves and swaps single switches for as long as cables come inside; it is the local
search of Kernighan and Lin ("An efficient heuristic procedure for partitioning graphs", 1970) for any number of parts.
Equal arguments give equal placements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx as nx


class PlacementError(ValueError):
    """A fabric cannot be spread over these machines; the message says why.

    Remedy: name fewer machines, or give them shares that the fabric's switches can be divided into.
    """


def place(graph: nx.MultiGraph[str], machines: Mapping[str, int]) -> dict[str, str]:
    """The machine of every switch and host.  Raises PlacementError.

    graph     `Fabric.graph`
    machines  share of the load that each takes, 1 or more, by its name, in order: of machines that are equally good
              the first gets more
    """
    if not machines or min(machines.values()) < 1:
        raise PlacementError(f"expected at least one machine, with shares of 1 or more, got {dict(machines)}")
    switches = [name for name, data in graph.nodes(data=True) if data["kind"] == "switch"]
    if len(switches) < len(machines):
        raise PlacementError(f"{graph.name} has {len(switches)} switches for {len(machines)} machines: expected at "
                             "least one switch for each; give fewer machines, or a larger fabric")
    weights = {name: 1 + sum(graph.nodes[near]["kind"] == "host" for near in graph[name]) for name in switches}
    cables: Counter[frozenset[str]] = Counter(
        frozenset((a, b)) for a, b in graph.edges() if a in weights and b in weights
    )
    near: dict[str, Counter[str]] = {name: Counter() for name in switches}
    for pair, number in cables.items():
        a, b = sorted(pair)
        near[a][b] += number
        near[b][a] += number
    where = _begin(_breadth_first(graph, switches), weights, machines)
    _improve(where, near, weights, machines)
    for host, data in graph.nodes(data=True):
        if data["kind"] == "host":
            leaf = next((other for other in graph[host] if other in weights), None)
            where[host] = next(iter(machines)) if leaf is None else where[leaf]
    return where


def cables_between(graph: nx.MultiGraph[str], where: Mapping[str, str]) -> list[int]:
    """The numbers of the links whose ends are on different machines."""
    return sorted(number for a, b, number in graph.edges(keys=True) if where[a] != where[b])


def _breadth_first(graph: nx.MultiGraph[str], switches: list[str]) -> list[str]:
    """The switches in breadth-first order from the first, without crossing hosts; other components follow."""
    import networkx as nx

    between = graph.subgraph(switches)
    order: list[str] = []
    for first in switches:
        if first not in order:
            order += [first, *(there for _, there in nx.bfs_edges(between, first))]
    return order


def _begin(order: list[str], weights: Mapping[str, int], machines: Mapping[str, int]) -> dict[str, str]:
    """Contiguous ranges of an order, each as heavy as its machine's share of what is left, none of them empty."""
    where: dict[str, str] = {}
    names, left = list(machines), list(order)
    for number, machine in enumerate(names):
        later = names[number + 1 :]
        share = machines[machine] / (machines[machine] + sum(machines[name] for name in later))
        goal = share * sum(weights[name] for name in left)
        load = 0.0
        while left and len(left) > len(later) and (not later or load == 0 or load + weights[left[0]] / 2 <= goal):
            load += weights[left[0]]
            where[left.pop(0)] = machine
    return where


def _improve(where: dict[str, str], near: Mapping[str, Counter[str]], weights: Mapping[str, int],
             machines: Mapping[str, int]) -> None:
    """Move and swap switches between machines while that brings cables inside, or keeps them and evens the loads."""
    loads = Counter(dict.fromkeys(machines, 0))
    for switch, machine in where.items():
        loads[machine] += weights[switch]
    total, shares = sum(loads.values()), sum(machines.values())
    # no machine may carry more than its share and the heaviest switch, else all switches on one would be best
    most = {name: max(loads[name], total * machines[name] / shares + max(weights.values()) / 2) for name in machines}

    def inside(switch: str, machine: str) -> int:
        """How many cables of a switch would be inside if it were on a machine."""
        return sum(number for other, number in near[switch].items() if where[other] == machine)

    def uneven() -> float:
        return sum((loads[name] / machines[name]) ** 2 for name in machines)

    def put(switch: str, machine: str) -> None:
        loads[where[switch]] -= weights[switch]
        loads[machine] += weights[switch]
        where[switch] = machine

    def worth(changes: list[tuple[str, str]]) -> bool:
        """Make changes (switch, its new machine); unmake them unless they improve the placement and fit."""
        before, gain = uneven(), 0
        old = [(switch, where[switch]) for switch, _ in changes]
        for switch, machine in changes:
            gain += inside(switch, machine) - inside(switch, where[switch])
            put(switch, machine)
        fits = all(loads[name] <= most[name] for name in machines) and all(loads[name] > 0 for name in machines)
        if fits and (gain > 0 or (gain == 0 and uneven() < before - 1e-9)):
            return True
        for switch, machine in reversed(old):
            put(switch, machine)
        return False

    while any(
        [worth([(switch, machine)]) for switch in where for machine in machines if machine != where[switch]]
        + [worth([(a, where[b]), (b, where[a])]) for a, b in combinations(where, 2) if where[a] != where[b]]
    ):
        pass
