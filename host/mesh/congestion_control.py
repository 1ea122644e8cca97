# SPDX-License-Identifier: Apache-2.0
"""The TCP congestion control of a connection between ranks.

Where the machine's is BBR, short messages have another one.  BBR spreads what is sent over time, by a rate that it
takes from messages before: between the short messages of a collective a connection then stands still for up to 40 ms,
with nothing in flight and its windows open.  Long messages keep BBR, which loses far less to links that lose packets.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Final

VARIABLE: Final = "NETFOLD_TCP_CONGESTION"
"""Environment variable that names the congestion control of all messages; default: the machine's own, except that short
messages do not use BBR."""
SHORT_BYTES: Final = 256 << 10
"""Bytes of the longest message that counts as short."""
UNPACED: Final = ("cubic", "reno")
"""Replacements for BBR for short messages: the first of these that the kernel allows this process to use."""


def current(sock: socket.socket) -> str:
    """The name of a socket's congestion control."""
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b"\0")[0].decode()


def choose(sock: socket.socket, name: str) -> None:
    """Gives a socket this congestion control.  Raises OSError."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())


class CongestionControl:
    """The wanted and the present congestion control of a connected socket.  ``of`` is called before each message."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._long = self._short = self._is = current(sock)
        if self._long.startswith("bbr") and not os.environ.get(VARIABLE):
            self._short = self._unpaced()

    def of(self, nbytes: int) -> None:
        """Changes the congestion control where a message of so many bytes should have another one."""
        wanted = self._short if nbytes <= SHORT_BYTES else self._long
        if wanted != self._is:
            with contextlib.suppress(OSError):  # whoever sends learns what has happened to the connection
                choose(self._socket, wanted)
                self._is = wanted

    def _unpaced(self) -> str:
        for name in UNPACED:
            with contextlib.suppress(OSError):
                choose(self._socket, name)
                self._is = name
                return name
        return self._long
