# SPDX-License-Identifier: Apache-2.0
"""The source ports from which a rank's flows leave: as the controller planned, and others as soon as a path fails.

Switches choose a packet's path by its source port.  A *weighted port* is a source port and the share of each message
that it carries, on one queue pair (``roce.mesh``) or, by a TCP port that names the same path, on one lane (``lanes``).
A path on which nothing is acknowledged is suspect for all peers under the same leaf, until it works after all, or until
the controller's next plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from netfold.wire.paths import Paths

MOST_QUEUE_PAIRS: Final = 31
"""Most queue pairs for data between two ranks: their numbers have 5 bits for the lane, and 0 is control."""
LEAST_PART: Final = 16 << 10
"""Smallest part of a message in bytes; shorter messages are not split."""
LONGEST_WRITE: Final = 1 << 30
"""Most bytes of one RDMA write."""
MOST_CUTS: Final = 1024
"""Most messages, by peer and size, whose parts are cached."""


class WeightedPort(NamedTuple):
    """A source port that carries ``weight`` of the sum of all weights of every message to a peer."""

    port: int
    weight: int


class MessagePart(NamedTuple):
    """Bytes ``first`` ..  ``last`` of a message, carried by this lane: an index of the queue pairs for data."""

    lane: int
    first: int
    last: int


class SourcePorts:
    """The source ports of one rank.  ``ports`` are all that it can send from; any of them leads to any peer until a
    plan says otherwise."""

    def __init__(self, ports: Sequence[int], peers: Iterable[int]) -> None:
        self._ports = list(ports)
        self._leaf: dict[int, str] = {peer: f"rank {peer}" for peer in peers}
        self._all: dict[int, list[int]] = dict.fromkeys(self._leaf, self._ports)
        self._planned: dict[int, list[WeightedPort]] = {}
        """By peer: the source ports that the controller planned for it, whether their paths answer or not."""
        self._weighted: dict[int, list[WeightedPort]] = {}
        """The same, without the ports of silent paths; other ports replace them."""
        self._same_leaf: set[int] = set()
        """Peers under the same leaf: there is one path to each, so one lane."""
        self._numbers: dict[str, int] = {}
        self._suspects: dict[tuple[str, int], int] = {}
        """(leaf, port) of suspect paths -> the number of paths blamed before it."""
        self._blamed = 0
        self._cuts: dict[tuple[int, int, int, int], list[MessagePart]] = {}
        """Results of ``split`` under the present plan."""

    def adopt(self, paths: Paths) -> None:
        """Follows a new plan, and drops this rank's own suspicions, which the controller now takes care of."""
        self._suspects.clear()
        self._planned.clear()
        self._cuts.clear()
        for piece in paths.pieces:
            self._planned.setdefault(piece.peer, []).append(WeightedPort(piece.source_port, piece.size))
        self._weighted = {peer: list(weighted) for peer, weighted in self._planned.items()}
        for reach in paths.reaches:
            self._leaf[reach.peer] = reach.leaf
            self._all[reach.peer] = reach.source_ports or self._ports
        self._same_leaf = {reach.peer for reach in paths.reaches if not reach.source_ports}

    def restrict(self, paths: Paths) -> None:
        """Stops using paths that the controller no longer lists, in the middle of an operation.  How messages are split
        stays, and so do this rank's own suspicions."""
        for reach in paths.reaches:
            self._all[reach.peer] = reach.source_ports or self._ports
        for peer in self._planned:
            self._replace_ports(peer)

    def weighted_ports(self, peer: int) -> Sequence[WeightedPort]:
        """The ports over which messages to a peer are split; empty where nothing was planned."""
        return self._weighted.get(peer, ())

    def split(self, peer: int, nbytes: int, *, lanes: int, mtu: int) -> Sequence[MessagePart]:
        """Splits a message of so many bytes by the weights of its ports, or evenly over all ``lanes`` where nothing was
        planned; at packet boundaries, into parts of at least ``LEAST_PART``."""
        if (cuts := self._cuts.get((peer, nbytes, lanes, mtu))) is None:
            if len(self._cuts) >= MOST_CUTS:
                self._cuts.clear()
            cuts = self._cuts[peer, nbytes, lanes, mtu] = self._split(peer, nbytes, lanes, mtu)
        return cuts

    def _split(self, peer: int, nbytes: int, lanes: int, mtu: int) -> list[MessagePart]:
        weighted = self.weighted_ports(peer)
        if weighted and nbytes >= len(weighted) * LEAST_PART:
            total = sum(one.weight for one in weighted)
            inner = [
                nbytes * reached // total // mtu * mtu for reached in accumulate(one.weight for one in weighted[:-1])
            ]
            parts = [MessagePart(lane, *ends) for lane, ends in enumerate(pairwise([0, *inner, nbytes]))]
        else:
            few = len(weighted) or (1 if peer in self._same_leaf else lanes)
            pieces = max(1, min(few, nbytes // LEAST_PART))
            size = -(-nbytes // (pieces * mtu)) * mtu
            # short messages to different peers do not all take the first lane
            parts = [MessagePart((peer + n) % few, first, min(first + size, nbytes))
                     for n, first in enumerate(range(0, nbytes, size))]
        return [MessagePart(lane, at, min(at + LONGEST_WRITE, last)) for lane, first, last in parts
                for at in range(first, last, LONGEST_WRITE)]

    def ports_to(self, peer: int) -> Sequence[int]:
        """The source ports of all working paths to a peer; empty where none was planned, and under the same leaf."""
        return () if peer in self._same_leaf else self._all[peer]

    def most_ports(self) -> int:
        """Largest number of weighted ports to any one peer."""
        return max(map(len, self._weighted.values()), default=0)

    def path_group(self, peer: int) -> int:
        """A number for the leaf of a peer: peers with the same number are reached over the same paths, and those with
        0, which are under this rank's own leaf, over a single one."""
        if peer in self._same_leaf:
            return 0
        return self._numbers.setdefault(self._leaf[peer], len(self._numbers) + 1)

    def suspect(self, peer: int, port: int) -> None:
        """Marks a path to this peer as suspect: nothing is sent on it any more to any peer under the same leaf."""
        self._blamed += 1
        self._suspects[self._leaf[peer], port] = self._blamed
        self._replace_ports(peer)

    def clear_suspicion(self, peer: int, port: int) -> None:
        """Marks a suspect path as working again: what was planned for it returns."""
        self._suspects.pop((self._leaf[peer], port), None)
        self._replace_ports(peer)

    def _replace_ports(self, peer: int) -> None:
        for other, planned in self._planned.items():
            if self._leaf[other] == self._leaf[peer]:
                self._weighted[other] = [
                    WeightedPort(self.usable_port(other, one.port), one.weight) for one in planned
                ]

    def is_suspect(self, peer: int, port: int) -> bool:
        """True if this port is suspect for this peer."""
        return (self._leaf[peer], port) in self._suspects

    def usable_port(self, peer: int, port: int) -> int:
        """The port itself if it works, else another one; peers take different ones, so that what leaves a failed path
        does not all meet on one other.  Where all are suspect, it is the one blamed longest ago, so that each is tried
        until one works; where there is none at all, it is the port itself."""
        if port in self._all[peer] and not self.is_suspect(peer, port):
            return port
        if not self._all[peer]:
            return port
        if (other := self.other_port(peer, port)) != port:
            return other
        return min(self._all[peer], key=lambda other: self._suspects[self._leaf[peer], other])

    def other_port(self, peer: int, port: int) -> int:
        """Another port that works, or the port itself where there is none."""
        good = self._others(peer, port)
        return good[peer % len(good)] if good else port

    def _others(self, peer: int, port: int) -> list[int]:
        return [other for other in self._all[peer] if other != port and not self.is_suspect(peer, other)]
