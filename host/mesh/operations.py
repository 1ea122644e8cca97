# SPDX-License-Identifier: Apache-2.0
"""The operations of one rank on its connections: how each begins, waits and ends, also where a rank is gone.

Ranks report failures to each other over their TCP connections:

    failure report = header: FAILURE_REPORT | rank concerned | reporting rank | reason     passed on to all connected
    ranks
    farewell       = header: FAREWELL | rank that leaves | the same    | when and why      to its connected peers alone
    long wait      = header: WAITING | call's number | rank that waits | ranks that it waits for      to the same

By failure reports (``failure_reports``) every rank can name a rank that died or never called.  The report of a lost
rank ends the operation on every rank that it reaches; after a timeout each rank reports which ranks it waits for,
collects the reports of the others, and follows the wait-for graph to the ranks that reported nothing.

Long before the timeout a rank that waits tells its peers so.  A moment later it says for whom it waits: those that do
not wait themselves.  Where peers wait for the same ranks, the one with the lowest number warns, and the others log it.

A farewell is not passed on: where it lay unread at a peer that closes, the kernel would reset that connection, and drop
what the peer has not received of operations that had completed.  A rank that is not connected to the one that leaves
hears of it from the controller.

Messages travel over the same connections in ``tcp.TcpMesh``; ``roce.mesh.RoceMesh`` uses them for failure reports
alone.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from netfold.host.errors import Closed, CollectiveTimeout, NetFoldError, PeerLost, RailDown
from netfold.host.mesh.connection import (
    FAILURE_REPORT,
    FAREWELL,
    HEADER,
    TEXT_BYTES,
    WAITING,
    ControlMessage,
    PeerConnection,
)
from netfold.host.mesh.connections import MeshConnections, MeshTraffic, Spans
from netfold.host.mesh.failure_reports import FailureReports
from netfold.host.mesh.mesh import (
    IDLE,
    LOST_RANK_SECONDS,
    WAIT_SECONDS,
    WATCHED_SLICE_SECONDS,
    Call,
    Pending,
    no_such_peer,
    ranks,
)
from netfold.host.mesh.poller import Poller
from netfold.wire.plan import Plan

log = logging.getLogger("netfold")

GRACE_FRACTION = 0.1
"""Fraction of the timeout for which a timed-out rank collects its peers' wait reports, and for which a rank that gives
up waits for peers that have not connected yet; at least ``REPORT_SECONDS``."""
REPORT_SECONDS = 0.2
"""Most seconds that a rank which gives up spends on sending its failure reports."""

HEAR_SECONDS = 1.0
"""Seconds between the word of a rank that it waits, and its message for whom: the others' words come meanwhile."""

SAME_ORDER_HINT = "call the same operations in the same order on every rank, then join anew"
"""Advice on a RankMismatch, for its message."""
PEER_LOST_HINT = "Look at that rank's own error; then join anew"
"""Advice on a PeerLost, for its message."""
LEFT_HINT = "Let all ranks end after the same operation, or go on without it"
"""Advice on a rank that has left in order."""


class MeshWork(MeshTraffic, Protocol):
    """The posted work of a mesh, and its progress."""

    def poll(self, seconds: float) -> bool:
        """Waits so long until anything can be moved, and moves it.  Returns whether anything moved."""

    def busy(self, link: PeerConnection) -> bool:
        """True if a send to this peer, or a receive from it, has been posted and is not done."""

    def still_arriving(self, link: PeerConnection) -> bool:
        """True if more of the data that this peer has sent may arrive although its connection has ended."""

    def awaited(self) -> list[PeerConnection]:
        """Connections of the peers that this rank waits for: first those that must send, then those that must
        receive."""

    def missing(self, link: PeerConnection) -> str:
        """The data that a peer has not sent or not accepted yet, in words."""


