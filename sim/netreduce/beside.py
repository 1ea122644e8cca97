# SPDX-License-Identifier: Apache-2.0
"""A job that folds beside others' all-to-all on the same spines: flows planned with the trees in mind, without, hashed.

Half of each leaf's hosts fold; the other half sends all-to-all at the same time.  Planned together is what the
controller does (`controller/paths/planning.py`): links have what trees take of them taken off, and flows are cut by
what is left.  The fold is over a tree of each spine, as the controller plans it, or over one tree alone, as
NetReduce's with its root on one spine is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from netfold.fabric.folding import trees
from netfold.fabric.routing.clos import Clos
from netfold.fabric.routing.paths import Flow, fewest_pieces, plan
from netfold.plots.charts import BarChart, bar_charts, spread
from netfold.sim.engines.folding import FoldRules, beside, fold, fold_graph
from netfold.sim.engines.packet import Transport, simulate
from netfold.sim.engines.placement import SCHEMES, Placement, place
from netfold.sim.engines.topology import Topology, leaf_spine
from netfold.sim.sweeps.kept import simulate_all
from netfold.sim.workloads.workload import Workload, all_to_all

WAYS: Final = ("together", "separately", "hashed")
TREES: Final = {"one tree": 1, "a tree for each spine": 0}
RATE: Final = 100e9
SEEDS: Final = (1, 2, 3, 4, 5)
"""Seeds of hashed flows, one simulation each; the other ways draw nothing at random."""


@dataclass(frozen=True)
class BesideRow:
    """The result for a job that folds and a job that sends all-to-all at the same time."""

    trees: str
    fold_bytes: int
    """Bytes of the tensor that each folding host sums."""
    flow_bytes: int
    """Bytes that each host of the all-to-all sends to all others together."""
    way: str
    seed: int
    fold_alone: float
    """Seconds of the fold without the others."""
    fold: float
    """Seconds until the fold has ended."""
    flows: float
    """Seconds until the all-to-all has."""
    both: float


def members(topology: Topology) -> tuple[list[int], list[int]]:
    """The hosts that fold, the first half of each leaf, and the others."""
    first = [host for host in range(topology.size) if host % topology.hosts < topology.hosts // 2]
    return first, [host for host in range(topology.size) if host not in set(first)]


def planned_beside(topology: Topology, work: Workload, carried: dict[int, float]) -> Placement:
    """The controller's plan for a workload's flows, where trees take ``carried`` of links (`trees.tree_loads`)."""
    paths = Clos(fold_graph(topology, machines=False), carried=carried)
    tasks = np.flatnonzero(work.size).tolist()
    flows = [Flow(f"h{work.source[i]}", f"h{work.destination[i]}", int(work.size[i])) for i in tasks]
    pieces = plan(paths, flows, scope="leaf", planner=fewest_pieces).pieces
    task = np.array([tasks[piece.flow] for piece in pieces], np.int64)
    spine = [int(piece.path[0].head.partition(".")[2]) if piece.path else 0 for piece in pieces]
    size = np.array([piece.size for piece in pieces], np.int64)
    order = np.argsort(task, kind="stable")
    return Placement(task[order], size[order], np.array(spine, np.int64)[order], (size / work.size[task])[order])


def point(topology: Topology, trees_of: str, fold_bytes: int, flow_bytes: int, way: str, seed: int) -> BesideRow:
    """Simulate both jobs at once."""
    first, others = members(topology)
    chosen = trees.plan(fold_graph(topology, machines=False), [f"h{host}" for host in first])
    if TREES[trees_of]:
        chosen = [trees.Tree(chosen[0].root, 1.0, chosen[0].folds)]
    folding = fold(topology, first, fold_bytes, machines=False, planned=chosen)
    sending = all_to_all(others, flow_bytes)
    work, folds = beside((sending, []), folding)
    transport = Transport(mtu=4096, jitter=50e-9)
    scheme = SCHEMES["ecmp"] if way == "hashed" else SCHEMES["netfold"]
    if way == "together":
        hosts = [f"h{host}" for host in first]
        placed = planned_beside(topology, work, trees.tree_loads(fold_graph(topology, machines=False),
                                                                 [(chosen, hosts)]))
    else:
        placed = place(topology, work, scheme, seed=seed, mtu=transport.mtu)
    rules = FoldRules(slots=2048)
    alone = simulate(topology, folding[0], scheme, transport=transport, folds=folding[1], rules=rules).time
    out = simulate(topology, work, scheme, transport=transport, folds=folds, rules=rules, placement=placed, seed=seed)
    ends = out.finished
    return BesideRow(trees_of, fold_bytes, flow_bytes, way, seed, alone, float(ends[len(sending):].max()),
                     float(ends[:len(sending)].max()), out.time)


def run(*, out: Path, short: bool, resume: bool = False) -> list[BesideRow]:
    """Simulate, write beside.csv and beside.svg, and say the ratios.  ``short``: 16 hosts, 256 KiB, in seconds.

    resume  take over the rows that an interrupted run has left in beside.csv
    Raises ValueError where that file has others, PlotsMissing, and OSError where a file cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    topology = (leaf_spine(hosts=16, leaves=2, spines=2, rate=RATE) if short else
                leaf_spine(hosts=64, leaves=8, spines=4, rate=RATE))
    size = 1 << (18 if short else 22)
    sizes = ((size, size),) if short else ((size, 4 * size), (size, size), (4 * size, size))
    rows = simulate_all(out / "beside.csv", BesideRow, partial(point, topology), [
        (name, *both, way, seed) for name in TREES for both in sizes for way in WAYS
        for seed in (SEEDS[:2 if short else None] if way == "hashed" else SEEDS[:1])], key=5, resume=resume,
        jobs=1 if short else None)
    for name, fold_bytes, flow_bytes, way in dict.fromkeys((r.trees, r.fold_bytes, r.flow_bytes, r.way) for r in rows):
        mean = _mean(rows, name, fold_bytes, flow_bytes, way)
        print(f"{name}, {fold_bytes >> 10} KiB folded beside {flow_bytes >> 10} KiB all-to-all, {way}: fold "
              f"{mean['fold'] * 1e6:.0f} us (alone {mean['fold_alone'] * 1e6:.0f}), flows {mean['flows'] * 1e6:.0f} us",
              flush=True)
    draw(rows, topology, out)
    return rows


