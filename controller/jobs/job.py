# SPDX-License-Identifier: Apache-2.0
"""The state of one job: its ranks, what it holds on switches, and where it stands in its life cycle."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal

from netfold.controller.jobs.connect_step import ConnectStep
from netfold.controller.jobs.rounds import Round
from netfold.fabric.folding.slots import Stream
from netfold.fabric.folding.trees import Footprint, Tree, footprint
from netfold.fabric.graph import DEFAULT_TENANT, Tenant
from netfold.rpc.limits import RateLimit
from netfold.wire.jobs import Event, Join, RankLeft, RankLost, RankReport, Reform, Settle
from netfold.wire.plan import Change, Plan, Secret

LACKING_RANKS: Final = 8
"""Most ranks that cannot fold of which a job's ranks are told: each of them is told of each."""
LACKING_TEXT: Final = 200
"""Most characters of what such a rank lacks."""
GROUP_MARK: Final = "#"
"""Separates a group's name from its job's name; other names of jobs may not contain it."""
JobState = Literal["gathering", "planning", "connecting", "active", "leaving", "broken", "finished"]
"""``connecting``: its RC ranks have their first plans, and the switches wait for their queue pairs."""


def lacking(said: Mapping[int, str]) -> dict[int, str]:
    """The resources that keep ranks from folding, by rank: those of the first ranks, in few words.

    said  by rank; "": nothing
    """
    first = sorted(rank for rank, what in said.items() if what)[:LACKING_RANKS]
    return {rank: said[rank] if len(said[rank]) <= LACKING_TEXT else f"{said[rank][:LACKING_TEXT]}..."
            for rank in first}


@dataclass
class Gathering:
    """The ranks of one incarnation that have stopped and asked to go on."""

    decided: asyncio.Future[Job | None]
    """The next incarnation; None: the job goes on as it was."""
    asked: dict[int, Reform] = field(default_factory=dict)
    majority_since: float | None = None
    """Time since which more than half of the live ranks have asked; None: they have not."""


@dataclass
class Departure:
    """The wait of ranks of one job that want to leave: all of them wait for the same, once (leaving.py).

    A rank without a Watch stream cannot be asked, and is not waited for; one that has not registered with a new
    controller yet will be.
    """

    pending: set[int]
    """Ranks that may lack results."""
    question: Settle
    """The question to them, whether they have finished the leaving ranks' last operation."""
    asked: set[int] = field(default_factory=set)
    """Ranks that have been sent Settle."""
    end: asyncio.Task[None] | None = None


