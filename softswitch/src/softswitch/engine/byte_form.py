# SPDX-License-Identifier: Apache-2.0
"""Byte form, in which the control protocol carries the values of fields (runtime/softswitch.h).

Each field takes ceil(bits/8) bytes, big endian, and fields follow one another without padding.
"""

from __future__ import annotations

from collections.abc import Sequence

from softswitch.engine.errors import InvalidArgument


def width(bits: int) -> int:
    """Bytes of a field with so many bits."""
    return (bits + 7) // 8


def pack_fields(values: Sequence[int], bits: Sequence[int], what: str) -> bytes:
    """Encodes integers. Raises InvalidArgument where one does not fit its field, or their number is wrong."""
    if len(values) != len(bits):
        raise InvalidArgument(f"{what}: expected {len(bits)} values, got {len(values)}")
    for i, (value, size) in enumerate(zip(values, bits, strict=True)):
        if value < 0 or value.bit_length() > size:
            raise InvalidArgument(f"{what}: value {i} is {value:#x}, which does not fit bit<{size}>")
    return b"".join(value.to_bytes(width(size), "big") for value, size in zip(values, bits, strict=True))


def unpack_fields(data: bytes, bits: Sequence[int]) -> list[int]:
    """Decodes integers."""
    values, at = [], 0
    for size in bits:
        values.append(int.from_bytes(data[at : at + width(size)], "big"))
        at += width(size)
    return values
