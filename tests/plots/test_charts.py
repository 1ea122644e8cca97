# SPDX-License-Identifier: Apache-2.0
"""Charts hold every value they were given, and a machine without matplotlib hears what to install."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from math import inf
from pathlib import Path

import pytest

from netfold.plots.charts import BarChart, LineChart, PlotsMissing, bar_charts, line_charts

pytestmark = pytest.mark.slow

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
    svg, pdf = line_charts(tmp_path / "t", "t & u", [[chart], [chart]], x="x", y="y")
    root = ET.parse(svg).getroot()
    assert [len(marks(root, gid)) for gid in ("line one", "line two", "never one", "never two")] == [4, 4, 0, 2]
    assert {"a < b", "t & u", "one", "two"} <= texts(root)
    assert pdf.read_bytes().startswith(b"%PDF")


@pytest.mark.needs("matplotlib")
def test_a_line_does_not_cross_what_has_no_value(tmp_path: Path) -> None:
    """It ends before None and inf, and begins anew behind them: nothing was measured there."""
    chart = LineChart("t", [1.0, 2.0, 3.0, 4.0, 5.0], {"gap": [1.0, 2.0, None, 2.0, 1.0], "whole": [1.0] * 5})
    root = ET.parse(line_charts(tmp_path / "t", "t", [[chart]], x="x", y="y")[0]).getroot()
    begun = {group.get("id"): path.get("d", "").count("M") for group in root.iter(SPACE + "g")
             if group.get("id", "").startswith("line ") for path in [next(group.iter(SPACE + "path"))]}
    assert begun == {"line gap": 2, "line whole": 1}


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
    groups = {"ring": {"pinned": 1.25, "ecmp": 2.5}, "all to all": {"pinned": 1.125}}
    chart = BarChart("load", groups, "bytes", base=1.0)
    root = ET.parse(bar_charts(tmp_path / "t", "title", [chart, chart])[0]).getroot()
    assert {"1.25", "2.50", "1.12",
            "ring", "all to all", "pinned", "ECMP, hashed", "load", "bytes", "title"} <= texts(root)


@pytest.mark.needs("matplotlib")
def test_equal_charts_give_equal_files(tmp_path: Path) -> None:
    """No date and no random name makes two drawings of the same values differ."""
    chart = LineChart("a", ["1"], {"one": [1.0]})
    first, second = ([file.read_bytes() for file in line_charts(tmp_path / name, "t", [[chart]], x="x", y="y")]
                     for name in "ab")
    assert first == second


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    """A grid without a series would be an empty file."""
    with pytest.raises(ValueError, match="expected at least one chart"):
        line_charts(tmp_path / "t", "t", [], x="x", y="y")
    with pytest.raises(ValueError, match="expected at least one chart"):
        bar_charts(tmp_path / "t", "t", [BarChart("a", {}, "s")])


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotsMissing, match=r"pip install matplotlib"):
        line_charts(tmp_path / "t", "t", [[LineChart("a", ["1"], {"one": [1.0]})]], x="x", y="y")
