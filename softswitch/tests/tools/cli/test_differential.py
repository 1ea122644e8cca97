# SPDX-License-Identifier: Apache-2.0
"""simple_switch_CLI and the Thrift server against BMv2's own: the same commands, the same words."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from switch_support.thrift import PROGRAM, LocalSwitch, compiled, served

COMMANDS = Path(__file__).with_name("commands.txt").read_text()
"""What courses and p4-utils call, right and wrong, in an order that leaves something to be told."""

OURS = [sys.executable, "-c", "import sys; from softswitch.tools.cli.main import main; sys.exit(main())"]


def say(program: list[str], port: int) -> str:
    """The answer of a command line to COMMANDS."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    if program[0] != sys.executable:
        del environment["PYTHONPATH"]
    done = subprocess.run([*program, "--thrift-port", str(port)], input=COMMANDS, capture_output=True, text=True,
                          timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture
def bmv2(tmp_path: Path) -> Iterator[int]:
    """The port of a BMv2 that runs thrift.p4."""
    json = tmp_path / "thrift.json"
    subprocess.run(["p4c-bm2-ss", PROGRAM, "-o", json], check=True, capture_output=True, timeout=120)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # the default address of notifications is the same for every BMv2 of the machine
    events = f"ipc://{tmp_path}/notifications"
    process = subprocess.Popen(
        ["simple_switch", json, "--thrift-port", str(port), "--notifications-addr", events, "-L", "off"], cwd=tmp_path,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=10).close()
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait(30)


@pytest.fixture
def ours() -> Iterator[int]:
    """The port of our server, which runs the same program."""
    with served() as (_, server):
        yield server.port


def test_our_command_line_says_what_is_wrong(ours: int) -> None:
    """A word of each kind of answer: what was added, dumped, refused by us and refused by the switch."""
    said = say(OURS, ours)
    for words in ("RuntimeCmd: Adding entry to exact match table exact_t\n"
                  "match key:           EXACT-00:00:00:00:00:01\tEXACT-00:01\n"
                  "action:              forward\n"
                  "runtime data:        00:02\t00:00:00:00:00:05\n"
                  "Entry has been added with handle 0\n",
                  "Invalid table operation (DUPLICATE_ENTRY)\n",
                  "Error: Invalid table name (nosuch)\n",
                  "Invalid match key: Error while parsing 0x1ffff - Parameter is too large\n",
                  "* eth.dst                       : EXACT     000000000001\n",
                  "Invalid meter operation (INVALID_INDEX)\n",
                  "WARNING: expected 2 rates but only received 0\n",
                  "*** Unknown syntax: nonsense\n"):
        assert words in said


@pytest.mark.needs("bmv2", "simple_switch")
def test_four_pairs_of_command_line_and_switch_say_the_same(bmv2: int, ours: int, tmp_path: Path) -> None:
    """BMv2's command line and ours, to BMv2 and to ours: one text, to the byte."""
    theirs = shutil.which("simple_switch_CLI")
    if theirs is None:
        pytest.skip("BMv2 was built without its simple_switch_CLI")
    starts = subprocess.run([theirs, "--help"], capture_output=True, text=True, timeout=60, check=False)
    if "No module named 'thrift'" in starts.stderr:
        pytest.skip("the Python that runs BMv2's simple_switch_CLI lacks thrift: apt install python3-thrift")
    said = say([theirs], bmv2)
    assert said.count("\n") > 500
    assert say([theirs], ours) == said
    with served() as (_, again):
        assert say(OURS, again.port) == said


@pytest.mark.needs("bmv2", "simple_switch")
def test_our_command_line_controls_bmv2(bmv2: int, ours: int) -> None:
    """Ours says the same to either switch."""
    assert say(OURS, bmv2) == say(OURS, ours)


def test_the_json_of_the_switch_is_that_of_the_compiler(ours: int, tmp_path: Path) -> None:
    """`--json` with the switch's own program has no warning; with another one it has."""
    mine, other = tmp_path / "mine.json", tmp_path / "other.json"
    mine.write_text(LocalSwitch(compiled(), compiled().bmv2_json).config())
    other.write_text("{}")
    assert "WARNING" not in say([*OURS, "--json", str(mine)], ours).replace("WARNING: expected", "")
    done = subprocess.run([*OURS, "--thrift-port", str(ours), "--json", str(other)], input="show_tables\n",
                          capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)})
    assert "don't have the same md5 sum" in done.stdout


def test_without_a_switch_it_says_so(tmp_path: Path) -> None:
    """Where nothing listens, the exit status is 1 and the message names the port."""
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        done = subprocess.run([*OURS, "--thrift-port", str(port)], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)})
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, f"Could not connect to thrift client on port {port}")
