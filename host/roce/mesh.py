# SPDX-License-Identifier: Apache-2.0
"""The rail "roce": a mesh of reliable connections in plain RoCEv2, of which switches need to know nothing.

Between any two ranks there is one queue pair for control and some for data (``queue_pairs``): a message is split over
several, each with a UDP source port, and so perhaps a path, of its own.  Clear-to-sends travel on the one for control
(``clear_to_send``); a message is split as ``source_ports`` says, and written directly to where the receiver wants it.

TCP connections (``mesh.operations``) carry only failure reports.  Ranks that call different operations are found out by
the call in the clear-to-send.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count

from netfold.host.errors import NetFoldError, PeerLost, PlanError, RankMismatch, TransportError
from netfold.host.mesh.connection import HEADER, PeerConnection, Receive, text_of
from netfold.host.mesh.mesh import DONE, IDLE, Call, Mesh, Pending, as_bytes
from netfold.host.mesh.operations import PEER_LOST_HINT, Operations
from netfold.host.mesh.planned import Collective, PathSource
from netfold.host.mesh.poller import Poller
from netfold.host.mesh.source_ports import MOST_QUEUE_PAIRS, SourcePorts
from netfold.host.native.library import RUN_PACKETS
from netfold.host.native.sockets import bind_port, check_mtu
from netfold.host.operation.arrays import Flat
from netfold.host.roce import native
from netfold.host.roce.clear_to_send import ENTRY_BYTES, ClearToSend, Message, PeerTransfers, call_text
from netfold.host.roce.endpoint import Endpoint, EndpointIo, Locked, now
from netfold.host.roce.failover import PathFailover
from netfold.host.roce.native import ANSWERED, ARRIVED, SENT, STALLED, UNTOLD, EndpointEvent
from netfold.host.roce.queue_pairs import MAX_OPEN, QueuePairs
from netfold.host.roce.sockets import open_endpoint
from netfold.host.tracing.timeline import Timeline
from netfold.wire import roce
from netfold.wire.paths import Paths
from netfold.wire.plan import Plan

MOST_PORTS = 256
WINDOW_BYTES = 1 << 19
"""Payload bytes in flight on a queue pair."""
ENTROPIES = 32
"""Number of source ports that REPS draws from by default; the same on all ranks, since acknowledgements name them."""
SLICE_SECONDS = 0.1
"""Seconds in native code between two checks of Python's signals (Ctrl-C)."""
ACCEPT_SECONDS = 0.01
"""Seconds for which a rank that gives up waits, three times, for connections under way."""
LINGER_SECONDS = 0.25
"""Seconds of silence after which a closing rank assumes that no peer misses an acknowledgement; it waits at most 4
times as long."""


