# SPDX-License-Identifier: Apache-2.0
"""All lanes of a rank: what carries the parts of cut messages, over the paths that were planned for them.

    expect   before a collective: the controller's plan for it -> weights of source ports, by peer
    cut      a message to a peer -> its parts, by the lane that carries each; none where it travels whole
    post     parts -> lanes, which are opened when they are first needed
    place    a cut message's header has come: its parts may be read into this memory

A lane keeps its source port for life, and so does the connection for messages, which takes one of a planned path where
there are any.  Where its path dies, TCP sends again until an answer comes: the switches send what names a dead path
over another one (controller/paths/steering.py) as soon as the link is seen to be down, or as this rank reports that
nothing is acknowledged (``path_watch``).
"""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from netfold.host.errors import NetFoldError, RankMismatch
from netfold.host.mesh.connecting import Proven
from netfold.host.mesh.connection import PeerConnection, Receive
from netfold.host.mesh.connections import BURST_BYTES, Spans
from netfold.host.mesh.lanes import (
    CUT_BYTES,
    MOST_LANES,
    PART,
    Assembly,
    InLane,
    OutLane,
    PeerLanes,
    Striped,
    StripedPart,
    WarnOnce,
)
from netfold.host.mesh.operations import Operations
from netfold.host.mesh.planned import Collective, PathSource
from netfold.host.mesh.sockets import path_of, tune, unacknowledged
from netfold.host.mesh.source_ports import LEAST_PART, MessagePart, SourcePorts
from netfold.wire.paths import Paths, tcp_ports

ANY: Final = Collective("ring")
"""The collective whose paths are requested if none was announced: it is cheap to plan, and includes paths to all
ranks."""

log = logging.getLogger("netfold")


