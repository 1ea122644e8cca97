# SPDX-License-Identifier: Apache-2.0
"""`netfold sim mesh`: TidalMesh's allreduce on grids against rings and trees, and its schedule drawn step by step."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from netfold.disk import files
from netfold.plots.charts import GridChart, LineChart, PlotsMissing, grid_charts, line_charts
from netfold.sim.collectives.mesh import ALGORITHMS, ITEM, Grid, runs_on, simulate
from netfold.sim.sweeps.kept import simulate_all
from netfold.sim.workloads.mesh_schedule import MeshMessage, allreduce

PHASES = ("reduce-scatter, first dimension", "reduce-scatter, second", "all-gather, second", "all-gather, first")
HALVES = ("rows first", "columns first")


@dataclass(frozen=True)
class MeshRow:
    """One allreduce on one grid."""

    rows: int
    columns: int
    torus: bool
    kilobytes: int
    """KiB on each place."""
    algorithm: str
    rate: float
    """Bit/s of the links along rows."""
    column_rate: float
    delay: float
    """Seconds from one place to the next."""
    seconds: float
    over_bound: float
    """Time over the least that the rates of the links allow, `bound`."""
    steps: int
    busiest_link: int
    """Bytes on the busiest link, one way."""
    links_used: float
    """Mean of the bytes on all links over those on the busiest one."""


def bound(grid: Grid, nbytes: int) -> float:
    """Seconds below which no allreduce without help in the network can stay, by the rates of the links alone.

    Each place must send its bytes at least once, also the one with the fewest links; and all places together must send
    2 (n-1) times the bytes (Patarasuk and Yuan), over all links together.
    """
    out = [0.0] * grid.size
    for (place, _), rate in zip(grid.links, grid.capacities(), strict=True):
        out[place] += rate
    return max(nbytes / min(out), 2 * (grid.size - 1) * nbytes / sum(out))


def point(rows: int, columns: int, torus: bool, kilobytes: int, algorithm: str, rate: float, column_rate: float,
          delay: float) -> MeshRow:
    """Simulate one allreduce."""
    grid, nbytes = Grid(rows, columns, torus, rate, column_rate, delay), kilobytes << 10
    one = simulate(grid, ALGORITHMS[algorithm](grid, nbytes // ITEM))
    busiest = int(one.link_bytes.max())
    return MeshRow(rows, columns, torus, kilobytes, algorithm, rate, column_rate, delay, one.time,
                   one.time / bound(grid, nbytes), one.steps, busiest, float(one.link_bytes.mean()) / busiest)


def run(grids: Sequence[Grid], sizes: Sequence[int], *, out: Path, schedule: tuple[int, int] = (4, 4),
        resume: bool = False, jobs: int | None = None, echo: Callable[[str], None] = print) -> list[MeshRow]:
    """Simulate every algorithm on every grid, write tables and figures into ``out``, and say which was best.

    sizes      KiB on each place
    schedule   rows and columns of the grid whose schedule is drawn
    resume     take over the rows that an interrupted run has left in mesh.csv
    jobs       processes; None: as joblib is configured, else all cores
    Raises ValueError for sizes below 1 and where that file has other rows, OSError where ``out`` cannot be written.
    Without matplotlib nothing is drawn, and a line says so.
    """
    if low := [size for size in sizes if size < 1]:
        raise ValueError(f"a size of {low[0]} KiB: expected 1 or more")
    messages = allreduce(*schedule, 1 << 10)
    out.mkdir(parents=True, exist_ok=True)
    rows = simulate_all(out / "mesh.csv", MeshRow, point, [
        (grid.rows, grid.columns, grid.wraps, size, name, float(grid.rate), float(grid.column_rate or grid.rate),
         grid.delay)
        for grid in grids for size in sizes for name in ALGORITHMS if runs_on(name, grid)], key=8, resume=resume,
        jobs=jobs, echo=echo)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([MeshMessage._fields, *messages])
    files.replace(out / "schedule.csv", text.getvalue())
    for line in _best(rows):
        echo(line)
    written = ["mesh.csv", "schedule.csv"]
    try:
        written += [file.name for file in (*_draw(rows, out), *draw_schedule(*schedule, messages, out))]
    except PlotsMissing as error:
        echo(f"no figures: {error}")
    echo(f"wrote {', '.join(written)} in {out}")
    return rows


def draw_schedule(rows: int, columns: int, messages: Sequence[MeshMessage], folder: Path) -> list[Path]:
    """Draw who sends to whom in every step of a schedule and return the file, schedule.svg.

    An arrow's colour is the half of the data that it carries.
    """
    charts = []
    for step in range(1 + max(message.step for message in messages)):
        such = [message for message in messages if message.step == step]
        phases = sorted({message.phase for message in such})
        charts.append(GridChart(f"Step {step}: {' / '.join(PHASES[phase] for phase in phases)}",
                                [(m.source, m.destination, HALVES[m.strand]) for m in such]))
    return grid_charts(folder / "schedule", f"TidalMesh's schedule on {rows} x {columns} places: which half of the "
                       "data goes where", charts, rows=rows, columns=columns)


def _draw(rows: Sequence[MeshRow], folder: Path) -> list[Path]:
    """Time over the ring's by size, a chart for each grid."""
    sizes = sorted({row.kilobytes for row in rows})
    cells = _cells(rows)
    charts = [LineChart(grid, [_size(size) for size in sizes],
                        {name: [cells[grid, size][name].seconds / cells[grid, size]["ring"].seconds
                                if name in cells[grid, size] else None for size in sizes] for name in ALGORITHMS})
              for grid in dict.fromkeys(grid for grid, _ in cells)]
    lines = [charts[i:i + 2] for i in range(0, len(charts), 2)]
    return line_charts(folder / "mesh", "Below 1, an allreduce on a mesh ends earlier than a ring along its links",
                       lines, x="bytes on each place", y="time / the ring's")


def _best(rows: Sequence[MeshRow]) -> list[str]:
    """A line about the fastest algorithm of each grid at the smallest and at the largest size."""
    ends = {min(row.kilobytes for row in rows), max(row.kilobytes for row in rows)}
    fastest = {key: (min(cell.values(), key=lambda row: row.seconds), cell["ring"])
               for key, cell in _cells(rows).items() if key[1] in ends}
    return [f"{grid}, {_size(size)}: best is {row.algorithm}, {row.seconds / ring.seconds:.2f} of the ring's time, "
            f"{row.over_bound:.2f} of what links allow" for (grid, size), (row, ring) in fastest.items()]


def _cells(rows: Sequence[MeshRow]) -> dict[tuple[str, int], dict[str, MeshRow]]:
    """Rows by algorithm, for each grid and number of KiB."""
    found: dict[tuple[str, int], dict[str, MeshRow]] = {}
    for row in rows:
        grid = f"{row.rows} x {row.columns}{' torus' if row.torus else ''}"
        found.setdefault((grid, row.kilobytes), {})[row.algorithm] = row
    return found


def _size(kilobytes: int) -> str:
    return f"{kilobytes >> 10} MiB" if kilobytes >= 1024 and not kilobytes % 1024 else f"{kilobytes} KiB"
