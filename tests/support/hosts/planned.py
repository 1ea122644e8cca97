# SPDX-License-Identifier: Apache-2.0
"""Ranks over TCP on loopback with planned paths, and what they exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from netfold.host.mesh.mesh import Call, Mesh
from netfold.host.mesh.planned import Collective, PathSource
from netfold.host.operation.arrays import Flat
from netfold.wire import roce
from netfold.wire.paths import PathPiece, Paths, Reach
from support.hosts.collectives import TcpRanks

PORTS = [roce.PATH_PORT + number for number in (3, 4, 5)]
LONG = 300_000


class Plans:
    """One plan for all collectives: each peer by these source ports, with these weights."""

    def __init__(self, rank: int, ranks: int, weights: Sequence[tuple[int, int]]) -> None:
        self.ports = PORTS
        self.queue_pairs = len(PORTS)
        self.changed_fd = -1
        self.suspected: list[tuple[int, int]] = []
        self.closed = False
        peers = [peer for peer in range(ranks) if peer != rank]
        pieces, reaches = [], [Reach(peer, f"leaf{peer}", PORTS) for peer in peers]
        for peer in peers:
            at = 0
            for port, weight in weights:
                pieces.append(PathPiece(peer, at, weight, port))
                at += weight
        self._paths: Paths | None = Paths(1, PORTS, pieces, reaches)

    def changed(self, wanted: Collective) -> Paths | None:
        del wanted
        paths, self._paths = self._paths, None
        return paths

    def newer(self) -> Paths | None:
        return None

    def suspect(self, peer: int, port: int) -> None:
        self.suspected.append((peer, port))

    def close(self) -> None:
        self.closed = True


def planned(
    ranks: int, weights: Sequence[tuple[int, int]] = ((PORTS[0], 3), (PORTS[2], 1)), *, known: bool = True
) -> TcpRanks:
    """Ranks over TCP whose messages are cut so.  ``known``: they know their source ports before the first plan."""

    def plans(rank: int) -> PathSource:
        source = Plans(rank, ranks, weights)
        source.ports = PORTS if known else []
        return source

    return TcpRanks(ranks, planned=plans)


def on_plan(work: Callable[[Mesh], object]) -> Callable[[Mesh], object]:
    """The same work after the mesh has been told which collective comes."""

    def told(mesh: Mesh) -> object:
        mesh.expect("all_to_all")
        return work(mesh)

    return told


def pattern(size: int, seed: int) -> Flat:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def swap(mesh: Mesh) -> Flat:
    """Two ranks exchange long messages."""
    got = np.empty(LONG, np.uint8)
    with mesh.operation(Call(1, "swap")):
        mesh.send(1 - mesh.rank, pattern(LONG, mesh.rank))
        mesh.wait([mesh.receive(1 - mesh.rank, got)])
    return got


def check_swapped(results: Sequence[Flat]) -> None:
    for rank, got in enumerate(results):
        np.testing.assert_array_equal(got, pattern(LONG, 1 - rank))
