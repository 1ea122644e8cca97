# SPDX-License-Identifier: Apache-2.0
"""A laned mesh whose streams can go on with another connection, over another path, without losing or repeating a byte.

A stream is the messages of two ranks, both ways, or a lane, one way.  To move it

    who sees it                                            the other rank
    writes nothing more
    connects by another source port: stream, turn  ----->  reads what has come, and no more
    sends again from `received`                <---------  accepts: received
    reads what has come, says how much         --------->  sends again from there; confirms

So each byte is read once, whatever was lost, or arrives late on the connection before, which is closed.  Until the
other rank answers, which it does as soon as it waits for something, the connection before is read on, and the kernel
goes on to repeat what was written there.  A lane has one direction, so its last step is missing.  Both ranks count
turns: of two connections for a stream the later one counts, and where both ask at once, the higher rank's.  What is
acknowledged on a connection that the other rank may have given up again counts only when it is confirmed.  A first
connection that is not proven in time is asked for again in the same way.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from netfold.host.errors import TransportError
from netfold.host.mesh.connecting import PeerUnreachable, Proven, Unconnected
from netfold.host.mesh.connection import PeerConnection
from netfold.host.mesh.handshake import Outcome, StreamTurn
from netfold.host.mesh.lanes import OutLane
from netfold.host.mesh.logged import LoggedMesh, OutStream
from netfold.host.mesh.planned import PathSource
from netfold.host.tracing.timeline import Timeline
from netfold.wire.jobs import Plan
from netfold.wire.paths import tcp_ports

COMING_SECONDS: Final = 10.0
"""Seconds that a peer which has made another connection has to go on with it: it may go on at any time, and then the
connection before is closed."""
FINISH_SECONDS: Final = 0.6
"""Seconds that a rank waits at the end of an operation for peers that move a stream."""
FINISH_SLICE_SECONDS: Final = 0.02
"""Seconds of one wait for peers at the end of an operation."""
MOST_REFUSALS: Final = 3
"""Connections in vain for a stream after which it stays where it is."""
RECEIVED = struct.Struct("!Q")
"""Bytes of the responder's direction that have come to the initiator: the first thing on a connection that goes on with
messages."""


@dataclass
class Move:
    """A connection that is being made to go on with a stream."""

    port: int
    """Source port, as the plan names it, of the path that it takes."""
    left: int
    """That of the path that the stream has left."""
    began: float


@dataclass
class Coming:
    """A connection that a peer has made to go on with messages; ``said``: what it has said of how much has come."""

    socket: socket.socket
    since: float
    said: bytes = b""


class MovingMesh(LoggedMesh):
    """The ranks of a plan, connected over TCP, with streams that can move.

    Parameters and errors are those of ``LanedMesh``.
    """

    def __init__(
        self,
        plan: Plan,
        listener: socket.socket,
        *,
        timeout: float,
        planned: PathSource | None = None,
        clock: Callable[[], float] = time.monotonic,
        timeline: Timeline | None = None,
    ) -> None:
        super().__init__(plan, listener, timeout=timeout, planned=planned, clock=clock, timeline=timeline)
        self._moves: dict[OutStream, Move] = {}
        self._asked: dict[OutStream, int] = {}
        """The last turn that this rank asked for."""
        self._refusals: Counter[OutStream] = Counter()
        self._coming: dict[PeerConnection, Coming] = {}
        """Connections that peers have made to go on with messages, and have not said yet how much has come."""
        self._coming_of: dict[int, PeerConnection] = {}
        """By descriptor."""
        self._finishing = False
        self.moved = 0
        """Streams that have gone on with another connection, at either end."""

    # ---- asking ------------------------------------------------------------------------------------------------------
    def _may_move(self, stream: OutStream) -> bool:
        still = stream.moving or (isinstance(stream, PeerConnection) and stream.frozen)
        return not still and not self._finishing and self._refusals[stream] < MOST_REFUSALS

    def _move(self, stream: OutStream, left: int, now: float) -> None:
        """Begins to go on with a stream over another path than that of source port ``left``, where there is one."""
        port = self.source_ports.usable_port(stream.rank, left)
        if port == left or self._links[stream.rank].lost or self._error is not None:
            return
        stream.stand_still(True)
        self._moves[stream] = Move(port, left, now)
        self._rewatch(stream)
        self._ask(stream, port)

    def _ask(self, stream: OutStream, port: int) -> None:
        """Connects to go on with a stream."""
        link = self._links[stream.rank]
        turn = self._asked[stream] = max(self._asked.get(stream, 0), stream.turn) + 1
        asked = StreamTurn(stream.number if isinstance(stream, OutLane) else 0, turn)
        try:
            self._connecting.connect(stream.rank, link.address, stream=asked, ports=tcp_ports(port))
        except PeerUnreachable as error:
            self._unconnected(link, Unconnected(link.rank, f"cannot connect: {error}", asked))
        except (OSError, ValueError) as error:
            what = f"cannot connect to rank {link.rank} at {link.address!r}: {error}"
            raise self._fail(TransportError, what) from error

    def _rewatch(self, stream: OutStream) -> None:
        if isinstance(stream, OutLane):
            self._watch_lane(stream)
        else:
            self._watch(stream)

    def _unconnected(self, link: PeerConnection, failed: Unconnected) -> None:
        asked = failed.stream
        lane = None if asked is None else self._lanes[link.rank].out.get(asked.number)
        stream: OutStream | None = link if asked is not None and not asked.number else lane
        if asked is None or not asked.turn or stream is None or stream.socket is None:
            super()._unconnected(link, failed)
            return
        self._moves.pop(stream, None)  # on with the connection before: if the peer is gone, it says so
        self._refusals[stream] += 1
        stream.stand_still(False)
        if isinstance(stream, PeerConnection):
            self._write(stream)
        else:
            self._write_lane(stream)
        self._rewatch(stream)

    def _drop(self, link: PeerConnection, why: str) -> None:
        if self._keeps_logs:
            self._connecting.drop(link.rank, 0)
            self._moves.pop(link, None)
            link.stand_still(False)
            link.freeze(False)
            if link in self._coming:
                self._release_coming(link).close()
        super()._drop(link, why)

    def finish_moves(self) -> bool:
        """Waits, for a while, for peers that know how far a stream of this rank's has come on the connection before:
        what came late there has to be sent again by a rank that waits for nothing any more.  Returns whether any moved.
        """
        before, until = self.moved, self._clock() + FINISH_SECONDS
        self._finishing = True  # no other moves begin
        while (self._coming or self._connecting.awaits_verdict()) and self.moved == before and self._clock() < until:
            self._poll_once(FINISH_SLICE_SECONDS)
        self._finishing = False
        return self.moved > before

    # ---- answering ---------------------------------------------------------------------------------------------------
    def _admit_stream(self, rank: int, stream: StreamTurn) -> tuple[Outcome, int]:
        link = self._links[rank]
        if not stream.turn:
            return super()._admit_stream(rank, stream)
        if link.lost or not self._keeps_logs:
            return Outcome.TAKEN, 0
        if stream.number:
            lane = self._lanes[rank].incoming_lane(stream.number)
            if lane is None:  # the first one to arrive, of several that were begun
                return super()._admit_stream(rank, StreamTurn(stream.number))
            if stream.turn <= lane.turn:
                return Outcome.TAKEN, 0
            return Outcome.ACCEPTED, lane.drain()
        came = self._connecting.settle(rank, 0, keep=self.rank > rank)
        if came is not None:
            self._attach_stream(link, came)
        if self._connecting.under_way(rank, 0):
            return Outcome.CROSSED, 0
        if link.log is None or stream.turn <= link.turn:
            return Outcome.TAKEN, 0
        link.take_turn(stream.turn)
        if link.socket is not None:
            self._moves.pop(link, None)
            link.stand_still(False)
            link.freeze(True)
            self._rewatch(link)
        return Outcome.ACCEPTED, link.drain()

    # ---- going on ----------------------------------------------------------------------------------------------------
    def _attach_stream(self, link: PeerConnection, came: Proven) -> None:
        stream = came.stream
        if stream is None or not stream.turn:
            super()._attach_stream(link, came)
            return
        came.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.moved += came.opened or stream.number > 0
        if not stream.number:
            self._go_on_with_messages(link, came, stream)
        elif came.opened:
            self._go_on_with_lane(link, came, stream)
        else:
            self._receive_on(link, came, stream)

    def _believable(self, link: PeerConnection, stream: OutStream, sock: socket.socket, received: int) -> bool:
        """Whether a peer may have received so many bytes; if not, its connection is lost."""
        if stream.log is not None and stream.log.covers(received):
            return True
        sock.close()
        known = "none" if stream.log is None else f"{stream.log.first} to {stream.log.next}"
        self._drop(link, f"it says that it has received {received} bytes; expected {known}")
        return False

    def _go_on_with_messages(self, link: PeerConnection, came: Proven, stream: StreamTurn) -> None:
        if link.lost:
            came.socket.close()
        elif came.opened:
            self._ended(link, came)
            link.take_turn(stream.turn)
            if not self._believable(link, link, came.socket, came.received):
                return
            try:
                came.socket.send(RECEIVED.pack(link.drain()))
            except OSError as error:
                self._drop(link, error.strerror or str(error))
                return
            self._go_on(link, came.socket, came.received)
            self._confirm(link, first=False)
            self._read(link)
            self._watch(link)
        else:
            if link in self._coming:
                self._release_coming(link).close()
            self._coming[link] = Coming(came.socket, self._clock())
            self._coming_of[came.socket.fileno()] = link
            self._poller.register(came.socket, select.POLLIN)
            self._read(link)
            self._on_coming(link)

    def _go_on(self, link: PeerConnection, sock: socket.socket, received: int) -> None:
        """Goes on with the messages of two ranks, of which so many bytes have come to the peer."""
        first = link.socket is None  # of several that were begun
        if link.socket is not None:
            if link.events:
                self._poller.unregister(link.socket)
                link.registered(0)
            del self._by_fd[link.socket.fileno()]
        link.go_on(sock, received)
        self._by_fd[sock.fileno()] = link
        if link.events:
            self._poller.register(sock, link.events)
        if first:
            self._tell_reports(link)

    def _go_on_with_lane(self, link: PeerConnection, came: Proven, stream: StreamTurn) -> None:
        lane = self._lanes[link.rank].out.get(stream.number)
        if lane is None:
            came.socket.close()
            return
        if not self._believable(link, lane, came.socket, came.received):
            return
        first = lane.socket is None
        self._unwatch_lane(lane)
        self._ended(lane, came)
        lane.go_on(came.socket, stream.turn, came.received)
        self._lane_of[came.socket.fileno()] = lane
        self._write_lane(lane)
        self._watch_lane(lane)
        if first:
            self._open_lane(link)

    def _receive_on(self, link: PeerConnection, came: Proven, stream: StreamTurn) -> None:
        lane = self._lanes[link.rank].incoming_lane(stream.number)
        if lane is None:
            super()._attach_stream(link, came)
            return
        self._unwatch_lane(lane)
        lane.go_on(came.socket, stream.turn)
        self._lane_of[came.socket.fileno()] = lane
        self._read_lane(lane)
        self._watch_lane(lane)

    def _ended(self, stream: OutStream, came: Proven) -> None:
        """Handles the end of a move of this rank's, where there is one."""
        move = self._moves.pop(stream, None)
        if move is not None and came.opened:
            self._left(stream, move.left)

    def _left(self, stream: OutStream, port: int) -> None:
        """Is told that a stream has left the path of this source port, on which the peer did not answer."""

    # ---- what a peer goes on with ------------------------------------------------------------------------------------
    def _on_coming(self, link: PeerConnection) -> None:
        """Reads how much of this rank's direction has come to the peer, and goes on from there."""
        coming = self._coming[link]
        try:
            while len(coming.said) < RECEIVED.size:
                data = coming.socket.recv(RECEIVED.size - len(coming.said))
                if not data:
                    self._forget_coming(link)
                    return
                coming.said += data
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._forget_coming(link)
            return
        sock = self._release_coming(link)
        self.moved += 1
        (received,) = RECEIVED.unpack(coming.said)
        if not self._believable(link, link, sock, received):
            return
        self._go_on(link, sock, received)
        self._confirm(link, first=True)
        self._read(link)
        self._watch(link)

    def _release_coming(self, link: PeerConnection) -> socket.socket:
        """Takes a peer's connection out of this object's hands."""
        sock = self._coming.pop(link).socket
        self._poller.unregister(sock)
        del self._coming_of[sock.fileno()]
        return sock

    def _forget_coming(self, link: PeerConnection) -> None:
        """Goes on with the connection before, where a peer has made another one, and has not gone on with that."""
        if link in self._coming:
            self._release_coming(link).close()
        link.freeze(False)
        if link.socket is None:  # it would have been the first one
            return
        self._read(link)
        self._write(link)
        self._rewatch(link)

    def _stream_event(self, fd: int, event: int) -> bool:
        link = self._coming_of.get(fd)
        if link is None:
            return super()._stream_event(fd, event)
        self._on_coming(link)
        return True
