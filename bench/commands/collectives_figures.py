# SPDX-License-Identifier: Apache-2.0
"""`netfold bench collectives`, drawn and as tables: the figures of real packets in papers/collectives."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from netfold.disk import files
from netfold.plots.charts import BarChart, LineChart, Whisker, bar_charts, line_charts

FILES: Final = {"broadcast": "bcast", "step": "parameter-server"}
"""Collective -> name of its files, where it has another one."""


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
    of_first: float
    """Times the same round's time of the collective's first algorithm at this size: the median of the rounds."""
    average: float
    """Mean over ranks of each rank's mean seconds, and the least and greatest of these."""
    least: float
    greatest: float
    iterations: int
    processor: float
    """Processor seconds of a rank for an operation: the mean over ranks of the median round."""
    processor_most: float
    """The same of the rank that spends most."""


def write(rows: Sequence[CollectivesRow], title: str, folder: Path) -> list[Path]:
    """Write a table and draw a figure for each collective to a folder, which is made: lines where there are several
    sizes, bars where there is one.  Returns the files written.

    Raises PlotsMissing, OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for collective in dict.fromkeys(row.collective for row in rows):
        ours = [row for row in rows if row.collective == collective]
        lines = len({row.nbytes for row in ours}) > 1
        stem = folder / FILES.get(collective, collective)
        written.append(stem.with_suffix(".csv"))
        data = io.StringIO()
        csv.writer(data, lineterminator="\n").writerows(_latencies(ours) if lines else _times(ours))
        files.replace(written[-1], data.getvalue().encode())
        size = f" of {ours[0].nbytes / 2**20:g} MiB" if not lines and ours[0].nbytes else ""
        heading = f"How long a {collective.replace('_', ' ')}{size} takes: {title}"
        written += _draw_lines(ours, heading, stem) if lines else _draw_bars(ours, heading, stem)
    return written


def _latencies(rows: Sequence[CollectivesRow]) -> list[Sequence[object]]:
    ways = list(dict.fromkeys(row.algorithm for row in rows))
    return [["way", "bytes", "average us", "least us", "greatest us", "iterations"],
            *([row.algorithm, row.nbytes, *_shown(1e6, ".2f", row.average, row.least, row.greatest), row.iterations]
              for row in sorted(rows, key=lambda row: ways.index(row.algorithm)))]


def _times(rows: Sequence[CollectivesRow]) -> list[Sequence[object]]:
    return [["way", "ms", "best round ms", "worst round ms", f"of {rows[0].algorithm}", "processor ms of a rank",
             "processor ms of the busiest rank"],
            *([row.algorithm, *_shown(1e3, ".3f", row.seconds, row.seconds_best, row.seconds_worst),
               f"{row.of_first:.3f}", *_shown(1e3, ".3f", row.processor, row.processor_most)] for row in rows)]


def _shown(scale: float, form: str, *seconds: float) -> list[str]:
    return [f"{value * scale:{form}}" for value in seconds]


def _draw_lines(rows: Sequence[CollectivesRow], title: str, stem: Path) -> list[Path]:
    ways, sizes = list(dict.fromkeys(row.algorithm for row in rows)), sorted({row.nbytes for row in rows})
    of = {(row.algorithm, row.nbytes): row for row in rows}
    ticks = [size / 1024 for size in sizes]
    charts = [[LineChart(name, ticks, {way: [getattr(of[way, size], field) * 1e6 for size in sizes] for way in ways})
               for name, field in (("Average over ranks", "average"), ("Slowest rank", "greatest"))]]
    return line_charts(stem, title, charts, x="message, KiB", y="latency, µs")


def _draw_bars(rows: Sequence[CollectivesRow], title: str, stem: Path) -> list[Path]:
    charts = [
        BarChart("Time, over rounds", {row.algorithm: {row.algorithm: Whisker(
            row.seconds * 1e3, row.seconds_best * 1e3, row.seconds_worst * 1e3)} for row in rows}, "time, ms"),
        BarChart("What the busiest rank computes", {
            row.algorithm: {row.algorithm: row.processor_most * 1e3} for row in rows}, "processor time, ms"),
    ]
    return bar_charts(stem, title, charts)