class Operations:
    """The operations of one mesh, on ``connections`` of its own.

    work      what the mesh has posted
    name      of this kind of mesh, in errors
    timeout   seconds without a byte moving after which a wait gives up
    clock     monotonic seconds
    lanes, spanned, poller  see ``MeshConnections``
    """

    def __init__(
        self, plan: Plan, listener: socket.socket, work: MeshWork, *, name: str, timeout: float, spanned: Spans,
        lanes: bool = False, poller: Poller | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan, self.timeout, self.clock = plan, timeout, clock
        self.call, self.text = IDLE, bytes(TEXT_BYTES)
        """The operation under way, and the text of its messages' headers."""
        self.error: NetFoldError | None = None
        """The error because of which nothing is sent or received any more; None while all is well."""
        self.reports = FailureReports(plan.rank)
        self.connections = MeshConnections(plan, listener, work, self, lanes=lanes, spanned=spanned, poller=poller,
                                       clock=clock)
        self._work, self._name = work, name
        self._watcher: Callable[[float], bool] | None = None
        self._lost_rank: Callable[[], tuple[int, str] | None] = lambda: None
        self._ranks_left: Callable[[], Mapping[int, str]] = dict
        self.slice_seconds = timeout
        """Most seconds of one wait for bytes, if nobody watches."""
        self._moved = self._looked = clock()

    # ---- begin and wait ----------------------------------------------------------------------------------------------
    def begin(self, call: Call) -> None:
        """See ``Mesh``."""
        if self.error is not None:
            raise self.error
        if self.reports.lost_ranks:
            raise self._lost_error()
        if self.reports.waits:
            who, whom = next(iter(self.reports.waits.items()))
            raise self.failure(CollectiveTimeout, f"rank {who} waits in vain for {ranks(sorted(whom))}. "
                                                  f"{PEER_LOST_HINT}")
        self.call = call
        self.name_text(call.text)

    def carry_text(self, text: bytes) -> None:
        """Sets the text of the headers of the messages that follow, as they carry it."""
        self.text = text

    def name_text(self, text: str) -> bytes:
        """Sets the text of the headers of the messages that follow, and returns it as they carry it."""
        self.text = text.encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")
        return self.text

    def link(self, peer: int) -> PeerConnection:
        """The connection to a peer, which is opened where that is this rank's part.  Raises ValueError for what is no
        peer, TransportError, and the error of a mesh that has failed."""
        if self.error is not None:
            raise self.error
        links = self.connections.links
        if peer not in links:
            raise no_such_peer(self.plan.rank, self.plan.world, peer)
        link = links[peer]
        if link.socket is None and not link.lost and self.plan.rank > peer:
            self.connections.connect(link)
        return link

    def wait(self, pending: Sequence[Pending], first: bool) -> None:
        """See ``Mesh``."""
        if first:
            while not any(p.done for p in pending):
                self.advance()
            return
        for one in pending:
            while not one.done:
                self.advance()

    def advance(self, awaited_since: Callable[[], float] = lambda: -math.inf) -> None:
        """Moves the bytes that can be moved, waiting at most the timeout until some can.  Raises as ``Mesh.wait``.

        awaited_since  returns the time from which on the timeout counts; infinity: it does not yet
        """
        since = self.clock()
        most = self.slice_seconds if self._watcher is None else WATCHED_SLICE_SECONDS
        told = said = watched = False
        while not self.poll(min(most, since + self.timeout - self.clock())):
            if self._watcher is not None:
                watched = self._watcher(self._moved)
            now = self.clock()
            since = max(since, min(now, awaited_since()))
            if now >= since + self.timeout:
                self._time_out()
            if now >= since + LOST_RANK_SECONDS:
                self._ask_controller()
            if not (said or watched) and now >= since + WAIT_SECONDS:
                if not told:
                    told = True
                    self._tell_awaited()
                elif now >= since + WAIT_SECONDS + HEAR_SECONDS:
                    said = True
                    self._say_awaited()
        self._moved = self.clock()
        if self._watcher is not None and self._moved >= self._looked + WATCHED_SLICE_SECONDS:
            self._looked = self._moved
            self._watcher(self._moved)

    def poll(self, seconds: float) -> bool:
        """Moves what can be moved within so many seconds.  Returns whether any byte or connection moved.  Raises as
        ``Mesh.wait``, but for the timeout."""
        if self.error is not None:
            raise self.error
        for link in self.connections.gone:
            if self._work.busy(link) and not self._work.still_arriving(link):
                self.report_lost(link.rank, self._why_gone(link))
        return self._work.poll(seconds)

    def look(self) -> None:
        """See ``Mesh``."""
        self.poll(0.0)
        self._ask_controller()

    def watched_by(self, watch: Callable[[float], bool] | None) -> None:
        """See ``Mesh``; every ``WATCHED_SLICE_SECONDS``."""
        self._watcher = watch

    def told_by(self, lost: Callable[[], tuple[int, str] | None], left: Callable[[], Mapping[int, str]]) -> None:
        """See ``Mesh``."""
        self._lost_rank, self._ranks_left, self.slice_seconds = lost, left, LOST_RANK_SECONDS

    def interrupt(self, error: NetFoldError) -> None:
        """See ``Mesh``; at once where a connection stands, else when one comes or the timeout is over."""
        self.error = self.error or error
        self.connections.shut_down()

    # ---- failure -----------------------------------------------------------------------------------------------------
    def failure(self, kind: type[NetFoldError], what: str) -> NetFoldError:
        """The error, which says where it happened, with which this rank gives up, to be raised."""
        plan = self.plan
        me = f"job {plan.job!r}, rank {plan.rank} of {plan.world}, {self._name}, {self.call}"
        self.error = kind(f"{me}: {what}")
        return self.error

    def reported(self, who: int, whom: int, why: str) -> None:
        """Handles a peer's failure report.  Between operations it is only recorded, and raised when the next one
        begins."""
        rank = self.plan.rank
        if why:
            if whom != rank:
                self.report_lost(whom, why)
        elif who != rank and self.reports.add_wait(who, whom):
            self._send_report(who, whom, "")
            if self.call is not IDLE and rank not in self.reports.waits and self._work.awaited():
                self._time_out()

    def waits(self, who: int, number: int, whom: str) -> None:
        """Handles a peer's word that it has waited for long, in its call of this number."""
        self.reports.add_long_wait(who, number, whom)

    def report_lost(self, whom: int, why: str) -> None:
        """Records a lost rank, reports it to all peers, and ends the operation under way.  Raises PeerLost."""
        if not self.reports.add_lost(whom, why):
            return
        self._send_report(self.plan.rank, whom, why)
        if self.call is not IDLE:
            raise self._lost_error()

    def attached(self, link: PeerConnection) -> None:
        """Sends all failure reports to a peer that is connected only now."""
        for who, whom, why in list(self.reports.all()):  # sending reports may add more of them
            self._send_report(who, whom, why, only=link)
        rank = self.plan.rank
        if rank in self.reports.left:
            self._send_report(rank, rank, self.reports.left[rank], only=link, kind=FAREWELL)

    def _lost_error(self) -> NetFoldError:
        rank, why = next(iter(self.reports.lost_ranks.items()))
        missing = "; ".join(self._work.missing(link) for link in self._work.awaited())
        hint = LEFT_HINT if why.startswith("left ") else PEER_LOST_HINT
        return self.failure(PeerLost, f"rank {rank} {why}; {missing or 'no message was awaited'}. {hint}")

    def _why_gone(self, link: PeerConnection) -> str:
        if link.left or link.rank not in self.reports.left:
            return link.left or f"is lost: {link.lost}"
        return f"left {self.reports.left[link.rank]}"

    def _drop_unconnected(self, rank: int, why: str) -> None:
        """A rank is gone: where it was never connected, nothing can come of it any more."""
        link = self.connections.links.get(rank)
        if link is not None and link.socket is None and not link.lost:
            self.connections.drop(link, why)

    def _ask_controller(self) -> None:
        """Handles what the controller has said of ranks that are lost or have left.  Raises PeerLost."""
        for rank, why in self._ranks_left().items():
            self.reports.add_left(rank, why)
            self._drop_unconnected(rank, "it has left")
        if (lost := self._lost_rank()) is not None:
            self._drop_unconnected(*lost)
            self.report_lost(*lost)

    def _tell_awaited(self) -> None:
        """Tells the connected peers for whom this rank waits."""
        awaited = ",".join(str(link.rank) for link in self._work.awaited())
        self._send_report(self.plan.rank, self.call.number, awaited, kind=WAITING)

    def _say_awaited(self) -> None:
        """Logs for whom this rank waits: those that do not wait themselves, or that all wait."""
        plan, awaited = self.plan, [link.rank for link in self._work.awaited()]
        named, warns = self.reports.to_name(self.call.number, awaited)
        hosts = ", ".join(plan.peers[rank].where for rank in named or awaited)
        whom = f"{ranks(named or awaited)} ({hosts})" if awaited else "nobody that is known"
        also = "" if named or not awaited else ", which waits, too" if len(awaited) == 1 else ", which wait, too"
        log.log(logging.WARNING if warns else logging.INFO, "job %r, rank %d of %d, %s, %s: nothing has moved for %g "
                "s: waiting for %s%s", plan.job, plan.rank, plan.world, self._name, self.call, WAIT_SECONDS, whom, also)

    def _time_out(self) -> None:
        """Handles a timeout, this rank's or a reported one: reports which ranks this one waits for, collects the
        others' reports, and raises CollectiveTimeout with the ranks at fault."""
        missing = self._work.awaited()
        described = "; ".join(self._work.missing(link) for link in missing)
        self.reports.set_own_waits([link.rank for link in missing])
        for link in missing:
            if link.socket is None and not link.lost:  # it should have connected to us
                self.connections.connect(link)
        for link in missing:
            self._send_report(self.plan.rank, link.rank, "")
        deadline = self.clock() + max(REPORT_SECONDS, GRACE_FRACTION * self.timeout)
        while (left := deadline - self.clock()) > 0:
            self._work.poll(left)
        guilty = ranks(self.reports.culprits())
        raise self.failure(
            CollectiveTimeout,
            f"nothing moved for {self.timeout:g} s: {guilty} gone, stopped, or never called; here {described}"
            f"{self.connections.refusals()}. Expected: every rank calls within the timeout of {self.timeout:g} s",
        )

    def _send_report(
        self, who: int, whom: int, why: str, only: PeerConnection | None = None, kind: int = FAILURE_REPORT
    ) -> None:
        """Sends a failure report to all connected peers, after a message that is partly sent and before all others."""
        report = HEADER.pack(kind, whom, who, why.encode()[:TEXT_BYTES])
        for link in [only] if only else list(self.connections.links.values()):
            if link.socket is None:
                continue
            link.insert_control(ControlMessage(memoryview(report)))
            self.connections.write(link)
            self.connections.watch(link)

    # ---- end ---------------------------------------------------------------------------------------------------------
    def give_up(self, error: BaseException) -> None:
        """Ends the operation under way because of an error: nothing that arrives from here on is one of this rank's."""
        self.error = self.error or self.failure(NetFoldError, f"gave up ({type(error).__name__}: {error}); join anew")
        self.call = IDLE

    def abort(self, error: BaseException) -> None:
        """See ``Mesh``; closes all connections."""
        announced, links = self.reports.announced, self.connections.links.values()
        self.give_up(error)
        # Peers with posted messages that have not connected yet would otherwise blame this rank for being gone.
        late = [link for link in links if (link.receives or link.sends) and link.rank not in self.reports.lost_ranks]
        for link in links:
            if not announced and link.socket is None and not link.lost and (link.receives or link.sends):
                self.connections.connect(link)  # without a connection it could not hear our report
            link.withdraw()
        if not announced:
            why = f"gave up: {type(error).__name__}"
            self.reports.add_lost(self.plan.rank, why)  # for those that connect later as well
            self._send_report(self.plan.rank, self.plan.rank, why)
        if not isinstance(error, RailDown):  # a dead rail carries no reports either
            grace = max(REPORT_SECONDS, GRACE_FRACTION * self.timeout)
            self._poll_while(grace, lambda: any(link.socket is None and not link.lost for link in late))
            self._poll_while(REPORT_SECONDS, lambda: any(link.sends for link in links))
        self.connections.close()

    def _poll_while(self, seconds: float, while_: Callable[[], bool]) -> None:
        deadline = self.clock() + seconds
        while (left := deadline - self.clock()) > 0 and while_():
            with contextlib.suppress(NetFoldError):  # a peer may be lost, and others still be waiting for this rank
                self._work.poll(left)

    def leave(self, why: str) -> None:
        """See ``Mesh``."""
        rank, links = self.plan.rank, self.connections.links.values()
        if self.error is not None or self.reports.announced or rank in self.reports.left:
            return
        self.reports.add_left(rank, why)  # for those that connect now
        farewell = HEADER.pack(FAREWELL, rank, rank, why.encode()[:TEXT_BYTES])
        for link in links:
            if link.socket is not None:
                link.sends.append(ControlMessage(memoryview(farewell)))
                with contextlib.suppress(NetFoldError):  # this peer may be lost; the others are to hear it all the same
                    self.connections.write(link)
                self.connections.watch(link)
        self._poll_while(REPORT_SECONDS, lambda: any(link.sends for link in links))

    def close(self) -> None:
        """See ``Mesh``."""
        plan = self.plan
        self.error = self.error or Closed(f"job {plan.job!r}, rank {plan.rank}: the mesh was closed")
        self.connections.close()
