# SPDX-License-Identifier: Apache-2.0
"""Finds planned paths that swallow what is sent, and tells the controller, which leads them over other links.

While a rank waits it looks at its connections.  Where bytes are in flight, the kernel has repeated some, and nothing
has been acknowledged for ``DEAD_SECONDS``, the path is reported.  The switches then send what names it over another
one, and so the kernel's next repeat arrives.  A connection to which the peer's kernel does not even answer is begun
anew over another path, since the kernel would ask again only after a second.
"""

from __future__ import annotations

import logging
import socket
import struct
from contextlib import suppress
from typing import Final, NamedTuple

from netfold.host.mesh.lane_set import Lanes
from netfold.host.mesh.operations import Operations
from netfold.host.mesh.planned import PathSource
from netfold.host.mesh.sockets import path_of
from netfold.wire.paths import tcp_ports

LOOK_SECONDS: Final = 0.02
"""Seconds between two checks if planned paths answer, while this rank waits."""
BLIND_SECONDS: Final = 0.2
"""Seconds without a check after which the time between counts as unobserved."""
DEAD_SECONDS: Final = 0.045
"""Seconds without an acknowledgement, despite repeats, after which a connection's path counts as dead."""
ANSWER_SECONDS: Final = 0.08
"""Seconds that a peer's kernel has to answer a new connection until another path is tried.  They double each time, so
that on a network where all paths are slow one succeeds."""
AGAIN_SECONDS: Final = 1.0
"""Seconds until a path that still does not answer is reported again."""

_TCP_INFO = struct.Struct("=8B24I3Q")
"""The beginning of Linux's struct tcp_info, up to tcpi_bytes_acked."""
_BACKOFF, _UNACKED, _RETRANS, _RTT, _RTTVAR, _TOTAL_RETRANS, _BYTES_ACKED = 4, 12, 15, 23, 24, 31, 34

log = logging.getLogger("netfold")


class Condition(NamedTuple):
    """How a connection fares, as the kernel says."""

    in_flight: bool
    """True if it waits for acknowledgements."""
    repeats: bool
    """True if it has retransmitted the data that it waits for."""
    acknowledged: int
    """Bytes that have been acknowledged so far."""
    sent_again: int
    """Segments that were sent again so far."""
    patience: float
    """Seconds after which an answer is overdue, from the round trips that the kernel has measured."""


def condition_of(sock: socket.socket) -> Condition:
    """How a connection fares.  Raises OSError."""
    info = _TCP_INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))
    return Condition(bool(info[_UNACKED]), bool(info[_BACKOFF] or info[_RETRANS]), info[_BYTES_ACKED],
                     info[_TOTAL_RETRANS], (1.5 * info[_RTT] + 4 * info[_RTTVAR]) / 1e6)


class Silence:
    """Since when a connection has had bytes in flight, and nothing acknowledged."""

    def __init__(self) -> None:
        self._since = 0.0
        self._acknowledged = -1

    def lasts(self, condition: Condition, now: float) -> float:
        """Seconds that the silence has lasted; 0 where there is none."""
        if not condition.in_flight or condition.acknowledged != self._acknowledged:
            self._since, self._acknowledged = now, condition.acknowledged
        return now - self._since


class PathWatch:
    """Watches the paths of one rank's lanes and connections."""

    def __init__(self, operations: Operations, lanes: Lanes) -> None:
        self._operations, self._lanes = operations, lanes
        self._clock = operations.clock
        self._reported: dict[tuple[int, int], float] = {}
        """(Peer, source port) of paths that did not answer -> time of the last report."""
        self._silences: dict[socket.socket, Silence] = {}
        """Duration of each connection's silence."""
        self._looked = self._clock()
        self.longest_stall = 0.0
        """Longest time in seconds with bytes in flight and none acknowledged, as seen while this rank waited."""

    def look(self) -> None:
        """Looks at all paths, unless it has just done so."""
        now, planned = self._clock(), self._lanes.planned
        if planned is None or now < self._looked + LOOK_SECONDS:
            return
        if now >= self._looked + BLIND_SECONDS:
            self._silences.clear()
        self._looked = now
        newer = planned.newer()
        if newer is not None:
            self._lanes.source_ports.restrict(newer)
        self._look_at_connections(planned, now)
        self._look_at_attempts(now)

    def _look_at_connections(self, planned: PathSource, now: float) -> None:
        before, self._silences = self._silences, {}
        for rank, sock in self._lanes.sockets():
            with suppress(OSError):  # who reads or writes there learns of it
                condition = condition_of(sock)
                self._silences[sock] = silence = before.get(sock) or Silence()
                lasts = silence.lasts(condition, now)
                self.longest_stall = max(self.longest_stall, lasts)
                if condition.repeats and lasts >= max(DEAD_SECONDS, condition.patience):
                    self._report(planned, rank, path_of(sock), now)

    def _look_at_attempts(self, now: float) -> None:
        for attempt in self._operations.connections.attempts():
            ports = self._lanes.source_ports.ports_to(attempt.rank)
            late = not attempt.greeted and now >= attempt.since + ANSWER_SECONDS * 2**attempt.tries
            if late and len(ports) > 1:
                port = path_of(attempt.socket)
                other = ports[(ports.index(port) + 1) % len(ports)] if port in ports else ports[0]
                self._operations.connections.try_ports(attempt, tcp_ports(other))

    def _report(self, planned: PathSource, peer: int, port: int | None, now: float) -> None:
        """Reports a path that does not answer, where a port names it."""
        if port is None or now < self._reported.get((peer, port), -AGAIN_SECONDS) + AGAIN_SECONDS:
            return
        self._reported[peer, port] = now
        plan = self._operations.plan
        log.warning("job %r, rank %d: no answer from rank %d over the path of source port %d",
                    plan.job, plan.rank, peer, port)
        planned.suspect(peer, port)

    def sent_again(self) -> int:
        """Segments that connections which are open have sent again."""
        return sum(condition_of(sock).sent_again for _, sock in self._lanes.sockets())
