# SPDX-License-Identifier: Apache-2.0
"""Cuts the super-packets of segmentation offload into the frames that a wire would have shown.

A packet socket with PACKET_VNET_HDR gives each frame behind a virtio-net header (struct virtio_net_hdr of
the kernel) that says how large its segments are, and where a checksum is still to be filled in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

HEADER: Final = struct.Struct("=BBHHHH")
"""flags, gso_type, hdr_len, gso_size, csum_start, csum_offset."""
NEEDS_CHECKSUM: Final = 1
_GSO_NONE, _GSO_TCPV4, _GSO_UDP_L4 = 0, 1, 5
_ETHERNET: Final = 14
_TCP_FIN_PSH: Final = 0x09


def frames(data: bytes | memoryview) -> Iterator[bytes]:
    """The Ethernet frames that a packet socket's datagram stands for.  What is not IPv4, or of a kind of offload that
    is not known here, comes whole."""
    flags, kind, _, size, start, offset = HEADER.unpack_from(data)
    frame = bytes(data[HEADER.size :])
    if kind == _GSO_NONE or size == 0:
        if flags & NEEDS_CHECKSUM and start + offset + 2 <= len(frame):
            frame = _checksummed(frame, start, offset)
        yield frame
        return
    ip_end = _ETHERNET + (frame[_ETHERNET] & 0x0F) * 4 if len(frame) > _ETHERNET + 20 else 0
    if frame[12:14] != b"\x08\x00" or kind & 0x7F not in (_GSO_UDP_L4, _GSO_TCPV4) or start != ip_end:
        yield frame
        return
    udp = kind & 0x7F == _GSO_UDP_L4
    headers = ip_end + (8 if udp else (frame[ip_end + 12] >> 4) * 4)
    identification = int.from_bytes(frame[18:20], "big")
    count = max(1, -(-(len(frame) - headers) // size))
    for number in range(count):
        head = bytearray(frame[:headers])
        payload = frame[headers + number * size : headers + (number + 1) * size]
        struct.pack_into("!HH", head, 16, headers - _ETHERNET + len(payload), (identification + number) & 0xFFFF)
        head[24:26] = bytes(2)
        struct.pack_into("!H", head, 24, _complement(head[_ETHERNET:ip_end]))
        if udp:
            struct.pack_into("!H", head, ip_end + 4, 8 + len(payload))
        else:
            sequence = int.from_bytes(head[ip_end + 4 : ip_end + 8], "big")
            struct.pack_into("!I", head, ip_end + 4, (sequence + number * size) & 0xFFFFFFFF)
            if number < count - 1:
                head[ip_end + 13] &= ~_TCP_FIN_PSH & 0xFF
        at = ip_end + (6 if udp else 16)
        head[at : at + 2] = bytes(2)
        pseudo = head[26:34] + struct.pack("!HH", head[23], headers - ip_end + len(payload))
        struct.pack_into("!H", head, at, _complement(pseudo + head[ip_end:] + payload) or 0xFFFF)
        yield bytes(head) + payload


def _checksummed(frame: bytes, start: int, offset: int) -> bytes:
    """The frame with its checksum filled in; its field has the sum of the pseudo header so far."""
    value = _complement(frame[start:]) or 0xFFFF
    return frame[: start + offset] + struct.pack("!H", value) + frame[start + offset + 2 :]


def _complement(data: bytes | bytearray) -> int:
    """The Internet checksum (RFC 1071): the sum of 16-bit words modulo 2^16 - 1, since 2^16 is 1 there."""
    total = int.from_bytes(bytes(data) + bytes(len(data) % 2), "big") % 0xFFFF
    return 0xFFFF - total
