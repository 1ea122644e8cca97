# SPDX-License-Identifier: Apache-2.0
"""A rank leaves only when every other rank has the results that it has.

    rank --Leave--> controller --Settle--> every other rank that is not leaving itself
                        '<------Settled------- when what it has begun is finished

A rank that has left cannot retransmit its packets, and after a switch has lost its slots another rank may need them.
A rank leaves after its last operation; since it has all results of that one, every rank has begun it, and a rank that
has finished what it has begun (Settled) lacks nothing of the leaving rank.  So whatever fails later, no remaining rank
needs one that has left.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from netfold.controller.jobs.job import Departure, Job
from netfold.wire.jobs import Settle

log = logging.getLogger("netfold.controller")

ANSWER_TIMEOUT: Final = 1.0
"""Seconds for the next one of the other ranks to answer Settle; they do so milliseconds after their last result."""
HALTED_TIMEOUT: Final = 10.0
"""The same while the job's ranks are halted for new trees, or have yet to register with a new controller."""


async def wait_for_others(job: Job, rank: int) -> None:
    """Wait until no other rank can need this one.  After the timeout, log that and set ``job.left_early``."""
    job.leaving.add(rank)
    if not job.streams and not job.fell_back:  # the job is not folded
        return
    departure = job.departure
    if departure is None:
        departure = job.departure = Departure((job.watchers.keys() | job.awaited) - job.left - job.lost.keys() - {rank})
        for other in departure.pending & job.watchers.keys():  # others are asked once they watch (registered)
            departure.asked.add(other)
            job.watchers[other].put_nowait(Settle())
    settled(job, rank)
    if departure.pending:
        if departure.end is None or departure.end.done():
            departure.end = asyncio.create_task(_wait(job, departure), name=f"{job}: ranks leave")
        await asyncio.shield(departure.end)


async def _wait(job: Job, departure: Departure) -> None:
    left, since = len(departure.pending), time.monotonic()
    while departure.pending and not job.is_over:
        changed, halted = job.changed, job.stands_still or bool(job.awaited)
        try:
            async with asyncio.timeout(since + HALTED_TIMEOUT - time.monotonic() if halted else ANSWER_TIMEOUT):
                await changed.wait()
        except TimeoutError:
            if not halted and (job.stands_still or job.awaited):
                continue
            job.left_early = True
            log.warning("%s: ranks leave although rank %s may lack results", job,
                        ", ".join(map(str, sorted(departure.pending))))
            return
        if len(departure.pending) < left:
            left, since = len(departure.pending), time.monotonic()


def registered(job: Job, rank: int) -> bool:
    """True if a rank that begins to watch must be sent Settle, because others wait to leave."""
    departure = job.departure
    if departure is None or rank in departure.asked or rank in job.leaving:
        return False
    departure.asked.add(rank)
    departure.pending.add(rank)
    return True


def settled(job: Job, rank: int) -> None:
    """A rank has all results of what it has begun, or is gone: nobody who wants to leave waits for it."""
    if job.departure is not None and rank in job.departure.pending:
        job.departure.pending.remove(rank)
        job.notify()
