# SPDX-License-Identifier: Apache-2.0
"""Messages of the operator service, between the controller and `netfold status`, `drain`, `stall` and the like."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Protocol

import msgspec

from netfold.wire.bounds import Count, Name, Seconds, Share
from netfold.wire.jobs import RankReport

SERVICE: Final = "netfold.Operator"


class AskStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for the status of the whole fabric."""



class Outcomes(msgspec.Struct, frozen=True):
    """Counts of packets at a switch, by the fate of contributions, results and NAKs, in the order of p4src/verdict.p4.

    All except ``first`` are repeats, packets ahead of a missing one, or NAKs.
    """

    first: int = 0
    """News: contributions and results that the slot lacked."""
    answered: int = 0
    """Repeats and NAKs of windowed children answered with the result in this switch's slot, and NAKs of the parent with
    its sum: what was lost had been lost on that link."""
    asked: int = 0
    """Repeats for which this switch sent its sum to its parent again, and NAKs that it passed on to its parent:
    something had been lost above it."""
    waited: int = 0
    """Repeats and NAKs that changed nothing, since contributions of other children are missing.  An RC child is told to
    come again (RNR NAK)."""
    late: int = 0
    """Contributions with a PSN whose slot is already in use for a later one, or that the successor of an RC child has
    acknowledged: an RC child gets the ACK that was lost."""
    repeated: int = 0
    """Results that this switch already had."""
    forwarded: int = 0
    """Repeats of RC children that went onward to their successors with the stored result."""
    ahead: int = 0
    """Packets of RC children ahead of one that is missing, which a NIC sends again after it."""
    mismatched: int = 0
    """Contributions whose opcode or length is not that of those before them."""
    lacked: int = 0
    """NAKs for what this switch lacks the asker's own contribution of: it is asked in turn."""

    @property
    def repeats(self) -> int:
        """All but ``first``."""
        counts: dict[str, int] = msgspec.structs.asdict(self)
        return sum(counts.values()) - self.first


class Punts(msgspec.Struct, frozen=True):
    """Packets for a switch's CPU port that never reached the controller."""

    refused: int = 0
    """From a port from which none may come, such as a host's."""
    over_rate: int = 0
    """Beyond the rate that their port's meter lets pass."""
    dropped: int = 0
    """Dropped between the CPU port and the controller, since this session with the switch began."""


class SwitchStatus(msgspec.Struct, frozen=True):
    """The state of one switch."""

    name: str
    role: str
    grpc: str
    up: bool
    problem: str
    """Why it is not up; empty while it is."""
    entries: int
    pushes: int
    """Times that this controller has installed the pipeline on it."""
    slots_used: int
    slots: int
    corrupt: int
    """Packets from hosts that it dropped because their ICRC was wrong."""
    folded: Outcomes = Outcomes()
    drained: bool = False
    """True if an operator has taken it out of use."""
    device_id: int = 0
    """P4Runtime device id of the switch at the address ``grpc``."""
    punts: Punts = Punts()
    spoofed: int = 0
    """Packets from hosts that it dropped because their IPv4 source address was not the host's."""
    unassigned: int = 0
    """IPv4 packets that it dropped because the fabric has no link at the port where they came in."""
    unfolded: int = 0
    """Packets from hosts to fold addresses that it dropped because they met no entry that folds them."""
    gaps: int = 0
    """Gaps in the PSNs of its children and parents that it noticed, for each of which it sent a NAK."""
    read: float = 0.0
    """When ``folded`` was read: monotonic seconds of the controller, comparable between its statuses alone; 0: it was
    not, and the counts say nothing."""


class Traffic(msgspec.Struct, frozen=True):
    """Traffic in one direction of a link by the switches' counters; bytes are those of Ethernet frames without FCS."""

    packets: int
    bytes: int
    lost: int
    """Packets lost by fault injection (the link's ``loss``); the following fields count the other injected faults."""
    corrupted: int = 0
    duplicated: int = 0
    held: int = 0
    """Packets held back by fault injection so that others overtake them."""
    spoofed: int = 0
    """Packets of a host that its switch dropped because their IPv4 source address was not the host's."""
    gaps: int = 0
    """Gaps in the PSNs of contributions or results that the switch which receives noticed: what was lost on the way."""
    read: float = 0.0
    """When ``packets`` and ``bytes`` were read, as in SwitchStatus.  Each switch and counter has its own moment: a rate
    is the difference of two readings by that of their own moments."""


