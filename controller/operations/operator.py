# SPDX-License-Identifier: Apache-2.0
"""The operator's service: what `netfold status` and its like ask a running controller, and `netfold drop` tells it."""

from __future__ import annotations

from typing import Final

import msgspec

from netfold.controller.operations.stall import OpenSlot, Stall
from netfold.controller.switch import rpc
from netfold.wire.jobs import Report

SERVICE: Final = "netfold.Operator"
TIMEOUT: Final = 10.0
"""Seconds that an operator waits for an answer."""

SLOTS_TIMEOUT: Final = 60.0
"""Seconds for a question that goes to thousands of slots."""


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing more to say: asks for the status."""

    token: str = ""


class Outcomes(msgspec.Struct, frozen=True):
    """What became of the contributions and results that a switch folded, in packets; all but `first` were repeats."""

    first: int = 0
    answered: int = 0
    """By the result in this switch's slot: it was lost below."""
    asked: int = 0
    """By sending this switch's sum to its parent once more: something was lost above."""
    waited: int = 0
    """By nothing: contributions of others are missing."""
    late: int = 0
    """Contributions to a PSN whose slot has gone on."""
    repeated: int = 0
    """Results that were here."""


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
    folded: Outcomes = Outcomes()
    drained: bool = False
    """Taken out of use by an operator."""
    device_id: int = 0
    """P4Runtime's name of it, at ``grpc``."""


class Traffic(msgspec.Struct, frozen=True):
    """One direction of a link, as the switches' counters have it; Ethernet frames without FCS."""

    packets: int
    bytes: int
    lost: int
    """Packets lost on purpose (Link's ``loss``), and so on."""
    corrupted: int = 0
    duplicated: int = 0
    held: int = 0
    """Held back for others to overtake them."""


class LinkStatus(msgspec.Struct, frozen=True):
    """One link."""

    a: str
    b: str
    rate: str | None
    loss: float
    a_to_b: Traffic
    b_to_a: Traffic
    up: bool = True
    """False where probes between its two switches are lost, or one of them is down."""
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    drained: bool = False
    """Taken out of use by an operator, or one of its switches is."""


class TreeStatus(msgspec.Struct, frozen=True):
    """One tree of a job."""

    root: str
    weight: float
    switches: dict[str, list[str]]
    """Switch to its children, hosts and switches by name."""
    links: list[str] = []
    """Links between switches that carry it, from the lower end: ``switch:port - switch``."""


class RoundStatus(msgspec.Struct, frozen=True):
    """The last time that a job's trees were planned anew."""

    number: int
    """Counts them."""
    why: str
    ago: float
    """Seconds since its beginning."""
    took: float | None
    """Seconds from notice to go-on; None while the ranks stand still."""
    problem: str
    """Why there are no trees yet."""


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
    """Of each tree's data stream, on each of its switches."""
    trees: list[TreeStatus]
    reason: str
    """Why nothing folds, or why the job is broken."""
    reports: list[Report]
    lost: list[int] = []
    """Ranks that died: their connection broke before they left."""
    round: RoundStatus | None = None
    stays: str = ""
    """Why its trees are not where they should be."""


class Totals(msgspec.Struct):
    """Of all jobs since the controller started; what ranks say they say when they leave."""

    jobs: int = 0
    """That were complete."""
    rounds: int = 0
    """Times that trees were planned anew."""
    round_seconds: float = 0.0
    """That ranks stood still for it, job by job."""
    operations: int = 0
    """Of each rank, added up; as the rest."""
    bytes_reduced: int = 0
    packets_sent: int = 0
    retransmissions: int = 0


class Status(msgspec.Struct, frozen=True):
    """The whole fabric at one moment."""

    fabric: str
    engine: str
    uptime: float
    """Seconds since the controller was ready."""
    switches: list[SwitchStatus]
    links: list[LinkStatus]
    jobs: list[JobStatus]
    totals: Totals = msgspec.field(default_factory=Totals)


class Drop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """End a job whose ranks are dead."""

    job: str
    token: str = ""


class Dropped(msgspec.Struct, frozen=True):
    """Whether there was one."""

    found: bool


class SetDrain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A switch or a link is to be left by everything, or may be used again."""

    name: str
    """Of a switch; or ``switch:port``, either end of a link between switches."""
    drained: bool
    timeout: float = 0.0
    """Seconds to wait for jobs to leave it."""
    token: str = ""


class Drained(msgspec.Struct, frozen=True):
    """The answer to SetDrain."""

    name: str
    """As `names` has it: a link by its first end."""
    names: list[str]
    """All that is drained now."""
    still: list[str]
    """Jobs that are on it still, and why."""


class AskSlots(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What waits on one switch."""

    switch: str
    job: str | None = None
    """None: every job."""
    token: str = ""


class JobSlots(msgspec.Struct, frozen=True):
    """One job on one switch."""

    job: str
    epoch: int
    probed: int
    """Slots that it has there, all of them asked."""
    open: list[OpenSlot]


class SwitchSlots(msgspec.Struct, frozen=True):
    """The answer to AskSlots."""

    jobs: list[JobSlots]


class AskStall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whom a job waits for."""

    job: str
    token: str = ""


class Stalls(msgspec.Struct, frozen=True):
    """The answer to AskStall: one for each incarnation of the job that holds slots."""

    stalls: list[Stall]


async def status(address: str, timeout: float = TIMEOUT, token: str = "") -> Status:
    """Ask the controller at this gRPC address.  Raises rpc.Unreachable."""
    return await rpc.call(address, f"{SERVICE}/Status", Ask(token), Status, timeout)


async def drop(address: str, job: str, timeout: float = TIMEOUT, token: str = "") -> bool:
    """End a job; False where there is none of that name.  Raises rpc.Unreachable."""
    return (await rpc.call(address, f"{SERVICE}/Drop", Drop(job, token), Dropped, timeout)).found


async def drain(
    address: str, name: str, drained: bool, *, wait: float = 0.0, timeout: float = TIMEOUT, token: str = ""
) -> Drained:
    """Take something out of use and wait so many seconds for jobs to leave it; or into use again.  Raises
    rpc.Unreachable."""
    return await rpc.call(address, f"{SERVICE}/Drain", SetDrain(name, drained, wait, token), Drained, wait + timeout)


async def slots(
    address: str, switch: str, job: str | None = None, timeout: float = SLOTS_TIMEOUT, token: str = ""
) -> list[JobSlots]:
    """The slots of a switch, every one of them asked.  Raises rpc.Unreachable."""
    return (await rpc.call(address, f"{SERVICE}/Slots", AskSlots(switch, job, token), SwitchSlots, timeout)).jobs


async def stall(address: str, job: str, timeout: float = SLOTS_TIMEOUT, token: str = "") -> list[Stall]:
    """Whom a job waits for, by all its slots on all its switches.  Raises rpc.Unreachable."""
    return (await rpc.call(address, f"{SERVICE}/Stall", AskStall(job, token), Stalls, timeout)).stalls
