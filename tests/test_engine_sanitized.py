# SPDX-License-Identifier: Apache-2.0
"""The runtime under AddressSanitizer and UBSan: hostile frames, hostile requests, leaks at the end."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from helpers_probe import PROBE

from softswitch import cc
from softswitch.engine import CORE, RUNTIME

HOSTILE = PROBE.with_name("hostile.c")


def test_hostile_frames_and_requests_touch_nothing_they_should_not(tmp_path: Path) -> None:
    """Truncated at every byte, oversized, random; requests cut short, random, and valid ones with wrong numbers."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("needs gcc with its sanitizers")
    compiler = cc.Compiler((gcc,), "sanitized")
    flags = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    try:
        program = cc.build([HOSTILE, PROBE, *(RUNTIME / file for file in CORE)], kind="exe", name="hostile",
                           include=[RUNTIME], flags=flags, compiler=compiler)
    except cc.BuildError as error:
        if "san" in str(error) and "cannot find" in str(error):
            pytest.skip("this gcc has no sanitizer libraries")
        raise
    done = subprocess.run([program, "20261121"], capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert "frames" in done.stdout
