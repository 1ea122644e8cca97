# SPDX-License-Identifier: Apache-2.0
"""`netfold bench collectives`: all ways on ranks of one process, and how its figures are made of measurements."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from netfold import testing
from netfold.bench.commands.collectives import cells_of, rows_of
from netfold.bench.commands.collectives_figures import CollectivesRow, write
from netfold.bench.options.sums import COLLECTIVES, CollectivesOptions
from netfold.bench.ranks.collectives import GLOO, STEP, Cell, CollectivesRank, CollectivesResult, CollectivesTask
from netfold.bench.ranks.parameters import ParametersSteps, uneven
from netfold.cli.app import app
from netfold.cli.common import CANNOT
from netfold.topo.processes.failures import WrongData


def test_each_collective_has_the_switches_and_every_algorithm_between_the_hosts() -> None:
    """A barrier once, the others at each size; gloo where torch is installed, for all but steps."""
    options = CollectivesOptions(collectives="barrier,broadcast,step", sizes="4K,1M,2000")
    cells = cells_of(options, gloo=True)
    assert [cell for cell in cells if cell.collective == "barrier"] == [
        Cell("barrier", 0, name) for name in ("innet", "dissemination", GLOO)
    ]
    assert {cell.nbytes for cell in cells} == {0, 2000, 4096, 1 << 20}
    assert {cell.algorithm for cell in cells if cell.collective == STEP} == {*COLLECTIVES["step"]}
    assert GLOO not in {cell.algorithm for cell in cells_of(options, gloo=False)}


@pytest.mark.parametrize(("collective", "sizes"), [("broadcast", (64, 20_000)), (STEP, (8000,))])
def test_every_way_is_checked_and_timed(collective: str, sizes: tuple[int, ...]) -> None:
    """Four ranks on two leaves: flat, hierarchical and in the network; servers, a ring and the switches."""
    cells = [Cell(collective, nbytes, way) for way in COLLECTIVES[collective] for nbytes in sizes]
    task = CollectivesTask(cells, rounds=1, iterations=2, leaf=2)
    with testing.loopback_job(4, rail="auto") as comms:
        results = testing.on_every_rank(comms, lambda comm: CollectivesRank(comm, task).run())
    assert all(isinstance(result, CollectivesResult) for result in results), results
    rows = rows_of(cells, results, 4, 0.0)
    assert [(row.algorithm, row.nbytes) for row in rows] == [(cell.algorithm, cell.nbytes) for cell in cells]
    assert all(0 < row.least <= row.average <= row.greatest and row.iterations == 2 for row in rows)
    assert rows[0].of_first == 1.0


def test_wrong_steps_raise() -> None:
    """Parameters that are not those of a single process are wrong, and so are ranks that differ in one bit."""
    def wrong(change: float, *ranks: int) -> list[object]:
        def steps(comm: Any) -> None:
            made = ParametersSteps(comm, 4096, "ring")
            made.step()
            made.row[7] *= 1 + change * (comm.rank in ranks)
            made.check()

        with testing.loopback_job(2, rail="auto") as comms:
            return testing.on_every_rank(comms, steps)

    assert wrong(0.0) == [None, None]
    assert all(isinstance(found, WrongData) and "of all ranks" in str(found) for found in wrong(2e-7, 1))
    assert all(isinstance(found, WrongData) and "of all ranks" not in str(found) for found in wrong(0.1, 0, 1))


def test_tensors_are_uneven_and_complete() -> None:
    """The first has half of the bytes, and together they have all."""
    sizes = uneven(4096)
    assert sum(sizes) == 1024
    assert sizes[0] == 512
    assert sizes == sorted(sizes, reverse=True)


def test_a_figure_is_the_median_of_rounds_of_the_slowest_rank() -> None:
    """Of each operation the slowest rank counts, of a round's operations the median, and of the rounds' again; ratios
    are of one round; latencies are as osu_bcast's, each rank's mean over all its calls first, then over ranks."""
    one = [[[1.0, 2.0, 9.0], [8.0]], [[3.0, 3.0, 3.0], [3.0]], [[1.0, 1.0, 1.0], [4.0]]]
    other = [[[5.0, 1.0, 1.0], [1.0]], [[2.0, 2.0, 2.0], [1.0]], [[1.0, 4.0, 4.0], [20.0]]]
    ranks = [CollectivesResult(one, [[0.1, 1.0]] * 3), CollectivesResult(other, [[0.3, 1.0]] * 3)]
    first, second = rows_of([Cell("broadcast", 1000, "innet"), Cell("broadcast", 1000, "chain")], ranks, 2, 8000.0)
    assert (first.seconds, first.seconds_best, first.seconds_worst) == (4.0, 3.0, 5.0)
    assert first.link_fraction == 0.25
    assert (first.least, first.greatest, first.iterations) == (pytest.approx(22 / 9), pytest.approx(24 / 9), 9)
    assert (first.average, first.processor, first.processor_most) == (pytest.approx(23 / 9), 0.2, 0.3)
    assert second.of_first == pytest.approx(1.6)


@pytest.mark.needs("matplotlib")
def test_figures_and_data_are_written(tmp_path: Path) -> None:
    """Lines over several sizes, with a row for each way and size; bars of one size, with a row for each way."""
    def row(collective: str, algorithm: str, nbytes: int) -> CollectivesRow:
        return CollectivesRow(collective, nbytes, algorithm, 4, 0.2, 0.1, 0.3, 0.0, 1.0, 2e-6, 1e-6, 3e-6, 5, 0.01,
                              0.02)

    rows = [row("broadcast", way, nbytes) for nbytes in (1024, 4096) for way in ("flat", "innet")]
    rows += [row(STEP, way, 4096) for way in ("ring", "all serve")]
    folder = tmp_path / "new"
    assert [file.name for file in write(rows, "title", folder)] == [
        f"{name}.{kind}" for name in ("bcast", "parameter-server") for kind in ("csv", "svg", "pdf")]
    data = list(csv.DictReader((folder / "bcast.csv").open()))
    assert [(line["way"], line["bytes"]) for line in data] == [
        ("flat", "1024"), ("flat", "4096"), ("innet", "1024"), ("innet", "4096")]
    assert all(way in (folder / "bcast.svg").read_text() for way in ("one after the other", "in the network"))
    data = list(csv.DictReader((folder / "parameter-server.csv").open()))
    assert [(line["way"], line["ms"]) for line in data] == [("ring", "200.000"), ("all serve", "200.000")]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--sizes", "4K,much"], "--sizes 4K,much: expected 4 bytes or more by commas"),
        (["--sizes", "0"], "--sizes 0: expected 4 bytes or more by commas"),
        (["--collectives", "step", "--sizes", "512"], "--sizes 512: expected 1024 bytes or more by commas"),
        (["--collectives", "barrier,scan"], "--collectives scan: expected some of barrier"),
        (["--ranks", "3"], "expected the same number of hosts below each switch"),
        (["--iters", "0"], "-n 0: expected 1 or more"),
        (["--switch", "ovs"], "expected one of softswitch, bmv2"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(arguments: list[str], says: str) -> None:
    """Each mistake names its option and what was expected."""
    result = CliRunner().invoke(app, ["bench", "collectives", *arguments])
    assert result.exit_code == CANNOT
    assert says in result.stderr
