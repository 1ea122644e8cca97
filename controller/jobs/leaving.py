# SPDX-License-Identifier: Apache-2.0
"""A rank leaves only when every other rank has the results that it has.

    rank --Leave--> controller --Settle--> every other rank that is not leaving itself
                        '<------Settled------- when what it has begun is finished

A rank that has left cannot retransmit its packets, and after a switch has lost its slots another rank may need them.
A rank leaves after its last operation, and Settle names it; since the leaving rank has all of its results, every rank
has begun it, and a rank that has finished it (Settled) lacks nothing of the leaving rank.  So whatever fails later, no
remaining rank needs one that has left.

A rank that has begun a later operation, which can never end, has finished that one, and answers at once.  So only a
rank that still waits for lost packets is waited for, or one that has stopped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from netfold.controller.jobs.job import Departure, Job
from netfold.wire.jobs import Settle

log = logging.getLogger("netfold.controller")

ANSWER_TIMEOUT: Final = 10.0
"""Seconds for the next one of the other ranks to answer Settle.  They do so milliseconds after their last result, which
takes long where links lose packets, where new trees are planned, or where they register with a new controller."""


async def wait_for_others(job: Job, rank: int, folded: int) -> None:
    """Wait until no other rank can need this one.  After the timeout, log that and set ``job.left_early``.

    folded  number of the last operation that has folded on this rank
    """
    job.leaving.add(rank)
    if not job.streams and not job.fell_back:  # the job is not folded
        return
    departure = job.departure
    if departure is None:
        others = (job.watchers.keys() | job.awaited) - job.left - job.lost.keys() - {rank}
        departure = job.departure = Departure(others, Settle(folded))
        for other in departure.pending & job.watchers.keys():  # others are asked once they watch (registered)
            departure.asked.add(other)
            job.watchers[other].put_nowait(departure.question)
    settled(job, rank)
    if departure.pending:
        if departure.end is None or departure.end.done():
            departure.end = asyncio.create_task(_wait(job, departure), name=f"{job}: ranks leave")
        await asyncio.shield(departure.end)


async def _wait(job: Job, departure: Departure) -> None:
    left, since = len(departure.pending), time.monotonic()
    while departure.pending and not job.is_over:
        changed = job.changed
        try:
            async with asyncio.timeout(since + ANSWER_TIMEOUT - time.monotonic()):
                await changed.wait()
        except TimeoutError:
            job.left_early = True
            log.warning("%s: ranks leave although rank %s may lack results", job,
                        ", ".join(map(str, sorted(departure.pending))))
            return
        if len(departure.pending) < left:
            left, since = len(departure.pending), time.monotonic()


def registered(job: Job, rank: int) -> list[Settle]:
    """The questions to a rank that begins to watch, because others wait to leave."""
    departure = job.departure
    if departure is None or rank in departure.asked or rank in job.leaving:
        return []
    departure.asked.add(rank)
    departure.pending.add(rank)
    return [departure.question]


def settled(job: Job, rank: int) -> None:
    """A rank has all results of what it has begun, or is gone: nobody who wants to leave waits for it."""
    if job.departure is not None and rank in job.departure.pending:
        job.departure.pending.remove(rank)
        job.notify()
