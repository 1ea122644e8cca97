# SPDX-License-Identifier: Apache-2.0
"""One re-planning of a job's trees, during which its ranks are halted (recovery.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from netfold.fabric.folding.slots import Stream
from netfold.wire.jobs import Resume
from netfold.wire.plan import Plan
from netfold.wire.roce import psn_age


@dataclass
class Round:
    """Where a re-planning stands."""

    number: int
    why: str
    began: float
    plans: asyncio.Future[list[Plan]]
    """The ranks' plans; set once all ranks have stopped and the switches are ready."""
    plans_to_connect: asyncio.Future[list[Plan]]
    """The plans of RC ranks, by which they connect queue pairs (connecting.py): set once all ranks have stopped."""
    resumes: dict[int, Resume] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    yields: bool = False
    """True if a job of a higher priority needs the slots: the ranks go on over TCP as soon as all have stopped."""
    halt_sent: bool = False
    """True if the ranks have been told to halt."""
    ended: float = 0.0
    problem: str = ""
    """Why there are no trees yet."""
    leftovers: dict[str, int] = field(default_factory=dict)
    """Parts of trees that are not the job's any more, with their epochs.  Their entries stay until every rank has
    stopped: without an entry, a contribution would be routed to the next rank, which might still run and take it for a
    result."""
    cleaning: list[asyncio.Task[None]] = field(default_factory=list)
    """Tasks that remove the leftovers of this round and of earlier ones, once the round is over."""
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the leftovers' resources are needed."""


def next_round(before: Round | None, over: int, why: str) -> Round:
    """The round that follows a job's last one, whose leftovers go now, or with this one where it has failed.

    before  the last round that this controller began; None: it began none
    over    number of the job's last round that is over
    """
    loop = asyncio.get_running_loop()
    number = max(over, 0 if before is None else before.number) + 1
    here = Round(number, why, time.monotonic(), loop.create_future(), loop.create_future())
    if before is not None:
        before.hurry.set()
        here.cleaning += [task for task in before.cleaning if not task.done()]
        here.leftovers |= before.leftovers
    return here


def rewound(streams: Sequence[Stream], resumes: Mapping[int, Resume]) -> list[Stream]:
    """A job's new streams, each starting at the lowest PSN whose result one of its ranks lacks."""
    lacking: dict[int, Iterator[int]] = {  # by rank, stream after stream
        rank: iter([psn for _, psn in sorted(resume.missing.items())]) for rank, resume in resumes.items()
    }

    def start(stream: Stream) -> int:
        psns = [next(lacking[rank]) for rank in stream.ranks]
        return min(psns, key=lambda psn: psn_age(psn, psns[0]))

    return [replace(stream, psn=start(stream)) for stream in streams]
