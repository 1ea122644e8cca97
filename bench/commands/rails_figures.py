# SPDX-License-Identifier: Apache-2.0
"""`netfold bench rails`, drawn and as tables: the figures of papers/nezha."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from netfold.bench.commands.rails_report import MptcpRow, RailDeath, RailsReport
from netfold.disk import files
from netfold.fabric.graph import rate_in_words
from netfold.plots.charts import BarChart, LineChart, bar_charts, line_charts

MULTIPATH = "Multipath TCP"
FIRST = 4
"""Calls after a start that are timed one by one."""


def write(report: RailsReport, folder: Path) -> list[Path]:
    """Write all figures as SVG and their data as CSV to a folder, which is made; return the files written.

    Raises PlotsMissing, OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = [*draw(report, folder / "shares"), *_draw_times(report, folder / "times")]
    if report.training:
        written += _draw_training(report, folder / "training")
    if report.death is not None:
        written += _draw_death(report, report.death, folder / "failure")
    for name, rows in tables(report).items():
        written.append(folder / f"{name}.csv")
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        files.replace(written[-1], text.getvalue().encode())
    return written


def tables(report: RailsReport) -> dict[str, list[Sequence[object]]]:
    """The data of the figures by name: a row of column names, then rows.  Times are in milliseconds."""
    names = report.rails.split("+")
    ways = [*names, "together"]
    planes = [name.partition("@")[2] for name in names]
    found: dict[str, list[Sequence[object]]] = {"sizes": [
        ["bytes", *(f"{way} ms" for way in ways), "speed-up", "together of best: first quartile", "third quartile",
         "of the sum of rates", *(f"share of {name}" for name in names),
         *(f"processor ms of a rank, {way}" for way in ways),
         *(f"processor ms of the thread of {name}" for name in names),
         "turns", "wrong elements",
         *([f"{MULTIPATH} ms", f"together of {MULTIPATH}", "its first quartile", "its third quartile",
            *(f"share of plane {plane} of {MULTIPATH}" for plane in planes), f"processor ms of a rank, {MULTIPATH}",
            f"subflows of {MULTIPATH}", f"wrong elements of {MULTIPATH}"] if _multipath(report) else [])],
        *([row.nbytes, *_ms([*row.single, row.together]), f"{row.speedup:.3f}", *(f"{q:.3f}" for q in row.quartiles),
           f"{row.of_sum:.3f}", *(f"{part:.4f}" for part in row.shares), *_ms(row.processor), *_ms(row.threads),
           row.turns, row.wrong,
           *([*_ms([row.mptcp.seconds]), *(f"{part:.3f}" for part in (row.mptcp.over, *row.mptcp.quartiles)),
              *(f"{part:.4f}" for part in row.mptcp.shares), *_ms([row.mptcp.processor]), 1 + row.mptcp.subflows,
              row.mptcp.wrong] if row.mptcp is not None else [])] for row in report.rows),
    ], "starts": [
        ["start", "join ms", *(f"sum {n} ms" for n in range(1, FIRST + 1)), "cut from bytes", "bytes",
         *(f"share of {name} before" for name in names), *(f"share of {name} after" for name in names)],
        *([start.name, *_ms([start.join, *start.first]), start.threshold or "none", row.nbytes,
           *(f"{part:.4f}" for part in (*before, *after))]
          for start in report.starts
          for row, before, after in zip(report.rows, start.before, start.after, strict=True)),
    ]}
    if report.cuts:
        found["cuts"] = [
            ["cut at ms", "took ms", "ideal ms", "extra ms", "wrong elements", "carries again after ms"],
            *([*_ms([cut.at, cut.seconds, cut.ideal, cut.extra]), cut.wrong, *_ms([cut.back])] for cut in report.cuts),
        ]
    if report.training:
        found["training"] = [
            ["way", "step ms", "samples a second", "of the best rail", "processor ms of a rank", "loss", "ranks alike"],
            *([row.way, *_ms([row.step]), f"{row.samples:.2f}", f"{row.of_best:.3f}", *_ms([row.processor]),
               f"{row.loss:.6f}", row.alike] for row in report.training),
        ]
    if report.death is not None:
        found["failure"] = [
            ["call began at s", "took ms", *(f"bytes over {name}" for name in names), "wrong elements", "plane"],
            *([f"{call.at:.4f}", *_ms([call.took]), *call.carried, call.wrong,
               "cut" if report.death.cut < call.at + call.took and call.at < report.death.back else "up"]
              for call in report.death.calls),
        ]
    return found


