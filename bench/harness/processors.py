# SPDX-License-Identifier: Apache-2.0
"""Processor time of a process and of all processes that it has started."""

from __future__ import annotations

from pathlib import Path

from netfold.topo.faults.injector import children


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for child in children(pid):
        found += family(child)
    return found


def cpu_seconds(pid: int) -> float:
    """Seconds of processor time of all threads of a process and of its descendants, with a precision of nanoseconds.

    A softswitch processes packets in a child process (softswitch/p4runtime/process.py).
    """
    return sum(int((task / "schedstat").read_text().split()[0])
               for one in family(pid) for task in Path(f"/proc/{one}/task").iterdir()) / 1e9
