# SPDX-License-Identifier: Apache-2.0
"""The TCP connections of one rank to its peers, and the poll that moves what is posted on them, in both directions.

When two ranks first have something to send, the higher one connects to the listener whose port stands in the plan, the
lower one accepts, and both prove that they are ranks of the job (``handshake``, ``connecting``) before the connection
carries anything else.  The first proven connection of two ranks is the only one for their messages, for good.

``operations.Operations`` says how operations on them begin, wait and end, also where a rank is gone; ``MeshTraffic`` is
what becomes of messages.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from netfold.host.errors import NetFoldError, TransportError
from netfold.host.mesh.connecting import Attempt, Connecting, Proven, Unconnected
from netfold.host.mesh.connection import FAREWELL, HEADER, REPORT_MARK, WAITING, PeerConnection, Receive, text_of
from netfold.host.mesh.handshake import Outcome
from netfold.host.mesh.poller import HasFileno, Poller, Registered, number_of
from netfold.host.mesh.sockets import PeerUnreachable
from netfold.wire.plan import Plan

BURST_BYTES = 4 << 20
"""Bytes moved on one connection before the others get their turn."""
LONG_READ_BYTES = 64 << 10
"""Least bytes of one read after which more of a message may have arrived meanwhile."""

Spans: TypeAlias = Callable[[str], AbstractContextManager[None]]
"""Makes a context whose duration is recorded under a name (``Mesh.spanned``)."""


class MeshTraffic(Protocol):
    """Handlers of messages that arrive on the connections."""

    def message(self, link: PeerConnection) -> None:
        """Handles the complete header of a message, which is held, with nothing more read, until ``link.current`` has
        room for the payload."""

    def arrived(self, link: PeerConnection, receive: Receive) -> None:
        """Handles a message all of whose payload has come."""


class Failures(Protocol):
    """Handlers of failures."""

    def failure(self, kind: type[NetFoldError], what: str) -> NetFoldError:
        """The error with which this rank gives up, to be raised."""

    def reported(self, who: int, whom: int, why: str) -> None:
        """Handles a failure report: the rank that reports, the rank concerned, and the reason."""

    def waits(self, who: int, number: int, whom: str) -> None:
        """Handles that a peer has waited for long: in which of its calls, and for which ranks, separated by commas."""

    def attached(self, link: PeerConnection) -> None:
        """Handles that a peer is connected now."""


class LaneTraffic(Protocol):
    """Handlers of further connections between two ranks: lanes (``lane_set``)."""

    def ports_to(self, peer: int) -> Sequence[int]:
        """TCP source ports for the connection for messages to a peer, to be tried in this order; empty: any."""

    def attached(self, link: PeerConnection) -> None:
        """Handles that a peer is connected now."""

    def admit(self, rank: int) -> bool:
        """True if this rank accepts one more lane of a peer that has proven itself."""

    def attach(self, came: Proven) -> None:
        """Takes a proven connection for a lane."""


class MeshConnections:
    """The connections of a plan's rank.  Owns ``listener``; connects at the first message.

    poller    default: one by poll(2)
    lanes     whether peers may open lanes; ``lanes`` must then be set before anything is sent or polled
    """

    def __init__(
        self, plan: Plan, listener: socket.socket, traffic: MeshTraffic, failures: Failures, *, lanes: bool = False,
        spanned: Spans, poller: Poller | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rank = plan.rank
        self.links = {peer.rank: PeerConnection(peer.rank, peer.tcp) for peer in plan.peers if peer.rank != plan.rank}
        self.gone: set[PeerConnection] = set()
        """Peers whose connections have ended, or cannot be established."""
        self.lanes: LaneTraffic | None = None
        """Further connections to the peers; None before there are any."""
        self.listener = listener
        self._traffic, self._failures, self._spanned = traffic, failures, spanned
        self._by_fd: dict[int, PeerConnection] = {}
        self._others: dict[int, Callable[[int], bool]] = {}
        """Other polled descriptor -> its handler, which takes an event and returns True if anything moved."""
        self._poller = select.poll() if poller is None else poller
        self._registered = Registered(self._poller)
        self.connecting = Connecting(plan, listener, self._poller, self._admit, clock=clock,
                                      admit_lane=self._admit_lane if lanes else None)

    def have(self, lanes: LaneTraffic) -> None:
        """Accepts connections for these lanes as well."""
        self.lanes = lanes

    # ---- what moves --------------------------------------------------------------------------------------------------
    def poll(self, seconds: float) -> bool:
        """Waits so long until anything can be moved, and moves it.  Returns whether any byte or connection moved."""
        moved = False
        with self._spanned("wait"):
            ready = self._poller.poll(max(0.0, seconds) * 1000)
        for fd, event in ready:
            link = self._by_fd.get(fd)
            if link is None:
                other = self._others.get(fd)
                moved |= self._handshake(fd) if other is None else other(event)
                continue
            if event & select.POLLOUT and link.sends:
                with self._spanned("send"):
                    moved |= self.write(link)
            if event & ~select.POLLOUT and link.socket is not None:
                with self._spanned("receive"):
                    moved |= self.read(link)
            self.watch(link)
        self.connecting.expire()
        return moved

    def poll_other(self, fd: int | HasFileno, handle: Callable[[int], bool]) -> None:
        """Polls another descriptor, once it is watched for something; ``handle`` is called with each of its events, and
        returns whether anything moved."""
        self._others[number_of(fd)] = handle

    def watch_other(self, fd: int | HasFileno, events: int) -> None:
        """Watches another descriptor for these events of poll(2) from now on."""
        self._registered.watch(fd, events)

    def forget_other(self, fd: int | HasFileno) -> None:
        """Is told that another descriptor is going to be closed."""
        if self._others.pop(number_of(fd), None) is not None:
            self._registered.forget(fd)

    def watch(self, link: PeerConnection) -> None:
        """Registers for what a peer's connection waits for."""
        link.register(self._registered)

    def write(self, link: PeerConnection) -> bool:
        """Writes what is posted for a peer.  Returns whether any byte or connection moved."""
        if link.socket is None:
            return False
        try:
            return link.write(BURST_BYTES) > 0
        except OSError as error:
            # What the peer wrote before it went away may say why: read it before giving up.
            link.lose(error.strerror or str(error))
            self.read_all(link)
            reports = link.reports_behind_held_message()
            self.drop(link, link.lost)
            for who, whom, why in reports:
                self._failures.reported(who, whom, why)
            return True

    def read_all(self, link: PeerConnection) -> None:
        """Reads what has come up to a header that is held."""
        while self.read(link):
            pass

    def read(self, link: PeerConnection) -> bool:
        """Reads what has come and is awaited, or is the header of what may be.  Returns whether any byte has, that a
        peer waits apart: that is no progress."""
        total = 0
        try:
            while link.socket is not None and total < BURST_BYTES:
                if link.current is not None:
                    got = link.read_payload(link.current)
                    if not link.current.view:
                        whole = link.current
                        link.expect_header()
                        self._traffic.arrived(link, whole)
                    awaited = link.receives if link.current is None else got >= LONG_READ_BYTES
                    if got and not awaited:
                        return True  # most likely no more has come
                elif link.header_bytes < HEADER.size:
                    got = link.read_header()
                    if link.header_bytes == HEADER.size and not self._header(link):
                        total -= HEADER.size
                else:
                    break  # held
                if not got:
                    self.drop(link, "it closed the connection")
                total += got
        except (BlockingIOError, InterruptedError):
            pass
        except NetFoldError:  # raised by us; some of these are OSErrors, but not the socket's
            raise
        except OSError as error:
            self.drop(link, error.strerror or str(error))
        return total > 0

    def _header(self, link: PeerConnection) -> bool:
        """Handles a complete header: that of a failure report or of a message.  Returns whether it is any progress."""
        if link.header.startswith(REPORT_MARK):
            number, whom, who, why = HEADER.unpack(link.header)
            link.expect_header()
            if number == WAITING:
                self._failures.waits(link.rank, whom, text_of(why))
                return False
            if number == FAREWELL:
                link.say_left(f"left {text_of(why)}")
            else:
                self._failures.reported(who, whom, text_of(why))
        else:
            self._traffic.message(link)
        return True

    # ---- connections -------------------------------------------------------------------------------------------------
    def connect(self, link: PeerConnection) -> None:
        """Begins to connect to a peer; does nothing where that is under way.  Raises TransportError."""
        self._connect(link, None, () if self.lanes is None else self.lanes.ports_to(link.rank))

    def connect_lane(self, link: PeerConnection, number: int, ports: Sequence[int]) -> None:
        """Begins to connect this rank's lane of this number to a peer, from one of these ports.  Raises
        TransportError."""
        self._connect(link, number, ports)

    def _connect(self, link: PeerConnection, lane: int | None, ports: Sequence[int]) -> None:
        try:
            self.connecting.connect(link.rank, link.address, lane=lane, ports=ports)
        except PeerUnreachable as error:
            self.drop(link, f"cannot connect: {error}")
        except (OSError, ValueError) as error:
            what = f"cannot connect to rank {link.rank} at {link.address!r}: {error}"
            raise self._failures.failure(TransportError, what) from error

    def attempts(self) -> list[Attempt]:
        """The connections to peers that are being made."""
        return self.connecting.unproven()

    def try_ports(self, attempt: Attempt, ports: Sequence[int]) -> None:
        """Begins anew, from one of these ports, a connection to which the peer's kernel has not answered."""
        failed = self.connecting.try_ports(attempt, ports)
        if failed is not None:
            self.drop(self.links[failed.rank], failed.why)

    def refusals(self) -> str:
        """How many connections were refused here, and why the last one, for error messages; empty where none was."""
        return self.connecting.refusals()

    def drop(self, link: PeerConnection, why: str) -> None:
        """Removes a dead connection.  That is an error only while something is posted for the peer: a peer may leave
        when it is done."""
        self.connecting.drop(link.rank)
        link.lose(why)
        self.gone.add(link)
        link.restart_receive()
        if link.socket is not None:
            self._registered.forget(link.socket)
            del self._by_fd[link.socket.fileno()]
        link.close()

    def shut_down(self) -> None:
        """Ends all connections, from another thread: whoever polls them wakes up."""
        for link in self.links.values():
            if (sock := link.socket) is not None:
                with contextlib.suppress(OSError):  # it was closed meanwhile, which wakes the other thread as well
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes everything: whoever depends on this rank learns of it at once."""
        for link in self.links.values():
            self.drop(link, "closed by this rank")
        self.connecting.close()

    def _handshake(self, fd: int) -> bool:
        """Handles an event of a connection that is not proven yet.  Returns whether a peer is connected or lost now."""
        came = self.connecting.on_ready(fd)
        if isinstance(came, Unconnected):
            self.drop(self.links[came.rank], came.why)
        elif came is not None and came.lane is not None:
            assert self.lanes is not None
            self.lanes.attach(came)
        elif came is not None:
            self._attach(self.links[came.rank], came.socket)
        return came is not None

    def _attach(self, link: PeerConnection, sock: socket.socket) -> None:
        """Takes the first proven connection to a peer."""
        if link.lost or link.socket is not None:
            sock.close()
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.attach(sock)
        self._by_fd[sock.fileno()] = link
        self.watch(link)
        if self.lanes is not None:
            self.lanes.attached(link)
        self._failures.attached(link)

    def _admit(self, rank: int) -> Outcome:
        """Decides whether this rank accepts the connection of a peer that has just proven which rank it is.

        Two ranks may connect to each other at once, after a timeout: then the higher one's connection stays.
        """
        link = self.links[rank]
        if link.lost or link.socket is not None:
            return Outcome.TAKEN
        return Outcome.CROSSED if rank < self.rank and self.connecting.connecting(rank) else Outcome.ACCEPTED

    def _admit_lane(self, rank: int) -> bool:
        return self.lanes is not None and not self.links[rank].lost and self.lanes.admit(rank)
