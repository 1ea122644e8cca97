# SPDX-License-Identifier: Apache-2.0
"""Path failover: moves queue pairs off paths on which nothing is acknowledged, and confirms a path's failure once
another path has worked.

    Endpoint  -- STALLED, ANSWERED -->  PathFailover  -- which ports work? -->  SourcePorts
        ^------------- move ---------------'  '---- confirmed failures: report them (path_client.PlannedPaths)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from netfold.host.mesh.source_ports import SourcePorts
from netfold.host.roce.endpoint import Endpoint
from netfold.host.roce.native import EndpointEvent
from netfold.wire.paths import Paths

log = logging.getLogger("netfold")

GRACE_NS: Final = 30_000_000
"""Nanoseconds that a blamed path still has to answer before it is reported to the controller, which plans anew for all
ranks: a path that was only slow costs this rank a few packets sent twice."""


@dataclass
class _Lane:
    """One queue pair: the peer that it belongs to, the source port that it should have, and the one that it has while
    that path does not answer."""

    peer: int
    planned: int
    port: int


@dataclass(frozen=True)
class _Blame:
    """A path whose failure is not confirmed: a queue pair that left it, how many packets of that one were acknowledged
    by then, and when that was."""

    pair: int
    acknowledged: int
    at: int


class PathFailover:
    """Failover of all queue pairs of one endpoint.

    me      job and rank, for warnings
    locked  a context in which the endpoint stands still
    clock   nanoseconds, the endpoint's clock
    """

    def __init__(
        self,
        endpoint: Endpoint,
        source_ports: SourcePorts,
        *,
        me: str,
        locked: Callable[[], AbstractContextManager[None]],
        clock: Callable[[], int],
    ) -> None:
        self._endpoint, self._source_ports, self._me, self._locked, self._clock = (
            endpoint,
            source_ports,
            me,
            locked,
            clock,
        )
        self._lanes: dict[int, _Lane] = {}
        """Queue pair index -> its peer and port."""
        self._blamed: dict[tuple[int, int], _Blame] = {}
        """(Peer, source port) -> blame."""

    def add(self, pair: int, peer: int, port: int) -> None:
        """Adds a new queue pair that uses this source port.  The endpoint must be locked already."""
        self._lanes[pair] = _Lane(peer, port, port)
        self._endpoint.set_group(pair, self._source_ports.path_group(peer))

    def replanned(self) -> None:
        """Follows a new plan: peers may be under other leaves than before, and no path is blamed any more."""
        self._blamed.clear()
        with self._locked():
            for pair, lane in self._lanes.items():
                self._endpoint.set_group(pair, self._source_ports.path_group(lane.peer))

    def move(self, pair: int, port: int, *, lost: bool = False) -> None:
        """Moves a queue pair to this source port, unless it is there already.  ``lost``: packets in flight on the old
        one count as lost."""
        self._lanes[pair].planned = port
        self._go(pair, port, lost=lost)

    def _go(self, pair: int, port: int, *, lost: bool) -> None:
        lane = self._lanes[pair]
        if lane.port != port:
            lane.port = port
            with self._locked():
                self._endpoint.move(pair, port, self._clock(), lost=lost)

    def restrict(self, paths: Paths) -> None:
        """Follows the controller's news in the middle of an operation: all queue pairs leave the ports that lead
        nowhere any more."""
        self._source_ports.restrict(paths)
        self._leave_suspects()

    def stalled(self, event: EndpointEvent) -> None:
        """Handles a path on which nothing is acknowledged: all queue pairs to the same leaf leave it, whichever rank
        they lead to.

        The event may be older than the queue pair's last move; then it says nothing about its present path and is
        ignored.
        """
        lane, dead = self._lanes[event.pair], event.source_port
        if lane.port != dead:
            return
        log.warning("%s: no answer from rank %d by source port %d: on to another path", self._me, lane.peer, dead)
        with self._locked():
            before = self._endpoint.state(event.pair).acknowledged
        self._blamed.setdefault((lane.peer, dead), _Blame(event.pair, before, self._clock()))
        self._source_ports.suspect(lane.peer, dead)
        self._leave_suspects()

    def answered(self, event: EndpointEvent) -> None:
        """Handles an acknowledgement from a suspected path, which was slow and not dead: it is no longer blamed, and
        queue pairs return to it."""
        peer, port = self._lanes[event.pair].peer, event.source_port
        group = self._source_ports.path_group(peer)
        self._blamed = {blamed: mark for blamed, mark in self._blamed.items()
                        if (self._source_ports.path_group(blamed[0]), blamed[1]) != (group, port)}
        self._source_ports.clear_suspicion(peer, port)
        self._leave_suspects()

    def _leave_suspects(self) -> None:
        """Moves each queue pair to its own path where that works, and off the one that it is on where that does not."""
        for pair, lane in self._lanes.items():
            works = self._source_ports.usable_port(lane.peer, lane.port) == lane.port
            self._go(pair, self._source_ports.usable_port(lane.peer, lane.planned), lost=not works)

    def confirmed_failures(self) -> list[tuple[int, int]]:
        """The (peer, source port) pairs to report, each once: those that have not answered for a while more, and whose
        queue pair has been acknowledged on another path since.  Where no other path works either, it may be the peer
        that failed."""
        found = []
        for (peer, port), blame in list(self._blamed.items()):
            if self._clock() < blame.at + GRACE_NS:
                continue
            with self._locked():
                answers = self._endpoint.state(blame.pair).acknowledged > blame.acknowledged
            if answers and self._lanes[blame.pair].port != port:
                del self._blamed[peer, port]
                found.append((peer, port))
        return found
