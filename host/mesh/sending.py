# SPDX-License-Identifier: Apache-2.0
"""The end of a stream at the rank from which it leads: what is posted, and the connection to which it is written.

A stream is a run of bytes from one rank to another: its messages, or a lane.  Connections carry it one after the other
(``moving``); ``arriving`` is the other end.
"""

from __future__ import annotations

import socket
from collections import deque

from netfold.host.mesh.congestion_control import CongestionControl
from netfold.host.mesh.mesh import Pending
from netfold.host.mesh.sent_log import SentLog


class Send(Pending):
    """A posted run of bytes, from which bytes are removed as the kernel takes them.  ``begun`` turns true once some of
    them have been, so that the rest must follow before anything else.  ``owned``: its memory does not change any
    more."""

    __slots__ = ("begun", "owned", "parts")

    def __init__(self, *parts: memoryview, owned: bool = False) -> None:
        self.done = self.begun = False
        self.owned = owned
        self.parts = list(parts)

    @property
    def left(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return sum(map(len, self.parts))


class SentAgain(Send):
    """What a peer lacks of what was sent over another connection: it is sent before all else, and nobody waits for
    it."""

    __slots__ = ()

    def __init__(self, *parts: memoryview) -> None:
        super().__init__(*parts)
        self.begun = True


class Sending:
    """What is posted for a stream.

    out     the connection that it is written to; None until there is a proven one
    log     what may have to be sent again over another connection; None: there is no other path
    turn    that of the connection that it is written to
    went_on_from  bytes that the peer had when the stream last went on over another connection; -1: it never did
    asked   the turn of the last connection that this rank has asked for
    moving  whether this rank makes another connection: until then nothing is written
    """

    def __init__(self, log: SentLog | None = None) -> None:
        self.out: socket.socket | None = None
        self.sends: deque[Send] = deque()
        self.log = log
        self.turn = self.asked = 0
        self.went_on_from = -1
        self.moving = False
        self.control: CongestionControl | None = None

    def write_to(self, sock: socket.socket) -> None:
        """Writes to this connection from now on."""
        self.out, self.control = sock, CongestionControl(sock)

    def expect_bytes(self, nbytes: int) -> None:
        """Is told how many bytes have been posted in a row, for the choice of congestion control."""
        if self.control is not None:
            self.control.of(nbytes)

    def write(self, most: int) -> int:
        """Hands about ``most`` bytes of what is posted to the kernel, or as many as it takes.  Returns how many.

        Raises OSError where the connection is gone.
        """
        assert self.out is not None
        total = 0
        try:
            while self.sends and total < most:
                send = self.sends[0]
                parts = send.parts
                sent = self.out.sendmsg(parts)
                send.begun = True
                total += sent
                while parts and sent >= len(parts[0]):
                    part = parts.pop(0)
                    sent -= len(part)
                    if self.log is not None:
                        self.log.add(part, send.owned)
                if parts:
                    if self.log is not None and sent:
                        self.log.add(parts[0][:sent], send.owned)
                    parts[0] = parts[0][sent:]
                else:
                    self.sends.popleft()
                    send.finish()
        except (BlockingIOError, InterruptedError):
            pass
        return total

    def keep_log(self) -> None:
        """Keeps what is sent from now on until it is acknowledged."""
        self.log = SentLog()

    def ask(self) -> tuple[int, int]:
        """Asks for another connection, and writes nothing until it is there.  Returns its turn, and that of the one to
        which this rank has written until now, or the same where there is none."""
        self.moving = True
        self.asked += 1
        return self.asked, self.asked if self.out is None else self.turn

    def begin_anew(self) -> None:
        """Takes the last turn as in vain: the next connection that is asked for, though it is the first one, is of a
        later turn."""
        self.asked += 1

    def stay(self) -> None:
        """Goes on writing to the connection before."""
        self.moving = False

    def go_on(self, sock: socket.socket, turn: int, received: int) -> None:
        """Goes on with another connection, of this turn, whose peer had so many bytes before.  Raises ValueError where
        that cannot be."""
        assert self.log is not None
        self.turn, self.went_on_from = turn, received
        again = self.log.take_from(received)
        if again:
            self.sends.appendleft(SentAgain(*again))
        self.moving = False
        self.write_to(sock)

    @property
    def wants_to_write(self) -> bool:
        """Whether to wait for room in the connection."""
        return bool(self.sends) and not self.moving

    @property
    def bytes_unsent(self) -> int:
        """Bytes that are posted and that the kernel has not taken yet."""
        return sum(send.left for send in self.sends)
