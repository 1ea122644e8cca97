# SPDX-License-Identifier: Apache-2.0
"""The job service of one job on loopback, and of groups of some of its ranks, each of which has a switch of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator

from msgspec import structs

from netfold.rpc.rpc import Code, Refusal
from netfold.testing import LoopbackSwitch
from netfold.wire.jobs import Done, Event, Halt, Join, Leave, RankReport, Watch
from netfold.wire.plan import Plan
from support.hosts.torch import SLOTS, LoopbackJobs


class GroupJobs(LoopbackJobs):
    """Lets ranks fold in one switch, and those of each group in one of its own: at ``net``.201, .202 and so on.

    Each rank has an address of its own, where the group's UDP ports are the second ones: of its groups one is open at a
    time.
    """

    def __init__(self, switch: LoopbackSwitch, world: int, net: str) -> None:
        super().__init__(switch, world)
        self._net = net
        self._groups: dict[str, tuple[LoopbackJobs, LoopbackSwitch]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.refusal = ""
        """Why groups get no trees; empty: they do."""
        self.left: list[str] = []
        """Names of the groups that ranks have left, once for each rank."""
        self.changed = threading.Condition()
        """Notified when ``left`` has changed."""

    def close(self) -> None:
        """Closes the groups' switches."""
        for _, switch in self._groups.values():
            switch.close()

    def halt(self, name: str) -> None:
        """Takes a group's trees back, as for a job that needs their slots; called on any thread."""
        events = self._groups[name][0]._events
        assert self._loop is not None

        def tell() -> None:
            for queue in events.values():
                queue.put_nowait(Halt(1, "a test needs its slots"))

        self._loop.call_soon_threadsafe(tell)

    async def join(self, request: Join) -> Plan:
        self._loop, group = asyncio.get_running_loop(), request.group
        if group is None:
            return await super().join(request)
        if self.refusal:
            raise Refusal(Code.RESOURCE_EXHAUSTED, self.refusal)
        name = f"{group.job}#{'-'.join(map(str, group.members))}.{group.number}"
        if name not in self._groups:
            addresses = [self.joins[rank].address for rank in group.members]
            switch = LoopbackSwitch(f"{self._net}.{201 + len(self._groups)}", addresses, slots=SLOTS, place=1)
            self._groups[name] = LoopbackJobs(switch, request.world), switch
        made = self._groups[name][0]
        plan = await made.join(structs.replace(request, job=name, group=None))
        peers = [structs.replace(peer, udp_port=join.udp_port)
                 for peer, join in zip(plan.peers, dict(sorted(made.joins.items())).values(), strict=True)]
        return structs.replace(plan, peers=peers)

    def _of(self, job: str) -> LoopbackJobs | None:
        return self._groups[job][0] if job in self._groups else None

    async def report(self, request: RankReport) -> Done:
        group = self._of(request.job)
        return await super().report(request) if group is None else await group.report(request)

    async def leave(self, request: Leave) -> Done:
        group = self._of(request.job)
        if group is None:
            return await super().leave(request)
        with self.changed:
            self.left.append(request.job)
            self.changed.notify_all()
        return await group.leave(request)

    async def watch(self, request: Watch) -> AsyncGenerator[Event, None]:
        group = self._of(request.job)
        async for event in super().watch(request) if group is None else group.watch(request):
            yield event
