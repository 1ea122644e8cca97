# SPDX-License-Identifier: Apache-2.0
"""Frames for native/probe.c, a hand-written switch program: they contain what the switch shall do."""

from __future__ import annotations

import struct
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

PROBE = Path(__file__).parent / "native" / "probe.c"


class Op(IntEnum):
    """Operations of the probe's ingress (the enum in probe.c)."""

    FORWARD = 0
    MULTICAST = 1
    DROP = 2
    CLONE = 3
    RESUBMIT = 4
    RECIRCULATE = 5
    EXACT = 6
    LPM = 7
    TERNARY = 8
    RANGE = 9
    OPTIONAL = 10
    SELECT = 11
    REGISTER = 12
    COUNT = 13
    METER = 14
    DIGEST = 15
    TRUNCATE = 16
    HASH = 17
    RANDOM = 18
    VALUE_SET = 19
    CLONE_EGRESS = 20
    LOG = 21
    FOREVER = 22
    GROW = 23
    WIDE = 25
    CONST = 26


TELL = 0x80
"""Added to the op: egress writes instance_type to a, metadata tag or egress_rid to b, packet_length to c."""


class Probe(NamedTuple):
    """The header of a probe frame, and what follows it."""

    op: int
    a: int = 0
    b: int = 0
    c: int = 0
    rest: bytes = b""

    def __bytes__(self) -> bytes:
        return struct.pack(">BBHI", self.op, self.a, self.b, self.c) + self.rest


def probe(op: int, a: int = 0, b: int = 0, c: int = 0, rest: bytes = b"") -> bytes:
    """Make a frame for the probe."""
    return bytes(Probe(op, a, b, c, rest))


def read(frame: bytes) -> Probe:
    """The probe's header of a frame that came out."""
    op, a, b, c = struct.unpack(">BBHI", frame[:8])
    return Probe(op, a, b, c, frame[8:])
