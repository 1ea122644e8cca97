# SPDX-License-Identifier: Apache-2.0
"""A polled mesh whose ranks report failures to each other over their TCP connections.

    failure report = header: FAILURE_REPORT | rank concerned | reporting rank | reason     passed on to all connected
    ranks
    farewell       = header: FAREWELL | rank that leaves | the same    | when and why      to its connected peers alone

By failure reports (``failure_reports``) every rank can name a rank that died or never called.  The report of a lost
rank ends the operation on every rank that it reaches; after a timeout each rank reports which ranks it waits for,
collects the reports of the others, and follows the wait-for graph to the ranks that reported nothing.

A farewell is not passed on: where it lay unread at a peer that closes, the kernel would reset that connection, and drop
what the peer has not received of operations that had completed.  A rank that is not connected to the one that leaves
hears of it from the controller.

Messages travel over the same connections in ``tcp.TcpMesh``; ``roce.mesh.RoceMesh`` uses them for failure reports
alone.
"""

from __future__ import annotations

import contextlib
import socket
import time
from abc import abstractmethod
from collections.abc import Callable

from netfold.host.errors import Closed, CollectiveTimeout, NetFoldError, PeerLost, RailDown
from netfold.host.mesh.connection import FAILURE_REPORT, FAREWELL, HEADER, TEXT_BYTES, ControlMessage, PeerConnection
from netfold.host.mesh.failure_reports import FailureReports
from netfold.host.mesh.mesh import IDLE, Call, ranks
from netfold.host.mesh.polled import PolledMesh
from netfold.host.tracing.timeline import Timeline
from netfold.wire.jobs import Plan

GRACE_FRACTION = 0.1
"""Fraction of the timeout that a rank, after it has timed out, spends on collecting its peers' wait reports, and that a
rank which gives up waits for peers that have not connected yet; at least ``REPORT_SECONDS``."""
REPORT_SECONDS = 0.2
"""Seconds that a rank which gives up spends at most on sending its failure reports."""

SAME_ORDER_HINT = "call the same operations in the same order on every rank, then join anew"
"""What to do about a RankMismatch, for its message."""
PEER_LOST_HINT = "Look at that rank's own error; then join anew"
"""What to do about a PeerLost, for its message."""
LEFT_HINT = "Let all ranks end after the same operation, or go on without it"
"""The same where the rank has left in order."""


