# SPDX-License-Identifier: Apache-2.0
"""Groups of some of a job's ranks: whether folding saves them anything, and what they may have of the switches."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.fabric.folding import groups, trees
from netfold.fabric.folding.slots import Allocator, Sizes, sizes_of
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Fabric
from netfold.fabric.placement.machines import fold_groups, machines


def names(fabric: Fabric, *places: int) -> list[str]:
    """Host names by place."""
    return [fabric.hosts[place].name for place in places]


def test_folding_saves_something_for_three_machines_or_two_switches() -> None:
    """One machine and two below one switch gain nothing, and the reason names them; all others do."""
    fabric = leafspine(2, 2, 8)
    graph = fabric.graph()
    assert "every rank is on h1" in groups.no_benefit(graph, names(fabric, 0, 0))
    assert "h1 and h2 are below leaf1" in groups.no_benefit(graph, names(fabric, 0, 1, 0, 1))
    for places in ((0, 4), (0, 1, 2), (0, 0, 7), (0, 1, 4, 5)):
        assert not groups.no_benefit(graph, names(fabric, *places))


@given(leaves=st.integers(1, 6), hosts=st.integers(1, 8), data=st.data())
def test_disjoint_groups_of_a_job_find_room_on_every_switch(leaves: int, hosts: int, data: st.DataObject) -> None:
    """However a job is cut into groups, their shares of each switch come to no more than what one job may have."""
    fabric = leafspine(leaves, 2, leaves * hosts)
    graph = fabric.graph()
    order = data.draw(st.permutations(range(leaves * hosts)))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(order) - 1)))))
    cut = [order[first:last] for first, last in zip([0, *cuts], [*cuts, len(order)], strict=True) if first < last]
    job = names(fabric, *range(leaves * hosts))
    held: dict[str, float] = {}
    for places in cut:
        group = names(fabric, *places)
        if groups.no_benefit(graph, group):
            continue
        share = groups.share(graph, group, job)
        for switch in {fold.switch for tree in trees.plan(graph, group) for fold in tree.folds}:
            held[switch] = held.get(switch, 0.0) + share
    assert all(total <= 1.0 + 1e-9 for total in held.values())


@pytest.mark.parametrize("engine", ["softswitch", "bmv2"])
def test_the_groups_of_a_mesh_all_fold_beside_their_job(engine: str) -> None:
    """64 machines at 8 leaves, a job of all of them, and the groups of both dimensions of an (8, 8) mesh: all get
    slots, and the groups' trees are spread evenly over the spines."""
    fabric = leafspine(8, 4, 64)
    sizes = sizes_of(engine, 4096)  # type: ignore[arg-type]
    allocator = Allocator([switch.name for switch in fabric.switches], sizes, random.Random(3))
    graph, job = fabric.graph(), [host.name for host in fabric.hosts]
    allocator.admit(trees.plan(graph, job), [range(64)])
    roots: dict[str, int] = {}
    for group in [*(job[place::8] for place in range(8)), *(job[8 * leaf:8 * leaf + 8] for leaf in range(8))]:
        planned, room = groups.fitted(trees.plan(graph, group), sizes, 1, groups.share(graph, group, job),
                                       allocator.free(trees.plan(graph, group)), roots)
        streams = allocator.admit(planned, [range(8)], room=room)
        assert sum(tree.weight for tree in planned) == pytest.approx(1)
        for switch in {name for stream in streams for name in stream.bases}:
            assert sum(stream.slots for stream in streams if switch in stream.bases) <= room
        for tree in planned:
            roots[tree.root] = roots.get(tree.root, 0) + 1
    spines = [count for root, count in roots.items() if root.startswith("spine")]
    assert max(spines) - min(spines) <= 1


def test_a_group_has_one_tree_at_least_and_the_smallest_windows() -> None:
    """However small its share is; two fold groups of one machine each have it."""
    fabric = leafspine(2, 4, 4)
    hosts = names(fabric, 0, 0, 2, 2)
    places = len(fold_groups(machines(hosts), hosts))
    planned, room = groups.fitted(trees.plan(fabric.graph(), [hosts[0], hosts[2]]), Sizes(1024, 128), places,
                                   0.001, 16384, {})
    assert (len(planned), planned[0].weight, room) == (1, 1.0, 512)


@pytest.mark.parametrize(("path_mtu", "count"), [(4096, 64), (1024, 28)])
def test_groups_that_come_one_after_the_other_leave_room_for_more(path_mtu: int, count: int) -> None:
    """A job of four machines and so many groups of the same two of them all fold at the same switches, also where each
    takes its two trees; those that come later get less."""
    fabric = leafspine(2, 2, 4)
    sizes = sizes_of("softswitch", path_mtu)
    allocator = Allocator([switch.name for switch in fabric.switches], sizes, random.Random(3))
    graph, job = fabric.graph(), names(fabric, 0, 1, 2, 3)
    allocator.admit(trees.plan(graph, job), [range(4)])
    group, held = names(fabric, 0, 2), []
    for _ in range(count):
        planned = trees.plan(graph, group)
        planned, room = groups.fitted(planned, sizes, 1, groups.share(graph, group, job), allocator.free(planned), {})
        streams = allocator.admit(planned, [range(2)], room=room)
        held.append(sum(stream.slots for stream in streams if "leaf1" in stream.bases))
    assert held == sorted(held, reverse=True)
    assert held[0] > held[-1]
