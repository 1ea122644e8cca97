# SPDX-License-Identifier: Apache-2.0
"""Settings of the whole suite: hypothesis, second attempts, and what a failed test tells of the processes that it
started; and what tests of several files share with the machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from support.processes import switches  # noqa: F401  (a fixture of several rooms)
from support.topo import SECONDS

# Nothing about time: the suite shares two cores with native compilers, and machines stand still.  The same examples in
# each run: a change is not judged by an input that was drawn for the first time.  Whoever looks for such inputs types
# `--hypothesis-profile=explore`; a failing one prints how to repeat it, and becomes an @example.
settings.register_profile("explore", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("netfold", settings.get_profile("explore"), derandomize=True)
settings.load_profile("netfold")

NEVER_TWICE: Final = r"(?m)^E .*(wrong|Mismatched elements|not equal|differ)"
"""What a failure says when data are not what they must be.  No second attempt hides that."""
LOG_BYTES: Final = 4000
"""Of the end of each log."""
LOGS: Final = 16
"""Logs at most, the latest written first: those of one fabric."""


@pytest.fixture
def shared_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where ranks of one machine share memory: a folder of the test's own, since other runs use /dev/shm, too."""
    from netfold.host.collectives import shared_memory

    with tempfile.TemporaryDirectory(dir=shared_memory.SHARED) as folder:
        monkeypatch.setattr(shared_memory, "SHARED", folder)
        yield Path(folder)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Tests with real processes in namespaces get a second attempt, unless data were wrong in the first; inside a
    sandbox they end by themselves before the sandbox does, and say where they stood.

    A machine that stands still for seconds looks like the fault that such a test injects.  What failed at first is
    printed in full at the end of the run, under "SECOND ATTEMPTS", and is to be looked into; `-p no:rerunfailures`
    does without.
    """
    seconds = os.environ.get(SECONDS)
    for item in items:
        if item.get_closest_marker("netns"):
            item.add_marker(pytest.mark.flaky(reruns=1, rerun_except=NEVER_TWICE))
        if seconds:
            item.add_marker(pytest.mark.timeout(float(seconds)), append=False)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The failures that a second attempt followed, with all that they said."""
    if reports := terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"SECOND ATTEMPTS: {len(reports)}", sep="=", yellow=True, bold=True)
        for report in reports:
            terminalreporter.section(report.nodeid, sep="-", yellow=True)
            terminalreporter.write_line(report.longreprtext)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test shows the ends of the logs in its temporary folder: of controllers, switches and ranks."""
    outcome: Any = yield
    report: pytest.TestReport = outcome.get_result()
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and folder is not None:
        report.sections += [(f"end of {path.relative_to(folder)}", _end(path)) for path in _logs(folder)]


def _logs(folder: Path) -> list[Path]:
    found = [path for path in folder.rglob("*.log") if path.is_file() and path.stat().st_size]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:LOGS]


def _end(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_BYTES))
        return file.read().decode(errors="replace")
