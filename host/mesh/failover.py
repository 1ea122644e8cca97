# SPDX-License-Identifier: Apache-2.0
"""A laned mesh that finds paths which swallow what is sent, and lets its streams leave them.

While a rank waits it looks at its connections.  Where bytes are in flight, the kernel has repeated some, and nothing
has been acknowledged for ``MOVE_SECONDS``, the path is suspect, and all streams that are silent on it, to peers under
the same leaf, go on over others (``moving``).  The controller is told once a peer answers over another path, or after
``DEAD_SECONDS``.  Connections that are being made are begun anew where nobody answers.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from weakref import WeakKeyDictionary

from netfold.host.mesh.lanes import DEAD_SECONDS, Silence, condition_of, path_named, path_of
from netfold.host.mesh.logged import OutStream
from netfold.host.mesh.mesh import Call
from netfold.host.mesh.moving import COMING_SECONDS, MovingMesh
from netfold.host.mesh.planned import PathSource
from netfold.host.tracing.timeline import Timeline
from netfold.wire.jobs import Plan
from netfold.wire.paths import tcp_ports

LOOK_SECONDS: Final = 0.02
"""Seconds between two looks at whether planned paths answer, while this rank waits."""
MOVE_SECONDS: Final = 0.06
"""Seconds without an acknowledgement, in spite of repeats, after which a stream moves."""
TOGETHER_SECONDS: Final = 0.02
"""The same for another stream on a path that has just failed."""
ANSWER_SECONDS: Final = 0.08
"""Seconds that a peer's kernel has to answer a new connection until another path is tried."""
ATTEMPT_SECONDS: Final = 0.15
"""Seconds that a connection which is to go on with a stream has until another path is tried."""
AGAIN_SECONDS: Final = 1.0
"""Seconds until a path that still does not answer is reported again."""
FORGIVE_SECONDS: Final = 5.0
"""Seconds after which a suspect path is tried again: it may have been slow, or the controller has had time to find what
is broken."""

log = logging.getLogger("netfold")


