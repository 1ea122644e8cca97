# SPDX-License-Identifier: Apache-2.0
"""Charts hold every value they were given, and a machine without matplotlib hears what to install."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from math import inf
from pathlib import Path

import pytest

from netfold.plots import charts
from netfold.plots.charts import BarChart, LineChart, PlotsMissing, bar_charts, line_charts

SPACE = "{http://www.w3.org/2000/svg}"


def marks(root: ET.Element, gid: str) -> list[tuple[float, float]]:
    """Where the markers of all lines with this id are."""
    return [(float(use.get("x", "")), float(use.get("y", "")))
            for group in root.iter(SPACE + "g") if group.get("id") == gid for use in group.iter(SPACE + "use")]


def texts(root: ET.Element) -> set[str]:
    """All words of a drawing."""
    return {element.text or "" for element in root.iter(SPACE + "text")}


@pytest.mark.needs("matplotlib")
def test_lines_hold_every_value_and_mark_what_never_finished(tmp_path: Path) -> None:
    """There is a dot for each value, a cross for inf, nothing for None; special characters survive."""
    chart = LineChart("a < b", ["1", "2", "3"], {"one": [1.0, 2.0, None], "two": [1.5, inf, 1.1]})
    svg, png = line_charts(tmp_path / "t", "t & u", [[chart], [chart]], x="x", y="y")
    root = ET.parse(svg).getroot()
    assert [len(marks(root, gid)) for gid in ("line one", "line two", "never one", "never two")] == [4, 4, 0, 2]
    assert {"a < b", "t & u", "one", "two"} <= texts(root)
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.mark.needs("matplotlib")
def test_a_chart_without_values_says_why(tmp_path: Path) -> None:
    """The words for an empty chart stand in that chart alone."""
    full = LineChart("a", ["1"], {"one": [1.0]}, "nothing < came")
    empty = LineChart("b", ["1"], {"one": [None]}, "nothing < came")
    both, _ = line_charts(tmp_path / "both", "t", [[full, empty]], x="x", y="y")
    alone, _ = line_charts(tmp_path / "alone", "t", [[full]], x="x", y="y")
    assert "nothing < came" in texts(ET.parse(both).getroot())
    assert "nothing < came" not in texts(ET.parse(alone).getroot())


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize("kind", ["lines", "bars"])
def test_a_legend_of_many_long_names_is_whole_and_covers_no_chart(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 12 names of 45 letters the legend is within the picture, and no chart with its labels reaches into it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    drawn = []
    monkeypatch.setattr(charts, "_save", lambda figure, stem, png: drawn.append(figure))
    names = [f"{number:02} {'long name ' * 4}{number:02}" for number in range(12)]
    if kind == "lines":
        one = LineChart("a chart", ["1", "2"], {name: [1.0 + i, 2.0] for i, name in enumerate(names)})
        line_charts(tmp_path / "t", "t", [[one, one]], x="bytes", y="seconds")
    else:
        bar_charts(tmp_path / "t", "t", [BarChart("a chart", {"g": {name: 1.0 + i for i, name in enumerate(names)}})])
    (figure,) = drawn
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == names
    place = legend.get_window_extent()
    assert place.x0 >= figure.bbox.x0
    assert place.x1 <= figure.bbox.x1
    assert place.y0 >= figure.bbox.y0
    for axes in figure.axes:
        assert axes.get_tightbbox(canvas.get_renderer()).y0 >= place.y1


@pytest.mark.needs("matplotlib")
def test_crosses_stand_above_all_values_one_beside_the_other(tmp_path: Path) -> None:
    """No two are on one spot, however many series never finished."""
    names = "abcdefgh"
    chart = LineChart("t", ["1", "2"], {name: [inf, 3.0] for name in names} | {"z": [1.0, 9.0]})
    root = ET.parse(line_charts(tmp_path / "t", "t", [[chart]], x="x", y="y")[0]).getroot()
    crosses = [place for name in names for place in marks(root, f"never {name}")]
    dots = [place for name in [*names, "z"] for place in marks(root, f"line {name}")]
    assert len(set(crosses)) == len(crosses) == 8
    assert max(y for _, y in crosses) < min(y for _, y in dots), "y grows downwards"


@pytest.mark.needs("matplotlib")
def test_bars_hold_every_value(tmp_path: Path) -> None:
    """Each bar has its value written above it, and each group its name below."""
    chart = BarChart("load", {"ring": {"pinned": 1.25, "ecmp": 2.5}, "all to all": {"pinned": 1.125}}, base=1.0)
    root = ET.parse(bar_charts(tmp_path / "t", "title", [chart, chart])[0]).getroot()
    assert {"1.25", "2.50", "1.12", "ring", "all to all", "pinned", "ecmp", "load", "title"} <= texts(root)


@pytest.mark.needs("matplotlib")
def test_equal_charts_give_equal_files(tmp_path: Path) -> None:
    """No date and no random name makes two drawings of the same values differ."""
    chart = LineChart("a", ["1"], {"one": [1.0]})
    first, second = (line_charts(tmp_path / name, "t", [[chart]], x="x", y="y")[0] for name in "ab")
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.needs("matplotlib")
def test_a_drawing_may_be_svg_alone(tmp_path: Path) -> None:
    """Without PNG one file is written, and named."""
    chart = LineChart("a", ["1"], {"one": [1.0]})
    assert line_charts(tmp_path / "lines", "t", [[chart]], x="x", y="y", png=False) == [tmp_path / "lines.svg"]
    bars = [BarChart("b", {"g": {"one": 1.0}})]
    assert bar_charts(tmp_path / "bars", "t", bars, png=False) == [tmp_path / "bars.svg"]
    assert {file.name for file in tmp_path.iterdir()} == {"lines.svg", "bars.svg"}


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    """A grid without a series would be an empty file."""
    with pytest.raises(ValueError, match="expected at least one chart"):
        line_charts(tmp_path / "t", "t", [], x="x", y="y")
    with pytest.raises(ValueError, match="expected at least one chart"):
        bar_charts(tmp_path / "t", "t", [BarChart("a", {})])


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotsMissing, match=r"pip install matplotlib"):
        line_charts(tmp_path / "t", "t", [[LineChart("a", ["1"], {"one": [1.0]})]], x="x", y="y")
