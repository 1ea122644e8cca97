# SPDX-License-Identifier: Apache-2.0
"""The connections between a mesh's ranks, and the poll loop that moves what is posted on them, in both directions.

When two ranks first have something to send, the higher one connects to the listener whose port stands in the plan, the
lower one accepts, and both prove that they are ranks of the job (``handshake``, ``connecting``) before the connection
carries anything else.  The first proven connection of two ranks is their only one.

``connected.ConnectedMesh`` adds what a rank does when others fail, and how operations begin and end.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence

from netfold.host.errors import NetFoldError, RankMismatch, TransportError
from netfold.host.mesh.connecting import Connecting, Proven, Unconnected
from netfold.host.mesh.connection import FAREWELL, HEADER, REPORT_MARK, TEXT_BYTES, PeerConnection, Receive, text_of
from netfold.host.mesh.handshake import Outcome, StreamTurn
from netfold.host.mesh.mesh import IDLE, LOST_RANK_SECONDS, WATCHED_SLICE_SECONDS, Call, Mesh, Pending, no_such_peer
from netfold.host.mesh.poller import Poller, Registered
from netfold.host.mesh.sockets import PeerUnreachable
from netfold.host.tracing.timeline import Timeline
from netfold.wire.jobs import Plan

BURST_BYTES = 4 << 20
"""Bytes moved on one connection before the others get their turn."""
LONG_READ_BYTES = 64 << 10
"""Bytes read at once from which on more of a message may have come meanwhile."""


class PolledMesh(Mesh):
    """The ranks of a plan and the TCP connections between them.  Owns ``listener``; connects at the first message.

    timeout   seconds without a byte moving after which a wait gives up
    clock     monotonic seconds
    timeline  is told when the mesh sends, waits and receives, where somebody asked for one
    """

    name: str
    """Name of this kind of mesh in errors."""
    takes_lanes = False
    """Whether this rank accepts further connections of a peer that is connected already: lanes, which carry parts of
    long messages (``lanes``), and connections that take the place of an earlier one (``moving``)."""

    def __init__(
        self,
        plan: Plan,
        listener: socket.socket,
        *,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        timeline: Timeline | None = None,
    ) -> None:
        self.rank, self.size = plan.rank, plan.world
        self.secret = plan.secret
        self._plan = plan
        self._timeout = timeout
        self._clock = clock
        self.timeline = timeline
        self._call = IDLE
        self._text = bytes(TEXT_BYTES)
        self._links = {peer.rank: PeerConnection(peer.rank, peer.tcp) for peer in plan.peers if peer.rank != plan.rank}
        self._by_fd: dict[int, PeerConnection] = {}
        self._gone: set[PeerConnection] = set()
        self._error: NetFoldError | None = None
        self._poller = self._new_poller()
        self._registered = Registered(self._poller)
        self._connecting = Connecting(
            plan, listener, self._poller, self._admit,
            admit_stream=self._admit_stream if self.takes_lanes else None, tune=self._tune, clock=clock,
        )
        self.bytes_sent = 0
        """Payload bytes posted for sending so far."""
        self._watcher: Callable[[float], None] | None = None
        self._lost_rank: Callable[[], tuple[int, str] | None] = lambda: None
        self._ranks_left: Callable[[], Mapping[int, str]] = dict
        self._slice = timeout
        """Seconds of one wait for bytes at most, where nobody watches."""
        self._moved = self._looked = clock()

    def watched_by(self, watch: Callable[[float], None] | None) -> None:
        """See ``Mesh``; every ``WATCHED_SLICE_SECONDS``."""
        self._watcher = watch

    def told_by(
        self, lost: Callable[[], tuple[int, str] | None], left: Callable[[], Mapping[int, str]] = dict
    ) -> None:
        """See ``Mesh``."""
        self._lost_rank, self._ranks_left, self._slice = lost, left, LOST_RANK_SECONDS

    def interrupt(self, error: NetFoldError) -> None:
        """See ``Mesh``; at once where a connection stands, else when one comes or the timeout is over."""
        self._error = self._error or error
        for link in self._links.values():
            for sock in link.sockets():
                with contextlib.suppress(OSError):  # it was closed meanwhile, which wakes the other thread as well
                    sock.shutdown(socket.SHUT_RDWR)

    def _new_poller(self) -> select.poll | Poller:
        """The poller for this mesh's connections."""
        return select.poll()

    # ---- waiting ---------------------------------------------------------------------------------------------------
    def wait(self, pending: Sequence[Pending], *, first: bool = False) -> None:
        if first:
            while not any(p.done for p in pending):
                self._advance()
            return
        for one in pending:
            while not one.done:
                self._advance()

    def _advance(self) -> None:
        """Moves the bytes that can be moved, waiting at most the timeout until some can."""
        deadline = self._clock() + self._timeout
        most = self._slice if self._watcher is None else WATCHED_SLICE_SECONDS
        while not self._poll_once(min(most, deadline - self._clock())):
            if self._watcher is not None:
                self._watcher(self._moved)
            now = self._clock()
            if now >= deadline:
                self._time_out()
            if now >= deadline - self._timeout + LOST_RANK_SECONDS:
                self._ask_controller()
        self._moved = self._clock()
        if self._watcher is not None and self._moved >= self._looked + WATCHED_SLICE_SECONDS:
            self._looked = self._moved
            self._watcher(self._moved)

    def _poll_once(self, seconds: float) -> bool:
        """Runs one poll and handles its events.  Returns whether any byte or connection moved."""
        if self._error is not None:
            raise self._error
        for link in self._gone:
            if self._busy(link) and not self._still_arriving(link):
                self._report_lost_rank(link.rank, self._why_gone(link))
        return self._poll(seconds)

    def _poll(self, seconds: float) -> bool:
        moved = False
        with self.spanned("wait"):
            ready = self._poller.poll(max(0.0, seconds) * 1000)
        for fd, event in ready:
            link = self._by_fd.get(fd)
            if link is None:
                moved |= self._stream_event(fd, event) or self._handshake(fd)
                continue
            only_written = link.out is not link.socket and link.out is not None and fd == link.out.fileno()
            if link.sends and (only_written or event & select.POLLOUT):  # the error of a broken one is a write's, too
                with self.spanned("send"):
                    moved |= self._write(link)
            if event & ~select.POLLOUT and not only_written and link.socket is not None:
                with self.spanned("receive"):
                    moved |= self._read(link)
            self._watch(link)
        self._connecting.expire()
        return moved

    def _watch(self, link: PeerConnection) -> None:
        """Registers for what a peer's connection waits for."""
        link.register(self._registered)

    # ---- bytes -----------------------------------------------------------------------------------------------------
    def _write(self, link: PeerConnection) -> bool:
        if link.moving or link.out is None:
            return False
        try:
            return link.write(BURST_BYTES) > 0
        except OSError as error:
            # What the peer wrote before it went away may say why: read it before giving up.
            link.lose(error.strerror or str(error))
            self._read_all(link)
            reports = link.reports_behind_held_message()
            self._drop(link, link.lost)
            for who, whom, why in reports:
                self._receive_report(who, whom, why)
            return True

    def _read_all(self, link: PeerConnection) -> None:
        """Reads what has come up to a header that is held."""
        while self._read(link):
            pass

    def _read(self, link: PeerConnection) -> bool:
        """Reads what has come and is awaited, or is the header of what may be.  Returns whether any byte has."""
        total = 0
        try:
            while link.socket is not None and (total < BURST_BYTES or link.kept):
                if link.current is not None:
                    got = link.read_payload(link.current)
                    if not link.current.view:
                        whole = link.current
                        link.expect_header()
                        self._arrived(link, whole)
                    awaited = link.receives if link.current is None else got >= LONG_READ_BYTES
                    if got and not awaited and not link.kept:
                        return True  # most likely no more has come
                elif link.header_bytes < HEADER.size:
                    got = link.read_header()
                    if link.header_bytes == HEADER.size:
                        self._header(link)
                else:
                    break  # held
                if not got:
                    self._drop(link, "it closed the connection")
                total += got
        except (BlockingIOError, InterruptedError):
            pass
        except NetFoldError:  # raised by us; some of these are OSErrors, but not the socket's
            raise
        except OSError as error:
            self._drop(link, error.strerror or str(error))
        return total > 0

    def _header(self, link: PeerConnection) -> None:
        """Handles a complete header: that of a failure report or of a message."""
        if link.header.startswith(REPORT_MARK):
            number, whom, who, why = HEADER.unpack(link.header)
            link.expect_header()
            if number == FAREWELL:
                link.say_left(f"left {text_of(why)}")
            else:
                self._receive_report(who, whom, text_of(why))
        else:
            self._message(link)

    def _message(self, link: PeerConnection) -> None:
        """Handles the complete header of a message, which is held, with nothing more read, until ``link.current`` has
        room for the payload.

        This base class expects no messages over TCP.
        """
        number, _, _, text = HEADER.unpack(link.header)
        if self._call is not IDLE:
            raise self._fail(RankMismatch, f"rank {link.rank} sends a message of {Call(number, text_of(text))} over "
                                           f"TCP; expected it by {self.kind}; give the same rail on every rank")

    def _arrived(self, link: PeerConnection, receive: Receive) -> None:
        """Marks a completely received message as done."""
        receive.finish()

    # ---- connections -----------------------------------------------------------------------------------------------
    def _link(self, peer: int) -> PeerConnection:
        if self._error is not None:
            raise self._error
        if peer not in self._links:
            raise no_such_peer(self, peer)
        link = self._links[peer]
        if link.socket is None and not link.connected and not link.lost and self.rank > peer:
            self._connect(link)
        return link

    def _connect(self, link: PeerConnection) -> None:
        self._begin_connection(link, None, self._ports_to(link.rank))

    def _begin_connection(self, link: PeerConnection, stream: StreamTurn | None, ports: Sequence[int]) -> None:
        """Connects to a peer from one of these source ports, for a stream, or, without one, for the first time."""
        try:
            self._connecting.connect(link.rank, link.address, stream=stream, ports=ports)
        except PeerUnreachable as error:
            self._unconnected(link, Unconnected(link.rank, f"cannot connect: {error}", stream))
        except (OSError, ValueError) as error:
            what = f"cannot connect to rank {link.rank} at {link.address!r}: {error}"
            raise self._fail(TransportError, what) from error

    def _attach(self, link: PeerConnection, came: Proven) -> None:
        """Takes the first proven connection to a peer."""
        sock = came.socket
        if link.lost or (link.socket is not None and link.out is not None):  # or both directions have gone on before
            sock.close()
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.attach(sock)
        self._by_fd[sock.fileno()] = link
        self._watch(link)
        self._tell_reports(link)

    def _drop(self, link: PeerConnection, why: str) -> None:
        """Removes a dead connection.  That is an error only while something is posted for the peer: a peer may leave
        when it is done."""
        link.lose(why)
        self._gone.add(link)
        link.restart_receive()
        for sock in link.sockets():
            self._release_socket(sock)
        link.detach()

    def _release_socket(self, sock: socket.socket) -> None:
        """Lets go of one of a peer's connections for messages, which is going to be closed."""
        self._registered.forget(sock)
        del self._by_fd[sock.fileno()]

    def _handshake(self, fd: int) -> bool:
        """Handles an event of a connection that is not proven yet.  Returns whether a peer is connected or lost now."""
        came = self._connecting.on_ready(fd)
        if came is not None:
            self._came(came)
        return came is not None

    def _came(self, came: Proven | Unconnected) -> None:
        """Handles a connection that is proven, or cannot be made."""
        link = self._links[came.rank]
        if isinstance(came, Unconnected):
            self._unconnected(link, came)
        elif came.stream is not None:
            self._attach_stream(link, came)
        else:
            self._attach(link, came)

    def _admit(self, rank: int) -> Outcome:
        """Decides whether this rank accepts the first connection of a peer that has just proven which rank it is.

        Two ranks may connect to each other at once, after a timeout: then the higher one's connection stays.
        """
        link = self._links[rank]
        if link.lost or (link.socket is not None and link.out is not None):
            return Outcome.TAKEN
        return Outcome.CROSSED if rank < self.rank and self._connecting.connecting(rank) else Outcome.ACCEPTED

    def _unconnected(self, link: PeerConnection, failed: Unconnected) -> None:
        """Handles a connection that cannot be made."""
        self._drop(link, failed.why)

    def _tune(self, sock: socket.socket) -> None:
        """Sets the options of a new connection, or of the listener for those that come."""

    # ---- streams, of meshes that take connections for some ---------------------------------------------------------
    def _ports_to(self, peer: int) -> Sequence[int]:
        """TCP source ports for the connection to a peer, to be tried in this order; empty: any."""
        del peer
        return ()

    def _admit_stream(self, rank: int, stream: StreamTurn) -> tuple[Outcome, int]:
        """Decides whether this rank accepts a connection that a peer has made for one stream, a lane or the messages
        that the peer sends.  Returns the decision, and how many bytes of that stream have come here so far."""
        del rank, stream
        return Outcome.TAKEN, 0

    def _attach_stream(self, link: PeerConnection, came: Proven) -> None:
        """Takes a proven connection for a stream, whose socket belongs to this mesh now."""
        raise NotImplementedError(f"a connection for a stream of rank {link.rank}, {came}")

    def _stream_event(self, fd: int, event: int) -> bool:
        """Handles an event of another connection for a stream, where the descriptor is one.  Returns whether any byte
        moved."""
        del fd, event
        return False

    def _still_arriving(self, link: PeerConnection) -> bool:
        """Whether lanes of a peer whose connection for messages has ended may still bring parts of messages."""
        del link
        return False

    # ---- failure, which ``ConnectedMesh`` handles ------------------------------------------------------------------
    @abstractmethod
    def _busy(self, link: PeerConnection) -> bool:
        """Whether a send to this peer, or a receive from it, has been posted and is not done."""

    @abstractmethod
    def _time_out(self) -> None:
        """Handles that nothing has moved for the timeout.  Raises CollectiveTimeout."""

    @abstractmethod
    def _receive_report(self, who: int, whom: int, why: str) -> None:
        """Handles a failure report: the rank that reports, the rank concerned, and the reason."""

    @abstractmethod
    def _ask_controller(self) -> None:
        """Handles what the controller has said of ranks that are lost or have left.  Raises PeerLost."""

    @abstractmethod
    def _why_gone(self, link: PeerConnection) -> str:
        """Says how a peer was lost whose connection is gone, or never came."""

    @abstractmethod
    def _report_lost_rank(self, whom: int, why: str) -> None:
        """Handles that a rank is lost.  Raises PeerLost during an operation."""

    @abstractmethod
    def _tell_reports(self, link: PeerConnection) -> None:
        """Sends all failure reports to a peer that is connected only now."""

    def _fail(self, kind: type[NetFoldError], what: str) -> NetFoldError:
        me = f"job {self._plan.job!r}, rank {self.rank} of {self.size}, {self.name}, {self._call}"
        self._error = kind(f"{me}: {what}")
        return self._error
