# SPDX-License-Identifier: Apache-2.0
"""Hierarchical allreduce (NetReduce's "parallel" scheme): within groups, across them, within them again.

H groups of m ranks, M bytes, inside a group over its own links or shared memory:
  reduce-scatter in the group   m-1 steps, (m-1)/m M bytes each way inside (shared memory: none)
  allreduce across              rank i of every group, on its piece of M/m bytes: as that algorithm on H ranks
  all-gather in the group       m-1 steps, (m-1)/m M bytes
All m ranks of a machine share its link: it carries 2 (H-1)/H M bytes in all with a ring across, M where the switches
fold.

With groups of different sizes there are as many pieces as the smallest group has ranks, held by each group's first
ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from netfold.host.collectives import ring
from netfold.host.collectives.flow import Strand, split_evenly
from netfold.host.collectives.inner_step import InnerStep
from netfold.host.mesh.mesh import Mesh, Subset
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import Reduction

Across = Callable[[Mesh, Flat, Reduction], Strand]
"""Allreduce of a piece among one rank of each group."""


def allreduce(
    mesh: Mesh,
    data: Flat,
    reduction: Reduction,
    *,
    groups: Sequence[Sequence[int]],
    across: Across = ring.allreduce,
    rows: InnerStep | None = None,
    tag: int = 0,
) -> Strand:
    """Reduces ``data`` over all ranks, in place.

    groups  disjoint groups that together hold every rank
    across  the algorithm between groups
    rows    what this rank's group reduces and gathers by; default: messages.  The same choice on all ranks of a group
    """
    _check(mesh, groups)
    mine = next(group for group in groups if mesh.rank in group)
    local, parts = Subset(mesh, mine), min(map(len, groups))
    peers = Subset(mesh, [group[local.rank] for group in groups]) if local.rank < parts else None
    for window in [slice(0, data.size)] if rows is None else rows.windows(data.size, data.itemsize):
        view = data[window]
        pieces = first_pieces(view.size, parts, local.size)
        if rows is None:
            yield from ring.reduce_scatter(local, view, pieces, reduction, tag=tag)
        else:
            yield from rows.reduce_scatter(view, view, reduction, pieces)
        if peers is not None:
            yield from across(peers, view[pieces[local.rank]], reduction)
        if rows is None:
            yield from ring.all_gather(local, view, pieces, tag=tag)
        else:
            yield from rows.all_gather(view, pieces)


def first_pieces(count: int, parts: int, ranks: int) -> list[slice]:
    """``count`` elements as a piece for each of the first ``parts`` ranks of a group; the others' are empty."""
    return split_evenly(count, parts) + [slice(count, count)] * (ranks - parts)


def _check(mesh: Mesh, groups: Sequence[Sequence[int]]) -> None:
    if sorted(rank for group in groups for rank in group) != list(range(mesh.size)) or not all(groups):
        raise ValueError(
            f"groups={[list(group) for group in groups]}: expected each rank of 0 .. {mesh.size - 1} in one group"
        )
