# SPDX-License-Identifier: Apache-2.0
"""What tests of the controller do not wait for."""

from __future__ import annotations

import pytest

from support.control.controller import BOUND


@pytest.fixture
def quick_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches that come back are found at once."""
    monkeypatch.setattr("netfold.controller.switch.target.RETRY", (0.01,))


@pytest.fixture
def cleaned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries that former trees leave on switches are removed at once."""
    monkeypatch.setattr("netfold.controller.jobs.recovery.CLEANING_DELAY", 0.0)


@pytest.fixture
def time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks have time to answer whether they need something of one that leaves."""
    monkeypatch.setattr("netfold.controller.jobs.leaving.ANSWER_TIMEOUT", BOUND)
