# SPDX-License-Identifier: Apache-2.0
"""Ranks that faults find by the environment of their processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from netfold.topo.faults.targets import rank

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
