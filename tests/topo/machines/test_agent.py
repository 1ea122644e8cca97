# SPDX-License-Identifier: Apache-2.0
"""The agent of a machine, as the launcher at the other end of its line sees it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from netfold.topo.agents.frames import Kind, Splitter, pack
from support import needs

AGENT = """
import sys
import types
from pathlib import Path
from netfold.topo.machines import agent
from netfold.topo.processes import ranks

agent.SILENT_SECONDS = float(sys.argv[1])
agent.far_sockets = lambda description: []
ranks.FORKS.modules = ("imported_late",)
ranks.in_namespaces = lambda pid: ranks.Namespaces([])  # another host's need root
serving = agent.MachineAgent(None, Path(), out=0)
serving.network = types.SimpleNamespace(switches=[])
serving.serve(every=0.1)
"""
IN_A_HOST = ["mnexec", "-a", "1"]
SECONDS = 30.0


class Launcher:
    """The other end of the line of an agent that runs in a folder, and ends after so many seconds of silence."""

    def __init__(self, folder: Path, silent: float = 2 * SECONDS) -> None:
        self._line, theirs = socket.socketpair()
        self._line.settimeout(SECONDS)
        self._said = Splitter()
        with theirs:
            self.agent = subprocess.Popen([sys.executable, "-c", AGENT, str(silent)], stdin=theirs, cwd=folder,
                                          env={**os.environ, "PYTHONPATH": str(folder)})

    def run(self, channel: int, *argv: str) -> None:
        """Ask for a command."""
        self.send(channel, Kind.RUN, json.dumps({"argv": argv, "env": {}, "cwd": "/"}).encode())

    def send(self, channel: int, kind: Kind, content: bytes = b"") -> None:
        """Send a frame."""
        self._line.sendall(pack(channel, kind, content))

    def ends(self, *channels: int) -> dict[int, tuple[bytes, int]]:
        """The output and the status of each command that ends until all of these have ended."""
        output: dict[int, bytes] = {}
        ended: dict[int, tuple[bytes, int]] = {}
        while not ended.keys() >= set(channels):
            data = self._line.recv(1 << 16)
            assert data, "the agent has ended"
            for channel, kind, content in self._said.feed(data):
                if kind is Kind.OUTPUT:
                    output[channel] = output.get(channel, b"") + content
                elif kind is Kind.EXIT:
                    ended[channel] = output.get(channel, b""), *struct.unpack("!i", content)
        return ended

    def close(self) -> None:
        """End the agent as the launcher does."""
        self._line.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.agent.wait(SECONDS)
        self.agent.kill()
        self.agent.wait()


def test_the_agent_serves_others_while_a_fork_server_imports(tmp_path: Path) -> None:
    """A fork server that imports keeps its own ranks alone from starting; those get their input and signals in order,
    and one that was killed meanwhile does not stay."""
    pytest.importorskip("mininet.net", reason=needs.reason("mininet"))
    late = tmp_path / "imported_late.py"
    late.write_text("import fcntl; fcntl.flock(open(__file__), fcntl.LOCK_EX)")  # waits until the test lets go of it
    launcher = Launcher(tmp_path)
    try:
        with late.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            launcher.run(1, *IN_A_HOST, "cat")
            launcher.send(1, Kind.INPUT, b"first ")
            launcher.run(2, *IN_A_HOST, "sleep", "600")
            launcher.send(2, Kind.SIGNAL, bytes([signal.SIGKILL]))
            launcher.run(3, "echo", "here")
            assert launcher.ends(3) == {3: (b"here\n", 0)}
            launcher.send(1, Kind.INPUT, b"second")
            launcher.send(1, Kind.INPUT)
        assert launcher.ends(1, 2) == {1: (b"first second", 0), 2: (b"", -signal.SIGKILL)}
    finally:
        launcher.close()


def test_an_agent_whose_output_nobody_reads_ends_with_a_silent_launcher(tmp_path: Path) -> None:
    """It does so while a command's output has filled the line, and more of it waits."""
    pytest.importorskip("mininet.net", reason=needs.reason("mininet"))
    launcher = Launcher(tmp_path, silent=0.5)
    try:
        launcher.run(1, "yes")
        assert launcher.agent.wait(SECONDS) == 1
    finally:
        launcher.close()
