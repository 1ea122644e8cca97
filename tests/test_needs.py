# SPDX-License-Identifier: Apache-2.0
"""What decides whether a test can run here (support/needs.py), and whether it is to (switch_support/suite.py)."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from support import needs
from switch_support import suite


def test_a_download_that_hangs_is_given_up() -> None:
    """It ends within its time, with what it has started, and the reason names it."""
    began = time.monotonic()
    said = needs.tried_for(0.5, ["sh", "-c", "sleep 600 & sleep 600"])
    assert said is not None
    assert "not done in 0.5 s" in said
    assert time.monotonic() - began < 60


def test_a_download_that_fails_gives_its_reason() -> None:
    """The reason is what it has said; a command that succeeds has none."""
    assert needs.tried_for(60, ["sh", "-c", "echo no such package >&2; exit 100"]) == "no such package"
    assert needs.tried_for(60, ["true"]) is None


@pytest.mark.parametrize("asked", [False, True])
def test_a_test_marked_long_is_skipped_unless_it_is_asked_for(asked: bool, request: pytest.FixtureRequest) -> None:
    """By `--long`, as in `make test-long`; a test without that mark runs in any case."""
    long, other = (pytest.Function.from_parent(request.node.parent, name=name, callobj=lambda: None) for name in "ab")
    long.add_marker("long")
    suite.pytest_collection_modifyitems(SimpleNamespace(getoption=lambda _: asked), [long, other])
    assert (long.get_closest_marker("skip") is None) == asked
    assert other.get_closest_marker("skip") is None
