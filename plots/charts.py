# SPDX-License-Identifier: Apache-2.0
"""Grids of line charts, of bar charts and of arrows between places, written as SVG for documents and as PNG for
everything else.

matplotlib is imported when a chart is drawn, so that whoever draws none does without it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netfold.disk import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7a5195", "#666666",
           "#000000", "#8c5a2b")
"""The palette of Okabe and Ito, whose colours stay distinct to colour-blind readers, and four more: as many as
`sim.placement.SCHEMES`."""

STRIP = 0.08
"""Part of a line chart's height, above all values, in which the crosses of unfinished runs stand."""


class PlotsMissing(Exception):
    """matplotlib is not installed, so that no chart can be drawn.

    Remedy: `pip install matplotlib`; the data (CSV) are written without it.
    """

    def __init__(self) -> None:
        super().__init__("charts need matplotlib, which is not installed: pip install matplotlib")


@dataclass(frozen=True)
class LineChart:
    """One chart of a grid: each series has a value at each tick, None without a result, inf where it never finished."""

    title: str
    ticks: Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    empty: str = ""
    """What the chart says where no series has a value."""


@dataclass(frozen=True)
class BarChart:
    """One chart: groups of bars side by side, each group with a bar for some of the series."""

    title: str
    groups: Mapping[str, Mapping[str, float]]
    """The values of each group by series."""
    base: float = 0.0
    """Where the bars begin."""


@dataclass(frozen=True)
class GridChart:
    """One chart: places in rows and columns, and arrows between them."""

    title: str
    arrows: Sequence[tuple[int, int, str]]
    """(from, to, series), of places numbered row by row."""


def line_charts(
    stem: Path, title: str, rows: Sequence[Sequence[LineChart]], *, x: str, y: str, png: bool = True
) -> list[Path]:
    """Draw a row of charts for each of ``rows`` and return the files written, ``stem`` with .svg and .png.

    png  whether the PNG is written too, beside the SVG

    The y axes are logarithmic, with the same limits throughout a row. A series has the same colour in all charts. A run
    that never finished is a cross above all values. Raises PlotsMissing, and OSError where a file cannot be written.
    """
    names = list(dict.fromkeys(name for row in rows for chart in row for name in chart.series))
    if not names:
        raise ValueError("line_charts: expected at least one chart with one series, got none")
    figure = _figure(5.0 * max(map(len, rows)), 3.4 * len(rows) + 1.0, title)
    colour = _colours(names)
    grid = figure.subplots(len(rows), max(map(len, rows)), squeeze=False)
    for r, row in enumerate(rows):
        low, high = _limits([value for chart in row for values in chart.series.values() for value in values])
        for axes in grid[r, len(row):]:
            axes.remove()
        for axes, chart in zip(grid[r], row, strict=False):
            _draw_lines(axes, chart, colour)
            axes.set(title=chart.title, xlabel=x, ylabel=y, ylim=(low, low * (high / low) ** (1 / (1 - STRIP))))
    _legend(figure, colour)
    return _save(figure, stem, png)


def bar_charts(stem: Path, title: str, charts: Sequence[BarChart], *, png: bool = True) -> list[Path]:
    """Draw charts one below the other and return the files written, ``stem`` with .svg and .png.

    png  whether the PNG is written too, beside the SVG

    Raises PlotsMissing, and OSError where a file cannot be written.
    """
    names = list(dict.fromkeys(name for chart in charts for group in chart.groups.values() for name in group))
    if not names:
        raise ValueError("bar_charts: expected at least one chart with one bar, got none")
    figure = _figure(max(8.0, 0.4 * max(sum(map(len, chart.groups.values())) for chart in charts)),
                     3.2 * len(charts) + 1.0, title)
    colour = _colours(names)
    for axes, chart in zip(figure.subplots(len(charts), 1, squeeze=False)[:, 0], charts, strict=True):
        for place, values in enumerate(chart.groups.values()):
            for i, (name, value) in enumerate(values.items()):
                across = place + 0.8 * ((i + 0.5) / len(values) - 0.5)
                bars = axes.bar(across, value - chart.base, 0.8 / len(values), chart.base, color=colour[name])
                axes.bar_label(bars, [f"{value:.2f}"], fontsize=7)
        axes.set_xticks(range(len(chart.groups)), list(chart.groups))
        axes.set(title=chart.title)
    _legend(figure, colour)
    return _save(figure, stem, png)


