# SPDX-License-Identifier: Apache-2.0
"""Processes of a worker: the switches of a fabric, BMv2 or softswitch, for a real controller; and the command
`netfold`.  Those in Python are forks of one process, which has imported what they need."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

import msgspec
import pytest

from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Engine, Fabric, Switch
from netfold.topo.faults.injector import children
from netfold.topo.network import switches as topo_switches
from netfold.topo.processes.forks import ChildProcess, Forked, Forks
from support.sandboxes.topo import ENGINES
from switch_support.ports import wait_for

BOUND = 120.0
"""Seconds for a test: a switch that compiles from source, cold, on a busy machine."""
_NO_TEST: Final = {"PYTEST_CURRENT_TEST": ""}
"""Programs run in a fork of a process with the same environment alone (topo/processes/forked_program.py)."""
FORKS: Final = Forks(*topo_switches.FORKS.modules, environment=_NO_TEST)


def forked(
    command: Sequence[str], output: int | IO[bytes], errors: int | IO[bytes], env: Mapping[str, str] | None = None
) -> Forked:
    """Start a Python program in a fork, in a session of its own; ``env`` is that of this process by default."""
    return FORKS.start(command, output, errors, environment={**(os.environ if env is None else env), **_NO_TEST})


def netfold(*words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command `netfold` to its end."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = forked([sys.executable, "-m", "netfold.cli", *words], output, errors, env)
        try:
            status = process.wait(BOUND)
        finally:
            process.kill()
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess(process.args, status, output.read().decode(), errors.read().decode())


def command(engine: Engine, switch: Switch, *ports: str) -> list[str]:
    """The command that starts a switch with these interfaces (`1@veth1`)."""
    given = [word for port in ports for word in ("-i", port)]
    if engine == "bmv2":
        # it insists on a Thrift port: 0 is any
        return ["simple_switch_grpc", "--no-p4", *given, "--log-level", "off", "--device-id", str(switch.device_id),
                "--thrift-port", "0", "--", "--grpc-server-addr", switch.grpc, "--cpu-port", "510"]
    return [sys.executable, "-m", "softswitch", "--no-p4", *given, "--device-id", str(switch.device_id),
            "--grpc-server-addr", switch.grpc, "--cpu-port", "510"]


def plug(*pairs: tuple[str, str]) -> None:
    """Make veth pairs in this sandbox, by their ends' names, in which nobody but the test sends."""
    for one, other in pairs:
        subprocess.run(["ip", "link", "add", "name", one, "type", "veth", "peer", "name", other], check=True)
        for end in (one, other):
            Path(f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6").write_text("1")
            subprocess.run(["ip", "link", "set", end, "up"], check=True)


def accepts(path: str) -> bool:
    """True if somebody takes connections at a unix socket."""
    with socket.socket(socket.AF_UNIX) as asking:
        return asking.connect_ex(path) == 0


class Switches:
    """The processes of a fabric's switches."""

    def __init__(self, fabric: Fabric, folder: Path) -> None:
        self.fabric = fabric
        self.folder = folder
        self.processes: dict[str, ChildProcess] = {}

    def start(self, name: str, *ports: str) -> None:
        """Start the process of a switch, with these interfaces (`1@veth1`)."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = forked(command(self.fabric.engine, self.fabric.switch(name), *ports), log, log)

    def wait(self) -> None:
        """Wait until all switches take connections, for what asks them once alone."""
        wait_for(lambda: all(accepts(switch.grpc.removeprefix("unix:")) for switch in self.fabric.switches))

    def kill(self, name: str) -> None:
        """End the process of a switch by SIGKILL."""
        process = self.processes.pop(name)
        process.kill()
        process.wait(10)
        Path(self.fabric.switch(name).grpc.removeprefix("unix:")).unlink(missing_ok=True)

    def kill_native(self, name: str) -> None:
        """End the native process of a softswitch by SIGKILL; its P4Runtime server lives on."""
        (native,) = children(self.processes[name].pid)
        os.kill(native, signal.SIGKILL)


@pytest.fixture(params=ENGINES)
def switches(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Switches]:
    """Four running switches of a 2x2x4 fabric with losses."""
    engine: Engine = request.param
    # there are no cables to probe
    fabric = msgspec.structs.replace(leafspine(2, 2, 4, engine=engine, loss=0.01, rundir=tmp_path, path_mtu=1024),
                                   probe=0)
    made = Switches(fabric, tmp_path)
    try:
        for switch in made.fabric.switches:
            made.start(switch.name)
        yield made
    finally:
        for name in list(made.processes):
            made.kill(name)
