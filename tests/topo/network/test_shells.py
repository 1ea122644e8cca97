# SPDX-License-Identifier: Apache-2.0
"""Errors of a node whose shell ends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from support import needs

mininet = pytest.importorskip("mininet.node", reason=needs.reason("mininet"))
from netfold.topo.network.shells import WatchedShell  # noqa: E402
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