def grid_charts(stem: Path, title: str, charts: Sequence[GridChart], *, rows: int, columns: int) -> list[Path]:
    """Draw charts of ``rows`` x ``columns`` places beside each other and return the file, ``stem`` with .svg.

    Raises PlotsMissing, and OSError where the file cannot be written.
    """
    names = list(dict.fromkeys(series for chart in charts for _, _, series in chart.arrows))
    if not names:
        raise ValueError("grid_charts: expected at least one chart with one arrow, got none")
    across = min(4, len(charts))
    down = -(-len(charts) // across)
    figure = _figure(max(8.0, 0.75 * columns * across), (0.75 * rows + 0.5) * down + 1.0, title)
    colour = _colours(names)
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(charts):]:
        axes.remove()
    for axes, chart in zip(grid.flat, charts, strict=False):
        _draw_arrows(axes, chart, rows, columns, colour)
    _legend(figure, colour)
    return _save(figure, stem, with_png=False)


def _draw_arrows(axes: Axes, chart: GridChart, rows: int, columns: int, colour: Mapping[str, str]) -> None:
    """Draw places as dots and each message as an arrow, those of a series beside those of another."""
    axes.plot([place % columns for place in range(rows * columns)],
              [-(place // columns) for place in range(rows * columns)], "o", color="#333333", markersize=5)
    for number, series in enumerate(colour):
        ends = [(*divmod(a, columns), *divmod(b, columns)) for a, b, one in chart.arrows if one == series]
        if not ends:
            continue
        aside = 0.06 + 0.09 * number  # to the left of the direction, so that both ways stand apart
        lines = []
        for down, right, to_down, to_right in ends:
            length = math.hypot(to_right - right, to_down - down) or 1.0
            ahead, up = (to_right - right) / length, (down - to_down) / length
            lines.append((right + 0.2 * ahead - aside * up, -down + 0.2 * up + aside * ahead,
                          (length - 0.4) * ahead, (length - 0.4) * up))
        axes.quiver(*zip(*lines, strict=True), angles="xy", scale_units="xy", scale=1, color=colour[series],
                    width=0.012, headwidth=5, headlength=5, headaxislength=4.5, gid=f"{chart.title}: {series}")
    axes.set_title(chart.title, fontsize=7)
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(-rows + 0.5, 0.5), aspect="equal")
    axes.axis("off")


def _figure(width: float, height: float, title: str) -> Figure:
    """An empty figure of this size in inches. Raises PlotsMissing."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise PlotsMissing from error
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title)
    return figure


def _colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each series, in the order of the palette."""
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def _limits(values: Sequence[float | None]) -> tuple[float, float]:
    """The least and the greatest finite value, with a margin of 6 %."""
    finite = [value for value in values if value is not None and 0 < value < math.inf] or [1.0]
    return min(finite) / 1.06, max(finite) * 1.06


def _draw_lines(axes: Axes, chart: LineChart, colour: Mapping[str, str]) -> None:
    """Draw the lines of one chart, and side by side above them a cross for each run that never finished."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    never = [name for name, values in chart.series.items() if math.inf in values]
    apart = min(0.08, 1 / (len(never) + 1))
    for name, values in chart.series.items():
        finite = {tick: value for tick, value in enumerate(values) if value is not None and value < math.inf}
        axes.plot(list(finite), list(finite.values()), "o-", color=colour[name], gid=f"line {name}")
        if name in never:
            places = [tick + apart * (never.index(name) - (len(never) - 1) / 2)
                      for tick, value in enumerate(values) if value == math.inf]
            axes.plot(places, [1 - STRIP / 2] * len(places), "x", color=colour[name], gid=f"never {name}",
                      transform=axes.get_xaxis_transform())
    if all(value is None for values in chart.series.values() for value in values):
        axes.text(0.5, 0.5, chart.empty, ha="center", transform=axes.transAxes)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(range(len(chart.ticks)), list(chart.ticks))
    axes.set_xlim(-0.5, len(chart.ticks) - 0.5)
    axes.grid(axis="y", color="#e5e5e5")


def _legend(figure: Figure, colour: Mapping[str, str]) -> None:
    """A legend of all series below the charts, in as few lines as the figure is wide enough for."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.lines import Line2D

    renderer = FigureCanvasAgg(figure).get_renderer()
    handles = [Line2D([], [], color=value, linewidth=4, label=name) for name, value in colour.items()]
    for columns in range(min(8, len(handles)), 0, -1):
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns)
        if columns == 1 or legend.get_window_extent(renderer).width < figure.bbox.width:
            return
        legend.remove()


def _save(figure: Figure, stem: Path, with_png: bool) -> list[Path]:
    """Write SVG, with text as text and the same bytes for the same figure, and where asked for PNG."""
    import matplotlib as mpl

    svg, png = stem.with_name(stem.name + ".svg"), stem.with_name(stem.name + ".png")
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "netfold"}):
        drawings: list[tuple[Path, str, dict[str, Any]]] = [(svg, "svg", {"metadata": {"Date": None}})]
        if with_png:
            drawings.append((png, "png", {"dpi": 150}))
        for path, form, settings in drawings:
            drawn = io.BytesIO()
            figure.savefig(drawn, format=form, **settings)
            files.replace(path, drawn.getvalue())
    return [path for path, _, _ in drawings]
