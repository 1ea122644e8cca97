# SPDX-License-Identifier: Apache-2.0
"""How many queue pairs the pieces take at the size of the Ethereal paper: 256 hosts, 16 leaves x 16 spines.

Messages follow the controller's own plans, split by the library's own `SourcePorts`; a rank needs those that it sends
on and those that it receives on.
"""

from __future__ import annotations

from typing import Any, cast

import pytest

from netfold.controller.jobs.job import Job
from netfold.controller.paths.path_service import PathService
from netfold.controller.paths.steering import Steering
from netfold.fabric.folding.trees import Tree
from netfold.fabric.generate import leafspine
from netfold.fabric.routing import collectives
from netfold.host.mesh.source_ports import SourcePorts
from netfold.wire import roce
from netfold.wire.paths import Follow, Paths
from support.control.controller import run

LEAVES = SPINES = 16
WORLD = 256
MESSAGE = 8 << 20


class OneJob:
    """Stands for the controller's jobs: there is one, with a rank on every host."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def find(self, request: object) -> Job:
        """The only job, whatever is asked for."""
        return self._job

    def folding_beside(self, _job: Job) -> list[tuple[list[Tree], list[str]]]:
        """The trees of other jobs: there are none."""
        return []


class Fleet:
    """All ranks of one collective; each one's plan is requested when it is needed."""

    def __init__(self, collective: str) -> None:
        fabric = leafspine(LEAVES, SPINES, WORLD)
        job = Job("j", WORLD, hosts=[host.name for host in fabric.hosts])
        graph = fabric.graph()

        async def nothing(*_: object) -> Any:
            """Does nothing: there are no switches."""

        self._service = PathService(Steering(fabric), cast(Any, OneJob(job)), graph=lambda: graph, replan=nothing,
                                    unpinned=nothing, links_respond=nothing)
        self._collective = collective
        self._paths: dict[int, Paths] = {}
        self.peers: dict[int, set[int]] = {rank: set() for rank in range(WORLD)}
        """Rank -> the ranks that it sends to."""
        for step in collectives.steps(collective, WORLD):
            for source, destination in step:
                self.peers[source].add(destination)

    def lanes(self, source: int, destination: int) -> set[int]:
        """The queue pairs that a message takes."""
        if source not in self._paths:
            async def ask() -> Paths:
                return await anext(self._service.follow(
                    Follow("j", source, 0, collective=self._collective, scope="auto")))

            self._paths[source] = run(ask())
        paths = self._paths[source]
        ports = SourcePorts(paths.ports, (rank for rank in range(WORLD) if rank != source))
        ports.adopt(paths)
        cuts = ports.split(destination, MESSAGE, lanes=len(paths.ports), mtu=roce.PATH_MTU)
        return {cut.lane for cut in cuts}

    def pairs(self, rank: int) -> int:
        """Number of queue pairs for data that a rank uses in either direction; one serves both."""
        out = {(peer, lane) for peer in self.peers[rank] for lane in self.lanes(rank, peer)}
        sources = [peer for peer, theirs in self.peers.items() if rank in theirs]
        into = {(peer, lane) for peer in sources for lane in self.lanes(peer, rank)}
        return len(out | into)


@pytest.mark.parametrize(("collective", "inside", "edge"), [
    ("ring", 2, 1 + SPINES),            # from under its own leaf, and cut over all uplinks to the next one
    ("halving_doubling", 8, 8),         # a whole flow to each of log2(256) peers
])
def test_pieces_take_few_queue_pairs(collective: str, inside: int, edge: int) -> None:
    """Counted for a rank in the middle of a leaf, and for the last one of it."""
    fleet = Fleet(collective)
    assert (fleet.pairs(5), fleet.pairs(15)) == (inside, edge)


def test_all_to_all_is_one_piece_a_peer() -> None:
    """Too many flows to be planned together: each rank by itself cuts 16 flows to a leaf for 16 uplinks, none in two.
    Every peer takes a connection of its own, so there are as many as peers; how many of them are open at once is
    test_open_queue_pairs.py's."""
    fleet = Fleet("all_to_all")
    for peer in (1, 16, 255):
        assert len(fleet.lanes(0, peer)) == 1
    assert len(fleet.peers[0]) == WORLD - 1
