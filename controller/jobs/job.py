# SPDX-License-Identifier: Apache-2.0
"""One job: who is in it, what it has of the switches, and how far its life has come."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from netfold.fabric.slots import Stream
from netfold.fabric.trees import Tree
from netfold.wire.jobs import Event, Join, Plan, RankLost, RankReport

if TYPE_CHECKING:
    from netfold.controller.jobs.recovery import Round

JobState = Literal["gathering", "planning", "active", "leaving", "broken", "finished"]


@dataclass
class Job:
    """One incarnation of a job."""

    name: str
    world: int
    state: JobState = "gathering"
    joins: dict[int, Join] = field(default_factory=dict)
    epoch: int = 0
    hosts: list[str] = field(default_factory=list)
    """Names by rank, once all are in."""
    home: list[Tree] = field(default_factory=list)
    """The trees that it had at first."""
    trees: list[Tree] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    """What the switches hold for it: each tree's sum and max."""
    known: list[Stream] = field(default_factory=list)
    """The same as the ranks know them: while they stand still, the streams before."""
    held: int = 0
    """Epoch of ``streams`` in the switches; the first one's is also the job's name for its ranks."""
    sessions: dict[str, int] = field(default_factory=dict)
    """Of the switches of its trees, when the slots were taken."""
    round: Round | None = None
    """The last time that it had to stand still."""
    stays: str = ""
    """Why its trees are not where they should be."""
    slots: int = 0
    """Of each data stream; 0 where nothing folds."""
    reason: str = ""
    """Why nothing folds, or why the job is broken."""
    leaving: set[int] = field(default_factory=set)
    """Ranks that have every result and want to go: once nobody lacks one, they have left."""
    settled: set[int] = field(default_factory=set)
    """Ranks that have said since that they lack none."""
    asked: set[int] = field(default_factory=set)
    """Ranks that were asked to say so."""
    left: set[int] = field(default_factory=set)
    lost: dict[int, RankLost] = field(default_factory=dict)
    """Ranks that are gone without having left."""
    watchers: dict[int, asyncio.Queue[Event | None]] = field(default_factory=dict)
    """What ranks that watch are told next; None ends it."""
    reports: dict[int, RankReport] = field(default_factory=dict)
    in_debt: bool = False
    """A rank has left although another lacked a result, as far as anybody knew."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Of ranks that come to their end, and of rounds; see `stir`."""
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    planning: asyncio.Task[list[Plan]] | None = None

    def __str__(self) -> str:
        return f"job {self.name!r}"

    @property
    def missing(self) -> list[int]:
        """Ranks that have not joined."""
        return [rank for rank in range(self.world) if rank not in self.joins]

    @property
    def is_empty(self) -> bool:
        """True where no rank is in it any more."""
        return len(self.left | self.lost.keys()) == self.world

    @property
    def stands_still(self) -> bool:
        """True while its ranks halt for other trees."""
        return self.round is not None and not self.round.plans.done()

    def stir(self) -> None:
        """Wakes who waits for news."""
        self.news.set()
        self.news = asyncio.Event()

    def tell(self, event: Event | None) -> None:
        """To every rank that watches."""
        for queue in self.watchers.values():
            queue.put_nowait(event)

    @property
    def part(self) -> str:
        """Its name among the parts of the switches' desired state."""
        return self.part_of(self.held)

    def part_of(self, epoch: int) -> str:
        """The part's name under an epoch."""
        return f"job {self.name} epoch {epoch}"