class LinkStatus(msgspec.Struct, frozen=True):
    """The state of one link."""

    a: str
    b: str
    rate: str | None
    loss: float
    a_to_b: Traffic
    b_to_a: Traffic
    up: bool = True
    """False where probes between its two switches are lost, or one of the switches is down."""
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    drained: bool = False
    """True if an operator has taken it, or one of its switches, out of use."""
    problem: str = ""
    """Why it is down; empty where it is up, or a switch is down."""


class TreeStatus(msgspec.Struct, frozen=True):
    """One aggregation tree of a job."""

    root: str
    weight: float
    switches: dict[str, list[str]]
    """Switch -> its children in the tree, hosts and switches by name."""
    links: list[str] = []
    """Links between switches that carry the tree, each named from its lower end: ``switch:port - switch``."""


class RoundStatus(msgspec.Struct, frozen=True):
    """The last recovery round, in which a job's trees were planned anew."""

    number: int
    """Number of the round, from 1."""
    why: str
    ago: float
    """Seconds since the round began."""
    took: float | None
    """Seconds from the failure's notice until the ranks went on; None while they are halted."""
    problem: str
    """Why there are no new trees yet."""


class JobStatus(msgspec.Struct, frozen=True):
    """One incarnation (epoch) of a job."""

    name: str
    state: str
    epoch: int
    world: int
    joined: list[int]
    left: list[int]
    hosts: list[str]
    """Fabric addresses of the ranks in ``joined``, in the same order."""
    slots: int
    """Slots that each tree's data stream holds on each of its switches."""
    trees: list[TreeStatus]
    reason: str
    """Why the job has no trees, or why it is broken."""
    reports: list[RankReport]
    lost: list[int] = []
    """Ranks that died: their connection broke before they had left."""
    round: RoundStatus | None = None
    stays: str = ""
    """Why the job's trees were not moved to where they should be."""
    tenant: str = "default"
    """Whose job it is."""
    group_of: str = ""
    """Name of the job of which it is a group; empty: it is none."""
    awaited: list[int] = []
    """Ranks that have not registered with this controller, which has the job from an earlier one."""
    rc: list[int] = []
    """Ranks that fold with queue pairs of their NICs (kind "rc"); all others have windowed end points."""
    unconnected: list[int] = []
    """Ranks of these whose queue pairs the controller waits for, before it can write entries for a plan."""


class Totals(msgspec.Struct):
    """Totals over all jobs since the controller started; what ranks count is added when they leave."""

    jobs: int = 0
    """Jobs that all ranks joined."""
    rounds: int = 0
    """Recovery rounds, in which trees were planned anew."""
    round_seconds: float = 0.0
    """Seconds that ranks were halted in recovery rounds, summed over jobs."""
    operations: int = 0
    """Operations, summed over ranks, as are the following counts."""
    bytes_reduced: int = 0
    packets_sent: int = 0
    retransmissions: int = 0


class Status(msgspec.Struct, frozen=True):
    """The state of the whole fabric at one moment."""

    fabric: str
    engine: str
    uptime: float
    """Seconds since the controller became ready."""
    switches: list[SwitchStatus]
    links: list[LinkStatus]
    jobs: list[JobStatus]
    totals: Totals = msgspec.field(default_factory=Totals)


class Drop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to end a job whose ranks are dead."""

    job: Name


class Dropped(msgspec.Struct, frozen=True):
    """The answer to Drop: whether there was such a job."""

    found: bool


class SetDrain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to move all jobs off a switch or link, or to allow its use again."""

    name: Name
    """Name of a switch, or ``switch:port``, either end of a link between switches."""
    drained: bool
    timeout: Seconds = 0.0
    """Seconds to wait until no job uses it."""


