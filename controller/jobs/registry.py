# SPDX-License-Identifier: Apache-2.0
"""The jobs of one fabric by where they stand, and which of them a rank's request is about.

A name has one incarnation that holds it; earlier ones end beside it until all of their ranks have gone, and finished
ones are kept for a while, to be shown.  A request names job, epoch and rank, and proves with the rank's secret
(fabric_key.py) that it comes from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, Protocol

from netfold.controller.jobs import fabric_key
from netfold.controller.jobs.admission import refuse
from netfold.controller.jobs.callers import CALLER
from netfold.controller.jobs.job import Job
from netfold.controller.jobs.reforming import evicted
from netfold.fabric.folding.trees import Tree
from netfold.rpc.limits import RateLimit
from netfold.rpc.rpc import Code
from netfold.wire.plan import Secret

FINISHED: Final = 16
"""Number of finished jobs that `netfold status` still shows."""
RANK_RATE: Final = 50
"""Requests a second of one rank, RANK_BURST at once: one that loses a path makes one for each queue pair there."""
RANK_BURST: Final = 500


class RankRequest(Protocol):
    """The common fields of a rank's requests: its identity, and the proof."""

    @property
    def job(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def secret(self) -> Secret: ...


class Registry:
    """All incarnations of jobs that the controller knows."""

    def __init__(self) -> None:
        self.key = fabric_key.draw()
        """The fabric key, from which the secrets of ranks are derived."""
        self.named: dict[str, Job] = {}
        """The incarnation that holds a name, by name."""
        self.ending: list[Job] = []
        """Incarnations that have lost their name to a later one, and have not ended."""
        self._finished: deque[Job] = deque(maxlen=FINISHED)

    def all(self) -> list[Job]:
        """Every job that `netfold status` shows, running ones first, groups after their jobs."""
        running = list(self.unfinished())
        place = {(job.name, job.epoch): at for at, job in enumerate(running) if not job.is_group}
        last = len(running)
        running.sort(key=lambda job: place.get(
            (job.parent_name, job.parent_epoch) if job.is_group else (job.name, job.epoch), last) + job.is_group / 2)
        return [*running, *self._finished]

    def groups_of(self, job: Job) -> list[Job]:
        """The groups of a job that have not ended."""
        of = job.name, job.epoch, job.tenant.name
        return [other for other in self.unfinished()
                if other.is_group and (other.parent_name, other.parent_epoch, other.tenant.name) == of]

    def parent_of(self, group: Job) -> Job | None:
        """The job of which this is a group, where it has not ended."""
        of = group.parent_epoch, group.tenant.name
        return next((job for job in self._named(group.parent_name) if (job.epoch, job.tenant.name) == of), None)

    def unfinished(self) -> Iterator[Job]:
        """Every job that has not ended."""
        yield from list(self.named.values())
        yield from list(self.ending)

    def _named(self, name: str) -> Iterator[Job]:
        """Every job of this name that has not ended, without a look at the others: any rank's request asks for it, and
        there may be thousands."""
        if name in self.named:
            yield self.named[name]
        for job in list(self.ending):
            if job.name == name:
                yield job

    def active(self, name: str | None = None) -> list[Job]:
        """Jobs that hold slots: all of them, or those of this name."""
        return [job for job in self.unfinished() if job.streams and name in (None, job.name)]

    def folding_beside(self, job: Job) -> list[tuple[list[Tree], list[str]]]:
        """The trees and hosts of all other jobs that fold."""
        return [(other.trees, other.hosts) for other in self.active() if other is not job and other.trees]

    def before(self, job: Job) -> list[Job]:
        """Earlier incarnations of a job that have not ended."""
        return [old for old in self.ending
                if old is not job and (old.name, old.tenant.name) == (job.name, job.tenant.name)]

    def retire(self, job: Job) -> None:
        """A job loses its name to a later incarnation, and ends beside it."""
        if job not in self.ending:
            self.ending.append(job)

    def finish(self, job: Job) -> None:
        """A job has ended."""
        if self.named.get(job.name) is job:
            del self.named[job.name]
        if job in self.ending:
            self.ending.remove(job)
        if not job.is_group:  # a job may make and free any number of them
            self._finished.appendleft(job)

    # ---- requests --------------------------------------------------------------------------------------------------

    def find(self, request: RankRequest) -> Job:
        """The incarnation of a job from whose rank a request comes, which its secret proves.  Raises Refusal."""
        who = self.proven(request)
        for job in self._named(request.job):
            if _is_of(job, request) and request.rank in job.joins:
                limit = job.limits.setdefault(request.rank, RateLimit(RANK_RATE, RANK_BURST))
                if seconds := limit.wait():
                    refuse(Code.RESOURCE_EXHAUSTED, f"{who}: expected at most {RANK_RATE} requests a second, got more. "
                                                    f"Wait {seconds:.2f} s")
                return job
        refuse(Code.FAILED_PRECONDITION, f"{who}: there is no such rank; its job may have ended, or the controller was "
                                         "started anew")

    def named_by(self, request: RankRequest) -> Job | None:
        """The incarnation that a request names, which nothing proves yet; None: nobody knows it."""
        return next((job for job in (*self._named(request.job), *self._finished) if _is_of(job, request)), None)

    def proven(self, request: RankRequest) -> str:
        """The rank from which a request comes, in words.  Raises Refusal where its secret does not prove it."""
        who = f"job {request.job!r}, epoch {request.epoch}, rank {request.rank}"
        named = (CALLER.get().tenant.name, request.job, request.epoch, request.rank)
        if not fabric_key.rank_secret(self.key, *named).matches(request.secret):
            got = "another one" if request.secret.value else "none"
            refuse(Code.PERMISSION_DENIED, f"{who}: secret: expected that of this rank's plan, got {got}. A rank "
                                           "speaks for itself alone; if the fabric key was lost, join anew")
        return who

    def evicts(self, request: RankRequest) -> Job | None:
        """The job to which a rank belonged that was taken for dead, and says that it lives.  Raises Refusal where its
        secret does not prove it."""
        for job in (*self._named(request.job), *self._finished):
            if _is_of(job, request) and request.rank in job.lost:
                self.proven(request)
                return job
        return None

    def refuse_evicted(self, request: RankRequest) -> None:
        """Tell a rank that was taken for dead that it was.  Raises Refusal."""
        job = self.evicts(request)
        if job is not None:
            refuse(Code.ABORTED, evicted(job, request.rank))


def _is_of(job: Job, request: RankRequest) -> bool:
    """True if a request names this incarnation of a job of the caller's tenant."""
    said = (request.job, request.epoch, CALLER.get().tenant.name)
    return (job.name, job.epoch, job.tenant.name) == said
