# SPDX-License-Identifier: Apache-2.0
"""Quotas: what one tenant may take of the fabric, so that there is something left for the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from netfold.controller.jobs.job import Job
from netfold.fabric.folding.trees import Tree
from netfold.fabric.graph import Tenant
from netfold.rpc.rpc import Code, Refusal

MAX_GATHERING: Final = 16384
"""Most ranks of one tenant that wait for others to join: four times the largest job."""


def check_join(name: str, tenant: Tenant, jobs: Sequence[Job]) -> None:
    """Check that a tenant may have one rank more that waits, and one job more unless it has one of this name.  Raises
    Refusal.

    name  of the job, or of that of which a group is joined
    jobs  all that have not ended
    """
    mine = [job for job in jobs if job.tenant.name == tenant.name]
    waiting = sum(len(job.joins) for job in mine if job.state == "gathering")
    if waiting >= MAX_GATHERING:
        raise Refusal(Code.RESOURCE_EXHAUSTED, f"tenant {tenant.name!r}: {waiting} ranks wait for others to join, as "
                                               "many as a tenant may have. Start the missing ranks, or end those "
                                               "that wait")
    others = {job.name for job in mine if not job.is_group and not job.has_rails} - {name}
    if tenant.jobs is not None and len(others) >= tenant.jobs:
        raise Refusal(Code.RESOURCE_EXHAUSTED, f"tenant {tenant.name!r}: it has {len(others)} jobs, as many as it may "
                                               f"have ({', '.join(sorted(others)[:8])}). End one, or ask whoever runs "
                                               "the fabric for more (`jobs` of the [[tenant]])")


def to_preempt(job: Job, others: Sequence[Job]) -> Job | None:
    """Whose slots a job may take that finds too few on the switches of its trees: the latest job of the lowest priority
    below its own; None: nobody's.  Jobs with RC ranks keep theirs, since NICs cannot go on over TCP with what they have
    under way.

    others  jobs that hold slots, the oldest first
    """
    wanted = {fold.switch for tree in job.trees for fold in tree.folds}
    lower = [
        other for other in reversed(others)
        if other.tenant.priority < job.tenant.priority and other.may_yield
        and any(wanted & stream.bases.keys() for stream in other.streams)
    ]
    return min(lower, key=lambda other: other.tenant.priority, default=None)


def room(tenant: Tenant, planned: Sequence[Tree], jobs: Sequence[Job]) -> int | None:
    """Slots that a tenant may still take of every switch of these trees; None: as many as there are.

    jobs  all that hold slots
    """
    if tenant.slots is None:
        return None
    return max(0, tenant.slots - held(planned, (job for job in jobs if job.tenant.name == tenant.name)))


def held(planned: Sequence[Tree], jobs: Iterable[Job]) -> int:
    """Most slots that these jobs hold together of any one switch of these trees."""
    found: Counter[str] = Counter()
    for job in jobs:
        for stream in job.streams:
            found.update(dict.fromkeys(stream.bases, stream.slots))
    return max((found[fold.switch] for tree in planned for fold in tree.folds), default=0)
