# SPDX-License-Identifier: Apache-2.0
"""Schemes of load balancing: into which pieces a workload's flows are cut, and where they go.

Pinned schemes use the controller's own planners (`netfold.controller.paths`), once as if all links were well, once
around the links that will fail: a host that has learnt of a failure follows the second plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from netfold.controller.paths import Cut, Planner, Share, equal_split, fewest_pieces
from netfold.sim.topology import Topology
from netfold.sim.workload import Workload

Mode = Literal["pinned", "spray", "reps"]
Scope = Literal["host", "leaf"]


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How packets choose their paths."""

    name: str
    mode: Mode = "pinned"
    """"pinned": each piece has a path; "spray": each packet takes a random one; "reps": recycled entropies."""
    planner: Planner | None = None
    """Cuts flows into pieces and assigns them; None: ``splits`` equal pieces on random (hashed) paths."""
    scope: Scope = "host"
    """Whose flows a planner call sees: one host's to a leaf, or one leaf's to a leaf."""
    weighted: bool = False
    """Shares follow what each path can carry around dead links; else all are equal."""
    whole_packets: bool = False
    """Cuts fall between full packets; else on any byte."""
    proportional: bool = False
    """A piece's window is its part of the flow's, so that unequal pieces end together; else each has a whole one."""
    splits: int = 1
    tolerant: bool = False
    """Receivers take packets in any order and senders repeat single ones; else go-back-N."""
    moves: bool = False
    """A time-out moves the piece to another path and marks the old one suspect."""


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme(name="ethereal", planner=equal_split, moves=True),
        Scheme(name="netfold", planner=fewest_pieces, scope="leaf", weighted=True, whole_packets=True,
               proportional=True, moves=True),
        Scheme(name="spray", mode="spray", tolerant=True),
        Scheme(name="reps", mode="reps", tolerant=True),
        Scheme(name="ecmp"),
        Scheme(name="mp-rdma-2", splits=2),
        Scheme(name="mp-rdma-4", splits=4),
        Scheme(name="mp-rdma-8", splits=8),
    )
}
"""The paper's planner, ours, and what both are compared with."""


@dataclass(frozen=True)
class Placement:
    """Pieces of all tasks, those of one task side by side."""

    task: NDArray[np.int64]
    size: NDArray[np.int64]
    path: NDArray[np.int64]
    """int64[pieces]: `Topology` path numbers between the task's leaves."""
    share: NDArray[np.float64]
    """float64[pieces]: weight of the piece where pieces compete."""

    def __len__(self) -> int:
        return len(self.task)


def place(topology: Topology, workload: Workload, scheme: Scheme, *, dead: frozenset[int] = frozenset(),
          seed: int = 0, mtu: int = 1) -> Placement:
    """Cut and assign a workload's flows.

    dead   directed links to plan around
    seed   of the hash, where paths are hashed
    mtu    payload bytes of a full packet, between which schemes with ``whole_packets`` cut
    Raises PlanError where two leaves have no live path left.
    """
    flows = np.flatnonzero(workload.size)
    if scheme.planner is None or scheme.mode != "pinned":
        return _hashed(topology, workload, scheme, flows, dead, seed, mtu)

    groups: dict[tuple[int, int, int], list[int]] = {}
    by_host = scheme.scope == "host"
    source, destination = workload.source.tolist(), workload.destination.tolist()
    step, sizes = workload.step.tolist(), workload.size.tolist()
    for i in flows.tolist():
        sender = source[i] if by_host else topology.leaf(source[i])
        groups.setdefault((step[i], sender, topology.leaf(destination[i])), []).append(i)
    known: dict[tuple[int, int], tuple[list[int], tuple[Share, ...]]] = {}
    task: list[int] = []
    size: list[int] = []
    path: list[int] = []
    for (_, sender, to), members in groups.items():
        a = topology.leaf(sender) if by_host else sender
        if a == to:
            task += members
            size += [sizes[i] for i in members]
            path += [0] * len(members)
            continue
        if (a, to) not in known:
            live = topology.live_paths(a, to, dead)
            known[a, to] = live, tuple(topology.shares(live, a, to) if scheme.weighted else [1] * len(live))
        paths, shares = known[a, to]
        # neighbours begin at different paths, so that not all first packets of a step meet in one queue
        start = (sender + to) % max(1, len(paths))
        unit = mtu if scheme.whole_packets else 1
        for cut in _cuts(scheme.planner, tuple(sizes[i] for i in members), shares, unit, start):
            task.append(members[cut.flow])
            size.append(cut.size)
            path.append(paths[cut.path])
    return _placement(workload, scheme, task, size, path)


@lru_cache(maxsize=2**16)
def _cuts(planner: Planner, sizes: tuple[int, ...], shares: tuple[Share, ...], unit: int, start: int) -> list[Cut]:
    if planner is equal_split and len(set(sizes)) > 1:  # parts of one buffer may differ by a byte: each as if all did
        return [c for i, size in enumerate(sizes)
                for c in _cuts(planner, (size,) * len(sizes), shares, unit, start) if c.flow == i]
    return planner(sizes, shares, unit=unit, start=start)


def _hashed(topology: Topology, workload: Workload, scheme: Scheme, flows: NDArray[np.int64], dead: frozenset[int],
            seed: int, mtu: int) -> Placement:
    splits = scheme.splits if scheme.mode == "pinned" else 1
    rng = np.random.default_rng(seed)
    leaf, to = workload.source // topology.hosts, workload.destination // topology.hosts
    packets = -(-workload.size // mtu)
    task: list[int] = []
    size: list[int] = []
    path: list[int] = []
    for i in flows.tolist():
        parts = max(1, min(splits, int(packets[i]))) if leaf[i] != to[i] else 1
        bounds = [min(int(workload.size[i]), int(packets[i]) * p // parts * mtu) for p in range(parts + 1)]
        task += [i] * parts
        size += [high - low for low, high in pairwise(bounds)]
        choices = topology.live_paths(int(leaf[i]), int(to[i]), dead) if dead else None
        draws = rng.integers(0, topology.paths(int(leaf[i]), int(to[i])) if choices is None else len(choices), parts)
        path += draws.tolist() if choices is None else [choices[d] for d in draws]
    return _placement(workload, scheme, task, size, path)


def _placement(workload: Workload, scheme: Scheme, task: list[int], size: list[int], path: list[int]) -> Placement:
    order = np.argsort(np.array(task, np.int64), kind="stable")
    tasks, sizes, paths = (np.array(column, np.int64)[order] for column in (task, size, path))
    share = sizes / workload.size[tasks] if scheme.proportional else np.ones(len(tasks))
    return Placement(tasks, sizes, paths, share)
