# SPDX-License-Identifier: Apache-2.0
"""A connected mesh with lanes: what carries the parts of cut messages, over the paths that were planned for them.

    expect   before a collective: the controller's plan for it -> weights of source ports, by peer
    cut      a message to a peer -> its parts, by the lane that carries each; none where it travels whole
    post     parts -> lanes, which are opened when they are first needed
    place    a cut message's header has come: its parts may be read into this memory

A lane keeps its source port for life.  Where its path dies, another connection goes on with the lane (``moving``), or
TCP sends again until an answer comes: the switches send what names a dead path over another one
(controller/paths/steering.py) as soon as the link is seen to be down, or as this rank reports that nothing is
acknowledged.
"""

from __future__ import annotations

import logging
import select
import socket
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence

from netfold.host.errors import NetFoldError, RankMismatch
from netfold.host.mesh.connected import ConnectedMesh
from netfold.host.mesh.connecting import Proven
from netfold.host.mesh.connection import PeerConnection, Receive
from netfold.host.mesh.handshake import Outcome, StreamTurn
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
    condition_of,
    tune,
)
from netfold.host.mesh.planned import Collective, PathSource
from netfold.host.mesh.polled import BURST_BYTES
from netfold.host.mesh.sent_log import SentLog, unacknowledged
from netfold.host.mesh.source_ports import LEAST_PART, MessagePart, SourcePorts
from netfold.host.tracing.timeline import Timeline
from netfold.wire.jobs import Plan
from netfold.wire.paths import Paths, tcp_ports

log = logging.getLogger("netfold")


