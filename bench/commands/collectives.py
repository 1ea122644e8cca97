# SPDX-License-Identifier: Apache-2.0
"""`netfold bench collectives`: what the switches carry besides allreduces, beside each algorithm over TCP and gloo.

All over the same links and switches, in turn: a round has each cell once, and begins with another one each time.  An
operation's time is the slowest rank's after a barrier; a round's is the median of its operations', the figure the
median of the rounds'.  As in the OSU micro-benchmarks' osu_bcast, a row also has the average over ranks of their mean
latencies, and the least and greatest of these.

    together  a reduce_scatter and an all_gather of M bytes each at once (``Group.together``); beside it two rings, one
              after the other, and gloo's two at once
    flat      the root sends to every other rank, one after the other
    hierarchical    a binomial tree among the first ranks under each leaf switch, then one under each
    step      a step of training (`bench.ranks.parameters`)
"""

from __future__ import annotations

import statistics
import tempfile
from importlib.util import find_spec
from pathlib import Path

from netfold.bench.commands.collectives_figures import CollectivesRow, write
from netfold.bench.harness import rank_programs
from netfold.bench.options.sums import COLLECTIVES, CollectivesOptions
from netfold.bench.ranks.collectives import GLOO, STEP, Cell, CollectivesResult, CollectivesTask
from netfold.fabric.graph import bits_per_second
from netfold.topo.network import sandbox


def cells_of(options: CollectivesOptions, *, gloo: bool) -> list[Cell]:
    """The collectives that are timed."""
    return [
        Cell(collective, nbytes, algorithm)
        for collective in options.names("collectives", COLLECTIVES)
        for nbytes in ([0] if collective == "barrier" else options.sizes_of("sizes"))
        for algorithm in (*COLLECTIVES[collective], *([GLOO] if gloo and collective != STEP else []))
    ]


def rows_of(
    cells: list[Cell], results: list[CollectivesResult], ranks: int, rate: float
) -> list[CollectivesRow]:
    """The cells' figures; rate: bits a second of a link, 0: not shaped."""
    rows: list[CollectivesRow] = []
    first: list[float] = []
    for place, cell in enumerate(cells):
        rounds = []
        for number in range(len(results[0].seconds)):
            each = zip(*(result.seconds[number][place] for result in results), strict=True)
            rounds.append(statistics.median(map(max, each)))
        taken = statistics.median(rounds)
        if cell.algorithm == COLLECTIVES[cell.collective][0]:
            first = rounds
        of_ranks = [[second for seconds in result.seconds for second in seconds[place]] for result in results]
        means = [statistics.fmean(seconds) for seconds in of_ranks]
        spent = [statistics.median(processor[place] for processor in result.processor) for result in results]
        share = (ranks - 1) / ranks if cell.collective in ("reduce_scatter", "all_gather") else 1.0
        fraction = cell.nbytes * share * 8 / rate / taken if rate else 0.0
        rows.append(CollectivesRow(
            cell.collective, cell.nbytes, cell.algorithm, ranks, taken, min(rounds), max(rounds), fraction,
            statistics.median(ours / theirs for ours, theirs in zip(rounds, first, strict=True)),
            statistics.fmean(means), min(means), max(means), len(of_ranks[0]), statistics.fmean(spent), max(spent),
        ))
    return rows


def run(options: CollectivesOptions) -> None:
    """Measure in a sandbox, where the process starts anew, and print the table."""
    cells = cells_of(options, gloo=find_spec("torch") is not None)
    sandbox.enter()
    from netfold.topo.network.net import Network

    task = CollectivesTask(cells, options.rounds, options.iterations, leaf=options.leaf)
    fabric = options.fabric(rundir=sandbox.rundir())
    print(f"# {options.ranks} ranks; {options.in_words}, losing {options.loss:.1%}; medians of {options.rounds} rounds "
          f"of {options.iterations}, of the slowest rank")
    with tempfile.TemporaryDirectory(dir=sandbox.rundir()) as logs, Network(fabric, logs=Path(logs)) as network:
        within = 60 + task.timeout * options.rounds * len(cells)
        took = rank_programs.results(network, "collectives", task, CollectivesResult, job="collectives", within=within)
    rows = rows_of(cells, took, options.ranks, bits_per_second(options.rate) if options.link_rate else 0.0)
    print(f"# {'collective':<15} {'bytes':>10}  {'algorithm':<22} {'ms':>9} {'best..worst':>19} {'link':>5} "
          f"{'x first':>8} {'average us':>11} {'least..greatest':>21} {'cpu ms':>8} {'busiest':>8}")
    for row in rows:
        spread = f"{row.seconds_best * 1e3:.3f}..{row.seconds_worst * 1e3:.3f}"
        print(f"  {row.collective:<15} {row.nbytes:>10}  {row.algorithm:<22} {row.seconds * 1e3:>9.3f} {spread:>19} "
              f"{row.link_fraction:>5.0%} {row.of_first:>8.2f} {row.average * 1e6:>11.1f} "
              f"{f'{row.least * 1e6:.1f}..{row.greatest * 1e6:.1f}':>21} {row.processor * 1e3:>8.2f} "
              f"{row.processor_most * 1e3:>8.2f}", flush=True)
    options.write(rows)
    if options.out is not None:
        for file in write(rows, f"{options.ranks} ranks; {options.in_words}", options.out):
            print(f"# {file}")
