# SPDX-License-Identifier: Apache-2.0
"""Writes captures in pcapng (IETF draft-ietf-opsawg-pcapng): a section, interfaces with names and descriptions, packets
with their direction, and at the end what each interface has received and dropped.
"""

from __future__ import annotations

import struct
from typing import BinaryIO, Final

MAGIC: Final = 0x1A2B3C4D
SECTION, INTERFACE, PACKET, STATISTICS = 0x0A0D0D0A, 1, 6, 5
ETHERNET: Final = 1
NANOSECONDS: Final = 9
"""Unit of time stamps: 10**-9 s (if_tsresol)."""
MAX_OPTION: Final = 0xFFFF

_BLOCK: Final = struct.Struct("<II")
_PACKET: Final = struct.Struct("<IIIIIII")
_FLAGS: Final = struct.Struct("<HHIHHI")


class PcapngWriter:
    """One capture file, or stream; what it was told before is not repeated in the next file.

    file    where blocks are written
    about   what has captured, for the section's comment
    """

    def __init__(self, file: BinaryIO, about: str) -> None:
        self._file = file
        self.bytes = 0
        """Bytes written."""
        self._interfaces = 0
        self._block(SECTION, struct.pack("<IHHq", MAGIC, 1, 0, -1) + _options((1, about.encode())))

    def interface(self, name: str, description: str, rate: int | None, snap: int) -> int:
        """Describe an interface, and return its number.

        rate  bit/s; None: not known
        snap  bytes kept of each packet
        """
        said = [(2, name.encode()), (3, description.encode()[:MAX_OPTION]), (9, bytes([NANOSECONDS]))]
        if rate is not None:
            said.insert(2, (8, struct.pack("<Q", rate)))
        self._block(INTERFACE, struct.pack("<HHI", ETHERNET, 0, snap) + _options(*said))
        self._interfaces += 1
        return self._interfaces - 1

    def packet(self, interface: int, nanoseconds: int, frame: bytes, length: int, *, outbound: bool) -> None:
        """Write a packet.

        nanoseconds  since 1970
        frame        what was kept of it
        length       its bytes on the wire
        outbound     whether it left by the interface
        """
        kept = len(frame)
        padding = -kept % 4
        size = 28 + kept + padding + _FLAGS.size
        data = b"".join((
            _PACKET.pack(PACKET, size, interface, nanoseconds >> 32, nanoseconds & 0xFFFFFFFF, kept, length),
            frame, bytes(padding), _FLAGS.pack(2, 4, 2 if outbound else 1, 0, 0, size)))
        self._file.write(data)
        self.bytes += len(data)

    def statistics(self, interface: int, nanoseconds: int, received: int, dropped: int) -> None:
        """Say what an interface has received, and dropped since nobody read it in time."""
        self._block(STATISTICS, struct.pack("<III", interface, nanoseconds >> 32, nanoseconds & 0xFFFFFFFF)
                    + _options((4, struct.pack("<Q", received)), (5, struct.pack("<Q", dropped))))

    def _block(self, kind: int, body: bytes) -> None:
        size = 12 + len(body)
        self._file.write(_BLOCK.pack(kind, size) + body + struct.pack("<I", size))
        self.bytes += size


def _options(*options: tuple[int, bytes]) -> bytes:
    said = b"".join(struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4) for code, value in options)
    return said + struct.pack("<HH", 0, 0)
