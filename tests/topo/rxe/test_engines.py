# SPDX-License-Identifier: Apache-2.0
"""Engines that are compiled here are those that ranks in guests look for."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cbuild import cc
from netfold.host.native.library import PROCESSOR_VARIABLE
from netfold.topo.rxe import engines


def test_engines_are_compiled_with_all_that_names_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each variable by which the cache names an engine is for the compiler here what it is for a rank in a guest, which
    gets this process's environment and the guests' own."""
    compiler: list[Mapping[str, str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        compiler.append(options["env"])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("CPATH", "/opt/include")
    engines.compile_for_guests(tmp_path)
    rank = os.environ | engines.environment(tmp_path)
    for name in (*cc.SEARCHED, PROCESSOR_VARIABLE):
        assert compiler[0].get(name) == rank.get(name), name
    assert rank["CPATH"].split(os.pathsep) == [str(tmp_path / "usr/include"), "/opt/include"]
