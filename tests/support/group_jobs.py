# SPDX-License-Identifier: Apache-2.0
"""The job service of one job on loopback, and of a group of some of its ranks, which has a switch of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from msgspec import structs

from netfold.testing import LoopbackSwitch
from netfold.wire.jobs import Done, Event, Join, Leave, Plan, RankReport, Watch
from support.torch import SLOTS, LoopbackJobs


class GroupJobs(LoopbackJobs):
    """Lets ranks fold in one switch, and those of one group in another one at ``address``.

    Each rank has an address of its own, where the group's UDP ports are the second ones.
    """

    def __init__(self, switch: LoopbackSwitch, world: int, address: str) -> None:
        super().__init__(switch, world)
        self._address = address
        self._group: LoopbackJobs | None = None
        self._groups_switch: LoopbackSwitch | None = None

    def close(self) -> None:
        """Closes the group's switch."""
        if self._groups_switch is not None:
            self._groups_switch.close()

    async def join(self, request: Join) -> Plan:
        group = request.group
        if group is None:
            return await super().join(request)
        if self._group is None:
            addresses = [self.joins[rank].address for rank in group.members]
            self._groups_switch = LoopbackSwitch(self._address, addresses, slots=SLOTS, place=1)
            self._group = LoopbackJobs(self._groups_switch, request.world)
        plan = await self._group.join(structs.replace(request, job=f"{group.job}#", group=None))
        peers = [structs.replace(peer, udp_port=join.udp_port)
                 for peer, join in zip(plan.peers, dict(sorted(self._group.joins.items())).values(), strict=True)]
        return structs.replace(plan, peers=peers)

    def _of(self, job: str) -> LoopbackJobs | None:
        return self._group if job.endswith("#") else None

    async def report(self, request: RankReport) -> Done:
        group = self._of(request.job)
        return await super().report(request) if group is None else await group.report(request)

    async def leave(self, request: Leave) -> Done:
        group = self._of(request.job)
        return await super().leave(request) if group is None else await group.leave(request)

    async def watch(self, request: Watch) -> AsyncGenerator[Event, None]:
        group = self._of(request.job)
        async for event in super().watch(request) if group is None else group.watch(request):
            yield event
