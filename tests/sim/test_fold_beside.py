# SPDX-License-Identifier: Apache-2.0
"""A fold beside flows: planned with its trees in mind, without, and hashed."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from netfold.fabric.folding import trees
from netfold.sim.engines.folding import fold_graph
from netfold.sim.engines.topology import leaf_spine
from netfold.sim.netreduce import beside as fold_beside
from netfold.sim.netreduce.beside import RATE, members, planned_beside, point
from netfold.sim.workloads.workload import all_to_all

TOPOLOGY = leaf_spine(hosts=32, leaves=4, spines=4, rate=RATE)


def test_half_of_each_leaf_folds() -> None:
    """The other half has the flows, and no host is of both."""
    first, others = members(TOPOLOGY)
    assert [sum(TOPOLOGY.leaf(host) == leaf for host in first) for leaf in range(4)] == [4] * 4
    assert sorted([*first, *others]) == list(range(TOPOLOGY.size))


def test_flows_leave_the_spine_of_a_lone_tree_to_the_fold() -> None:
    """Half as many bytes over the spine that the tree takes as over each other one; no byte is lost."""
    first, others = members(TOPOLOGY)
    work = all_to_all(others, 7 << 20)
    graph = fold_graph(TOPOLOGY, machines=False)
    tree = trees.plan(graph, [f"h{host}" for host in first])[0]
    loads = trees.tree_loads(graph, [([trees.Tree(tree.root, 1.0, tree.folds)], [f"h{host}" for host in first])])
    placed = planned_beside(TOPOLOGY, work, loads)
    assert np.bincount(placed.task, placed.size, len(work)).tolist() == work.size.tolist()
    far = np.array([TOPOLOGY.leaf(a) != TOPOLOGY.leaf(b) for a, b in
                    zip(work.source[placed.task], work.destination[placed.task], strict=True)])
    spine = int(tree.root.partition(".")[2])
    carried = np.bincount(placed.path[far], placed.size[far], TOPOLOGY.aggs)
    assert carried[spine] == pytest.approx(np.delete(carried, spine).mean() / 2, rel=0.001)


def test_planned_together_both_end_earlier_beside_one_tree() -> None:
    """Fold and flows both, by a tenth at least, against flows planned as if alone; over even trees nothing changes."""
    together, separately = (point(TOPOLOGY, "one tree", 1 << 20, 1 << 20, way, 1) for way in ("together", "separately"))
    assert together.fold < 0.9 * separately.fold
    assert together.flows < 0.9 * separately.flows
    together, separately = (point(TOPOLOGY, "a tree for each spine", 1 << 20, 1 << 20, way, 1)
                            for way in ("together", "separately"))
    assert together.both == pytest.approx(separately.both, rel=0.02)


@pytest.mark.needs("matplotlib")
def test_the_short_form_writes_a_figure_and_data(tmp_path, capsys, monkeypatch) -> None:
    """A row for each simulation; no fold is earlier beside others than alone; a run that goes on simulates no row
    again."""
    rows = fold_beside.run(out=tmp_path, short=True)
    assert {f.name for f in tmp_path.iterdir()} >= {"beside.csv", "beside.svg"}
    assert len(list(csv.DictReader((tmp_path / "beside.csv").open()))) == len(rows)
    assert all(row.fold_alone <= row.fold for row in rows)
    capsys.readouterr()
    monkeypatch.setattr(fold_beside, "draw", lambda *args: [])  # the figure is there already
    assert fold_beside.run(out=tmp_path, short=True, resume=True) == rows
    assert f"{len(rows)} simulations, {len(rows)} of them done" in capsys.readouterr().out
