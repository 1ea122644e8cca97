# SPDX-License-Identifier: Apache-2.0
"""`netfold bench paths`: its options, and its figure."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import msgspec
import pytest

from netfold.bench.commands import paths
from netfold.bench.commands.paths import PathsRow, draw, summary
from netfold.bench.options.paths import PathsOptions
from netfold.bench.ranks.paths import PathsResult


@pytest.mark.parametrize(("given", "says"), [
    ({"modes": "pinned,best"}, "--modes best: expected some of pinned, ecmp, spray, reps"),
    ({"transport": "tcp", "modes": "reps"}, "--modes reps: expected no reps over tcp"),
    ({"planner": "best"}, "--planner best: expected one of fewest_pieces, equal_split"),
    ({"collectives": "all_to_none"}, "--collectives all_to_none: expected some of all_to_all"),
    ({"fail_link": -1.0}, "--fail-link -1: expected 0 or more"),
    ({"silent": True}, "--silent goes with --fail-link SECONDS"),
    ({"nbytes": "60"}, "--bytes 60: expected 64 bytes or more"),
    ({"topo": "mesh,2,2"}, "--topo mesh,2,2: expected leaves that are linked to spines or aggs"),
    ({"topo": "leafspine,1,0,4"}, "--topo leafspine,1,0,4: expected leaves that are linked to spines or aggs"),
    ({"rate": "none", "fail_link": 0.1, "silent": True}, "--rate none: expected a rate with --silent"),
])
def test_what_cannot_be_measured_is_refused_by_name(given: dict[str, Any], says: str) -> None:
    """Before anything is started."""
    with pytest.raises(ValueError, match=says):
        PathsOptions(**given)


def test_modes_are_those_of_the_transport() -> None:
    """Where none are named."""
    assert PathsOptions().modes == "pinned,ecmp,spray,reps"
    assert PathsOptions(transport="tcp").modes == "pinned,ecmp,spray"


def test_the_load_of_uplinks_is_told_by_the_roles_of_switches(tmp_path: Path) -> None:
    """Whatever switches are called, and whichever end a link names first: of leaves upwards, of others to leaves, and
    nothing between those others; all 0 where nothing crossed."""
    graph = {"multigraph": True, "nodes": [{"id": "east", "hosts": 2}, {"id": "top", "role": "spine", "hosts": 0},
                                           {"id": "west", "hosts": 2}, {"id": "high", "role": "spine", "hosts": 0}],
             "links": [{"source": "top", "target": "east"}, {"source": "west", "target": "top"},
                       {"source": "top", "target": "high"}]}
    (tmp_path / "g.json").write_text(json.dumps(graph))
    options = PathsOptions(topo=f"file:{tmp_path / 'g.json'}", rate="none")
    assert [tuple(map(str, ends)) for ends, _ in options.uplinks] == [("east:3", "top:1"), ("west:1", "top:2")]
    moved = {"east:3": 300, "top:1": 100, "west:1": 100, "top:2": 100, "top:3": 9999, "high:1": 9999}
    result = PathsResult("ecmp", "ring", 0, 1.0, moved, 0.0, 0, 1, False)
    (row,) = summary([result], options)
    assert (row.up, row.down) == (1.5, 1.0)
    (row,) = summary([msgspec.structs.replace(result, uplinks=dict.fromkeys(moved, 0))], options)
    assert (row.up, row.down) == (0.0, 0.0)
    three = PathsOptions(topo="threetier,2,1,2,2,4").uplinks
    assert {(ends[0].node[:-1], ends[1].node[:-1]) for ends, _ in three} == {("leaf", "agg")}


def test_rows_are_written_before_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that took minutes to measure are in the file of --rows, although the summary fails."""
    monkeypatch.setattr(paths.sandbox, "enter", lambda: None)
    result = PathsResult("ecmp", "ring", 0, 1.0, {}, 0.0, 0, 1, False)
    monkeypatch.setattr(paths, "run", lambda options: [result])
    with pytest.raises(KeyError):  # this result lacks the uplinks
        paths.main(PathsOptions(rows=tmp_path / "rows.json", out=tmp_path / "out"))
    assert msgspec.json.decode((tmp_path / "rows.json").read_bytes(), type=list[PathsResult]) == [result]


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
