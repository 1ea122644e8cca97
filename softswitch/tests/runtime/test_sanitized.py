# SPDX-License-Identifier: Apache-2.0
"""The runtime under AddressSanitizer and UBSan: hostile frames, hostile requests, leaks at the end."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from softswitch.compiler.driver import compile_file
from switch_support import NATIVE
from switch_support.probe import PROBE
from switch_support.sanitized import build, run


@pytest.mark.slow
def test_hostile_frames_and_requests_touch_nothing_they_should_not() -> None:
    """Truncated at every byte, oversized, random; requests cut short, random, and valid ones with wrong numbers."""
    run(build(PROBE))


@pytest.mark.parametrize(("source", "frame"), [
    ("traffic.p4", struct.pack(">BBHI", 4, 1, 2, 3) + bytes(40)),
    ("tables.p4", bytes(40)),
], ids=["traffic", "tables"])
def test_compiled_programs_stand_hostile_frames_too(tmp_path: Path, source: str, frame: bytes) -> None:
    """A good frame cut at every byte and with bits turned, between random entries, groups and requests."""
    (tmp_path / "frame").write_bytes(frame)

    run(build(compile_file(NATIVE / source).c_source), str(tmp_path / "frame"), "4000")
