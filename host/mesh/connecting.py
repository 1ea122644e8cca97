# SPDX-License-Identifier: Apache-2.0
"""The connections of a mesh whose handshakes are under way: those to peers' listeners, and those that came to its own.

Nothing here waits.  A connection is handed over once both sides are proven; until then no byte of a message is sent or
read on it.  Of connections that came, at most so many are kept, each for so long (``unproven``).  One that this rank
opened has as long as the operation that needs it; where it ends early, because the peer had too many, it is opened
again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from netfold.host.forked import own
from netfold.host.mesh.handshake import HandshakeRefused, Identity, Initiator, Outcome, Responder
from netfold.host.mesh.poller import Poller
from netfold.host.mesh.sockets import BACKLOG, TAKEN, PeerUnreachable, connect
from netfold.host.mesh.unproven import UnprovenLimit
from netfold.wire.plan import Plan

PURPOSE: Final = "mesh"
"""Purpose of these connections, for the derivation of their key."""
ATTEMPTS: Final = 8
"""Most successive connections to a peer that may end before either side has refused the other."""
ACCEPTED_AT_ONCE: Final = 64
"""Connections accepted before other sockets get their turn."""

log = logging.getLogger("netfold")


Key = tuple[int, int | None]
"""Rank, and the number of the lane that a connection is for; None: it is the one for messages."""


@dataclass(frozen=True)
class Proven:
    """A connection that both sides have proven.  The socket belongs to whoever gets this."""

    rank: int
    socket: socket.socket
    lane: int | None = None
    """The initiator's number of the lane that it is for; None: it is the one for messages."""
    opened: bool = False
    """True if this rank opened it."""


@dataclass(frozen=True)
class Unconnected:
    """A rank to which no connection can be made, and why."""

    rank: int
    why: str


class Attempt(NamedTuple):
    """A connection to a rank that is not proven yet."""

    rank: int
    lane: int | None
    socket: socket.socket
    since: float
    """Time at which the wait for an answer began."""
    greeted: bool
    """True if the peer's kernel has answered, so that the hello has left."""
    tries: int
    """Number of restarts from another source port."""


@dataclass(eq=False)
class _Outgoing:
    socket: socket.socket
    initiator: Initiator
    where: str
    attempts: int
    lane: int | None = None
    ports: tuple[int, ...] = ()
    """The source ports to try."""
    since: float = 0.0
    """Time at which it began, or at which the hello was sent."""
    greeted: bool = False
    """True if the hello has been sent."""
    tries: int = 0

    @property
    def events(self) -> int:
        return select.POLLIN if self.greeted else select.POLLOUT

    @property
    def key(self) -> Key:
        return self.initiator.peer, self.lane


@dataclass(eq=False)
class _Incoming:
    socket: socket.socket
    responder: Responder
    source: str


