# SPDX-License-Identifier: Apache-2.0
"""When a process counts as hung: against processes in memory that answer as the test says."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator

import pytest

from softswitch.engine.errors import Internal
from softswitch.p4runtime import watchdog
from softswitch.p4runtime.watchdog import SILENCES, Watchdog

LIMIT = 30.0
"""Seconds within which a watchdog must have said what it has to say."""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "PERIOD", 0.0)


def watched(answers: list[bool]) -> list[str]:
    """A watchdog's reports on a process that gives these answers and then ends."""
    left: Iterator[bool] = iter(answers)
    reported: list[str] = []
    over: queue.SimpleQueue[None] = queue.SimpleQueue()

    def answer(within: float) -> bool:
        assert within > 0
        for one in left:
            return one
        over.put(None)
        raise Internal("ended")

    def hang(why: str) -> None:
        reported.append(why)
        over.put(None)

    Watchdog(os.getpid(), answer, hang)
    over.get(timeout=LIMIT)
    return reported


def test_silence_counts_only_without_a_pause() -> None:
    """One answer between silences, however late, is a sign of life."""
    assert watched([*[False] * (SILENCES - 1), True, *[False] * (SILENCES - 1), True]) == []


def test_enough_silence_is_reported_once_with_the_state() -> None:
    """The report has the time and what the kernel says of the process."""
    (report,) = watched([True, *[False] * (3 * SILENCES)])
    assert "no sign of life for 3 s; its state is " in report
