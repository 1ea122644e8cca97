# SPDX-License-Identifier: Apache-2.0
"""Network namespaces as machines, which share nothing but IP: to be made inside a sandbox.

    with Machines(3, folder) as machines:
        machines.list          # hosts.txt
        machines.launcher      # for --launcher: over TCP on the same network as the cables
        machines.cut("10.99.0.2")
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from support.sandboxes import processes, remote_shell

SECONDS = 60.0
_libc = ctypes.CDLL(None, use_errno=True)
PARTS = ("netfold.topo", "netfold.cli", "softswitch", "mininet:")


def ip(*words: str) -> str:
    """Run ip(8) and return its output."""
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=10).stdout


def _serve(number: int) -> int:
    """Start a machine's server of remote commands, a fork of this process, and return its process number."""
    listening, here = os.pipe()
    server = os.fork()
    if server == 0:
        try:
            os.close(listening)
            with open(f"/run/netns/m{number}") as namespace:
                assert _libc.setns(namespace.fileno(), 0) == 0
            remote_shell.serve(f"10.99.0.{number}", here)
        finally:
            os._exit(1)
    os.close(here)
    with open(listening, "rb") as until:
        until.read()
    return server


class Machines:
    """Namespaces m1, m2, ... on a bridge, whose names to the launcher are their addresses, 10.99.0.1 and up.

    mtu  of the network between them
    """

    def __init__(self, count: int, folder: Path, mtu: int = 1500) -> None:
        self.numbers, self.mtu = range(1, count + 1), mtu
        self.list = folder / "hosts.txt"
        self.launcher = f"{sys.executable} {remote_shell.__file__} {{host}}"
        self._servers: list[int] = []

    def __enter__(self) -> Machines:
        subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True, timeout=10)
        ip("link", "add", "underlay", "mtu", str(self.mtu), "type", "bridge")
        ip("address", "add", "10.99.0.254/24", "dev", "underlay")
        ip("link", "set", "underlay", "up")
        for n in self.numbers:
            ip("netns", "add", f"m{n}")
            ip("link", "add", f"u{n}", "mtu", str(self.mtu), "type", "veth", "peer", "name", "eth0", "mtu",
               str(self.mtu), "netns", f"m{n}")
            ip("link", "set", f"u{n}", "master", "underlay", "up")
            ip("-n", f"m{n}", "address", "add", f"10.99.0.{n}/24", "dev", "eth0")
            for name in ("lo", "eth0"):
                ip("-n", f"m{n}", "link", "set", name, "up")
            self._servers.append(_serve(n))
        self.list.write_text("".join(f"10.99.0.{n}\n" for n in self.numbers))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)

    def cut(self, address: str, *, up: bool = False) -> None:
        """Pull a machine's only cable to the others, or plug it in again."""
        ip("link", "set", f"u{address.rpartition('.')[2]}", "up" if up else "down")

    def started(self, number: int) -> list[int]:
        """The processes that the shell of a machine has started and that still run."""
        found = []
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                _, _, rest = file.read_text().rpartition(") ")
                state, parent = rest.split()[:2]
                if state != "Z" and int(parent) == self._servers[number - 1]:
                    found.append(int(file.parent.name))
        return found

    def running(self) -> list[str]:
        """The command lines of agents, switches, hosts and controllers, of which namespaces ever: process numbers of
        namespaces inside this one are seen here too.  The test's own fork server is none of them."""
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                ours = "pytest" in line or int(file.parent.name) == processes.FORKS.server
                if not ours and any(part in line for part in PARTS):
                    found.append(line)
        return found

    def wait_empty(self) -> None:
        """Wait until nothing of a fabric runs on any machine, and no cable is left."""
        until = time.monotonic() + SECONDS
        while running := self.running():
            assert time.monotonic() < until, running
            time.sleep(0.1)
