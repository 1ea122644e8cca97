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
from typing import TYPE_CHECKING, Final

from netfold.wire.jobs import Settle

if TYPE_CHECKING:
    from netfold.controller.jobs.job import Job

log = logging.getLogger("netfold.controller")

ANSWER_TIMEOUT: Final = 1.0
"""Seconds for the next one of the other ranks to answer Settle; they do so milliseconds after their last result."""
HALTED_TIMEOUT: Final = 10.0
"""The same while the job's ranks are halted for new trees, or have yet to register with a new controller."""


class Departure:
    """The wait of ranks of one job that want to leave: all of them wait for the same, once.

    A rank without a Watch stream cannot be asked, and is not waited for; one that has not registered with a new
    controller yet will be.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self.pending = (job.watchers.keys() | job.awaited) - job.left - job.lost.keys()
        """Ranks that may lack results."""
        self._asked: set[int] = set()
        """Ranks that have been sent Settle."""
        self._end: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Wait until no rank lacks a result; after the timeout, log that and set ``job.left_early``."""
        for other in (self.pending & self._job.watchers.keys()) - self._asked:
            self._asked.add(other)
            self._job.watchers[other].put_nowait(Settle())
        if self.pending:
            if self._end is None or self._end.done():
                self._end = asyncio.create_task(self._wait(), name=f"{self._job}: ranks leave")
            await asyncio.shield(self._end)

    def settle(self, rank: int) -> None:
        """A rank lacks nothing, or is not waited for any more."""
        if rank in self.pending:
            self.pending.remove(rank)
            self._job.notify()

    def asks(self, rank: int) -> bool:
        """True if a rank that begins to watch must be sent Settle."""
        if rank in self._asked or rank in self._job.leaving:
            return False
        self._asked.add(rank)
        self.pending.add(rank)
        return True

    async def _wait(self) -> None:
        job, left, since = self._job, len(self.pending), time.monotonic()
        while self.pending and not job.is_over:
            changed, halted = job.changed, job.stands_still or bool(job.awaited)
            try:
                async with asyncio.timeout(since + HALTED_TIMEOUT - time.monotonic() if halted else ANSWER_TIMEOUT):
                    await changed.wait()
            except TimeoutError:
                if not halted and (job.stands_still or job.awaited):
                    continue
                job.left_early = True
                log.warning("%s: ranks leave although rank %s may lack results", job,
                            ", ".join(map(str, sorted(self.pending))))
                return
            if len(self.pending) < left:
                left, since = len(self.pending), time.monotonic()


async def wait_for_others(job: Job, rank: int) -> None:
    """Wait until no other rank can need this one, or has not said so within the timeout."""
    job.leaving.add(rank)
    if not job.streams and not job.fell_back:  # the job is not folded
        return
    if job.departure is None:
        job.departure = Departure(job)
    job.departure.settle(rank)
    await job.departure.wait()


def registered(job: Job, rank: int) -> bool:
    """True if a rank that begins to watch must be sent Settle, because others wait to leave."""
    return job.departure is not None and job.departure.asks(rank)


def settled(job: Job, rank: int) -> None:
    """A rank has all results of what it has begun, or is gone: nobody who wants to leave waits for it."""
    if job.departure is not None:
        job.departure.settle(rank)
