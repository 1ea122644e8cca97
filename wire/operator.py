# SPDX-License-Identifier: Apache-2.0
"""Messages of the operator's service, between `netfold status` and the like and the controller."""

from __future__ import annotations

from typing import Final

import msgspec

from netfold.wire.jobs import RankReport

SERVICE: Final = "netfold.Operator"
LINES: Final = 8
"""Culprits that a report of a stall names one by one: those of the oldest slots say it all."""


class OpenSlot(msgspec.Struct, frozen=True):
    """A slot that waits."""

    switch: str
    tree: str
    """Root of the tree."""
    operation: str
    """Of the contributions that are in: SUM32, MAX32, ..."""
    slot: int
    psn: int
    bitmap: int
    present: list[str]
    """Children whose contributions are in: "rank 3 (h4)" or a switch's name."""
    missing: list[str]
    """Children whose contributions are not; empty where the slot is complete and waits for its parent's result."""


class Culprit(msgspec.Struct, frozen=True):
    """What one open slot waits for in the end."""

    slot: OpenSlot
    """Nearest to the reason."""
    ranks: list[int]
    """Ranks that have not contributed; empty where a packet between two switches is missing."""
    why: str


class Stall(msgspec.Struct, frozen=True):
    """A job's open slots, the oldest first, with what each stream's oldest one waits for."""

    job: str
    epoch: int
    missing: list[int]
    """Ranks that something waits for."""
    open: int
    """Slots open on all switches."""
    culprits: list[Culprit]

    def __str__(self) -> str:
        head = f"job {self.job!r}, epoch {self.epoch}"
        if not self.culprits:
            return f"{head}: no slot waits for anybody"
        who = f"waits for rank {', '.join(map(str, self.missing))}" if self.missing else "waits for packets"
        lines = [f"{head}: {who}; {self.open} slots are open"]
        lines += [f"  {culprit.why}" for culprit in self.culprits[:LINES]]
        if len(self.culprits) > LINES:
            lines.append(f"  and {len(self.culprits) - LINES} streams more")
        return "\n".join(lines)


class AskStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    reports: list[RankReport]
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