def _multipath(report: RailsReport) -> list[MptcpRow]:
    """The figures of each size over Multipath TCP; none where it was not measured."""
    return [row.mptcp for row in report.rows if row.mptcp is not None]


def _ms(seconds: Iterable[float]) -> list[str]:
    return [f"{second * 1e3:.3f}" for second in seconds]


def _draw_times(report: RailsReport, stem: Path) -> list[Path]:
    names = report.rails.split("+")
    ways = [*names, "together"]
    times = {way: [row.single[at] * 1e3 if at < len(names) else row.together * 1e3 for row in report.rows]
             for at, way in enumerate(ways)}
    processor = {way: [row.processor[at] * 1e3 for row in report.rows] for at, way in enumerate(ways)}
    if beside := _multipath(report):
        times[MULTIPATH] = [row.seconds * 1e3 for row in beside]
        processor[MULTIPATH] = [row.processor * 1e3 for row in beside]
    sizes = [row.nbytes / 1024 for row in report.rows]
    charts = [[LineChart("How long an allreduce takes", sizes, times, y="time, ms")],
              [LineChart("What a rank computes for it, all threads", sizes, processor, y="processor time, ms")]]
    return line_charts(stem, f"What an allreduce takes, by each rail alone and together: {_title(report)}", charts,
                       x="tensor, KiB")


def _draw_training(report: RailsReport, stem: Path) -> list[Path]:
    charts = [
        BarChart("How fast it trains", {row.way: {row.way: row.samples} for row in report.training}, "samples/s"),
        BarChart("What several rails bring", {row.way: {row.way: row.of_best} for row in report.training},
                 "rate / the best rail's"),
        BarChart("What a rank computes in a step, all of it", {row.way: {row.way: row.processor * 1e3}
                                                               for row in report.training}, "processor time, ms"),
    ]
    title = f"What rails bring to training of {report.parameters / 1e6:.2f} million parameters: {_title(report)}"
    return bar_charts(stem, title, charts)


def _draw_death(report: RailsReport, death: RailDeath, stem: Path) -> list[Path]:
    names = report.rails.split("+")
    ticks = [call.at for call in death.calls]
    took: list[float | None] = [call.took * 1e3 for call in death.calls]
    away = [value if death.cut < call.at + call.took and call.at < death.back else None
            for value, call in zip(took, death.calls, strict=True)]
    before = [value if call.at + call.took <= death.cut else None
              for value, call in zip(took, death.calls, strict=True)]
    after = [value if call.at >= death.back else None for value, call in zip(took, death.calls, strict=True)]
    carried = {name: [call.carried[rail] / 1024 or None for call in death.calls]
               for rail, name in enumerate(names)}
    charts = [[LineChart(f"How long each sum of {_size(death.nbytes)} takes", ticks,
                         {"all planes up": before, f"plane of {names[-1]} cut": away, "mended": after}, y="time, ms")],
              [LineChart("What each rail carries of it", ticks, carried, y="bytes, KiB")]]
    return line_charts(stem, f"A rail fails and comes back: {_title(report)}", charts,
                       x="seconds since the first call")


def _title(report: RailsReport) -> str:
    rates = dict.fromkeys(map(rate_in_words, report.rates))
    return f"{report.rails}, links of {' and '.join(rates)}, {report.ranks} ranks"


def draw(report: RailsReport, stem: Path) -> list[Path]:
    """Draw shares over size, by kind of start too, and processor time over size.  Returns the files written.

    Raises PlotsMissing, OSError.
    """
    names = report.rails.split("+")
    sizes = [_size(row.nbytes) for row in report.rows]

    def shares(title: str, told: Sequence[Sequence[float]]) -> BarChart:
        groups = {name: {rail: 100 * part for rail, part in zip(names, parts, strict=True)}
                  for name, parts in zip(sizes, told, strict=True)}
        return BarChart(title, groups, "share of the bytes, %")

    charts = [shares("How bytes are shared", [row.shares for row in report.rows])]
    charts += [shares(f"... after a {start.name} start and {FIRST} sums", start.after)
               for start in report.starts]
    ways = [*names, "together"]
    charts.append(BarChart("What a rank computes for one MiB", {
        name: {way: seconds * 1e3 * (1 << 20) / row.nbytes for way, seconds in zip(ways, row.processor, strict=True)}
        for name, row in zip(sizes, report.rows, strict=True)
    }, "processor time, ms"))
    return bar_charts(stem, f"How tensors are shared between rails: {_title(report)}", charts)


def _size(nbytes: int) -> str:
    for unit, one in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= one:
            return f"{nbytes / one:g} {unit}"
    return f"{nbytes} B"
