# SPDX-License-Identifier: Apache-2.0
"""A rank stands in for the switches: it folds what was under way when they were lost, over TCP.

    rank 0 --contributions, by TCP--> stand-in of rank 0 --results--> all ranks
    rank 1 --------------------------------'

A rank may have finished the operation that another one waits for, and its arrays are the caller's again.  But all that
a rank can lack is in the other ranks' last packets (host/native/history.h), so the ranks go on as after any other loss
of trees (docs/protocol.md, "Trees planned anew"), over a tree whose only switch is a rank.  What it adds are the same
integers, so that all ranks get the bits that the switches would have given them, whoever had finished.

A connection begins with the handshake of ranks (``mesh.handshake``).  Then, both ways, runs of packets:

    length 4 | bytes of a packet 2 | stream 2 | packets, UDP payloads as on the fabric

The first run of a rank says instead how each stream's results get to it (``result_routes``): the ICRC covers that.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Final

from netfold.host.forked import own, own_pair
from netfold.host.innet.slot_switch import Nak, Packet, ResultRoute, SlotSwitch, parse
from netfold.host.mesh.connecting import ATTEMPTS
from netfold.host.mesh.handshake import HandshakeRefused, Identity, Initiator, Outcome, Responder
from netfold.host.mesh.unproven import UnprovenLimit
from netfold.wire.plan import RankStream

log = logging.getLogger("netfold")

PURPOSE: Final = "stand-in"
"""Purpose of the connections, from which their key is derived."""
RUN = struct.Struct("!IHH")
"""Header of a run."""
ROUTE = struct.Struct("!I4sH4sH")
"""The route of a stream's results: queue pair of operation 0, source address and UDP port, destination address and UDP
port."""
MAX_RUN: Final = 1 << 20
"""Bytes of the longest run."""
RECEIVE: Final = 1 << 18
"""Most bytes of one read."""
HANDSHAKE_SECONDS: Final = 2.0
"""Seconds that an unauthenticated peer may take to prove that it is a rank, while other connections are pending."""


class Broken(Exception):
    """A connection ended or broke the framing; the message says why."""


class RunBuffer:
    """Bytes that have arrived, taken apart into runs."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Adds bytes.  Returns the complete runs: bytes of a packet, stream, packets.  Raises Broken."""
        if not data:
            raise Broken("the connection was closed")
        self._data += data
        runs, at = [], 0
        while len(self._data) - at >= RUN.size:
            length, segment, stream = RUN.unpack_from(self._data, at)
            if not 0 < length <= MAX_RUN or not segment:
                raise Broken(f"a run of {length} bytes in packets of {segment}: expected at most {MAX_RUN}, and some")
            if len(self._data) - at < RUN.size + length:
                break
            at += RUN.size
            runs.append((segment, stream, bytes(self._data[at : at + length])))
            at += length
        del self._data[:at]
        return runs


def result_routes(streams: Sequence[RankStream], address: str, port: int) -> bytes:
    """The first run of the rank at ``address``."""
    packed = b"".join(
        ROUTE.pack(stream.qp, socket.inet_aton(stream.predecessor), stream.predecessor_port, socket.inet_aton(address),
                   port)
        for stream in streams
    )
    return RUN.pack(len(packed), ROUTE.size, 0) + packed


class _Member:
    """A connected rank."""

    def __init__(self, sock: socket.socket, place: int) -> None:
        self.sock = sock
        self.place = place
        self.arrived = RunBuffer()
        self.waiting = bytearray()
        self.routes: list[tuple[int, ResultRoute]] = []
        """The routes of its streams' results, and the streams' queue pairs.  It sends them before its first
        contribution; no sum is complete before that."""

    def flush(self) -> None:
        """Sends what the kernel takes.  Raises OSError."""
        while self.waiting:
            try:
                del self.waiting[: self.sock.send(self.waiting)]
            except BlockingIOError:
                return


class _Stranger:
    """A connection that has not proven that it is a rank's."""

    def __init__(self, sock: socket.socket, address: str, me: Identity) -> None:
        self.sock = sock
        self.address = address
        self.side = Responder(me)


