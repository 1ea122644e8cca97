# SPDX-License-Identifier: Apache-2.0
"""Placing a fabric on machines: hosts with their leaves, loads even, as few cables between machines as there can be."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from netfold.fabric.generate import parse
from netfold.fabric.placement.placement import PlacementError, cables_between, place


def even(count: int) -> dict[str, int]:
    return {f"m{n}": 1 for n in range(count)}


@pytest.mark.parametrize(("topo", "count"), [("leafspine,2,2,8", 2), ("leafspine,4,2,8", 3), ("leafspine,4,4,8", 2),
                                             ("threetier,2,2,2,2,8", 2), ("threetier,2,1,1,2,4", 3)])
def test_no_even_placement_has_fewer_cables_between_machines(topo: str, count: int) -> None:
    """Every assignment of switches is tried whose loads are as even as those that were chosen."""
    fabric = parse(topo)
    graph, switches = fabric.graph(), [switch.name for switch in fabric.switches]
    where = place(graph, even(count))
    leaves = fabric.leaf_of()
    limits = sorted(Counter(where.values()).values())
    fewest = len(fabric.links)
    for machines in product(even(count), repeat=len(switches)):
        tried = dict(zip(switches, machines, strict=True))
        tried.update({host: tried[leaf] for host, leaf in leaves.items()})
        loads = sorted(Counter(tried.values()).values())
        if len(loads) == count and loads == limits:
            fewest = min(fewest, len(cables_between(graph, tried)))
    assert len(cables_between(graph, where)) == fewest


def test_hosts_are_with_their_leaves_and_pods_together() -> None:
    """Two pods on two machines: a pod's switches and hosts are on one of them."""
    fabric = parse("threetier,2,2,2,2,8")
    where = place(fabric.graph(), even(2))
    assert all(where[host] == where[leaf] for host, leaf in fabric.leaf_of().items())
    assert where["leaf1"] == where["leaf2"] == where["agg1"] == where["agg2"]
    assert where["leaf3"] == where["leaf4"] == where["agg3"] == where["agg4"] != where["leaf1"]
    assert place(fabric.graph(), even(2)) == where


def test_a_machine_of_a_larger_share_gets_more() -> None:
    """A share of 3 to 1: three of four leaves with their hosts."""
    fabric = parse("leafspine,4,2,16")
    loads = Counter(place(fabric.graph(), {"large": 3, "small": 1}).values())
    assert 2 * loads["small"] < loads["large"]


@pytest.mark.parametrize(("machines", "says"), [(even(5), "4 switches for 5 machines"), ({}, "at least one machine"),
                                                ({"m": 0}, "shares of 1 or more")])
def test_what_cannot_be_placed_is_refused(machines: dict[str, int], says: str) -> None:
    """More machines than switches, none, or a share of nothing."""
    with pytest.raises(PlacementError, match=says):
        place(parse("leafspine,2,2,4").graph(), machines)
