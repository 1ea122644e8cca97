# SPDX-License-Identifier: Apache-2.0
"""`netfold bench collectives`: what it refuses before a fabric starts, and how its figures are made of measurements."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from netfold.bench.commands.collectives import ALGORITHMS, cells_of, rows_of, sizes_of
from netfold.bench.ranks.collectives import GLOO, Cell, CollectivesResult
from netfold.cli.app import app
from netfold.cli.common import CANNOT


def test_each_collective_has_the_switches_and_every_algorithm_between_the_hosts() -> None:
    """A barrier once, the others at each size; gloo where torch is installed."""
    cells = cells_of("barrier,broadcast", sizes_of("4K,1M,100"), gloo=True)
    assert [cell for cell in cells if cell.collective == "barrier"] == [
        Cell("barrier", 0, name) for name in ("innet", "dissemination", GLOO)
    ]
    assert {cell.nbytes for cell in cells} == {0, 100, 4096, 1 << 20}
    assert {cell.algorithm for cell in cells_of("broadcast", [4], gloo=False)} == {*ALGORITHMS["broadcast"]}


def test_a_figure_is_the_median_of_rounds_of_the_slowest_rank() -> None:
    """Of each operation the slowest rank counts, of a round's operations the median, and of the rounds' again."""
    ranks = [CollectivesResult([[[1.0, 2.0, 9.0]], [[3.0, 3.0, 3.0]], [[1.0, 1.0, 1.0]]]),
             CollectivesResult([[[5.0, 1.0, 1.0]], [[2.0, 2.0, 2.0]], [[1.0, 4.0, 4.0]]])]
    (row,) = rows_of([Cell("broadcast", 1000, "innet")], ranks, 2, 8000.0)
    assert (row.seconds, row.seconds_best, row.seconds_worst) == (4.0, 3.0, 5.0)
    assert row.link_fraction == 0.25


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--sizes", "4K,much"], "--sizes 4K,much: expected bytes by commas"),
        (["--sizes", "0"], "--sizes 0: expected bytes by commas"),
        (["--collectives", "barrier,scan"], "--collectives scan: expected some of barrier"),
        (["--ranks", "1"], "expected 2 ranks"),
        (["--rounds", "0"], "expected 2 ranks and one of each"),
        (["--loss", "1"], "--loss 1.0: expected 0 or more"),
        (["--switch", "ovs"], "expected softswitch or bmv2"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(arguments: list[str], says: str) -> None:
    """Each mistake names its option and what was expected."""
    result = CliRunner().invoke(app, ["bench", "collectives", *arguments])
    assert result.exit_code == CANNOT
    assert says in result.stderr
