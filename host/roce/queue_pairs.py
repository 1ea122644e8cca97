# SPDX-License-Identifier: Apache-2.0
"""The queue pairs between ranks: one for control, and one for each piece that messages to a peer are split into.

    number   CONNECTION_BIT | the place (12 bits of the peer's rank, 5 of the lane: 0 for control) among 2^23 others, in
             an order that the job's secret gives them
    PSN      24 bits of a key of the job's secret, ranks and lane

Both follow from the plan, so nothing has to be negotiated, and nobody else can tell them: a program on a peer's own
host, whose packets have the peer's address, would have to try 2^23 numbers with some 2^15 windows of PSNs each.

Those for data are made when two ranks first talk, and are *open*, with memory for a window, from their first packet
until another one needs their place (native/rc_contexts.c): a rank of a ring has those of its two neighbours, and one
that talks to 255 peers no more than ``MAX_OPEN`` at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

from netfold.host.job_secret import derive
from netfold.host.mesh.source_ports import SourcePorts
from netfold.host.roce.endpoint import Connection, Endpoint
from netfold.host.roce.failover import PathFailover
from netfold.wire import roce
from netfold.wire.plan import Plan

log = logging.getLogger("netfold")

CONNECTION_BIT = 0x800000
"""Bit that is set in the numbers of all these queue pairs, so that none has a number that InfiniBand reserves."""
MAX_OPEN = 64
"""Default number of queue pairs of a rank that are open at once."""


class QueuePairs:
    """The queue pairs of one rank, by the endpoint's indices.

    lanes    queue pairs for data to each peer at most
    ports    source ports, which queue pairs take in turn where none is planned
    most     queue pairs that are open at once, unless more are busy
    recycle  every packet takes one of the ports by itself (REPS)
    locked   a context in which the endpoint stands still
    """

    def __init__(
        self,
        plan: Plan,
        endpoint: Endpoint,
        source_ports: SourcePorts,
        failover: PathFailover,
        *,
        lanes: int,
        ports: Sequence[int],
        most: int,
        recycle: bool,
        locked: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._plan, self._endpoint, self._source_ports, self._failover = plan, endpoint, source_ports, failover
        self._lanes, self._ports, self._recycle, self._locked = lanes, ports, recycle, locked
        self._most = most
        self._dropped = 0  # packets, as last logged
        endpoint.limit_open(most)
        order = derive(plan.secret, "queue pair numbers", plan.job, plan.epoch)
        self._factor, self._offset = (int.from_bytes(part) for part in (order[:4], order[4:8]))
        self._addresses = {peer.rank: (peer.address, peer.udp_port) for peer in plan.peers if peer.rank != plan.rank}
        self._to: dict[int, list[int]] = {}
        self._rank_of: dict[int, int] = {}
        for peer in self._addresses:
            self._to[peer] = []
            self._connect(peer, ports[peer % len(ports)])

    def control(self, peer: int) -> int:
        """Index of the queue pair for the mesh's own messages to this peer."""
        return self._to[peer][0]

    def data(self, peer: int) -> Sequence[int]:
        """Indices of the queue pairs for data to this peer; makes them at the first call."""
        if len(self._to[peer]) == 1:
            weighted = self._source_ports.weighted_ports(peer)
            with self._locked():
                for lane in range(self._lanes):
                    port = weighted[lane].port if lane < len(weighted) else self._ports[lane % len(self._ports)]
                    self._connect(peer, self._source_ports.usable_port(peer, port))
        return self._to[peer][1:]

    def items(self) -> Iterable[tuple[int, Sequence[int]]]:
        """Each peer with the indices of all its queue pairs, the one for control first."""
        return self._to.items()

    def warn_if_too_many(self) -> None:
        """Logs a warning where more queue pairs were open at once than allowed, and than in the last such warning."""
        if (most := self._endpoint.open_most()) > self._most:
            log.warning("job %r, rank %d: %d queue pairs were open at once, since so many were busy; expected %d",
                        self._plan.job, self._plan.rank, most, self._most)
            self._most = most

    def warn_of_dropped(self) -> None:
        """Logs warnings where packets to these queue pairs came from others than their peers, or had changed on the
        way: at the first, and whenever there are ten times as many as in the last such warnings."""
        refused, last = self._endpoint.refused()
        corrupt = self._endpoint.corrupt()
        if refused + corrupt < max(1, 10 * self._dropped):
            return
        self._dropped = refused + corrupt
        if refused:
            log.warning("job %r, rank %d: %d packets so far to this rank's queue pairs were dropped, the last one from "
                        "%s, which is not the peer's address; see docs/security.md",
                        self._plan.job, self._plan.rank, refused, last)
        if corrupt:
            log.warning("job %r, rank %d: %d packets so far were dropped, and came again, since their ICRC is wrong: "
                        "they changed on the way here; look at cables, ports and NICs towards %s",
                        self._plan.job, self._plan.rank, corrupt, self._plan.peers[self._plan.rank].address)

    def rank_of(self, pair: int) -> int:
        """The peer to which a queue pair leads."""
        return self._rank_of[pair]

    def _connect(self, peer: int, port: int) -> None:
        """Makes one more queue pair to this peer.  The endpoint must be locked already."""
        lane, me = len(self._to[peer]), self._plan.rank
        address, udp_port = self._addresses[peer]
        index = self._endpoint.connect(Connection(
            peer=address,
            peer_port=udp_port,
            peer_qp=self.number_of(me, lane),
            qp=self.number_of(peer, lane),
            source_port=port,
            psn=self._psn(me, peer, lane),
            peer_psn=self._psn(peer, me, lane),
        ))
        if self._recycle:
            self._endpoint.use_reps(index, self._psn(me, peer, lane))
        self._rank_of[index] = peer
        self._to[peer].append(index)
        self._failover.add(index, peer, port)

    def number_of(self, peer: int, lane: int) -> int:
        """The number of the queue pair that a rank has for this peer.  An odd factor permutes the numbers modulo a
        power of two, so that no two places have the same one."""
        place = peer << 5 | lane
        return CONNECTION_BIT | (place * (self._factor | 1) + self._offset) % CONNECTION_BIT

    def _psn(self, source: int, target: int, lane: int) -> int:
        key = derive(self._plan.secret, "queue pair PSN", self._plan.job, self._plan.epoch, source, target, lane)
        return int.from_bytes(key[:4]) & roce.PSN_MASK
