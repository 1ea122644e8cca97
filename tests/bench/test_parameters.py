# SPDX-License-Identifier: Apache-2.0
"""`netfold bench parameter-server`: all ways on ranks of one process, its figures, and what it refuses."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from netfold import testing
from netfold.bench.commands.parameters import ParametersRow, rows_of, uneven, ways_of, write
from netfold.bench.ranks.parameters import ParametersResult, ParametersTask, StepWay, measure
from netfold.cli.app import app
from netfold.cli.common import CANNOT
from netfold.topo.processes.failures import WrongData


def test_all_ways_make_the_same_steps() -> None:
    """Servers, a ring and the switches end with the same parameters within the tolerance, alike on all ranks."""
    task = ParametersTask(ways_of(4), uneven(8000), rounds=1, steps=2)
    with testing.loopback_job(4, rail="auto") as comms:
        results = testing.on_every_rank(comms, lambda comm: measure(comm, task))
    assert all(isinstance(result, ParametersResult) for result in results), results
    rows = rows_of(task.ways, results)
    assert [row.way for row in rows] == [way.name for way in task.ways]
    assert rows[0].of_ring == 1.0
    assert all(0 < row.best <= row.step <= row.worst for row in rows)


def test_tensors_are_uneven_and_complete() -> None:
    """The first has half of the bytes, and together they have all."""
    sizes = uneven(4096)
    assert sum(sizes) == 1024
    assert sizes[0] == 512
    assert sizes == sorted(sizes, reverse=True)


def test_a_step_is_the_slowest_ranks_and_ranks_must_end_alike() -> None:
    """Of each step the slowest rank counts, of rounds the median; ratios are of one round."""
    ways = [StepWay("ring", algorithm="ring"), StepWay("all serve", 2)]

    def result(digest: str, *seconds: float) -> ParametersResult:
        return ParametersResult([[[s], [2 * s]] for s in seconds], [[0.1, 0.3]] * len(seconds), [digest, digest])

    rows = rows_of(ways, [result("a", 1.0, 2.0, 9.0), result("a", 3.0, 2.0, 4.0)])
    assert [(row.step, row.best, row.worst, row.of_ring) for row in rows] == [
        (3.0, 2.0, 9.0, 1.0), (6.0, 4.0, 18.0, 2.0),
    ]
    with pytest.raises(WrongData, match="unlike parameters"):
        rows_of(ways, [result("a", 1.0), result("b", 1.0)])


@pytest.mark.needs("matplotlib")
def test_figure_and_data_are_written(tmp_path: Path) -> None:
    """A row of the CSV for each way."""
    rows = [ParametersRow(way, 0.2, 0.1, 0.3, 1.0, 0.01, 0.02) for way in ("ring", "all serve")]
    assert [file.suffix for file in write(rows, "title", tmp_path / "new")] == [".csv", ".svg", ".pdf"]
    data = list(csv.DictReader((tmp_path / "new" / "parameter-server.csv").open()))
    assert [(row["way"], row["step ms"]) for row in data] == [("ring", "200.000"), ("all serve", "200.000")]


@pytest.mark.parametrize(("arguments", "says"), [
    (["--ranks", "3"], "expected an even number of ranks"), (["--bytes", "much"], "--bytes much"),
    (["--bytes", "4"], "and 1K"), (["--steps", "0"], "one round and step"),
])
def test_what_cannot_be_measured_is_refused_by_name(arguments: list[str], says: str) -> None:
    """Each mistake names its option and what was expected."""
    done = CliRunner().invoke(app, ["bench", "parameter-server", *arguments])
    assert done.exit_code == CANNOT
    assert says in done.stderr
