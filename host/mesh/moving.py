# SPDX-License-Identifier: Apache-2.0
"""A laned mesh whose streams can go on over another connection, from another source port, without losing or repeating a
byte.

A stream leads from one rank to another: a lane, or the messages of one direction.  Its sender moves it:

    sender                                                     receiver
    writes nothing more
    connects by another source port: stream, turn, now ----->  reads what has come on connection `now`, and no more
    sends again from `received`                      <-------  accepts: received
    writes, there alone                              ------->  reads there alone, from the first byte on

Until the receiver's answer has come the sender may think better of it, and so it does where none comes in time: it
closes the other connection and writes to the one before, and the receiver, which sees that end, reads on where it was
(``arriving``).  Or it asks by yet another one, of a later turn, and says to which it has written until now.  While it
moves, the sender forgets nothing that is acknowledged, since the receiver may not read it.  A first connection that is
not proven in time is asked for again in the same way.
"""

from __future__ import annotations

import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from netfold.host.mesh.connecting import Proven, Unconnected
from netfold.host.mesh.connection import PeerConnection
from netfold.host.mesh.handshake import Outcome, StreamTurn
from netfold.host.mesh.lanes import InLane, OutLane, never_give_up
from netfold.host.mesh.logged import LoggedMesh, OutStream
from netfold.host.mesh.planned import PathSource
from netfold.host.tracing.timeline import Timeline
from netfold.wire.jobs import Plan
from netfold.wire.paths import tcp_ports

FINISH_SECONDS: Final = 0.3
"""Seconds that a rank which has sent everything stays for streams that move, or whose paths do not answer."""
FINISH_SLICE_SECONDS: Final = 0.02
"""Seconds of one wait for them."""
MOST_REFUSALS: Final = 3
"""Connections in vain, one after the other, after which a stream stays where it is."""

InStream: TypeAlias = PeerConnection | InLane
"""A stream on which this rank receives."""


