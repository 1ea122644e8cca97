# SPDX-License-Identifier: Apache-2.0
"""The data posted for one TCP connection, passed to the kernel as it accepts it."""

from __future__ import annotations

import socket
from collections import deque

from netfold.host.mesh.congestion_control import CongestionControl
from netfold.host.mesh.mesh import Pending

TcpSocket = socket.socket
"""The type of a socket, for annotations in classes with an attribute named ``socket``."""


class Send(Pending):
    """A posted run of bytes, from which bytes are removed as the kernel takes them.  ``begun`` turns true once some of
    them have been, so that the rest must follow before anything else."""

    __slots__ = ("begun", "parts")

    def __init__(self, *parts: memoryview) -> None:
        self.done = self.begun = False
        self.parts = list(parts)

    @property
    def left(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return sum(map(len, self.parts))


class Sending:
    """A connection, and what is posted for it.  ``socket`` is None until there is a proven one."""

    socket: TcpSocket | None

    def __init__(self) -> None:
        self.socket = None
        self.sends: deque[Send] = deque()
        self._control: CongestionControl | None = None

    def attach(self, sock: TcpSocket) -> None:
        """Writes to this socket from now on."""
        self.socket, self._control = sock, CongestionControl(sock)

    def close(self) -> None:
        """Closes the socket; what the kernel has still arrives.  No poller may be registered for it any more."""
        if self.socket is not None:
            self.socket.close()
        self.socket = self._control = None

    def expect_bytes(self, nbytes: int) -> None:
        """Is told how many bytes have been posted in a row, for the choice of congestion control."""
        if self._control is not None:
            self._control.of(nbytes)

    def write(self, most: int) -> int:
        """Hands about ``most`` bytes of what is posted to the kernel, or as many as it takes.  Returns how many.

        Raises OSError where the connection is gone.
        """
        assert self.socket is not None
        total = 0
        try:
            while self.sends and total < most:
                send = self.sends[0]
                parts = send.parts
                sent = self.socket.sendmsg(parts)
                send.begun = True
                total += sent
                while parts and sent >= len(parts[0]):
                    sent -= len(parts.pop(0))
                if parts:
                    parts[0] = parts[0][sent:]
                else:
                    self.sends.popleft()
                    send.finish()
        except (BlockingIOError, InterruptedError):
            pass
        return total
