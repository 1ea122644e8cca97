# SPDX-License-Identifier: Apache-2.0
"""Softswitches that are forked: they are what their command line says, and their ends are seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netfold.topo.forks import UNKNOWN_STATUS, Forked, Forks

SOFTSWITCH = str(Path(sys.prefix) / "bin" / "softswitch")
SECONDS = 60.0
"""Seconds within which a process must end."""


@pytest.fixture
def forks() -> Iterator[Forks]:
    """A server that ends with the test."""
    server = Forks()
    yield server
    server.close()


def start(forks: Forks, folder: Path, *words: str) -> tuple[Forked, Path]:
    """A softswitch with these arguments, and its log."""
    log = folder / "log"
    with log.open("wb") as output:
        return forks.start([SOFTSWITCH, *words], output), log


def ready(log: Path) -> None:
    """Wait until a switch says that it is ready."""
    with subprocess.Popen(["tail", "-n", "+1", "-f", str(log)], stdout=subprocess.PIPE, text=True) as lines:
        assert lines.stdout is not None
        said = lines.stdout.readline()
        lines.kill()
    assert "softswitch: ready" in said, log.read_text()


@pytest.mark.timeout(180)
def test_a_forked_switch_is_one_like_others(
    tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its arguments, this process's environment and folder, a session and a name of its own; it ends by
    SIGTERM with status 0, and by SIGKILL with that signal."""
    monkeypatch.chdir(tmp_path)
    for number, status in ((signal.SIGTERM, 0), (signal.SIGKILL, -9)):
        monkeypatch.setenv("NETFOLD_TEST", number.name)
        child, log = start(forks, tmp_path, "--no-p4", "--grpc-server-addr", f"unix:{tmp_path}/{number.name}")
        ready(log)
        proc = Path(f"/proc/{child.pid}")
        assert proc.joinpath("comm").read_text() == "softswitch\n"
        assert proc.joinpath("cwd").resolve() == tmp_path.resolve()
        assert os.getsid(child.pid) == child.pid
        assert child.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.01)
        child.send_signal(number)
        assert child.wait(SECONDS) == status
        assert child.poll() == status
        child.kill()  # it has ended: nothing


@pytest.mark.timeout(180)
def test_a_forked_switch_that_cannot_start_says_why(tmp_path: Path, forks: Forks) -> None:
    """Its status is the command's own, and its reason in its log."""
    child, log = start(forks, tmp_path, "--no-p4", "-i", "1@nowhere")
    assert child.wait(SECONDS) == 2
    assert "there is no interface nowhere" in log.read_text()


@pytest.mark.timeout(180)
def test_a_start_that_is_given_up_leaves_no_switch(
    tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the server forks after the launcher has lost its patience ends before it is a switch."""
    monkeypatch.setattr("netfold.topo.forks.START_SECONDS", 0.0)
    reads, writes = os.pipe()
    with open(writes, "wb") as output, pytest.raises(ChildProcessError, match="started nothing"):
        forks.start([SOFTSWITCH, "--no-p4", "--grpc-server-addr", f"unix:{tmp_path}/switch"], output)
    with open(reads, "rb") as said:
        assert said.read() == b""  # until every process that has the other end has ended


@pytest.mark.timeout(180)
def test_an_environment_may_be_large(tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of pods are, with variables for each service of a cluster."""
    for number in range(10):
        monkeypatch.setenv(f"NETFOLD_TEST_{number}", 100_000 * "x")
    child, log = start(forks, tmp_path, "--no-p4", "-i", "1@nowhere")
    assert child.wait(SECONDS) == 2
    assert "there is no interface nowhere" in log.read_text()


@pytest.mark.timeout(180)
def test_switches_outlive_their_server_which_is_replaced(tmp_path: Path, forks: Forks) -> None:
    """The next switch starts all the same; the status of one whose server has gone cannot be known, its end can."""
    first, log = start(forks, tmp_path, "--no-p4", "--grpc-server-addr", f"unix:{tmp_path}/first")
    ready(log)
    assert forks.server is not None
    os.kill(forks.server, signal.SIGKILL)
    second, log = start(forks, tmp_path, "--no-p4", "--grpc-server-addr", f"unix:{tmp_path}/second")
    ready(log)
    assert first.poll() is None
    for child, status in ((first, UNKNOWN_STATUS), (second, -9)):
        child.kill()
        assert child.wait(SECONDS) == status


def test_a_program_that_is_no_fork_server_is_an_error(tmp_path: Path, forks: Forks) -> None:
    """Nothing hangs where it ends without a word."""
    with (tmp_path / "log").open("wb") as log, pytest.raises(OSError, match=r"started nothing|Broken pipe|refused"):
        forks.start(["/bin/false"], log)
