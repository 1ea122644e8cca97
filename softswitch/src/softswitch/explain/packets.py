# SPDX-License-Identifier: Apache-2.0
"""Frames for `softswitch explain`: hexadecimal digits, or the frames of a pcap file."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

MAX_FRAMES = 1000
"""Most frames of a file."""
MAX_BYTES = 64 << 20
"""Most bytes of a file."""
_MAGICS = {0xA1B2C3D4: "microseconds", 0xA1B23C4D: "nanoseconds"}
_ETHERNET = 1


class PacketError(Exception):
    """The input is no packet; the message says what was expected.

    Remedy: give --packet whole bytes in hexadecimal digits, or a pcap file of Ethernet frames that were captured whole
    (`tcpdump -s 0 -w FILE`).
    """


def read(text: str) -> list[bytes]:
    """The frames that an argument stands for: hexadecimal digits (spaces, colons, line breaks and 0x are skipped), or
    the name of a pcap file. Raises PacketError."""
    digits = re.sub(r"0[xX]|[\s:.]", "", text)
    # os.path.exists rather than Path.exists, which raises where the digits are too many for the name of a file
    if re.fullmatch(r"[0-9a-fA-F]+", digits) and not os.path.exists(text):
        if len(digits) % 2:
            raise PacketError(f"--packet: expected two hexadecimal digits a byte, got {len(digits)} digits")
        return [bytes.fromhex(digits)]
    try:
        with Path(text).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise PacketError(f"--packet {text}: expected a pcap file of at most {MAX_BYTES >> 20} MB")
        return _pcap(data, text)
    except OSError as error:
        raise PacketError(f"--packet {text:.100}: expected hexadecimal digits or a pcap file: {error.strerror}"
                          ) from None
    except struct.error:
        raise PacketError(f"--packet {text}: the pcap file ends in the middle of a packet") from None


def _pcap(data: bytes, name: str) -> list[bytes]:
    order = next((o for o in "<>" if len(data) >= 24 and struct.unpack_from(o + "I", data)[0] in _MAGICS), None)
    if order is None:
        newer = data[:4] == b"\x0a\x0d\x0d\x0a"
        raise PacketError(f"--packet {name}: expected hexadecimal digits or a pcap file"
                          + ("; this is pcapng, which `editcap -F pcap` converts" if newer else ""))
    (link,) = struct.unpack_from(order + "I", data, 20)
    if link & 0xFFFF != _ETHERNET:
        raise PacketError(f"--packet {name}: expected frames of Ethernet (link type 1), got link type {link & 0xFFFF}")
    frames: list[bytes] = []
    at = 24
    while at < len(data):
        if len(frames) == MAX_FRAMES:
            raise PacketError(f"--packet {name}: expected at most {MAX_FRAMES} packets, got more; "
                              f"`editcap -r {name} PART 1-{MAX_FRAMES}` cuts a file")
        captured, length = struct.unpack_from(order + "8xII", data, at)
        frame = data[at + 16 : at + 16 + captured]
        if len(frame) < captured:
            raise struct.error
        if captured < length:
            raise PacketError(f"--packet {name}: packet {len(frames) + 1} was cut to {captured} of {length} bytes when "
                              "it was captured")
        frames.append(frame)
        at += 16 + captured
    if not frames:
        raise PacketError(f"--packet {name}: there is no packet in it")
    return frames
