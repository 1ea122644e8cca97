# SPDX-License-Identifier: Apache-2.0
"""Lanes: further TCP connections to a peer, each from a source port that names a path, for the parts of cut messages.

    connection for messages   header with STRIPED in its bytes; the order of messages is that of headers     both ways
    lane                      number of the cut message | offset | bytes        followed by that payload    one way

Who sends opens a lane for each source port that the plan has for a peer.  Who receives needs no plan: a part says where
it belongs.  A part that overtakes its message's header waits in its connection, and nothing more is read from there.
A peer's word about offsets and sizes counts only within the memory of the message.
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final

from netfold.host.mesh.connection import Receive
from netfold.host.mesh.mesh import Pending
from netfold.host.mesh.sending import Send, Sending, TcpSocket

PART = struct.Struct("!QQQ")
"""Layout of the header of a part on a lane: number of the cut message among the sender's, offset, bytes."""
CUT_BYTES: Final = 4096
"""Messages are cut at multiples of this."""
MOST_LANES: Final = 32
"""Most lanes to a peer.  A peer accepts twice as many: it may see new lanes before it sees that idle ones were
closed."""


class Striped(Pending):
    """A posted message that is cut: done once its header and all parts are sent."""

    __slots__ = ("left",)

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.left = parts + 1

    def one_sent(self) -> None:
        """Counts the header or a part that the kernel has taken."""
        self.left -= 1
        if not self.left:
            self.finish()


class StripedPart(Send):
    """The header or one part of a cut message."""

    __slots__ = ("whole",)

    def __init__(self, whole: Striped, *parts: memoryview) -> None:
        super().__init__(*parts)
        self.whole = whole

    def finish(self) -> None:
        super().finish()
        self.whole.one_sent()


@dataclass(eq=False)
class Assembly:
    """A cut message that arrives: the receive that it is for, all of its memory, and the bytes that are missing."""

    receive: Receive
    view: memoryview
    left: int
    ends: list[int] = field(default_factory=list)
    """First and last of the bytes of each part that has begun, in order."""

    def took(self, nbytes: int) -> None:
        """Counts bytes that have arrived."""
        self.left -= nbytes

    def begin(self, offset: int, size: int) -> bool:
        """True if a part may be read to these bytes: there are some, all within the message, and no other part covers
        any of them.  So the message is complete once as many bytes as it has have arrived."""
        at = bisect_right(self.ends, offset)
        inside = at % 2 or (at < len(self.ends) and self.ends[at] < offset + size)
        if inside or size < 1 or offset + size > len(self.view):
            return False
        self.ends[at:at] = offset, offset + size
        return True


class OutLane(Sending):
    """A lane that this rank opened, the ``number``-th one to this peer."""

    def __init__(self, rank: int, number: int) -> None:
        super().__init__()
        self.rank = rank
        self.number = number

    def post(self, part: Send) -> None:
        """Posts a part."""
        self.sends.append(part)
        self.expect_bytes(len(part.parts[-1]))


@dataclass(eq=False)
class InLane:
    """A lane that a peer opened, and how far its next part has been read."""

    rank: int
    socket: TcpSocket
    header: bytearray = field(default_factory=lambda: bytearray(PART.size))
    header_bytes: int = 0
    into: memoryview | None = None
    """The memory for the part's next bytes; None before the part has a place."""
    of: Assembly | None = None

    def close(self) -> None:
        """Closes the socket."""
        self.socket.close()

    def read_header(self) -> int:
        """Reads bytes of the next part's header that have arrived.  Returns how many, 0 at the end.  Raises OSError."""
        got = self.socket.recv_into(memoryview(self.header)[self.header_bytes :])
        self.header_bytes += got
        return got

    def read_payload(self) -> int:
        """Reads bytes of the part that have arrived.  Returns how many, 0 at the end.  Raises OSError."""
        assert self.into is not None
        assert self.of is not None
        got = self.socket.recv_into(self.into)
        self.into = self.into[got:]
        self.of.took(got)
        return got

    def place(self, assembly: Assembly, offset: int, size: int) -> None:
        """Gives the part its memory."""
        self.of, self.into = assembly, assembly.view[offset : offset + size]

    def next_part(self) -> None:
        """Lets the next bytes be read as a part's header."""
        self.of, self.into, self.header_bytes = None, None, 0

    @property
    def waiting(self) -> bool:
        """True if the part's header is complete, but its message is not known yet."""
        return self.into is None and self.header_bytes == PART.size

    @property
    def message(self) -> int:
        """Number of the message that a complete part header belongs to."""
        return int(PART.unpack(self.header)[0])

    @property
    def in_the_middle(self) -> bool:
        """True if a part has begun and is not complete."""
        return self.header_bytes > 0


@dataclass(eq=False)
class PeerLanes:
    """All lanes between this rank and one peer, and the cut messages that arrive."""

    out: dict[int, OutLane] = field(default_factory=dict)
    """Source port, as the plan names it -> lane."""
    begun: int = 0
    """Lanes that this rank has begun so far."""
    incoming: list[InLane] = field(default_factory=list)
    sent: int = 0
    """Cut messages posted so far."""
    announced: int = 0
    """Headers of cut messages that have arrived so far."""
    assemblies: dict[int, Assembly] = field(default_factory=dict)

    def count_sent(self) -> None:
        """Counts a cut message that has been posted."""
        self.sent += 1

    def announce(self, assembly: Assembly) -> int:
        """Records the peer's next cut message.  Returns its number."""
        number, self.announced = self.announced, self.announced + 1
        self.assemblies[number] = assembly
        return number

    def begin(self, rank: int, port: int) -> None:
        """Begins one more lane of this rank's, for a source port."""
        self.begun += 1
        self.out[port] = OutLane(rank, self.begun)

    def forget(self, lane: OutLane) -> None:
        """Drops a lane of this rank's that has ended."""
        self.out = {port: one for port, one in self.out.items() if one is not lane}

    @property
    def bytes_unsent(self) -> int:
        """Bytes of parts that the kernel has not taken yet."""
        return sum(send.left for lane in self.out.values() for send in lane.sends)

    @property
    def bytes_awaited(self) -> int:
        """Bytes that are missing of messages that somebody waits for."""
        return sum(one.left for one in self.assemblies.values()
                   if one.receive.buffer is None or one.receive.target is not None)


class WarnOnce:
    """Warnings about one ``who``, each kind of which is logged once."""

    def __init__(self, log: logging.Logger, who: str) -> None:
        self._log, self._who = log, who
        self._said: set[str] = set()

    def __call__(self, what: str, *args: object) -> None:
        """Logs it, unless the same format was logged before."""
        if what not in self._said:
            self._said.add(what)
            self._log.warning(f"%s: {what}", self._who, *args)
