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
from typing import Final

from netfold.controller.jobs.job import Job
from netfold.wire.jobs import Settle

log = logging.getLogger("netfold.controller")

ANSWER_TIMEOUT: Final = 1.0
"""Seconds for the other ranks to answer Settle; they do so milliseconds after their last result."""
HALTED_TIMEOUT: Final = 10.0
"""Seconds for the answers while the job's ranks are halted for new trees, or have yet to register with a new
controller."""


async def wait_for_others(job: Job, rank: int) -> None:
    """Wait until no other rank can need this one; after the timeout, log that and set ``job.left_early``."""
    job.leaving.add(rank)
    job.notify()
    if not job.streams and not job.fell_back:  # the job is not folded
        return
    for other in (_unsettled(job) & job.watchers.keys()) - job.settle_sent:
        job.settle_sent.add(other)
        job.watchers[other].put_nowait(Settle())
    try:
        async with asyncio.timeout(HALTED_TIMEOUT):
            while _unsettled(job):
                changed = job.changed
                async with asyncio.timeout(None if job.stands_still or job.awaited else ANSWER_TIMEOUT):
                    await changed.wait()
    except TimeoutError:
        job.left_early = True
        log.warning("%s: rank %d leaves although rank %s may lack results", job, rank,
                    ", ".join(map(str, sorted(_unsettled(job)))))


def registered(job: Job, rank: int) -> bool:
    """Whether a rank that begins to watch must be sent Settle, because others wait to leave."""
    if not job.streams or not job.leaving or rank not in _unsettled(job) - job.settle_sent:
        return False
    job.settle_sent.add(rank)
    return True


def settled(job: Job, rank: int) -> None:
    """Record that a rank has all results of what it has begun."""
    job.settled.add(rank)
    job.notify()


def _unsettled(job: Job) -> set[int]:
    """Ranks that may lack results.  Those without a Watch stream cannot be asked, but those who have not registered
    with a new controller yet will be."""
    return (job.watchers.keys() | job.awaited) - job.leaving - job.settled - job.left - job.lost.keys()
