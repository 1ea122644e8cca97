# SPDX-License-Identifier: Apache-2.0
"""Messages on the line between a guest, or another machine, and this one, of many channels at once: a channel is one
command that runs there, or one connection between a socket there and a socket here.

A frame is its channel, its kind and the length of what follows (9 bytes, network order), and then that.
"""

from __future__ import annotations

import collections
import enum
import struct
from collections.abc import Callable, Iterator
from typing import Final

PORT: Final = "netfold"
"""Name of the virtio-serial port that is the line of a guest."""
HEADER: Final = struct.Struct("!IBI")
MOST: Final = 1 << 16
"""Most bytes of a frame's content, except that of RUN."""
MOST_RUN: Final = 1 << 24
"""Most bytes of a RUN, whose environment may be large, of a DESCRIBE, and of a READY."""
MOST_WAITING: Final = 1 << 20
"""Bytes that wait for a program before the other side is told to hold."""
LEAST_WAITING: Final = MOST_WAITING // 4
"""Waiting bytes at which it may send again."""
BUSY_SECONDS: Final = 0.05
"""Seconds until the next attempt to accept a connection when a process has no descriptor left."""
FROM_GUEST: Final = 1 << 31
"""Set in the numbers of channels that the guest opens."""


class Kind(enum.IntEnum):
    """The kind of a frame."""

    RUN = 1
    """To the guest: run a command; JSON {"argv": [...], "env": {...}, "cwd": "..."}."""
    SIGNAL = 2
    """To the guest: send the command's process group a signal; one byte."""
    INPUT = 3
    """To the guest: standard input; empty: its end."""
    OUTPUT = 4
    """From the guest: standard output."""
    ERRORS = 5
    """From the guest: standard error."""
    EXIT = 6
    """From the guest: the command has ended; its status as four bytes with sign, negative: by that signal."""
    OPEN = 7
    """From the guest: a program has connected to a socket; its number among those of this machine, two bytes."""
    DATA = 8
    """Both ways: bytes of such a connection."""
    CLOSE = 9
    """Both ways: such a connection has ended."""
    READY = 10
    """From the guest: the agent runs; the content is the agent's."""
    DESCRIBE = 11
    """To another machine, first of all: its part, as JSON (machines/description.py)."""
    FAILED = 12
    """From another machine: a request failed, or one of its processes has ended; text."""
    CONNECT = 13
    """To another machine: connect this channel to a socket there; the socket's name."""
    ALIVE = 14
    """Both ways, without content: this side is there."""
    HOLD = 15
    """Both ways: send no more data or input of this channel until GO, since it is not read."""
    GO = 16
    """Both ways: they may be sent again."""


class BadFrame(ValueError):
    """The other side does not speak this protocol."""


def pack(channel: int, kind: Kind, content: bytes = b"") -> bytes:
    """One frame."""
    return HEADER.pack(channel, kind, len(content)) + content


class Splitter:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, Kind, bytes]]:
        """Yield the frames (channel, kind, content) that are complete now.  Raises BadFrame."""
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            channel, number, length = HEADER.unpack_from(self._buffer)
            try:
                kind = Kind(number)
            except ValueError:
                raise BadFrame(f"frame of unknown kind {number} on channel {channel:#x}") from None
            most = MOST_RUN if kind in (Kind.RUN, Kind.DESCRIBE, Kind.READY) else MOST
            if length > most:
                raise BadFrame(f"{kind.name} on channel {channel:#x}: expected at most {most} bytes, got {length}")
            if len(self._buffer) < HEADER.size + length:
                return
            content = bytes(self._buffer[HEADER.size : HEADER.size + length])
            del self._buffer[: HEADER.size + length]
            yield channel, kind, content


class Backlog:
    """Data for a program that has not read them yet: a reader that stands still stops its writer, as a pipe does, and
    fills no memory."""

    def __init__(self) -> None:
        self._waiting: collections.deque[bytes] = collections.deque()
        self.size = 0
        """Bytes of it."""
        self.full = False
        """True if the writer was told to hold."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def append(self, data: bytes) -> None:
        """Add what the writer has sent."""
        if data:
            self._waiting.append(data)
            self.size += len(data)

    def give(self, send: Callable[[bytes], int]) -> None:
        """Give the reader as much as it takes; nothing to one that has gone, whose other side tells of its end."""
        try:
            while self._waiting:
                data = self._waiting[0]
                sent = send(data)
                self.size -= sent
                self._waiting.popleft()
                if sent < len(data):
                    self._waiting.appendleft(data[sent:])
        except BlockingIOError:
            pass
        except OSError:
            self._waiting.clear()
            self.size = 0

    def turns(self) -> bool:
        """True if ``full`` has just changed, and the writer is to be told."""
        before, self.full = self.full, self.size > (LEAST_WAITING if self.full else MOST_WAITING)
        return self.full != before
