# SPDX-License-Identifier: Apache-2.0
"""Frames in parts that wait at a port, under AddressSanitizer and UBSan."""

from __future__ import annotations

import subprocess

from cbuild import cc
from softswitch.engine.linking import RUNTIME
from switch_support import needs
from switch_support.probe import PROBE
from switch_support.sanitized import FLAGS, SEED


def test_frames_that_wait_outlive_what_they_referred_to() -> None:
    """Committed, sent and put aside in random order, they are the bytes that they were; nothing outside is touched."""
    needs.require("sanitizers")
    program = cc.build([PROBE.with_name("queue_fuzz.c"), RUNTIME / "queue.c"], kind="exe", name="queue-fuzz",
                       include=[RUNTIME], flags=FLAGS, compiler=cc.Compiler(("gcc",), "sanitized"))

    done = subprocess.run([program, SEED], capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
