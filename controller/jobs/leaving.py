# SPDX-License-Identifier: Apache-2.0
"""How a rank leaves: not before everybody else has the results that it has.

    rank --Leave--> controller --Settle--> every other rank that is not leaving itself
                        '<------Settled------- when what it has begun is finished

A rank that has left cannot repeat what it has sent, and after a switch has lost its slots somebody may need that.  A
rank leaves after its last operation; since it has all of that one's results, all ranks have begun it, and one that says
that it has finished what it has begun lacks nothing of the leaving rank's.  So whatever goes away later, nobody who is
still there needs who has left.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from netfold.controller.jobs.job import Job
from netfold.wire.jobs import Settle

log = logging.getLogger("netfold.controller")

PATIENCE: Final = 1.0
"""Seconds for the others' answers; an answer takes milliseconds after their last result."""
MOST: Final = 10.0
"""The same while the job stands still for other trees."""


async def goodbye(job: Job, rank: int) -> None:
    """Wait until nobody may need the rank any more; where that takes too long, the job is in debt."""
    job.leaving.add(rank)
    job.stir()
    if not job.streams:  # the switches hold nothing for anybody
        return
    for other in _owing(job) - job.asked:
        job.asked.add(other)
        job.watchers[other].put_nowait(Settle())
    try:
        async with asyncio.timeout(MOST):
            while _owing(job):
                news = job.news
                async with asyncio.timeout(None if job.stands_still else PATIENCE):
                    await news.wait()
    except TimeoutError:
        job.in_debt = True
        log.warning("%s: rank %d leaves although nobody knows whether rank %s has all results", job, rank,
                    ", ".join(map(str, sorted(_owing(job)))))


def settled(job: Job, rank: int) -> None:
    """The rank has all results of what it has begun."""
    job.settled.add(rank)
    job.stir()


def _owing(job: Job) -> set[int]:
    """Ranks that may lack something; those that do not watch cannot be asked."""
    return job.watchers.keys() - job.leaving - job.settled - job.left - job.lost.keys()
