# SPDX-License-Identifier: Apache-2.0
"""The shells of Mininet's nodes, through which Mininet runs commands in their namespaces."""

from __future__ import annotations

from typing import Final

from mininet.node import Node

from netfold.topo.processes.failures import WiringError
from netfold.topo.processes.forks import readable

LOOK: Final = 0.2
"""Seconds between two looks whether a shell that says nothing has ended."""


class WatchedShell(Node):  # type: ignore[misc]
    """A node whose shell may end, where Mininet's own waits for its output for ever.

    A shell is in the launcher's process group until it has a session of its own, so Ctrl-C may end it.  The launcher
    gets Ctrl-C as well, but that wakes no read of its main thread if the kernel gave the signal to another one.
    """

    def read(self, size: int = 1024) -> str:
        """The next output of the shell, at most ``size`` characters; waits for some.  Raises WiringError if it has
        ended."""
        while len(self.readbuf) < size and not readable(self.stdout.fileno(), LOOK):
            if (status := self.shell.poll()) is not None:
                raise WiringError(f"node {self.name}: expected its shell (process {self.pid}) to run as long as the "
                                  f"fabric, but it ended with status {status}: start the fabric again")
        return str(super().read(size))
