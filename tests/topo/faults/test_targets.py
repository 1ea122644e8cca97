# SPDX-License-Identifier: Apache-2.0
"""Ranks that faults find by the environment of their processes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from netfold.fabric.generate import leafspine
from netfold.topo.faults.board import FaultRefused
from netfold.topo.faults.targets import no_process, rank

LAB: Any = SimpleNamespace(fabric=SimpleNamespace(controllers="unix:/a,unix:/b"))
"""A fabric with a controller and a standby."""
Start = Callable[[str, int, str], None]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Add a process of a rank to a folder that stands for /proc: its job, its number, and where it looks for its
    controller."""

    def add(job: str, number: int, controller: str) -> None:
        place = tmp_path / str(1 + len(list(tmp_path.iterdir())))
        place.mkdir()
        said = {"NETFOLD_JOB": job, "RANK": str(number), "NETFOLD_CONTROLLER": controller}
        (place / "environ").write_text("".join(f"{name}={value}\0" for name, value in said.items()))

    return add


@pytest.mark.parametrize("controller", ["unix:/a,unix:/b", "unix:/a", "unix:/b"])
def test_a_rank_is_found_by_the_controller_or_its_standby(controller: str, tmp_path: Path, start: Start) -> None:
    """A launcher names both to a rank, and a user may name either."""
    start("run", 3, controller)
    start("run", 3, "unix:/of-another-fabric")
    found = rank([LAB], "run/3", tmp_path)
    assert found is not None
    assert found.is_of({"NETFOLD_JOB": "run", "RANK": "3", "NETFOLD_CONTROLLER": controller})
    assert not found.is_of({"NETFOLD_JOB": "run", "RANK": "3", "NETFOLD_CONTROLLER": "unix:/of-another-fabric"})


@pytest.mark.parametrize(("target", "conflict"), [("run/9", False), ("rank9", False), ("bob/3", False),
                                                  ("rank3", True)])
def test_a_rank_that_is_not_there_is_an_invalid_request(
    target: str, conflict: bool, tmp_path: Path, start: Start
) -> None:
    """An unknown name ends a command with 2; one of several jobs' could be told apart once the others have ended."""
    for job in ("run", "eve"):
        start(job, 3, "unix:/a")
    with pytest.raises(FaultRefused, match="there are eve/3, run/3") as refused:
        rank([LAB], target, tmp_path)
    assert refused.value.conflict is conflict


@pytest.mark.parametrize(("kind", "target", "says"), [
    ("kill", "h1", r"switch \(leaf1\), controller, or a rank \(rank3, JOB/3\); this is a link, which can be cut"),
    ("restart", "h1", r"switch \(leaf1\) or controller; this is a link, which can be cut or silenced"),
    ("restart", "h9", r"switch \(leaf1\) or controller; there is nothing of this name"),
])
def test_what_is_no_process_is_told_what_this_fault_can_have(kind: str, target: str, says: str) -> None:
    """A rank is not started again by a fault, so that a restart does not ask for one."""
    network: Any = SimpleNamespace(fabric=leafspine(1, 0, 2))
    assert re.search(says, str(no_process(kind, [network], target)))
