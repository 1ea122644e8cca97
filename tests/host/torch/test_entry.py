# SPDX-License-Identifier: Apache-2.0
"""torch finds the backend by itself, and a program whose group is refused ends in one line."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.docs.snippets import ROOT

pytest.importorskip("torch")

PROGRAM = """
import sys
import torch.distributed as dist
assert "netfold.torch" not in sys.modules
backend = sys.argv[1]
dist.init_process_group(backend, init_method=f"file://{sys.argv[2]}", rank=0, world_size=1)
print(type(dist.group.WORLD).__name__, "netfold.torch" in sys.modules)
dist.destroy_process_group()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A distribution with our entry point alone, beside the paths of this process."""
    group = "torch.backends"
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][group]
    info = tmp_path / "netfold-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: netfold\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in points.items()))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NETFOLD_")}
    return kept | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}


def run(environment: dict[str, str], tmp_path: Path, backend: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, backend, str(tmp_path / "store")], env=environment, text=True,
                          capture_output=True, timeout=240, check=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_group_needs_no_import_of_ours(environment: dict[str, str], tmp_path: Path) -> None:
    """`import torch` alone imports nothing of NetFold; a group of its backend does, and other backends do not."""
    found = run(environment | {"NETFOLD_CONTROLLER": "store", "NETFOLD_ADDRESS": "127.0.0.1"}, tmp_path, "netfold")
    assert found.stdout == "NetfoldGroup True\n", found.stderr
    (tmp_path / "store").unlink(missing_ok=True)
    assert run(environment, tmp_path, "gloo").stdout.endswith("False\n")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_refused_group_ends_in_one_line(environment: dict[str, str], tmp_path: Path) -> None:
    """Without a controller the message names three ways on, without a traceback unless that is asked for; a group with
    a device that ours does not carry is refused before anything else."""
    found = run(environment, tmp_path, "netfold")
    assert found.returncode == 1
    (line,) = found.stderr.splitlines()
    assert "NETFOLD_CONTROLLER" in line
    assert "'store'" in line
    assert "netfold run -np 1 --topo leafspine,2,1,2 -- python SCRIPT" in line
    asked = run(environment | {"NETFOLD_TRACEBACK": "1"}, tmp_path, "netfold")
    assert "Traceback" in asked.stderr
    assert "is for tensors on all devices" in run(environment, tmp_path, "cpu:netfold,cuda:gloo").stderr
