# SPDX-License-Identifier: Apache-2.0
"""`netfold bench parameter-server`: steps by servers that hold the parameters beside allreduces and an optimizer on
every rank.

Adam on uneven tensors, one of them as large as all others together, without computing gradients: what a step costs
beside them.  Every rank is a worker, and one, half or all of them serve.  Ways take turns; a step's time is the slowest
rank's after a barrier, a round's the median of its steps, the figure the median of the rounds'.
"""

from __future__ import annotations

import csv
import io
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from netfold.bench.commands.allreduce import size
from netfold.bench.ranks.parameters import ParametersResult, ParametersTask, StepWay
from netfold.disk import files
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Engine, rate_in_words
from netfold.plots.charts import BarChart, Whisker, bar_charts
from netfold.topo.network import sandbox
from netfold.topo.processes.failures import WrongData


class ParametersRow(msgspec.Struct, frozen=True):
    """One way.  Times in seconds."""

    way: str
    step: float
    best: float
    worst: float
    """The least and most of the rounds."""
    of_ring: float
    """Times the ring's step of the same round: the median of the rounds."""
    processor: float
    """Processor time of a rank for a step: the mean over ranks of the median round."""
    processor_most: float
    """The same of the rank that spends most."""


def ways_of(ranks: int) -> list[StepWay]:
    """The ring first, which all others are compared with."""
    return [
        StepWay("ring + optimizer on all", algorithm="ring"),
        StepWay("in-network + optimizer on all", algorithm="innet"),
        StepWay("all serve", servers=ranks), StepWay(f"{ranks // 2} serve", servers=ranks // 2),
        StepWay("one serves", servers=1),
    ]


def uneven(nbytes: int) -> list[int]:
    """Elements of tensors of float32: half of the bytes in one, a quarter in the next, and so on."""
    left, sizes = nbytes // 4, []
    while left > 64:
        sizes.append(left // 2)
        left -= left // 2
    return [*sizes, left]


def rows_of(ways: Sequence[StepWay], results: Sequence[ParametersResult]) -> list[ParametersRow]:
    """The figures of all ways.  Raises WrongData where ranks ended with unlike parameters."""
    if any(result.digests != results[0].digests for result in results):
        raise WrongData(f"the ranks ended with unlike parameters: {[result.digests for result in results]}")
    rounds = range(len(results[0].seconds))
    steps = [[statistics.median(map(max, zip(*(result.seconds[number][at] for result in results), strict=True)))
              for number in rounds] for at in range(len(ways))]
    rows = []
    for at, way in enumerate(ways):
        spent = [statistics.median(result.processor[number][at] for number in rounds) for result in results]
        rows.append(ParametersRow(
            way.name, statistics.median(steps[at]), min(steps[at]), max(steps[at]),
            statistics.median(mine / ring for mine, ring in zip(steps[at], steps[0], strict=True)),
            statistics.fmean(spent), max(spent),
        ))
    return rows


def write(rows: Sequence[ParametersRow], title: str, folder: Path) -> list[Path]:
    """Write parameter-server.csv and draw parameter-server.svg in a folder, which is made.

    Raises PlotsMissing, OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = io.StringIO()
    table = csv.writer(data, lineterminator="\n")
    table.writerow(["way", "step ms", "best round ms", "worst round ms", "of the ring", "processor ms of a rank",
                    "processor ms of the busiest rank"])
    table.writerows([row.way, *(f"{value * 1e3:.3f}" for value in (row.step, row.best, row.worst)),
                     f"{row.of_ring:.3f}", f"{row.processor * 1e3:.3f}", f"{row.processor_most * 1e3:.3f}"]
                    for row in rows)
    files.replace(folder / "parameter-server.csv", data.getvalue().encode())
    return [folder / "parameter-server.csv", *draw(rows, title, folder)]


def draw(rows: Sequence[ParametersRow], title: str, folder: Path) -> list[Path]:
    """Draw parameter-server.svg and parameter-server.pdf in a folder.  Raises PlotsMissing, OSError."""
    charts = [BarChart("How long a step takes, over rounds", {
                  row.way: {row.way: Whisker(row.step * 1e3, row.best * 1e3, row.worst * 1e3)} for row in rows},
                  "time of a step, ms"),
              BarChart("What the busiest rank computes", {row.way: {row.way: row.processor_most * 1e3} for row in rows},
                       "processor time of a step, ms")]
    return bar_charts(folder / "parameter-server", f"What a step costs by servers and by allreduces: {title}", charts)


def run(
    *, ranks: int, rate: str, engine: Engine, nbytes: str, rounds: int, steps: int, json: Path | None,
    out: Path | None,
) -> list[ParametersRow]:
    """Measure in a sandbox, where the process starts anew, and print the table.

    nbytes  of all parameters, with K and M
    Raises ValueError for what cannot be measured, WrongData, PlotsMissing and OSError for ``out``.
    """
    total = size(nbytes, "--bytes")
    if ranks < 2 or ranks % 2 or rounds < 1 or steps < 1 or total < 1024:
        raise ValueError(f"--ranks {ranks} --rounds {rounds} --steps {steps} --bytes {nbytes}: expected an even number "
                         "of ranks, one round and step, and 1K")
    sandbox.enter()
    from netfold.topo.network.net import Network

    fabric = leafspine(2, 2, ranks, rate=None if rate == "none" else rate, engine=engine, rundir=sandbox.rundir())
    task = ParametersTask(ways_of(ranks), uneven(total), rounds, steps)
    command = [sys.executable, "-m", "netfold.bench.ranks.parameters", msgspec.json.encode(task).decode()]
    links = "links not shaped" if rate == "none" else f"links of {rate_in_words(rate)}"
    title = f"Adam on {total / 2**20:g} MiB of uneven tensors, {ranks} ranks, {links}"
    print(f"# {title}, {engine}; medians of {rounds} rounds of {steps} steps")
    with tempfile.TemporaryDirectory(dir=sandbox.rundir()) as logs, Network(fabric, logs=Path(logs)) as network:
        lines = network.launch(command, job="parameters").wait(within=60 + task.timeout * rounds * len(task.ways))
    rows = rows_of(task.ways, [msgspec.json.decode(line[-1], type=ParametersResult) for line in lines])
    print(f"# {'way':<30} {'ms':>9} {'best..worst':>19} {'x ring':>7} {'cpu ms':>8} {'busiest':>8}")
    for row in rows:
        spread = f"{row.best * 1e3:.2f}..{row.worst * 1e3:.2f}"
        print(f"  {row.way:<30} {row.step * 1e3:>9.2f} {spread:>19} {row.of_ring:>7.2f} {row.processor * 1e3:>8.2f} "
              f"{row.processor_most * 1e3:>8.2f}", flush=True)
    if json is not None:
        files.replace(json, msgspec.json.format(msgspec.json.encode(rows), indent=1))
    if out is not None:
        for file in write(rows, title, out):
            print(f"# {file}")
    return rows
