# SPDX-License-Identifier: Apache-2.0
"""Ranks with NICs, as the controller sees them: they join with kind "rc", and connect their queue pairs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from netfold.controller.switch import tables
from netfold.controller.switch.entities import Entry
from netfold.fabric.generate import leafspine
from netfold.wire import roce
from netfold.wire.jobs import Connect, Connected, OwnPairs, Resume
from netfold.wire.plan import Plan
from support.control.controller import until
from support.control.jobs import Code, Rig, rig
from support.control.recovery import restart, resume

FIRST_QP = 17
"""The first queue pair of rdma_rxe."""
ALL_RC = ["rc"] * 4
"""Kinds of a job's ranks, all with NICs."""
MIXED = ["windowed", "rc", "windowed", "rc"]
"""Kinds of a job's ranks, half of them with NICs."""


@asynccontextmanager
async def nics(folder: Path, **settings: Any) -> AsyncIterator[Rig]:
    """A rig whose hosts all have RDMA."""
    hosts = leafspine(2, 2, 4, rdma=True).hosts
    async with rig(folder, **{"hosts": hosts, **settings}) as r:
        yield r


def join_all(r: Rig, kinds: Sequence[str], **changes: Any) -> list[asyncio.Task[Plan]]:
    """Let ranks of these kinds join at once."""
    world = len(kinds)
    return [asyncio.create_task(r.call("Join", r.join(rank, world, kind=kind, **changes)))
            for rank, kind in enumerate(kinds)]


def pairs_of(plan: Plan, first: int = FIRST_QP) -> list[OwnPairs]:
    """Numbers that a NIC may choose for a plan whose queue pairs are numbered from ``first``."""
    return [OwnPairs(first + 2 * n, first + 2 * n + 1, 0x7F00_0000_0000 + n, 0x100 + plan.rank)
            for n in range(2 * len(plan.trees))]


def connecting(plan: Plan, first: int = FIRST_QP, timeout: float = 30.0, **changes: Any) -> Connect:
    """The second step of a rank."""
    request = Connect(plan.job, plan.rank, plan.epoch, plan.round, pairs_of(plan, first), timeout, plan.rank_secret)
    return msgspec.structs.replace(request, **changes)


def connect(r: Rig, plan: Plan, first: int = FIRST_QP, **changes: Any) -> asyncio.Task[Connected]:
    """Let a rank connect."""
    return asyncio.create_task(r.call("Connect", connecting(plan, first, **changes), Connected))


async def folding(r: Rig, kinds: Sequence[str], **changes: Any) -> tuple[list[Plan], dict[int, Connected]]:
    """A job whose RC ranks have connected: the plans of all, with the tickets that they have in the end, and the
    answers to RC ranks."""
    joins = join_all(r, kinds, **changes)
    plans = {rank: await joins[rank] for rank, kind in enumerate(kinds) if kind == "rc"}
    calls = {rank: connect(r, plan) for rank, plan in plans.items()}
    connected = {rank: await call for rank, call in calls.items()}
    plans |= {rank: msgspec.structs.replace(plan, ticket=connected[rank].ticket) for rank, plan in plans.items()}
    return [plans.get(rank) or await join for rank, join in enumerate(joins)], connected


def resuming(plan: Plan, ahead: int = 0, **changes: Any) -> Resume:
    """The Resume of a rank of either kind."""
    if not plan.fold_address:
        return resume(plan, ahead=ahead, **changes)
    data = [stream for tree in plan.trees for stream in (tree.data, tree.agreement)]
    missing = {place: (stream.psn + ahead) & roce.PSN_MASK for place, stream in enumerate(data)}
    return Resume(plan.job, plan.rank, plan.epoch, missing, changes.pop("timeout", 30.0), plan.rank_secret, **changes)


async def refused(call: asyncio.Task[Any]) -> tuple[Code, str]:
    """The code and words of a refusal that a task waits for."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


def rc_entries(r: Rig, name: str) -> list[dict[str, Any]]:
    """Key and parameters of each entry for contributions of a NIC on a switch."""
    return [{**dict(e.key), **dict(e.params)} for e in r.switches[name].state.values()
            if isinstance(e, Entry) and e.action == tables.CONTRIBUTION_RC]


async def empty(r: Rig) -> None:
    """Wait until nothing of any job is left, on switches that are back."""
    for name, switch in r.switches.items():
        if switch.unreachable:
            restart(r, name)
    await until(r.base_only)
    await until(lambda: set(r.controller.allocator.used().values()) == {0})


def ip(address: str) -> int:
    """An IPv4 address as a number."""
    return int.from_bytes(bytes(map(int, address.split("."))), "big")
