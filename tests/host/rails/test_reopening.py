# SPDX-License-Identifier: Apache-2.0
"""A dead rail is reopened in the background until it is taken or given up, whatever fails on the way."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from netfold.host.rails import reopening
from netfold.host.rails.open_rail import OpenRail
from netfold.host.rails.reopening import BackgroundReopening

BOUND = 30.0


class Rail:
    """A rail that is open.

    sum_  called for each sum on it
    """

    def __init__(self, sum_: Callable[[], object] = lambda: None) -> None:
        self.plan = SimpleNamespace(epoch=7)
        self.closed = threading.Event()
        self._sum = sum_

    def allreduce(self, request: object) -> None:
        self._sum()

    def close(self) -> None:
        self.closed.set()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once."""
    monkeypatch.setattr(reopening, "RETRY_SECONDS", 0.0)


def begin(attempt: Callable[[], Rail]) -> BackgroundReopening:
    return BackgroundReopening(cast("Callable[[], OpenRail]", attempt), most=0.01)


@pytest.mark.parametrize("while_it", ["joins", "sums"])
def test_a_rail_that_opens_after_cancel_is_closed(while_it: str) -> None:
    """Whether the job is left while the rail joins its plane, or during its first sum: nothing of it stays."""
    there, go_on = threading.Event(), threading.Event()

    def waits() -> None:
        there.set()
        assert go_on.wait(BOUND)

    summed = threading.Event()
    rail = Rail(waits if while_it == "sums" else summed.set)

    def open_() -> Rail:
        if while_it == "joins":
            waits()
        return rail

    opening = begin(open_)
    assert there.wait(BOUND)
    opening.cancel()
    go_on.set()
    assert rail.closed.wait(BOUND)
    assert not opening.epoch
    assert not summed.is_set()


@pytest.mark.parametrize("where", ["joining", "the first sum"])
def test_any_error_ends_one_attempt_alone(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """Such as one of the system, twice: it is logged once, with its reason, what was open is closed, and the rail comes
    back."""
    attempts = itertools.count()
    opened: list[Rail] = []

    def fails() -> None:
        raise OSError(24, "Too many open files")

    def open_() -> Rail:
        well = next(attempts) == 2
        if where == "joining" and not well:
            fails()
        opened.append(Rail((lambda: None) if well else fails))
        return opened[-1]

    opening, end = begin(open_), time.monotonic() + BOUND
    while not opening.epoch:
        assert time.monotonic() < end
    last = opened[-1]
    assert cast("Any", opening.take()) is last
    assert [rail.closed.is_set() for rail in opened if rail is not last] == [True] * (len(opened) - 1)
    assert not last.closed.is_set()
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 1
    assert "Too many open files" in warned[0]
