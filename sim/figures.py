# SPDX-License-Identifier: Apache-2.0
"""The figures of Ethereal's comparison: a chart for each workload, in a row for each state of the links."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from netfold.plots.charts import LineChart, line_charts
from netfold.sim.claims import ComparisonRow, Key, relative


def draw(rows: Sequence[ComparisonRow], fabric: str, folder: Path) -> list[Path]:
    """Draw the completion times on one fabric relative to spraying and return the files, FABRIC.svg and FABRIC.png.

    Raises PlotsMissing where matplotlib is not installed, OSError where ``folder`` cannot be written.
    """
    mine = [r for r in rows if r.fabric == fabric]
    base = "spray" if any(r.scheme == "spray" for r in mine) else mine[0].scheme
    names = list(dict.fromkeys(r.workload for r in mine if r.size))
    models = list(dict.fromkeys(r.workload for r in mine if not r.size))
    schemes = list(dict.fromkeys(r.scheme for r in mine))
    lines: list[list[LineChart]] = []
    for state, links in dict.fromkeys((r.state, r.links) for r in mine):
        such = [r for r in mine if (r.state, r.links) == (state, links)]
        ratios = {scheme: relative(such, scheme, base) for scheme in schemes}
        empty = f"{base} never finished"
        title = state if links == 1 else f"{state} ({links})"

        def value(scheme: str, work: str, size: int, ratios: dict[str, dict[Key, float]] = ratios
                  ) -> float | None:
            of = [ratio for key, ratio in ratios[scheme].items() if key[1:3] == (work, size)]
            return statistics.median(of) if of else None

        line = []
        for name in names:
            sizes = sorted({r.size for r in mine if r.workload == name})
            line.append(LineChart(f"{name}, {title}", [str(size >> 20) for size in sizes],
                              {scheme: [value(scheme, name, size) for size in sizes] for scheme in schemes}, empty))
        if models:
            line.append(LineChart(f"two layers' training, {title}", models,
                              {scheme: [value(scheme, model, 0) for model in models] for scheme in schemes}, empty))
        lines.append(line)
    seeds = ", ".join(map(str, sorted({r.seed for r in mine})))
    return line_charts(folder / fabric, f"{fabric}: completion time over that of {base} (seeds {seeds})", lines,
                       x="MB on each rank, or model", y=f"time / {base}")