class Connecting:
    """The handshakes of one mesh.  Owns ``listener``.

    poller  is registered for the listener and the connections; whatever it reports on these descriptors goes to
            ``on_ready``
    admit   says what this rank makes of a rank that has proven itself: ``Outcome.ACCEPTED``, ``TAKEN`` or ``CROSSED``
    admit_lane  says whether this rank takes a further connection of such a rank, for a lane; None: it takes none
    clock   monotonic seconds
    Raises PlanError for a plan without a secret.
    """

    def __init__(
        self,
        plan: Plan,
        listener: socket.socket,
        poller: select.poll | Poller,
        admit: Callable[[int], Outcome],
        *,
        admit_lane: Callable[[int], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._me = Identity.of_plan(plan, PURPOSE)
        self._label = f"job {plan.job!r}, rank {plan.rank}"
        self._poller = poller
        self._admit = admit
        self._admit_lane = admit_lane
        self.clock = clock
        self.outgoing: dict[int, _Outgoing] = {}
        self.incoming: dict[int, _Incoming] = {}
        """Connections without a proof as yet, by descriptor: those that this rank has begun, and those of others."""
        self._fd_of: dict[Key, int] = {}
        """The descriptor of the connection attempt."""
        self._unproven: UnprovenLimit[int] = UnprovenLimit(plan.world)
        self._warned = False
        self._refused = 0
        self._refused_last = ""
        self.listener = listener
        listener.setblocking(False)
        listener.listen(BACKLOG)
        poller.register(listener, select.POLLIN)

    # ---- what the mesh asks ------------------------------------------------------------------------------------------
    def connect(self, peer: int, where: str, *, lane: int | None = None, ports: Sequence[int] = ()) -> None:
        """Begins to connect to a peer; does nothing where that is under way.  Raises as ``sockets.connect``.

        lane   what the connection is for; None: for messages
        ports  the source ports to try, in order; where all are taken, the kernel chooses, and a warning says so
        """
        if (peer, lane) not in self._fd_of:
            self._open(peer, where, 1, lane, tuple(ports))

    def unproven(self) -> list[Attempt]:
        """The connections to peers that are being made."""
        return [Attempt(one.initiator.peer, one.lane, one.socket, one.since, one.greeted, one.tries)
                for one in self.outgoing.values()]

    def try_ports(self, attempt: Attempt, ports: Sequence[int]) -> Unconnected | None:
        """Begins anew, from one of these source ports, what was not greeted.  Returns what has become of it where that
        cannot be."""
        one = self.outgoing[self._fd_of[attempt.rank, attempt.lane]]
        self._forget(one).close()
        return self._begin_again(one, one.attempts, tuple(ports), one.tries + 1)

    def drop(self, peer: int) -> None:
        """Closes the connection for messages to a peer that is being made."""
        if (peer, None) in self._fd_of:
            self._forget(self.outgoing[self._fd_of[peer, None]]).close()

    def connecting(self, peer: int) -> bool:
        """True if this rank has opened a connection for messages to the peer that is not proven yet."""
        return (peer, None) in self._fd_of

    def refusals(self) -> str:
        """How many connections were refused here, and why the last one, for error messages; empty where none was."""
        if not self._refused:
            return ""
        return f"; {self._refused} connections were refused here, the last one because {self._refused_last}"

    def expire(self) -> None:
        """Closes connections that have not proven themselves in time; to be called after ``on_ready``, so that what
        has arrived while nobody looked counts."""
        if not self._unproven:  # as nearly always
            return
        for fd in self._unproven.expired(self.clock()):
            self._refuse(self.incoming[fd], "does not finish its handshake in time", limited=False)

    def on_ready(self, fd: int) -> Proven | Unconnected | None:
        """Handles an event.  Returns a connection that is proven now, a rank that cannot be connected to, or None."""
        if fd == self.listener.fileno():
            self._accept()
        elif fd in self.incoming:
            return self._respond(self.incoming[fd])
        elif fd in self.outgoing:
            return self._initiate(self.outgoing[fd])
        return None  # what an earlier event of the same poll has closed is not known any more

    def close(self) -> None:
        """Closes the listener and all connections that have not been handed over."""
        for sock in [one.socket for one in self.incoming.values()] + [one.socket for one in self.outgoing.values()]:
            sock.close()
        self.incoming.clear()
        self.outgoing.clear()
        self._fd_of.clear()
        self.listener.close()

    # ---- connections to peers ----------------------------------------------------------------------------------------
    def _open(
        self, peer: int, where: str, attempts: int, lane: int | None, ports: tuple[int, ...], tries: int = 0
    ) -> None:
        sock = self._from_one_of(ports, where, peer)
        initiator = Initiator(self._me, peer, lane=lane)
        one = _Outgoing(sock, initiator, where, attempts, lane, ports, self.clock(), tries=tries)
        self.outgoing[sock.fileno()] = one
        self._fd_of[one.key] = sock.fileno()
        self._poller.register(sock, one.events)

    def _from_one_of(self, ports: Sequence[int], where: str, peer: int) -> socket.socket:
        """Starts a connection from the first of these ports that is free."""
        for port in ports:
            try:
                return connect(where, (self.listener.getsockname()[0], port))
            except OSError as error:
                if error.errno not in TAKEN:
                    raise
        if ports and not self._warned:
            self._warned = True
            log.warning("%s: the TCP ports %s of a path to rank %d are taken here: this connection, and others like "
                        "it, take a port that the kernel chooses, and a path that the switches' hash does; see "
                        "`ss -tan`", self._label, ", ".join(map(str, ports)), peer)
        return connect(where)

    def _forget(self, one: _Outgoing) -> socket.socket:
        """Takes a connection out of this object's hands; its socket belongs to the caller."""
        fd = one.socket.fileno()
        self._poller.unregister(fd)
        del self.outgoing[fd], self._fd_of[one.key]
        return one.socket

    def _initiate(self, one: _Outgoing) -> Proven | Unconnected | None:
        peer, initiator = one.initiator.peer, one.initiator
        try:
            if not one.greeted:
                one.socket.send(initiator.hello)  # where it is not connected yet, it would block
                one.greeted, one.since = True, self.clock()
                self._poller.modify(one.socket, one.events)
            while initiator.wanted:
                data = one.socket.recv(initiator.wanted)
                if not data:
                    return self._try_again(one, "it closed the connection")
                _send(one.socket, initiator.receive(data))
        except BlockingIOError:
            return None
        except HandshakeRefused as error:
            self._forget(one).close()
            return Unconnected(peer, f"whoever listens at {one.where} {error}")
        except ConnectionResetError as error:
            return self._try_again(one, error.strerror or str(error))
        except OSError as error:
            self._forget(one).close()
            return Unconnected(peer, error.strerror or str(error))
        sock = self._forget(one)
        if initiator.outcome == Outcome.ACCEPTED:
            return Proven(peer, sock, one.lane, opened=True)
        sock.close()
        if initiator.outcome == Outcome.CROSSED:
            return None  # its own connection comes
        why = f"it has, or had, a connection with another process that is rank {self._me.rank}"
        return Unconnected(peer, why)

    def _try_again(self, one: _Outgoing, why: str) -> Unconnected | None:
        """Opens another connection in place of one that has ended before either side refused the other."""
        self._forget(one).close()
        peer = one.initiator.peer
        if one.attempts == ATTEMPTS:
            return Unconnected(peer, f"{why}, {ATTEMPTS} times before the end of the handshake")
        return self._begin_again(one, one.attempts + 1, one.ports, one.tries)

    def _begin_again(self, one: _Outgoing, attempts: int, ports: tuple[int, ...], tries: int) -> Unconnected | None:
        peer = one.initiator.peer
        try:
            self._open(peer, one.where, attempts, one.lane, ports, tries)
        except (PeerUnreachable, OSError) as error:
            return Unconnected(peer, f"cannot connect: {error}")
        return None

    # ---- connections that came ---------------------------------------------------------------------------------------
    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, source = self.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # closed again before it was accepted; or there are no descriptors
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._count(f"this process has no file descriptors left ({error.strerror})")
                    if (fd := self._unproven.drop_one()) is not None:
                        self._refuse(self.incoming[fd], "was the oldest", limited=False)
                return
            own(sock).setblocking(False)
            fd = sock.fileno()
            responder = Responder(self._me, lanes=self._admit_lane is not None)
            self.incoming[fd] = _Incoming(sock, responder, f"{source[0]}:{source[1]}")
            self._poller.register(sock, select.POLLIN)
            if (oldest := self._unproven.add(fd, source[0], self.clock())) is not None:
                self._refuse(self.incoming[oldest], f"was the oldest of {self._unproven.most} unproven ones",
                             limited=False)

    def _respond(self, one: _Incoming) -> Proven | None:
        responder = one.responder
        try:
            while responder.wanted:
                data = one.socket.recv(responder.wanted)
                if not data:
                    raise HandshakeRefused("was closed in the middle of its handshake")
                _send(one.socket, responder.receive(data))
            assert responder.peer is not None
            outcome = self._outcome(responder.peer, responder.lane)
            _send(one.socket, responder.verdict(outcome))
        except BlockingIOError:
            return None
        except HandshakeRefused as error:
            self._refuse(one, str(error), say=responder.refusal)
            return None
        except OSError as error:
            self._refuse(one, f"broke: {error.strerror or error}")
            return None
        # a peer whose connection crosses ours gives it up as it takes ours; another process waits for the verdict
        if outcome == Outcome.TAKEN and responder.lane is None and not _has_ended(one.socket):
            log.warning("%s: %s proves to be rank %d, which has, or had, a connection already, and is refused: two "
                        "processes act as one rank", self._label, one.source, responder.peer)
        if outcome != Outcome.ACCEPTED:
            self._refuse(one, f"proves to be rank {responder.peer}, to which there is another")
            return None
        self._poller.unregister(one.socket)
        del self.incoming[one.socket.fileno()]
        self._unproven.remove(one.socket.fileno())
        if responder.lane is None:
            self.drop(responder.peer)  # what this rank began is not needed
        return Proven(responder.peer, one.socket, responder.lane)

    def _outcome(self, peer: int, lane: int | None) -> Outcome:
        if lane is None or self._admit_lane is None:
            return self._admit(peer)
        return Outcome.ACCEPTED if self._admit_lane(peer) else Outcome.TAKEN

    def _refuse(self, one: _Incoming, why: str, *, say: bytes = b"", limited: bool = True) -> None:
        """Closes a connection that came.  ``say`` is sent before, as far as that is possible; ``limited``: it still
        counts among the unproven ones."""
        fd = one.socket.fileno()
        self._poller.unregister(fd)
        del self.incoming[fd]
        if limited:
            self._unproven.remove(fd)
        self._count(f"the one from {one.source} {why}")
        with contextlib.suppress(OSError):  # it is refused all the same
            _send(one.socket, say)
        one.socket.close()

    def _count(self, why: str) -> None:
        self._refused += 1
        self._refused_last = why
        log.debug("%s: a connection is refused, because %s", self._label, why)


def _has_ended(sock: socket.socket) -> bool:
    """True if the other side has closed a connection from which all that it sent was read."""
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _send(sock: socket.socket, message: bytes) -> None:
    """Sends a message of a handshake, for which a connection's buffer always has room.  Raises OSError."""
    try:
        sent = sock.send(message) if message else 0
    except BlockingIOError:
        sent = 0
    if sent != len(message):
        raise ConnectionError(errno.ENOBUFS, "no room for a handshake")
