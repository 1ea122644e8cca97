# SPDX-License-Identifier: Apache-2.0
"""Schemes of load balancing: how they split a workload's flows into pieces, and which path each piece takes.

Pinned schemes use the controller's planner (`netfold.fabric.routing.paths.cut_step`) twice: with all links, and without
those that will fail.  A host that has learnt of a failure follows the second plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from netfold.fabric.routing.clos import PathError
from netfold.fabric.routing.paths import Cut, Planner, Share, cut_step, equal_split, fewest_pieces
from netfold.sim.engines.topology import Topology
from netfold.sim.workloads.workload import Workload

Mode = Literal["pinned", "spray", "reps", "spray-rr", "spray-ideal"]
Scope = Literal["leaf", "host"]


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How the packets of a workload get their paths."""

    name: str
    mode: Mode = "pinned"
    """"pinned": each piece has a path; "reps": recycled entropies; "spray": each packet takes a random path;
    "spray-rr": each switch on the way up sends packets to its uplinks in turn; "spray-ideal": to the one that is free
    soonest."""
    planner: Planner | None = None
    """Splits flows into pieces on planned paths; None: ``splits`` equal pieces on random (hashed) paths."""
    scope: Scope = "host"
    """Flows that a planner call sees: those of one host to a leaf, or those of one leaf to a leaf."""
    weighted: bool = False
    """True if shares follow the capacity of each path around dead links; False: all are equal."""
    unit: int = 1
    """Flows are split at multiples of this many bytes."""
    proportional: bool = False
    """True if a piece's window is its part of the flow's, so that unequal pieces end together; False: it is the whole
    window."""
    splits: int = 1
    tolerant: bool = False
    """True if receivers take packets in any order and senders repeat single ones; False: go-back-N."""
    moves: bool = False
    """True if a time-out moves the piece to another path and marks the old path suspect."""


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme(name="ethereal", planner=equal_split, moves=True),
        Scheme(name="netfold", planner=fewest_pieces, scope="leaf", weighted=True, unit=1024,
               proportional=True, moves=True),
        Scheme(name="spray", mode="spray", tolerant=True),
        Scheme(name="spray-rr", mode="spray-rr", tolerant=True),
        Scheme(name="spray-ideal", mode="spray-ideal", tolerant=True),
        Scheme(name="reps", mode="reps", tolerant=True),
        Scheme(name="ecmp"),
        Scheme(name="mp-rdma-2", splits=2),
        Scheme(name="mp-rdma-4", splits=4),
        Scheme(name="mp-rdma-8", splits=8),
    )
}
"""The paper's planner, NetFold's, and the schemes that both are compared with."""


@dataclass(frozen=True)
class Placement:
    """The pieces of all tasks; those of one task are adjacent."""

    task: NDArray[np.int64]
    size: NDArray[np.int64]
    path: NDArray[np.int64]
    """int64[pieces]: `Topology` path numbers between the task's leaves."""
    share: NDArray[np.float64]
    """float64[pieces]: weight of each piece where pieces compete for a link."""

    def __len__(self) -> int:
        return len(self.task)