class FailoverMesh(MovingMesh):
    """The ranks of a plan, connected over TCP, with streams that leave paths that do not answer.

    Parameters and errors are those of ``LanedMesh``.
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
        super().__init__(plan, listener, timeout=timeout, planned=planned, clock=clock, timeline=timeline)
        self._suspected: dict[tuple[int, int], float] = {}
        """(Peer, source port) of suspect paths -> since when."""
        self._reported: dict[tuple[int, int], float] = {}
        """(Peer, source port) of paths that did not answer -> when that was last reported."""
        self._looked_at_paths = clock()
        self._silences: WeakKeyDictionary[OutStream, Silence] = WeakKeyDictionary()
        self.longest_stall = 0.0
        """Seconds that a stream had bytes in flight and none acknowledged, as seen while this rank waited, where paths
        are planned."""

    def reset_stalls(self) -> None:
        """Resets ``longest_stall``."""
        self.longest_stall = 0.0

    def begin(self, call: Call) -> None:
        super().begin(call)
        if self._suspected:
            self._forgive(self._clock())

    def _poll_once(self, seconds: float) -> bool:
        if self._planned is None:
            return super()._poll_once(seconds)
        moved = super()._poll_once(min(seconds, LOOK_SECONDS))
        now = self._clock()
        if now >= self._looked_at_paths + LOOK_SECONDS:
            self._looked_at_paths = now
            self._look_at_paths(self._planned, now)
        return moved

    def _look_at_paths(self, planned: PathSource, now: float) -> None:
        """Takes the controller's news, leaves or reports the paths that do not answer, and looks after moves."""
        newer = planned.newer()
        if newer is not None:
            self.source_ports.restrict(newer)
        self._look_at_streams(planned, now)
        if self._keeps_logs:
            self._look_at_moves(now)
            self._look_at_attempts(now)

    def _look_at_streams(self, planned: PathSource, now: float) -> None:
        for stream in self._out_streams():
            if stream.socket is None:
                continue
            with suppress(OSError):  # who reads or writes there learns of it
                condition = condition_of(stream.socket)
                silence = self._silences.setdefault(stream, Silence()).lasts(condition, now)
                self.longest_stall = max(self.longest_stall, silence)
                port = path_of(stream.socket) if condition.repeats and stream not in self._moves else None
                if port is None:
                    continue
                overdue = silence >= max(MOVE_SECONDS, condition.patience)
                if self._keeps_logs and overdue and self._may_move(stream):
                    self._leave(stream.rank, port, now)
                if silence >= DEAD_SECONDS:
                    self._report(planned, stream.rank, port, now)

    def _look_at_moves(self, now: float) -> None:
        """Tries another path where a connection is not made in time, and gives up one that a peer does not go on
        with."""
        for stream, move in list(self._moves.items()):
            if now >= move.began + ATTEMPT_SECONDS:
                self._suspect(stream.rank, move.port, now)
                self._move(stream, move.left, now)
        for link in self._links.values():
            coming = self._coming.get(link)
            if (coming is None and link.frozen) or (coming is not None and now >= coming.since + COMING_SECONDS):
                self._forget_coming(link)

    def _look_at_attempts(self, now: float) -> None:
        """Makes connections from other source ports that nobody answers: the kernel asks again after a second."""
        for peer, asked, sock, since, greeted, tries in self._connecting.unproven(now - TOGETHER_SECONDS):
            port = path_named(sock.getsockname()[1]) if sock.fileno() >= 0 else None  # one before may have closed it
            if port is None:
                continue
            late = since < now - ANSWER_SECONDS * 2**tries  # where all paths are slow, one must get its time
            if not late and self.source_ports.usable_port(peer, port) == port:
                continue
            if not late and self.source_ports.is_suspect(peer, self.source_ports.usable_port(peer, port)):
                continue
            link = self._links[peer]
            stream = link if asked is None or not asked.number else self._lanes[peer].out.get(asked.number)
            if stream is None or (greeted and (stream in self._moves or not condition_of(sock).repeats)):
                continue  # a move has its own time; where nothing is repeated, the peer's process takes its time
            self._suspect(peer, port, now)
            other = self.source_ports.usable_port(peer, port)
            if other == port:
                continue
            if not greeted:
                failed = self._connecting.try_ports(peer, asked, tcp_ports(other))
                if failed is not None:
                    self._unconnected(link, failed)
                continue
            self._ask(stream, other)

    def _leave(self, peer: int, port: int, now: float) -> None:
        """Moves all streams off a path that does not answer, to this peer or others under the same leaf."""
        self._suspect(peer, port, now)
        group = self.source_ports.path_group(peer)
        for stream in self._out_streams():
            if stream.socket is None or not self._may_move(stream):
                continue
            with suppress(OSError):
                if self.source_ports.path_group(stream.rank) != group or path_of(stream.socket) != port:
                    continue
                silence = self._silences.setdefault(stream, Silence()).lasts(condition_of(stream.socket), now)
                if silence >= TOGETHER_SECONDS:
                    self._move(stream, port, now)

    def _left(self, stream: OutStream, port: int) -> None:
        silence, now = self._silences.get(stream), self._clock()
        if silence is not None:
            self.longest_stall = max(self.longest_stall, silence.ended(now))
        if self._planned is not None:
            self._report(self._planned, stream.rank, port, now)

    def _report(self, planned: PathSource, peer: int, port: int, now: float) -> None:
        if now >= self._reported.get((peer, port), -AGAIN_SECONDS) + AGAIN_SECONDS:
            self._reported[peer, port] = now
            log.warning("job %r, rank %d: no answer from rank %d over the path of source port %d",
                        self._plan.job, self.rank, peer, port)
            planned.suspect(peer, port)

    def _suspect(self, peer: int, port: int, now: float) -> None:
        self.source_ports.suspect(peer, port)
        self._suspected[peer, port] = now

    def _forgive(self, now: float) -> None:
        """Tries paths again that have been suspect for long, also by the lanes that were planned for them."""
        for (peer, port), since in list(self._suspected.items()):
            if now >= since + FORGIVE_SECONDS:
                del self._suspected[peer, port]
                self.source_ports.clear_suspicion(peer, port)
                lane = self._lanes[peer].out.get(port)
                if lane is not None and lane.turn and not lane.sends and not lane.moving and not lane.log:
                    self._lanes[peer].forget(lane)
                    self._release(lane)
