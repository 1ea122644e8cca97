# SPDX-License-Identifier: Apache-2.0
"""A connected mesh with lanes: what carries the parts of cut messages, over the paths that were planned for them.

    expect   before a collective: the controller's plan for it -> weights of source ports, by peer
    cut      a message to a peer -> its parts, by the lane that carries each; none where it travels whole
    post     parts -> lanes, which are opened when they are first needed
    place    a cut message's header has come: its parts may be read into this memory

A lane keeps its source port for life.  Where its path dies, TCP sends again until an answer comes: the switches send
what names a dead path over another one (controller/paths/steering.py) as soon as the link is seen to be down, or as
this rank reports that nothing is acknowledged.
"""

from __future__ import annotations

import logging
import select
import socket
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final
from weakref import WeakKeyDictionary

from netfold.host.errors import NetFoldError, RankMismatch, TransportError
from netfold.host.mesh.connected import BURST_BYTES, ConnectedMesh
from netfold.host.mesh.connecting import PeerUnreachable, Proven
from netfold.host.mesh.connection import PeerConnection, Receive
from netfold.host.mesh.lanes import (
    CUT_BYTES,
    DEAD_SECONDS,
    MOST_LANES,
    PART,
    Assembly,
    InLane,
    OutLane,
    PeerLanes,
    Silence,
    Striped,
    StripedPart,
    WarnOnce,
    condition_of,
    path_of,
    tune,
)
from netfold.host.mesh.planned import Collective, PathSource
from netfold.host.mesh.source_ports import LEAST_PART, MessagePart, SourcePorts
from netfold.host.tracing.timeline import Timeline
from netfold.wire.jobs import Plan
from netfold.wire.paths import Paths, tcp_ports