@dataclass
class Move:
    """A connection that is being made to go on with a stream."""

    left: int | None
    """Source port, as the plan names it, of the path that the stream leaves because it does not answer; None: it has
    another reason."""
    began: float
    tries: int = 0
    """Connections that were asked for before, one after the other, because nobody answered."""


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
        self._refusals: Counter[OutStream] = Counter()
        self._successor_of: dict[int, InStream] = {}
        """By descriptor."""
        self._drained: list[InStream] = []
        """Streams with bytes that were read from a connection that they may leave, and not handled yet."""
        self._looked_at_finish = clock() - FINISH_SLICE_SECONDS
        """When this rank last looked, at the end of an operation, for paths that do not answer.  Operations that follow
        each other quickly do not look each time, since the kernel repeats nothing that soon."""
        self._resumed = False
        """Whether a stream has begun to write again, outside of a poll's events."""
        self.moved = 0
        """Streams that have gone on over another connection, at either end."""

    # ---- the sender --------------------------------------------------------------------------------------------------
    def _may_move(self, stream: OutStream) -> bool:
        return stream.log is not None and not stream.moving and self._refusals[stream] < MOST_REFUSALS

    def _move(
        self, stream: OutStream, port: int, now: float, *, left: int | None = None, tries: int = 0
    ) -> None:
        """Begins to go on with a stream over the path of this source port."""
        if self._links[stream.rank].lost or self._error is not None:
            return
        self._moves[stream] = Move(left, now, tries)
        asked = StreamTurn(stream.number, *stream.ask())
        self._rewatch(stream)
        self._begin_connection(self._links[stream.rank], asked, self._names(stream.rank, port))

    def _names(self, peer: int, port: int) -> list[int]:
        """The TCP ports that name a path, and behind them those that name others, for where they are taken."""
        return [name for one in self.source_ports.with_others(peer, port) for name in tcp_ports(one)]

    def _rewatch(self, stream: OutStream) -> None:
        if isinstance(stream, OutLane):
            self._watch_lane(stream)
        else:
            self._watch(stream)

    def _write_on(self, stream: OutStream) -> None:
        """Writes what is posted, and waits for room for the rest."""
        self._resumed = True
        if isinstance(stream, OutLane):
            self._write_lane(stream)
        else:
            self._write(stream)
        self._rewatch(stream)

    def _unconnected(self, link: PeerConnection, failed: Unconnected) -> None:
        asked = failed.stream
        if asked is None and (link.connected or link.moving):
            return  # both directions go on without it
        stream = None if asked is None else self._out_stream(link, asked.number)
        if asked is None or stream is None or (stream.out is None and isinstance(stream, OutLane) and not asked.turn):
            super()._unconnected(link, failed)
            return
        self._refusals[stream] += 1
        self._withdraw(stream)  # if the peer is gone, the connection before says so
        if isinstance(stream, OutLane) and stream.out is None:
            if self._refusals[stream] == MOST_REFUSALS:
                super()._unconnected(link, failed)
                return
            stream.begin_anew()
            self._open_lane(link)

    def _out_stream(self, link: PeerConnection, number: int) -> OutStream | None:
        return self._lanes[link.rank].out_lane(number) if number else link

    def _withdraw(self, stream: OutStream) -> None:
        """Goes on with the connection before instead of another one that is not proven yet.  If the peer's answer has
        come meanwhile, it is too late for that; and a connection with unread bytes would not end but be reset, which
        the peer might not hear."""
        came = self._connecting.settle(stream.rank, stream.number)
        if came is not None:
            self._came(came)
            return
        self._moves.pop(stream, None)
        self._connecting.drop(stream.rank, stream.number)
        stream.stay()
        self._write_on(stream)

    def _go_on(self, link: PeerConnection, came: Proven, stream: OutStream) -> None:
        """Goes on over a connection that the peer has accepted for this."""
        if stream.log is None or not stream.log.covers(came.received):
            came.socket.close()
            known = "none" if stream.log is None else f"{stream.log.first} to {stream.log.next}"
            self._drop(link, f"it says that it has received {came.received} bytes; expected {known}")
            return
        assert came.stream is not None
        move = self._moves.pop(stream, None)
        if move is not None and move.left is not None:
            self._left(stream, move.left)
        if came.received > stream.went_on_from:
            self._refusals.pop(stream, None)
        else:  # nothing has come over the last connection
            self._refusals[stream] += 1
        self.moved += 1
        came.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        before = stream.out
        if isinstance(stream, OutLane):
            self._release(stream)
            self._lane_of[came.socket.fileno()] = stream
        else:
            if before is not None and before is not stream.socket:
                self._release_socket(before)
                before.close()
            elif before is not None:
                never_give_up(before)
            self._by_fd[came.socket.fileno()] = stream
        stream.go_on(came.socket, came.stream.turn, came.received)
        self._write_on(stream)
        if before is None and isinstance(stream, OutLane):
            self._open_lane(link)
        elif before is None:
            self._tell_reports(link)
            self._end_first(link)

    def _left(self, stream: OutStream, port: int) -> None:
        """Is told that a stream has left the path of this source port, on which the peer did not answer."""

    def finish_moves(self) -> None:
        """Ends what moves before this rank, which has sent everything, leaves: it stays a while for peers that have yet
        to answer, and then goes back to the connections before, on which the kernel repeats what is not acknowledged.
        """
        now = self._clock()
        until = now + FINISH_SECONDS
        if not self._moves:
            if now < self._looked_at_finish + FINISH_SLICE_SECONDS:
                return
            self._looked_at_finish = now
        while (self._moves or self._any_path_silent()) and self._clock() < until:
            self._poll_once(FINISH_SLICE_SECONDS)
        for stream in list(self._moves):
            if stream.out is not None:
                self._withdraw(stream)

    def _any_path_silent(self) -> bool:
        """Whether something that was sent may be on a path that does not answer."""
        return False

    # ---- the receiver ------------------------------------------------------------------------------------------------
    def _admit_stream(self, rank: int, stream: StreamTurn) -> tuple[Outcome, int]:
        link = self._links[rank]
        arriving = self._lanes[rank].incoming_lane(stream.number) if stream.number else link
        if arriving is None or not stream.turn:
            return super()._admit_stream(rank, stream)
        if self._error is not None:
            return Outcome.TAKEN, 0
        if link.socket is None and (came := self._connecting.settle(rank, None)) is not None:
            self._came(came)  # the peer has accepted that one, and what it wrote there may have come
        if link.lost:
            return Outcome.TAKEN, 0
        self._drained.append(arriving)
        with self._settling(arriving):
            admitted = arriving.admits(stream.turn, stream.now)
        received = arriving.drain() if admitted else None
        return (Outcome.TAKEN, 0) if received is None else (Outcome.ACCEPTED, received)

    def _attach_stream(self, link: PeerConnection, came: Proven) -> None:
        stream = came.stream
        if stream is None or not stream.turn:
            super()._attach_stream(link, came)
        elif came.opened:
            out = self._out_stream(link, stream.number)
            if out is None or link.lost:
                came.socket.close()
            else:
                self._go_on(link, came, out)
        else:
            arriving = self._lanes[link.rank].incoming_lane(stream.number) if stream.number else link
            if arriving is None:
                super()._attach_stream(link, came)
                return
            arriving.offer(came.socket, stream.turn)
            self._successor_of[came.socket.fileno()] = arriving
            self._registered.watch(came.socket, select.POLLIN)
            self._read_on(arriving)

    def _poll(self, seconds: float) -> bool:
        moved = super()._poll(seconds)
        while self._drained:
            moved |= self._read_on(self._drained.pop())
        return moved

    def _stream_event(self, fd: int, event: int) -> bool:
        stream = self._successor_of.get(fd)
        if stream is None:
            return super()._stream_event(fd, event)
        self._hear_successor(stream)
        return True

    def _hear_successor(self, stream: InStream) -> None:
        """Learns whether the peer goes on with the other connection that it has made, or has thought better of it."""
        goes_on = stream.hear_successor()
        if goes_on is None:
            return
        with self._settling(stream):
            if goes_on:
                stream.succeed()
            else:
                stream.withdraw_successor()
        self._drained.append(stream)

    @contextmanager
    def _settling(self, stream: InStream) -> Iterator[None]:
        """What happens here may decide between a stream's connection and the other one that the peer has made."""
        before, other = stream.socket, stream.successor
        other_fd = -1 if other is None else other.fileno()
        yield
        if other is not None and stream.successor is None:
            self._registered.forget(other_fd)
            del self._successor_of[other_fd]
        if stream.socket is before:
            return
        self.moved += 1
        if isinstance(stream, InLane):
            assert before is not None
            self._registered.forget(before)
            del self._lane_of[before.fileno()]
            self._lane_of[other_fd] = stream
            before.close()
        else:
            if before is not None and before is not stream.out:
                self._release_socket(before)
                before.close()
            self._by_fd[other_fd] = stream
            self._end_first(stream)

    def _end_first(self, link: PeerConnection) -> None:
        """Ends the first connection that is being made, where both directions have gone on without it."""
        if link.socket is not None and link.out is not None:
            self._connecting.drop(link.rank, None)

    def _forget_successor(self, stream: InStream) -> None:
        if stream.successor is not None:
            self._registered.forget(stream.successor)
            self._successor_of.pop(stream.successor.fileno(), None)

    def _forget_lane(self, lane: OutLane | InLane) -> None:
        if isinstance(lane, InLane):
            self._forget_successor(lane)
        super()._forget_lane(lane)

    def _drop(self, link: PeerConnection, why: str) -> None:
        self._connecting.drop(link.rank, link.number)
        self._moves.pop(link, None)
        self._forget_successor(link)
        super()._drop(link, why)

    def _read(self, link: PeerConnection) -> bool:
        if link.successor is not None:
            self._hear_successor(link)
        return super()._read(link)

    def _read_on(self, stream: InStream) -> bool:
        """Handles what was read before, and waits for more."""
        if isinstance(stream, InLane):
            moved = self._read_lane(stream)
            self._watch_lane(stream)
        else:
            moved = self._read(stream)
            self._watch(stream)
        return moved
