# SPDX-License-Identifier: Apache-2.0
"""A node whose shell ends, or is left in the middle of a command."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netfold.fabric.generate import leafspine
from netfold.topo.network import sandbox
from support import needs
from support.sandboxes.topo import in_sandbox

mininet = pytest.importorskip("mininet.node", reason=needs.reason("mininet"))
from netfold.topo.network.planes import Planes, side_by_side  # noqa: E402
from netfold.topo.network.shells import WatchedShell  # noqa: E402
from netfold.topo.network.switches import SoftSwitch  # noqa: E402
from netfold.topo.processes.failures import WiringError  # noqa: E402


class Interrupted(WatchedShell):
    """A node whose shell is killed before its first prompt, as Ctrl-C kills one that has no session of its own."""

    def _popen(self, cmd: list[str], **params: Any) -> subprocess.Popen[bytes]:
        return super()._popen(["sh", "-c", "kill -KILL $$"], **params)  # type: ignore[no-any-return]


@pytest.fixture
def node() -> Iterator[WatchedShell]:
    """A node in this process's namespaces."""
    node = WatchedShell("n1", inNamespace=False)
    yield node
    node.terminate()


@pytest.mark.timeout(20)
def test_a_shell_that_ends_before_its_first_prompt_is_an_error() -> None:
    """Mininet waits for the prompt for ever."""
    with pytest.raises(WiringError, match=r"node n1: expected its shell .* but it ended with status -9: start "):
        Interrupted("n1", inNamespace=False)


@pytest.mark.timeout(20)
def test_a_shell_that_ends_in_a_command_is_an_error(node: WatchedShell) -> None:
    """Its output until then comes first."""
    assert node.cmd("echo one") == "one\r\n"
    node.sendCmd("echo two; exit 3")
    assert node.read().startswith("two")
    with pytest.raises(WiringError, match="it ended with status 3"):
        node.waitOutput()


def test_a_node_that_was_left_in_a_command_runs_the_next(node: WatchedShell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the shell has still to say is not taken for the output of the next command."""

    def ctrl_c(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(node, "waitOutput", ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        node.cmd("echo one")
    assert node.cmd("echo", "two") == "two\n"
    assert node.cmd(["echo", "three"]) == "three\n"


@pytest.mark.timeout(100)
@in_sandbox(timeout=60)
def test_ctrl_c_in_a_command_of_a_starting_fabric_ends_it_as_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start ends by KeyboardInterrupt, and the links that were there by then are deleted."""
    there: list[str] = []

    def ctrl_c_at_the_second_link(switch: SoftSwitch, verbose: bool = False) -> str:
        if "leaf1-eth2" in switch.lastCmd:
            there.extend(name for _, name in socket.if_nameindex())
            raise KeyboardInterrupt
        said: str = super(SoftSwitch, switch).waitOutput(verbose)
        return said

    monkeypatch.setattr(SoftSwitch, "waitOutput", ctrl_c_at_the_second_link, raising=False)
    planes = Planes(side_by_side([leafspine(1, 0, 2)], sandbox.rundir()), logs=tmp_path)
    with pytest.raises(KeyboardInterrupt), planes:
        pass
    assert "leaf1-eth1" in there
    assert "leaf1-eth1" not in [name for _, name in socket.if_nameindex()]
