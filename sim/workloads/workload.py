# SPDX-License-Identifier: Apache-2.0
"""The traffic of collectives: flows, and the order in which they depend on each other.

A `Workload` is a graph of tasks in arrays.  A task is a flow from host to host, or, with no bytes, a pause.  It starts
``gap`` seconds after the last task that it waits for: after the arrival of a flow, or after its acknowledgement where
the flow's own sender waits.  Flows that are planned together have the same ``step``.  Sizes of collectives are bytes of
the buffer on each rank, as in nccl-tests; rank r is host ``hosts[r]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from netfold.fabric.routing import collectives

Int = NDArray[np.int64]

SEGMENT: Final = 64 << 10
"""Bytes of a message in trees, as in host/collectives/double_binary_tree.py."""
AHEAD: Final = 4
"""Messages that a rank receives ahead of the one that it waits for, as in host/collectives/flow.py."""


@dataclass(frozen=True)
class Workload:
    """A graph of n tasks and m dependencies."""

    source: Int
    """int64[n]: the host that sends."""
    destination: Int
    """int64[n]: the host that receives."""
    size: Int
    """int64[n]: bytes; 0 for a pause."""
    gap: NDArray[np.float64]
    """float64[n]: seconds between the end of what the task waits for and its start."""
    step: Int
    """int64[n]: flows of one step start together and are planned together."""
    waits: Int
    """int64[m, 2]: (task that must finish, task that waits for it)."""

    def __post_init__(self) -> None:
        n = len(self.source)
        for name in ("destination", "size", "gap", "step"):
            if len(getattr(self, name)) != n:
                raise ValueError(f"workload.{name}: expected {n} tasks, got {len(getattr(self, name))}")
        if n and (self.size.min() < 0 or self.gap.min() < 0):
            raise ValueError("workload: sizes and gaps below 0 make no sense")
        if np.any((self.source == self.destination) & (self.size > 0)):
            raise ValueError("workload: a host does not send to itself over the network")
        if self.waits.shape != (len(self.waits), 2) or (len(self.waits) and not 0 <= self.waits.min()
                                                        <= self.waits.max() < n):
            raise ValueError(f"workload.waits: expected pairs of tasks 0..{n - 1}")

    def __len__(self) -> int:
        return len(self.source)

    @property
    def total(self) -> int:
        """Bytes of all flows."""
        return int(self.size.sum())

    @property
    def idle(self) -> float:
        """Seconds of the longest chain of gaps: what the whole would take over infinitely fast links."""
        if not self.gap.any():
            return 0.0
        after = np.split(self.waits[np.argsort(self.waits[:, 0], kind="stable"), 1],
                         np.cumsum(np.bincount(self.waits[:, 0], minlength=len(self)))[:-1])
        left = np.bincount(self.waits[:, 1], minlength=len(self))
        ends = self.gap.copy()
        ready = np.flatnonzero(left == 0).tolist()
        while ready:
            task = ready.pop()
            for follower in after[task].tolist():
                ends[follower] = max(ends[follower], ends[task] + self.gap[follower])
                left[follower] -= 1
                if not left[follower]:
                    ready.append(follower)
        return float(ends.max())

    def then(self, other: Workload, *, gap: float = 0.0) -> Workload:
        """This workload, a pause of ``gap`` seconds when all its tasks have ended, then the other workload."""
        n = len(self)
        pause = n + 1
        first = np.setdiff1d(np.arange(len(other)), other.waits[:, 1])
        last = np.setdiff1d(np.arange(n), self.waits[:, 0])
        barrier = np.concatenate([
            np.stack([last, np.full(len(last), n)], axis=1),
            np.stack([np.full(len(first), n), first + pause], axis=1),
        ])
        return Workload(
            np.concatenate([self.source, [0], other.source]),
            np.concatenate([self.destination, [0], other.destination]),
            np.concatenate([self.size, [0], other.size]),
            np.concatenate([self.gap, [gap], other.gap]),
            np.concatenate([self.step, [-1], other.step + self.step.max(initial=-1) + 1]),
            np.concatenate([self.waits, barrier, other.waits + pause]),
        )


class _Builder:
    """Collects the tasks of a workload one by one."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int]] = []
        self.waits: list[tuple[int, int]] = []

    def flow(self, source: int, destination: int, size: int, step: int, after: Sequence[int] = ()) -> int:
        number = len(self.rows)
        self.rows.append((source, destination, size, step))
        self.waits += [(before, number) for before in after]
        return number

    def done(self) -> Workload:
        rows = np.array(self.rows, np.int64).reshape(-1, 4)
        return Workload(rows[:, 0], rows[:, 1], rows[:, 2], np.zeros(len(rows)), rows[:, 3],
                        np.array(self.waits, np.int64).reshape(-1, 2))


def all_to_all(hosts: Sequence[int], size: int) -> Workload:
    """Direct all-to-all: every rank sends size/n to every other at the same time, its right neighbour first."""
    build, n = _Builder(), _ranks(hosts)
    (step,) = collectives.all_to_all(n)
    for a, b in step:
        build.flow(hosts[a], hosts[b], _part(size, n, b), 0)
    return build.done()


def shifted_all_to_all(hosts: Sequence[int], size: int) -> Workload:
    """All-to-all in n-1 rounds: in round k every rank sends to the k-th rank to its right, after its own round k-1."""
    build, n = _Builder(), _ranks(hosts)
    before: list[Sequence[int]] = [()] * n
    for k in range(1, n):
        before = [(build.flow(hosts[r], hosts[(r + k) % n], _part(size, n, (r + k) % n), k - 1, before[r]),)
                  for r in range(n)]
    return build.done()


