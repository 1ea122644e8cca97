# SPDX-License-Identifier: Apache-2.0
"""Allreduce on a two-dimensional grid of hosts that are linked to their neighbours: who sends what, and when it ends.

Between two neighbours there is a link each way.  Flows between places that are no neighbours go along their row first,
then along the column, through the places between, which forward without a loss of time.  Flows that share a link share
its rate max-min fairly (`fluid.flow`); the last byte arrives one ``delay`` a link after it was sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from netfold.fabric.generate import grids
from netfold.sim.engines import fluid
from netfold.sim.engines.placement import Placement
from netfold.sim.workloads import mesh_schedule, workload
from netfold.sim.workloads.mesh_schedule import MeshMessage
from netfold.sim.workloads.workload import Workload

ITEM = 4
"""Bytes of an element."""


@dataclass(frozen=True)
class Grid:
    """Places row by row, and the links between neighbours."""

    rows: int
    columns: int
    wraps: bool = False
    """True if the first and the last place of each row and column are neighbours too: a torus."""
    rate: float = 400e9
    """Bit/s of each link, each way."""
    column_rate: float | None = None
    """Bit/s of the links along columns, where that differs."""
    delay: float = 500e-9
    """Seconds from one place to the next."""

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1 or self.rows * self.columns < 2:
            raise ValueError(f"a grid of {self.rows} x {self.columns}: expected 2 places or more")
        if not self.rate > 0 or not (self.column_rate is None or self.column_rate > 0) or not self.delay >= 0:
            raise ValueError(f"a grid's links of {self.rate} and {self.column_rate} bit/s and {self.delay} s: expected "
                             "rates above 0 and a delay of at least 0")

    @property
    def size(self) -> int:
        """Number of places."""
        return self.rows * self.columns

    @cached_property
    def links(self) -> dict[tuple[int, int], int]:
        """The number of the link from a place to a neighbour, by (place, neighbour)."""
        found: dict[tuple[int, int], int] = {}
        for place in range(self.size):
            row, column = divmod(place, self.columns)
            for r, c in ((row, column + 1), (row + 1, column)):
                inside = r < self.rows and c < self.columns
                around = self.wraps and (self.columns if r == row else self.rows) > 2
                if inside or around:
                    other = r % self.rows * self.columns + c % self.columns
                    found[place, other] = len(found)
                    found[other, place] = len(found)
        return found

    def capacities(self) -> NDArray[np.float64]:
        """float64[links]: bytes a second."""
        return np.array([(self.rate if a // self.columns == b // self.columns else self.column_rate or self.rate) / 8
                         for a, b in self.links])

    def route(self, source: int, destination: int) -> list[int]:
        """The places on the way, both ends included: along the row first, and the shorter way around a torus."""
        row, column = divmod(source, self.columns)
        to_row, to_column = divmod(destination, self.columns)
        way = [row * self.columns + at for at in self._along(column, to_column, self.columns)]
        return way + [at * self.columns + to_column for at in self._along(row, to_row, self.rows)[1:]]

    def _along(self, a: int, b: int, length: int) -> list[int]:
        ahead, back = (b - a) % length, (a - b) % length
        forward = ahead <= back if self.wraps else a <= b
        return [(a + (step if forward else -step)) % length for step in range((ahead if forward else back) + 1)]

    def cycle(self) -> list[int]:
        """The places in an order in which each is the neighbour of the next.

        The last one is the neighbour of the first where rows or columns are even in number; odd grids have no such
        cycle, and the last one is in the same row.
        """
        return [row * self.columns + column for row, column in grids.cycle(self.rows, self.columns)]


@dataclass(frozen=True)
class MeshOutcome:
    """The result of one allreduce."""

    time: float
    """Seconds."""
    steps: int
    """Messages of the longest chain in which each waits for the one before."""
    link_bytes: NDArray[np.int64]
    """int64[links], by the numbers of `Grid.links`."""


def simulate(grid: Grid, work: Workload) -> MeshOutcome:
    """Let a workload among the places of a grid run to its end.

    Raises ValueError for places that the grid does not have, SimulationError for lack of memory.
    """
    if work.total and max(work.source.max(), work.destination.max()) >= grid.size:
        raise ValueError(f"workload: place {max(work.source.max(), work.destination.max())} is not among the grid's "
                         f"{grid.size}")
    flows = np.flatnonzero(work.size)
    routes = [grid.route(a, b) for a, b in zip(work.source[flows].tolist(), work.destination[flows].tolist(),
                                               strict=True)]
    links = [[grid.links[pair] for pair in pairwise(route)] for route in routes]
    first = np.cumsum([0, *map(len, links)]).astype(np.int64)
    flat = np.array([link for each in links for link in each], np.uint32)
    usage = fluid.Usage(first, flat, np.ones(len(flat), np.float32))
    size: NDArray[np.int64] = work.size[flows]
    placed = Placement(flows, size, np.zeros(len(flows), np.int64), np.ones(len(flows)))
    latency = np.zeros(len(work))
    latency[flows] = grid.delay * np.diff(first)
    outcome = fluid.flow(work, placed, size.astype(np.float64), usage, grid.capacities(), latency)
    carried = np.bincount(flat, np.repeat(size, np.diff(first)), minlength=len(grid.links)).astype(np.int64)
    return MeshOutcome(outcome.time, depth(work), carried)


def depth(work: Workload) -> int:
    """Flows of the longest chain in which each waits for the one before."""
    steps = Workload(work.source, work.destination, work.size, (work.size > 0).astype(float), work.step, work.waits)
    return round(steps.idle)


def flows_of(messages: list[MeshMessage], item: int = ITEM) -> Workload:
    """The messages of a schedule as flows.

    A place sends its messages of a step when it has received those of the step before in the same strand, and one
    message after the other on each link.  Where strands follow each other as chunks of the same data (neighbouring
    numbers that begin along the same dimension), a place begins a phase of one when it is through with that phase of
    the one before.
    """
    waits: list[tuple[int, int]] = []
    arrived: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)  # (strand, place): last message from each place
    on_link: dict[tuple[int, int, int], int] = {}
    ends: dict[tuple[int, int, int], dict[int, int]] = defaultdict(dict)  # (strand, phase, place)
    begun: set[tuple[int, int, int]] = set()
    follows = _follows(messages)
    for group in _by_step(messages).values():
        for number in group:
            one = messages[number]
            before = set(arrived[one.strand, one.source].values())
            if (one.strand, one.source, one.destination) in on_link:
                before.add(on_link[one.strand, one.source, one.destination])
            phase = (one.strand, one.phase, one.source)
            if one.strand in follows and phase not in begun:
                before |= set(ends[one.strand - 1, one.phase, one.source].values())
            waits += [(other, number) for other in before]
        for number in group:
            one = messages[number]
            begun.add((one.strand, one.phase, one.source))
            arrived[one.strand, one.destination][one.source] = number
            on_link[one.strand, one.source, one.destination] = number
            ends[one.strand, one.phase, one.destination][one.source] = number
    columns = np.array([(m.source, m.destination, max(1, item * (m.high - m.low)), m.step) for m in messages],
                       np.int64).reshape(-1, 4)
    return Workload(columns[:, 0], columns[:, 1], columns[:, 2], np.zeros(len(messages)), columns[:, 3],
                    np.array(waits, np.int64).reshape(-1, 2))


def _by_step(messages: list[MeshMessage]) -> dict[tuple[int, int], list[int]]:
    """Numbers of messages by (strand, step), strand after strand."""
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, message in enumerate(messages):
        found[message.strand, message.step].append(number)
    return dict(sorted(found.items()))


def _follows(messages: list[MeshMessage]) -> set[int]:
    """The strands that follow the one before: both cut the same lines, and their data are adjacent."""
    lines: dict[int, tuple[int, int]] = {}
    for one in messages:
        lines.setdefault(one.strand, (one.source, one.destination))
    return {strand for strand, line in lines.items() if lines.get(strand - 1) == line}


def _grid_schedule(grid: Grid, count: int, *, line: mesh_schedule.Line, order: mesh_schedule.Order = "halves",
                   chunks: int = 1) -> Workload:
    return flows_of(mesh_schedule.allreduce(grid.rows, grid.columns, count, line=line, order=order, chunks=chunks))


def _two_rings(grid: Grid, count: int) -> Workload:
    order = grid.cycle()
    return workload.beside([workload.ring(order, ITEM * (count // 2)),
                            workload.ring(order[::-1], ITEM * (count - count // 2))])


def _trees(grid: Grid, count: int) -> Workload:
    return workload.double_binary_tree(range(grid.size), ITEM * count, segment=max(64 << 10, ITEM * count // 32))


ALGORITHMS: dict[str, Callable[[Grid, int], Workload]] = {
    "ring": lambda grid, count: workload.ring(grid.cycle(), ITEM * count),
    "ring by number": lambda grid, count: workload.ring(range(grid.size), ITEM * count),
    "two rings": _two_rings,
    "halving-doubling": lambda grid, count: workload.halving_doubling(range(grid.size), ITEM * count),
    "double-binary-tree": _trees,
    "rings of rows and columns": partial(_grid_schedule, line=mesh_schedule.ring),
    "tide, rows first": partial(_grid_schedule, line=mesh_schedule.tide, order="rows first"),
    "tide, rows first, 16 chunks": partial(_grid_schedule, line=mesh_schedule.tide, order="rows first", chunks=16),
    "tide, both halves": partial(_grid_schedule, line=mesh_schedule.tide),
    "tide, both halves, 4 chunks": partial(_grid_schedule, line=mesh_schedule.tide, chunks=4),
    "tide, both halves, 16 chunks": partial(_grid_schedule, line=mesh_schedule.tide, chunks=16),
}
"""Allreduces of 4-byte elements: (grid, number of elements) -> flows.

    ring                 around a cycle through all places along links; "by number" row by row, as a ring that knows
                         nothing of the grid
    two rings            the same cycle both ways, half of the data each
    halving-doubling     2^k places alone
    double-binary-tree   of places by their numbers, in 32 segments or of 64 KiB
    rings of ...         rings along the rows and along the columns, one half of the data first along each
    tide, ...            TidalMesh, with the dimensions one after the other, overlapped by chunks, or by halves that
                         begin along different dimensions
"""


def runs_on(name: str, grid: Grid) -> bool:
    """True if an algorithm can run on a grid: halving and doubling needs 2^k places."""
    return name != "halving-doubling" or grid.size & (grid.size - 1) == 0