LOOK_SECONDS: Final = 0.02
"""Seconds between two looks at whether planned paths answer, while this rank waits."""
AGAIN_SECONDS: Final = 1.0
"""Seconds until a path that still does not answer is reported again."""

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
        super().__init__(plan, listener, timeout=timeout, clock=clock, timeline=timeline)
        self._planned = planned
        self._expected: Collective | None = None
        """What comes, as long as its paths have not been asked for."""
        self.source_ports = SourcePorts(planned.ports if planned is not None else (), self._links)
        self._lanes = {rank: PeerLanes() for rank in self._links}
        self._lane_of: dict[int, OutLane | InLane] = {}
        """By descriptor."""
        self._registered: dict[int, int] = {}
        """Poll events that a lane's descriptor is registered for."""
        self._reported: dict[tuple[int, int], float] = {}
        """(Peer, source port) of paths that did not answer -> when that was last reported."""
        self._looked_at_paths = clock()
        self.longest_stall = 0.0
        """Seconds that a connection had bytes in flight and none acknowledged, as seen while this rank waited, where
        paths are planned."""
        self._silences: WeakKeyDictionary[socket.socket, Silence] = WeakKeyDictionary()
        self._warn = WarnOnce(log, f"job {plan.job!r}, rank {plan.rank}")

    # ---- plans -----------------------------------------------------------------------------------------------------
    def expect(self, algorithm: str, *, ranks: Sequence[int] = (), root: int = 0) -> None:
        if self._planned is None or len(ranks) == 1:
            return
        self._expected = Collective(algorithm, tuple(ranks), root)

    def adopt(self, paths: Paths) -> None:
        """Cuts and sends messages as planned from now on."""
        self.source_ports.adopt(paths)

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
        return tcp_ports(ports[(self.rank + peer) % len(ports)]) if ports else ()

    # ---- sending ---------------------------------------------------------------------------------------------------
    def post(self, peer: int, view: memoryview, parts: Sequence[MessagePart]) -> Striped:
        """Posts the parts of a message on their lanes.  Returns what is done once they, and the header, are sent."""
        lanes, whole, weighted = self._lanes[peer], Striped(len(parts)), self.source_ports.weighted_ports(peer)
        for lane, first, last in parts:
            out = self._out_lane(peer, weighted[lane].port)
            head = memoryview(PART.pack(lanes.sent, first, last - first))
            out.post(StripedPart(whole, head, view[first:last]))
            if out.socket is not None and len(out.sends) == 1:
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
            lanes.out[port] = OutLane(peer)
            self._open_lane(self._links[peer])
        return lanes.out[port]

    def _open_lane(self, link: PeerConnection) -> None:
        """Connects the next lane to a peer that is not yet: one after the other, so that a rank to which many open some
        at once still keeps no more unproven connections than there are ranks."""
        port = next((port for port, lane in self._lanes[link.rank].out.items() if lane.socket is None), None)
        if port is None or link.lost or self._error is not None:
            return
        try:
            self._connecting.connect(link.rank, link.address, lane=port, ports=tcp_ports(port))
        except PeerUnreachable as error:
            self._drop(link, f"cannot connect: {error}")
        except (OSError, ValueError) as error:
            what = f"cannot connect to rank {link.rank} at {link.address!r}: {error}"
            raise self._fail(TransportError, what) from error

    def _close_idle(self, lanes: PeerLanes) -> None:
        """Closes a lane of earlier plans; what the kernel has of it still arrives."""
        for port, lane in lanes.out.items():
            if lane.socket is not None and not lane.sends:
                del lanes.out[port]
                self._release(lane)
                return

    def _write_lane(self, lane: OutLane) -> bool:
        try:
            return lane.write(BURST_BYTES) > 0
        except OSError as error:
            self._lose_lane(lane, error.strerror or str(error))
            return True

    # ---- receiving -------------------------------------------------------------------------------------------------
    def place(self, peer: int, receive: Receive, view: memoryview) -> None:
        """Lets the parts of the peer's next cut message be read: its header has come."""
        number = self._lanes[peer].announce(Assembly(receive, view, len(view)))
        for lane in self._lanes[peer].incoming:
            if lane.waiting and lane.number == number:
                self._begin_part(lane)
                self._watch_lane(lane)

    def _read_lane(self, lane: InLane) -> bool:
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
        assembly, number = lane.of, lane.number
        assert assembly is not None
        lane.next_part()
        if not assembly.left:
            del self._lanes[lane.rank].assemblies[number]
            self._assembled(self._links[lane.rank], assembly.receive)

    @abstractmethod
    def _assembled(self, link: PeerConnection, receive: Receive) -> None:
        """Handles a cut message all parts of which have arrived."""

    # ---- lanes as descriptors ------------------------------------------------------------------------------------
    def _admit_lane(self, rank: int) -> bool:
        return len(self._lanes[rank].incoming) < 2 * MOST_LANES and not self._links[rank].lost

    def _attach_lane(self, link: PeerConnection, came: Proven) -> None:
        lanes, sock = self._lanes[link.rank], came.socket
        lane: OutLane | InLane
        tune(sock, self._timeout)
        if not came.lane:
            lane = InLane(link.rank, sock)
            lanes.incoming.append(lane)
        elif came.lane in lanes.out:
            lane = lanes.out[came.lane]
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            lane.attach(sock)
            self._open_lane(link)
        else:
            sock.close()
            return
        self._lane_of[sock.fileno()] = lane
        self._watch_lane(lane)

    def _lane_event(self, fd: int, event: int) -> bool:
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
            if event & ~select.POLLOUT and lane.socket is not None:
                self._hear(lane)
        self._watch_lane(lane)
        return moved

    def _hear(self, lane: OutLane) -> None:
        """Learns why a lane of this rank can be read, by which nobody should send: its end."""
        assert lane.socket is not None
        try:
            why = "it sends where it should only listen" if lane.socket.recv(1) else "it closed the connection"
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            why = error.strerror or str(error)
        self._lose_lane(lane, why)

    def _watch_lane(self, lane: OutLane | InLane) -> None:
        """Registers for what a lane waits for."""
        fd = -1 if lane.socket is None else lane.socket.fileno()
        if fd < 0:
            return
        events = lane.events if isinstance(lane, OutLane) else 0 if lane.waiting else select.POLLIN
        if events != self._registered.get(fd, 0):
            if not self._registered.get(fd, 0):
                self._poller.register(fd, events)
            elif not events:
                self._poller.unregister(fd)
            else:
                self._poller.modify(fd, events)
            self._registered[fd] = events

    def _release(self, lane: OutLane | InLane) -> None:
        """Closes a lane's socket."""
        if lane.socket is None or (fd := lane.socket.fileno()) < 0:
            return
        if self._registered.pop(fd, 0):
            self._poller.unregister(fd)
        self._lane_of.pop(fd, None)
        lane.close()

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
            self._read(link)  # the reason may stand in a report
            self._drop(link, why)

    def _still_arriving(self, link: PeerConnection) -> bool:
        lanes = self._lanes[link.rank]
        return bool(lanes.assemblies and lanes.incoming)

    # ---- paths that die ------------------------------------------------------------------------------------------
    def _poll_once(self, seconds: float) -> bool:
        if self._planned is None:
            return super()._poll_once(seconds)
        moved = super()._poll_once(min(seconds, LOOK_SECONDS))
        now = self._clock()
        if now >= self._looked_at_paths + LOOK_SECONDS:
            self._looked_at_paths = now
            self._look_at_paths(self._planned, now)
        return moved

    def _look_at_paths(self, planned: PathSource, now: float) -> None:
        """Takes the controller's news, and reports the paths that do not answer."""
        newer = planned.newer()
        if newer is not None:
            self.source_ports.restrict(newer)
        for peer, lanes in self._lanes.items():
            for sock in (self._links[peer].socket, *(lane.socket for lane in lanes.out.values())):
                if sock is None:
                    continue
                with suppress(OSError):  # who reads or writes there learns of it
                    condition = condition_of(sock)
                    silence = self._silences.setdefault(sock, Silence()).lasts(condition, now)
                    self.longest_stall = max(self.longest_stall, silence)
                    port = path_of(sock) if condition.repeats and silence >= DEAD_SECONDS else None
                    if port is not None and now >= self._reported.get((peer, port), -AGAIN_SECONDS) + AGAIN_SECONDS:
                        self._reported[peer, port] = now
                        log.warning("job %r, rank %d: no answer from rank %d over the path of source port %d",
                                    self._plan.job, self.rank, peer, port)
                        planned.suspect(peer, port)

    def reset_stalls(self) -> None:
        """Resets ``longest_stall``."""
        self.longest_stall = 0.0

    def lanes_in_use(self) -> int:
        """Lanes between this rank and its peers, in both directions."""
        return sum(len(lanes.out) + len(lanes.incoming) for lanes in self._lanes.values())

    def segments_sent_again(self) -> int:
        """Segments that connections which are open have sent again."""
        socks = [link.socket for link in self._links.values()]
        socks += [lane.socket for lanes in self._lanes.values() for lane in lanes.out.values()]
        return sum(condition_of(sock).sent_again for sock in socks if sock is not None)

    # ---- life ----------------------------------------------------------------------------------------------------
    def abort(self, error: BaseException) -> None:
        for lanes in self._lanes.values():
            for lane in lanes.incoming:  # nothing is written into the caller's memory any more
                fd = lane.socket.fileno()
                if self._registered.pop(fd, 0):
                    self._poller.unregister(fd)
                self._lane_of.pop(fd, None)
            lanes.assemblies.clear()
        super().abort(error)

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
