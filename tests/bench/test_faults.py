# SPDX-License-Identifier: Apache-2.0
"""`netfold bench loss` and `recovery`: their options."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from netfold.bench.options.faults import LossOptions
from netfold.cli.app import app
from netfold.cli.common import CANNOT


def test_shares_begin_with_none_and_credits_with_the_window() -> None:
    """What all others are compared with is measured, too; a fabric is made with the losses of a round."""
    options = LossOptions(losses="0.05,0.01", credits="2x170K", seed=3)
    assert options.shares == (0.0, 0.01, 0.05)
    assert options.controls == ("", "2x170K")
    assert LossOptions().controls == ("",)
    assert {link.loss for link in options.fabric(loss=0.05, seed=4).links} == {0.05}


@pytest.mark.parametrize(("words", "says"), [
    ("loss --losses 0.1,much", "--losses 0.1,much: expected shares of 0 or more"),
    ("loss --losses 1", "--losses 1: expected shares of 0 or more, below 1"),
    ("loss --credits many", "NETFOLD_CREDITS='many'"),
    ("loss --bytes 0", "--bytes 0: expected 1 bytes or more"),
    ("loss -n 0", "-n 0: expected 1 or more"),
    ("recovery --faults fire", "--faults fire: expected some of spine, link, silent, leaf, return"),
    ("recovery --rounds 0", "--rounds 0: expected 1 or more"),
    ("recovery --switch ovs", "--switch ovs: expected one of softswitch, bmv2"),
])
def test_what_cannot_be_measured_is_refused_by_name(words: str, says: str) -> None:
    """Before anything is started."""
    result = CliRunner().invoke(app, ["bench", *words.split()])
    assert (result.exit_code, says in result.stderr) == (CANNOT, True), result.stderr
