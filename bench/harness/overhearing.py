# SPDX-License-Identifier: Apache-2.0
"""Overhears the handshakes with which ranks connect to each other, as somebody on the path does (packet(7))."""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
from typing import Final, Self

import msgspec

from netfold.host.mesh.handshake import HELLO, LANE, LANE_MAGIC, MAGIC, PROOF_BYTES

MOST: Final = 64
"""Handshakes that are kept."""
POLL: Final = 0.2
"""Seconds between two looks whether to end."""
_ETH_P_ALL: Final = 0x0003
_SO_ATTACH_FILTER: Final = 26
_LARGEST: Final = HELLO.size + LANE.size
_SMALL_TCP: Final = (  # IPv4, TCP, and from a proof's bytes to those of a hello behind its headers
    (0x28, 0, 0, 12), (0x15, 0, 14, 0x0800), (0x30, 0, 0, 23), (0x15, 0, 12, socket.IPPROTO_TCP), (0xB1, 0, 0, 14),
    (0x50, 0, 0, 26), (0x54, 0, 0, 0xF0), (0x74, 0, 0, 2), (0x02, 0, 0, 0), (0x28, 0, 0, 16), (0x1C, 0, 0, 0),
    (0x61, 0, 0, 0), (0x1C, 0, 0, 0), (0x25, 2, 0, _LARGEST), (0x35, 0, 1, PROOF_BYTES), (0x06, 0, 0, 256),
    (0x06, 0, 0, 0),
)
"""The filter (socket(7), BPF), without which every packet of the fabric would be read here."""


class OverheardHandshake(msgspec.Struct, frozen=True):
    """An initiator's messages to a rank that listens there."""

    listener: tuple[str, int]
    hello: bytes
    proof: bytes

    @property
    def epoch(self) -> int:
        """Epoch of the job."""
        return int(HELLO.unpack(self.hello[: HELLO.size])[1])

    @property
    def listens(self) -> int:
        """The rank that listens there."""
        return int(HELLO.unpack(self.hello[: HELLO.size])[3])

    @property
    def world(self) -> int:
        """Ranks of the job."""
        return int(HELLO.unpack(self.hello[: HELLO.size])[4])


class Overhearing:
    """Listens on all interfaces of this network namespace, in a thread, for as long as the block runs."""

    def __init__(self) -> None:
        self._hellos: dict[tuple[bytes, bytes], bytes] = {}
        """By addresses and ports of the connection."""
        self._found: dict[tuple[bytes, bytes], OverheardHandshake] = {}
        self._ended = threading.Event()

    @property
    def found(self) -> list[OverheardHandshake]:
        """The messages that were overheard until now."""
        return list(self._found.values())

    def __enter__(self) -> Self:
        packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        code = b"".join(struct.pack("=HBBI", *step) for step in _SMALL_TCP)
        buffer = ctypes.create_string_buffer(code, len(code))
        packets.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER,
                           struct.pack("@HP", len(_SMALL_TCP), ctypes.addressof(buffer)))
        packets.settimeout(POLL)
        threading.Thread(target=self._run, args=(packets,), name="overhears", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _run(self, packets: socket.socket) -> None:
        with packets:
            while not self._ended.is_set() and len(self._found) < MOST:
                try:
                    self.hear(packets.recv(256))
                except TimeoutError:
                    continue
                except OSError:  # an interface went down
                    continue

    def hear(self, frame: bytes) -> None:
        """Take one Ethernet frame."""
        if len(frame) < 54 or frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
            return  # it came before the filter
        header = 4 * (frame[14] & 0x0F)
        end = 14 + int.from_bytes(frame[16:18], "big")
        tcp = 14 + header
        said = frame[tcp + (frame[tcp + 12] >> 4) * 4 : end]
        flow = frame[26:34], frame[tcp : tcp + 4]
        if said.startswith((MAGIC, LANE_MAGIC)) and len(said) in (HELLO.size, _LARGEST):
            self._hellos[flow] = said
        elif len(said) == PROOF_BYTES and flow in self._hellos:
            listener = socket.inet_ntoa(frame[30:34]), int.from_bytes(frame[tcp + 2 : tcp + 4], "big")
            self._found[flow] = OverheardHandshake(listener, self._hellos[flow], said)