def ring(hosts: Sequence[int], size: int) -> Workload:
    """Allreduce in 2(n-1) steps of size/n to the right neighbour."""
    return _around(hosts, size, 2)


def ring_all_gather(hosts: Sequence[int], size: int) -> Workload:
    """All-gather in n-1 steps of size/n to the right neighbour."""
    return _around(hosts, size, 1)


def _around(hosts: Sequence[int], size: int, times: int) -> Workload:
    build, n = _Builder(), _ranks(hosts)
    arrived: list[Sequence[int]] = [()] * n  # what a rank waits for
    for step in range(times * (n - 1)):
        sent = {b: build.flow(hosts[a], hosts[b], _part(size, n, (a - step) % n), step, arrived[a])
                for a, b in collectives.ring(n)[0]}
        arrived = [(sent[r],) for r in range(n)]
    return build.done()


def halving_doubling(hosts: Sequence[int], size: int, *, gathered: int | None = None) -> Workload:
    """Allreduce by halving to partners at distances n/2, n/4 .. 1, and doubling back.  n must be a power of two.

    gathered   bytes of the buffer on the way back, where that is another one; default: ``size``
    """
    build, n = _Builder(), _ranks(hosts)
    if n & (n - 1):
        raise ValueError(f"halving_doubling: expected a power of two of ranks, got {n}")
    exchanges = collectives.halving_doubling(n)  # from the nearest partner to the farthest
    arrived: list[Sequence[int]] = [()] * n
    for step, exchange in enumerate(exchanges[::-1] + exchanges):
        whole = size if step < len(exchanges) or gathered is None else gathered
        sent = {b: build.flow(hosts[a], hosts[b], max(1, whole * (a ^ b) // n), step, arrived[a]) for a, b in exchange}
        arrived = [(sent[r],) for r in range(n)]
    return build.done()


def double_binary_tree(hosts: Sequence[int], size: int, *, segment: int = SEGMENT) -> Workload:
    """Allreduce over two trees of the hosts, half of the bytes on each, reduced up and broadcast down in segments.

    As in host/collectives/double_binary_tree.py, a segment goes up when it has arrived from all children, and down when
    it has arrived from the parent; a rank receives `AHEAD` more than the one that it waits for, from its children in
    turn.  Hosts send the segments of one edge one after another; here as many are in flight at once, so that no link
    is idle in between.  All flows are one step, as for the controller's planner.
    """
    n = _ranks(hosts)
    if segment < 1:
        raise ValueError(f"double_binary_tree: expected segments of at least 1 byte, got {segment}")
    trees = []
    for shift, half in enumerate((size // 2, size - size // 2)):
        edges, waits = tree_edges(n, shift)
        count = -(-half // segment)
        sizes = np.minimum(segment, half - segment * np.arange(count))
        before, after, lag = np.array(waits, np.int64).reshape(-1, 3).T
        turn = np.arange(count)[:, None]
        pairs = np.stack([before + (turn - lag) * len(edges), after + turn * len(edges)], axis=2)[turn >= lag]
        ends = np.tile(np.array(hosts)[np.array(edges)], (count, 1))
        zeros = np.zeros(len(ends), np.int64)
        trees.append(Workload(ends[:, 0], ends[:, 1], np.repeat(sizes, len(edges)), zeros.astype(float), zeros, pairs))
    return beside(trees)


def tree_edges(n: int, shift: int) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]]]:
    """The flows of one segment in a tree, as (sender, receiver), and their dependencies, as (flow, the flow that waits
    for it, how many segments later)."""
    parent = collectives.binary_tree(n, shift)
    children = {p: [v for v, above in parent.items() if above == p] for p in parent.values()}
    up = {v: number for number, v in enumerate(parent)}
    down = {v: number for number, v in enumerate(parent, len(parent))}
    waits = []
    for v, p in parent.items():
        waits += [(up[child], up[v], 0) for child in children.get(v, ())]
        turn, family = children[p].index(v), len(children[p])
        later, of = divmod(turn - AHEAD - 1, family)
        waits.append((up[children[p][of]], up[v], -later))
        waits += [(down[p], down[v], 0)] if p in parent else [(up[child], down[v], 0) for child in children[p]]
        waits.append((down[v], down[v], AHEAD + 1))
    return [*parent.items(), *((p, v) for v, p in parent.items())], waits


COLLECTIVES: dict[str, Callable[[Sequence[int], int], Workload]] = {
    "all-to-all": all_to_all,
    "halving-doubling": halving_doubling,
    "ring": ring,
    "double-binary-tree": double_binary_tree,
}


def beside(parts: Sequence[Workload]) -> Workload:
    """All workloads at the same time."""
    starts = np.cumsum([0, *(len(p) for p in parts)])
    return Workload(
        source=np.concatenate([p.source for p in parts]),
        destination=np.concatenate([p.destination for p in parts]),
        size=np.concatenate([p.size for p in parts]),
        gap=np.concatenate([p.gap for p in parts]),
        step=np.concatenate([p.step for p in parts]),
        waits=np.concatenate([p.waits + start for p, start in zip(parts, starts, strict=False)]),
    )


def _ranks(hosts: Sequence[int]) -> int:
    if len(hosts) < 2 or len(set(hosts)) != len(hosts):
        raise ValueError(f"a collective needs at least 2 different hosts, got {list(hosts)[:8]}")
    return len(hosts)


def _part(size: int, n: int, i: int) -> int:
    """Bytes of part i of n of ``size``; at least 1, since an empty part is announced as well."""
    return max(1, size * (i + 1) // n - size * i // n)