def draw(rows: Sequence[BesideRow], topology: Topology, folder: Path) -> list[Path]:
    """Draw both jobs' times and return the files, beside.svg and beside.pdf.  Raises PlotsMissing, OSError."""
    groups = dict.fromkeys((row.trees, row.fold_bytes, row.flow_bytes) for row in rows)
    return bar_charts(folder / "beside", f"A fold and an all-to-all on the same {topology.size} hosts, "
                      f"{topology.leaves} leaves and {topology.aggs} spines (hashed: seeds "
                      f"{SEEDS[0]} to {SEEDS[-1]})", [
        BarChart(f"How long until {what} done", {
            f"{name}, {fold_bytes / 2**20:g} MiB folded and {flow_bytes / 2**20:g} MiB sent":
            {way: spread([getattr(row, key) * 1e6 for row in rows
                          if (row.trees, row.fold_bytes, row.flow_bytes, row.way) == (*group, way)]) for way in WAYS}
            for group in groups for name, fold_bytes, flow_bytes in [group]}, "time, µs")
        for what, key in (("the fold is", "fold"), ("the all-to-all is", "flows"))])


def _mean(rows: Sequence[BesideRow], name: str, fold_bytes: int, flow_bytes: int, way: str) -> dict[str, float]:
    here = [row for row in rows if (row.trees, row.fold_bytes, row.flow_bytes, row.way) ==
            (name, fold_bytes, flow_bytes, way)]
    return {key: float(np.mean([getattr(row, key) for row in here])) for key in ("fold_alone", "fold", "flows")}
