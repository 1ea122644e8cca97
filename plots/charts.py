# SPDX-License-Identifier: Apache-2.0
"""Figures of line charts, of bar charts and of arrows between places, written as SVG for pages and as PDF for papers.

Every chart has the width of a paper's column; two stand beside each other. Series look as `plots.style` says, and what
could overlap is measured and laid out anew: `plots.layout`.

matplotlib is imported when a chart is drawn, so that whoever draws none does without it.
"""

from __future__ import annotations

import io
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from netfold.disk import files
from netfold.plots import layout, style
from netfold.plots.style import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STRIP = 0.08
"""Part of a line chart's height, above all values, in which the crosses of unfinished runs stand."""


class PlotsMissing(Exception):
    """matplotlib is not installed, so that no chart can be drawn.

    Remedy: `pip install matplotlib`; the data (CSV) are written without it.
    """

    def __init__(self) -> None:
        super().__init__("charts need matplotlib, which is not installed: pip install matplotlib")


class Whisker(NamedTuple):
    """A value of several seeds or rounds: the middle one, and the least and the most as whiskers."""

    middle: float
    least: float
    most: float


Value = float | Whisker


def spread(values: Sequence[float]) -> Value:
    """The median of one value or several, with their range as whiskers where they are several that finished.

    Raises ValueError for none.
    """
    middle = statistics.median(values)
    least, most = min(values), max(values)
    return middle if least == most or math.isinf(most) else Whisker(middle, least, most)


@dataclass(frozen=True)
class LineChart:
    """One chart of a figure: each series has a value at each tick, None without a result, inf where it never finished.

    Ticks that are numbers stand where they are on the axis, which is logarithmic from a ratio of 8 on; words stand at
    equal distances.
    """

    title: str
    ticks: Sequence[str] | Sequence[float]
    series: Mapping[str, Sequence[Value | None]]
    empty: str = ""
    """The text of the chart if no series has a value."""
    y: str = ""
    """The name of the values, with the unit, if it differs from the other charts'."""
    x: str = ""
    """The name of the ticks, with the unit, if it differs from the other charts'."""


@dataclass(frozen=True)
class BarChart:
    """One chart: groups of bars, one below the other, each group with a bar for some of the series."""

    title: str
    groups: Mapping[str, Mapping[str, Value]]
    """The values of each group by series."""
    axis: str
    """The name of the values, with the unit."""
    base: float = 0.0
    """Where the bars begin."""


@dataclass(frozen=True)
class GridChart:
    """One chart: places in rows and columns, and arrows between them."""

    title: str
    arrows: Sequence[tuple[int, int, str]]
    """(from, to, series), of places numbered row by row."""


def line_charts(stem: Path, title: str, rows: Sequence[Sequence[LineChart]], *, x: str = "", y: str = "") -> list[Path]:
    """Draw the charts of ``rows``, two beside each other, and return the files written, ``stem`` with .svg and .pdf.

    The y axes are logarithmic, with the same limits throughout a row. A run that never finished is a cross above all
    values. Raises ValueError for nothing to draw and a chart without ``x`` or ``y``,
    PlotsMissing, and OSError where a file
    cannot be written.
    """
    names = list(dict.fromkeys(name for row in rows for chart in row for name in chart.series))
    if not names:
        raise ValueError("line_charts: expected at least one chart with one series, got none")
    charts = [chart for row in rows for chart in row]
    if unnamed := [chart.title for chart in charts if not ((chart.y or y) and (chart.x or x))]:
        raise ValueError(f"line_charts: the chart {unnamed[0]!r} says not what its axes are; give `x` and `y` "
                         "with units")
    looks = style.styles(names)
    with _settings():
        heights = [1.9 + layout.below(chart.ticks) + layout.lines(chart.title, 2.6) for chart in charts]
        figure, places = _figure(heights, title)
        at = iter(places)
        for row in rows:
            low, high = _limits([value for chart in row for values in chart.series.values() for value in values])
            for chart in row:
                axes = next(at)
                _draw_lines(axes, chart, looks, high / low)
                axes.set(title=chart.title, xlabel=chart.x or x, ylabel=chart.y or y,
                         ylim=(low, low * (high / low) ** (1 / (1 - STRIP))))
        layout.legend(figure, looks, lines=True)
        return _save(figure, stem)


