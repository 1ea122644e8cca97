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
import socket
import struct
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from netfold.host.mesh.arriving import Arriving, TcpSocket
from netfold.host.mesh.connection import Receive
from netfold.host.mesh.mesh import Pending
from netfold.host.mesh.sending import Send, Sending
from netfold.host.mesh.sent_log import SentLog
from netfold.wire import roce

PART = struct.Struct("!QQQ")
"""Layout of what precedes a part on a lane: number of the cut message among the sender's, offset, bytes."""
STRIPED: Final = 1 << 63
"""Bit of a message header's bytes: the payload comes in parts, on lanes."""
CUT_BYTES: Final = 4096
"""Messages are cut at multiples of this."""
MOST_LANES: Final = 32
"""Lanes to a peer at most.  A peer takes twice as many: it may see new ones before it sees that idle ones have been
closed."""
DEAD_SECONDS: Final = 0.1
"""Seconds without an acknowledgement, in spite of retransmissions, after which a connection's path counts as dead."""

_TCP_INFO = struct.Struct("=8B24I3Q")
"""The beginning of Linux's struct tcp_info, up to tcpi_bytes_acked."""
_BACKOFF, _UNACKED, _RETRANS, _RTT, _RTTVAR, _TOTAL_RETRANS, _BYTES_ACKED = 4, 12, 15, 23, 24, 31, 34


_TIMERS: Final = ((44, 1000), (45, 40_000), (46, 10_000))
"""Linux's TCP_RTO_MAX_MS, TCP_RTO_MIN_US and TCP_DELACK_MAX_US, and what they are on a lane."""
PATIENCE_SECONDS: Final = 900.0
"""Seconds that the kernel of a lane goes on at least, as it does by itself elsewhere (tcp(7), tcp_retries2).  They
count as well while a peer, which may compute, reads nothing."""
LONGEST_MS: Final = 2**31 - 1
"""Milliseconds in Linux's TCP_USER_TIMEOUT at most."""


def never_give_up(sock: socket.socket) -> None:
    """Lets the kernel go on for as long as it can with a connection on which what was written counts no more: its end
    would be the end of what is read there."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LONGEST_MS)


def tune(sock: socket.socket, timeout: float) -> None:
    """Lets a lane's kernel repeat after 40 ms of silence instead of 200, since a path may have died, and each second at
    least; and acknowledge within 10 ms, so that nothing is repeated for that.  Kernels before 6.15 keep their times.

    timeout  seconds of silence after which the rank itself gives up.  The kernel, which counts repeats, must not do so
             before: its 15 would take less than 15 seconds
    """
    patience = min(max(2 * timeout, PATIENCE_SECONDS) * 1000, LONGEST_MS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(patience))
    for option, value in _TIMERS:
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


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

    def __init__(self, whole: Striped, *parts: memoryview, owned: bool = False) -> None:
        super().__init__(*parts, owned=owned)
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
        """Whether a part may be read to these bytes: there are some, all within the message, and no other part has any
        of them.  So nothing is missing once as many bytes have come as the message has."""
        at = bisect_right(self.ends, offset)
        inside = at % 2 or (at < len(self.ends) and self.ends[at] < offset + size)
        if inside or size < 1 or offset + size > len(self.view):
            return False
        self.ends[at:at] = offset, offset + size
        return True


class OutLane(Sending):
    """A lane that this rank opened, the ``number``-th one to this peer.  ``out`` is None until the peer has proven
    itself."""

    def __init__(self, rank: int, number: int, log: SentLog | None = None) -> None:
        super().__init__(log)
        self.rank = rank
        self.number = number

    def close(self) -> None:
        """Closes the connection; what the kernel has still arrives."""
        if self.out is not None:
            self.out.close()
        self.out = self.control = None

    def post(self, part: Send) -> None:
        """Posts a part."""
        self.sends.append(part)
        self.expect_bytes(len(part.parts[-1]))


@dataclass(eq=False)
class InLane(Arriving):
    """A lane that a peer opened, and how far its next part has been read.  ``number`` is the peer's of it."""

    rank: int
    socket: TcpSocket
    number: int = 0
    header: bytearray = field(default_factory=lambda: bytearray(PART.size))
    header_bytes: int = 0
    into: memoryview | None = None
    """The memory that the part's next bytes go to; None before the part has a place."""
    of: Assembly | None = None

    def __post_init__(self) -> None:
        super().__init__()

    def close(self) -> None:
        """Closes the sockets."""
        self.withdraw_successor()
        self.socket.close()

    def read_header(self) -> int:
        """Reads bytes of the next part's header that have arrived.  Returns how many, 0 at the end.  Raises OSError."""
        got = self.recv_into(memoryview(self.header)[self.header_bytes :])
        self.header_bytes += got
        return got

    def read_payload(self) -> int:
        """Reads bytes of the part that have arrived.  Returns how many, 0 at the end.  Raises OSError."""
        assert self.into is not None
        assert self.of is not None
        got = self.recv_into(self.into)
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
        """Whether the part's header is complete, and its message not known yet."""
        return self.into is None and self.header_bytes == PART.size

    @property
    def message(self) -> int:
        """Number of the message that a complete part header belongs to."""
        return int(PART.unpack(self.header)[0])

    @property
    def in_the_middle(self) -> bool:
        """Whether a part has begun and is not complete."""
        return self.header_bytes > 0


