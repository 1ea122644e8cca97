# SPDX-License-Identifier: Apache-2.0
"""Which source ports a rank's flows leave by: as the controller planned it, and elsewhere as soon as a path is dead.

A *way* is a source port and the part of each message that goes by it: one queue pair (`mesh.RoceMesh`).  A path that
does not answer is suspect for all peers under the same leaf, until it answers after all, or the controller's next plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from netfold.wire.paths import Paths

MOST_PAIRS: Final = 31
"""Queue pairs for data between two ranks at most: their numbers have 5 bits for it."""
SPLIT: Final = 16 << 10
"""Bytes of a piece at least: smaller messages go over one queue pair."""
LONGEST: Final = 1 << 30
"""Bytes of one write at most."""


class Way(NamedTuple):
    """Part of every message to a peer: ``weight`` of all weights."""

    port: int
    weight: int


class Cut(NamedTuple):
    """Bytes ``first`` .. ``last`` of a message, by this lane: a queue pair for data, 0 the first."""

    lane: int
    first: int
    last: int


class Ways:
    """Of one rank.  ``ports``: all that it can leave by; any of them leads to any peer, until a plan says more."""

    def __init__(self, ports: Sequence[int], peers: Iterable[int]) -> None:
        self._ports = list(ports)
        self._leaf: dict[int, str] = {peer: f"rank {peer}" for peer in peers}
        self._all: dict[int, list[int]] = dict.fromkeys(self._leaf, self._ports)
        self._ways: dict[int, list[Way]] = {}
        self._beside: set[int] = set()
        """Peers under the same leaf: there is one path to each, so one lane."""
        self._numbers: dict[str, int] = {}
        self._suspects: dict[tuple[str, int], int] = {}
        """By leaf and port: how many were blamed before it."""
        self._blamed = 0

    def adopt(self, paths: Paths) -> None:
        """From now on as planned; suspicions are the controller's business again."""
        self._suspects.clear()
        self._ways.clear()
        for piece in paths.pieces:
            self._ways.setdefault(piece.peer, []).append(Way(piece.source_port, piece.size))
        for reach in paths.reaches:
            self._leaf[reach.peer] = reach.leaf
            self._all[reach.peer] = reach.source_ports or self._ports
        self._beside = {reach.peer for reach in paths.reaches if not reach.source_ports}

    def narrow(self, paths: Paths) -> None:
        """In the middle of an operation: where the controller leads no path any more, nothing goes.  How messages are
        cut stays, and so do our own suspicions."""
        for reach in paths.reaches:
            self._all[reach.peer] = reach.source_ports or self._ports
        for peer in self._ways:
            self._turn(peer)

    def to(self, peer: int) -> Sequence[Way]:
        """How messages to a peer are cut; empty where nothing was planned."""
        return self._ways.get(peer, ())

    def cut(self, peer: int, nbytes: int, *, lanes: int, mtu: int) -> list[Cut]:
        """A message of so many bytes: in the parts of its ways, or evenly over all ``lanes`` where nothing was planned;
        on whole packets, and none too short to be worth it."""
        ways = self.to(peer)
        if ways and nbytes >= len(ways) * SPLIT:
            total = sum(way.weight for way in ways)
            inner = [nbytes * reached // total // mtu * mtu for reached in accumulate(way.weight for way in ways[:-1])]
            parts = [Cut(lane, *ends) for lane, ends in enumerate(pairwise([0, *inner, nbytes]))]
        else:
            few = len(ways) or (1 if peer in self._beside else lanes)
            pieces = max(1, min(few, nbytes // SPLIT))
            size = -(-nbytes // (pieces * mtu)) * mtu
            # short messages to different peers do not all take the first lane
            parts = [Cut((peer + n) % few, first, min(first + size, nbytes))
                     for n, first in enumerate(range(0, nbytes, size))]
        return [Cut(lane, at, min(at + LONGEST, last)) for lane, first, last in parts
                for at in range(first, last, LONGEST)]

    def most(self) -> int:
        """Ways to any one peer, at most."""
        return max(map(len, self._ways.values()), default=0)

    def group(self, peer: int) -> int:
        """A number for the leaf of a peer: peers with the same one are reached over the same paths."""
        return self._numbers.setdefault(self._leaf[peer], len(self._numbers) + 1)

    def leave(self, peer: int, port: int) -> None:
        """A path to this peer does not answer: nothing goes by it any more to any peer under the same leaf."""
        self._blamed += 1
        self._suspects[self._leaf[peer], port] = self._blamed
        self._turn(peer)

    def absolve(self, peer: int, port: int) -> None:
        """A path that was left answers after all: what is on suspect ones may take it."""
        self._suspects.pop((self._leaf[peer], port), None)
        self._turn(peer)

    def _turn(self, peer: int) -> None:
        for other, ways in self._ways.items():
            if self._leaf[other] == self._leaf[peer]:
                self._ways[other] = [Way(self.instead(other, way.port), way.weight) for way in ways]

    def is_suspect(self, peer: int, port: int) -> bool:
        """Whether this port is to be left alone on the way to a peer."""
        return (self._leaf[peer], port) in self._suspects

    def instead(self, peer: int, port: int) -> int:
        """The port itself if it is good, else another one; peers take different ones, so that what leaves a dead path
        does not all meet on one other.  Where all are suspect, the one that was blamed longest ago:
        each gets its turn, until one answers."""
        if port in self._all[peer] and not self.is_suspect(peer, port):
            return port
        good = [other for other in self._all[peer] if not self.is_suspect(peer, other)]
        if good:
            return good[peer % len(good)]
        return min(self._all[peer], key=lambda other: self._suspects[self._leaf[peer], other])