class Drained(msgspec.Struct, frozen=True):
    """The answer to SetDrain."""

    name: str
    """The name as it stands in ``names``, where a link is named by its first end."""
    names: list[str]
    """All switches and links that are drained now."""
    still: list[str]
    """Jobs that still use it, and why."""


EventKind = Literal[
    "up", "down", "killed", "link down", "link up", "re-planned", "drained", "undrained", "adopted", "joined",
    "finished", "lost", "fault", "fault ended",
]
"""Kinds of events: of a switch (``killed``: its process is gone), a link, a job (``joined``: all its ranks have), or an
operator's action."""


class FabricEvent(msgspec.Struct, frozen=True):
    """Something that happened in a fabric, in the controller's words."""

    seq: int
    """Number of the event, from 1 at the controller's start, without gaps."""
    time: float
    """Unix seconds."""
    kind: EventKind
    target: str
    """Name of the switch, link (its two ends) or job."""
    text: str
    """Description of the event, its cause, and its duration; without the target's name."""


class Note(Protocol):
    """Records that something has happened: its kind, the name of what it happened to, and a text without that name."""

    def __call__(self, kind: EventKind, target: str, text: str) -> None: ...


def unnoted(kind: EventKind, target: str, text: str) -> None:
    """A `Note` that records nothing."""


class AskBeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A standby's question whether the controller is at work: a nonce that was never used before."""

    nonce: Annotated[str, msgspec.Meta(min_length=16, max_length=64)]


class Beat(msgspec.Struct, frozen=True):
    """The answer to AskBeat: HMAC-SHA256 of the nonce under the fabric's key, in hexadecimal digits."""

    proof: str


class AskEvents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for the events after number ``since``."""

    since: Annotated[int, msgspec.Meta(ge=0, lt=2**62)] = 0


class Events(msgspec.Struct, frozen=True):
    """The answer to AskEvents: the oldest first.  A controller keeps a bounded number; older ones are gone."""

    events: list[FabricEvent]


class PinnedPath(msgspec.Struct, frozen=True):
    """One path on which a flow of a job is pinned between two hosts."""

    job: str
    source: str
    """Name of a host, as is ``destination``."""
    destination: str
    links: list[int]
    """Links between switches, by their place in Status.links, from the source to the destination."""
    share: float
    """Share of the flow's bytes, 0..1."""


class LinkFaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shares of a link's packets that injected faults hit, each 0..1, beside those of the fabric file."""

    link: Name
    """Either end, ``node:port``."""
    loss: Share = 0.0
    duplicate: Share = 0.0
    reorder: Share = 0.0
    corrupt: Share = 0.0
    seed: Count | None = None
    """Seed of the draw; None: the fabric's."""


class SetFaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to inject these faults and no others, beside those of the fabric file."""

    links: Annotated[list[LinkFaults], msgspec.Meta(max_length=65_536)]


class FaultsSet(msgspec.Struct, frozen=True):
    """The answer to SetFaults."""

    links: int
    """Links that have injected faults now, those of the fabric file included."""


class AskConnections(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for the queue pairs of all jobs that fold."""


class QueuePairUse(msgspec.Struct, frozen=True):
    """The meaning of a destination queue pair on one link of a job's tree."""

    link: str
    """The link, by the end at the switch that is nearer to the root."""
    queue_pair: int
    """The first of a connection's eight (wire.roce.QUEUE_PAIRS), or a NIC's single one."""
    operation: str
    """Lane operation of a NIC's packets; empty: the lowest bits of the queue pair say it."""
    job: str
    tree: str
    """Name of the tree's root switch."""
    stream: str
    """"data", or "agreement" for what ranks agree on."""
    slots: int
    """Slots of the stream on each switch, a power of two: a packet's is its PSN modulo this."""
    up: bool
    """True for contributions on their way to the root; False for results on their way to the ranks."""
    who: str
    """Whose contributions, or to whom results go: "rank 3 (h4)", or a switch."""


class Connections(msgspec.Struct, frozen=True):
    """The answer to AskConnections."""

    connections: list[QueuePairUse]
