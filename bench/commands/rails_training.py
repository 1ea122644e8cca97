# SPDX-License-Identifier: Apache-2.0
"""`netfold bench rails`, its training: Horovod's verbs over each rail alone, over all of them, and gloo beside them.

The ranks and sockets are those of the sums; a rail alone is the communicator of all with every call pinned to it.  gloo
goes over the first plane, by DistributedDataParallel.  Ways take turns, each round beginning with another one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from netfold.bench.commands.rails_report import RailTrainingRow
from netfold.bench.ranks.rail_training import RailTrainingCommand, RailTrainingResult

if TYPE_CHECKING:
    from netfold.bench.harness.workers import Workers

GLOO: Final = "gloo"
WARMUP: Final = 1
"""Steps of a turn that are not timed."""
BATCH: Final = 8
"""Images of a rank in a step."""


@dataclass(frozen=True)
class RailTrainingSpec:
    """The training: ``steps`` timed steps a turn, hidden layers ``width`` wide, ``rounds`` turns of each way."""

    names: Sequence[str]
    steps: int
    width: int
    rounds: int
    timeout: float


def measure(
    spec: RailTrainingSpec, workers: Workers, echo: Callable[[str], None]
) -> tuple[int, list[RailTrainingRow]]:
    """The model's number of parameters, and each way's figures.  Raises WorkerFailed."""
    ways = [*spec.names, "together", GLOO]
    took: dict[str, list[list[RailTrainingResult]]] = {way: [] for way in ways}
    for number in range(spec.rounds):
        for place in range(len(ways)):
            at = (number + place) % len(ways)
            rail = at if at < len(spec.names) else None
            command = RailTrainingCommand(spec.steps, WARMUP, spec.width, BATCH, rail, ways[at] == GLOO)
            workers.send(command)
            took[ways[at]].append(workers.results(RailTrainingResult, (spec.steps + WARMUP + 2) * spec.timeout))
    rows = rows_of(list(spec.names), took)
    parameters = took[GLOO][0][0].parameters
    echo(f"# training a network of {parameters} parameters, {BATCH} images a rank, {spec.steps} steps a turn, medians "
         f"of {spec.rounds}: samples a second")
    for row in rows:
        echo(f"  {row.way:<20} {row.samples:>9.1f}  {row.of_best:>5.2f} of the best rail; step {row.step * 1e3:.0f} ms"
             f", cpu {row.processor * 1e3:.0f} ms; loss {row.loss:.4f}; ranks {'alike' if row.alike else 'DIFFER'}")
    return parameters, rows


def rows_of(rails: Sequence[str], took: dict[str, list[list[RailTrainingResult]]]) -> list[RailTrainingRow]:
    """The figures of each way.

    took  the results of each way by round and rank
    A round's step is the median of its steps, each as long as its slowest rank's; ratios are of one round.
    """
    steps = {
        way: [statistics.median(map(max, zip(*(rank.seconds for rank in ranks), strict=True))) for ranks in rounds]
        for way, rounds in took.items()
    }
    best = min(rails, key=lambda rail: statistics.median(steps[rail]))
    rows = []
    for way, rounds in took.items():
        step, size = statistics.median(steps[way]), BATCH * len(rounds[0])
        rows.append(RailTrainingRow(
            way, step, size / step, statistics.median(b / t for b, t in zip(steps[best], steps[way], strict=True)),
            statistics.median(statistics.fmean(rank.processor for rank in ranks) for ranks in rounds),
            statistics.fmean(rank.loss for rank in rounds[-1]),
            all(len({rank.digest for rank in ranks}) == 1 for ranks in rounds),
        ))
    return rows
