# SPDX-License-Identifier: Apache-2.0
"""The plan of a job on an empty fabric, as text: trees, numbers of entries and slots, and optionally every entry."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from netfold.controller.paths.steering import Steering
from netfold.controller.switch import fold_tables, tables
from netfold.controller.switch.entities import state
from netfold.controller.switch.reconcile import diff, show
from netfold.fabric import pools, room, slots, trees
from netfold.fabric.graph import Fabric, FabricError
from netfold.fabric.machines import fold_groups, machines

if TYPE_CHECKING:
    pass


MOST_ENTRIES: Final = 1 << 19
"""Children of trees in all switches together that a plan is made of: half a minute, and 1 GB."""
MOST_HOPS: Final = 2_000_000
"""Hops of all paths between all pairs of leaves, which switches pin: a quarter of a minute, and a mesh of 12 x 12."""


def plan(
    fabric: Fabric, hosts: Sequence[str], *, per_host: int = 1, entries: bool = False, seed: int = 0
) -> str:
    """The plan of one job on these hosts.

    hosts     host names, in order of ranks
    per_host  ranks on each host
    entries   list every table entry
    seed      for the numbers that the allocator draws
    Raises NoTree, Exhausted, and FabricError where the fabric is too large.
    """
    gc.disable()  # millions of entries and no cycle: collections took two thirds of the time
    try:
        return _plan(fabric, hosts, per_host, entries, seed)
    finally:
        gc.enable()


def _check_size(fabric: Fabric, steering: Steering) -> None:
    """Raise FabricError where a plan would take longer than anybody waits."""
    room.check(fabric)
    if steering.plans_quickly:
        return
    paths = steering.whole
    hops = len(paths.leaves) * sum(len(way.path) for leaf in paths.leaves[1:]
                                   for way in paths.ways(paths.leaves[0], leaf))
    if hops > MOST_HOPS:
        raise FabricError(f"{fabric.name}: the paths between {len(paths.leaves):,} leaves have about {hops:,} hops, "
                          f"expected at most {MOST_HOPS:,}: plan a part of it")


def _plan(fabric: Fabric, hosts: Sequence[str], per_host: int, entries: bool, seed: int) -> str:
    graph, steering = fabric.graph(), Steering(fabric)
    _check_size(fabric, steering)
    ranks = [name for name in hosts for _ in range(per_host)]
    groups = fold_groups(machines(ranks), ranks)
    planned = trees.plan(graph, hosts)
    if (children := 2 * len(planned) * len(ranks)) > MOST_ENTRIES:
        raise FabricError(f"{len(planned):,} trees with {len(ranks):,} ranks each, there and back, are {children:,} "
                          f"entries, expected at most {MOST_ENTRIES:,}: plan fewer ranks, --ranks")
    sizes = slots.sizes_of(fabric.engine, fabric.path_mtu)
    allocator = slots.Allocator([switch.name for switch in fabric.switches], sizes, random.Random(seed))
    streams = allocator.admit(allocator.open(), planned, groups)
    by_rank = [fabric.host(name) for name in ranks]
    base = tables.merge([steering.base(graph), tables.fixed_entries(fabric)])
    job = tables.merge(fold_tables.fold_entries(fabric, by_rank, stream) for stream in streams)

    text = ""
    if per_host > 1:
        folding = "; ".join(f"place {place}: ranks {' '.join(map(str, group))}" for place, group in enumerate(groups))
        text += f"{per_host} ranks a host fold in {per_host} sets of streams, {folding}\n"
    for tree, sum_ in zip(planned, streams[: 2 * len(planned) : 2], strict=True):
        text += f"tree {tree.root}: weight {tree.weight:.3f}, {tree.depth} levels, {sum_.slots} slots a switch\n"
        for fold in tree.folds:
            up = "root" if fold.parent is None else f"up port {fold.parent_port} to {fold.parent}"
            below = " ".join(f"{child.port}:{child.node}" for child in fold.children)
            text += f"  {fold.switch:12} {up}; children {below}\n"
    used = allocator.used()
    for switch in fabric.switches:
        count = len(base.get(switch.name, ())) + len(job.get(switch.name, ()))
        text += f"switch {switch.name}: {count} entries, {used[switch.name]} of {pools.SLOTS} slots\n"
        if entries:
            desired = state([*base.get(switch.name, ()), *job.get(switch.name, ())])
            text += show(switch.name, diff({}, desired))
    return text
