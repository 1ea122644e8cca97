# SPDX-License-Identifier: Apache-2.0
"""The job service of RC ranks in one process, whose queue pairs are those of a libibverbs that is not the system's
(support/verbs.py), and what lets the host library find that one."""

from __future__ import annotations

import asyncio
import ctypes as C
import functools
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from netfold.host.job_secret import draw
from netfold.host.verbs.devices import RoceGid, RocePort
from netfold.host.verbs.rail import VerbsRail
from netfold.rpc import rpc
from netfold.testing import LoopbackSwitch
from netfold.wire.jobs import (
    Connect,
    Connected,
    Done,
    Event,
    Join,
    Leave,
    NeighbourPairs,
    OwnPairs,
    Peer,
    Plan,
    RankStream,
    RankTree,
    Secret,
    Watch,
    Watching,
)
from support.torch import SLOTS, LoopbackJobs
from support.verbs import MAXIMUM, MTU_4096, fake, fold_address


class VerbsJobs(LoopbackJobs):
    """Jobs of RC ranks over one tree.  A rail that has died joins again as a job of another name."""

    def __init__(self, switch: LoopbackSwitch, world: int) -> None:
        super().__init__(switch, world)
        self.lib, _ = fake()
        self.lib.fake_reset(MTU_4096)
        self.world = world
        self.pairs: dict[int, list[OwnPairs]] = {}
        """By rank: the queue pairs that it has made last."""
        self._joined: dict[str, dict[int, Join]] = {}
        self._secrets: dict[str, Secret] = {}
        self._made: dict[tuple[str, int], list[OwnPairs]] = {}
        self._gone: set[tuple[str, int]] = set()
        self._changed = asyncio.Condition()
        self._answer = self.connect  # a test may put something else in its place

    def methods(self) -> dict[str, rpc.Method]:
        async def connect(request: Connect) -> Connected:
            return await self._answer(request)

        return super().methods() | {"Connect": (Connect, connect)}

    async def join(self, request: Join) -> Plan:
        assert request.kind == "rc"
        rank, world = request.rank, self.world
        async with self._changed:
            joins = self._joined.setdefault(request.job, {})
            joins[rank] = self.joins[rank] = request
            self._secrets.setdefault(request.job, draw())
            self._changed.notify_all()
            await asyncio.wait_for(self._changed.wait_for(lambda: len(joins) == world), request.timeout)
        before = joins[(rank - 1) % world].address
        streams = (
            RankStream(fold_address((rank + 1) % world), 0, 0, 0, 7 + kind, size, before, 0)
            for kind, size in enumerate((SLOTS, SLOTS // 4))
        )
        return Plan(
            request.job, 1, rank, world, [Peer(r, join.address, join.tcp) for r, join in sorted(joins.items())],
            [RankTree("rc", 1.0, *streams)], path_mtu=1024, fold_address=fold_address(rank), verb="send",
            message=SLOTS // 4, secret=self._secrets[request.job],
        )

    async def leave(self, request: Leave) -> Done:
        async with self._changed:
            self._gone.add((request.job, request.rank))
            self._changed.notify_all()
        return Done()

    async def watch(self, request: Watch) -> AsyncGenerator[Event, None]:
        yield Watching()
        async with self._changed:
            await self._changed.wait_for(lambda: (request.job, request.rank) in self._gone)

    async def connect(self, request: Connect) -> Connected:
        """Tells the fake switches which queue pairs are a stream, and each rank its neighbours'."""
        async with self._changed:
            made = {rank: pairs for (job, rank), pairs in self._made.items() if job == request.job}
            self._made[request.job, request.rank] = self.pairs[request.rank] = request.pairs
            if len(made) == self.world - 1:
                made[request.rank] = request.pairs
                self.lib.fake_forget()
                numbers, bits = C.c_uint32 * self.world, self.joins[request.rank].lane_bits
                for place in range(len(request.pairs)):
                    out = numbers(*(made[r][place].out_qp for r in range(self.world)))
                    into = numbers(*(made[r][place].in_qp for r in range(self.world)))
                    self.lib.fake_stream(self.world, out, into, MAXIMUM if place % 2 else bits)
            self._changed.notify_all()
            job = request.job
            everybody = self._changed.wait_for(lambda: all((job, r) in self._made for r in range(self.world)))
            await asyncio.wait_for(everybody, request.timeout)
        after, before = (self._made[job, (request.rank + step) % self.world] for step in (1, -1))
        return Connected([
            NeighbourPairs(peer_qp=a.in_qp, predecessor_qp=b.out_qp, peer_address=0, peer_rkey=0)
            for a, b in zip(after, before, strict=True)
        ])


@contextmanager
def fake_devices() -> Iterator[None]:
    """A context in which every address of 127.0.0.0/8 is that of an RDMA device, of the fake libibverbs."""
    _, libs = fake()

    def port_of(address: str) -> RocePort:
        fold = fold_address(int(address.rpartition(".")[2]) - 1)
        return RocePort("fake0", 1, {address: RoceGid(address, 1, "lo"), fold: RoceGid(fold, 2, "lo")}, Path("/none"))

    with (
        mock.patch("netfold.host.verbs.devices.port_of", port_of),
        mock.patch("netfold.host.verbs.rail.check_host", port_of),
        mock.patch("netfold.host.verbs.rail.VerbsRail", functools.partial(VerbsRail, libs=libs)),
    ):
        yield