class Lanes:
    """The lanes between one rank and its peers, in both directions.

    operations  whose connections these lanes go beside
    planned     the controller's paths; owned by this object from here on.  None: messages travel whole, each peer's on
                one connection, whose path the switches' hash chooses
    assembled   called with a peer's connection and the receive of a cut message all parts of which have arrived
    """

    def __init__(
        self, operations: Operations, planned: PathSource | None, *, spanned: Spans,
        assembled: Callable[[PeerConnection, Receive], None],
    ) -> None:
        self.planned = planned
        self._operations, self._connections = operations, operations.connections
        self._links = operations.connections.links
        self._spanned, self._assembled = spanned, assembled
        self._expected: Collective | None = None
        """The coming collective, until its paths have been requested."""
        self._adopted = False
        self.source_ports = SourcePorts(planned.ports if planned is not None else (), self._links)
        self.of = {rank: PeerLanes() for rank in self._links}
        self._warn = WarnOnce(log, f"job {operations.plan.job!r}, rank {operations.plan.rank}")
        self._connections.have(self)

    # ---- plans -------------------------------------------------------------------------------------------------------
    def expect(self, algorithm: str, ranks: Sequence[int], root: int) -> None:
        """See ``Mesh``."""
        if self.planned is not None and len(ranks) != 1:
            self._expected = Collective(algorithm, tuple(ranks), root)

    def adopt(self, paths: Paths) -> None:
        """Cuts and sends messages as planned from now on."""
        self._adopted = True
        self.source_ports.adopt(paths)
        for link in self._links.values():
            self.attached(link)

    def attached(self, link: PeerConnection) -> None:
        """Tunes a peer's connection for messages where it crosses planned paths: long messages are cut then, and go on
        lanes.  On one that carries them, whose round trips vary with its own queue, the kernel would repeat too early.
        """
        if link.socket is None or self.planned is None:
            return
        if self.source_ports.ports_to(link.rank) or path_of(link.socket) is not None:
            tune(link.socket, self._operations.timeout)

    def cut(self, peer: int, nbytes: int) -> Sequence[MessagePart]:
        """The parts of a message to a peer, by the places of ``SourcePorts.weighted_ports`` that carry them; none where
        it travels whole.  Paths are asked for by an operation's first long message, or connection."""
        if self.planned is None or nbytes < LEAST_PART:
            return []
        if self._expected is not None:
            self._ask(self.planned, self._expected)
        if not self.source_ports.weighted_ports(peer):
            return []
        return self.source_ports.split(peer, nbytes, lanes=1, mtu=CUT_BYTES)

    def ports_to(self, peer: int) -> Sequence[int]:
        """TCP source ports for the connection for messages to a peer, to be tried in this order; empty: any.

        A path with one name, as that of sprayed packets, leaves it to its lane: two connections cannot have it."""
        if self.planned is None:
            return ()
        if self._expected is not None or not self._adopted:
            self._ask(self.planned, self._expected or ANY)
        paths = [names for port in self.source_ports.ports_to(peer) if len(names := tcp_ports(port)) > 1]
        return paths[(self._operations.plan.rank + peer) % len(paths)] if paths else ()

    def _ask(self, planned: PathSource, wanted: Collective) -> None:
        """Takes the paths of a collective, where there are newer ones."""
        self._expected = None
        paths = planned.changed(wanted)
        if paths is not None:
            self.adopt(paths)

    # ---- sending -----------------------------------------------------------------------------------------------------
    def post(self, peer: int, view: memoryview, parts: Sequence[MessagePart]) -> Striped:
        """Posts the parts of a message on their lanes.  Returns what is done once they, and the header, are sent."""
        lanes, whole, weighted = self.of[peer], Striped(len(parts)), self.source_ports.weighted_ports(peer)
        for lane, first, last in parts:
            out = self._out_lane(peer, weighted[lane].port)
            head = memoryview(PART.pack(lanes.sent, first, last - first))
            out.post(StripedPart(whole, head, view[first:last]))
            if out.socket is not None:
                if len(out.sends) == 1:
                    self._write(out)
                self._watch_out(out)
        lanes.count_sent()
        return whole

    def _out_lane(self, peer: int, port: int) -> OutLane:
        """The lane to a peer for a source port.  Where there is no room for one more, it is one of those there are."""
        lanes = self.of[peer]
        if port not in lanes.out:
            if len(lanes.out) >= MOST_LANES:
                self._close_idle(lanes)
            if len(lanes.out) >= MOST_LANES:
                self._warn("more than %d source ports lead to rank %d, as many as there are lanes: some parts take "
                           "lanes of other paths", MOST_LANES, peer)
                return list(lanes.out.values())[port % MOST_LANES]
            if not tcp_ports(port):
                self._warn("no TCP port names the path of source port %d to rank %d, whose number is too large: this "
                           "lane, and others like it, take the path that the switches' hash chooses", port, peer)
            lanes.begin(peer, port)
            self._open(peer)
        return lanes.out[port]

    def _open(self, peer: int) -> None:
        """Connects the next lane to a peer that is not yet: one after the other, so that a rank to which many open some
        at once still keeps no more unproven connections than there are ranks."""
        link = self._links[peer]
        for port, lane in self.of[peer].out.items():
            if lane.socket is None and not link.lost and self._operations.error is None:
                self._connections.connect_lane(link, lane.number, tcp_ports(port))
                return

    def _close_idle(self, lanes: PeerLanes) -> None:
        """Closes a lane of earlier plans; what the kernel has of it still arrives."""
        for port, lane in lanes.out.items():
            if lane.socket is not None and not lane.sends and not unacknowledged(lane.socket):
                del lanes.out[port]
                self._release(lane)
                return

    def _write(self, lane: OutLane) -> bool:
        try:
            return lane.write(BURST_BYTES) > 0
        except OSError as error:
            self._lose(lane, error.strerror or str(error))
            return True

    # ---- receiving ---------------------------------------------------------------------------------------------------
    def place(self, peer: int, receive: Receive) -> None:
        """Lets the parts of the peer's next cut message be read, to this receive's memory: its header has come."""
        lanes = self.of[peer]
        number = lanes.announce(Assembly(receive, receive.view, len(receive.view)))
        for lane in list(lanes.incoming):
            if lane.waiting and lane.message == number:
                self._begin_part(lane)
                self._watch_in(lane)

    def read(self, lane: InLane) -> bool:
        """Reads what has come on a lane, about ``BURST_BYTES`` at most.  Returns whether anything has.  Raises
        RankMismatch."""
        if self._operations.error is not None:
            return False  # nothing is written into the caller's memory any more
        total = 0
        try:
            while total < BURST_BYTES and not lane.waiting and lane.socket.fileno() >= 0:
                if lane.into is None:
                    got = lane.read_header()
                    if lane.header_bytes == PART.size:
                        self._begin_part(lane)
                else:
                    got = lane.read_payload()
                    if not lane.into:
                        self._end_part(lane)
                if not got:
                    self._lose(lane, "it closed a lane")
                total += got
        except (BlockingIOError, InterruptedError):
            pass
        except NetFoldError:
            raise
        except OSError as error:
            self._lose(lane, error.strerror or str(error))
        return total > 0

    def _begin_part(self, lane: InLane) -> None:
        number, offset, size = PART.unpack(lane.header)
        lanes = self.of[lane.rank]
        assembly = lanes.assemblies.get(number)
        if assembly is not None and assembly.begin(offset, size):
            lane.place(assembly, offset, size)
        elif assembly is not None or number < lanes.announced:
            room = "one that is complete" if assembly is None else f"one of {len(assembly.view)} bytes, of which " \
                                                                   f"{assembly.left} are missing"
            raise self._operations.failure(
                RankMismatch, f"rank {lane.rank} sends bytes {offset} .. {offset + size} of its cut message {number}, "
                              f"{room}; give all ranks the same version of NetFold")

    def _end_part(self, lane: InLane) -> None:
        assembly, number = lane.of, lane.message
        assert assembly is not None
        lane.next_part()
        if not assembly.left:
            del self.of[lane.rank].assemblies[number]
            self._assembled(self._links[lane.rank], assembly.receive)

    # ---- connections -------------------------------------------------------------------------------------------------
    def admit(self, rank: int) -> bool:
        """True if this rank accepts one more lane of a peer that has proven itself."""
        return len(self.of[rank].incoming) < 2 * MOST_LANES

    def attach(self, came: Proven) -> None:
        """Takes a proven connection for a lane."""
        lanes, sock = self.of[came.rank], came.socket
        tune(sock, self._operations.timeout)
        out = next((lane for lane in lanes.out.values() if came.opened and lane.number == came.lane), None)
        if not came.opened:
            arriving = InLane(came.rank, sock)
            lanes.incoming.append(arriving)
            self._connections.poll_other(sock, lambda event: self._on_in(arriving))
            self._watch_in(arriving)
        elif out is None:
            sock.close()
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            out.attach(sock)
            self._connections.poll_other(sock, lambda event: self._on_out(out, event))
            self._watch_out(out)
            self._open(came.rank)

    def _watch_in(self, lane: InLane) -> None:
        """Polls a lane of a peer's for what it waits for."""
        if lane.socket.fileno() >= 0:
            still = lane.waiting or self._operations.error is not None
            self._connections.watch_other(lane.socket, 0 if still else select.POLLIN)

    def _watch_out(self, lane: OutLane) -> None:
        """Polls a lane of this rank's for its end, and for room for what is posted."""
        if lane.socket is not None:
            events = select.POLLIN | (select.POLLOUT if lane.sends else 0)
            self._connections.watch_other(lane.socket, events)

    def _on_in(self, lane: InLane) -> bool:
        with self._spanned("receive"):
            moved = self.read(lane)
        self._watch_in(lane)
        return moved

    def _on_out(self, lane: OutLane, event: int) -> bool:
        moved = False
        if event & select.POLLOUT and lane.sends:
            with self._spanned("send"):
                moved = self._write(lane)
        if event & ~select.POLLOUT and lane.socket is not None:
            self._hear(lane, lane.socket)
        self._watch_out(lane)
        return moved

    def _hear(self, lane: OutLane, sock: socket.socket) -> None:
        """Learns why a lane of this rank can be read, by which nobody should send: its end."""
        try:
            why = "it sends where it should only listen" if sock.recv(1) else "it closed the connection"
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            why = error.strerror or str(error)
        self._lose(lane, why)

    def _release(self, lane: OutLane | InLane) -> None:
        """Closes a lane's connection."""
        if lane.socket is not None and lane.socket.fileno() >= 0:
            self._connections.forget_other(lane.socket)
        lane.close()

    def _lose(self, lane: OutLane | InLane, why: str) -> None:
        """Handles a lane that has ended: so has the peer's connection, but for a lane on which nothing is missing."""
        link, lanes = self._links[lane.rank], self.of[lane.rank]
        self._release(lane)
        if isinstance(lane, InLane):
            lanes.incoming.remove(lane)
            missing = lane.in_the_middle
        else:
            lanes.forget(lane)
            missing = bool(lane.sends)
        if missing and not link.lost:
            self._connections.read_all(link)  # the reason may stand in a report
            self._connections.drop(link, why)

    def close(self) -> None:
        """Closes all lanes, and lets go of the paths; safe to call twice."""
        if self.planned is not None:
            self.planned.close()
            self.planned = None
        for lanes in self.of.values():
            for came in lanes.incoming:
                self._release(came)
            for lane in lanes.out.values():
                self._release(lane)
            lanes.incoming.clear()
            lanes.out.clear()
            lanes.assemblies.clear()

    # ---- figures -----------------------------------------------------------------------------------------------------
    def still_arriving(self, peer: int) -> bool:
        """True if lanes may still bring parts of messages of a peer whose connection for messages has ended."""
        return bool(self.of[peer].assemblies and self.of[peer].incoming)

    def awaited(self, peer: int) -> int:
        """Bytes of parts that a peer has not sent yet and that somebody waits for."""
        return self.of[peer].bytes_awaited

    def unsent(self, peer: int) -> int:
        """Bytes of parts that a peer has not accepted yet."""
        return self.of[peer].bytes_unsent

    def open_lanes(self) -> int:
        """Lanes in use between this rank and its peers, in both directions."""
        return sum(len(lanes.out) + len(lanes.incoming) for lanes in self.of.values())

    def sockets(self) -> Iterator[tuple[int, socket.socket]]:
        """Each connection on which this rank sends, with the rank to which it leads."""
        for rank, link in self._links.items():
            for sending in (link, *self.of[rank].out.values()):
                if sending.socket is not None:
                    yield rank, sending.socket
