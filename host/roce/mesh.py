# SPDX-License-Identifier: Apache-2.0
"""The rail "roce": a mesh of reliable connections in plain RoCEv2, which no switch needs to know.

Between any two ranks there is one queue pair for control and some for data (``queue_pairs``: one message is split over
all of them, each with a UDP source port, and so maybe a path, of its own).  Numbers and first PSNs follow from the
plan, so nothing has to be agreed on.

    receiver                                              sender
    receive(): registers the memory,
               WRITEs a clear-to-send (96 bytes) ------->  into its inbox, one ring of slots for each peer
                                                           send(): takes the oldest one of the same tag
               memory is filled          <---------------  WRITEs the data, in one piece for each queue pair
    done: all pieces are whole                             done: all pieces are acknowledged

So data never arrives where no memory waits for it.  TCP connections (``mesh.connected``) carry only news: who died, who
waits for whom.  Ranks that call different things are found out by the call in the clear-to-send.
"""

from __future__ import annotations

import os
import socket
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count, pairwise

import numpy as np

from netfold.host.errors import NetFoldError, PeerLost, PlanError, RankMismatch, TransportError
from netfold.host.mesh.connected import LOOK, SAME, ConnectedMesh
from netfold.host.mesh.link import Link
from netfold.host.mesh.mesh import DONE, IDLE, Call, Flat, Pending, as_bytes
from netfold.host.native_library import RUN_PACKETS
from netfold.host.roce import native
from netfold.host.roce.detours import Detours
from netfold.host.roce.native import ANSWERED, ARRIVED, SENT, STALLED, Endpoint, EndpointIo, Event, Pair
from netfold.host.roce.path_client import Collective, PlannedPaths
from netfold.host.roce.sockets import OURS, open_endpoint
from netfold.host.roce.ways import MOST_PAIRS, Way, Ways
from netfold.wire import roce
from netfold.wire.jobs import Plan
from netfold.wire.paths import Paths

CLEAR = struct.Struct("!QQIIHH68s")
"""call number, bytes, tag, key, path MTU, queue pairs, call text (cut): 96 bytes."""
SLOTS = 64
"""Receives that one rank may have posted at another before the next waits for one to be done."""
MOST_PORTS = 256
ENTROPIES = 32
"""Source ports that REPS draws from, where none are given: alike on all ranks, for answers name them."""
SPLIT = 16 << 10
"""Bytes of a piece at least: smaller messages go over one queue pair."""
SLICE = 0.1
"""Seconds in native code between looks at Python's signals (Ctrl-C)."""
ACCEPT = 0.01
"""Seconds, three times, that a rank which gives up waits for connections that are being made."""
LINGER = 0.25
"""Seconds of silence after which a closing rank believes that nobody misses an acknowledgement; at most 4 of these."""


class _Message(Pending):
    """One posted end of a message.  ``left``: pieces (of a send) or bytes (of a receive) that are still to come."""

    __slots__ = ("array", "call", "key", "left", "tag")

    def __init__(self, array: Flat, tag: int, call: tuple[int, bytes]) -> None:
        super().__init__()
        self.array = array
        self.tag = tag
        self.call = call
        self.key = -1
        self.left = 0


@dataclass(frozen=True)
class _Clear:
    """A peer's clear-to-send."""

    number: int
    nbytes: int
    tag: int
    key: int
    text: bytes


@dataclass(eq=False)
class _End:
    """Our end of the connections to one peer."""

    rank: int
    pairs: list[int]
    """Queue pairs: control, then data, which are made when the first message needs them."""
    inbox: Flat
    address: str
    sends: list[_Message] = field(default_factory=list)
    """Posted and not done."""
    unmatched: deque[_Message] = field(default_factory=deque)
    """Those of them without a clear-to-send."""
    clears: list[_Clear] = field(default_factory=list)
    receives: list[_Message] = field(default_factory=list)
    """Posted and not done."""
    ungranted: deque[_Message] = field(default_factory=deque)
    """Those of them that the peer does not know of yet."""
    granted: int = 0
    turn: int = 0

    @property
    def busy(self) -> bool:
        """Something is posted."""
        return bool(self.sends or self.receives)


