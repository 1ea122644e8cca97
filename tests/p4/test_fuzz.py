# SPDX-License-Identifier: Apache-2.0
"""The switch's engine with the fold, under sanitizers: hostile frames and control requests, each run another seed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from softswitch.compiler.driver import compile_file
from support import ROOT
from switch_support import fuzz
from switch_support.sanitized import build, run

HEADERS = bytes.fromhex(
    "0200000000010200000000020800" "4500043c0000400040110000" "0a0000010a000002" "c00012b704280000"
)
"""Ethernet, IPv4 and UDP of a RoCEv2 packet."""
ROUNDS = 3000
"""Spoiled frames of a run, each in all its lengths; entries, groups and requests come between them."""


@pytest.mark.fuzz
def test_frames_and_requests_touch_nothing_they_should_not(fuzzing: fuzz.Fuzz, tmp_path: Path) -> None:
    """RoCEv2 packets of every opcode that the fold knows, cut at each byte and with bits turned."""
    program = build(compile_file(ROOT / "p4src/netfold.p4").c_source)
    for draw in fuzzing.inputs(1):
        opcode, length = draw.choice([6, 7, 8, 10, 11, 17, 4, 0xFF]), draw.choice([0, 4, 1024])
        bth = struct.pack(">BBHII", opcode, draw.choice([0, 0x40]), 0xFFFF, draw.randrange(1 << 24), draw.randrange(64))
        (tmp_path / "frame").write_bytes(HEADERS + bth + draw.randbytes(length) + bytes(4))
        run(program, str(tmp_path / "frame"), str(ROUNDS), seed=str(draw.randrange(1, 1 << 31)))
