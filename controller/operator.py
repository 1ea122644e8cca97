# SPDX-License-Identifier: Apache-2.0
"""The operator's service: what `netfold status` asks a running controller, and `netfold drop` tells it."""

from __future__ import annotations

from typing import Final

import msgspec

from netfold.controller import rpc
from netfold.wire.jobs import Report

SERVICE: Final = "netfold.Operator"
TIMEOUT: Final = 10.0
"""Seconds that an operator waits for an answer."""


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to say: asks for the status."""


class SwitchStatus(msgspec.Struct, frozen=True):
    """One switch."""

    name: str
    role: str
    grpc: str
    up: bool
    problem: str
    """Why it is not up."""
    entries: int
    pushes: int
    """Pipelines that this controller pushed to it."""
    slots_used: int
    slots: int
    corrupt: int
    """Packets dropped at the first hop because their ICRC did not hold."""


class Traffic(msgspec.Struct, frozen=True):
    """One direction of a link, as the switches' counters have it; Ethernet frames without FCS."""

    packets: int
    bytes: int
    lost: int
    """Packets lost on purpose (Fabric's ``loss``)."""


class LinkStatus(msgspec.Struct, frozen=True):
    """One link."""

    a: str
    b: str
    rate: str | None
    loss: float
    a_to_b: Traffic
    b_to_a: Traffic


class TreeStatus(msgspec.Struct, frozen=True):
    """One tree of a job."""

    root: str
    weight: float
    switches: dict[str, list[str]]
    """Switch to its children, hosts and switches by name."""


class JobStatus(msgspec.Struct, frozen=True):
    """One incarnation of a job."""

    name: str
    state: str
    epoch: int
    world: int
    joined: list[int]
    left: list[int]
    hosts: list[str]
    """Addresses in the order of ``joined``."""
    slots: int
    """Of each tree's sum stream, on each of its switches."""
    trees: list[TreeStatus]
    reason: str
    """Why nothing folds, or why the job is broken."""
    reports: list[Report]


class Status(msgspec.Struct, frozen=True):
    """The whole fabric at one moment."""

    fabric: str
    engine: str
    uptime: float
    """Seconds since the controller was ready."""
    switches: list[SwitchStatus]
    links: list[LinkStatus]
    jobs: list[JobStatus]


class Drop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """End a job whose ranks are dead."""

    job: str


class Dropped(msgspec.Struct, frozen=True):
    """Whether there was one."""

    found: bool


async def status(address: str, timeout: float = TIMEOUT) -> Status:
    """Ask the controller at this gRPC address.  Raises rpc.Unreachable."""
    return await rpc.call(address, f"{SERVICE}/Status", Ask(), Status, timeout)


async def drop(address: str, job: str, timeout: float = TIMEOUT) -> bool:
    """End a job; False where there is none of that name.  Raises rpc.Unreachable."""
    return (await rpc.call(address, f"{SERVICE}/Drop", Drop(job), Dropped, timeout)).found
