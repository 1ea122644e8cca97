# SPDX-License-Identifier: Apache-2.0
"""The rail "roce": a mesh of reliable connections in plain RoCEv2, which no switch needs to know.

Between any two ranks there is one queue pair for control and some for data (``pairs``: one message is split over
several, each with a UDP source port, and so maybe a path, of its own).  Clear-to-sends go by the one for control
(``clears``); a message is cut as ``ways`` says, and written straight to where the receiver wants it.

TCP connections (``mesh.connected``) carry only news: who died, who waits for whom.  Ranks that call different things
are found out by the call in the clear-to-send.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np

from netfold.host.errors import NetFoldError, PeerLost, PlanError, RankMismatch, TransportError
from netfold.host.mesh.connected import LOOK, ConnectedMesh
from netfold.host.mesh.link import Link
from netfold.host.mesh.mesh import DONE, IDLE, Call, Pending, as_bytes
from netfold.host.native.library import RUN_PACKETS
from netfold.host.operation.arrays import Flat
from netfold.host.roce import native
from netfold.host.roce.clear_to_send import TEXT, Clear, End, Message
from netfold.host.roce.failover import Detours
from netfold.host.roce.native import ANSWERED, ARRIVED, SENT, STALLED, Endpoint, EndpointIo, Event
from netfold.host.roce.path_client import Collective, PlannedPaths
from netfold.host.roce.queue_pairs import MOST_RANKS, OPEN, Pairs
from netfold.host.roce.sockets import open_endpoint
from netfold.host.roce.source_ports import MOST_PAIRS, Ways
from netfold.wire import roce
from netfold.wire.jobs import Plan
from netfold.wire.paths import Paths

MOST_PORTS = 256
ENTROPIES = 32
"""Source ports that REPS draws from, where none are given: alike on all ranks, for answers name them."""
SLICE = 0.1
"""Seconds in native code between looks at Python's signals (Ctrl-C)."""
ACCEPT = 0.01
"""Seconds, three times, that a rank which gives up waits for connections that are being made."""
LINGER = 0.25
"""Seconds of silence after which a closing rank believes that nobody misses an acknowledgement; at most 4 of these."""