def place(topology: Topology, workload: Workload, scheme: Scheme, *, dead: frozenset[int] = frozenset(),
          seed: int = 0, mtu: int = 1) -> Placement:
    """Split a workload's flows and assign the pieces to paths.

    dead   directed links to avoid
    seed   of the hash, where paths are hashed
    mtu    payload bytes of a full packet, since hashed schemes split between packets
    Raises PathError where two leaves have no live path left.
    """
    flows = np.flatnonzero(workload.size)
    if scheme.planner is None or scheme.mode != "pinned":
        return _hashed(topology, workload, scheme, flows, dead, seed, mtu)

    steps: dict[int, list[int]] = {}
    for i, number in zip(flows.tolist(), workload.step[flows].tolist(), strict=True):
        steps.setdefault(number, []).append(i)
    known: dict[tuple[int, int], tuple[list[int], tuple[Share, ...]]] = {}

    def shares(demands: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], tuple[Share, ...]]:
        for pair in demands.keys() - known.keys():
            live = topology.live_paths(*pair, dead)
            known[pair] = live, tuple(topology.shares(live, *pair) if scheme.weighted else [1] * len(live))
        return {pair: known[pair][1] for pair in demands}

    source, destination, sizes = (column.tolist() for column in (workload.source, workload.destination, workload.size))
    task: list[int] = []
    size: list[int] = []
    path: list[int] = []
    for members in steps.values():
        for a, b, _, cuts in cut_step([(source[i], destination[i], sizes[i]) for i in members], topology.leaf,
                                      lambda host: (host % topology.hosts, topology.hosts), shares,
                                      planner=partial(_cuts, scheme.planner), scope=scheme.scope, unit=scheme.unit):
            paths = known[a, b][0] if a != b else [0]
            for cut in cuts:
                task.append(members[cut.flow])
                size.append(cut.size)
                path.append(paths[cut.path])
    return _placement(workload, scheme, task, size, path)


@lru_cache(maxsize=2**16)
def _cuts(planner: Planner, sizes: tuple[int, ...], shares: tuple[Share, ...], *, unit: int, start: int) -> list[Cut]:
    if planner is equal_split and len(set(sizes)) > 1:  # parts of one buffer may differ by a byte
        return [c for i, size in enumerate(sizes)
                for c in _cuts(planner, (size,) * len(sizes), shares, unit=unit, start=start) if c.flow == i]
    return planner(sizes, shares, unit=unit, start=start)


def _hashed(topology: Topology, workload: Workload, scheme: Scheme, flows: NDArray[np.int64], dead: frozenset[int],
            seed: int, mtu: int) -> Placement:
    """Make equal pieces of whole packets on random live paths; sprayed flows stay whole, without a path."""
    size: NDArray[np.int64] = workload.size[flows]
    pair = np.stack([workload.source[flows], workload.destination[flows]], axis=1) // topology.hosts
    packets: NDArray[np.int64] = -(-size // mtu)
    splits = scheme.splits if scheme.mode == "pinned" else 1
    parts = np.where(pair[:, 0] != pair[:, 1], np.minimum(splits, packets), 1)
    owner = np.repeat(np.arange(len(flows)), parts)
    piece = np.arange(len(owner)) - np.repeat(np.cumsum(parts) - parts, parts)

    def bound(number: NDArray[np.int64]) -> NDArray[np.int64]:
        ends: NDArray[np.int64] = np.minimum(size[owner], packets[owner] * number // parts[owner] * mtu)
        return ends

    pairs, which = np.unique(pair, axis=0, return_inverse=True)
    live = [topology.live_paths(leaf, to, dead) if leaf != to else [0] for leaf, to in pairs.tolist()]
    for (leaf, to), choices in zip(pairs.tolist(), live, strict=True):
        if not choices:
            raise PathError(f"no live path from leaf {leaf} to leaf {to}")
    count = np.array([len(choices) for choices in live], np.int64)
    draws = np.random.default_rng(seed).integers(0, count[which][owner])
    begin = np.cumsum(count) - count
    path = np.array([p for choices in live for p in choices], np.int64)[begin[which][owner] + draws]
    return _placement(workload, scheme, flows[owner], bound(piece + 1) - bound(piece), path)


def _placement(workload: Workload, scheme: Scheme, task: ArrayLike, size: ArrayLike, path: ArrayLike) -> Placement:
    order = np.argsort(np.asarray(task, np.int64), kind="stable")
    tasks, sizes, paths = (np.asarray(column, np.int64)[order] for column in (task, size, path))
    share = sizes / workload.size[tasks] if scheme.proportional else np.ones(len(tasks))
    return Placement(tasks, sizes, paths, share)
