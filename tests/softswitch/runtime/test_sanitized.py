# SPDX-License-Identifier: Apache-2.0
"""The runtime under AddressSanitizer and UBSan: hostile frames, hostile requests, leaks at the end."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from softswitch.compiler.driver import compile_file
from support import ROOT
from support.probe import PROBE
from support.sanitized import build, run


def test_hostile_frames_and_requests_touch_nothing_they_should_not() -> None:
    """Truncated at every byte, oversized, random; requests cut short, random, and valid ones with wrong numbers."""
    run(build(PROBE))


fold_frame = (
    bytes.fromhex("0200000000010200000000020800" "4500043c000040004011" "0000" "0a0000010a000002" "c00012b704280000")
    + bytes.fromhex("0740ffff" "00000005" "00000009") + bytes(1024) + bytes(4)
)
"""A RoCEv2 WRITE MIDDLE of 1024 bytes."""


@pytest.mark.parametrize(("source", "frame"), [
    ("tests/support/native/traffic.p4", struct.pack(">BBHI", 4, 1, 2, 3) + bytes(40)),
    ("tests/support/native/tables.p4", bytes(40)),
    ("p4src/netfold.p4", fold_frame),
], ids=["traffic", "tables", "netfold"])
def test_compiled_programs_stand_hostile_frames_too(tmp_path: Path, source: str, frame: bytes) -> None:
    """A good frame cut at every byte and with bits turned, between random entries, groups and requests."""
    (tmp_path / "frame").write_bytes(frame)

    run(build(compile_file(ROOT / source).c_source), str(tmp_path / "frame"), "4000")