class LanedMesh(ConnectedMesh):
    """The ranks of a plan, connected over TCP, with lanes where paths are planned.

    planned  the controller's paths; owned by the mesh from here on.  None: messages travel whole, each peer's on one
             connection, whose path the switches' hash chooses
    Other parameters and errors are those of ``ConnectedMesh``.
    """

    takes_lanes = True

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
        self._keeps_logs = planned is not None and len(planned.ports) != 1
        """Whether there may be paths over which another connection could go on with a stream: where no ports are known
        yet, the first plan brings them."""
        self._planned = planned
        super().__init__(plan, listener, timeout=timeout, clock=clock, timeline=timeline)
        self._expected: Collective | None = None
        """What comes, as long as its paths have not been asked for."""
        self.source_ports = SourcePorts(planned.ports if planned is not None else (), self._links)
        self._lanes = {rank: PeerLanes() for rank in self._links}
        self._lane_of: dict[int, OutLane | InLane] = {}
        """By descriptor."""
        self._warn = WarnOnce(log, f"job {plan.job!r}, rank {plan.rank}")

    # ---- plans -----------------------------------------------------------------------------------------------------
    def expect(self, algorithm: str, *, ranks: Sequence[int] = (), root: int = 0) -> None:
        if self._planned is None or len(ranks) == 1:
            return
        self._expected = Collective(algorithm, tuple(ranks), root)

    def adopt(self, paths: Paths) -> None:
        """Cuts and sends messages as planned from now on."""
        self.source_ports.adopt(paths)
        for link in self._links.values():
            self._tune_messages(link)

    def _tune_messages(self, link: PeerConnection) -> None:
        """Tunes the connection for messages where it crosses planned paths: long messages are cut then, and go on
        lanes.  On one that carries them, whose round trips vary with its own queue, the kernel would repeat too early.
        """
        if link.out is not None and self.source_ports.ports_to(link.rank):
            tune(link.out, self._timeout)

    def _attach(self, link: PeerConnection, came: Proven) -> None:
        super()._attach(link, came)
        self._tune_messages(link)

    def cut(self, peer: int, nbytes: int) -> Sequence[MessagePart]:
        """The parts of a message to a peer, by the places of ``SourcePorts.weighted_ports`` that carry them; none where
        it travels whole.  Paths are asked for by the first long message of an operation."""
        if self._planned is None or nbytes < LEAST_PART:
            return []
        if self._expected is not None:
            wanted, self._expected = self._expected, None
            paths = self._planned.changed(wanted)
            if paths is not None:
                self.adopt(paths)
        if not self.source_ports.weighted_ports(peer):
            return []
        return self.source_ports.split(peer, nbytes, lanes=1, mtu=CUT_BYTES)

    def _ports_to(self, peer: int) -> Sequence[int]:
        ports = self.source_ports.ports_to(peer) if self._planned is not None else ()
        return tcp_ports(self.source_ports.usable_port(peer, ports[(self.rank + peer) % len(ports)])) if ports else ()

    # ---- sending ---------------------------------------------------------------------------------------------------
    def post(self, peer: int, view: memoryview, parts: Sequence[MessagePart]) -> Striped:
        """Posts the parts of a message on their lanes.  Returns what is done once they, and the header, are sent."""
        lanes, whole, weighted = self._lanes[peer], Striped(len(parts)), self.source_ports.weighted_ports(peer)
        for lane, first, last in parts:
            out = self._out_lane(peer, weighted[lane].port)
            head = memoryview(PART.pack(lanes.sent, first, last - first))
            out.post(StripedPart(whole, head, view[first:last]))
            if out.out is not None and len(out.sends) == 1:
                self._write_lane(out)
            self._watch_lane(out)
        lanes.count_sent()
        return whole

    def _out_lane(self, peer: int, port: int) -> OutLane:
        """The lane to a peer for a source port.  Where there is no room for one more, it is one of those there are."""
        lanes = self._lanes[peer]
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
            lanes.begin(peer, port, SentLog() if self._keeps_logs else None)
            self._open_lane(self._links[peer])
        return lanes.out[port]

    def _open_lane(self, link: PeerConnection) -> None:
        """Connects the next lane to a peer that is not yet: one after the other, so that a rank to which many open some
        at once still keeps no more unproven connections than there are ranks."""
        port, lane = next(((port, lane) for port, lane in self._lanes[link.rank].out.items() if lane.out is None),
                          (0, None))
        if lane is None or link.lost or self._error is not None:
            return
        self._begin_connection(link, StreamTurn(lane.number, lane.asked, lane.asked), tcp_ports(port))

    def _close_idle(self, lanes: PeerLanes) -> None:
        """Closes a lane of earlier plans; what the kernel has of it still arrives."""
        for port, lane in lanes.out.items():
            if lane.out is not None and not lane.sends and not lane.moving and not unacknowledged(lane.out):
                del lanes.out[port]
                self._release(lane)
                return

    def _write_lane(self, lane: OutLane) -> bool:
        if lane.moving or lane.out is None:
            return False
        try:
            return lane.write(BURST_BYTES) > 0
        except OSError as error:
            self._lose_lane(lane, error.strerror or str(error))
            return True

    # ---- receiving -------------------------------------------------------------------------------------------------
    def place(self, peer: int, receive: Receive, view: memoryview) -> None:
        """Lets the parts of the peer's next cut message be read: its header has come."""
        number = self._lanes[peer].announce(Assembly(receive, view, len(view)))
        for lane in list(self._lanes[peer].incoming):
            if lane.waiting and lane.message == number:
                self._begin_part(lane)
                if lane.kept:
                    self._read_lane(lane)
                self._watch_lane(lane)

    def _read_lane(self, lane: InLane) -> bool:
        if self._error is not None:
            return False  # nothing is written into the caller's memory any more
        total = 0
        try:
            while (total < BURST_BYTES or lane.kept) and not lane.waiting and lane.socket.fileno() >= 0:
                if lane.into is None:
                    got = lane.read_header()
                    if lane.header_bytes == PART.size:
                        self._begin_part(lane)
                else:
                    got = lane.read_payload()
                    if not lane.into:
                        self._end_part(lane)
                if not got:
                    self._lose_lane(lane, "it closed a lane")
                total += got
        except (BlockingIOError, InterruptedError):
            pass
        except NetFoldError:
            raise
        except OSError as error:
            self._lose_lane(lane, error.strerror or str(error))
        return total > 0

    def _begin_part(self, lane: InLane) -> None:
        number, offset, size = PART.unpack(lane.header)
        lanes = self._lanes[lane.rank]
        assembly = lanes.assemblies.get(number)
        if assembly is not None and assembly.begin(offset, size):
            lane.place(assembly, offset, size)
        elif assembly is not None or number < lanes.announced:
            room = "one that is complete" if assembly is None else f"one of {len(assembly.view)} bytes, of which " \
                                                                   f"{assembly.left} are missing"
            raise self._fail(RankMismatch, f"rank {lane.rank} sends bytes {offset} .. {offset + size} of its cut "
                                           f"message {number}, {room}; give all ranks the same version of NetFold")

    def _end_part(self, lane: InLane) -> None:
        assembly, number = lane.of, lane.message
        assert assembly is not None
        lane.next_part()
        if not assembly.left:
            del self._lanes[lane.rank].assemblies[number]
            self._assembled(self._links[lane.rank], assembly.receive)

    @abstractmethod
    def _assembled(self, link: PeerConnection, receive: Receive) -> None:
        """Handles a cut message all parts of which have arrived."""

    def _tune(self, sock: socket.socket) -> None:
        if self._planned is not None and len(self._planned.ports) > 1:  # there are paths from the start
            tune(sock, self._timeout)

    # ---- lanes as descriptors ------------------------------------------------------------------------------------
    def _admit_stream(self, rank: int, stream: StreamTurn) -> tuple[Outcome, int]:
        room = len(self._lanes[rank].incoming) < 2 * MOST_LANES and not self._links[rank].lost
        begins = stream.number > 0 and stream.now == stream.turn
        return Outcome.ACCEPTED if begins and room else Outcome.TAKEN, 0

    def _attach_stream(self, link: PeerConnection, came: Proven) -> None:
        """Takes a proven connection that begins a lane."""
        assert came.stream is not None
        lanes, sock, number = self._lanes[link.rank], came.socket, came.stream.number
        tune(sock, self._timeout)
        if not came.opened:
            arriving = InLane(link.rank, sock, number)
            arriving.begin(sock, came.stream.turn)
            lanes.incoming.append(arriving)
            self._lane_of[sock.fileno()] = arriving
            self._watch_lane(arriving)
        elif (out := lanes.out_lane(number)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            out.write_to(sock)
            self._lane_of[sock.fileno()] = out
            self._watch_lane(out)
            self._open_lane(link)
        else:
            sock.close()

    def _stream_event(self, fd: int, event: int) -> bool:
        lane = self._lane_of.get(fd)
        if lane is None:
            return False
        moved = False
        if isinstance(lane, InLane):
            with self.spanned("receive"):
                moved = self._read_lane(lane)
        else:
            if event & select.POLLOUT and lane.sends:
                with self.spanned("send"):
                    moved = self._write_lane(lane)
            if event & ~select.POLLOUT and lane.out is not None:
                self._hear(lane)
        self._watch_lane(lane)
        return moved

    def _hear(self, lane: OutLane) -> None:
        """Learns why a lane of this rank can be read, by which nobody should send: its end."""
        assert lane.out is not None
        try:
            why = "it sends where it should only listen" if lane.out.recv(1) else "it closed the connection"
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            why = error.strerror or str(error)
        self._lose_lane(lane, why)

    def _watch_lane(self, lane: OutLane | InLane) -> None:
        """Registers for what a lane waits for."""
        if isinstance(lane, InLane):
            if lane.socket.fileno() >= 0:
                still = lane.waiting or lane.successor is not None or self._error is not None
                self._registered.watch(lane.socket, 0 if still else select.POLLIN)
        elif lane.out is not None:
            writes = select.POLLOUT if lane.wants_to_write else 0
            self._registered.watch(lane.out, 0 if lane.moving else select.POLLIN | writes)

    def _release(self, lane: OutLane | InLane) -> None:
        """Closes a lane's connection."""
        self._forget_lane(lane)
        lane.close()

    def _forget_lane(self, lane: OutLane | InLane) -> None:
        """Forgets a lane's connection, which is going to be closed."""
        sock = lane.socket if isinstance(lane, InLane) else lane.out
        if sock is not None and sock.fileno() >= 0:
            self._registered.forget(sock)
            self._lane_of.pop(sock.fileno(), None)

    def _lose_lane(self, lane: OutLane | InLane, why: str) -> None:
        """Handles a lane that has ended: so has the peer's connection, but for a lane on which nothing is missing."""
        link, lanes = self._links[lane.rank], self._lanes[lane.rank]
        self._release(lane)
        if isinstance(lane, InLane):
            lanes.incoming.remove(lane)
            missing = lane.in_the_middle
        else:
            lanes.forget(lane)
            missing = bool(lane.sends)
        if missing and not link.lost:
            self._read_all(link)  # the reason may stand in a report
            self._drop(link, why)

    def _still_arriving(self, link: PeerConnection) -> bool:
        lanes = self._lanes[link.rank]
        return bool(lanes.assemblies and lanes.incoming)

    # ---- figures -------------------------------------------------------------------------------------------------
    def lanes_in_use(self) -> int:
        """Lanes between this rank and its peers, in both directions."""
        return sum(len(lanes.out) + len(lanes.incoming) for lanes in self._lanes.values())

    def segments_sent_again(self) -> int:
        """Segments that connections which are open have sent again."""
        socks = [link.out for link in self._links.values()]
        socks += [lane.out for lanes in self._lanes.values() for lane in lanes.out.values()]
        return sum(condition_of(sock).sent_again for sock in socks if sock is not None)

    # ---- life ----------------------------------------------------------------------------------------------------
    def _close_connections(self) -> None:
        if self._planned is not None:
            self._planned.close()
            self._planned = None
        super()._close_connections()
        for lanes in self._lanes.values():
            for came in lanes.incoming:
                self._release(came)
            for lane in lanes.out.values():
                self._release(lane)
            lanes.incoming.clear()
            lanes.out.clear()
            lanes.assemblies.clear()
