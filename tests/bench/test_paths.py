# SPDX-License-Identifier: Apache-2.0
"""`netfold bench paths`: its figure."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from netfold.bench.commands.paths import PathsRow, draw


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
