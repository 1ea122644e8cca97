# SPDX-License-Identifier: Apache-2.0
"""Measures the planner's cost of all groups of one mesh dimension, beside the job of all ranks: trees, slots, entries.

    python bench/scripts/plan_groups.py [--leaves 16] [--spines 8] [--hosts 128] [--groups 64]

Rank r is in group r modulo GROUPS, so that groups span leaves.  Prints processor time of the whole and of its steps,
and how evenly the groups' trees are spread over the spines; nothing is sent or written.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter

from netfold.controller.switch import fold_tables, tables
from netfold.fabric import groups, trees
from netfold.fabric.generate import leafspine
from netfold.fabric.slots import Allocator, sizes_of


def main() -> None:
    """Print one line for each step, and the sum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leaves", type=int, default=16)
    parser.add_argument("--spines", type=int, default=8)
    parser.add_argument("--hosts", type=int, default=128)
    parser.add_argument("--groups", type=int, default=64)
    said = parser.parse_args()
    fabric = leafspine(said.leaves, said.spines, said.hosts)
    sizes = sizes_of(fabric.engine, fabric.path_mtu)
    allocator = Allocator([switch.name for switch in fabric.switches], sizes, random.Random(1))
    job = [host.name for host in fabric.hosts]
    folding = [(trees.plan(fabric.graph(), job), job)]
    allocator.admit(folding[0][0], [range(len(job))])
    roots: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    at = time.process_time()

    def done(step: str) -> None:
        nonlocal at
        spent[step] += round(1e6 * (time.process_time() - at))
        at = time.process_time()

    for number in range(said.groups):
        group = job[number::said.groups]
        graph = fabric.graph()
        done("the graph")
        if why := groups.no_benefit(graph, group):
            raise SystemExit(f"group {number}: {why}")
        planned = trees.plan(graph, group, carried=trees.tree_loads(graph, folding))
        share = groups.share(graph, group, job)
        planned, room = groups.fitted(planned, sizes, 1, share, allocator.free(planned), roots)
        done("trees")
        streams = allocator.admit(planned, [range(len(group))], room=room)
        done("slots")
        hosts = [fabric.host(name) for name in group]
        tables.merge(fold_tables.fold_entries(fabric, hosts, stream) for stream in streams)
        done("entries")
        folding.append((planned, group))
        roots.update(tree.root for tree in planned)
    for step, microseconds in spent.items():
        print(f"{step:10} {microseconds / 1e3:8.1f} ms")
    print(f"{said.groups} groups of {len(group)} on {said.hosts} hosts, {said.leaves} leaves, {said.spines} spines: "
          f"{spent.total() / 1e3:.1f} ms; {len(planned)} trees each, {min(roots.values())} to {max(roots.values())} "
          "at a root")


if __name__ == "__main__":
    main()
