# SPDX-License-Identifier: Apache-2.0
"""Finds a native process that lives but does nothing: stopped by a signal, or caught in an endless loop.

A process that gives no sign of life for SILENCES * WITHIN seconds is reported once.  The waits are counted rather than
the time, so that a machine that stands still as a whole, whose clock jumps ahead, costs one wait and not a switch.  A
process under a debugger is never reported.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from softswitch.engine.errors import Internal

PERIOD = 1.0
"""Seconds between questions to a process that answers."""
WITHIN = 0.5
"""Seconds that a process has for each answer."""
SILENCES = 6
"""Questions without an answer, one after another, after which a process counts as hung."""

_STATES = {"T": "stopped by a signal", "D": "waits for a device", "R": "runs without an end", "S": "sleeps"}


class Watchdog:
    """Watches one process on a thread of its own until it ends.

    answers  asks the process for a sign of life, and returns whether there was one within so many seconds; raises
             Internal once the process has ended
    on_hang  is called at most once, with what is wrong in words
    """

    def __init__(self, pid: int, answers: Callable[[float], bool], on_hang: Callable[[str], None]) -> None:
        self._pid = pid
        self._answers = answers
        self._on_hang = on_hang
        threading.Thread(target=self._watch, name="softswitch-watchdog", daemon=True).start()

    def _watch(self) -> None:
        silent = 0
        while True:
            if not silent:
                time.sleep(PERIOD)
            try:
                silent = 0 if self._answers(WITHIN) else silent + 1
            except Internal:
                return
            if silent == SILENCES:
                state, debugger = _state(self._pid)
                if not debugger:
                    self._on_hang(f"it gave no sign of life for {SILENCES * WITHIN:g} s; its state is {state}")
                    return
                silent = 0


def _state(pid: int) -> tuple[str, bool]:
    """The kernel's state of a process (proc(5), /proc/PID/status), and True if a debugger is attached to it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return "unknown", False
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    letter = fields.get("State", "?").strip()[:1]
    return f"{letter} ({_STATES.get(letter, 'see proc(5)')})", fields.get("TracerPid", "0").strip() != "0"
