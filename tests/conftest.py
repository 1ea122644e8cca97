# SPDX-License-Identifier: Apache-2.0
"""Settings of the whole suite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings

# No deadlines: the suite shares two cores with native compilers.  A failing example prints how to repeat it.
settings.register_profile("netfold", deadline=None, print_blob=True)
settings.load_profile("netfold")

NEVER_TWICE = r"(?m)^E .*(wrong|Mismatched elements|not equal|differ)"
"""What a failure says when data are not what they must be.  No second attempt hides that."""


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Tests with real processes in namespaces get a second attempt, unless data were wrong in the first.

    There a machine that stands still for seconds looks like the fault that the test injects.  What failed at first is
    printed in full at the end of the run, under "SECOND ATTEMPTS", and is to be looked into; `-p no:rerunfailures`
    does without.
    """
    for item in items:
        if item.get_closest_marker("netns"):
            item.add_marker(pytest.mark.flaky(reruns=1, rerun_except=NEVER_TWICE))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The failures that a second attempt followed, with all that they said."""
    if reports := terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"SECOND ATTEMPTS: {len(reports)}", sep="=", yellow=True, bold=True)
        for report in reports:
            terminalreporter.section(report.nodeid, sep="-", yellow=True)
            terminalreporter.write_line(report.longreprtext)
