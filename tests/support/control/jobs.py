# SPDX-License-Identifier: Apache-2.0
"""A running controller whose switches are in memory, and ranks that speak to it over a real gRPC socket."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from netfold.controller.controller import Controller
from netfold.controller.switch import tables
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Fabric
from netfold.wire.jobs import SERVICE, Done, Event, GroupOf, Join, Leave, Reformed, Settle, Settled, Watch, Watching
from netfold.wire.plan import Plan, whole
from support.control.controller import BOUND, MemorySwitch, until

Code = grpc.StatusCode


class Watcher:
    """A rank's Watch, read all the time; ``settle`` answers Settle as a rank does that lacks nothing."""

    def __init__(self, call: Any, settle: Callable[[], Awaitable[object]]) -> None:
        self.settles = True
        self._call = call
        self._settle = settle
        self._events: asyncio.Queue[Event | grpc.aio.AioRpcError | None] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())

    async def next(self) -> Event | None:
        """The next event but Settle; None at the stream's good end."""
        event = await self._events.get()
        if isinstance(event, grpc.aio.AioRpcError):
            raise event
        return event

    @property
    def has_heard(self) -> bool:
        """True if an event has come that `next` has not returned yet."""
        return not self._events.empty()

    def die(self) -> None:
        """End the rank without a word to the controller."""
        self._call.cancel()

    async def _read(self) -> None:
        try:
            while (data := await self._call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                event = msgspec.json.decode(data, type=Event)
                if not isinstance(event, Settle):
                    self._events.put_nowait(event)
                elif self.settles:
                    await self._settle()
            self._events.put_nowait(None)
        except grpc.aio.AioRpcError as error:
            self._events.put_nowait(error)


def watching(plan: Plan, heard: int = 0) -> Watch:
    """The request by which a rank registers."""
    return Watch(plan.job, plan.rank, plan.epoch, plan.rank_secret, plan.ticket, plan.waits, plan.round,
                 plan.folds and not plan.stand_in, heard)


def of(plans: Sequence[Plan], members: Sequence[int], rank: int, number: int = 1, **changes: Any) -> Join:
    """The request of a rank to join the group of these ranks of a job."""
    parent = plans[members[rank]]
    group = GroupOf(parent.job, parent.epoch, parent.rank, parent.rank_secret, list(members), number)
    mine = parent.peers[parent.rank]
    return msgspec.structs.replace(
        Join(parent.job, len(members), rank, mine.address, mine.tcp, 0, timeout=5.0, group=group), **changes)


@dataclass
class Rig:
    """A running controller, its switches, and a client."""

    fabric: Fabric
    controller: Controller
    switches: dict[str, MemorySwitch]
    channel: grpc.aio.Channel
    metadata: tuple[tuple[str, str], ...] = ()
    """The metadata of its calls, `rpc.tokens.metadata`."""

    async def call(self, method: str, request: Any, answer: Any = Plan, timeout: float = BOUND) -> Any:
        """Call the job service, as a rank does, and return the answer."""
        unary = self.channel.unary_unary(f"/{SERVICE}/{method}", bytes, bytes)
        data = request if isinstance(request, bytes) else msgspec.json.encode(request)
        got = msgspec.json.decode(await unary(data, timeout=timeout, metadata=self.metadata), type=answer)
        if isinstance(got, Reformed) and got.plan is not None:
            return Reformed(whole(got.plan))
        return whole(got) if isinstance(got, Plan) else got

    def join(self, rank: int, world: int = 2, **changes: Any) -> Join:
        """The request to join of rank `rank`, on host h<rank+1>."""
        request = Join(job="j", world=world, rank=rank, address=self.fabric.hosts[rank % 4].address, tcp="10.0.0.1:1",
                       path_mtu=1024, timeout=BOUND)
        return msgspec.structs.replace(request, **changes)

    async def together(self, world: int, **changes: Any) -> list[Plan]:
        """Let all ranks join at once, and return their plans."""
        return list(await asyncio.gather(*(self.call("Join", self.join(r, world, **changes)) for r in range(world))))

    async def leave(self, plan: Plan, reason: str = "") -> None:
        """Let one rank leave its job."""
        await self.call("Leave", Leave(plan.job, plan.rank, plan.epoch, reason, plan.rank_secret), Done)

    async def watch(self, plan: Plan, heard: int = 0) -> Watcher:
        """One rank watches, who was told of round ``heard``; the controller has said that it does."""
        stream = self.channel.unary_stream(f"/{SERVICE}/Watch", bytes, bytes)
        call = stream(msgspec.json.encode(watching(plan, heard)), metadata=self.metadata)
        settled = Settled(plan.job, plan.rank, plan.epoch, plan.rank_secret)
        watcher = Watcher(call, lambda: self.call("Settled", settled, Done))
        assert await watcher.next() == Watching()
        return watcher

    async def watch_refusal(self, request: Watch) -> grpc.aio.AioRpcError:
        """The error by which the controller refuses a rank that registers."""
        call = self.channel.unary_stream(f"/{SERVICE}/Watch", bytes, bytes)(msgspec.json.encode(request))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        return caught.value

    async def refusal(self, request: Any, method: str = "Join") -> tuple[grpc.StatusCode, str]:
        """The code and words of a refused call."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.call(method, request)
        return caught.value.code(), caught.value.details() or ""

    async def held_up(self, world: int) -> tuple[asyncio.Event, list[asyncio.Task[Plan]]]:
        """All ranks join, and the job's plan waits to be written to leaf1, until the event is set."""
        gate = self.switches["leaf1"].gate = asyncio.Event()
        joins = [asyncio.create_task(self.call("Join", self.join(rank, world))) for rank in range(world)]
        await until(lambda: [job.state for job in self.controller.jobs.all()][-1:] == ["planning"])
        return gate, joins

    def waiting(self) -> int:
        """Ranks that have joined jobs which are not complete."""
        return sum(len(job.joins) for job in self.controller.jobs.all() if job.state == "gathering")

    def held(self) -> dict[str, dict[Any, Any]]:
        """The present entries of every switch."""
        return {name: dict(switch.state) for name, switch in self.switches.items()}

    def base_only(self) -> bool:
        """True where no switch holds anything of a job."""
        base = (tables.GUARD, tables.ROUTE, tables.UPLINK, tables.POLICY, tables.PIN, tables.BENT, tables.PUNT,
                tables.CONGESTION, "clone")
        return all(key[0] in base or dict(key[1]).get("group") == tables.PROBE_GROUP
                   for s in self.switches.values() for key in s.state)


@asynccontextmanager
async def restarted(r: Rig, *, start_timeout: float = BOUND, **settings: Any) -> AsyncIterator[Rig]:
    """A controller that is started anew on a rig's switches, after the first one has gone."""
    fabric = msgspec.structs.replace(r.fabric, **settings)
    again = Controller(fabric, connect=lambda switch: r.switches[switch.name].connect(), rng=random.Random(6),
                       start_timeout=start_timeout)
    async with again, grpc.aio.insecure_channel(fabric.jobs) as channel:
        yield Rig(fabric, again, r.switches, channel)


@asynccontextmanager
async def rig(folder: Path, **settings: Any) -> AsyncIterator[Rig]:
    """A 2x2x4 fabric in memory, its controller on a unix socket; there are no cables to probe."""
    fabric = msgspec.structs.replace(leafspine(2, 2, 4, rundir=folder, path_mtu=1024), **{"probe": 0, **settings})
    switches = {switch.name: MemorySwitch(switch.name) for switch in fabric.switches}
    controller = Controller(fabric, connect=lambda switch: switches[switch.name].connect(), rng=random.Random(5),
                            start_timeout=BOUND)
    async with controller, grpc.aio.insecure_channel(fabric.jobs) as channel:
        yield Rig(fabric, controller, switches, channel)
