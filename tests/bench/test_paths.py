# SPDX-License-Identifier: Apache-2.0
"""`netfold bench paths`: its options, and its figure."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from netfold.bench.commands.paths import PathsRow, draw
from netfold.bench.options.paths import PathsOptions


@pytest.mark.parametrize(("given", "says"), [
    ({"modes": "pinned,best"}, "--modes best: expected some of pinned, ecmp, spray, reps"),
    ({"transport": "tcp", "modes": "reps"}, "--modes reps: expected no reps over tcp"),
    ({"planner": "best"}, "--planner best: expected one of fewest_pieces, equal_split"),
    ({"collectives": "all_to_none"}, "--collectives all_to_none: expected some of all_to_all"),
    ({"fail_link": -1.0}, "--fail-link -1: expected 0 or more"),
    ({"silent": True}, "--silent goes with --fail-link SECONDS"),
    ({"nbytes": "60"}, "--bytes 60: expected 64 bytes or more"),
])
def test_what_cannot_be_measured_is_refused_by_name(given: dict[str, Any], says: str) -> None:
    """Before anything is started."""
    with pytest.raises(ValueError, match=says):
        PathsOptions(**given)


def test_modes_are_those_of_the_transport() -> None:
    """Where none are named."""
    assert PathsOptions().modes == "pinned,ecmp,spray,reps"
    assert PathsOptions(transport="tcp").modes == "pinned,ecmp,spray"


@pytest.mark.needs("matplotlib")
def test_the_figure_has_a_bar_for_each_row_in_both_charts(tmp_path: Path) -> None:
    """Load and time of every mode are written above its bars, and a run with a broken link is a group of its own."""
    row = PathsRow("all_to_all", "pinned", False, 1.01, 1.0, 0.51, 0.5, 0.6, 0.0, 0, 3)
    rows = [row, row._replace(mode="ecmp", up=2.02, seconds=1.52, best=1.5, worst=1.6),
            row._replace(failed=True, up=1.33, seconds=0.73, best=0.7, worst=0.8)]
    svg, _ = draw(rows, "16 hosts", tmp_path)
    texts = [element.text for element in ET.parse(svg).getroot().iter("{http://www.w3.org/2000/svg}text")]
    assert {"1.01", "0.51", "2.02", "1.52", "1.33", "0.73", "pinned", "ECMP, hashed"} <= set(texts)
    assert "16 hosts" in " ".join(filter(None, texts))
    assert texts.count("all to all") == texts.count("all to all, a link fails") == 2
