# SPDX-License-Identifier: Apache-2.0
"""The table, the figure and the JSON of a training that was replayed in several ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from netfold.fabric.folding.trees import NoTree
from netfold.plots.charts import BarChart, PlotsMissing, bar_charts
from netfold.sim.whatif.program import TrainingProgram
from netfold.sim.whatif.replay import ReplayOutcome, replay
from netfold.sim.whatif.ways import WAYS, RankFabric

__all__ = ["PlotsMissing", "WhatIfReport", "WhatIfRow", "draw", "lines", "what_if"]


class WhatIfRow(msgspec.Struct, frozen=True):
    """A training with its collectives carried in one way.  Times are seconds of a step, means over ranks and steps."""

    way: str
    step: float
    """The median over the seeds, where paths are drawn by them; so are the others that belong to this seed."""
    least: float
    most: float
    """The least and the greatest step over the seeds."""
    beside: float
    """The first way's step over this one's: how many times its rate."""
    compute: float
    exposed: dict[str, float]
    """Seconds that ranks wait for collectives, by kind."""
    hidden: float
    """Seconds of collectives, each by itself, that computing and other collectives hide."""
    busiest_link: str
    busiest_bytes: float
    """Bytes of a step on the link that is busy for the longest time, headers included."""
    busiest_share: float
    """Part of the step for which this link is busy."""
    link_bytes: float
    """Bytes of a step on all links together."""


class WhatIfReport(msgspec.Struct, frozen=True):
    """A training replayed on one fabric, by several ways."""

    fabric: str
    ranks: int
    steps: int
    recorded: float
    """Seconds of a step as it was recorded, over whatever carried it then."""
    rows: list[WhatIfRow]
    left_out: dict[str, str]
    """Ways that cannot carry it on this fabric, and why."""


def what_if(program: TrainingProgram, fabric: RankFabric, *, ways: Sequence[str], seeds: Sequence[int], recorded: float
            ) -> WhatIfReport:
    """Replay a training in each of these ways.

    seeds     of hashed flows
    recorded  seconds of a step in the recording
    Raises ValueError for ways that there are not, and where none can carry it.
    """
    if unknown := [name for name in ways if name not in WAYS]:
        raise ValueError(f"no way is called {unknown[0]!r}; there are {', '.join(WAYS)}")
    found: dict[str, list[ReplayOutcome]] = {}
    left_out: dict[str, str] = {}
    for name in ways:
        way = WAYS[name]
        if name == "hierarchical" and len(set(fabric.hosts)) == len(fabric.hosts):
            left_out[name] = "each rank has a machine of its own"
            continue
        drawn = seeds if not way.planned else seeds[:1]
        try:
            found[name] = [replay(program, fabric, way, seed=seed) for seed in drawn]
        except NoTree as error:
            left_out[name] = str(error)
    if not found:
        raise ValueError(f"no way can carry it: {left_out}")
    first = _middle(next(iter(found.values()))).step
    return WhatIfReport(fabric.fabric.name, len(program.ranks), program.steps, recorded,
                        [_row(name, outcomes, fabric, first) for name, outcomes in found.items()], left_out)


def _middle(outcomes: Sequence[ReplayOutcome]) -> ReplayOutcome:
    """The outcome with the median step."""
    return sorted(outcomes, key=lambda outcome: outcome.step)[(len(outcomes) - 1) // 2]


def _row(name: str, outcomes: Sequence[ReplayOutcome], fabric: RankFabric, first: float) -> WhatIfRow:
    one = _middle(outcomes)
    planes = WAYS[name].planes
    busy = one.link_bytes / planes / fabric.links.capacity
    busiest = int(np.argmax(busy))
    return WhatIfRow(
        name, one.step, min(each.step for each in outcomes), max(each.step for each in outcomes), first / one.step,
        one.compute, dict(one.exposed), max(0.0, one.communication - sum(one.exposed.values())),
        fabric.link_names[busiest], float(one.link_bytes[busiest]) / planes, float(busy[busiest]) / one.step,
        float(one.link_bytes.sum()))


def lines(report: WhatIfReport) -> Iterator[str]:
    """The table, line by line."""
    first = report.rows[0].way
    yield (f"# {report.ranks} ranks on {report.fabric}, {report.steps} steps of {report.recorded * 1e3:.1f} ms as "
           "recorded; milliseconds of a step")
    yield (f"# {'way':<18} {'step':>9} {'x ' + first:>8} {'compute':>9} {'exposed':>9} {'hidden':>9} {'MB':>8} "
           f"{'busy':>5}  busiest link; what is waited for")
    for row in report.rows:
        waited = ", ".join(f"{kind} {seconds * 1e3:.1f}" for kind, seconds in
                           sorted(row.exposed.items(), key=lambda item: -item[1]) if seconds > 5e-5)
        yield (f"  {row.way:<18} {row.step * 1e3:>9.1f} {row.beside:>8.2f} {row.compute * 1e3:>9.1f} "
               f"{sum(row.exposed.values()) * 1e3:>9.1f} {row.hidden * 1e3:>9.1f} {row.busiest_bytes / 1e6:>8.2f} "
               f"{row.busiest_share:>5.0%}  {row.busiest_link}; {waited or 'nothing'}")
    for name, why in report.left_out.items():
        yield f"# {name}: left out, since {why}"


def draw(report: WhatIfReport, stem: Path) -> list[Path]:
    """Draw what a step consists of and what links carry; the files, ``stem`` with .svg and .pdf.

    Raises PlotsMissing, and OSError where a file cannot be written.
    """
    return bar_charts(stem, f"A step of {report.ranks} ranks on {report.fabric}, by what carries its collectives", [
        BarChart("Computing, and waiting for collectives", {
            row.way: {"compute": row.compute * 1e3, "wait": sum(row.exposed.values()) * 1e3} for row in report.rows},
            "time of a step, ms"),
        BarChart("The busiest link", {row.way: {"busiest link": row.busiest_bytes / 1e6} for row in report.rows},
                 "MB of a step, headers included")])