class RoceMesh(ConnectedMesh):
    """The ranks of a plan over RC queue pairs.  Owns ``listener``.

    queue_pairs  for data, between any two ranks: 1 .. 15
    path_mtu     payload bytes of a packet; the fabric's MTU must be 60 more
    window       packets in flight on a queue pair, a power of two
    reorder      packets that may overtake one before it counts as lost: more where paths are sprayed
    ports        UDP source ports, which queue pairs take in turn; default: as many as needed, chosen by the kernel
    recycle      every packet takes one of ``ports`` by itself (REPS, native/reps.h); ``reorder`` should be large
    planned      the controller's paths: gives queue_pairs and ports, and is the mesh's from here on
    shared       a FoldRail is going to be opened on the same address (``sockets``)
    All ranks must give the same queue_pairs, path_mtu and window.
    Raises PlanError, TransportError, ValueError.
    """

    kind = "queue pairs"
    name = "RoCE mesh"

    def __init__(
        self,
        plan: Plan,
        listener: socket.socket,
        *,
        timeout: float,
        queue_pairs: int = 1,
        path_mtu: int = roce.PATH_MTU,
        window: int = 512,
        reorder: int = 3,
        ports: Sequence[int] = (),
        recycle: bool = False,
        planned: PlannedPaths | None = None,
        shared: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if planned is not None:
            queue_pairs, ports = planned.queue_pairs, planned.ports
        if not 1 <= queue_pairs <= MOST_PAIRS:
            raise ValueError(f"queue_pairs={queue_pairs}: expected 1 .. {MOST_PAIRS}")
        if len(ports) > MOST_PORTS or len(set(ports)) < len(ports) or not all(0 < port < 65536 for port in ports):
            raise ValueError(f"ports={list(ports)}: expected up to {MOST_PORTS} different ports of 1 .. 65535")
        addresses = {peer.rank: peer.address for peer in plan.peers}
        if len(set(addresses.values())) < plan.world:
            raise PlanError(f"plan of job {plan.job!r}: addresses {addresses}: queue pairs need one for each rank")
        super().__init__(plan, listener, timeout=timeout, clock=clock)
        self.queue_pairs = queue_pairs
        self.path_mtu = path_mtu
        mine = addresses[plan.rank]
        self._ids = count(1)
        self._writes: dict[int, tuple[_End, _Message] | Flat] = {}
        """Whose piece a write is; or a clear-to-send that must stay in memory until it is acknowledged."""
        self._reads: dict[int, tuple[_End, _Message]] = {}
        room = window * min(8, plan.world) * (2 * path_mtu + 256)  # as the kernel counts a packet by itself
        if recycle and not ports:
            ports = range(roce.PATH_PORT + 1, roce.PATH_PORT + 1 + ENTROPIES)
        sockets = open_endpoint(mine, ports or [0] * queue_pairs, room=room, shared=shared)
        try:
            runs = RUN_PACKETS if sockets.super_packets else 1
            self._endpoint = Endpoint(mine, path_mtu=path_mtu, window=window, max_run=runs, reorder=reorder)
            self.ports = list(sockets.senders)
            self._endpoint.ports(self.ports)
            self._recycle = recycle
            self.ways = Ways(self.ports, (rank for rank in addresses if rank != plan.rank))
            self._planned = planned
            self._detours = Detours(self._endpoint, self.ways, me=f"job {plan.job!r}, rank {plan.rank}",
                                    quiet=self._quiet, clock=native.now)
            self._end_of: dict[int, _End] = {}
            """Whose a queue pair is."""
            self._ends = {rank: self._open(rank, addresses[rank]) for rank in range(plan.world)}
            self._io: EndpointIo | None = EndpointIo(self._endpoint, sockets.receiver, sockets.senders)
        except BaseException:
            sockets.close()
            raise

    def _open(self, rank: int, address: str) -> _End:
        """Room for a peer's clears, under the key that is its rank; and the queue pairs, where it is not ourselves."""
        inbox = np.zeros(SLOTS * CLEAR.size, np.uint8)
        key = self._endpoint.register(inbox.ctypes.data, inbox.nbytes)
        assert key == rank, "the first keys count up from 0"
        end = _End(rank, [], inbox, address)
        if rank != self.rank:
            self._connect_pair(end, self.ports[rank % len(self.ports)])
        return end

    def _connect_pair(self, end: _End, port: int) -> None:
        """One more queue pair to this peer: the first is for control."""
        lane, rank = len(end.pairs), end.rank
        index = self._endpoint.connect(Pair(
            peer=end.address,
            peer_qp=self._number(self.rank, lane),
            qp=self._number(rank, lane),
            source_port=port,
            psn=self._psn(self.rank, rank, lane),
            peer_psn=self._psn(rank, self.rank, lane),
        ))  # fmt: skip
        if self._recycle:
            self._endpoint.recycle(index, self._psn(self.rank, rank, lane))
        self._end_of[index] = end
        end.pairs.append(index)
        self._detours.add(index, rank, port)

    def _connect_data(self, end: _End) -> None:
        """The queue pairs for data to and from this peer, once there is any: most ranks talk to few others."""
        if len(end.pairs) == 1:
            ways = self.ways.to(end.rank)
            with self._quiet():
                for lane in range(self.queue_pairs):
                    port = ways[lane].port if lane < len(ways) else self.ports[lane % len(self.ports)]
                    self._connect_pair(end, self.ways.instead(end.rank, port))

    def _number(self, peer: int, lane: int) -> int:
        """The queue pair that a rank has for this peer.  Part of it is the job's, so that another's is not mixed up."""
        salt = zlib.crc32(f"{self._plan.job}/{self._plan.epoch}".encode()) & 0xFF
        return OURS | salt << 15 | peer << 5 | lane

    def _psn(self, source: int, target: int, lane: int) -> int:
        return zlib.crc32(f"{self._plan.job}/{self._plan.epoch}/{source}/{target}/{lane}".encode()) & roce.PSN_MASK

    # ---- posting ---------------------------------------------------------------------------------------------------
    def send(self, peer: int, data: Flat, *, tag: int = 0) -> Pending:
        end = self._ends[self._link(peer).rank]
        if not as_bytes(data, "send of").nbytes:
            return DONE
        message = _Message(data, tag, (self._call.number, self._text))
        end.sends.append(message)
        end.unmatched.append(message)
        self.bytes_sent += data.nbytes
        self._match_clears(end)
        return message

    def receive(self, peer: int, into: Flat, *, tag: int = 0) -> Pending:
        end = self._ends[self._link(peer).rank]
        view = as_bytes(into, "receive into")
        if not view.nbytes:
            return DONE
        if view.readonly:
            raise ValueError("receive into a read-only array")
        message = _Message(into, tag, (self._call.number, self._text))
        message.left = view.nbytes
        end.receives.append(message)
        end.ungranted.append(message)
        self._grant(end)
        return message

    def _grant(self, end: _End) -> None:
        """Tells the peer where its next messages may go."""
        self._connect_data(end)
        while end.ungranted and len(end.receives) - len(end.ungranted) < SLOTS:
            message = end.ungranted.popleft()
            number, text = message.call
            with self._quiet():
                message.key = self._endpoint.register(message.array.ctypes.data, message.array.nbytes)
            self._reads[message.key] = end, message
            clear = CLEAR.pack(
                number, message.array.nbytes, message.tag, message.key, self.path_mtu, self.queue_pairs, text
            )
            slot = end.granted % SLOTS
            end.granted += 1
            self._write_to(end, 0, np.frombuffer(clear, np.uint8), self.rank, slot * CLEAR.size, None)

    def _match_clears(self, end: _End) -> None:
        """Sends what the peer is ready for."""
        for message in list(end.unmatched):
            stray = next((clear for clear in end.clears if (clear.number, clear.text) != message.call), None)
            if stray is not None:
                theirs = Call(stray.number, stray.text.decode(errors="replace"))
                what = f"rank {end.rank} is at {theirs}; expected {self._call}; {SAME}"
                raise self._fail(RankMismatch, what)
            clear = next((clear for clear in end.clears if clear.tag == message.tag), None)
            if clear is None:
                continue
            if clear.nbytes != message.array.nbytes:
                raise self._fail(
                    RankMismatch,
                    f"rank {end.rank} expects {clear.nbytes} bytes where this rank sends {message.array.nbytes} "
                    f"(tag {message.tag}); {SAME}",
                )
            end.clears.remove(clear)
            end.unmatched.remove(message)
            self._write_data(end, message, clear.key)

    def _write_data(self, end: _End, message: _Message, key: int) -> None:
        self._connect_data(end)
        data = message.array.view(np.uint8)
        ways = self.ways.to(end.rank)
        if ways and data.nbytes >= len(ways) * SPLIT:
            self._write_planned(end, message, key, ways)
            return
        parts = max(1, min(self.queue_pairs, data.nbytes // SPLIT))
        piece = min(-(-data.nbytes // (parts * self.path_mtu)) * self.path_mtu, native.LONGEST)
        message.left = -(-data.nbytes // piece)
        for first in range(0, data.nbytes, piece):
            lane = 1 + end.turn % self.queue_pairs
            end.turn += 1
            self._write_to(end, lane, data[first : first + piece], key, first, message)

    def _write_planned(self, end: _End, message: _Message, key: int, ways: Sequence[Way]) -> None:
        """Each way's part of the message, cut on whole packets, by its queue pair."""
        data = message.array.view(np.uint8)
        total = sum(way.weight for way in ways)
        ends = [data.nbytes * reached // total // self.path_mtu * self.path_mtu
                for reached in accumulate(way.weight for way in ways[:-1])]
        cuts = [(lane, first, last) for lane, (first, last) in enumerate(pairwise([0, *ends, data.nbytes]), 1)
                if last > first]
        pieces = [(lane, at, min(at + native.LONGEST, last)) for lane, first, last in cuts
                  for at in range(first, last, native.LONGEST)]
        message.left = len(pieces)
        for lane, first, last in pieces:
            self._write_to(end, lane, data[first:last], key, first, message)

    def _write_to(self, end: _End, lane: int, data: Flat, key: int, offset: int, of: _Message | None) -> None:
        identity = next(self._ids)
        self._writes[identity] = (end, of) if of is not None else data
        with self._quiet():
            posted = self._endpoint.write(
                end.pairs[lane], data.ctypes.data, data.nbytes, key=key, offset=offset, id=identity
            )
        if not posted:
            raise self._fail(PeerLost, f"the connection to rank {end.rank} is broken, or there is no memory; {LOOK}")

    def _quiet(self) -> native.Locked:
        assert self._io is not None
        return self._io.locked()

    # ---- moving ----------------------------------------------------------------------------------------------------
    def flush(self) -> None:
        while any(end.busy for end in self._ends.values()):
            self._turn()

    def _poll(self, seconds: float) -> bool:
        if self._io is None:  # only news are left to tell
            return super()._poll(seconds)
        others = [(link.socket.fileno(), link.events) for link in self._links.values() if link.socket and link.events]
        others += [(fd, native.POLLIN) for fd in self._door.fds()]
        before = self._endpoint.progress()
        with self.spanned("send, wait, receive"):  # all of it in native code
            ready, error = self._io.run(native.now() + int(min(max(0.0, seconds), SLICE) * 1e9), others)
        if error:
            raise self._fail(TransportError, f"the kernel refused a packet: {os.strerror(error)}; see `ip addr`")
        moved = self._take_events() or self._endpoint.progress() != before
        for peer, port in self._detours.proven():
            if self._planned is not None:
                self._planned.suspect(peer, port)
        return (super()._poll(0) if ready else False) or moved

    def _take_events(self) -> bool:
        """Whether anything moved: that a path stands still is news, but the opposite of it."""
        with self._quiet():
            events = list(self._endpoint.events())
        for event in events:
            if event.what == SENT:
                self._sent(event)
            elif event.what == ARRIVED:
                self._arrived_at(event)
            elif event.what == STALLED:
                if len(self.ports) > 1:
                    self._detours.stalled(event)
            elif event.what == ANSWERED:
                self._detours.answered(event)
            else:
                self._broken(event)
        return any(event.what != STALLED for event in events)

    def _sent(self, event: Event) -> None:
        whose = self._writes.pop(event.id)
        if isinstance(whose, tuple):
            end, message = whose
            message.left -= 1
            if not message.left:
                message.done = True
                end.sends.remove(message)

    def _arrived_at(self, event: Event) -> None:
        if event.key < self.size:
            end = self._ends[event.key]
            self._hear_clear(end, bytes(end.inbox[event.offset : event.offset + CLEAR.size]))
            return
        end, message = self._reads[event.key]
        message.left -= event.length
        if message.left:
            return
        del self._reads[event.key]
        with self._quiet():
            self._endpoint.forget(event.key)
        message.done = True
        end.receives.remove(message)
        self._grant(end)

    def _hear_clear(self, end: _End, data: bytes) -> None:
        number, nbytes, tag, key, path_mtu, queue_pairs, text = CLEAR.unpack(data)
        if (path_mtu, queue_pairs) != (self.path_mtu, self.queue_pairs):
            raise self._fail(
                RankMismatch,
                f"rank {end.rank} has path_mtu={path_mtu} and queue_pairs={queue_pairs}, this rank {self.path_mtu} and "
                f"{self.queue_pairs}; give the same on every rank",
            )
        end.clears.append(_Clear(number, nbytes, tag, key, text.rstrip(b"\0")))
        self._match_clears(end)

    def _broken(self, event: Event) -> None:
        rank = self._end_of[event.pair].rank
        side = "it refused our" if event.by_peer else "we refused its"
        self._learn(rank, f"{side} write: {native.SYNDROMES.get(event.syndrome, hex(event.syndrome))}")

    # ---- paths -----------------------------------------------------------------------------------------------------
    def pin(self, peer: int, lane: int, port: int) -> None:
        """Sends data of queue pair ``lane`` (0 ..) to ``peer`` from this one of ``ports`` from now on."""
        if port not in self.ports or not 0 <= lane < self.queue_pairs or peer not in self._links or peer == self.rank:
            raise ValueError(
                f"pin(peer={peer}, lane={lane}, port={port}): expected another rank, a queue pair below "
                f"{self.queue_pairs}, and one of the ports {self.ports}"
            )
        self._connect_data(self._ends[peer])
        self._detours.move(self._ends[peer].pairs[1 + lane], port)

    def adopt(self, paths: Paths) -> None:
        """From now on messages are cut and leave as the controller planned; between operations.

        Raises PlanError for a plan that needs more queue pairs or other ports than this mesh has.
        """
        wanted = {port for reach in paths.reaches for port in reach.source_ports}
        self.ways.adopt(paths)
        if self.ways.most() > self.queue_pairs or not wanted <= set(self.ports):
            raise PlanError(f"paths of job {self._plan.job!r}, rank {self.rank}: need {self.ways.most()} queue pairs "
                            f"to a peer and the source ports {sorted(wanted)}; this mesh has {self.queue_pairs} and "
                            f"{self.ports}: give it Paths.ports and more queue_pairs")
        self._detours.replanned()
        reached = {reach.peer: reach.source_ports for reach in paths.reaches}
        for end in self._ends.values():
            if end.rank != self.rank:
                if ports := reached.get(end.rank):
                    self._detours.move(end.pairs[0], ports[end.rank % len(ports)])
                for pair, way in zip(end.pairs[1:], self.ways.to(end.rank), strict=False):  # those made by now
                    self._detours.move(pair, way.port)

    def forget_stalls(self) -> None:
        """``stalled`` of all standings counts from here on."""
        with self._quiet():
            self._endpoint.forget_stalls()

    def standings(self) -> dict[int, list[native.Standing]]:
        """By peer: where its queue pairs are, control first."""
        with self._quiet():
            return {
                end.rank: [self._endpoint.standing(pair) for pair in end.pairs]
                for end in self._ends.values()
                if end.pairs
            }

    # ---- failure ---------------------------------------------------------------------------------------------------
    def _busy(self, link: Link) -> bool:
        return self._ends[link.rank].busy

    def _missing(self) -> list[Link]:
        links = list(self._links.values())
        owing = [link for link in links if self._ends[link.rank].receives]
        return owing + [link for link in links if self._ends[link.rank].sends and link not in owing]

    def _owed(self, link: Link) -> str:
        end, parts = self._ends[link.rank], []
        if end.receives:
            parts.append(f"owes {sum(message.left for message in end.receives)} bytes")
        if end.sends:
            unready, rest = len(end.unmatched), len(end.sends) - len(end.unmatched)
            parts.append(f"is not ready for {unready} messages and has not acknowledged {rest}")
        return f"rank {link.rank} ({link.where}) {' and '.join(parts) or 'owes nothing'}"

    # ---- life ------------------------------------------------------------------------------------------------------
    def expect(self, algorithm: str, *, ranks: Sequence[int] = (), root: int = 0) -> None:
        if self._planned is None or len(ranks) == 1:
            return
        paths = self._planned.changed(Collective(algorithm, tuple(ranks), root))
        if paths is not None:
            self.adopt(paths)

    def begin(self, call: Call) -> None:
        super().begin(call)
        self._text = call.text.encode()[:68]

    def abort(self, error: BaseException) -> None:
        told = bool(self._facts) or self.rank in self._waits
        waiting = [self._links[end.rank] for end in self._ends.values() if end.busy]
        self._error = self._error or self._fail(NetFoldError, f"gave up ({type(error).__name__}: {error}); join anew")
        self._call = IDLE  # from here on nothing that we hear is an error of ours
        self._stop()
        if not told:
            for _ in range(3):  # queue pairs are quicker than TCP: who waits for us may stand at the listener's door
                self._poll(ACCEPT)
            for link in waiting:
                if link.socket is None and not link.lost:
                    self._connect(link)  # without a connection it could not learn
        super().abort(error)

    def close(self) -> None:
        if self._io is not None and self._error is None:
            self._linger()
        self._stop()
        super().close()

    def _linger(self) -> None:
        """Answers for a while: a peer whose acknowledgement was lost asks again."""
        assert self._io is not None
        last = self._clock() + 4 * LINGER
        while self._clock() < last:
            quiet = self._clock() + LINGER
            before = self._received()
            while (left := min(quiet, last) - self._clock()) > 0:
                if self._io.run(native.now() + int(left * 1e9))[1]:
                    return
            if self._received() == before:
                return

    def _received(self) -> int:
        return sum(pair.received + pair.duplicates for pairs in self.standings().values() for pair in pairs)

    def _stop(self) -> None:
        """From here on nobody writes into our callers' memory."""
        if self._planned is not None:
            self._planned.close()
        if self._io is not None:
            self._io.close()
            self._io = None
            self._endpoint.close()
        for end in self._ends.values():
            end.sends.clear()
            end.receives.clear()
            end.unmatched.clear()
            end.ungranted.clear()
