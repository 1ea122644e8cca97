# SPDX-License-Identifier: Apache-2.0
"""A host's engines under ASan and UBSan, fed with hostile packets (hostile_host.py)."""

from __future__ import annotations

import os
import subprocess
import sys

from support import TESTS, needs
from switch_support.fuzz import Fuzz


def host_engine(engine: str, fuzzing: Fuzz, inputs: int) -> str:
    """Runs a host's engine on hostile packets (hostile_host.py); returns its figures. Fails at a sanitizer's report."""
    needs.require("sanitizers")
    preload = " ".join(
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    )
    # Python itself loses memory at its end; and its own allocator would hide where one packet ends.
    environment = {**os.environ, "LD_PRELOAD": preload, "PYTHONMALLOC": "malloc", "ASAN_OPTIONS": "detect_leaks=0",
                   "UBSAN_OPTIONS": "print_stacktrace=1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, str(TESTS / "support" / "hostile" / "hostile_host.py"), engine, str(fuzzing.seed),
               str(inputs), str(fuzzing.seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=fuzzing.seconds + 250, env=environment)

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert f"hostile: {engine}: " in done.stdout
    print(done.stdout)
    return done.stdout
