# SPDX-License-Identifier: Apache-2.0
"""Numbers on the command line."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from netfold.cli.app import application


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("line", [
    "top --interval={}", "run --timeout={} true", "bench train --layer-seconds={}", "bench rails --timeout={}",
    "sim mesh --delay={}", "up --topo leafspine,2,2,1 --loss={}",
])
def test_what_is_no_finite_number_is_refused(line: str, number: str) -> None:
    """By every kind of command, before anything is started, with the option's name."""
    result = CliRunner().invoke(application(), line.format(number).split())
    assert result.exit_code == 2, result.output
    assert line.partition("--")[2].split("=")[0].split()[-1].lstrip("-") in result.output


@pytest.mark.parametrize("losses", ["nan,0.1", "0.1,-1", "1", "0.5,inf"])
def test_shares_of_lost_packets_are_shares(losses: str) -> None:
    """Each of a list, not the greatest one alone."""
    result = CliRunner().invoke(application(), ["bench", "loss", "--losses", losses])
    assert result.exit_code == 2, result.output
    assert "expected shares of 0 or more, below 1" in result.output
