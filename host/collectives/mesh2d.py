# SPDX-License-Identifier: Apache-2.0
"""Two-dimensional mesh, after TidalMesh (HPCA 2025): ranks on a grid talk only to their neighbours, both ways at once.

One dimension of N: all-gather takes N-1 steps; in step t place j sends piece j-t right and piece j+t left, so that each
piece flows out from its owner both ways like a tide; reduce-scatter is the same backwards in time.  A link between
neighbours carries at most N-1 pieces each way, an inner rank sends N+1 in all.

Two dimensions of R x C: reduce-scatter along rows, then columns, all-gather along columns, then rows:
2 (R-1 + C-1) steps.  The second dimension has only 1/C of the data, so one half of the data goes rows first and
the other columns first, both at the same time: neither dimension idles.  Bytes on a link between neighbours in a row,
each way: at most M (C-1)/C + M (C-1)/(RC), likewise in a column.

Good where each neighbour has a link of its own; ranks with one link each are better served by a ring.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from netfold.host.collectives.flow import Strand, interleave, length, split_evenly
from netfold.host.mesh.mesh import Mesh, Subset
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import Reduction


def grid(size: int) -> tuple[int, int]:
    """Rows and columns of a grid of ``size`` places, rows <= columns, as square as possible."""
    rows = next(r for r in range(int(size**0.5), 0, -1) if size % r == 0)
    return rows, size // rows


def allreduce(
    mesh: Mesh,
    data: Flat,
    reduction: Reduction,
    *,
    shape: tuple[int, int] | None = None,
    order: Sequence[int] | None = None,
    tag: int = 0,
) -> Strand:
    """Reduces ``data`` over all ranks, in place.  Uses ``tag`` and ``tag + 1``.

    shape  rows and columns; default: ``grid``
    order  ranks row by row, default: by number.  A row of ranks that are neighbours in the fabric keeps its half of the
           steps under one switch
    """
    if order is not None:
        mesh = Subset(mesh, order)
    rows, columns = grid(mesh.size) if shape is None else shape
    if rows * columns != mesh.size:
        raise ValueError(f"a grid of {rows} x {columns} for {mesh.size} ranks: expected as many places as ranks")
    row, column = divmod(mesh.rank, columns)
    in_row = [row * columns + c for c in range(columns)]
    in_column = [r * columns + column for r in range(rows)]
    first, second = split_evenly(data.size, 2)
    yield from interleave(
        _both_ways(mesh, data[first], reduction, (in_row, in_column), tag),
        _both_ways(mesh, data[second], reduction, (in_column, in_row), tag + 1),
    )


def _both_ways(
    mesh: Mesh, data: Flat, reduction: Reduction, lines: tuple[Sequence[int], Sequence[int]], tag: int
) -> Strand:
    """One half of the data: reduce-scatter along one line and then the other, all-gather back."""
    first, second = lines
    outer = split_evenly(data.size, len(first))
    mine = data[outer[first.index(mesh.rank)]]
    inner = split_evenly(mine.size, len(second))
    yield from reduce_scatter_line(mesh, data, outer, first, reduction, tag=tag)
    yield from reduce_scatter_line(mesh, mine, inner, second, reduction, tag=tag)
    yield from all_gather_line(mesh, mine, inner, second, tag=tag)
    yield from all_gather_line(mesh, data, outer, first, tag=tag)


def all_gather_line(mesh: Mesh, data: Flat, pieces: Sequence[slice], line: Sequence[int], *, tag: int = 0) -> Strand:
    """Fills ``data`` with ``pieces[j]`` of each ``line[j]``; neighbours in ``line`` are linked."""
    n, j = len(line), line.index(mesh.rank)
    for t in range(n - 1):
        if j < n - 1 and j >= t:
            mesh.send(line[j + 1], data[pieces[j - t]], tag=tag)
        if j > 0 and j + t <= n - 1:
            mesh.send(line[j - 1], data[pieces[j + t]], tag=tag)
        arriving = []
        if j > 0 and j - 1 >= t:
            arriving.append(mesh.receive(line[j - 1], data[pieces[j - 1 - t]], tag=tag))
        if j < n - 1 and j + 1 + t <= n - 1:
            arriving.append(mesh.receive(line[j + 1], data[pieces[j + 1 + t]], tag=tag))
        yield arriving


def reduce_scatter_line(
    mesh: Mesh, data: Flat, pieces: Sequence[slice], line: Sequence[int], reduction: Reduction, *, tag: int = 0
) -> Strand:
    """Leaves in ``data[pieces[j]]`` of ``line[j]`` the reduction over the line: the all-gather backwards in time."""
    n, j = len(line), line.index(mesh.rank)
    scratch = np.empty((2, max(map(length, pieces))), data.dtype)
    for t in range(n - 2, -1, -1):
        if j > 0 and j - 1 >= t:
            mesh.send(line[j - 1], data[pieces[j - 1 - t]], tag=tag)
        if j < n - 1 and j + 1 + t <= n - 1:
            mesh.send(line[j + 1], data[pieces[j + 1 + t]], tag=tag)
        arriving = []
        if j < n - 1 and j >= t:
            arriving.append((line[j + 1], data[pieces[j - t]], scratch[0]))
        if j > 0 and j + t <= n - 1:
            arriving.append((line[j - 1], data[pieces[j + t]], scratch[1]))
        yield [mesh.receive(peer, room[: own.size], tag=tag) for peer, own, room in arriving]
        for _, own, room in arriving:
            reduction(own, room[: own.size], out=own)
