# SPDX-License-Identifier: Apache-2.0
"""docs/combinations.md: what folds with what, as calls show it."""

from __future__ import annotations

import pytest

from netfold.host.api.communicator import Communicator
from netfold.host.api.group import Group
from netfold.testing import on_every_rank
from support import needs
from support.docs import combinations

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", combinations.COLUMNS)
def test_the_page_says_what_carries_each_call(name: str) -> None:
    """Each cell of a column is called by all ranks, with checked results, and stands on the page; what does not fold is
    refused by name, with the words there."""
    if "verbs" in name:
        needs.require("verbs")
    written = {row: cells[name] for row, cells in on_the_page().items()}
    on_page = {row: written[row] for row in combinations.FEATURES}, refused_on_the_page()[name]
    assert on_page == combinations.column(name), (
        "docs/combinations.md is old: .venv/bin/python tests/support/docs/combinations.py"
    )


def test_the_page_has_nothing_else() -> None:
    """Its words, rows and columns are the generator's; other tests hold the rows of lost and new ranks true."""
    table = on_the_page()
    columns = {name: {row: table[row][name] for row in combinations.FEATURES} for name in combinations.COLUMNS}
    assert combinations.PAGE.read_text() == combinations.page(columns, refused_on_the_page())


def test_two_jobs_of_the_same_nics_fold_at_once() -> None:
    """Each by queue pairs of its own, and a group of each; all ranks of both call at the same time."""
    needs.require("verbs")

    def work(comm: Communicator) -> None:
        group = comm.group([2, 0]) if comm.rank != 1 else None
        for _ in range(3):
            for ranks in (comm, group):
                if ranks is not None:
                    combinations.FEATURES["... of int32"].call(ranks, ranks.rank, ranks.size)
        assert {record.path for record in comm.flight()} == {"verbs"}

    with combinations.verbs_jobs("one", "two") as jobs:
        for error in on_every_rank([comm for comms in jobs for comm in comms], work):
            assert error is None, error
    for name in ("verbs", "a group over verbs"):
        assert combinations.OTHERS[name][combinations.BESIDE] == combinations.FOLDS


def test_groups_do_not_change_their_ranks() -> None:
    """They cannot be asked to: those of a job whose ranks have changed are made anew."""
    assert not any(hasattr(Group, name) for name in ("shrink", "grow"))


def tables_on_the_page() -> list[list[list[str]]]:
    """The cells of the page's tables, by row."""
    parts = combinations.PAGE.read_text().split(combinations.WHY)
    rows = [[line.strip("|") for line in part.splitlines() if line.startswith("|")] for part in parts]
    return [[[cell.strip() for cell in row.split("|")] for row in table] for table in rows]


def on_the_page() -> dict[str, dict[str, str]]:
    """The first table's cells, by row and column."""
    head, _, *rows = tables_on_the_page()[0]
    return {cells[0]: dict(zip(head[1:], cells[1:], strict=True)) for cells in rows}


def refused_on_the_page() -> dict[str, dict[str, str]]:
    """The second table's refusals, by column and row."""
    found: dict[str, dict[str, str]] = {name: {} for name in combinations.COLUMNS}
    for row, over, words in tables_on_the_page()[1][2:]:
        for name in combinations.COLUMNS if over == "all" else over.split("; "):
            found[name][row] = words
    return found
