# SPDX-License-Identifier: Apache-2.0
"""Tests in namespaces of their own, and the switches that can run there."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import pytest

from netfold.topo import sandbox

P = ParamSpec("P")
T = TypeVar("T")
SECONDS: Final = "NETFOLD_TEST_SECONDS"
"""Environment: how long a test inside a sandbox may take."""
ATTEMPTS: Final = 3
TOO_BUSY: Final = f"in each of {ATTEMPTS} runs this machine held a rank up for so long that others left their paths"
LAST_WORDS: Final = 10.0
"""Seconds that a sandbox outlives its test: to take everything down, and tell what hung."""

ENGINES = [
    "softswitch",
    pytest.param(
        "bmv2",
        marks=[
            pytest.mark.bmv2,
            pytest.mark.skipif(
                not (shutil.which("simple_switch_grpc") and shutil.which("p4c-bm2-ss")),
                reason="simple_switch_grpc and p4c-bm2-ss are not on PATH",
            ),
        ],
    ),
]


@functools.cache
def why_no_sandbox() -> str | None:
    """What is missing for tests in namespaces, or None."""
    try:
        import mininet  # noqa: F401
    except ImportError as error:
        return str(error)
    done = sandbox.run(["true"], timeout=30)
    return None if done.returncode == 0 else done.stderr.strip()


def in_sandbox(timeout: float = 120) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Run the test by a pytest of its own inside a sandbox: whatever it leaves there, the kernel clears away."""

    def decorate(test: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(test)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
            if sandbox.inside():
                test(*args, **kwargs)
                return
            if (reason := why_no_sandbox()) is not None:
                pytest.skip(reason)
            # node ids are relative to the repository, pytest takes paths relative to where it is
            this = str(Path(__file__).resolve().parents[2] / os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0])
            without = ["-p", "no:cacheprovider", "-p", "no:rerunfailures"]
            command = [sys.executable, "-m", "pytest", "-q", "--no-header", *without, this]
            try:
                env = {**os.environ, SECONDS: str(timeout - LAST_WORDS)}
                done = sandbox.run(command, timeout=timeout, env=env)
            except subprocess.TimeoutExpired as error:
                pytest.fail(f"not done in {timeout} s\n{(error.stdout or b'').decode()}")
            if done.returncode != 0:
                output = f"{done.stdout}\n{done.stderr}"
                pytest.fail(f"inside the sandbox (status {done.returncode}):\n{output}", pytrace=False)

        return pytest.mark.netns(wrapper)

    return decorate


def undisturbed(measure: Callable[[], T], logs: Path, job: str) -> T | None:
    """What ``measure`` finds in a run in which no rank of ``job`` has blamed a path for its silence, or None: hosts
    leave a path that does not answer for 70 ms, and so does one whose far end a busy machine has held up.

    logs  of the network
    """
    for _ in range(ATTEMPTS):
        found = measure()
        if not any("no answer from rank" in log.read_text() for log in logs.glob(f"{job}-rank*.log")):
            return found
    return None


def program(name: str) -> list[str]:
    """The command that runs a script of this folder."""
    return [sys.executable, str(Path(__file__).resolve().parent / "ranks" / name)]
