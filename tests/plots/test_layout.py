# SPDX-License-Identifier: Apache-2.0
"""Nothing in a figure overlaps or is cut, and a scheme looks the same in all figures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from netfold.plots import charts, layout, style
from netfold.plots.charts import BarChart, GridChart, LineChart, Whisker

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.text import Text

LONG = "a name of many words that no line of a chart's width can hold, "
NAMES = [f"{LONG}{number:02}" for number in range(12)]
BROAD = Whisker(3.0, 0.5, 40.0)


def lines(stem: Path, count: int, ticks: list[Any]) -> None:
    """``count`` charts of 12 series with whiskers, one of which never finished."""
    series = {name: [1.0 + at + number if number else charts.math.inf for at in range(len(ticks) - 1)] + [BROAD]
              for number, name in enumerate(NAMES)}
    one = LineChart(f"{LONG}as a chart's title", ticks, series)
    charts.line_charts(stem, f"{LONG}{LONG}as a title", [[one] * count],
                       x="bytes of a tensor on each of the ranks, KiB", y="time of an allreduce, ms")


def bars(stem: Path, count: int, base: float = 0.0) -> None:
    """``count`` charts of 3 groups of 12 bars, some of six digits, some below the base, some with whiskers."""
    values = [123456.0, 0.25, BROAD, *map(float, range(1, 10))]
    group = dict(zip(NAMES, values, strict=True))
    chart = BarChart(f"{LONG}as a chart's title", {f"{LONG}{at}": group for at in range(3)}, "processor time, ms", base)
    charts.bar_charts(stem, f"{LONG}{LONG}as a title", [chart] * count)


def grids(stem: Path) -> None:
    """6 charts of arrows of 12 series."""
    arrows = [(at, at + 1, name) for at, name in enumerate(NAMES)]
    charts.grid_charts(stem, f"{LONG}{LONG}as a title", [GridChart(f"{LONG}as a chart's title", arrows)] * 6,
                       rows=4, columns=4)


KINDS: dict[str, Callable[[Path], None]] = {
    "one chart of lines over words": lambda stem: lines(stem, 1, [f"{LONG}{at}" for at in range(6)]),
    "four charts of lines over words": lambda stem: lines(stem, 4, [f"a word {at}" for at in range(12)]),
    "one chart of lines over numbers": lambda stem: lines(stem, 1, [float(2 ** at) for at in range(16)]),
    "three charts of lines over numbers": lambda stem: lines(stem, 3, [4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 31.0]),
    "one chart of lines over times": lambda stem: lines(stem, 1, [at * 0.137 for at in range(40)]),
    "one chart of bars": lambda stem: bars(stem, 1),
    "three charts of bars from a base": lambda stem: bars(stem, 3, 1.0),
    "charts of arrows": grids,
}


def drawn(draw: Callable[[Path], None], stem: Path, monkeypatch: pytest.MonkeyPatch) -> Figure:
    """The figure as it is laid out; what is written of it, test_charts.py reads."""
    from matplotlib.figure import Figure

    found: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: found.append(figure))
    draw(stem)
    (figure,) = set(found)
    return figure


def words(figure: Figure) -> Iterator[Text]:
    """Everything in a figure that is read."""
    from matplotlib.text import Text

    unseen = {tick.label1 for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)
              for low, high in [sorted(axis.get_view_interval())]
              for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]
              if not axes.axison or not low <= tick.get_loc() <= high}
    for text in set(figure.findobj(Text)) - unseen:
        if isinstance(text, Text) and text.get_visible() and text.get_text().strip():
            yield text


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_overlaps_or_is_cut(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All words of a figure with long names and 12 series are inside it, none on another, or on another chart; one
    chart has a column's width, several have a page's, and letters have 6 points or more."""
    import matplotlib as mpl

    figure = drawn(KINDS[kind], tmp_path / "t", monkeypatch)
    assert figure.get_size_inches()[0] == (style.COLUMN if len(figure.axes) == 1 else style.PAGE)
    assert min(text.get_fontsize() for text in words(figure)) >= 6
    with mpl.rc_context(dict(style.SHEET)):
        figure.draw_without_rendering()
    boxes = [(text.get_text(), text.get_window_extent(), text.axes) for text in words(figure)]
    assert len(boxes) > 12
    for text, box, _ in boxes:
        assert box.x0 >= 0 and box.y0 >= 0, text  # noqa: PT018
        assert box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1, text  # noqa: PT018
    for (one, a, _), (other, b, _) in itertools.combinations(boxes, 2):
        apart = a.x1 <= b.x0 or b.x1 <= a.x0 or a.y1 <= b.y0 or b.y1 <= a.y0
        assert apart, (one, other)
    for axes in figure.axes:
        place = axes.get_window_extent()
        for text, box, owner in boxes:
            apart = box.x1 <= place.x0 or place.x1 <= box.x0 or box.y1 <= place.y0 + 1 or place.y1 <= box.y0
            assert owner is axes or apart, text


