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

from netfold.host.mesh.lanes import DEAD_SECONDS, Silence, condition_of, path_named, path_of
from netfold.host.mesh.logged import OutStream
from netfold.host.mesh.mesh import Call
from netfold.host.mesh.moving import Move, MovingMesh
from netfold.host.mesh.planned import PathSource
from netfold.host.tracing.timeline import Timeline
from netfold.wire.jobs import Plan

LOOK_SECONDS: Final = 0.02
"""Seconds between two looks at whether planned paths answer, while this rank waits."""
BLIND_SECONDS: Final = 0.2
"""Seconds without a look after which nothing is known of the time between."""
MOVE_SECONDS: Final = 0.045
"""Seconds without an acknowledgement, in spite of repeats, after which a stream moves."""
TOGETHER_SECONDS: Final = 0.02
"""The same for another stream on a path that has just failed."""
ANSWER_SECONDS: Final = 0.08
"""Seconds that a peer's kernel has to answer a new connection until another path is tried."""
ATTEMPT_SECONDS: Final = 0.5
"""Seconds that a peer has to answer a handshake, on a connection that stands, until another path is tried; doubled each
time, since it may be computing."""
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
        self._silences: dict[OutStream, Silence] = {}
        """How long each stream has been silent; only streams that the last look at the paths has examined are here."""
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
            if now >= self._looked_at_paths + BLIND_SECONDS:
                self._silences.clear()
            self._looked_at_paths = now
            self._look_at_paths(self._planned, now)
        resumed, self._resumed = self._resumed, False
        return moved or resumed

    def _look_at_paths(self, planned: PathSource, now: float) -> None:
        """Takes the controller's news, leaves or reports the paths that do not answer, and looks after connections that
        are being made."""
        newer = planned.newer()
        if newer is not None:
            self.source_ports.restrict(newer)
        self._look_at_streams(planned, now)
        if self._keeps_logs:
            self._look_at_first_connections(now)
            self._look_at_attempts(now)

    def _streams_with_bytes(self) -> list[OutStream]:
        """The streams of this rank that may have unacknowledged bytes, which are those worth looking at."""
        return list(self._unacknowledged()) if self._keeps_logs else self._out_streams()

    def _look_at_streams(self, planned: PathSource, now: float) -> None:
        before, self._silences = self._silences, {}
        for stream in self._streams_with_bytes():
            self._silences[stream] = before.get(stream) or Silence()
        for stream in self._silences:
            if stream.out is None:
                continue
            with suppress(OSError):  # who reads or writes there learns of it
                condition = condition_of(stream.out)
                silence = self._silences[stream].lasts(condition, now)
                self.longest_stall = max(self.longest_stall, silence)
                if not condition.repeats:
                    continue
                port = path_of(stream.out)
                if silence >= max(MOVE_SECONDS, condition.patience) and self._may_move(stream):
                    self._leave(stream, port, now)
                if silence >= DEAD_SECONDS and port is not None:
                    self._report(planned, stream.rank, port, now)

    def _any_path_silent(self) -> bool:
        if not self._keeps_logs:
            return False
        for stream in self._unacknowledged():
            with suppress(OSError):
                condition = condition_of(stream.out) if stream.out is not None else None
                if condition is not None and condition.in_flight and condition.repeats:
                    return True
        return False

    def _look_at_first_connections(self, now: float) -> None:
        """Goes on by itself where the peer does: it has not heard this rank's answer to its first connection, or this
        rank has not heard the peer's."""
        for link in self._links.values():
            if link.latest_turn and link.out is None and not link.lost and self._may_move(link):
                ports = self.source_ports.ports_to(link.rank)
                if ports:
                    self._move(link, self.source_ports.usable_port(link.rank, ports[self.rank % len(ports)]), now)

    def _look_at_attempts(self, now: float) -> None:
        """Tries other paths for connections that nobody answers: the kernel asks again only after a second.  Where the
        kernel there has answered and nothing is repeated, the peer's process takes its time, or its answer is lost."""
        for peer, asked, sock, since, greeted, tries in self._connecting.unproven(now - TOGETHER_SECONDS):
            link = self._links[peer]
            stream = link if asked is None else self._out_stream(link, asked.number)
            ports = self.source_ports.ports_to(peer)
            if stream is None or not ports or sock.fileno() < 0:  # an earlier one may have closed it
                continue
            if asked is None and (link.out is not None or not self._may_move(link)):
                continue
            named = path_named(sock.getsockname()[1])
            port = named or ports[0]  # no name of a path was free: the switches' hash has chosen one
            move = self._moves.get(stream, Move(None, since))
            if greeted and not condition_of(sock).repeats:
                if now < since + ATTEMPT_SECONDS * 2**move.tries:
                    continue
                other = self.source_ports.other_port(peer, port)
            else:
                late = since < now - ANSWER_SECONDS * 2**tries  # where all paths are slow, one must get its time
                if not late and (named is None or not self._is_better_path(peer, port)):
                    continue
                if named is not None:
                    self._suspect(peer, port, now)
                other = self.source_ports.usable_port(peer, self.source_ports.other_port(peer, port))
            if other == port:
                continue
            if greeted:
                self._move(stream, other, now, left=move.left, tries=move.tries + 1)
                continue
            failed = self._connecting.try_ports(peer, asked, self._names(peer, other))
            if failed is not None:
                self._unconnected(link, failed)

    def _is_better_path(self, peer: int, port: int) -> bool:
        """Whether a path to a peer is suspect by now, and another one is not."""
        other = self.source_ports.usable_port(peer, port)
        return other != port and not self.source_ports.is_suspect(peer, other)

    def _leave(self, stream: OutStream, port: int | None, now: float) -> None:
        """Moves a stream off a path that does not answer, and with it all that are silent there, to this peer or others
        under the same leaf.  ``port`` is the path's source port; None: the switches' hash has chosen the path."""
        if port is None:
            others = self.source_ports.ports_to(stream.rank)
            if others:
                self._move(stream, self.source_ports.usable_port(stream.rank, others[0]), now)
            return
        self._suspect(stream.rank, port, now)
        group = self.source_ports.path_group(stream.rank)
        for one, silent in self._silences.items():
            if one.out is None or not self._may_move(one):
                continue
            with suppress(OSError):
                if self.source_ports.path_group(one.rank) != group or path_of(one.out) != port:
                    continue
                silence = silent.lasts(condition_of(one.out), now)
                other = self.source_ports.usable_port(one.rank, port)
                if silence >= TOGETHER_SECONDS and other != port:
                    self._move(one, other, now, left=port)

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
                self._refusals.clear()
                del self._suspected[peer, port]
                self.source_ports.clear_suspicion(peer, port)
                lane = self._lanes[peer].out.get(port)
                if lane is not None and lane.out is not None and path_of(lane.out) != port and self._may_move(lane):
                    self._move(lane, port, now)
