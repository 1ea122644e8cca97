# SPDX-License-Identifier: Apache-2.0
"""The Internet checksum in plain Python."""

from __future__ import annotations

import struct


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071): 0 over data that holds its own."""
    total: int = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + bytes(len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
