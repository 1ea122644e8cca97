# SPDX-License-Identifier: Apache-2.0
"""A mesh whose messages travel over TCP connections.

    TcpMesh
      Posted          messages that are posted, matched to those that come
        Operations    how operations begin, wait and end; failure reports
          MeshConnections the connection to each peer, and the poll that moves bytes
        Lanes         further connections over planned paths, for the parts of long messages
        PathWatch     finds planned paths that do not answer
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence

from netfold.host.errors import NetFoldError, RankMismatch
from netfold.host.mesh.connection import PeerConnection, Receive, text_of
from netfold.host.mesh.mesh import Call, Mesh, Pending
from netfold.host.mesh.operations import SAME_ORDER_HINT, Operations
from netfold.host.mesh.planned import PathSource
from netfold.host.mesh.posted import Posted
from netfold.host.operation.arrays import Flat
from netfold.host.tracing.timeline import Timeline
from netfold.wire.plan import Plan


class SameCall:
    """The rules of collectives: each message belongs to the operation that is under way on both ranks."""

    def check(self, operations: Operations, link: PeerConnection, number: int, text: bytes) -> None:
        """Raises RankMismatch for a message of another call than the one that is under way."""
        if number != operations.call.number or text != operations.text:
            theirs = Call(number, text_of(text))
            raise operations.failure(
                RankMismatch, f"rank {link.rank} is at {theirs}; expected {operations.call}; {SAME_ORDER_HINT}")

    def check_receive(
        self, operations: Operations, link: PeerConnection, wanted: Receive, nbytes: int, text: bytes
    ) -> None:
        """Nothing: the call says it."""

    def taken(self, link: PeerConnection, receive: Receive) -> None:
        """Nothing."""

    def busy(self, link: PeerConnection) -> bool:
        """True if anything is posted on this connection."""
        return bool(link.bytes_awaited or link.bytes_unsent)


class TcpMesh(Mesh):
    """The ranks of a plan connected over TCP.  Owns ``listener``; connects at the first message.

    timeout   seconds without a byte moving after which a wait gives up
    planned   the controller's paths; owned by the mesh from here on.  None: messages travel whole, each peer's on one
              connection, whose path the switches' hash chooses
    clock     monotonic seconds
    timeline  is told when the mesh sends, waits and receives, where somebody asked for one
    """

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
        self.rank, self.size, self.secret = plan.rank, plan.world, plan.secret
        self.timeline = timeline
        self.posted = Posted(plan, listener, SameCall(), name="TCP mesh", timeout=timeout, spanned=self.spanned,
                             planned=planned, clock=clock)
        self.operations = self.posted.operations

    def send(self, peer: int, data: Flat, *, tag: int = 0) -> Pending:
        return self.posted.send(peer, data, tag)

    def receive(self, peer: int, into: Flat, *, tag: int = 0) -> Pending:
        return self.posted.receive(peer, into, tag)

    def wait(self, pending: Sequence[Pending], *, first: bool = False) -> None:
        self.operations.wait(pending, first)

    def flush(self) -> None:
        self.posted.flush()

    def begin(self, call: Call) -> None:
        self.operations.begin(call)

    def expect(self, algorithm: str, *, ranks: Sequence[int] = (), root: int = 0) -> None:
        self.posted.lanes.expect(algorithm, ranks, root)

    def watched_by(self, watch: Callable[[float], bool] | None) -> None:
        """See ``Mesh``."""
        self.operations.watched_by(watch)

    def told_by(
        self, lost: Callable[[], tuple[int, str] | None], left: Callable[[], Mapping[int, str]] = dict
    ) -> None:
        """See ``Mesh``."""
        self.operations.told_by(lost, left)

    def look(self) -> None:
        """See ``Mesh``."""
        self.operations.look()

    def interrupt(self, error: NetFoldError) -> None:
        """See ``Mesh``."""
        self.operations.interrupt(error)

    def abort(self, error: BaseException) -> None:
        self.posted.abort(error)

    def leave(self, why: str) -> None:
        """See ``Mesh``."""
        self.operations.leave(why)

    def close(self) -> None:
        self.posted.close()