@dataclass(eq=False)
class PeerLanes:
    """All lanes between this rank and one peer, and the cut messages that arrive."""

    out: dict[int, OutLane] = field(default_factory=dict)
    """By the source port that the plan names."""
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

    def begin(self, rank: int, port: int, log: SentLog | None) -> OutLane:
        """One more lane of this rank's, for a source port."""
        self.begun += 1
        self.out[port] = OutLane(rank, self.begun, log)
        return self.out[port]

    def out_lane(self, number: int) -> OutLane | None:
        """This rank's lane of a number."""
        return next((lane for lane in self.out.values() if lane.number == number), None)

    def incoming_lane(self, number: int) -> InLane | None:
        """The peer's lane of a number; of two, where the handshake of one broke at its end, the last one."""
        return next((lane for lane in reversed(self.incoming) if lane.number == number), None)

    def forget(self, lane: OutLane) -> None:
        """Drops a lane of this rank's that has ended."""
        self.out = {port: one for port, one in self.out.items() if one is not lane}

    @property
    def bytes_unsent(self) -> int:
        """Bytes of parts that the kernel has not taken yet."""
        return sum(lane.bytes_unsent for lane in self.out.values())

    @property
    def bytes_awaited(self) -> int:
        """Bytes that are missing of messages that somebody waits for."""
        return sum(one.left for one in self.assemblies.values()
                   if one.receive.buffer is None or one.receive.target is not None)


class Condition(NamedTuple):
    """How a connection fares, as the kernel says."""

    in_flight: bool
    """Whether it waits for acknowledgements."""
    repeats: bool
    """Whether it has sent again what it waits for."""
    acknowledged: int
    """Bytes that have been acknowledged so far."""
    sent_again: int
    """Segments that were sent again so far."""
    patience: float
    """Seconds after which an answer is overdue, by the round trips that the kernel has measured."""


def condition_of(sock: socket.socket) -> Condition:
    """How a connection fares.  Raises OSError."""
    info = _TCP_INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))
    return Condition(bool(info[_UNACKED]), bool(info[_BACKOFF] or info[_RETRANS]), info[_BYTES_ACKED],
                     info[_TOTAL_RETRANS], (1.5 * info[_RTT] + 4 * info[_RTTVAR]) / 1e6)


class Silence:
    """Since when a connection has had bytes in flight, and nothing acknowledged."""

    def __init__(self) -> None:
        self._since = 0.0
        self._acknowledged = -1

    def lasts(self, condition: Condition, now: float) -> float:
        """Seconds that the silence has lasted; 0 where there is none."""
        if not condition.in_flight or condition.acknowledged != self._acknowledged:
            self._since, self._acknowledged = now, condition.acknowledged
        return now - self._since

    def ended(self, now: float) -> float:
        """Ends the silence, as the connection does.  Returns the seconds that it lasted."""
        since, self._since, self._acknowledged = self._since, now, -1
        return now - since


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


def path_of(sock: socket.socket) -> int | None:
    """The UDP source port that names the same path as a connection's ports; None where they name none."""
    return path_named(sock.getsockname()[1]) or path_named(sock.getpeername()[1])


def path_named(port: int) -> int | None:
    """The UDP source port that names the same path as a TCP port; None where that names none."""
    if port < roce.TCP_PATH_PORT:
        return None
    return int(roce.PATH_PORT + (port - roce.TCP_PATH_PORT) % roce.TCP_SAME_PATH)
