# SPDX-License-Identifier: Apache-2.0
"""Schedules of allreduce on a two-dimensional grid whose places are linked to their neighbours alone.

    tide    TidalMesh (HPCA 2025) along a line of N places: in step t of an all-gather, place j sends piece j-t right
            and piece j+t left, so that each piece flows out from its owner both ways; reduce-scatter is the same
            backwards in time.  N-1 steps each.
    ring    a ring along a line: in step t each place sends one piece to the next; from the last place to the first goes
            over the whole line, or over one link where the grid wraps around.  N-1 steps each.

On a grid a *strand* is a part of the data that is reduce-scattered along one dimension, then along the other, and
gathered back.  Strands differ in which dimension is first, so that neither idles: the data of the second one are only
a part of those of the first.  Chunks follow each other through the four phases.  What a link does not carry in a
tide's reduce-scatter it carries in its all-gather, N pieces in all, the same on every link: so chunks that gather while
others reduce fill all links evenly, and as few bytes go over each link as any allreduce can do with.

The strands "halves" with the tide are what the library does between hosts (host/collectives/mesh2d.py); a test holds
both against each other, message by message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

Hop = tuple[int, int, int]
"""(place that sends, place that receives, number of the piece) on a line."""
Way = Literal["reduce-scatter", "all-gather"]
Order = Literal["halves", "rows first"]


class MeshMessage(NamedTuple):
    """Elements ``low .. high`` from one place of the grid to another."""

    strand: int
    phase: int
    """0 .. 3: reduce-scatter along the first dimension and along the second, all-gather back."""
    step: int
    """Number of the step within the strand."""
    source: int
    destination: int
    low: int
    high: int

    @property
    def way(self) -> Way:
        """The receiver's use of the data: it adds the data to its own, or takes it."""
        return "reduce-scatter" if self.phase < 2 else "all-gather"


def tide(n: int, way: Way) -> list[list[Hop]]:
    """The steps of TidalMesh along a line of n places; piece j belongs to place j."""
    steps = []
    for t in range(n - 1):
        right = [(j, j + 1, j - t) for j in range(t, n - 1)]
        left = [(j, j - 1, j + t) for j in range(1, n - t)]
        steps.append(right + left)
    return steps if way == "all-gather" else _backwards(steps)


def ring(n: int, way: Way) -> list[list[Hop]]:
    """The steps of a ring along a line of n places; piece j belongs to place j."""
    first = 1 if way == "reduce-scatter" else 0
    return [[(j, (j + 1) % n, (j - first - t) % n) for j in range(n)] for t in range(n - 1)]


def _backwards(steps: Sequence[Sequence[Hop]]) -> list[list[Hop]]:
    return [[(to, at, piece) for at, to, piece in step] for step in reversed(steps)]


Line = Callable[[int, Way], list[list[Hop]]]


def allreduce(rows: int, columns: int, count: int, *, line: Line = tide, order: Order = "halves",
              chunks: int = 1) -> list[MeshMessage]:
    """The messages of an allreduce of ``count`` elements, strand by strand, each in the order of its steps.

    line     how to go along a row or column
    order    "halves": one half of the data goes along the rows first, the other along the columns first, at the same
             time; "rows first": all of it along the rows
    chunks   parts that each half is cut into, which follow each other
    Raises ValueError for a grid of fewer than 2 places, or no chunk.
    """
    if rows < 1 or columns < 1 or rows * columns < 2 or chunks < 1 or count < 0:
        raise ValueError(f"mesh: a grid of {rows} x {columns}, {count} elements in {chunks} chunks; expected 2 places "
                         "or more, at least 0 elements and at least 1 chunk")
    in_rows = [[row * columns + column for column in range(columns)] for row in range(rows)]
    in_columns = [[row * columns + column for row in range(rows)] for column in range(columns)]
    ways = [(in_rows, in_columns), (in_columns, in_rows)] if order == "halves" else [(in_rows, in_columns)]
    messages: list[MeshMessage] = []
    for half, ((low, high), (first, second)) in enumerate(zip(split(0, count, len(ways)), ways, strict=True)):
        for chunk, part in enumerate(split(low, high, chunks)):
            messages += _strand(half * chunks + chunk, part, first, second, line)
    return messages


def split(low: int, high: int, parts: int) -> list[tuple[int, int]]:
    """Cut low .. high into parts whose lengths differ by one at most, as the library's `split_evenly` does."""
    bounds = [low + (high - low) * i // parts for i in range(parts + 1)]
    return list(pairwise(bounds))


def _strand(number: int, part: tuple[int, int], first: list[list[int]], second: list[list[int]],
            line: Line) -> list[MeshMessage]:
    """The four phases of one part of the data: along the lines ``first``, then ``second``, and back."""
    outer = split(*part, len(first[0]))
    inner = {place: split(*outer[j], len(second[0])) for group in first for j, place in enumerate(group)}
    plan: list[tuple[list[list[int]], Way, bool]] = [
        (first, "reduce-scatter", True), (second, "reduce-scatter", False),
        (second, "all-gather", False), (first, "all-gather", True)]
    messages, step = [], 0
    for phase, (groups, way, whole) in enumerate(plan):
        for hops in line(len(groups[0]), way):
            for group in groups:
                pieces = outer if whole else inner[group[0]]
                messages += [MeshMessage(number, phase, step, group[a], group[b], *pieces[piece])
                             for a, b, piece in hops]
            step += 1
    return messages
