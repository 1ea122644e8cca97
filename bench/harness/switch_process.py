# SPDX-License-Identifier: Apache-2.0
"""A switch under test, softswitch or BMv2: its command line, its process, and when it forwards packets."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from netfold.bench.harness.traffic import TrafficLoad
from netfold.disk import files
from netfold.fabric.graph import Engine
from netfold.topo.network.switches import Bmv2Switch, find_program, notifications

BOUND = 180.0
"""Seconds for a switch to start; softswitch compiles its program then, perhaps on a busy machine."""


@contextlib.contextmanager
def process(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process while the block runs."""
    with files.create(folder / "switch.log") as log:
        running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield running
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(5)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait(5)


def command(engine: Engine, program: Path | None, address: str, ports: Sequence[str]) -> list[str]:
    """The command line of a switch; without a program it waits for that of a controller."""
    interfaces = [word for port in ports for word in ("-i", port)]
    what = [str(program)] if program else ["--no-p4"]
    if engine == "bmv2":
        bmv2 = find_program("simple_switch_grpc", Bmv2Switch.missing)
        return [bmv2, *what, *interfaces, "--log-level", "off", "--device-id", "1", *notifications(bmv2, "bench"),
                "--thrift-port", "9090", "--", "--grpc-server-addr", address, "--cpu-port", "510"]
    return [sys.executable, "-m", "softswitch", *what, *interfaces, "--device-id", "1", "--grpc-server-addr", address,
            "--cpu-port", "510"]


def until_through(load: TrafficLoad) -> None:
    """Wait until a switch that is starting forwards packets.  Raises RuntimeError after BOUND seconds."""
    deadline = time.monotonic() + BOUND
    while True:
        out = load.run(0.01)
        if out.received and not out.lost:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing comes through the switch within {BOUND:.0f} s")
