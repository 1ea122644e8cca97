# SPDX-License-Identifier: Apache-2.0
"""Byte strings of P4Runtime (specification 8.4): big endian, canonical without leading zero bytes, never empty."""

from __future__ import annotations

from softswitch.engine.errors import InvalidArgument, OutOfRange


def encode(value: int) -> bytes:
    """Encodes a number in its shortest form; zero is one zero byte."""
    return value.to_bytes((value.bit_length() + 7) // 8 or 1, "big")


def decode(data: bytes, bits: int, what: str) -> int:
    """Decodes a number. Raises InvalidArgument for no bytes, and OutOfRange for a value of more than `bits` bits."""
    if not data:
        raise InvalidArgument(f"{what}: a byte string must not be empty; zero is one zero byte")
    value = int.from_bytes(data, "big")
    if value >> bits:
        raise OutOfRange(f"{what}: {data.hex()} does not fit into {bits} bits")
    return value
