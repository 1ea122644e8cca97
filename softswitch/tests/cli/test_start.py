# SPDX-License-Identifier: Apache-2.0
"""The imports of a start from the cache, and that options are read for it as typer would read them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from softswitch.cli import COMMANDS, start
from softswitch.cli.app import app
from softswitch.p4runtime.program import Compiler
from switch_support.p4 import basic

TIMEOUT = 60
SHOW_MODULES = ("import atexit, sys; atexit.register(lambda: print(*sys.modules)); "
                "from softswitch.cli import main; main(sys.argv[1:])")
TAKES_LONG = [
    "pydantic", "rich", "typer",  # read and describe options
    "finsy.controller", "importlib.resources", "numpy", "thrift", "torch",
    "softswitch.cli.app", "softswitch.explain", "softswitch.stf", "softswitch.thrift.server", "softswitch.tools",
    "softswitch.trace", "softswitch.compiler.confined", "softswitch.compiler.driver", "softswitch.compiler.lexer",
]
"""Modules that a switch does not need to start, and that take milliseconds each to import."""


def test_a_start_imports_only_what_it_needs(tmp_path: Path) -> None:
    """A switch with a program from the cache is ready without typer, the compiler, traces, Thrift..."""
    program = tmp_path / "basic.p4"
    program.write_text(basic())
    Compiler().file(program)
    switch = subprocess.Popen(
        [sys.executable, "-c", SHOW_MODULES, program, "--grpc-server-addr", f"unix:{tmp_path}/s"],
        stdout=subprocess.PIPE, text=True,
    )
    try:
        assert switch.stdout is not None
        assert "ready" in switch.stdout.readline()
        switch.send_signal(signal.SIGTERM)
        imported = set(switch.communicate(timeout=TIMEOUT)[0].split())
    finally:
        switch.kill()
        switch.wait()
    assert "softswitch.p4runtime.server" in imported
    assert sorted(imported & set(TAKES_LONG)) == []


@pytest.mark.parametrize("words", [
    "",
    "--no-p4",
    "prog.p4",
    "prog.p4 -i 1@a -i2@b --interface 3@c",
    "-i 1@a prog.p4 --grpc-server-addr unix:/s --grpc-server-addr=127.0.0.1:0",
    "--grpc-server-ssl --grpc-server-cert c.pem --grpc-server-key k.pem --grpc-server-cacert a.pem "
    "--grpc-server-with-client-auth --primary cert:x --primary unix",
    "prog.p4 --insecure --thrift-port 9090 --device-id 0 --cpu-port 510 --queue 1048576 --seed 3 --seed 4",
    "prog.p4 --pcap . --trace - --trace-format bmv2 --trace-limit 1 --trace-bytes 0 --page 127.0.0.1:0",
    "prog.p4 --no-offload --sanitize --log-level off --log-file f -DA -D B=1 -I x -Iy",
])
def test_options_are_read_as_by_typer(words: str) -> None:
    """argparse reads the same values and types as typer; absent options stay at their defaults."""
    given = start.read(words.split())
    assert given is not None
    assert comparable(vars(given)) == comparable(run_of_typer(words.split()))


def comparable(options: dict[str, Any]) -> dict[str, Any]:
    """Values and types by name; typer gives nothing but an empty tuple where an option of many was not given."""
    return {name: None if value in ([], (), None) else (type(value), value) for name, value in options.items()}


@pytest.mark.parametrize("words", [
    "--help", "-h", "prog.p4 --help", "a.p4 b.p4", "-- a.p4", "--no-such-option", "prog.p4 --no-p4=1", "--no-p", "-i",
    "--seed x", "--seed -1", "--seed 1_0", "--device-id", "--cpu-port 0", "--cpu-port 511", "--thrift-port 65536",
    "--trace-format xml", "--log-level INFO", "--queue 0",
])
def test_help_and_mistakes_are_left_to_typer(words: str) -> None:
    """Help and error messages are typer's: all that it would refuse is not read here."""
    assert start.read(words.split()) is None


def test_ctrl_c_while_modules_are_imported_is_no_traceback(tmp_path: Path) -> None:
    """The command ends by the signal, and says nothing."""
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    found = subprocess.run([sys.executable, "-m", "softswitch", "compile", "x.p4"], capture_output=True, text=True,
                           env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
                           timeout=TIMEOUT, check=False)
    assert (found.returncode, found.stderr) == (-signal.SIGINT, "")


def test_every_command_is_named() -> None:
    """The entry point knows the commands of the app: any other first word starts a switch."""
    assert set(typer.main.get_command(app).commands) == set(COMMANDS)  # type: ignore[attr-defined]


def run_of_typer(words: list[str]) -> dict[str, Any]:
    """The options with which typer would call run()."""
    run = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    return dict(run.make_context("run", list(words)).params)
