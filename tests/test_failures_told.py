# SPDX-License-Identifier: Apache-2.0
"""What a failed test of this suite tells: the logs of what it started, and where it hung."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support import environment
from support.sandboxes.topo import LAST_WORDS
from switch_support.suite import LOG_BYTES

pytestmark = [pytest.mark.netns, pytest.mark.needs("namespaces", "mininet")]
HANGS = f"""
import threading
from pathlib import Path

import pytest

from support.sandboxes.topo import in_sandbox

@pytest.fixture
def tmp_path():
    return Path(__file__).parent

@in_sandbox(timeout={LAST_WORDS + 2})
def test_that_hangs(tmp_path):
    threading.Event().wait(60)
"""


def test_a_test_that_hangs_says_where_and_shows_the_ends_of_its_logs(tmp_path: Path) -> None:
    """Within the seconds that its sandbox gives it; logs are cut to their ends, and empty ones left out."""
    file = tmp_path / "test_hangs.py"
    file.write_text(HANGS)
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "leaf1.log").write_text("at the beginning\n" + "x" * LOG_BYTES + "\nthe last words\n")
    (logs / "rank0.log").touch()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "--basetemp",
         str(tmp_path / "base"), str(file)],
        env=environment(), capture_output=True, text=True,
        timeout=100, check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Timeout (>2s)" in done.stdout
    assert "threading.Event().wait(60)" in done.stdout
    assert "end of logs/leaf1.log" in done.stdout
    assert "the last words" in done.stdout
    assert "at the beginning" not in done.stdout.partition("end of logs/leaf1.log")[2]
    assert "rank0.log" not in done.stdout.partition("end of logs")[2]
