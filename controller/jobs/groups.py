# SPDX-License-Identifier: Apache-2.0
"""Groups: some ranks of a running job that fold by themselves, as a job of their own.

    job 'digits', ranks 0 1 2 3
        group 'digits#0-2.1', ranks 0 1: its own plan, epoch, slots, secret, Watch, recovery
        group 'digits#1-3.1', ranks 0 1

A group's ranks join as those of any job, and each proves with its secret of the parent that it is the rank there which
it says, so that nobody else is a rank of the group.  A group begins folded, or its ranks are refused with the reason,
and go on as they were.  It ends when its ranks leave, or when its job ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import structs

from netfold.controller.jobs import quotas
from netfold.controller.jobs.admission import refuse
from netfold.controller.jobs.job import GROUP_MARK, Job
from netfold.controller.jobs.registry import Registry
from netfold.fabric.folding.pools import Exhausted
from netfold.fabric.folding.slots import Sizes
from netfold.fabric.folding.trees import Tree
from netfold.rpc.rpc import Code
from netfold.wire.jobs import GroupOf, Join

MAX_GROUPS: Final = 64
"""Most groups of one rank at once."""
LISTED: Final = 8
"""Members up to which a group's name lists them."""
IDLE_SECONDS: Final = 10.0
"""Seconds without anything new in its ranks' reports after which a group's slots may be another's."""


def name_of(group: GroupOf) -> str:
    """The name of a group: that of its job, its ranks there, or a digest of many, and its number."""
    members = "-".join(map(str, group.members))
    if len(group.members) > LISTED:
        members = f"{len(group.members)}ranks-{hashlib.sha256(members.encode()).hexdigest()[:16]}"
    return f"{group.job}{GROUP_MARK}{members}.{group.number}"


def taken_in(request: Join, group: GroupOf, registry: Registry) -> tuple[Join, Job]:
    """The request as that of a rank of the group, without its secret of the parent, and the job of which it is a group.
    Raises Refusal where it does not come from the rank of the parent that it names."""
    parent = registry.find(group)
    who = f"{parent}, rank {group.rank}, a group of the ranks {_listed(group.members)}"
    if parent.is_group:
        refuse(Code.INVALID_ARGUMENT, f"{who}: expected a job, got a group of one: name the ranks in the job itself")
    if parent.state not in ("active", "leaving", "broken"):
        refuse(Code.FAILED_PRECONDITION, f"{who}: expected a job that runs, got one that is {parent.state}")
    if parent.successor is not None:
        refuse(Code.FAILED_PRECONDITION, f"{who}: its ranks go on as another incarnation: make the group there")
    if request.joining or request.job != parent.name:
        refuse(Code.INVALID_ARGUMENT, f"{who}: job, joining: expected {parent.name!r} and false, got {request.job!r} "
                                      f"and {request.joining}")
    if (len(set(group.members)) != len(group.members) or len(group.members) != request.world
            or not all(0 <= member < parent.world for member in group.members)):
        refuse(Code.INVALID_ARGUMENT, f"{who}: members: expected {request.world} different ranks of "
                                      f"0..{parent.world - 1}")
    if group.members[request.rank] != group.rank:
        refuse(Code.PERMISSION_DENIED, f"{who}: rank {request.rank} of the group is rank "
                                       f"{group.members[request.rank]} of the job: a rank speaks for itself alone")
    if request.address != parent.joins[group.rank].address:
        refuse(Code.PERMISSION_DENIED, f"{who}: address: expected {parent.joins[group.rank].address}, as in the job, "
                                       f"got {request.address}")
    if gone := sorted(set(group.members) & (parent.left | parent.lost.keys())):
        refuse(Code.FAILED_PRECONDITION, f"{who}: the ranks {_listed(gone)} of the job are gone")
    name = name_of(group)
    others = sum(group.rank in other.members for other in registry.groups_of(parent) if other.name != name)
    if others >= MAX_GROUPS:
        refuse(Code.RESOURCE_EXHAUSTED, f"{who}: it is in {others} groups that fold, as many as a rank may be; close "
                                        "some")
    return structs.replace(request, job=name, group=None), parent


def check_same(job: Job, parent: Job, group: GroupOf) -> None:
    """Check that a group that others have joined is this one.  Raises Refusal."""
    if (job.parent_epoch, job.members) != (parent.epoch, group.members):
        refuse(Code.ALREADY_EXISTS, f"{job}: another group has this name, of the ranks {_listed(job.members)} of "
                                    f"epoch {job.parent_epoch}; it must end before")


def idle(job: Job, others: Iterable[Job], now: float) -> Job | None:
    """A group whose slots a job may take that finds too few: of its tenant's at switches of the job's trees, the one
    that was idle for the longest time, IDLE_SECONDS at least by its ranks' reports; None: there is none.

    others  jobs that hold slots
    now     in monotonic seconds
    """
    wanted = {fold.switch for tree in job.trees for fold in tree.folds}
    found = [
        other for other in others
        if other.is_group and other.tenant.name == job.tenant.name and other.may_yield
        and len(other.reports) == other.world and now - other.used >= IDLE_SECONDS
        and any(wanted & stream.bases.keys() for stream in other.streams)
    ]
    return min(found, key=lambda other: other.used, default=None)


def left_by_nics(parent: Job, others: Iterable[Job], planned: Sequence[Tree], sizes: Sizes) -> int:
    """Slots of any one switch that the groups with RDMA NICs of a job leave for another one.  They keep theirs while
    they are idle, since NICs cannot go on over TCP with what they have under way: together they have no more than a job
    may have.  Raises Exhausted if that is not enough for a group.

    others  the job's groups
    """
    kept = quotas.held(planned, (other for other in others if other.rc_ranks))
    if sizes.quota - kept < 2 * sizes.agreement:
        raise Exhausted(f"the groups of {parent} with RDMA NICs keep {kept} slots of one switch, of {sizes.quota} that "
                        f"they may have together, and another one needs {2 * sizes.agreement}: close some")
    return sizes.quota - kept


def _listed(ranks: Iterable[int]) -> str:
    some = list(ranks)
    return ", ".join(map(str, some[:LISTED])) + (f" and {len(some) - LISTED} more" if len(some) > LISTED else "")
