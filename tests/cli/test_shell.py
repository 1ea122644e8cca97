# SPDX-License-Identifier: Apache-2.0
"""`netfold shell`: p4runtime-shell on the right switch, reading beside its controller; or how to get it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from netfold.cli.app import app
from netfold.cli.common import CANNOT, FAILED
from netfold.cli.shell import PYTHON_VARIABLE
from netfold.controller.controller import Controller
from netfold.controller.switch import tables
from netfold.fabric import file as fabric_file
from netfold.fabric.generate import leafspine
from support.control.jobs import rig
from support.sandboxes.processes import BOUND, Switches

NETFOLD = [sys.executable, "-m", "netfold.cli"]


def fake_python(folder: Path) -> Path:
    """Says with which words it was started."""
    program = folder / "python"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    return program


async def test_it_is_started_on_the_switch_that_is_meant(tmp_path: Path) -> None:
    """Address and device id by the fabric's file, or by the controller; an election id that no controller has."""
    fabric_file.save(leafspine(2, 2, 4), tmp_path / "lab.toml")
    env = os.environ | {PYTHON_VARIABLE: str(fake_python(tmp_path))}
    async with rig(tmp_path) as r:
        wanted = {"lab.toml": "127.0.0.1:50053", f"--controller={r.fabric.jobs}": r.fabric.switch("spine1").grpc}
        for where, address in wanted.items():
            process = await asyncio.create_subprocess_exec(*NETFOLD, "shell", "spine1", where, env=env,
                                                           stdout=subprocess.PIPE, cwd=tmp_path)
            said, _ = await process.communicate()
            number = process.pid  # it becomes the shell itself
            assert said.decode() == (f"-m p4runtime_sh --grpc-addr {address} --device-id 3 "
                                     f"--election-id 0,{number}\n")


@pytest.mark.parametrize(("python", "why"), [
    ("nowhere", "there is no .*nowhere"),
    (sys.executable, "has no p4runtime_sh: ModuleNotFoundError: No module named 'p4runtime_sh'"),
    (None, "there is no .*p4runtime-shell/bin/python"),
])
def test_where_it_is_missing_the_command_to_get_it_is_said(
    python: str | None, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command names the folder in which p4runtime-shell is found once it has been installed there."""
    fabric_file.save(leafspine(2, 2, 4), tmp_path / "lab.toml")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv(PYTHON_VARIABLE, python) if python else monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    result = CliRunner().invoke(app, ["shell", "leaf1", str(tmp_path / "lab.toml")])
    assert result.exit_code == FAILED
    home = tmp_path / "netfold" / "p4runtime-shell"
    assert f"python3 -m venv {home} && {home}/bin/pip install p4runtime-shell" in result.stderr
    assert re.search(why, result.stderr), result.stderr


def test_a_switch_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    """The command is refused before any shell is started."""
    fabric_file.save(leafspine(2, 2, 4), tmp_path / "lab.toml")
    result = CliRunner().invoke(app, ["shell", "leaf9", str(tmp_path / "lab.toml")])
    assert result.exit_code == CANNOT
    assert "no switch 'leaf9'; it has leaf1, leaf2, spine1, spine2" in result.stderr


@pytest.mark.needs("p4runtime-shell")
async def test_it_reads_beside_a_controller_and_takes_nothing_from_it(switches: Switches) -> None:
    """The real one: it reads a table's entries, its write is refused, and the controller keeps the switch."""
    file = switches.folder / "lab.toml"
    fabric_file.save(switches.fabric, file)
    script = (f'found = list(table_entry["{tables.ROUTE}"].read())\n'
              'print("routes:", len(found))\nfound[0].delete()\nexit\n')
    async with asyncio.timeout(BOUND), Controller(switches.fabric, start_timeout=BOUND) as controller:
        process = await asyncio.create_subprocess_exec(
            *NETFOLD, "shell", "leaf1", str(file), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)
        said, _ = await process.communicate(script.encode())
        print(said.decode())
        assert b"you only have read access" in said
        assert b"routes: 5\n" in said, "its hosts, addresses of none of them, up, to the CPU port"
        assert b"PERMISSION_DENIED" in said
        assert controller.targets["leaf1"].is_up
        assert controller.targets["leaf1"].sessions == 1
