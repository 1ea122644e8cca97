# SPDX-License-Identifier: Apache-2.0
"""What can be done to a running network on purpose: interfaces taken down, cables that swallow, switches killed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Mininet may be absent
    from netfold.topo.net import Network


class Disasters:
    """Of one network whose switches listen on unix sockets."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._switches = {switch.name: switch for switch in network.switches}

    def cut(self, name: str, port: int) -> None:
        """Takes an interface of a switch down: both ends see it, if they look."""
        self._execute(f"ip link set {self._interface(name, port)} down")

    def mend(self, name: str, port: int) -> None:
        """Takes it up again."""
        self._execute(f"ip link set {self._interface(name, port)} up")

    def swallow(self, name: str, port: int, *, limit: int = 1) -> None:
        """What leaves there is lost, and both ends believe that the link is up: the queue behind the shaper
        (wiring.shaper) has no room for a frame.  A ``limit`` in bytes gives it room again."""
        self._execute(f"tc qdisc replace dev {self._interface(name, port)} parent 1:1 handle 10: bfifo limit {limit}")

    def kill(self, name: str) -> None:
        """Ends a switch without warning."""
        child = self._switches[name].child
        assert child is not None, f"{name} does not run"
        child.kill()
        child.wait(10)
        Path(self.network.fabric.switch(name).grpc.removeprefix("unix:")).unlink(missing_ok=True)

    def start(self, name: str) -> None:
        """Starts it again, with nothing."""
        self._switches[name].start([])

    def restart(self, name: str) -> None:
        """Both."""
        self.kill(name)
        self.start(name)

    def _interface(self, name: str, port: int) -> str:
        return dict(self._switches[name].interfaces())[port]

    @staticmethod
    def _execute(command: str) -> None:
        subprocess.run(command.split(), check=True, timeout=10)
