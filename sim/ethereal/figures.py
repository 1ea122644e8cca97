# SPDX-License-Identifier: Apache-2.0
"""The figures of Ethereal's comparison: a chart for each workload, in a row for each state of the links, and the
paper's sentences on completion times, each held against the best case of each workload."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from netfold.plots.charts import BarChart, LineChart, Value, bar_charts, line_charts, spread
from netfold.plots.style import words
from netfold.sim.ethereal.claims import BASELINES, IN_WORDS, STATES, ComparisonRow, Key, by_case, relative
from netfold.sim.workloads.training import KINDS, kind


def draw(rows: Sequence[ComparisonRow], fabric: str, folder: Path) -> list[Path]:
    """Draw the completion times on one fabric relative to spraying and return the files,
    FABRIC-STATE.svg and .pdf.

    Raises PlotsMissing where matplotlib is not installed, OSError where ``folder`` cannot be written.
    """
    mine = [r for r in rows if r.fabric == fabric]
    base = "spray" if any(r.scheme == "spray" for r in mine) else mine[0].scheme
    names = list(dict.fromkeys(r.workload for r in mine if r.size))
    models = list(dict.fromkeys(r.workload for r in mine if not r.size))
    schemes = list(dict.fromkeys(r.scheme for r in mine))
    numbers, over = sorted({r.seed for r in mine}), words(base)
    seeds = f"seed{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
    written = []
    for state, links in dict.fromkeys((r.state, r.links) for r in mine):
        such = [r for r in mine if (r.state, r.links) == (state, links)]
        ratios = {scheme: relative(such, scheme, base) for scheme in schemes}

        def value(scheme: str, work: str, size: int, ratios: dict[str, dict[Key, float]] = ratios
                  ) -> Value | None:
            found = [ratio for key, ratio in ratios[scheme].items() if key[1:3] == (work, size)]
            return spread(found) if found else None

        line = []
        for name in names:
            sizes = sorted({r.size for r in mine if r.workload == name})
            line.append(LineChart(name, [size / 2**20 for size in sizes],
                                  {scheme: [value(scheme, name, size) for size in sizes] for scheme in schemes},
                                  f"{over} never finished", x="MB on each rank"))
        for suffix, of_models in KINDS.items():
            if of := [model for model in models if kind(model) == suffix]:
                line.append(LineChart(of_models, of,
                                      {scheme: [value(scheme, model, 0) for model in of] for scheme in schemes},
                                      f"{over} never finished", x="model"))
        said = IN_WORDS[state] if links == 1 else f"{links} links: {state}"
        written += line_charts(folder / "-".join([Path(fabric).stem, *state.split(), *([str(links)] * (links > 1))]),
                               f"Below 1, a collective on {Path(fabric).stem} ends earlier than with {over}, {said} "
                               f"({seeds})", [line], y=f"time / {over}'s")
    return written


def draw_claims(rows: Sequence[ComparisonRow], fabric: str, folder: Path) -> list[Path]:
    """Draw the paper's two sentences on one fabric and return the file, FABRIC-claims.svg:

    "up to 30 % lower completion than packet spraying" and "up to 40 % than REPS", in each state of the links, as the
    least time over the baseline's among the sizes of each workload, medians of seeds with their range.  Nothing where
    no baseline was simulated.
    """
    mine = [r for r in rows if r.fabric == fabric]
    charts = []
    for baseline, percent in BASELINES:
        for state in STATES:
            ratios = {scheme: relative(mine, scheme, baseline, [state]) for scheme in ("ethereal", "netfold")}
            groups: dict[str, dict[str, Value]] = {}
            for work in dict.fromkeys(r.workload for r in mine):
                best = {scheme: spread(min(found, key=statistics.median)) for scheme, ratio in ratios.items()
                        if (found := [values for case, values in by_case(ratio).items()
                                      if case[1] == work and isfinite(statistics.median(values))])}
                if best:
                    groups[work] = best
            if groups:
                charts.append(BarChart(f"The best size, {IN_WORDS[state]}: the paper has up to {percent} % less, "
                                       f"{1 - percent / 100:.1f}", groups,
                                       f"time / {words(baseline).partition(',')[0]}'s", base=1.0))
    if not charts:
        return []
    return bar_charts(folder / f"{Path(fabric).stem}-claims",
                      f"Below 1, a collective on {Path(fabric).stem} ends earlier than the other's", charts)