@pytest.mark.needs("matplotlib")
def test_letters_that_the_font_lacks_are_as_wide_as_high() -> None:
    """A name in another script is broken into lines as any other, at ten letters of 7 points an inch."""
    assert layout.wrapped("東京 a", 1.0) == "東京 a"
    assert layout.wrapped("京" * 25, 1.0) == "\n".join(["京" * 10, "京" * 10, "京" * 5])


@pytest.mark.needs("matplotlib")
def test_an_axis_without_a_name_is_refused(tmp_path: Path) -> None:
    """A chart says what its axes are."""
    with pytest.raises(ValueError, match="give `x` and `y` with units"):
        charts.line_charts(tmp_path / "t", "t", [[LineChart("a", ["1"], {"one": [1.0]})]], x="KiB")


@pytest.mark.needs("matplotlib")
def test_whiskers_reach_from_the_least_to_the_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line's and a bar's whiskers end at the extremes, and one value has none."""
    value = charts.spread([3.0, 1.0, 2.0])
    assert value == Whisker(2.0, 1.0, 3.0)
    assert charts.spread([2.0]) == 2.0
    assert charts.spread([2.0, charts.math.inf, charts.math.inf]) == charts.math.inf
    with monkeypatch.context() as patch:
        figure = drawn(lambda stem: list.clear(charts.line_charts(
            stem, "t", [[LineChart("a", [1.0, 2.0], {"one": [value, 2.0]})]], x="x", y="y")), tmp_path / "l", patch)
    (bars,) = figure.axes[0].collections
    assert [path.vertices.tolist() for path in bars.get_paths()] == [[[1.0, 1.0], [1.0, 3.0]]]
    figure = drawn(lambda stem: list.clear(charts.bar_charts(
        stem, "t", [BarChart("a", {"g": {"one": value, "two": 2.0}}, "ms")])), tmp_path / "b", monkeypatch)
    (bars,) = figure.axes[0].collections
    assert [path.vertices.tolist() for path in bars.get_paths()] == [[[1.0, 0.0], [3.0, 0.0]]]


def test_a_scheme_looks_the_same_whatever_is_beside_it() -> None:
    """Its colour, marker and dash do not depend on the figure's other series, as long as these are other schemes."""
    for name, look in style.STYLES.items():
        (alone,) = style.styles([name]).values()
        beside = style.styles(["x", "y", "z", name])[name]
        for found in (alone, beside):
            assert (found.colour, found.marker, found.dash) == (look.colour, look.marker, look.dash)


@pytest.mark.parametrize("figure", ["ethereal", "netreduce", "mesh", "smp", "bcast", "step"])
def test_schemes_of_a_figure_have_colours_of_their_own(figure: str) -> None:
    """No two in one figure share a colour, and each has its own entry in the style sheet."""
    from netfold.bench.options.sums import COLLECTIVES
    from netfold.sim.collectives import mesh
    from netfold.sim.engines import placement
    from netfold.sim.netreduce import points as netreduce
    from netfold.sim.workloads import smp_workload

    names = {"ethereal": [*placement.SCHEMES], "netreduce": [*netreduce.LABELS.values(), "sufficient condition"],
             "mesh": [*mesh.ALGORITHMS], "smp": [*smp_workload.ALGORITHMS],
             "bcast": [*COLLECTIVES["broadcast"], "gloo"], "step": COLLECTIVES["step"]}[figure]
    assert not set(names) - set(style.STYLES)
    assert len({look.colour for look in style.styles(names).values()}) == len(names)


def test_names_that_the_sheet_lacks_get_looks_that_nothing_else_has() -> None:
    """Also beyond the number of colours, where dashes tell them apart; more than that is refused."""
    names = ["ring", *(f"x{number}" for number in range(40))]
    looks = style.styles(names)
    assert len({(look.colour, look.marker, look.dash) for look in looks.values()}) == len(names)
    with pytest.raises(ValueError, match="expected at most"):
        style.styles([f"x{number}" for number in range(60)])


def test_values_have_three_digits() -> None:
    """A bar's value is no longer than can be read."""
    assert [layout.number(value) for value in (0.0, 1.125, 9.99, 9.996, 10.04, 123.456, 123456.0, 1.5e6)] == [
        "0.00", "1.12", "9.99", "10", "10", "123", "123,000", "1.5e+06"]