@dataclass
class Job:
    """One incarnation of a job; the same name may be joined anew after its end."""

    name: str
    world: int
    state: JobState = "gathering"
    joins: dict[int, Join] = field(default_factory=dict)
    epoch: int = 0
    """Its ranks' number for the job; the slots of each of its trees have an epoch of their own."""
    secret: Secret = field(default_factory=lambda: Secret(secrets.token_hex(32)))
    """The job's secret, which all its ranks know."""
    hosts: list[str] = field(default_factory=list)
    """Host names by rank, once all ranks have joined."""
    first_trees: list[Tree] = field(default_factory=list)
    """The trees that were planned when the job began; later ones take their places and weights."""
    trees: list[Tree] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    """Streams that the switches hold for it: for each tree the data and the agreement."""
    announced: list[Stream] = field(default_factory=list)
    """The streams that its ranks know: while they stand still, those before the change."""
    awaited: set[int] = field(default_factory=set)
    """Ranks of a job that an earlier controller began which have not registered with this one."""
    sessions: dict[str, int] = field(default_factory=dict)
    """Session number of each switch of its trees when the slots were allocated."""
    round: Round | None = None
    """The last time that this controller has planned its trees anew; None if that never happened."""
    rounds: int = 0
    """Number of the last recovery round that is over."""
    is_adopted: bool = False
    """True if its ranks have plans of an earlier controller, which may differ from rank to rank."""
    stay_reason: str = ""
    """Why its trees could not move to better places; empty if they are there."""
    opened: dict[int, str] = field(default_factory=dict)
    """Rank that has opened its rail -> the resource that it lacks to fold (`wire.jobs.Opened`); "": nothing."""
    all_opened: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once all live ranks are in ``opened``, or have reported to an earlier controller."""
    fell_back: bool = False
    """True if its switches no longer fold, and its ranks go on over TCP."""
    slots: int = 0
    """Slots of each data stream; 0 if the job is not folded."""
    reason: str = ""
    """Why the job is not folded, or why it is broken."""
    leaving: set[int] = field(default_factory=set)
    """Ranks that have all their results and want to leave; they may, once no other rank lacks one."""
    departure: Departure | None = None
    """The departure that they wait for; None: no rank of it, while it was folded, has wanted to leave."""
    left: set[int] = field(default_factory=set)
    said: dict[int, RankLeft] = field(default_factory=dict)
    """Events that tell the others of ranks that have left in order."""
    lost: dict[int, RankLost] = field(default_factory=dict)
    """Ranks whose connection broke before they left."""
    watchers: dict[int, asyncio.Queue[Event | None]] = field(default_factory=dict)
    """Queue of events for each rank with a Watch stream; None ends the stream."""
    reports: dict[int, RankReport] = field(default_factory=dict)
    asked: float = 0.0
    """Time of the last question to its ranks about their progress, in monotonic seconds; 0: never."""
    left_early: bool = False
    """True if a rank has left while another one may have lacked a result."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when ranks leave, when one settles that others wait for, and when rounds end; see `notify`."""
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    planning: asyncio.Task[list[Plan]] | None = None
    step: ConnectStep | None = None
    """The last second step of its RC ranks; None if there was none, or if they are no more to fold."""
    ready: asyncio.Future[list[Plan]] | None = None
    """The plans of the windowed ranks of a job with RC ranks, once the first step has ended; None: there was none."""
    ticket: Secret = field(default_factory=Secret)
    """The ticket that some of its ranks have by now (`ticket.holders`)."""
    shared: str = ""
    """The common parts of its ranks' plans (`wire.plan`), once a plan was made."""
    rate: float | None = None
    """`machines.slowest` of its hosts, likewise."""
    limits: dict[int, RateLimit] = field(default_factory=dict)
    """The rate limit of each rank's requests."""
    tenant: Tenant = field(default_factory=lambda: Tenant(DEFAULT_TENANT))
    """The tenant to whom it belongs."""
    change: Change | None = None
    """The change of its ranks from the former incarnation; None: they have all joined."""
    gathering: Gathering | None = None
    """The ranks that have stopped to go on as a new incarnation; None: none has."""
    successor: Job | None = None
    """The next incarnation, with its remaining ranks."""
    places: dict[int, int] = field(default_factory=dict)
    """This job's ranks in its successor, by their numbers here."""

    parent_epoch: int = 0
    """Epoch of the job of which this one is a group (groups.py); 0: it is none."""
    members: list[int] = field(default_factory=list)
    """A group's ranks by their numbers in its job."""
    uses: Footprint = field(default_factory=lambda: footprint([]))
    """The part of the fabric that ``trees`` used at the last call of `footprint`."""
    has_rc: bool = False
    """True if a rank with a NIC has asked to join."""
    best_over: object = None
    """The graph over which its trees were found to be the best ones; None: they were not, or have changed since."""
    used: float = 0.0
    """Time at which its ranks' reports last showed progress, in monotonic seconds; 0: never."""

    def __str__(self) -> str:
        return f"{'group' if self.is_group else 'job'} {self.name!r}"

    @property
    def is_group(self) -> bool:
        """True for a group: a job of some ranks of another job."""
        return self.parent_epoch > 0

    @property
    def parent_name(self) -> str:
        """The name of the job of which it is a group; empty: it is none."""
        return self.name.rpartition(GROUP_MARK)[0]

    @property
    def footprint(self) -> Footprint:
        """The part of the fabric that its trees use."""
        if self.uses.trees is not self.trees:
            self.uses, self.best_over = footprint(self.trees), None
        return self.uses

    @property
    def missing(self) -> list[int]:
        """Ranks that have not joined."""
        return [rank for rank in range(self.world) if rank not in self.joins]

    @property
    def is_complete(self) -> bool:
        """True if all ranks have joined."""
        return len(self.joins) == self.world

    @property
    def rc_ranks(self) -> list[int]:
        """Ranks that fold with queue pairs of their NICs, in ascending order."""
        return sorted(rank for rank, join in self.joins.items() if join.kind == "rc")

    @property
    def udp_ports(self) -> list[int]:
        """The UDP ports at which its ranks receive, by rank, once all have joined."""
        return [self.joins[rank].udp_port for rank in range(self.world)]

    @property
    def has_rails(self) -> bool:
        """True if it has several rails, which are jobs of their own."""
        return any(join.rails for join in islice(self.joins.values(), 1))  # all the others have said the same

    @property
    def is_connecting(self) -> bool:
        """True while the job waits, after its first plan, until its RC ranks have reported the queue pairs of their
        NICs."""
        return self.ready is not None and not self.ready.done()

    @property
    def may_yield(self) -> bool:
        """True where its ranks can be halted and go on over TCP without its slots; ranks with NICs cannot."""
        return (self.state == "active" and not self.stands_still and not self.awaited and not self.leaving
                and not self.rc_ranks)

    @property
    def is_over(self) -> bool:
        """True if it has ended."""
        return self.state == "finished"

    @property
    def is_empty(self) -> bool:
        """True if all ranks have left or are lost."""
        return len(self.left) + len(self.lost) >= self.world and len(self.left | self.lost.keys()) == self.world

    def streams_of(self, rank: int) -> list[Stream]:
        """The streams that a rank knows, in the order in which it names them (`wire.jobs.AskMissing`)."""
        return [stream for stream in self.announced if rank in stream.ranks]

    @property
    def stands_still(self) -> bool:
        """True if its ranks are halted, waiting for new trees."""
        return self.round is not None and not self.round.plans.done()

    def notify(self) -> None:
        """Wake all who wait for ``changed``."""
        self.changed.set()
        self.changed = asyncio.Event()
        self.check_opened()

    @property
    def opening(self) -> list[int]:
        """Ranks that are there and have not said whether they could open what they fold with, in ascending order."""
        return sorted(set(range(self.world)) - self.opened.keys() - self.left - self.lost.keys())

    def check_opened(self) -> None:
        """Set ``all_opened`` once no rank is missing there."""
        if (not self.all_opened.is_set() and self.opened
                and len(self.opened) + len(self.left) + len(self.lost) >= self.world and not self.opening):
            self.all_opened.set()

    def broadcast(self, event: Event | None, *, but: Collection[int] = ()) -> None:
        """Send an event to every rank with a Watch stream, ``but`` some; None ends the streams."""
        for rank, queue in self.watchers.items():
            if rank not in but:
                queue.put_nowait(event)

    @property
    def parts(self) -> dict[str, int]:
        """The job's parts of the switches' desired state, one for each tree: name, and epoch of its slots."""
        return self.parts_of(self.streams)

    def parts_of(self, streams: Iterable[Stream]) -> dict[str, int]:
        """The parts of these streams."""
        return {self.part_of(stream.epoch): stream.epoch for stream in streams}

    def part_of(self, epoch: int) -> str:
        """Name of the part with this epoch."""
        return f"job {self.name} epoch {epoch}"
