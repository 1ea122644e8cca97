# SPDX-License-Identifier: Apache-2.0
"""What a command imports before it does its work: that of all commands' modules takes longer than most of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from netfold.cli.app import PANELS, app
from netfold.fabric import file as fabric_file
from netfold.fabric.generate import leafspine

TIMEOUT = 60
SHOW_MODULES = ("import atexit, sys; atexit.register(lambda: print('\\n' + ' '.join(sys.modules))); "
                "from netfold.cli.entry import netfold; netfold()")
TAKES_LONG = {"networkx", "finsy", "google.protobuf", "numpy", "mininet", "scapy", "torch", "rich.console",
              "netfold.controller.controller", "netfold.cli.bench", "netfold.cli.sim", "netfold.cli.up"}
"""Modules that take tens of milliseconds each, or bring such."""


@pytest.mark.parametrize("words", ["status FABRIC", "drain leaf1 FABRIC", "slots leaf1 --fabric FABRIC"])
def test_a_question_to_a_controller_imports_only_what_asks_it(words: str, tmp_path: Path) -> None:
    """Not what plans, controls, prints tables or measures, though the fabric's file is read and checked."""
    file = tmp_path / "fabric.toml"
    fabric_file.save(leafspine(2, 2, 4, rundir=tmp_path), file)
    done = subprocess.run([sys.executable, "-c", SHOW_MODULES, *words.replace("FABRIC", str(file)).split()],
                          capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert "no controller answers" in done.stderr
    imported = set(done.stdout.splitlines()[-1].split())
    assert "netfold.controller.client" in imported
    assert sorted(imported & TAKES_LONG) == []


def test_every_command_is_named() -> None:
    """All commands of the table are there, each under its name."""
    made = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert set(made) == {name for commands in PANELS.values() for name in commands}


@pytest.mark.parametrize("module", ["shlex", "typer"])
def test_ctrl_c_while_modules_are_imported_is_no_traceback(module: str, tmp_path: Path) -> None:
    """The command ends by the signal, and says nothing, from its first import on."""
    (tmp_path / f"{module}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    found = subprocess.run([sys.executable, "-m", "netfold.cli", "status"], capture_output=True, text=True, timeout=60,
                           env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}, check=False)
    assert (found.returncode, found.stderr) == (-signal.SIGINT, "")
