# SPDX-License-Identifier: Apache-2.0
"""`netfold sim mesh`: TidalMesh's allreduce on grids against rings and trees, and its schedule drawn step by step."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from math import inf
from pathlib import Path

from netfold.disk import files
from netfold.plots.charts import GridChart, LineChart, PlotsMissing, grid_charts, line_charts
from netfold.sim.kept import Progress
from netfold.sim.mesh import ALGORITHMS, ITEM, Grid, runs_on, simulate
from netfold.sim.mesh_schedule import MeshMessage, allreduce

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
    seconds: float
    over_ring: float
    """Time over that of the ring along links, on the same grid with as many bytes."""
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


def compare(grids: Sequence[Grid], sizes: Sequence[int], algorithms: Sequence[str] = tuple(ALGORITHMS), *,
            echo: Callable[[str], None] = print) -> list[MeshRow]:
    """Simulate every algorithm on every grid with ``sizes`` KiB on each place.

    Raises ValueError for an unknown algorithm and sizes below 1.
    """
    if unknown := [name for name in algorithms if name not in ALGORITHMS]:
        raise ValueError(f"no algorithm is called {unknown[0]!r}; there are {', '.join(ALGORITHMS)}")
    if low := [size for size in sizes if size < 1]:
        raise ValueError(f"a size of {low[0]} KiB: expected 1 or more")
    rows: list[MeshRow] = []
    progress = Progress(len(grids) * len(sizes), 0)
    for grid in grids:
        for size in sizes:
            nbytes = size << 10
            found = {name: simulate(grid, ALGORITHMS[name](grid, nbytes // ITEM))
                     for name in dict.fromkeys(["ring", *algorithms]) if runs_on(name, grid)}
            ring = found["ring"].time
            for name, one in found.items():
                if name in algorithms:
                    busiest = int(one.link_bytes.max())
                    rows.append(MeshRow(grid.rows, grid.columns, grid.wraps, size, name, one.time, one.time / ring,
                                        one.time / bound(grid, nbytes), one.steps, busiest,
                                        float(one.link_bytes.mean()) / busiest))
            said = "  ".join(f"{name} {one.time * 1e6:.0f}" for name, one in found.items())
            echo(f"{progress.step()}: {_name(grid)} {_size(size)}, us: {said}")
    return rows


def run(grids: Sequence[Grid], sizes: Sequence[int], *, out: Path, schedule: tuple[int, int] = (4, 4),
        echo: Callable[[str], None] = print) -> list[MeshRow]:
    """Simulate, write mesh.csv, schedule.csv, mesh.svg and schedule.svg into ``out``, and say what was best.

    schedule   rows and columns of the grid whose schedule is drawn
    Raises ValueError, OSError where ``out`` cannot be written. Without matplotlib nothing is drawn, and a line says so.
    """
    messages = allreduce(*schedule, 1 << 10)
    rows = compare(grids, sizes, echo=echo)
    out.mkdir(parents=True, exist_ok=True)
    _table(out / "mesh.csv", [field.name for field in fields(MeshRow)], map(astuple, rows))
    _table(out / "schedule.csv", [*MeshMessage._fields], messages)
    for row in _best(rows):
        echo(f"{row.rows} x {row.columns}{' torus' if row.torus else ''}, {_size(row.kilobytes)}: best is "
             f"{row.algorithm}, {row.over_ring:.2f} of the ring's time, {row.over_bound:.2f} of what links allow")
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
    charts = []
    for rows_, columns, torus in dict.fromkeys((row.rows, row.columns, row.torus) for row in rows):
        value = {(row.algorithm, row.kilobytes): row.over_ring for row in rows
                 if (row.rows, row.columns, row.torus) == (rows_, columns, torus)}
        charts.append(LineChart(f"{rows_} x {columns}{' torus' if torus else ''}", [_size(size) for size in sizes],
                                {name: [value.get((name, size)) for size in sizes] for name in ALGORITHMS}))
    lines = [charts[i:i + 2] for i in range(0, len(charts), 2)]
    return line_charts(folder / "mesh", "Below 1, an allreduce on a mesh ends earlier than a ring along its links",
                       lines, x="bytes on each place", y="time / the ring's")


def _best(rows: Sequence[MeshRow]) -> list[MeshRow]:
    """The fastest algorithm of each grid at the smallest and at the largest size."""
    sizes = {min(row.kilobytes for row in rows), max(row.kilobytes for row in rows)}
    best: dict[tuple[int, int, bool, int], MeshRow] = {}
    for row in rows:
        key = (row.rows, row.columns, row.torus, row.kilobytes)
        if row.kilobytes in sizes and row.seconds < (best[key].seconds if key in best else inf):
            best[key] = row
    return list(best.values())


def _name(grid: Grid) -> str:
    return f"{grid.rows} x {grid.columns}{' torus' if grid.wraps else ''}"


def _size(kilobytes: int) -> str:
    return f"{kilobytes >> 10} MiB" if kilobytes >= 1024 and not kilobytes % 1024 else f"{kilobytes} KiB"


def _table(path: Path, names: Sequence[str], lines: Iterable[Iterable[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(lines)
    files.replace(path, text.getvalue())
