# SPDX-License-Identifier: Apache-2.0
"""The threads of the server of faults."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from netfold.topo.faults.board import FaultBoard
from netfold.topo.faults.server import FaultServer
from netfold.wire import faults
from support import needs


class Server(FaultServer):
    """A server of no fabric."""

    def tap(self, request: faults.Tap) -> tuple[faults.Answer, Sequence[int]]:
        """Not asked here."""
        raise NotImplementedError

    def record(self, request: faults.RecordPacket) -> faults.RecordedPacket:
        """Not asked here."""
        raise NotImplementedError


def test_ctrl_c_is_never_taken_by_a_thread_of_the_server() -> None:
    """The launcher's main thread may wait in a read, which goes on if another thread takes the signal."""
    before = set(threading.enumerate())
    plans: Any = SimpleNamespace(plan=None)
    with tempfile.TemporaryDirectory() as folder, Server([], plans, Path(folder) / "faults"):
        threads = set(threading.enumerate()) - before
        blocked = {thread.name: _blocked(thread) for thread in threads}
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ()), "it can end the launcher again"
    assert set(blocked) == {"fault timers", "serves faults"}
    assert all(signal.SIGINT in numbers for numbers in blocked.values()), blocked


@pytest.mark.parametrize("target", ["rank3", "leaf1"])
def test_a_stop_ends_where_what_it_stopped_has_ended(target: str) -> None:
    """The fault of a rank or switch that was killed while it stood still is over, and the next one may come."""
    pytest.importorskip("mininet.net", reason=needs.reason("mininet"))
    from netfold.topo.faults.plans import FaultPlans

    with tempfile.TemporaryDirectory() as controller:

        def start() -> subprocess.Popen[bytes]:
            environment = {"NETFOLD_JOB": "run", "RANK": "3", "NETFOLD_CONTROLLER": controller}
            return subprocess.Popen(["sleep", "600"], env=os.environ | environment)

        child = start()
        switches = [SimpleNamespace(name="leaf1", child=child)]
        fabric = SimpleNamespace(controllers=controller, switches=switches)
        network: Any = SimpleNamespace(fabric=fabric, switches=switches)
        board = FaultBoard(FaultPlans([network]).plan, lambda: 0.0)
        try:
            number, text = board.inject(faults.Inject("stop", target))
            child.kill()
            child.wait()
            assert board.undo(number) == [text]
            switches[0].child = child = start()
            assert board.inject(faults.Inject("stop", target))[1] == text
        finally:
            child.kill()
            child.wait()


def _blocked(thread: threading.Thread) -> set[int]:
    """The signals that a thread blocks (proc(5))."""
    lines = Path(f"/proc/self/task/{thread.native_id}/status").read_text().splitlines()
    mask = int(next(line.split()[1] for line in lines if line.startswith("SigBlk:")), 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}
