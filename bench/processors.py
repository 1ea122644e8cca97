# SPDX-License-Identifier: Apache-2.0
"""Processor time of processes and of all that they have started."""

from __future__ import annotations

from pathlib import Path


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += family(int(child))
    return found


def cpu_seconds(pid: int) -> float:
    """What the scheduler has charged the threads of a process and of its descendants, in nanoseconds' precision.

    A softswitch's packets are its child's (softswitch/p4runtime/process.py).
    """
    return sum(int((task / "schedstat").read_text().split()[0])
               for one in family(pid) for task in Path(f"/proc/{one}/task").iterdir()) / 1e9
