# SPDX-License-Identifier: Apache-2.0
"""BytePS (OSDI 2020): n workers and k helper machines share the summing so that all links are busy equally long.

With D = n^2 + kn - 2k, a worker owns (n-k) M/D and a helper 2 (n-1) M/D of the data; every link then carries
2n (n-1)/D M bytes each way: the ring's at k = 0, and M, as little as in-network aggregation, at k = n.  2 steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from netfold.host.collectives import parameter_server
from netfold.host.collectives.flow import Strand
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.arrays import Flat, by_counts
from netfold.host.operation.reduction import Reduction


@dataclass(frozen=True)
class BytepsShares:
    """Fractions of the data that one worker owns, that one helper owns, and that each link carries in each
    direction."""

    worker: float
    helper: float
    link_bytes: float


def byteps_shares(workers: int, helpers: int) -> BytepsShares:
    """BytePS's optimum (OSDI 2020): all links are busy equally long.  More helpers than workers bring nothing.

    workers  n >= 1;  helpers  k >= 0
    With D = n^2 + k n - 2 k: worker (n-k)/D, helper 2(n-1)/D, link 2n(n-1)/D.
    """
    n, k = workers, helpers
    if n < 1 or k < 0:
        raise ValueError(f"workers={n}, helpers={k}: expected 1 or more workers and 0 or more helpers")
    if n == 1:
        return BytepsShares(1.0, 0.0, 0.0)
    if k >= n:
        return BytepsShares(0.0, 1 / k, 1.0)
    d = n * n + k * n - 2 * k
    return BytepsShares((n - k) / d, 2 * (n - 1) / d, 2 * n * (n - 1) / d)


def shares(count: int, workers: Sequence[int], helpers: Sequence[int]) -> parameter_server.ServerLayout:
    """``count`` elements split into the paper's optimal parts, rounded so that they add up."""
    both = set(workers) & set(helpers)
    if both:
        raise ValueError(f"ranks {sorted(both)} are workers and helpers: expected one or the other")
    parts = byteps_shares(len(workers), len(helpers))
    edges, at = [0], 0.0
    for share in [parts.worker] * len(workers) + [parts.helper] * len(helpers):
        at += share
        edges.append(min(count, round(at * count)))
    edges[-1] = count
    counts = [b - a for a, b in pairwise(edges)]
    return parameter_server.ServerLayout(workers, dict(zip([*workers, *helpers], by_counts(counts), strict=True)))


def allreduce(mesh: Mesh, data: Flat, reduction: Reduction, *, helpers: Sequence[int] = (), tag: int = 0) -> Strand:
    """Reduces the data of all ranks but the helpers', in place.  Uses ``tag`` and ``tag + 1``.

    Helpers call it too; their ``data`` gives the size, is not counted, and holds parts of the result afterwards.
    """
    workers = [rank for rank in range(mesh.size) if rank not in helpers]
    layout = shares(data.size, workers, helpers)
    yield from parameter_server.allreduce(mesh, data, reduction, layout=layout, tag=tag)
