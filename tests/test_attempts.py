# SPDX-License-Identifier: Apache-2.0
"""Every test has one attempt: what failed once has failed, whatever it was, in a sandbox and outside.

The suite is run on a file whose tests fail at first and would pass the second time.  A wrong sum that came once in a
hundred runs would be hidden by a second attempt; so would a fault of timing, and that has to be found as well.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest

from support import ROOT, TESTS, environment

FAILING = '''
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from netfold.host.errors import CollectiveTimeout
from support.sandboxes.topo import in_sandbox, undisturbed

pytestmark = [pytest.mark.netns, pytest.mark.slow]
RIGHT = np.arange(4)


def first() -> bool:
    """Whether this is the first attempt of the test that runs."""
    name = os.environ["PYTEST_CURRENT_TEST"].partition("::")[2].split()[0]
    with open(os.environ["ATTEMPTS"], "a+") as file:
        file.seek(0)
        before = file.read().split()
        file.write(name + "\\n")
    return name not in before


def rank(code: str) -> None:
    """A rank process that fails in its own way, once."""
    subprocess.run([sys.executable, "-c", code if first() else "pass"], check=True)


def test_wrong_sum() -> None:
    np.testing.assert_array_equal(RIGHT + first(), RIGHT)


def test_wrong_sum_in_words() -> None:
    assert not first(), "3 sums are wrong"


async def test_wrong_sum_of_a_coroutine() -> None:
    assert not first(), "3 sums are wrong"


def test_weights_that_differ() -> None:
    report = {"final_weights_equal": not first()}
    assert report["final_weights_equal"] is True


def test_wrong_sum_of_a_rank() -> None:
    rank("assert False, '3 lanes are wrong'")


def test_crash_of_a_rank() -> None:
    rank("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")


def test_unknown_exception() -> None:
    if first():
        raise RuntimeError("nobody has seen this one before")


def test_time_is_up() -> None:
    if first():
        raise CollectiveTimeout("rank 0: no answer from rank 1 for 5 s")


def test_process_that_hangs() -> None:
    if first():
        raise subprocess.TimeoutExpired("rank", 5)


@pytest.fixture
def broken() -> None:
    assert not first(), "the fabric did not come up"


def test_fixture_that_fails(broken: None) -> None:
    pass
'''

SANDBOXED = '''

@in_sandbox(timeout=60)
def test_wrong_sum_in_a_sandbox() -> None:
    np.testing.assert_array_equal(RIGHT + first(), RIGHT)


@in_sandbox(timeout=60)
def test_crash_in_a_sandbox() -> None:
    if first():
        os.kill(os.getpid(), signal.SIGSEGV)


@in_sandbox(timeout=60)
def test_rank_that_blames_a_path_in_each_run(tmp_path: Path) -> None:
    (tmp_path / "job-rank0.log").write_text("no answer from rank 1")
    undisturbed(first, tmp_path, "job")
    raise AssertionError("it should have been skipped")


@in_sandbox(timeout=60)
def test_all_is_well_in_a_sandbox() -> None:
    first()
'''


def outcomes(tests: str, folder: Path) -> tuple[dict[str, str], Counter[str]]:
    """How each test ended under this suite's own settings, and how often it was attempted."""
    file, report, attempts = folder / "test_once.py", folder / "report.xml", folder / "attempts"
    file.write_text(tests)
    (folder / "conftest.py").symlink_to(TESTS / "conftest.py")
    attempts.touch()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder),
         "-p", "no:cacheprovider", "--basetemp", str(folder / "base"), f"--junitxml={report}", str(file)],
        env={**environment(), "ATTEMPTS": str(attempts)}, capture_output=True, text=True, timeout=200, check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    kinds = {"failure": "failed", "error": "failed", "skipped": "skipped"}
    ended = {case.attrib["name"]: next((kinds[child.tag] for child in case if child.tag in kinds), "passed")
             for case in ElementTree.parse(report).iter("testcase")}
    return ended, Counter(attempts.read_text().split())


def test_what_failed_once_has_failed(tmp_path: Path) -> None:
    """Wrong data, a crash by signal, a plain assert, an unknown exception, a time that is up, a fixture: no second
    attempt, and the run fails."""
    ended, attempts = outcomes(FAILING, tmp_path)
    assert len(ended) == 10
    assert set(ended.values()) == {"failed"}, ended
    assert attempts == Counter(dict.fromkeys(ended, 1))


@pytest.mark.netns
@pytest.mark.needs("namespaces", "mininet")
def test_a_sandbox_hands_on_how_its_test_ended(tmp_path: Path) -> None:
    """Failures and crashes inside are failures outside, a skip inside is a skip outside, each after one attempt; what
    is repeated is a measurement that a busy machine disturbed, and only so often."""
    ended, attempts = outcomes(FAILING.partition("def test_wrong_sum()")[0] + SANDBOXED, tmp_path)
    assert ended == {
        "test_wrong_sum_in_a_sandbox": "failed",
        "test_crash_in_a_sandbox": "failed",
        "test_rank_that_blames_a_path_in_each_run": "skipped",
        "test_all_is_well_in_a_sandbox": "passed",
    }
    measured = attempts.pop("test_rank_that_blames_a_path_in_each_run")
    assert measured == 3
    assert set(attempts.values()) == {1}


def test_hiding_a_need_skips_what_needs_it(tmp_path: Path) -> None:
    """`--without`: neither the tests nor their processes find it, and the summary counts what was skipped by name."""
    (tmp_path / "test_hidden.py").write_text('''
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

@pytest.mark.needs("scapy")
def test_that_needs_it():
    raise AssertionError("it is hidden")

def test_that_it_is_hidden():
    assert find_spec("scapy") is None
    assert subprocess.run([sys.executable, "-c", "import scapy"], stderr=subprocess.DEVNULL).returncode == 1
    assert shutil.which("simple_switch_grpc") is None
    assert shutil.which("beside") is not None
''')
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("p4c-bm2-ss", "simple_switch_grpc", "beside"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-p",
         "conftest", "-p", "no:cacheprovider", "--without", "scapy", "--without", "bmv2",
         str(tmp_path / "test_hidden.py")],
        env={**environment(), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}, capture_output=True, text=True,
        timeout=100, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 1 skipped" in done.stdout
    assert "1 tests without scapy: no module scapy; pip install scapy" in done.stdout
