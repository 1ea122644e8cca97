# SPDX-License-Identifier: Apache-2.0
"""The page about a fabric by hand is run as it stands, and a switch without its CPU port is refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from netfold.topo.network import sandbox
from support.docs.snippets import ROOT

pytestmark = [pytest.mark.netns, pytest.mark.timeout(400)]

SECONDS = 300.0
SCRIPT = (ROOT / "docs/by-hand.md").read_text().partition("```sh\n")[2].partition("```")[0]


def typed(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The result of these lines in bash, in a network of its own, whose names are not the machine's."""
    (folder / "examples").symlink_to(ROOT / "examples")
    lines = f"mount -t tmpfs none /run || exit 99\ncd {folder}\n{script}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # by default ranks choose by cost what carries so short an array
    ours = {"PATH": path, "NETFOLD_ALGO": "innet"}
    return sandbox.run(["bash", "-c", lines], timeout=SECONDS, env={**os.environ, **ours})


def test_the_lines_of_the_page_bring_up_a_fabric_on_which_a_job_folds(tmp_path: Path) -> None:
    """Both ranks print an exact sum that the switches folded, and all cables are where the file has them."""
    done = typed(f"{SCRIPT}\nwait %5\nnetfold links lab.toml", tmp_path)
    for rank in (0, 1):
        assert f"rank {rank} of 2: exact; 400000 bytes fold in the network" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("as planned") == 4, done.stdout


def test_a_switch_without_its_cpu_port_is_named_instead_of_ready(tmp_path: Path) -> None:
    """`netfold up` ends before it serves jobs, with the switch and the option."""
    assert SCRIPT.count(" --cpu-port 510") == 1
    without = SCRIPT.replace("switch spine1 3 50053", "switch spine1 3 50053 500").replace(
        "--cpu-port 510", "--cpu-port ${4:-510}").partition("> up.log")[0]
    done = typed(f"{without}; echo ended $?", tmp_path)
    assert "ended 1" in done.stdout, done.stdout + done.stderr
    assert "ready: fabric" not in done.stdout
    assert "1 of 3 switches of the fabric leafspine-2-1-2 pass the controller no packets" in done.stderr
    assert "spine1 (127.0.0.1:50053)" in done.stderr
    assert "--cpu-port" in done.stderr
