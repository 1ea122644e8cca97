# SPDX-License-Identifier: Apache-2.0
"""Moves queue pairs off paths that do not answer, and says whom to blame, once another path has answered.

    Endpoint  -- STALLED, ANSWERED -->  PathFailover  -- which ports are good? -->  SourcePorts
        ^------------- move ---------------'  '---- proven: tell the controller (path_client.PlannedPaths)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from netfold.host.roce.native import Endpoint, EndpointEvent
from netfold.host.roce.source_ports import SourcePorts
from netfold.wire.paths import Paths

log = logging.getLogger("netfold")


@dataclass
class _Lane:
    """One queue pair: whose it is, and the port that it leaves by."""

    peer: int
    port: int


class PathFailover:
    """Of one endpoint's queue pairs.

    me     who speaks, in warnings
    locked  the endpoint stands still in this context
    clock  nanoseconds, as the endpoint's
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
        """By queue pair."""
        self._blamed: dict[tuple[int, int], tuple[int, int]] = {}
        """By peer and port of what is not proven yet: a queue pair that left, and how much of it was acknowledged."""

    def add(self, pair: int, peer: int, port: int) -> None:
        """A new queue pair, which leaves by this port.  The endpoint must stand still already."""
        self._lanes[pair] = _Lane(peer, port)
        self._endpoint.place(pair, self._source_ports.path_group(peer))

    def replanned(self) -> None:
        """Peers may be under other leaves than before, and no path is blamed any more."""
        self._blamed.clear()
        with self._locked():
            for pair, lane in self._lanes.items():
                self._endpoint.place(pair, self._source_ports.path_group(lane.peer))

    def move(self, pair: int, port: int, *, lost: bool = False) -> None:
        """To another port, where it is another.  ``lost``: so is what is under way."""
        lane = self._lanes[pair]
        if lane.port != port:
            lane.port = port
            with self._locked():
                self._endpoint.move(pair, port, self._clock(), lost=lost)

    def restrict(self, paths: Paths) -> None:
        """The controller has news in the middle of an operation: all leave the ports that lead nowhere any more."""
        self._source_ports.restrict(paths)
        self._leave_suspects()

    def stalled(self, event: EndpointEvent) -> None:
        """A path does not answer: everything leaves it that goes to the same leaf, whatever rank it is for.

        The event may be older than the last move: then it says nothing about where the queue pair is now.
        """
        lane, dead = self._lanes[event.pair], event.source_port
        if lane.port != dead:
            return
        log.warning("%s: no answer from rank %d by source port %d: on to another path", self._me, lane.peer, dead)
        with self._locked():
            before = self._endpoint.state(event.pair).acknowledged
        self._blamed.setdefault((lane.peer, dead), (event.pair, before))
        self._source_ports.suspect(lane.peer, dead)
        self._leave_suspects()

    def answered(self, event: EndpointEvent) -> None:
        """A path that was left was slow, not dead: nobody is told of it, and who found no better one comes back."""
        peer, port = self._lanes[event.pair].peer, event.source_port
        group = self._source_ports.path_group(peer)
        self._blamed = {blamed: mark for blamed, mark in self._blamed.items()
                        if (self._source_ports.path_group(blamed[0]), blamed[1]) != (group, port)}
        self._source_ports.clear_suspicion(peer, port)
        self._leave_suspects()

    def _leave_suspects(self) -> None:
        for pair, lane in self._lanes.items():
            self.move(pair, self._source_ports.usable_port(lane.peer, lane.port), lost=True)

    def confirmed_failures(self) -> list[tuple[int, int]]:
        """Peers and ports to blame, each once: another path answers the queue pair that left.  Where none does, it may
        be the peer."""
        found = []
        for (peer, port), (pair, before) in list(self._blamed.items()):
            with self._locked():
                answers = self._endpoint.state(pair).acknowledged > before
            if answers and self._lanes[pair].port != port:
                del self._blamed[peer, port]
                found.append((peer, port))
        return found
