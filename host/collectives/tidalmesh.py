# SPDX-License-Identifier: Apache-2.0
"""TidalMesh (HPCA 2025): allreduce among ranks at the places of a mesh whose neighbours have links of their own.

    line of n places   all-gather in n-1 steps: in step t place j sends piece j-t right and piece j+t left, so that each
                       piece flows out from its owner both ways like a tide; reduce-scatter is the same backwards in
                       time (`mesh2d.all_gather_line`, `reduce_scatter_line`)
    dimensions         reduce-scatter along rows, then columns, all-gather along columns, then rows.  One half of the
                       data begins with the rows, the other with the columns, so that no dimension waits for the other
    chunks             each half goes in chunks, one behind the other: a chunk begins a phase when the one before has
                       ended it, and the phases of several chunks overlap

Alone, a line's reduce-scatter uses half of its links on average.  What a link does not carry then it carries in the
all-gather, n pieces in all, the same on every link each way: chunks that gather while others reduce fill the links.

M bytes on R x C places: 2 (R-1 + C-1) steps a chunk; a link along a row carries (1 + 1/R)/2 M each way, one along a
column (1 + 1/C)/2 M, where a ring's link carries 2 (N-1)/N M one way.  On a line, M each way.
"""

from __future__ import annotations

from collections.abc import Sequence

from netfold.host.collectives import mesh2d
from netfold.host.collectives.flow import Gate, Strand, interleave, split_evenly
from netfold.host.mesh.mesh import Mesh, Subset
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import Reduction

TIDALMESH = "tidalmesh"
MOST_CHUNKS = 4
"""Most chunks of each half: more of them overlap more, and wait more often for the slower of two neighbours."""
LEAST_PIECE = 32 << 10
"""Least bytes of a piece if a half is cut into chunks: a shorter message costs as much as a longer one."""
PHASES = 4


def chunks_of(nbytes: int, rows: int, columns: int) -> int:
    """Into how many chunks each half of a tensor goes."""
    return max(1, min(MOST_CHUNKS, nbytes // (2 * max(rows, columns) * LEAST_PIECE)))


def allreduce(
    mesh: Mesh,
    data: Flat,
    reduction: Reduction,
    *,
    places: Sequence[Sequence[int]],
    chunks: int | None = None,
    tag: int = 0,
) -> Strand:
    """Reduces ``data`` over all ranks, in place.  Uses 2 ``chunks`` tags from ``tag`` on.

    places  the rank at each place, row by row
    chunks  of each half; default: `chunks_of`
    """
    rows, columns = len(places), len(places[0])
    if any(len(row) != columns for row in places) or sorted(rank for row in places for rank in row) != list(
            range(mesh.size)):
        raise ValueError(f"places={[list(row) for row in places]}: expected rows of one length, with each of the ranks "
                         f"0 .. {mesh.size - 1} once")
    mesh = Subset(mesh, [rank for row in places for rank in row])
    number = chunks_of(data.nbytes, rows, columns) if chunks is None else chunks
    row, column = divmod(mesh.rank, columns)
    lines = [[row * columns + at for at in range(columns)], [at * columns + column for at in range(rows)]]
    strands: list[Strand] = []
    for order, half in zip((lines, lines[::-1]), split_evenly(data.size, 2), strict=True):
        before = [Gate(done=True) for _ in range(PHASES)]
        for part in split_evenly(half.stop - half.start, number):
            after = [Gate() for _ in range(PHASES)]
            strands.append(_chunk(mesh, data[half][part], reduction, order, before, after, tag + len(strands)))
            before = after
    yield from interleave(*strands)


def _chunk(
    mesh: Mesh, data: Flat, reduction: Reduction, lines: Sequence[Sequence[int]], before: Sequence[Gate],
    after: Sequence[Gate], tag: int,
) -> Strand:
    """One chunk through its four phases, each after that of the chunk before."""
    first, second = lines
    outer = split_evenly(data.size, len(first))
    mine = data[outer[first.index(mesh.rank)]]
    inner = split_evenly(mine.size, len(second))
    phases = (
        mesh2d.reduce_scatter_line(mesh, data, outer, first, reduction, tag=tag),
        mesh2d.reduce_scatter_line(mesh, mine, inner, second, reduction, tag=tag),
        mesh2d.all_gather_line(mesh, mine, inner, second, tag=tag),
        mesh2d.all_gather_line(mesh, data, outer, first, tag=tag),
    )
    for phase, (earlier, ended) in enumerate(zip(before, after, strict=True)):
        yield [earlier]
        yield from phases[phase]
        ended.finish()
