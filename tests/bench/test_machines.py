# SPDX-License-Identifier: Apache-2.0
"""`netfold bench machines`: what it refuses before a fabric starts; the schemes have tests of their own."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from netfold.bench.commands.machines import elements_of
from netfold.cli.app import app
from netfold.cli.common import CANNOT


def test_sizes_are_megabytes_of_whole_elements() -> None:
    """An element of int32 has four bytes; sizes are rounded down to whole elements."""
    assert elements_of("1,0.0000099,8") == [250_000, 2, 2_000_000]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--sizes", "1,much"], "--sizes 1,much: expected MB by commas"),
        (["--sizes", "0"], "--sizes 0: expected MB by commas"),
        (["--sizes", "inf"], "--sizes inf: expected MB by commas"),
        (["--machines", "1"], "expected 2 machines or more"),
        (["--members", "1"], "2 ranks or more on each"),
        (["--rounds", "0"], "and a round"),
        (["--switch", "ovs"], "expected softswitch or bmv2"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(arguments: list[str], says: str) -> None:
    """Each mistake names its option and what was expected."""
    result = CliRunner().invoke(app, ["bench", "machines", *arguments])
    assert result.exit_code == CANNOT
    assert says in result.stderr
