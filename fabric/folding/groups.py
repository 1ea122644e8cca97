# SPDX-License-Identifier: Apache-2.0
"""Groups of some of a job's ranks that fold by themselves: whether that saves anything, and their share of switches.

    machines of a group      between the hosts, each link carries      where switches fold
    2 below one switch       the tensor once each way                  once each way: nothing is saved
    n below one switch       2 (n - 1) / n times                       once
    some below others        the same, and between the switches too    once, spread over the trees

So a group folds unless all of it is one machine, or two below one switch.  (A tie between switches folds: a ring sends
over one path what trees spread over several, and hosts need not add.)  Which call then folds, hosts decide by what they
have measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from netfold.fabric.folding.slots import Sizes
from netfold.fabric.folding.trees import Tree

if TYPE_CHECKING:
    import networkx as nx

OF_FREE: Final = 16
"""A group takes one part in so many of the free slots at most, so that others may come: of softswitch's, 64 groups that
are made one after the other find room beside their job."""


def no_benefit(graph: nx.MultiGraph[str], hosts: Sequence[str]) -> str:
    """Why nothing is saved where switches fold for these ranks; empty: something is.

    graph  `Fabric.graph`, less whatever is down
    hosts  host names by rank
    """
    machines = list(dict.fromkeys(hosts))
    if len(machines) == 1:
        return f"every rank is on {machines[0]}: nothing to fold in the network"
    leaves = _by_leaf(graph, machines)
    if len(machines) == 2 and len(leaves) == 1:
        return (f"{machines[0]} and {machines[1]} are below {next(iter(leaves))}: folding there sends as much over "
                "their links as they send each other")
    return ""


def share(graph: nx.MultiGraph[str], group: Sequence[str], job: Sequence[str]) -> float:
    """The part of what its job might have of a switch that a group may take at most: as many disjoint groups as the job
    can be cut into then find room on every switch.

    graph  `Fabric.graph`, less whatever is down
    group  host names of the group's ranks
    job    host names of all ranks of its job
    """
    mine, whole = _by_leaf(graph, set(group)), _by_leaf(graph, set(job))
    parts = [len(machines) / len(whole[leaf]) for leaf, machines in mine.items()]
    if len(mine) > 1:  # at switches above the leaves all groups may meet
        parts.append(len(set(group)) / len(set(job)))
    return min(parts, default=1.0)


def fitted(
    trees: Sequence[Tree], sizes: Sizes, places: int, share: float, free: int, folding: Mapping[str, int]
) -> tuple[list[Tree], int]:
    """Returns as many of a group's trees as its slots suffice for, with weights that add up to 1, and the group's limit
    of slots on any one switch, which suffices for the smallest windows over one tree.

    Trees that carry more come first; of equal ones, those whose roots fold less already.

    sizes   those of a job
    places  groups of ranks that fold together, each of which has all trees (`machines.fold_groups`)
    share   its part of what a job may have
    free    slots that are free on that switch of the trees which has the fewest
    folding  trees by root that others have
    """
    least = 2 * sizes.agreement * places
    room = max(least, min(int(sizes.quota * share), free // OF_FREE))
    most = room // least
    order = sorted(trees, key=lambda tree: (-round(tree.weight, 6), folding.get(tree.root, 0)))
    kept = sorted(order[:most], key=trees.index)
    total = sum(tree.weight for tree in kept)
    return [replace(tree, weight=tree.weight / total) for tree in kept], room


def _by_leaf(graph: nx.MultiGraph[str], hosts: Iterable[str]) -> dict[str, list[str]]:
    """Hosts whose links are up, by the switch that they are at."""
    found: dict[str, list[str]] = {}
    for host in hosts:
        if host in graph and graph.degree(host):
            found.setdefault(next(iter(graph.adj[host])), []).append(host)
    return found
