# SPDX-License-Identifier: Apache-2.0
"""Fork servers for sandboxes (topo/processes/fork_server.py).

They are forked from processes that have imported everything, which all workers of a run share.

    pytest --> warm process --fork--> goes into a sandbox --fork--> fork server there --fork--> switch or rank

Each sandbox is new, and so are its fork servers, which would import all again, for a second of processor time a test.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Final

import support
from netfold.topo.network import switches
from netfold.topo.processes import forked_program, forks, ranks
from netfold.topo.processes.forks import ChildProcess, Forked
from support import TORCH
from support.sandboxes import warm_process
from support.sandboxes.warm_process import KINDS

RANKS: Final = (*forked_program.JOINING, "netfold.host.api.several_rails", "netfold.host.innet.parallel", "numpy",
                "numpy.random", "netfold.topo.processes.rank_program")
IMPORTED: Final = {ranks.FORKS.modules: RANKS, TORCH: (*RANKS, *TORCH), switches.FORKS.modules: switches.FORKS.modules}
"""What processes import for each kind of fork servers, by what those are to import."""
START_SECONDS: Final = 180.0
"""Seconds for a process to import torch, on a machine that may be busy with others."""


class WarmProcesses:
    """The warm processes of a run of tests, which its workers share, and which end with it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="netfold-warm-")
        self.folder = self._folder.name
        """The folder in which they listen."""
        self._lives: list[socket.socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for kind, (modules, imported) in enumerate(IMPORTED.items()):
            inherited = support.environment() if modules == TORCH else os.environ
            life, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._lives.append(life)
            with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(f"{self.folder}/{kind}")
                listener.listen()
                files = theirs.fileno(), listener.fileno()
                self._processes.append(subprocess.Popen(
                    [sys.executable, warm_process.__file__, *map(str, files), *imported], stdin=subprocess.DEVNULL,
                    pass_fds=files, env={**inherited, **ranks.SETTINGS}, start_new_session=True,
                ))

    def close(self) -> None:
        """End them."""
        for life in self._lives:
            life.close()
        for process in self._processes:
            process.wait(forks.STOP_SECONDS)
        self._folder.cleanup()


class Warm:
    """The lines of a worker to the warm processes, which listen in ``folder``."""

    def __init__(self, folder: str) -> None:
        self._lines: dict[tuple[str, ...], socket.socket] = {}
        for kind, modules in enumerate(IMPORTED):
            line = self._lines[modules] = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            line.connect(f"{folder}/{kind}")

    def close(self) -> None:
        """Close them."""
        for line in self._lines.values():
            line.close()

    def serve_here(self) -> None:
        """From now on, fork servers of this process, which is in a sandbox, come from here."""
        forks.launch = self._launch

    def serve_torch(self) -> None:
        """From now on, fork servers of this process that import torch come from here."""
        others = forks.launch

        def launch(modules: Sequence[str], environment: Mapping[str, str]) -> tuple[socket.socket, ChildProcess]:
            return (self._launch if modules == TORCH else others)(modules, environment)

        forks.launch = launch

    def _launch(self, modules: Sequence[str], environment: Mapping[str, str]) -> tuple[socket.socket, ChildProcess]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in KINDS]
        with theirs, open(os.memfd_create("request"), "wb", buffering=0) as text:
            text.write(json.dumps([os.getcwd(), {**os.environ, **environment}]).encode())
            socket.send_fds(self._lines[tuple(modules)], [b"!"], [text.fileno(), theirs.fileno(), *given])
        for file in given:
            os.close(file)
        ours.settimeout(START_SECONDS)
        pid = int(ours.recv(64))
        ours.settimeout(None)
        return ours, Forked(pid, socket.socketpair()[0], ["fork server"])
