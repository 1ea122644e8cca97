# SPDX-License-Identifier: Apache-2.0
"""Fabrics over machines where Mininet is missing: the launcher needs none, and an agent says that it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from netfold.fabric.generate import parse
from netfold.fabric.placement.machine_list import ListedMachine
from netfold.topo.agents.frames import Kind, Splitter, pack
from netfold.topo.machines.description import describe

WITHOUT_MININET = """
import sys
from netfold.topo.network.mininet_path import MininetFinder
sys.meta_path.insert(0, MininetFinder([]))
"""


@pytest.mark.parametrize("command", ["up", "run"])
def test_a_launcher_without_mininet_starts_the_agents(command: str, tmp_path: Path) -> None:
    """What comes of it is one paragraph: here of a machine that the launcher does not reach."""
    listed = tmp_path / "hosts.txt"
    listed.write_text("n1 address=10.0.0.1\nn2 address=10.0.0.2\n")
    program = f"{WITHOUT_MININET}from netfold.cli.entry import netfold; netfold()"
    argv = [command, "--topo", "leafspine,2,2,8", "--machines", str(listed), "--launcher", "false {host}"]
    done = subprocess.run([sys.executable, "-c", program, *argv, *["--", "true"] * (command == "run")],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.startswith("netfold: machine n1: did not start: ")
    assert "Traceback" not in done.stderr
    assert done.returncode == 1


def test_an_agent_without_mininet_tells_the_launcher(tmp_path: Path) -> None:
    """By a frame that says what to install."""
    (machine,) = describe(parse("leafspine,1,0,2"), [ListedMachine("n1", "10.0.0.1")])
    program = f"{WITHOUT_MININET}from netfold.topo.machines.agent import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program], input=pack(0, Kind.DESCRIBE, msgspec.json.encode(machine)),
                          env={**os.environ, "PATH": str(tmp_path)}, capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    ((_, kind, content),) = Splitter().feed(done.stdout)
    assert kind is Kind.FAILED
    assert b"mnexec" in content
    assert b"apt install mininet" in content
