# SPDX-License-Identifier: Apache-2.0
"""`netfold bench osu-bcast`: broadcasts over the real fabric in the form of the OSU micro-benchmarks' osu_bcast.

As there, ranks meet at a barrier, each times its own call, and a table has, for each size, the average over ranks of
their mean latencies, and the least and greatest of these.  A table for each way:

    flat                the root sends to every other rank, one after the other
    binomial, chain, scatter_all_gather    between hosts
    hierarchical        binomial among the first ranks under each leaf switch, then binomial under each
    innet               the switches copy the root's packets to all: in-network multicast
    gloo                torch.distributed's, where torch is installed

Ways take turns over sizes and rounds, each result is checked, and messages begin in the same state of the machine.
"""

from __future__ import annotations

import csv
import io
import statistics
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from netfold.bench.commands.collectives import sizes_of
from netfold.bench.ranks.collectives import FLAT, GLOO, HIERARCHICAL, Cell, CollectivesResult, CollectivesTask
from netfold.disk import files
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Engine, rate_in_words
from netfold.plots.charts import LineChart, line_charts
from netfold.topo.network import sandbox

WAYS: Final = (FLAT, "binomial", "chain", "scatter_all_gather", HIERARCHICAL, "innet")
"""How a broadcast is made, besides gloo's."""
LEAVES: Final = 2
"""Leaf switches, and spines, of the fabric."""


class OsuRow(msgspec.Struct, frozen=True):
    """One way and size; latencies in microseconds."""

    way: str
    size: int
    average: float
    """Mean over ranks of each rank's mean."""
    least: float
    greatest: float
    iterations: int


def rows_of(cells: Sequence[Cell], results: Sequence[CollectivesResult]) -> list[OsuRow]:
    """The figures of all cells, way after way."""
    rows = []
    for place, cell in enumerate(cells):
        of_ranks = [[second for rounds in result.seconds for second in rounds[place]] for result in results]
        means = [statistics.fmean(seconds) * 1e6 for seconds in of_ranks]
        rows.append(OsuRow(cell.algorithm, cell.nbytes, statistics.fmean(means), min(means), max(means),
                           len(of_ranks[0])))
    return rows


def text(rows: Sequence[OsuRow]) -> str:
    """Tables as osu_bcast -f prints them, one for each way."""
    lines = []
    for way in dict.fromkeys(row.way for row in rows):
        lines += [f"# Broadcast latency by {way}, in the form of osu_bcast",
                  f"{'# Size':<10}" + "".join(f"{name + ' Latency(us)':>20}" for name in ("Avg", "Min", "Max"))
                  + f"{'Iterations':>14}"]
        lines += [f"{row.size:<10}{row.average:>20.2f}{row.least:>20.2f}{row.greatest:>20.2f}{row.iterations:>14}"
                  for row in rows if row.way == way]
    return "\n".join(lines)


def write(rows: Sequence[OsuRow], title: str, folder: Path) -> list[Path]:
    """Write bcast.csv and draw bcast.svg in a folder, which is made.  Raises PlotsMissing, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    data = io.StringIO()
    table = csv.writer(data, lineterminator="\n")
    table.writerow(["way", "bytes", "average us", "least us", "greatest us", "iterations"])
    table.writerows([row.way, row.size, f"{row.average:.2f}", f"{row.least:.2f}", f"{row.greatest:.2f}",
                     row.iterations] for row in rows)
    files.replace(folder / "bcast.csv", data.getvalue().encode())
    return [folder / "bcast.csv", *draw(rows, title, folder)]


def draw(rows: Sequence[OsuRow], title: str, folder: Path) -> list[Path]:
    """Draw bcast.svg and bcast.pdf in a folder.  Raises PlotsMissing, OSError."""
    ways, sizes = list(dict.fromkeys(row.way for row in rows)), list(dict.fromkeys(row.size for row in rows))
    of = {(row.way, row.size): row for row in rows}
    ticks = [size / 1024 for size in sizes]
    charts = [[LineChart("Average over ranks", ticks, {way: [of[way, size].average for size in sizes] for way in ways}),
               LineChart("Slowest rank", ticks, {way: [of[way, size].greatest for size in sizes] for way in ways})]]
    return line_charts(folder / "bcast", f"How long a broadcast takes: {title}", charts, x="message, KiB",
                       y="latency, µs")


def run(
    *, ranks: int, rate: str, engine: Engine, sizes: str, rounds: int, iterations: int, json: Path | None,
    out: Path | None,
) -> list[OsuRow]:
    """Measure in a sandbox, where the process starts anew, and print the tables.

    sizes  bytes by commas, with K and M
    Raises ValueError for what cannot be measured, PlotsMissing and OSError for ``out``.
    """
    if ranks < 2 * LEAVES or ranks % LEAVES or rounds < 1 or iterations < 1:
        raise ValueError(f"--ranks {ranks} --rounds {rounds} --iters {iterations}: expected as many ranks on each of "
                         f"{LEAVES} leaves, 2 at least, and one of each")
    ways = (*WAYS, *([GLOO] if find_spec("torch") is not None else []))
    cells = [Cell("broadcast", nbytes, way) for way in ways for nbytes in sizes_of(sizes)]
    sandbox.enter()
    from netfold.topo.network.net import Network

    fabric = leafspine(LEAVES, LEAVES, ranks, rate=None if rate == "none" else rate, engine=engine,
                       rundir=sandbox.rundir())
    task = CollectivesTask(cells, rounds, iterations, leaf=ranks // LEAVES)
    command = [sys.executable, "-m", "netfold.bench.ranks.collectives", msgspec.json.encode(task).decode()]
    links = "links not shaped" if rate == "none" else f"links of {rate_in_words(rate)}"
    title = f"{ranks} ranks, {LEAVES} leaves and {LEAVES} spines ({engine}), {links}"
    print(f"# {title}; {rounds} rounds of {iterations}")
    with tempfile.TemporaryDirectory(dir=sandbox.rundir()) as logs, Network(fabric, logs=Path(logs)) as network:
        lines = network.launch(command, job="bcast").wait(within=60 + task.timeout * rounds * len(cells))
    rows = rows_of(cells, [msgspec.json.decode(line[-1], type=CollectivesResult) for line in lines])
    print(text(rows), flush=True)
    if json is not None:
        files.replace(json, msgspec.json.format(msgspec.json.encode(rows), indent=1))
    if out is not None:
        for file in write(rows, title, out):
            print(f"# {file}")
    return rows
