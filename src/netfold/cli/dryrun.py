# SPDX-License-Identifier: Apache-2.0
"""The plan of a job on an empty fabric: trees, numbers of entries and slots, and optionally every entry."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from netfold.controller.paths.steering import Steering
from netfold.controller.switch import fold_tables, tables
from netfold.controller.switch.entities import state
from netfold.controller.switch.reconcile import diff, show
from netfold.fabric.folding import pools, slots, trees
from netfold.fabric.graph import Fabric, FabricError
from netfold.fabric.placement.machines import fold_groups, machines
from netfold.fabric.routing import room

MOST_ENTRIES: Final = 1 << 19
"""Children of trees in all switches together that a plan is made of: half a minute, and 1 GB."""
MOST_HOPS: Final = 2_000_000
"""Hops of all paths between all pairs of leaves, which switches pin: a quarter of a minute, and a mesh of 12 x 12."""


class PlannedFold(msgspec.Struct, frozen=True):
    """The part of a tree that one switch folds."""

    switch: str
    parent: str | None
    """The switch above; None: this is the root."""
    parent_port: int
    children: list[str]
    """PORT:NODE of each."""


class PlannedTree(msgspec.Struct, frozen=True):
    """One aggregation tree."""

    root: str
    weight: float
    levels: int
    slots: int
    """On each of its switches."""
    folds: list[PlannedFold]


class PlannedSwitch(msgspec.Struct, frozen=True):
    """The resources of one switch for a job."""

    name: str
    entries: int
    slots: int
    writes: list[str]
    """Every write in words, where they were asked for."""


class PlannedJob(msgspec.Struct, frozen=True):
    """The resources of a job; its string is for users."""

    places: list[list[int]]
    """Ranks that fold together, where several share a host."""
    trees: list[PlannedTree]
    switches: list[PlannedSwitch]

    def __str__(self) -> str:
        lines = []
        if self.places:
            folding = "; ".join(f"place {place}: ranks {' '.join(map(str, group))}"
                                for place, group in enumerate(self.places))
            lines.append(f"{len(self.places)} ranks a host fold in {len(self.places)} sets of streams, {folding}")
        for tree in self.trees:
            lines.append(f"tree {tree.root}: weight {tree.weight:.3f}, {tree.levels} levels, {tree.slots} slots a "
                         "switch")
            for fold in tree.folds:
                up = "root" if fold.parent is None else f"up port {fold.parent_port} to {fold.parent}"
                lines.append(f"  {fold.switch:12} {up}; children {' '.join(fold.children)}")
        for switch in self.switches:
            lines.append(f"switch {switch.name}: {switch.entries} entries, {switch.slots} of {pools.SLOTS} slots")
            lines += switch.writes
        return "\n".join(lines)


def plan(
    fabric: Fabric, hosts: Sequence[str], *, per_host: int = 1, entries: bool = False, seed: int = 0
) -> PlannedJob:
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


def _plan(fabric: Fabric, hosts: Sequence[str], per_host: int, entries: bool, seed: int) -> PlannedJob:
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
    streams = allocator.admit(planned, groups)
    by_rank = [fabric.host(name) for name in ranks]
    base = tables.merge([steering.base(graph), tables.fixed_entries(fabric)])
    job = tables.merge(fold_tables.fold_entries(fabric, by_rank, stream) for stream in streams)

    used = allocator.used()
    return PlannedJob(
        groups if per_host > 1 else [],
        [PlannedTree(tree.root, tree.weight, tree.depth, sum_.slots, [
            PlannedFold(fold.switch, fold.parent, fold.parent_port,
                        [f"{child.port}:{child.node}" for child in fold.children])
            for fold in tree.folds]) for tree, sum_ in zip(planned, streams[: 2 * len(planned) : 2], strict=True)],
        [_switch(switch.name, [*base.get(switch.name, ()), *job.get(switch.name, ())], used[switch.name], entries)
         for switch in fabric.switches],
    )


def _switch(name: str, written: Sequence[Any], slots_used: int, entries: bool) -> PlannedSwitch:
    text = show(name, diff({}, state(written))).splitlines() if entries else []
    return PlannedSwitch(name, len(written), slots_used, text)
