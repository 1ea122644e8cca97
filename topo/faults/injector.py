# SPDX-License-Identifier: Apache-2.0
"""Faults injected into a running network: links taken down, links that drop everything silently, switches killed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from netfold.topo.network.wiring import queue_bytes
from netfold.topo.processes.failures import WiringError

if TYPE_CHECKING:  # Mininet may be absent
    from netfold.topo.network.net import Network

DELAYED_FRAMES: Final = 100_000
"""Most frames that a port holds back, some of which are super-packets."""


class FaultInjector:
    """Injects faults into one network, whose switches must listen on unix sockets."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._switches = {switch.name: switch for switch in network.switches}

    def link_down(self, switch: str, port: int) -> None:
        """Take the interface of a switch port down; both ends of the link can see it."""
        self._execute(f"ip link set {self._interface(switch, port)} down")

    def link_up(self, switch: str, port: int) -> None:
        """Take the interface up again."""
        self._execute(f"ip link set {self._interface(switch, port)} up")

    def blackhole(self, switch: str, port: int) -> None:
        """Drop every frame that leaves this port, of a switch or host, while both ends see the link as up.

        The queue behind the shaper (wiring.shaper), or in its place where the link has no rate, gets no room for a
        frame.
        """
        self._replace_queue(switch, port, "bfifo limit 1")

    def end_blackhole(self, switch: str, port: int) -> None:
        """Give the port's queue room again."""
        self.end_queue(switch, port)

    def delay(self, node: str, port: int, seconds: float) -> None:
        """Hold back what leaves this port, of a switch or host, which needs the kernel's netem.  Raises WiringError."""
        self._replace_queue(node, port, f"netem delay {round(seconds * 1e6)}us limit {DELAYED_FRAMES}")

    def end_queue(self, node: str, port: int) -> None:
        """Give the port its own queue again."""
        rate = self._rate(node, port)
        if rate is None:
            self._tc(node, port, "del", "root")
        else:
            self._replace_queue(node, port, f"bfifo limit {queue_bytes(rate)}")

    def kill(self, switch: str) -> None:
        """Kill a switch process and remove its socket, as a power failure would."""
        child = self._switches[switch].child
        assert child is not None, f"{switch} does not run"
        child.kill()
        child.wait(10)
        Path(self.network.fabric.switch(switch).grpc.removeprefix("unix:")).unlink(missing_ok=True)

    def kill_native(self, switch: str) -> None:
        """Kill the native process of a softswitch, as a fault in it would; its P4Runtime server lives on."""
        self._signal_native(switch, signal.SIGKILL)

    def stop_native(self, switch: str) -> None:
        """Stop the native process of a softswitch, as if it hung; its P4Runtime server lives on."""
        self._signal_native(switch, signal.SIGSTOP)

    def signal_server(self, switch: str, number: signal.Signals) -> None:
        """Stop or continue the P4Runtime server of a softswitch; its native process lives on."""
        child = self._switches[switch].child
        assert child is not None, f"{switch} does not run"
        os.kill(child.pid, number)

    def start(self, switch: str) -> None:
        """Start a switch again, with neither program nor entries."""
        self._switches[switch].start([])

    def restart(self, switch: str) -> None:
        """Kill a switch and start it again at once."""
        self.kill(switch)
        self.start(switch)

    def _signal_native(self, switch: str, number: signal.Signals) -> None:
        child = self._switches[switch].child
        assert child is not None, f"{switch} does not run"
        (native,) = children(child.pid)
        os.kill(native, number)

    def _replace_queue(self, node: str, port: int, queue: str) -> None:
        place = "root" if self._rate(node, port) is None else "parent 1:1 handle 10:"
        self._tc(node, port, "replace", f"{place} {queue}")

    def _tc(self, node: str, port: int, what: str, rest: str) -> None:
        """Change the queueing discipline of a port, in its node's namespace.  Raises WiringError."""
        command = f"tc qdisc {what} dev {node}-eth{port} {rest}".split()
        if node not in self._switches:
            command = ["mnexec", "-a", str(self.network.mininet.get(node).pid), *command]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10,
                              check=False)
        if done.returncode:
            raise WiringError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")

    def _rate(self, node: str, port: int) -> str | None:
        """The rate of the link at a port."""
        return next(link.rate for link in self.network.fabric.links if f"{node}:{port}" in (link.a, link.b))

    def _interface(self, switch: str, port: int) -> str:
        return dict(self._switches[switch].interfaces())[port]

    @staticmethod
    def _execute(command: str) -> None:
        subprocess.run(command.split(), check=True, timeout=10)


def children(parent: int) -> list[int]:
    """The processes that a process has started and that still run.  Raises FileNotFoundError where it is gone."""
    tasks = Path(f"/proc/{parent}/task")
    while True:
        try:
            return [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]
        except FileNotFoundError:  # a thread has ended meanwhile, and left its children to another one
            if not tasks.exists():
                raise