class StandIn:
    """Folds for some ranks of a job over TCP, on a thread of its own, until closed.

    listener  bound and listening; taken over
    me        this rank in the handshakes
    ranks     the ranks that fold together, in their order
    slots     of each of their streams
    own       the near end of this rank's own connection, which needs no handshake; taken over
    """

    def __init__(
        self, listener: socket.socket, me: Identity, ranks: Sequence[int], slots: Sequence[int], own: socket.socket
    ) -> None:
        self._listener = listener
        self._me = me
        self._places = {rank: place for place, rank in enumerate(ranks)}
        self._switches = [SlotSwitch(len(ranks), number, root=True) for number in slots]
        self._members: dict[int, _Member] = {}
        self._strangers: set[_Stranger] = set()
        self._unproven: UnprovenLimit[_Stranger] = UnprovenLimit(me.world, seconds=HANDSHAKE_SECONDS)
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = own_pair()
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._admit(own, me.rank)
        self._thread = threading.Thread(target=self._serve, name="netfold-stand-in", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and closes all connections; safe to call twice."""
        if self._thread.is_alive():
            self._wake.send(b"!")
            self._thread.join()
        self._wake.close()

    def _serve(self) -> None:
        try:
            while True:
                for key, events in self._selector.select():
                    if key.fileobj is self._woken:
                        return
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.data, _Stranger):
                        if key.data in self._strangers:  # an earlier event may have closed it
                            self._hear(key.data)
                    else:
                        self._serve_member(key.data, events)
        finally:
            for sock in [member.sock for member in self._members.values()] + [one.sock for one in self._strangers]:
                sock.close()
            self._listener.close()
            self._woken.close()
            self._selector.close()

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError:
            return
        own(sock).setblocking(False)
        stranger = _Stranger(sock, address[0], self._me)
        self._strangers.add(stranger)
        self._selector.register(sock, selectors.EVENT_READ, stranger)
        now = time.monotonic()
        for late in self._unproven.expired(now):
            self._refuse(late, "has not proven in time that it is a rank", limited=False)
        if (oldest := self._unproven.add(stranger, address[0], now)) is not None:
            self._refuse(oldest, "was the oldest of too many that have not proven to be ranks", limited=False)

    def _hear(self, stranger: _Stranger) -> None:
        """Goes on with a handshake."""
        side = stranger.side
        try:
            data = stranger.sock.recv(side.wanted)
            if not data:
                raise HandshakeRefused("closed the connection during the handshake")
            stranger.sock.sendall(side.receive(data))
            if side.peer is None:
                return
            welcome = side.peer in self._places and self._places[side.peer] not in self._members
            stranger.sock.sendall(side.verdict(Outcome.ACCEPTED if welcome else Outcome.TAKEN))
            if not welcome:
                raise HandshakeRefused(f"is rank {side.peer}, which does not fold here or is connected already")
        except BlockingIOError:
            return
        except (HandshakeRefused, OSError) as error:
            self._refuse(stranger, str(error))
            return
        self._strangers.remove(stranger)
        self._unproven.remove(stranger)
        self._selector.unregister(stranger.sock)
        self._admit(stranger.sock, side.peer)

    def _refuse(self, stranger: _Stranger, why: str, *, limited: bool = True) -> None:
        """Closes a connection; ``limited``: it still counts among the unproven ones."""
        log.debug("rank %d stands in for the switches: %s %s", self._me.rank, stranger.address, why)
        self._strangers.remove(stranger)
        if limited:
            self._unproven.remove(stranger)
        self._selector.unregister(stranger.sock)
        with contextlib.suppress(OSError):
            stranger.sock.send(stranger.side.refusal)
        stranger.sock.close()

    def _admit(self, sock: socket.socket, rank: int) -> None:
        sock.setblocking(False)
        member = self._members[self._places[rank]] = _Member(sock, self._places[rank])
        self._selector.register(sock, selectors.EVENT_READ, member)

    def _serve_member(self, member: _Member, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                for segment, stream, data in member.arrived.add(member.sock.recv(RECEIVE)):
                    self._take(member, segment, stream, data)
            if events & selectors.EVENT_WRITE:
                self._flush(member)
        except BlockingIOError:
            return
        except (Broken, OSError, ValueError, struct.error, KeyError, IndexError) as error:
            log.info("rank %d stands in for the switches: place %d is gone: %s", self._me.rank, member.place, error)
            self._drop(member)

    def _drop(self, member: _Member) -> None:
        self._selector.unregister(member.sock)
        member.sock.close()
        del self._members[member.place]

    def _take(self, member: _Member, segment: int, stream: int, data: bytes) -> None:
        """Folds the packets of a run, and queues what comes of them."""
        if not member.routes:
            if len(data) != len(self._switches) * ROUTE.size:
                raise Broken(f"a first run of {len(data)} bytes for {len(self._switches)} streams")
            member.routes = [
                (qp, ResultRoute(socket.inet_ntoa(source), source_port, socket.inet_ntoa(destination), port))
                for qp, source, source_port, destination, port in ROUTE.iter_unpack(data)
            ]
            return
        switch = self._switches[stream]
        results: dict[int, list[Packet | Nak]] = {}
        for at in range(0, len(data), segment):
            for target, packet in switch.take(member.place, parse(data[at : at + segment])):
                for place in switch.all if target == "all" else [int(target)]:
                    results.setdefault(place, []).append(packet)
        for place, packets in results.items():
            if place in self._members:
                self._send(self._members[place], stream, packets)

    def _send(self, member: _Member, stream: int, packets: Sequence[Packet | Nak]) -> None:
        qp, route = member.routes[stream]
        for packet in packets:
            payload = packet.build(qp, route)
            member.waiting += RUN.pack(len(payload), len(payload), stream) + payload
        self._flush(member)

    def _flush(self, member: _Member) -> None:
        try:
            member.flush()
        except OSError:
            return  # its next read tells
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if member.waiting else 0)
        self._selector.modify(member.sock, events, member)


def connect(address: str, me: Identity, peer: int, timeout: float) -> socket.socket:
    """A connection to the rank that stands in.  One that is closed before either side has refused the other, as happens
    when too many unauthenticated connections are pending, is opened again.  Raises OSError, Broken,
    HandshakeRefused."""
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(Broken, ConnectionResetError, BrokenPipeError):
            return _connect_once(address, me, peer, timeout)
    return _connect_once(address, me, peer, timeout)


def _connect_once(address: str, me: Identity, peer: int, timeout: float) -> socket.socket:
    host, _, port = address.rpartition(":")
    sock = own(socket.create_connection((host, int(port)), timeout=timeout))
    try:
        side = Initiator(me, peer)
        sock.sendall(side.hello)
        while side.outcome is None:
            sock.sendall(side.receive(_some(sock, side.wanted)))
        if side.outcome is not Outcome.ACCEPTED:
            raise HandshakeRefused("has a connection with this rank already")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock


def _some(sock: socket.socket, most: int) -> bytes:
    data = sock.recv(most)
    if not data:
        raise Broken("closed the connection during the handshake")
    return data