def bar_charts(stem: Path, title: str, charts: Sequence[BarChart]) -> list[Path]:
    """Draw charts, two beside each other, and return the files written, ``stem`` with .svg and .pdf.

    Where each group has the one bar of its own name, there is no legend. Raises ValueError for nothing to draw,
    PlotsMissing, and OSError where a file cannot be written.
    """
    names = list(dict.fromkeys(name for chart in charts for group in chart.groups.values() for name in group))
    if not names:
        raise ValueError("bar_charts: expected at least one chart with one bar, got none")
    looks = style.styles(names)
    with _settings():
        heights = [0.6 + sum(0.115 * len(group) + 0.09 for group in chart.groups.values()) +
                   layout.lines(chart.title, 2.0) for chart in charts]
        figure, places = _figure(heights, title)
        for axes, chart in zip(places, charts, strict=True):
            _draw_bars(axes, chart, looks)
            axes.set(title=chart.title, xlabel=chart.axis)
        if any(name != group for chart in charts for group, values in chart.groups.items() for name in values):
            layout.legend(figure, looks, lines=False)
        return _save(figure, stem)


def grid_charts(stem: Path, title: str, charts: Sequence[GridChart], *, rows: int, columns: int) -> list[Path]:
    """Draw charts of ``rows`` x ``columns`` places, four beside each other, and return the files written.

    Raises ValueError for nothing to draw, PlotsMissing, and OSError where a file cannot be written.
    """
    names = list(dict.fromkeys(series for chart in charts for _, _, series in chart.arrows))
    if not names:
        raise ValueError("grid_charts: expected at least one chart with one arrow, got none")
    looks = style.styles(names)
    with _settings():
        side = style.PAGE / 4
        heights = [side * rows / columns + 0.25 + layout.lines(chart.title, side - 0.2, style.SMALL)
                   for chart in charts]
        figure, places = _figure(heights, title, across=4)
        for axes, chart in zip(places, charts, strict=True):
            _draw_arrows(axes, chart, rows, columns, looks)
            axes.set_title(chart.title, fontsize=style.SMALL)
        layout.legend(figure, looks, lines=False)
        return _save(figure, stem)


