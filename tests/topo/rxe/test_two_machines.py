# SPDX-License-Identifier: Apache-2.0
"""The program with two machines on a wire, with stand-ins for the machines: its status, and what it says."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from netfold.topo.network import sandbox
from netfold.topo.rxe import __main__ as two_machines
from netfold.topo.rxe.machine import GuestFailed, System


class StandIn:
    """A machine that runs its commands here."""

    stopped = 0

    def __init__(self, *_: Any) -> None:
        StandIn.stopped = 0

    def start(self) -> None:
        """There is nothing to start."""

    def wait_ready(self) -> float:
        """It is at once."""
        return 0.0

    def execute(self, *_: str) -> None:
        """Nothing has to be configured."""

    def attach(self, argv: Sequence[str]) -> Sequence[str]:
        """The same command."""
        return argv

    def stop(self) -> None:
        """Count the machines that were ended."""
        StandIn.stopped += 1


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No virtual machines, and no namespaces."""
    monkeypatch.setattr(sandbox, "inside", lambda: True)
    monkeypatch.setattr(sandbox, "rundir", lambda: tmp_path)
    monkeypatch.setattr(System, "prepare", lambda *_, **__: None)
    monkeypatch.setattr(two_machines, "Machine", StandIn)


@pytest.mark.parametrize(("command", "status"), [
    ("true", 0), ("exit 3", 3), ("kill -SEGV $$", 128 + signal.SIGSEGV), ("kill -KILL $$", 128 + signal.SIGKILL)])
def test_the_status_is_the_highest_of_both_commands(command: str, status: int) -> None:
    """That of a command which a signal has ended is above 128, as a shell has it."""
    assert two_machines.main([command, "true"]) == status
    assert two_machines.main(["exit 2", command]) == max(2, status)


def test_a_machine_that_does_not_boot_is_one_paragraph(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has failed, and a status; both machines are ended."""
    def fail(_: StandIn) -> float:
        raise GuestFailed("virtual machine m1 did not answer within 400 s")

    monkeypatch.setattr(StandIn, "wait_ready", fail)
    assert two_machines.main(["true", "true"]) == 1
    assert capsys.readouterr().err == "virtual machine m1 did not answer within 400 s\n"
    assert StandIn.stopped == 2
