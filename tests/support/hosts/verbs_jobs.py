# SPDX-License-Identifier: Apache-2.0
"""The job service of RC ranks in one process, whose queue pairs are those of a libibverbs that is not the system's
(support/hosts/verbs.py), and what lets the host library find that one."""

from __future__ import annotations

import asyncio
import ctypes as C
import functools
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from netfold.host.api.communicator import Communicator
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
    Reform,
    Reformed,
    Watch,
    Watching,
)
from netfold.wire.plan import Change, Peer, Plan, RankStream, RankTree, Secret
from support.hosts.host import impatient
from support.hosts.torch import SLOTS, LoopbackJobs
from support.hosts.verbs import MAXIMUM, MTU_4096, fake, fold_address


class VerbsJobs(LoopbackJobs):
    """Jobs of RC ranks over one tree, and groups of theirs.  A rail that has died joins again as a job of another name.

    reforms  ranks may go on without those that have left, and with new ones
    """

    reforms = False

    def __init__(self, switch: LoopbackSwitch, world: int) -> None:
        super().__init__(switch, world)
        self.lib, _ = fake()
        self.lib.fake_reset(MTU_4096)
        self.world = world
        self.pairs: dict[int, list[OwnPairs]] = {}
        """By rank: the queue pairs that it has made last."""
        self.left: list[str] = []
        """Names of the groups that ranks have left, once for each rank."""
        self.reasons: dict[str, str] = {}
        """The first one with which a rank has left a group, by its name."""
        self._joined: dict[tuple[str, int], dict[int, Join]] = {}
        self._secrets: dict[str, Secret] = {}
        self._made: dict[tuple[str, int], dict[int, list[OwnPairs]]] = {}
        """Of each incarnation of a job, by name and epoch: the queue pairs of its ranks."""
        self._gone: set[tuple[str, int, int]] = set()
        self._connected: set[str] = set()
        """Jobs whose queue pairs the fake switches know."""
        self._peers: dict[tuple[str, int], list[Peer]] = {}
        """Ranks of each incarnation."""
        self._asked: dict[tuple[str, int], dict[int, Reform]] = {}
        self._newcomers: dict[str, list[Join]] = {}
        self._changes: dict[tuple[str, int], Change] = {}
        self._changed = asyncio.Condition()
        self.answer = self.connect  # a test may put something else in its place

    def methods(self) -> dict[str, rpc.Method]:
        async def connect(request: Connect) -> Connected:
            return await self.answer(request)

        async def reform(request: Reform) -> Reformed:
            if not self.reforms:
                raise rpc.Refusal(rpc.Code.UNIMPLEMENTED, "this service plans each job once")
            return await self.reform(request)

        return super().methods() | {"Connect": (Connect, connect), "Reform": (Reform, reform)}

    async def join(self, request: Join) -> Plan:
        assert request.kind == "rc"
        if request.joining:
            return await self._admitted(request)
        rank, world, group = request.rank, request.world, request.group
        job, epoch = (request.job, 1) if group is None else (
            f"{group.job}#{'-'.join(map(str, group.members))}.{group.number}", group.epoch)
        async with self._changed:
            joins = self._joined.setdefault((job, epoch), {})
            joins[rank] = request
            if group is None:
                self.joins[rank] = request
            self._secrets.setdefault(job, draw())
            self._changed.notify_all()
            await asyncio.wait_for(self._changed.wait_for(lambda: len(joins) == world), request.timeout)
        self._peers[job, epoch] = [Peer(r, join.address, join.tcp) for r, join in sorted(joins.items())]
        return self._plan(job, epoch, rank)

    def _plan(self, job: str, epoch: int, rank: int) -> Plan:
        peers = self._peers[job, epoch]
        places = [int(peer.address.rpartition(".")[2]) - 1 for peer in peers]
        after, before = fold_address(places[(rank + 1) % len(peers)]), peers[rank - 1].address
        streams = (
            RankStream(after, 0, 0, 0, 7 + kind, size, before, 0)
            for kind, size in enumerate((SLOTS, SLOTS // 4))
        )
        return Plan(
            job, epoch, rank, len(peers), peers, [RankTree("rc", 1.0, *streams)], path_mtu=1024,
            fold_address=fold_address(places[rank]), verb="send", message=SLOTS // 4, secret=self._secrets[job],
            change=self._changes.get((job, epoch)),
        )

    async def reform(self, request: Reform) -> Reformed:
        """Lets the ranks go on that have not left, with those that wait where they grow."""
        job, epoch = request.job, request.epoch
        async with self._changed:
            asked = self._asked.setdefault((job, epoch), {})
            asked[request.rank] = request

            def are_there() -> list[int]:
                return [rank for rank in range(len(self._peers[job, epoch])) if (job, epoch, rank) not in self._gone]

            self._changed.notify_all()
            await asyncio.wait_for(self._changed.wait_for(lambda: len(asked) == len(are_there())), request.timeout)
            there = are_there()
            if self._asked.get((job, epoch)) is not asked:  # the first of these ranks found that nothing changes
                return Reformed()
            if (job, epoch + 1) not in self._peers:
                new = self._newcomers.pop(job, []) if request.grows else []
                if len(there) == len(self._peers[job, epoch]) and not new:
                    del self._asked[job, epoch]
                    return Reformed()
                peers = [Peer(place, self._peers[job, epoch][rank].address, asked[rank].tcp)
                         for place, rank in enumerate(there)]
                peers += [Peer(len(peers) + place, join.address, join.tcp) for place, join in enumerate(new)]
                lost = sorted(set(range(len(self._peers[job, epoch]))) - set(there))
                finished = [asked[rank].finished for rank in there]
                self._changes[job, epoch + 1] = Change(
                    there + [-1] * len(new), lost, finished + [min(finished)] * len(new))
                self._peers[job, epoch + 1] = peers
                self._changed.notify_all()
        return Reformed(self._plan(job, epoch + 1, there.index(request.rank)))

    async def _admitted(self, request: Join) -> Plan:
        """The plan of a rank that joins a running job, once the ranks of that let it in."""
        job = request.job

        def found() -> tuple[int, int] | None:
            return next(((epoch, peer.rank) for (name, epoch), peers in self._peers.items() for peer in peers
                         if (name, peer.tcp) == (job, request.tcp)), None)

        async with self._changed:
            self._newcomers.setdefault(job, []).append(request)
            await asyncio.wait_for(self._changed.wait_for(lambda: found() is not None), request.timeout)
        place = found()
        assert place is not None
        self.joins[place[1]] = request
        return self._plan(job, *place)

    async def leave(self, request: Leave) -> Done:
        async with self._changed:
            self._gone.add((request.job, request.epoch, request.rank))
            if "#" in request.job:
                self.left.append(request.job)
                self.reasons.setdefault(request.job, request.reason)
            self._changed.notify_all()
        return Done()

    async def watch(self, request: Watch) -> AsyncGenerator[Event, None]:
        yield Watching()
        async with self._changed:
            await self._changed.wait_for(lambda: (request.job, request.epoch, request.rank) in self._gone)

    async def connect(self, request: Connect) -> Connected:
        """Tells the fake switches which queue pairs are a stream, and each rank its neighbours'."""
        key = request.job, request.epoch
        world = len(self._peers[key])
        async with self._changed:
            made = self._made.setdefault(key, {})
            known = len(made.keys() - {request.rank}) == world - 1
            made[request.rank] = self.pairs[request.rank] = request.pairs
            if known:
                if request.job in self._connected and "#" not in request.job:  # its queue pairs are made anew
                    self.lib.fake_forget()
                self._connected.add(request.job)
                numbers, bits = C.c_uint32 * world, self.joins[request.rank].lane_bits
                for place in range(len(request.pairs)):
                    out = numbers(*(made[r][place].out_qp for r in range(world)))
                    into = numbers(*(made[r][place].in_qp for r in range(world)))
                    self.lib.fake_stream(world, out, into, MAXIMUM if place % 2 else bits)
            self._changed.notify_all()
            gone = [(*key, rank) for rank in range(world)]
            everybody = self._changed.wait_for(lambda: len(made) == world or not self._gone.isdisjoint(gone))
            await asyncio.wait_for(everybody, request.timeout)
            if len(made) < world:
                why = self.reasons.get(request.job)
                raise rpc.Refusal(rpc.Code.FAILED_PRECONDITION, f"{request.job} has ended: {why}")
        after, before = (made[(request.rank + step) % world] for step in (1, -1))
        return Connected([
            NeighbourPairs(peer_qp=a.in_qp, predecessor_qp=b.out_qp, peer_address=0, peer_rkey=0)
            for a, b in zip(after, before, strict=True)
        ])


def impatient_once_broken(monkeypatch: pytest.MonkeyPatch, comms: Sequence[Communicator], seconds: float) -> None:
    """Sets the timeouts of these communicators to so many seconds as soon as a queue pair is in error or missing."""
    broken = VerbsRail._broken

    def hurry(rail: VerbsRail, request: Any, error: int) -> None:
        impatient(comms, seconds)
        broken(rail, request, error)

    monkeypatch.setattr(VerbsRail, "_broken", hurry)


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