class RoceMesh(ConnectedMesh):
    """The ranks of a plan over RC queue pairs.  Owns ``listener``.

    queue_pairs  for data, between any two ranks: 1 .. MOST_PAIRS
    open_pairs   queue pairs of this rank, to all peers, that have memory at once (``pairs``); a warning where more must
    path_mtu     payload bytes of a packet; the fabric's MTU must be 60 more
    window       packets in flight on a queue pair, a power of two
    reorder      packets that may overtake one before it counts as lost: more where paths are sprayed
    ports        UDP source ports, which queue pairs take in turn; default: as many as needed, chosen by the kernel
    recycle      every packet takes one of ``ports`` by itself (REPS, native/reps.h); ``reorder`` should be large
    stay         queue pairs stay on their ports, also where nothing answers; else they go over to others
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
        open_pairs: int = OPEN,
        path_mtu: int = roce.PATH_MTU,
        window: int = 512,
        reorder: int = 3,
        ports: Sequence[int] = (),
        recycle: bool = False,
        stay: bool = False,
        planned: PlannedPaths | None = None,
        shared: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if planned is not None:
            queue_pairs, ports = planned.queue_pairs, planned.ports
        if not 1 <= queue_pairs <= MOST_PAIRS:
            raise ValueError(f"queue_pairs={queue_pairs}: expected 1 .. {MOST_PAIRS}")
        if open_pairs < 1:
            raise ValueError(f"open_pairs={open_pairs}: expected 1 or more")
        if len(ports) > MOST_PORTS or len(set(ports)) < len(ports) or not all(0 < port < 65536 for port in ports):
            raise ValueError(f"ports={list(ports)}: expected up to {MOST_PORTS} different ports of 1 .. 65535")
        addresses = {peer.rank: peer.address for peer in plan.peers}
        if plan.world > MOST_RANKS:
            raise PlanError(f"plan of job {plan.job!r}: expected up to {MOST_RANKS} ranks, which is what queue pair "
                            f"numbers tell apart, got {plan.world}; use the mesh over TCP")
        if len(set(addresses.values())) < plan.world:
            raise PlanError(f"plan of job {plan.job!r}: addresses {addresses}: queue pairs need one for each rank")
        super().__init__(plan, listener, timeout=timeout, clock=clock)
        self.queue_pairs = queue_pairs
        self.path_mtu = path_mtu
        mine = addresses[plan.rank]
        self._ids = count(1)
        self._writes: dict[int, tuple[End, Message] | Flat] = {}
        """Whose piece a write is; or a clear-to-send that must stay in memory until it is acknowledged."""
        self._reads: dict[int, tuple[End, Message]] = {}
        room = window * min(8, plan.world) * (2 * path_mtu + 256)  # as the kernel counts a packet by itself
        if recycle and not ports:
            ports = range(roce.PATH_PORT + 1, roce.PATH_PORT + 1 + ENTROPIES)
        sockets = open_endpoint(mine, ports or [0] * queue_pairs, room=room, shared=shared)
        try:
            runs = RUN_PACKETS if sockets.super_packets else 1
            self._endpoint = Endpoint(mine, path_mtu=path_mtu, window=window, max_run=runs, reorder=reorder)
            self.ports = list(sockets.senders)
            self._endpoint.ports(self.ports)
            self._may_move = len(self.ports) > 1 and not stay
            self.ways = Ways(self.ports, (rank for rank in addresses if rank != plan.rank))
            self._planned = planned
            self._detours = Detours(self._endpoint, self.ways, me=f"job {plan.job!r}, rank {plan.rank}",
                                    quiet=self._quiet, clock=native.now)
            self._ends = {rank: self._open(rank) for rank in range(plan.world)}
            self._pairs = Pairs(plan, self._endpoint, self.ways, self._detours, lanes=queue_pairs, ports=self.ports,
                                most=open_pairs, recycle=recycle, quiet=self._quiet)
            self._io: EndpointIo | None = EndpointIo(self._endpoint, sockets.receiver, sockets.senders)
        except BaseException:
            sockets.close()
            raise

    def _open(self, rank: int) -> End:
        """Room for a peer's clears, under the key that is its rank."""
        end = End(rank)
        key = self._endpoint.register(end.inbox.ctypes.data, end.inbox.nbytes)
        assert key == rank, "the first keys count up from 0"
        return end

    # ---- posting ---------------------------------------------------------------------------------------------------
    def send(self, peer: int, data: Flat, *, tag: int = 0) -> Pending:
        end = self._ends[self._link(peer).rank]
        if not as_bytes(data, "send of").nbytes:
            return DONE
        message = Message(data, tag, (self._call.number, self._text))
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
        message = Message(into, tag, (self._call.number, self._text), left=view.nbytes)
        end.receives.append(message)
        end.ungranted.append(message)
        self._grant(end)
        return message

    def _grant(self, end: End) -> None:
        """Tells the peer where its next messages may go."""
        self._pairs.data(end.rank)
        for message, offset in end.grant():
            with self._quiet():
                message.key = self._endpoint.register(message.array.ctypes.data, message.array.nbytes)
            self._reads[message.key] = end, message
            number, text = message.call
            clear = Clear(number, message.array.nbytes, message.tag, message.key, self.path_mtu, self.queue_pairs, text)
            self._write_to(end, self._pairs.control(end.rank), clear.pack(), self.rank, offset, None)

    def _match_clears(self, end: End) -> None:
        """Sends what the peer is ready for."""
        try:
            for message, key in end.match(self._call):
                self._write_data(end, message, key)
        except RankMismatch as error:
            raise self._fail(RankMismatch, str(error)) from None

    def _write_data(self, end: End, message: Message, key: int) -> None:
        pairs, data = self._pairs.data(end.rank), message.array.view(np.uint8)
        cuts = self.ways.cut(end.rank, data.nbytes, lanes=self.queue_pairs, mtu=self.path_mtu)
        message.left = len(cuts)
        for lane, first, last in cuts:
            self._write_to(end, pairs[lane], data[first:last], key, first, message)

    def _write_to(self, end: End, pair: int, data: Flat, key: int, offset: int, of: Message | None) -> None:
        identity = next(self._ids)
        self._writes[identity] = (end, of) if of is not None else data
        with self._quiet():
            posted = self._endpoint.write(pair, data.ctypes.data, data.nbytes, key=key, offset=offset, id=identity)
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
        if self._planned is not None:
            others.append((self._planned.news, native.POLLIN))
        before = self._endpoint.progress()
        with self.spanned("send, wait, receive"):  # all of it in native code
            ready, error = self._io.run(native.now() + int(min(max(0.0, seconds), SLICE) * 1e9), others)
        if error:
            raise self._fail(TransportError, f"the kernel refused a packet: {os.strerror(error)}; see `ip addr`")
        moved = self._take_events() or self._endpoint.progress() != before
        for peer, port in self._detours.proven():
            if self._planned is not None:
                self._planned.suspect(peer, port)
        if ready and self._planned is not None and (newer := self._planned.newer()) is not None:
            self._detours.narrow(newer)
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
                if self._may_move:
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
            self._hear_clear(end, end.clear_at(event.offset))
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

    def _hear_clear(self, end: End, clear: Clear) -> None:
        if (clear.path_mtu, clear.queue_pairs) != (self.path_mtu, self.queue_pairs):
            raise self._fail(
                RankMismatch,
                f"rank {end.rank} has path_mtu={clear.path_mtu} and queue_pairs={clear.queue_pairs}, this rank "
                f"{self.path_mtu} and {self.queue_pairs}; give the same on every rank",
            )
        end.clears.append(clear)
        self._match_clears(end)

    def _broken(self, event: Event) -> None:
        rank = self._pairs.rank_of(event.pair)
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
        self._detours.move(self._pairs.data(peer)[lane], port)

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
        for peer, (control, *data) in self._pairs.items():
            if ports := reached.get(peer):
                self._detours.move(control, ports[peer % len(ports)])
            for pair, way in zip(data, self.ways.to(peer), strict=False):  # those made by now
                self._detours.move(pair, way.port)

    def forget_stalls(self) -> None:
        """``stalled`` of all standings counts from here on."""
        with self._quiet():
            self._endpoint.forget_stalls()

    def standings(self) -> dict[int, list[native.Standing]]:
        """By peer: where its queue pairs are, control first."""
        with self._quiet():
            return {peer: [self._endpoint.standing(pair) for pair in pairs] for peer, pairs in self._pairs.items()}

    # ---- failure ---------------------------------------------------------------------------------------------------
    def _busy(self, link: Link) -> bool:
        return self._ends[link.rank].busy

    def _missing(self) -> list[Link]:
        links = list(self._links.values())
        owing = [link for link in links if self._ends[link.rank].receives]
        return owing + [link for link in links if self._ends[link.rank].sends and link not in owing]

    def _owed(self, link: Link) -> str:
        return f"rank {link.rank} ({link.where}) {self._ends[link.rank].owed()}"

    # ---- life ------------------------------------------------------------------------------------------------------
    def expect(self, algorithm: str, *, ranks: Sequence[int] = (), root: int = 0) -> None:
        if self._planned is None or len(ranks) == 1:
            return
        paths = self._planned.changed(Collective(algorithm, tuple(ranks), root))
        if paths is not None:
            self.adopt(paths)

    def begin(self, call: Call) -> None:
        super().begin(call)
        self._pairs.mind()
        self._text = call.text.encode()[:TEXT]

    def abort(self, error: BaseException) -> None:
        told = self._news.told
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
            end.drop()
