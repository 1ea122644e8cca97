# SPDX-License-Identifier: Apache-2.0
"""The behaviour of ranks and switches when part of the fabric fails under a running job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from netfold.controller.jobs.job import Job
from netfold.controller.jobs.recovery import Recovery
from netfold.controller.switch import tables
from netfold.wire import roce
from netfold.wire.jobs import Resume
from netfold.wire.plan import Plan, RankStream
from support.control.controller import until
from support.control.jobs import Rig


def streams(plan: Plan) -> list[RankStream]:
    """All streams of a rank, in order."""
    return [stream for tree in plan.trees for stream in (tree.data, tree.agreement)]


def resume(
    plan: Plan, *, ahead: int = 0, timeout: float = 30.0, begun: int = 0, stand_in: str = ""
) -> Resume:
    """The Resume of a rank that has ``ahead`` results of every stream since its plan."""
    missing = {place: (stream.psn + ahead) & roce.PSN_MASK for place, stream in enumerate(streams(plan))}
    return Resume(plan.job, plan.rank, plan.epoch, missing, timeout, plan.rank_secret, begun, stand_in)


async def all_resume(r: Rig, plans: list[Plan], ahead: Mapping[int, int] = {}) -> list[Plan]:
    """Lets all ranks halt, each where it is, and resume."""
    return list(await asyncio.gather(*(
        r.call("Resume", resume(plan, ahead=ahead.get(plan.rank, 0))) for plan in plans
    )))


def lose(r: Rig, name: str) -> None:
    """Take a switch away: it answers nobody any more."""
    r.switches[name].unreachable = True
    r.switches[name].break_session()


def restart(r: Rig, name: str) -> None:
    """Bring a switch back, with nothing in its tables."""
    switch = r.switches[name]
    switch.has_pipeline, switch.state, switch.unreachable = False, {}, False


def connections(r: Rig, name: str) -> set[int]:
    """The connections that a switch folds: the numbers of its queue pairs, without the operation in their last bits."""
    return {dict(key[1])["queue_pair"] >> roce.OPERATION_BITS
            for key in r.switches[name].state if key[0] == tables.CONNECTION}


async def back_and_then(r: Rig, name: str, job: Job, then: Callable[[Recovery], object]) -> None:
    """Bring a switch back whose return lets a job move by choice, and do something else between the moment in which
    that is noticed and the one in which the job begins to move."""
    jobs, recovery = r.controller.jobs, r.controller.jobs.recovery
    await until(lambda: not recovery.background)  # or the round before would notice it at its end
    noticed, jobs.notice = jobs.notice, lambda: None  # type: ignore[method-assign]
    restart(r, name)
    while recovery.background or not await jobs.placement.reason_to_move(job):
        await asyncio.sleep(0)
    recovery.notice([job])
    then(recovery)
    jobs.notice = noticed  # type: ignore[method-assign]