class RoceMesh(Mesh):
    """The ranks of a plan over reliable-connection queue pairs.  Owns ``listener``.

    queue_pairs  queue pairs for data between any two ranks: 1 .. MOST_QUEUE_PAIRS
    open_pairs   queue pairs of this rank, to all peers, that have memory at once (``queue_pairs``); exceeding it is
                 logged
    path_mtu     payload bytes of a packet; default: the plan's, which the fabric's links carry
    window       packets in flight on a queue pair, a power of two; default: as many as WINDOW_BYTES hold
    reorder      packets that may overtake one before it counts as lost: more where packets are sprayed over paths
    ports        UDP source ports, which queue pairs take in turn; default: as many as needed, chosen by the kernel
    recycle      every packet takes one of ``ports`` by itself (REPS, native/reps.h); ``reorder`` should be large
    stay         queue pairs stay on their ports even where nothing is acknowledged; else they fail over to others
    planned      the controller's paths, which give queue_pairs and ports; owned by the mesh from here on
    receiver     bound to this rank's address and UDP port (``native.sockets.bind_port``); taken over.  Default: bound
                 here, by the plan
    All ranks must give the same queue_pairs, path_mtu and window.
    Raises PlanError, TransportError, ValueError.
    """

    kind = "queue pairs"
    rail = "roce"
    merged_segments = 2
    """Number of segments in a message.  Each message costs a clear-to-send and an event at each end, in Python: half as
    many save a tenth of the processor time of 16 MiB among 8 ranks."""

    def __init__(
        self,
        plan: Plan,
        listener: socket.socket,
        *,
        timeout: float,
        queue_pairs: int = 1,
        open_pairs: int = MAX_OPEN,
        path_mtu: int | None = None,
        window: int | None = None,
        reorder: int = 3,
        ports: Sequence[int] = (),
        recycle: bool = False,
        stay: bool = False,
        planned: PathSource | None = None,
        receiver: socket.socket | None = None,
        clock: Callable[[], float] = time.monotonic,
        timeline: Timeline | None = None,
    ) -> None:
        if planned is not None:
            queue_pairs, ports = planned.queue_pairs, planned.ports
        path_mtu = plan.path_mtu if path_mtu is None else path_mtu
        window = WINDOW_BYTES // path_mtu if window is None else window
        if not 1 <= queue_pairs <= MOST_QUEUE_PAIRS:
            raise ValueError(f"queue_pairs={queue_pairs}: expected 1 .. {MOST_QUEUE_PAIRS}")
        if open_pairs < 1:
            raise ValueError(f"open_pairs={open_pairs}: expected 1 or more")
        if len(ports) > MOST_PORTS or len(set(ports)) < len(ports) or not all(0 < port < 65536 for port in ports):
            raise ValueError(f"ports={list(ports)}: expected up to {MOST_PORTS} different ports of 1 .. 65535")
        addresses = {peer.rank: peer.address for peer in plan.peers}
        if len(set(addresses.values())) < plan.world:
            raise PlanError(f"plan of job {plan.job!r}: addresses {addresses}: queue pairs need one for each rank")
        self.rank, self.size, self.secret = plan.rank, plan.world, plan.secret
        self.timeline = timeline
        self._watched = Poller()
        self.operations = Operations(plan, listener, self, name="RoCE mesh", timeout=timeout, spanned=self.spanned,
                                      poller=self._watched, clock=clock)
        self._connections = self.operations.connections
        self.queue_pairs = queue_pairs
        self.path_mtu = path_mtu
        mine = addresses[plan.rank]
        self._ids = count(1)
        self._writes: dict[int, tuple[PeerTransfers, Message]] = {}
        """Write id -> the message that it is a part of."""
        self._awaits_sends = False
        """True if a caller waits for sends to end, and not only for messages to arrive."""
        self._unmatched = 0
        """Sends for which no clear-to-send has arrived."""
        self._reads: dict[int, tuple[PeerTransfers, Message]] = {}
        for peer in addresses.values():
            check_mtu(mine, peer, path_mtu)
        room = window * min(8, plan.world) * (2 * path_mtu + 256)  # as the kernel counts a packet by itself
        if recycle and not ports:
            ports = range(roce.PATH_PORT + 1, roce.PATH_PORT + 1 + ENTROPIES)
        receiver = receiver or bind_port(mine, plan.peers[plan.rank].udp_port)
        sockets = open_endpoint(receiver, ports or [0] * queue_pairs, room=room)
        try:
            runs = RUN_PACKETS if sockets.super_packets else 1
            self._endpoint = Endpoint(mine, port=receiver.getsockname()[1], path_mtu=path_mtu, window=window,
                                      max_run=runs, reorder=reorder)
            self.ports = list(sockets.senders)
            self._endpoint.ports(self.ports)
            self._may_move = len(self.ports) > 1 and not stay
            self.source_ports = SourcePorts(self.ports, (rank for rank in addresses if rank != plan.rank))
            self._planned = planned
            self._failover = PathFailover(self._endpoint, self.source_ports, me=f"job {plan.job!r}, rank {plan.rank}",
                                    locked=self._locked, clock=now)
            self._transfers = {rank: self._open(rank) for rank in range(plan.world)}
            self.pairs = QueuePairs(
                plan,
                self._endpoint,
                self.source_ports,
                self._failover,
                lanes=queue_pairs,
                ports=self.ports,
                most=open_pairs,
                recycle=recycle,
                locked=self._locked,
            )
            others = [self._watched.fileno(), *([] if planned is None else [planned.changed_fd])]
            self.io: EndpointIo | None = EndpointIo(self._endpoint, sockets.receiver, sockets.senders, others)
            """None once this is closed."""
        except BaseException:
            sockets.close()
            raise

    def _open(self, rank: int) -> PeerTransfers:
        """Registers the inbox for a peer's clear-to-sends; its memory key is the peer's rank."""
        transfers = PeerTransfers(rank)
        key = self._endpoint.register(transfers.inbox.ctypes.data, transfers.inbox.nbytes)
        assert key == rank, "the first keys count up from 0"
        return transfers

    # ---- posting ---------------------------------------------------------------------------------------------------
    def send(self, peer: int, data: Flat, *, tag: int = 0) -> Pending:
        transfers = self._transfers[self.operations.link(peer).rank]
        if not as_bytes(data, "send of").nbytes:
            return DONE
        message = Message(data, (self.operations.call.number, self.operations.text, tag), sends=True)
        try:
            clear = transfers.post_send(message)
        except RankMismatch as error:
            raise self.operations.failure(RankMismatch, str(error)) from None
        if clear is None:
            self._unmatched += 1
        else:
            self._write_data(transfers, message, clear.key)
        return message

    def receive(self, peer: int, into: Flat, *, tag: int = 0) -> Pending:
        transfers = self._transfers[self.operations.link(peer).rank]
        view = as_bytes(into, "receive into")
        if not view.nbytes:
            return DONE
        if view.readonly:
            raise ValueError("receive into a read-only array")
        message = Message(into, (self.operations.call.number, self.operations.text, tag), sends=False)
        transfers.receives.append(message)
        transfers.ungranted.append(message)
        self._grant(transfers)
        return message

    def _grant(self, transfers: PeerTransfers) -> None:
        """Sends clear-to-sends for posted receives that the peer does not know of yet."""
        if not transfers.ungranted:
            return
        self.pairs.data(transfers.rank)
        assert self.io is not None
        for message, offset in transfers.grant():
            message.registered(self.io.register(message.address, message.nbytes, fill=True))
            self._reads[message.key] = transfers, message
            number, text, tag = message.label
            clear = ClearToSend(number, message.nbytes, tag, message.key, self.path_mtu, self.queue_pairs, text)
            address = transfers.put_clear_to_send(clear, offset)
            pair = self.pairs.control(transfers.rank)
            self._write_to(transfers, pair, address, ENTRY_BYTES, self.rank, offset, UNTOLD)

    def _write_data(self, transfers: PeerTransfers, message: Message, key: int) -> None:
        pairs, address = self.pairs.data(transfers.rank), message.address
        cuts = self.source_ports.split(transfers.rank, message.nbytes, lanes=self.queue_pairs, mtu=self.path_mtu)
        message.cut(len(cuts))
        identity = next(self._ids)
        self._writes[identity] = transfers, message
        for lane, first, last in cuts:
            self._write_to(transfers, pairs[lane], address + first, last - first, key, first, identity)

    def _write_to(
        self, transfers: PeerTransfers, pair: int, address: int, nbytes: int, key: int, offset: int, identity: int
    ) -> None:
        assert self.io is not None
        if not self.io.write(pair, address, nbytes, key=key, offset=offset, id=identity):
            raise self.operations.failure(
                PeerLost, f"the connection to rank {transfers.rank} is broken, or there is no memory; {PEER_LOST_HINT}"
            )

    def _locked(self) -> Locked:
        assert self.io is not None
        return self.io.locked()

    # ---- moving ----------------------------------------------------------------------------------------------------
    def wait(self, pending: Sequence[Pending], *, first: bool = False) -> None:
        self._awaits_sends = any(isinstance(one, Message) and one.sends for one in pending)
        self.operations.wait(pending, first)

    def flush(self) -> None:
        self._awaits_sends = True
        while any(transfers.busy for transfers in self._transfers.values()):
            self.operations.advance()

    def poll(self, seconds: float) -> bool:
        """Waits so long until anything can be moved, and moves it.  Returns whether anything moved."""
        if self.io is None:  # only failure reports are left to send
            return self._connections.poll(seconds)
        io, before = self.io, self.io.progress
        until = time.monotonic_ns() + int(min(max(0.0, seconds), SLICE_SECONDS) * 1e9)
        with self.spanned("send, wait, receive"):  # all of it in native code
            quiet = (0 if self._awaits_sends else native.QUIET_SENT) | (0 if self._unmatched else native.QUIET_ARRIVED)
            events, error = io.run(until, quiet=quiet)
        if error:
            what = f"the kernel refused a packet: {os.strerror(error)}; see `ip addr`"
            raise self.operations.failure(TransportError, what)
        moved = self._take(events) or io.progress != before
        for peer, port in self._failover.confirmed_failures():
            if self._planned is not None:
                self._planned.suspect(peer, port)
        if self._planned is not None and io.ready(1) and (newer := self._planned.newer()) is not None:
            self._failover.restrict(newer)
        return (self._connections.poll(0) if io.ready(0) else False) or moved

    def _take(self, events: Sequence[EndpointEvent]) -> bool:
        """Handles the endpoint's events.  Returns whether any of them is progress."""
        moved = False
        for event in events:
            what = event.what
            moved |= what not in (STALLED, ANSWERED)
            if what == SENT:
                self._sent(event)
            elif what == ARRIVED:
                self._arrived_at(event)
            elif what == STALLED:
                if self._may_move:
                    self._failover.stalled(event)
            elif what == ANSWERED:
                self._failover.answered(event)
            else:
                self._broken(event)
        return moved

    def _sent(self, event: EndpointEvent) -> None:
        transfers, message = self._writes[event.id]
        if message.progress(1):
            del self._writes[event.id]
            transfers.sends.remove(message)

    def _arrived_at(self, event: EndpointEvent) -> None:
        if event.key < self.size:
            transfers = self._transfers[event.key]
            self._on_clear_to_send(transfers, transfers.clear_at(event.offset))
            return
        transfers, message = self._reads.pop(event.key)
        message.finish()
        transfers.receives.remove(message)
        self._grant(transfers)

    def _on_clear_to_send(self, transfers: PeerTransfers, clear: ClearToSend) -> None:
        if (clear.path_mtu, clear.queue_pairs) != (self.path_mtu, self.queue_pairs):
            raise self.operations.failure(
                RankMismatch,
                f"rank {transfers.rank} has path_mtu={clear.path_mtu} and queue_pairs={clear.queue_pairs}, this rank "
                f"{self.path_mtu} and {self.queue_pairs}; give the same on every rank",
            )
        try:
            message = transfers.take_clear_to_send(clear)
        except RankMismatch as error:
            raise self.operations.failure(RankMismatch, str(error)) from None
        if message is not None:
            self._unmatched -= 1
            self._write_data(transfers, message, clear.key)

    def _broken(self, event: EndpointEvent) -> None:
        rank = self.pairs.rank_of(event.pair)
        side = "it refused our" if event.by_peer else "we refused its"
        self.operations.report_lost(rank, f"{side} write: {native.SYNDROMES.get(event.syndrome, hex(event.syndrome))}")

    # ---- paths -----------------------------------------------------------------------------------------------------
    def pin(self, peer: int, lane: int, port: int) -> None:
        """Sends data of queue pair ``lane`` (from 0) to ``peer`` from this one of ``ports`` from now on."""
        if port not in self.ports or not 0 <= lane < self.queue_pairs or peer not in self._connections.links:
            raise ValueError(
                f"pin(peer={peer}, lane={lane}, port={port}): expected another rank, a queue pair below "
                f"{self.queue_pairs}, and one of the ports {self.ports}"
            )
        self._failover.move(self.pairs.data(peer)[lane], port)

    def adopt(self, paths: Paths) -> None:
        """Splits and sends messages as the controller planned from now on; to be called between operations.

        Raises PlanError for a plan that needs more queue pairs or other ports than this mesh has.
        """
        wanted = {port for reach in paths.reaches for port in reach.source_ports}
        self.source_ports.adopt(paths)
        if self.source_ports.most_ports() > self.queue_pairs or not wanted <= set(self.ports):
            raise PlanError(
                f"paths of job {self.operations.plan.job!r}, rank {self.rank}: need "
                f"{self.source_ports.most_ports()} queue pairs to a peer and the source ports {sorted(wanted)}; this "
                f"mesh has {self.queue_pairs} and {self.ports}: give it Paths.ports and more queue_pairs"
            )
        self._failover.replanned()
        reached = {reach.peer: reach.source_ports for reach in paths.reaches}
        for peer, (control, *data) in self.pairs.items():
            if ports := reached.get(peer):
                self._failover.move(control, ports[peer % len(ports)])
            for pair, weighted in zip(
                data, self.source_ports.weighted_ports(peer), strict=False
            ):  # the queue pairs that exist
                self._failover.move(pair, weighted.port)

    def reset_stalls(self) -> None:
        """Resets ``stalled``, the longest stall, of all queue pairs."""
        with self._locked():
            self._endpoint.reset_stalls()

    def queue_pair_states(self) -> dict[int, list[native.QueuePairState]]:
        """Peer -> the states of its queue pairs, the one for control first."""
        with self._locked():
            return {peer: [self._endpoint.state(pair) for pair in pairs] for peer, pairs in self.pairs.items()}

    # ---- what is missing, and what comes over TCP --------------------------------------------------------------------
    def busy(self, link: PeerConnection) -> bool:
        """True if a send to this peer, or a receive from it, has been posted and is not done."""
        return self._transfers[link.rank].busy

    def still_arriving(self, link: PeerConnection) -> bool:
        """Never: a peer whose connection has ended is gone."""
        return False

    def awaited(self) -> list[PeerConnection]:
        """Connections of the peers that this rank waits for, those first that must send."""
        links = list(self._connections.links.values())
        senders = [link for link in links if self._transfers[link.rank].receives]
        return senders + [link for link in links if self._transfers[link.rank].sends and link not in senders]

    def missing(self, link: PeerConnection) -> str:
        """The data that a peer has not sent or not accepted yet, in words."""
        transfers = self._transfers[link.rank]
        with self._locked():
            unfilled = sum(self._endpoint.unfilled(message.key) if message.key >= 0 else message.nbytes
                           for message in transfers.receives)
            corrupt = self._endpoint.corrupt()
        changed = f"; {corrupt} packets came with a wrong ICRC, and were dropped" if corrupt else ""
        return f"rank {link.rank} ({link.address}) {transfers.describe_missing(unfilled)}{changed}"

    def message(self, link: PeerConnection) -> None:
        """Refuses a message over TCP: where an operation is under way, its sender has another rail."""
        number, _, _, text = HEADER.unpack(link.header)
        if self.operations.call is not IDLE:
            raise self.operations.failure(
                RankMismatch, f"rank {link.rank} sends a message of {Call(number, text_of(text))} over TCP; expected "
                              f"it by {self.kind}; give the same rail on every rank")

    def arrived(self, link: PeerConnection, receive: Receive) -> None:
        """Never called: no message over TCP is taken."""
        raise NotImplementedError(f"a message of rank {link.rank} over TCP")

    # ---- life ------------------------------------------------------------------------------------------------------
    def expect(self, algorithm: str, *, ranks: Sequence[int] = (), root: int = 0) -> None:
        if self._planned is None or len(ranks) == 1:
            return
        paths = self._planned.changed(Collective(algorithm, tuple(ranks), root))
        if paths is not None:
            self.adopt(paths)

    def begin(self, call: Call) -> None:
        self.operations.begin(call)
        self.pairs.warn_if_too_many()
        self.pairs.warn_of_dropped()
        self.operations.carry_text(call_text(call))

    def watched_by(self, watch: Callable[[float], bool] | None) -> None:
        """See ``Mesh``."""
        self.operations.watched_by(watch)

    def told_by(
        self, lost: Callable[[], tuple[int, str] | None], left: Callable[[], Mapping[int, str]] = dict
    ) -> None:
        """See ``Mesh``."""
        self.operations.told_by(lost, left)

    def interrupt(self, error: NetFoldError) -> None:
        """See ``Mesh``."""
        self.operations.interrupt(error)

    def abort(self, error: BaseException) -> None:
        announced = self.operations.reports.announced
        waiting = [self._connections.links[transfers.rank] for transfers in self._transfers.values() if transfers.busy]
        self.operations.give_up(error)
        self._stop()
        if not announced:
            for _ in range(3):  # queue pairs are faster than TCP: a peer may still be connecting
                self._connections.poll(ACCEPT_SECONDS)
            for link in waiting:
                if link.socket is None and not link.lost:
                    self._connections.connect(link)  # without a connection it could not hear our report
        self.operations.abort(error)

    def leave(self, why: str) -> None:
        """See ``Mesh``."""
        self.operations.leave(why)

    def close(self) -> None:
        if self.io is not None and self.operations.error is None:
            self._linger()
        self._stop()
        self.operations.close()

    def _linger(self) -> None:
        """Keeps acknowledging for a while, since a peer whose acknowledgement was lost retransmits."""
        assert self.io is not None
        last = self.operations.clock() + 4 * LINGER_SECONDS
        while self.operations.clock() < last:
            quiet = self.operations.clock() + LINGER_SECONDS
            before = self._received()
            while (left := min(quiet, last) - self.operations.clock()) > 0:
                if self.io.run(time.monotonic_ns() + int(left * 1e9))[1]:
                    return
            if self._received() == before:
                return

    def _received(self) -> int:
        return sum(pair.received + pair.duplicates for pairs in self.queue_pair_states().values() for pair in pairs)

    def _stop(self) -> None:
        """Ends all transfers; from here on no peer can write into the callers' memory."""
        if self._planned is not None:
            self._planned.close()
        if self.io is not None:
            self.io.close()
            self.io = None
            self._endpoint.close()
        for transfers in self._transfers.values():
            transfers.drop()
