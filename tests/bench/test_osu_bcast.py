# SPDX-License-Identifier: Apache-2.0
"""`netfold bench osu-bcast`: its ways on ranks of one process, its figures and its tables."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from netfold import testing
from netfold.bench.commands.osu_bcast import WAYS, OsuRow, rows_of, text, write
from netfold.bench.ranks.collectives import Cell, CollectivesRank, CollectivesResult, CollectivesTask
from netfold.cli.app import app
from netfold.cli.common import CANNOT


def test_every_way_broadcasts_and_is_checked_and_timed() -> None:
    """Four ranks on two leaves: each way, flat, hierarchical and in the network too, fills every rank's array."""
    cells = [Cell("broadcast", nbytes, way) for way in WAYS for nbytes in (64, 20_000)]
    task = CollectivesTask(cells, rounds=1, iterations=2, leaf=2)
    with testing.loopback_job(4, rail="auto") as comms:
        results = testing.on_every_rank(comms, lambda comm: CollectivesRank(comm, task).run())
    assert all(isinstance(result, CollectivesResult) for result in results), results
    rows = rows_of(cells, results)
    assert [(row.way, row.size) for row in rows] == [(cell.algorithm, cell.nbytes) for cell in cells]
    assert all(0 < row.least <= row.average <= row.greatest and row.iterations == 2 for row in rows)


def test_a_latency_is_the_mean_of_a_rank_and_tables_have_their_average_least_and_greatest() -> None:
    """As osu_bcast: each rank's mean over all its calls first, then over ranks."""
    ranks = [CollectivesResult([[[1e-6, 3e-6]], [[2e-6, 2e-6]]]), CollectivesResult([[[5e-6, 5e-6]], [[5e-6, 9e-6]]])]
    (row,) = rows_of([Cell("broadcast", 1024, "chain")], ranks)
    assert (row.average, row.least, row.greatest, row.iterations) == (pytest.approx(4.0), 2.0, 6.0, 4)
    lines = text([row]).splitlines()
    assert lines[0] == "# Broadcast latency by chain, in the form of osu_bcast"
    assert lines[2].split() == ["1024", "4.00", "2.00", "6.00", "4"]


@pytest.mark.needs("matplotlib")
def test_figure_and_data_are_written(tmp_path: Path) -> None:
    """A row of the CSV for each way and size, and both ways in the drawing."""
    rows = [OsuRow(way, size, 2.0, 1.0, 3.0, 5) for way in ("flat", "innet") for size in (1024, 4096)]
    assert [file.name for file in write(rows, "title", tmp_path / "new")] == ["bcast.csv", "bcast.svg", "bcast.pdf"]
    assert [row["bytes"] for row in csv.DictReader((tmp_path / "new" / "bcast.csv").open())] == ["1024", "4096"] * 2
    assert all(way in (tmp_path / "new" / "bcast.svg").read_text() for way in ("one after the other", "in the network"))


@pytest.mark.parametrize(("arguments", "says"), [
    (["--ranks", "3"], "expected as many ranks on each of 2 leaves"),
    (["--sizes", "much"], "--sizes much: expected bytes by commas"),
    (["--rounds", "0"], "one of each"),
    (["--switch", "ovs"], "expected softswitch or bmv2"),
])
def test_what_cannot_be_measured_is_refused_by_name(arguments: list[str], says: str) -> None:
    """Each mistake names its option and what was expected."""
    done = CliRunner().invoke(app, ["bench", "osu-bcast", *arguments])
    assert done.exit_code == CANNOT
    assert says in done.stderr