class ConnectedMesh(PolledMesh):
    """The ranks of a plan, connected over TCP, each of which learns why another one fails.

    Parameters are those of ``PolledMesh``.
    """

    def __init__(
        self,
        plan: Plan,
        listener: socket.socket,
        *,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        timeline: Timeline | None = None,
    ) -> None:
        super().__init__(plan, listener, timeout=timeout, clock=clock, timeline=timeline)
        self._reports = FailureReports(plan.rank)

    # ---- failure ---------------------------------------------------------------------------------------------------
    @abstractmethod
    def _peers_awaited(self) -> list[PeerConnection]:
        """Connections of the peers that this rank waits for: first those that must send, then those that must
        receive."""

    @abstractmethod
    def _describe_missing(self, link: PeerConnection) -> str:
        """What a peer has not sent or not accepted yet, in words."""

    def _receive_report(self, who: int, whom: int, why: str) -> None:
        """Handles a peer's failure report.  Between operations it is only recorded, and raised when the next one
        begins."""
        if why:
            if whom != self.rank:
                self._report_lost_rank(whom, why)
        elif who != self.rank and self._reports.add_wait(who, whom):
            self._send_report(who, whom, "")
            if self._call is not IDLE and self.rank not in self._reports.waits and self._peers_awaited():
                self._time_out()

    def _report_lost_rank(self, whom: int, why: str) -> None:
        """Records a lost rank, reports it to all peers, and ends the operation under way."""
        if not self._reports.add_lost(whom, why):
            return
        self._send_report(self.rank, whom, why)
        if self._call is not IDLE:
            raise self._lost_error()

    def _lost_error(self) -> NetFoldError:
        rank, why = next(iter(self._reports.lost_ranks.items()))
        missing = "; ".join(self._describe_missing(link) for link in self._peers_awaited())
        hint = LEFT_HINT if why.startswith("left ") else PEER_LOST_HINT
        return self._fail(PeerLost, f"rank {rank} {why}; {missing or 'no message was awaited'}. {hint}")

    def _why_gone(self, link: PeerConnection) -> str:
        if link.left or link.rank not in self._reports.left:
            return link.left or f"is lost: {link.lost}"
        return f"left {self._reports.left[link.rank]}"

    def _drop_unconnected(self, rank: int, why: str) -> None:
        """A rank is gone: where it was never connected, nothing can come of it any more."""
        link = self._links.get(rank)
        if link is not None and not link.connected and not link.lost:
            self._drop(link, why)

    def _ask_controller(self) -> None:
        for rank, why in self._ranks_left().items():
            self._reports.add_left(rank, why)
            self._drop_unconnected(rank, "it has left")
        if (lost := self._lost_rank()) is not None:
            self._drop_unconnected(*lost)
            self._report_lost_rank(*lost)

    def _time_out(self) -> None:
        """Handles a timeout, this rank's or a reported one: reports which ranks this one waits for, collects the
        others' reports, and raises CollectiveTimeout with the ranks at fault."""
        missing = self._peers_awaited()
        described = "; ".join(self._describe_missing(link) for link in missing)
        self._reports.set_own_waits([link.rank for link in missing])
        for link in missing:
            if not link.connected and not link.lost:  # it should have connected to us
                self._connect(link)
        for link in missing:
            self._send_report(self.rank, link.rank, "")
        deadline = self._clock() + max(REPORT_SECONDS, GRACE_FRACTION * self._timeout)
        while (left := deadline - self._clock()) > 0:
            self._poll(left)
        guilty = ranks(self._reports.culprits())
        raise self._fail(
            CollectiveTimeout,
            f"nothing moved for {self._timeout:g} s: {guilty} gone, stopped, or never called; here {described}"
            f"{self._connecting.refusals()}. Expected: every rank calls within the timeout of {self._timeout:g} s",
        )

    def _send_report(
        self, who: int, whom: int, why: str, only: PeerConnection | None = None, kind: int = FAILURE_REPORT
    ) -> None:
        """Sends a failure report to all connected peers, after a message that is partly sent and before all others."""
        report = HEADER.pack(kind, whom, who, why.encode()[:TEXT_BYTES])
        for link in [only] if only else list(self._links.values()):
            if link.out is None:
                continue
            link.insert_control(ControlMessage(memoryview(report)))
            self._write(link)
            self._watch(link)

    def _tell_reports(self, link: PeerConnection) -> None:
        """Sends all failure reports to a peer that is connected only now."""
        for who, whom, why in list(self._reports.all()):  # sending reports may add more of them
            self._send_report(who, whom, why, only=link)
        if self.rank in self._reports.left:
            self._send_report(self.rank, self.rank, self._reports.left[self.rank], only=link, kind=FAREWELL)

    # ---- life ------------------------------------------------------------------------------------------------------
    def begin(self, call: Call) -> None:
        if self._error is not None:
            raise self._error
        if self._reports.lost_ranks:
            raise self._lost_error()
        if self._reports.waits:
            who, whom = next(iter(self._reports.waits.items()))
            raise self._fail(CollectiveTimeout, f"rank {who} waits in vain for {ranks(sorted(whom))}. {PEER_LOST_HINT}")
        self._call = call
        self._text = call.text.encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")

    def abort(self, error: BaseException) -> None:
        announced = self._reports.announced
        self._error = self._error or self._fail(NetFoldError, f"gave up ({type(error).__name__}: {error}); join anew")
        self._call = IDLE
        # Peers with posted messages that have not connected yet would otherwise blame this rank for being gone.
        late = [link for link in self._links.values()
                if (link.receives or link.sends) and link.rank not in self._reports.lost_ranks]
        for link in self._links.values():
            if not announced and not link.connected and not link.lost and (link.receives or link.sends):
                self._connect(link)  # without a connection it could not hear our report
            link.withdraw()
        if not announced:
            why = f"gave up: {type(error).__name__}"
            self._reports.add_lost(self.rank, why)  # for those that connect later as well
            self._send_report(self.rank, self.rank, why)
        if not isinstance(error, RailDown):  # a dead rail carries no reports either
            grace = max(REPORT_SECONDS, GRACE_FRACTION * self._timeout)
            self._poll_while(grace, lambda: any(not link.connected and not link.lost for link in late))
            self._poll_while(REPORT_SECONDS, lambda: any(link.sends for link in self._links.values()))
        self._close_connections()

    def _poll_while(self, seconds: float, while_: Callable[[], bool]) -> None:
        deadline = self._clock() + seconds
        while (left := deadline - self._clock()) > 0 and while_():
            with contextlib.suppress(NetFoldError):  # a peer may be lost, and others still be waiting for this rank
                self._poll(left)

    def leave(self, why: str) -> None:
        if self._error is not None or self._reports.announced or self.rank in self._reports.left:
            return
        self._reports.add_left(self.rank, why)  # for those that connect now
        farewell = HEADER.pack(FAREWELL, self.rank, self.rank, why.encode()[:TEXT_BYTES])
        for link in self._links.values():
            if link.out is not None:
                link.sends.append(ControlMessage(memoryview(farewell), owned=True))
                with contextlib.suppress(NetFoldError):  # this peer may be lost; the others are to hear it all the same
                    self._write(link)
                self._watch(link)
        self._poll_while(REPORT_SECONDS, lambda: any(link.sends for link in self._links.values()))

    def close(self) -> None:
        self._error = self._error or Closed(f"job {self._plan.job!r}, rank {self.rank}: the mesh was closed")
        self._close_connections()

    def _close_connections(self) -> None:
        """Closes everything: whoever depends on this rank learns of it at once."""
        for link in self._links.values():
            self._drop(link, "closed by this rank")
        self._connecting.close()
