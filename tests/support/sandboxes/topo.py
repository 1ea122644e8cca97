# SPDX-License-Identifier: Apache-2.0
"""Tests in namespaces of their own, and the switches that can run there."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import pytest

from netfold.topo.network import sandbox
from netfold.topo.processes.ranks import Ranks
from support.sandboxes.template import Template

P = ParamSpec("P")
T = TypeVar("T")
TEMPLATES: Final[list[Template]] = []
"""What tests in sandboxes are forked from: one, made once the tests are collected."""
ATTEMPTS: Final = 3
TOO_BUSY: Final = f"in each of {ATTEMPTS} runs this machine held a rank up for so long that others left their paths"
LAST_WORDS: Final = 10.0
"""Seconds that a sandbox outlives its test: to take everything down, and tell what hung."""

ENGINES = [
    "softswitch",
    pytest.param("bmv2", marks=pytest.mark.needs("bmv2")),
]
ENGINES_LONG = [
    "softswitch",
    pytest.param("bmv2", marks=[pytest.mark.needs("bmv2"), pytest.mark.long]),
]
"""For tests of hosts and controllers, which no change of the P4 program alone can break: a change need not wait for
them on BMv2."""


def in_sandbox(timeout: float = 120) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Run the test inside a sandbox, in a fork of the template: whatever it leaves there, the kernel clears away.

    The test passes, fails and is skipped as it does in there, once.
    """

    def decorate(test: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(test)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
            if sandbox.inside():
                test(*args, **kwargs)
                return
            assert TEMPLATES, "tests/conftest.py makes a template of the tests once they are collected"
            nodeid = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
            ended = TEMPLATES[-1].run(nodeid, timeout=timeout, seconds=timeout - LAST_WORDS)
            if ended.outcome == "failed":
                pytest.fail(ended.text, pytrace=False)
            if ended.outcome == "skipped":
                pytest.skip(ended.text)

        return pytest.mark.needs("namespaces", "mininet")(pytest.mark.netns(wrapper))

    return decorate


def beside(folder: Path, start: Callable[[str], Ranks]) -> dict[str, list[str]]:
    """The paths of sums of two jobs of support/ranks/rank_beside.py at once, of the "job" and of the "group".

    start  starts one of them, by its name
    """
    jobs = []
    for name in ("one", "two"):
        lines = start(name).lines(within=120)
        for _ in range(4):
            assert "ready" in json.loads(next(lines)[1])
        jobs.append(lines)
    (folder / "go").touch()
    said = [json.loads(line) for lines in jobs for _, line in lines]
    assert [len(paths) for paths in said].count(2) == 6, said  # three of four ranks are in a group
    return {name: [paths[name] for paths in said if name in paths] for name in ("job", "group")}


def undisturbed(measure: Callable[[], T], logs: Path, job: str) -> T:
    """What ``measure`` finds in a run in which no rank of ``job`` has blamed a path for its silence; where there is no
    such run the test is skipped.  Hosts leave a path that does not answer for 70 ms, and so does one whose far end a
    busy machine has held up: then the loads of the paths say nothing of the plan.

    logs  of the network
    """
    for _ in range(ATTEMPTS):
        found = measure()
        if not any("no answer from rank" in log.read_text() for log in logs.glob(f"{job}-rank*.log")):
            return found
    pytest.skip(TOO_BUSY)


def program(name: str) -> list[str]:
    """The command that runs a script of this folder."""
    return [sys.executable, str(Path(__file__).resolve().parents[1] / "ranks" / name)]