def _settings() -> Any:  # matplotlib's own context manager, of a library that may be missing
    """The style sheet, for as long as a figure is made and written.  Raises PlotsMissing."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise PlotsMissing from error
    return mpl.rc_context(dict(style.SHEET))


def _figure(heights: Sequence[float], title: str, across: int = 2) -> tuple[Figure, list[Axes]]:
    """A figure with charts of these heights in inches, ``across`` beside each other."""
    from matplotlib.figure import Figure

    number = len(heights)
    across = min(across, number)
    lines = [max(heights[i:i + across]) for i in range(0, number, across)]
    width = style.COLUMN if across == 1 else style.PAGE
    figure = Figure(figsize=(width, sum(lines) + 0.6), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)  # type: ignore[union-attr,call-arg]
    grid = figure.subplots(len(lines), across, squeeze=False, gridspec_kw={"height_ratios": lines})
    for axes in grid.flat[number:]:
        axes.remove()
    figure.suptitle(layout.wrapped(title, width - 0.2, style.LETTERS + 1))
    return figure, list(grid.flat[:number])


def _draw_arrows(axes: Axes, chart: GridChart, rows: int, columns: int, looks: Mapping[str, Style]) -> None:
    """Draw places as dots and each message as an arrow, those of a series beside those of another."""
    axes.plot([place % columns for place in range(rows * columns)],
              [-(place // columns) for place in range(rows * columns)], "o", color="#333333", markersize=3)
    for number, (series, look) in enumerate(looks.items()):
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
        axes.quiver(*zip(*lines, strict=True), angles="xy", scale_units="xy", scale=1, color=look.colour,
                    width=0.012, headwidth=5, headlength=5, headaxislength=4.5, gid=f"{chart.title}: {series}")
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(-rows + 0.5, 0.5), aspect="equal")
    axes.axis("off")


def _limits(values: Sequence[Value | None]) -> tuple[float, float]:
    """The least and the greatest finite value, whiskers included, with a margin of 6 %."""
    ends = [end for value in values if value is not None for end in (value if isinstance(value, Whisker) else (value,))]
    finite = [end for end in ends if 0 < end < math.inf] or [1.0]
    return min(finite) / 1.06, max(finite) * 1.06


def _middle(value: Value) -> float:
    return value.middle if isinstance(value, Whisker) else value


def _draw_lines(axes: Axes, chart: LineChart, looks: Mapping[str, Style], ratio: float) -> None:
    """Draw the lines of one chart, and side by side above them a cross for each run that never finished.

    A line ends where a tick has no value, and begins anew behind it.
    """
    from matplotlib.transforms import ScaledTranslation

    never = [name for name, values in chart.series.items() if any(v is not None and _middle(v) == math.inf
                                                                  for v in values)]
    apart = min(0.05, 2.4 / len(chart.ticks) / (len(never) + 1))  # inches
    places = layout.ticks(axes, chart.ticks)
    for name, values in chart.series.items():
        look = looks[name]
        middles = [math.nan if value is None else _middle(value) for value in values]
        axes.plot(places, [middle if middle < math.inf else math.nan for middle in middles], color=look.colour,
                  marker=look.marker, linestyle=look.dash, gid=f"line {name}")
        spreads = [(at, value) for at, value in zip(places, values, strict=True)
                   if isinstance(value, Whisker) and value.middle < math.inf]
        if spreads:
            drawn = axes.errorbar([at for at, _ in spreads], [value.middle for _, value in spreads],
                                  _whiskers([value for _, value in spreads]), fmt="none", ecolor=look.colour,
                                  elinewidth=0.7, capsize=1.5)
            for number, bars in enumerate(drawn.lines[2]):
                bars.set_gid(f"whiskers {name}" if not number else None)
        if name in never:
            where = [at for at, value in zip(places, values, strict=True)
                     if value is not None and _middle(value) == math.inf]
            aside = ScaledTranslation(apart * (never.index(name) - (len(never) - 1) / 2), 0,
                                      axes.figure.dpi_scale_trans)
            axes.plot(where, [1 - STRIP / 2] * len(where), "x", color=look.colour, gid=f"never {name}",
                      transform=axes.get_xaxis_transform() + aside)
    if all(value is None for values in chart.series.values() for value in values):
        axes.text(0.5, 0.5, layout.wrapped(chart.empty, 0.7 * style.COLUMN), ha="center", transform=axes.transAxes)
    layout.log_values(axes, ratio)
    axes.grid(axis="y", color="#e5e5e5", linewidth=0.5)


def _whiskers(values: Sequence[Whisker]) -> list[list[float]]:
    """The lengths of whiskers below and above the middle."""
    return [[value.middle - value.least for value in values], [value.most - value.middle for value in values]]


def _draw_bars(axes: Axes, chart: BarChart, looks: Mapping[str, Style]) -> None:
    """Draw the groups of one chart from above to below, with each bar's value at its end."""
    place, middles = 0.0, []
    for values in chart.groups.values():
        middles.append(place + (len(values) - 1) / 2)
        for name, value in values.items():
            middle = _middle(value)
            beyond = 4 if isinstance(value, Whisker) else 2
            axes.barh(place, middle - chart.base, 0.85, chart.base, color=looks[name].colour,
                      xerr=_whiskers([value]) if isinstance(value, Whisker) else None,
                      error_kw={"elinewidth": 0.7, "capsize": 1.5, "ecolor": "#333333"})
            end = max(value.most if isinstance(value, Whisker) else middle, chart.base)
            axes.annotate(layout.number(middle), (end, place), (beyond, 0), textcoords="offset points",
                          va="center", fontsize=style.SMALL, annotation_clip=False)
            place += 1
        place += 0.8
    axes.set_yticks(middles, [layout.wrapped(name, 0.35 * style.COLUMN) for name in chart.groups])
    axes.set_ylim(place - 1.2, -0.6)
    axes.margins(x=0.16)
    if chart.base:  # ticks near it have many digits
        axes.locator_params(axis="x", nbins=5)
    axes.tick_params(axis="y", length=0)
    axes.axvline(chart.base, color="#333333", linewidth=0.6)


def _in_one_line(path: re.Match[bytes]) -> bytes:
    """A path of an SVG, which matplotlib writes with a line for each point."""
    return b" ".join(path[0].split(b"\n"))


def _save(figure: Figure, stem: Path) -> list[Path]:
    """Lay out, and write SVG, with text as text, and PDF: the same bytes for the same figure."""
    layout.settle(figure)
    written = []
    for form, about in (("svg", {"Date": None}), ("pdf", {"CreationDate": None})):
        drawn = io.BytesIO()
        figure.savefig(drawn, format=form, metadata=about)
        written.append(stem.with_name(f"{stem.name}.{form}"))
        text = drawn.getvalue()
        files.replace(written[-1], re.sub(rb' d="[^"]*"', _in_one_line, text) if form == "svg" else text)
    return written
