# SPDX-License-Identifier: Apache-2.0
"""Frames and values for a program that nobody has described: what networks carry, with numbers of the program's."""

from __future__ import annotations

import random
import re
import struct

from switch_support.checksum import checksum

_MACS = (0x080000000111, 0x080000000222, 0x000000000101, 0x00000A000001, 0xFFFFFFFFFFFF, 0x01005E000001)
_ADDRESSES = (0x0A000101, 0x0A000202, 0x0A000303, 0x0A000001, 0x0A000002, 0xC0A80101, 0xE0000001)
_ADDRESSES6 = (0x20010DB8 << 96 | 1, 0x20010DB8 << 96 | 2, 0xFE80 << 112 | 1, 0xFC00 << 112 | 7)
_PORTS = (53, 80, 443, 1234, 4321, 4791, 2152, 4789, 5000, 8080)
_TYPES = (0x0800, 0x0800, 0x0800, 0x86DD, 0x8100, 0x0806, 0x8847, 0x88A8)
_PROTOCOLS = (6, 17, 6, 17, 1, 4, 41, 47)
_NUMBER = re.compile(r"\b(?:\d+[ws])?(0[xX][0-9a-fA-F_]+|0[bB][01_]+|\d[\d_]*)\b")


class Pool:
    """Draws frames and the values of entries from the same few numbers."""

    def __init__(self, text: str, rng: random.Random) -> None:
        """text: the program's; the numbers in it are the ones that its parser and its conditions compare with."""
        self._rng = rng
        found = set()
        for match in _NUMBER.finditer(re.sub(r"^#line.*$", "", text, flags=re.MULTILINE)):
            word = match[1].replace("_", "")
            found.add(int(word, 0) if not word.isdigit() else int(word))
        numbers = sorted(found)
        self._bytes = [n for n in numbers if 1 < n < 256]
        self._words = [n for n in numbers if 0x0100 <= n < 0x10000]
        self._types = [n for n in numbers if 0x0600 <= n < 0x10000] or list(_TYPES)
        self._longs = [n for n in numbers if 0x10000 <= n < 1 << 32]

    def value(self, bits: int) -> int:
        """A value of so many bits, as frames have them."""
        rng = self._rng
        ones = (1 << bits) - 1
        if bits == 48:
            return rng.choice(_MACS)
        if bits == 32:
            return rng.choice([*_ADDRESSES, *_ADDRESSES, rng.randrange(4), *self._longs[:4]])
        if bits == 128:
            return rng.choice(_ADDRESSES6)
        if bits == 16:
            return rng.choice([*_PORTS, *_TYPES[2:], *self._words[:12], rng.randrange(8), 0, 1])
        if bits == 8:
            return rng.choice([*_PROTOCOLS, *self._bytes[:12], 0, 1, 2, 64])
        return rng.choice([0, 1, 2, 3, rng.randrange(16), rng.randrange(ones + 1), ones]) & ones

    def frame(self) -> bytes:
        """A frame: mostly well-formed, at times of the program's own types, cut short or without any sense."""
        rng = self._rng
        kind = rng.random()
        if kind < 0.08:
            return self._noise(rng.choice([1, 8, 14, 15, 20, 34, 60, 100, 300]))
        head = self._mac() + self._mac()
        ethertype = rng.choice(_TYPES) if rng.random() < 0.7 else rng.choice(self._types)
        frame = head + self._after_type(ethertype)
        if kind < 0.15:
            return frame[: rng.randrange(1, len(frame) + 1)]
        return frame

    def _mac(self) -> bytes:
        return self._rng.choice(_MACS).to_bytes(6, "big")

    def _noise(self, length: int) -> bytes:
        """Bytes that are small or numbers of the program more often than chance has it."""
        rng = self._rng
        made = bytearray()
        while len(made) < length:
            draw = rng.random()
            if draw < 0.35:
                made.append(rng.randrange(4))
            elif draw < 0.6 and self._bytes:
                made.append(rng.choice(self._bytes))
            elif draw < 0.75 and self._words:
                made += rng.choice(self._words).to_bytes(2, "big")
            elif draw < 0.8:
                made += rng.choice(_ADDRESSES).to_bytes(4, "big")
            else:
                made.append(rng.randrange(256))
        return bytes(made[:length])

    def _after_type(self, ethertype: int, depth: int = 0) -> bytes:
        rng = self._rng
        word = struct.pack("!H", ethertype)
        inner = rng.choice((0x0800, 0x86DD, 0x0800, *self._types[:6]))
        if ethertype == 0x0800:
            return word + self._ipv4(depth)
        if ethertype == 0x86DD:
            return word + self._ipv6(depth)
        if ethertype in (0x8100, 0x88A8) and depth < 3:
            tag = rng.randrange(8) << 13 | rng.choice((0, 1, 2, 10, 100, 4095))
            return word + struct.pack("!H", tag) + self._after_type(inner, depth + 1)
        if ethertype == 0x0806:
            return word + struct.pack("!HHBBH6sI6sI", 1, 0x0800, 6, 4, rng.choice((1, 2)), self._mac(),
                                      rng.choice(_ADDRESSES), self._mac(), rng.choice(_ADDRESSES)) + bytes(18)
        if ethertype == 0x8847:
            labels = [rng.choice((16, 17, 100, 1000)) << 12 | 64 for _ in range(rng.randint(1, 3))]
            return word + b"".join(struct.pack("!I", label | (i == len(labels) - 1) << 8)
                                   for i, label in enumerate(labels)) + self._ipv4(depth + 1)
        return word + self._noise(rng.choice((4, 20, 40, 80, 150)))

    def _ipv4(self, depth: int) -> bytes:
        rng = self._rng
        options = bytes(rng.choice((0, 0, 0, 0, 4, 8)))
        protocol = rng.choice(_PROTOCOLS) if rng.random() < 0.8 or not self._bytes else rng.choice(self._bytes)
        payload = self._transport(protocol, depth)
        head = struct.pack("!BBHHHBBHII", 0x45 + len(options) // 4, rng.choice((0, 1, 2, 3, 0xB8)),
                           20 + len(options) + len(payload), rng.randrange(1 << 16), rng.choice((0, 0x4000)),
                           rng.choice((64, 64, 1, 0, 255)), protocol, 0, rng.choice(_ADDRESSES),
                           rng.choice(_ADDRESSES)) + options
        right = checksum(head) if rng.random() < 0.9 else rng.randrange(1 << 16)
        return head[:10] + struct.pack("!H", right) + head[12:] + payload

    def _ipv6(self, depth: int) -> bytes:
        rng = self._rng
        protocol = rng.choice((*_PROTOCOLS, 58, 43)) if rng.random() < 0.85 else rng.randrange(256)
        payload = self._transport(protocol, depth)
        return struct.pack("!IHBB", 6 << 28 | rng.randrange(1 << 20), len(payload), protocol,
                           rng.choice((64, 1, 0))) + b"".join(
            rng.choice(_ADDRESSES6).to_bytes(16, "big") for _ in range(2)) + payload

    def _transport(self, protocol: int, depth: int) -> bytes:
        rng = self._rng
        ports = [rng.choice(_PORTS) if rng.random() < 0.6 or not self._words else rng.choice(self._words)
                 for _ in range(2)]
        rest = self._noise(rng.choice((0, 4, 16, 18, 60, 200, 1000)))
        if protocol == 6:
            options = bytes(rng.choice((0, 0, 0, 4, 12)))
            return struct.pack("!HHIIBBHHH", *ports, rng.randrange(1 << 32), rng.randrange(1 << 32),
                               5 + len(options) // 4 << 4, rng.choice((2, 16, 18, 24, 17, 4)), 1024,
                               rng.randrange(1 << 16), 0) + options + rest
        if protocol == 17:
            return struct.pack("!HHHH", *ports, 8 + len(rest), rng.choice((0, rng.randrange(1 << 16)))) + rest
        if protocol in (1, 58):
            return struct.pack("!BBHHH", rng.choice((0, 8, 128)), 0, rng.randrange(1 << 16), 1, 1) + rest
        if protocol == 4 and depth < 2:
            return self._ipv4(depth + 1)
        if protocol == 41 and depth < 2:
            return self._ipv6(depth + 1)
        return self._noise(rng.choice((0, 8, 24))) + rest
