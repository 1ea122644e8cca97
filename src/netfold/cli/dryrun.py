# SPDX-License-Identifier: Apache-2.0
"""The plan of a job on an empty fabric, as text: trees, numbers of entries and slots, and optionally every entry."""

from __future__ import annotations

import random
from collections.abc import Sequence

from netfold.controller.paths.steering import Steering
from netfold.controller.switch import fold_tables, tables
from netfold.controller.switch.entities import state
from netfold.controller.switch.reconcile import diff, show
from netfold.fabric import pools, slots, trees
from netfold.fabric.graph import Fabric
from netfold.fabric.machines import fold_groups, machines


def plan(
    fabric: Fabric, hosts: Sequence[str], *, per_host: int = 1, entries: bool = False, seed: int = 0
) -> str:
    """The plan of one job on these hosts.

    hosts     host names, in order of ranks
    per_host  ranks on each host
    entries   list every table entry
    seed      for the numbers that the allocator draws
    Raises NoTree and Exhausted.
    """
    graph = fabric.graph()
    ranks = [name for name in hosts for _ in range(per_host)]
    groups = fold_groups(machines(ranks), ranks)
    planned = trees.plan(graph, hosts)
    sizes = slots.sizes_of(fabric.engine, fabric.path_mtu)
    allocator = slots.Allocator([switch.name for switch in fabric.switches], sizes, random.Random(seed))
    streams = allocator.admit(allocator.open(), planned, groups)
    by_rank = [fabric.host(name) for name in ranks]
    base = tables.merge([Steering(fabric).base(graph), tables.fixed_entries(fabric)])
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
