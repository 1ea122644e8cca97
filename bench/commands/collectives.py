# SPDX-License-Identifier: Apache-2.0
"""`netfold bench collectives`: what the switches carry besides allreduces, beside each algorithm over TCP and gloo.

All over the same links and switches, in turn: a round has each cell once, and begins with another one each time.  An
operation's time is the slowest rank's after a barrier; a round's is the median of its operations', the figure the
median of the rounds'.  "together" is a reduce_scatter and an all_gather of M bytes each at once (``Group.together``);
beside it two rings, one after the other, and gloo's two at once.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from netfold.bench.ranks.collectives import GLOO, Cell, CollectivesResult, CollectivesTask
from netfold.disk import files
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Engine, bits_per_second
from netfold.topo.network import sandbox

ALGORITHMS: Final = {
    "barrier": ("innet", "dissemination"),
    "broadcast": ("innet", "binomial", "chain", "scatter_all_gather"),
    "reduce": ("innet", "binomial", "reduce_scatter_gather"),
    "reduce_scatter": ("innet", "ring"),
    "all_gather": ("innet", "ring"),
    "together": ("innet", "ring"),
}
"""Collective -> what it is timed by, besides gloo."""
UNITS: Final = {"K": 1 << 10, "M": 1 << 20}


class CollectivesRow(msgspec.Struct, frozen=True):
    """One cell: seconds of an operation, the median of the rounds and the least and most of them."""

    collective: str
    nbytes: int
    algorithm: str
    ranks: int
    seconds: float
    seconds_best: float
    seconds_worst: float
    link_fraction: float
    """Bytes that the switches' way needs on the busiest direction of a link, over what the link could carry."""


def sizes_of(said: str) -> list[int]:
    """Bytes of "4K,1M".  Raises ValueError."""
    try:
        sizes = [int(size.rstrip("KM")) * UNITS.get(size[-1:], 1) for size in said.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 4:
        raise ValueError(f"--sizes {said}: expected bytes by commas, as 4K,1M")
    return sizes


def cells_of(collectives: str, sizes: list[int], *, gloo: bool) -> list[Cell]:
    """The collectives that are timed.  Raises ValueError for an unknown one."""
    wanted = collectives.split(",")
    if unknown := set(wanted) - set(ALGORITHMS):
        raise ValueError(f"--collectives {', '.join(sorted(unknown))}: expected some of {', '.join(ALGORITHMS)}")
    return [
        Cell(collective, nbytes, algorithm)
        for collective in wanted
        for nbytes in ([0] if collective == "barrier" else sizes)
        for algorithm in (*ALGORITHMS[collective], *([GLOO] if gloo else []))
    ]


def rows_of(
    cells: list[Cell], results: list[CollectivesResult], ranks: int, rate: float
) -> list[CollectivesRow]:
    """The cells' figures; rate: bits a second of a link, 0: not shaped."""
    rows = []
    for place, cell in enumerate(cells):
        rounds = []
        for number in range(len(results[0].seconds)):
            each = zip(*(result.seconds[number][place] for result in results), strict=True)
            rounds.append(statistics.median(map(max, each)))
        taken = statistics.median(rounds)
        share = (ranks - 1) / ranks if cell.collective in ("reduce_scatter", "all_gather") else 1.0
        fraction = cell.nbytes * share * 8 / rate / taken if rate else 0.0
        rows.append(CollectivesRow(
            cell.collective, cell.nbytes, cell.algorithm, ranks, taken, min(rounds), max(rounds), fraction,
        ))
    return rows


def run(
    *, ranks: int, rate: str, engine: Engine, collectives: str, sizes: str, rounds: int, iterations: int, loss: float,
    json: Path | None,
) -> None:
    """Measure in a sandbox, where the process starts anew, and print the table.

    sizes  bytes by commas, with K and M
    json   file for the rows, or None
    Raises ValueError for what cannot be measured.
    """
    cells = cells_of(collectives, sizes_of(sizes), gloo=find_spec("torch") is not None)
    if ranks < 2 or rounds < 1 or iterations < 1:
        raise ValueError(f"--ranks {ranks} --rounds {rounds} --iters {iterations}: expected 2 ranks and one of each")
    if not 0 <= loss < 1:
        raise ValueError(f"--loss {loss}: expected 0 or more, and less than 1")
    shaped = None if rate == "none" else rate
    sandbox.enter()
    from netfold.topo.network.net import Network

    task = CollectivesTask(cells, rounds, iterations)
    fabric = leafspine(2, 2, ranks, rate=shaped, loss=loss, engine=engine, rundir=sandbox.rundir())
    command = [sys.executable, "-m", "netfold.bench.ranks.collectives", msgspec.json.encode(task).decode()]
    print(f"# {ranks} ranks, 2 leaves, 2 spines, {engine}, links {rate}, loss {loss:.1%}; medians of {rounds} rounds "
          f"of {iterations}, of the slowest rank")
    with tempfile.TemporaryDirectory(dir=sandbox.rundir()) as logs, Network(fabric, logs=Path(logs)) as network:
        within = 60 + task.timeout * rounds * len(cells)
        lines = network.launch(command, job="collectives").wait(within=within)
    results = [msgspec.json.decode(line[-1], type=CollectivesResult) for line in lines]
    rows = rows_of(cells, results, ranks, bits_per_second(shaped) if shaped else 0.0)
    print(f"# {'collective':<15} {'bytes':>10}  {'algorithm':<22} {'ms':>9} {'best..worst':>19} {'link':>5} "
          f"{'x innet':>8}")
    innet = 0.0
    for row in rows:
        innet = row.seconds if row.algorithm == "innet" else innet
        spread = f"{row.seconds_best * 1e3:.3f}..{row.seconds_worst * 1e3:.3f}"
        print(f"  {row.collective:<15} {row.nbytes:>10}  {row.algorithm:<22} {row.seconds * 1e3:>9.3f} {spread:>19} "
              f"{row.link_fraction:>5.0%} {row.seconds / innet:>8.2f}", flush=True)
    if json is not None:
        files.replace(json, msgspec.json.format(msgspec.json.encode(rows), indent=1))
