# SPDX-License-Identifier: Apache-2.0
"""Client of a running controller's operator service, for `netfold status` and the other commands of an operator.

Without ``token``, the one that the environment gives (rpc/tokens.py) proves the caller's scope.
"""

from __future__ import annotations

from typing import Final

from netfold.rpc import rpc
from netfold.wire.operator import (
    SERVICE,
    AskEvents,
    AskStatus,
    Drained,
    Drop,
    Dropped,
    Events,
    FabricEvent,
    SetDrain,
    Status,
)
from netfold.wire.stalls import AskSlots, AskStall, JobSlots, Stall, Stalls, SwitchSlots

TIMEOUT: Final = 10.0
"""Seconds that an operator waits for an answer."""
SLOTS_TIMEOUT: Final = 60.0
"""Seconds for a request that reads thousands of slots."""


async def status(address: str, timeout: float = TIMEOUT, token: str | None = None) -> Status:
    """Asks the controller at this gRPC address.  Raises rpc.Unreachable."""
    return await rpc.call(address, f"{SERVICE}/Status", AskStatus(), Status, timeout, token=token)


async def drop(address: str, job: str, timeout: float = TIMEOUT, token: str | None = None) -> bool:
    """End a job.  Returns False if there is none of this name.  Raises rpc.Unreachable."""
    return (await rpc.call(address, f"{SERVICE}/Drop", Drop(job), Dropped, timeout, token=token)).found


async def drain(
    address: str, name: str, drained: bool, *, wait: float = 0.0, timeout: float = TIMEOUT, token: str | None = None
) -> Drained:
    """Drain a switch or link and wait up to ``wait`` seconds for jobs to leave it, or put it back into use.  Raises
    rpc.Unreachable."""
    ask = SetDrain(name, drained, wait)
    return await rpc.call(address, f"{SERVICE}/Drain", ask, Drained, wait + timeout, token=token)


async def slots(
    address: str, switch: str, job: str | None = None, timeout: float = SLOTS_TIMEOUT, token: str | None = None
) -> list[JobSlots]:
    """The open slots of a switch, read now.  Raises rpc.Unreachable."""
    ask = AskSlots(switch, job)
    return (await rpc.call(address, f"{SERVICE}/Slots", ask, SwitchSlots, timeout, token=token)).jobs


async def stall(address: str, job: str, timeout: float = SLOTS_TIMEOUT, token: str | None = None) -> list[Stall]:
    """Which ranks a job waits for, by all its slots on all its switches.  Raises rpc.Unreachable."""
    return (await rpc.call(address, f"{SERVICE}/Stall", AskStall(job), Stalls, timeout, token=token)).stalls


async def events(
    address: str, since: int = 0, timeout: float = TIMEOUT, token: str | None = None
) -> list[FabricEvent]:
    """The events of the fabric after the event with number ``since``, oldest first.  Raises rpc.Unreachable."""
    return (await rpc.call(address, f"{SERVICE}/Events", AskEvents(since), Events, timeout, token=token)).events
