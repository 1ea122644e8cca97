# SPDX-License-Identifier: Apache-2.0
"""The shells of Mininet's nodes, through which Mininet runs commands in their namespaces."""

from __future__ import annotations

import subprocess
from typing import Any, Final

from mininet.node import Node

from netfold.topo.processes.failures import WiringError
from netfold.topo.processes.forks import readable

LOOK: Final = 0.2
"""Seconds between two looks whether a shell that says nothing has ended."""
COMMAND_SECONDS: Final = 30.0
"""Seconds for a command outside of the shell."""


class WatchedShell(Node):  # type: ignore[misc]
    """A node whose shell may end, where Mininet's own waits for its output for ever.

    A shell is in the launcher's process group until it has a session of its own, so Ctrl-C may end it.  The launcher
    gets Ctrl-C as well, but that wakes no read of its main thread if the kernel gave the signal to another one.
    """

    interrupted = False
    """True once a command was left before its end, which Mininet's own shell then waits for for ever."""

    def cmd(self, *words: Any, **params: Any) -> str | None:
        """The output of a command.  Once one was left before its end, as by Ctrl-C, each runs in a process of its own,
        so that the node's links can be deleted; in a namespace whose shell has ended there is nothing left to do.

        Raises WiringError.
        """
        if not self.interrupted:
            try:
                said: str | None = super().cmd(*words, **params)
                return said
            except BaseException:
                self.interrupted = True
                raise
        if self.inNamespace and (self.shell is None or self.shell.poll() is not None):
            return None
        parts = words[0] if len(words) == 1 and isinstance(words[0], list) else words
        inside = ["mnexec", "-a", str(self.pid)] if self.inNamespace else []
        return subprocess.run(
            [*inside, "sh", "-c", " ".join(map(str, parts))], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=COMMAND_SECONDS, check=False,
        ).stdout

    def read(self, size: int = 1024) -> str:
        """The next output of the shell, at most ``size`` characters; waits for some.  Raises WiringError if it has
        ended."""
        while len(self.readbuf) < size and not readable(self.stdout.fileno(), LOOK):
            if (status := self.shell.poll()) is not None:
                raise WiringError(f"node {self.name}: expected its shell (process {self.pid}) to run as long as the "
                                  f"fabric, but it ended with status {status}: start the fabric again")
        return str(super().read(size))
