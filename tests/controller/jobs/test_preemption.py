# SPDX-License-Identifier: Apache-2.0
"""Priorities: where slots are short, a job of a higher priority folds, and one of a lower priority goes on over TCP."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from netfold.controller.jobs import recovery
from netfold.fabric.folding.slots import Sizes
from netfold.rpc import tokens
from netfold.wire.jobs import Halt
from netfold.wire.plan import Plan
from support.control.connecting import connect, join_all, nics
from support.control.controller import BOUND, until
from support.control.credentials import scopes, tenant
from support.control.jobs import Code, Rig, Watcher, rig
from support.control.recovery import resume

SIZES = Sizes(data=512, agreement=512, quota=1024)
"""Each job has one tree and 1024 of the 16,384 slots of a leaf: jobs that come late have no less."""
FULL = 24
"""More jobs of four ranks than the switches have slots for."""


async def fill(r: Rig, name: str) -> dict[str, list[Plan]]:
    """Jobs of a tenant until the switches are full; those that fold."""
    r.metadata = tokens.metadata(name)
    r.controller.allocator.sizes = SIZES
    folded: dict[str, list[Plan]] = {}
    for number in range(FULL):
        plans = await r.together(4, job=f"{name}{number}")
        if not plans[0].trees:
            for plan in plans:
                await r.leave(plan)
            return folded
        folded[plans[0].job] = plans
    raise AssertionError(f"{FULL} jobs do not fill the switches")


async def watched(r: Rig, plans: list[Plan]) -> list[Watcher]:
    """All ranks of a job watch."""
    return [await r.watch(plan) for plan in plans]

pytestmark = pytest.mark.usefixtures("time_to_answer")


@pytest.fixture(autouse=True)
def time_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks have time to stop."""
    monkeypatch.setattr(recovery, "PREEMPTION_TIMEOUT", BOUND)


def settings(folder: Path) -> dict[str, object]:
    """Tenants of three priorities."""
    tenants = tuple(tenant(folder, name, priority=priority) for name, priority in
                    (("low", -1), ("middle", 0), ("high", 5)))
    return {"tenants": tenants, **scopes(folder)}


async def test_the_latest_job_of_the_lowest_priority_goes_on_over_tcp(tmp_path: Path) -> None:
    """Its ranks halt and get a plan by which one of them stands in for the switches; the other job folds, and all
    others stay as they are."""
    async with rig(tmp_path, **settings(tmp_path)) as r:
        folded = await fill(r, "low")
        latest = folded[list(folded)[-1]]
        watchers = await watched(r, latest)
        others = [await r.watch(plans[0]) for name, plans in folded.items() if plans is not latest]
        r.metadata = tokens.metadata("high")
        joining = asyncio.create_task(r.together(4, job="urgent"))
        halt = await watchers[0].next()
        assert isinstance(halt, Halt)
        assert "'urgent' of priority 5 needs its slots" in halt.why
        r.metadata = tokens.metadata("low")
        after = await asyncio.gather(*(
            r.call("Resume", resume(plan, begun=3, stand_in=f"10.0.0.{plan.rank}:7000")) for plan in latest
        ))
        assert {(plan.stand_in, plan.folds_until) for plan in after} == {("10.0.0.0:7000", 3)}
        assert after[0].reason == halt.why
        urgent = await joining
        assert urgent[0].trees
        kept = {job.name for job in r.controller.jobs.registry.active()}
        assert kept == {"urgent", *folded} - {latest[0].job}
        assert len(others) == len(folded) - 1


async def test_what_a_job_has_yielded_is_freed_without_the_one_that_needed_it(tmp_path: Path) -> None:
    """The operator drops the job of the higher priority while it waits until a slow switch has removed the entries."""
    async with rig(tmp_path, **settings(tmp_path)) as r:
        folded = await fill(r, "low")
        latest = folded[list(folded)[-1]]
        watchers = await watched(r, latest)
        r.metadata = tokens.metadata("high")
        joining = [asyncio.create_task(r.refusal(r.join(rank, job="urgent"))) for rank in (0, 1)]
        assert isinstance(await watchers[0].next(), Halt)
        gate = r.switches["leaf1"].gate = asyncio.Event()
        r.metadata = tokens.metadata("low")
        await asyncio.gather(*(r.call("Resume", resume(plan, stand_in="10.0.0.1:7000")) for plan in latest))
        assert await r.controller.jobs.drop("urgent")
        gate.set()
        assert [code for code, _ in await asyncio.gather(*joining)] == [Code.ABORTED] * 2
        for name in folded:
            assert await r.controller.jobs.drop(name)
        assert set(r.controller.allocator.used().values()) == {0}
        assert r.base_only()


async def test_a_job_that_folds_over_switches_alone_keeps_its_slots(tmp_path: Path) -> None:
    """Its ranks get new trees, and the job that wanted its slots goes unfolded, with the reason."""
    async with rig(tmp_path, **settings(tmp_path)) as r:
        folded = await fill(r, "low")
        latest = folded[list(folded)[-1]]
        watchers = await watched(r, latest)
        r.metadata = tokens.metadata("high")
        joining = asyncio.create_task(r.together(4, job="urgent"))
        assert isinstance(await watchers[0].next(), Halt)
        r.metadata = tokens.metadata("low")
        after = await asyncio.gather(*(r.call("Resume", resume(plan)) for plan in latest))
        assert [(plan.stand_in, bool(plan.trees)) for plan in after] == [("", True)] * 4
        assert not (await joining)[0].trees
        assert "slots in a row" in (await joining)[0].reason


async def fold_nics(r: Rig, name: str, first: int) -> list[Plan]:
    """A job of four RC ranks with queue pairs from ``first`` on; nothing where the switches have no slots for it."""
    plans = list(await asyncio.gather(*join_all(r, ["rc"] * 4, job=name)))
    if plans[0].trees:
        await asyncio.gather(*(connect(r, plan, first) for plan in plans))
        return plans
    for plan in plans:
        await r.leave(plan)
    return []


async def test_a_job_with_nics_keeps_its_slots(tmp_path: Path) -> None:
    """NICs cannot go on over TCP with what they have under way: none of their ranks is halted, and the job that wanted
    the slots goes unfolded at once."""
    async with nics(tmp_path, **settings(tmp_path)) as r:
        r.metadata = tokens.metadata("low")
        watchers: list[Watcher] = []
        while plans := await fold_nics(r, f"low{len(watchers)}", 100 * len(watchers) + 17):
            watchers.append(await r.watch(plans[0]))
            assert len(watchers) < FULL
        held = {job.name for job in r.controller.jobs.registry.active()}
        assert len(held) == len(watchers) > 1
        r.metadata = tokens.metadata("high")
        urgent = await r.together(4, job="urgent")
        assert not urgent[0].trees
        assert "slots in a row" in urgent[0].reason
        assert not any(watcher.has_heard for watcher in watchers)
        assert {job.name for job in r.controller.jobs.registry.active() if job.round is None} == held


async def test_the_latest_job_without_nics_goes_instead(tmp_path: Path) -> None:
    """One with windowed ranks alone, although one with NICs began later."""
    async with nics(tmp_path, **settings(tmp_path)) as r:
        folded = await fill(r, "low")
        *_, latest, last = folded
        for plan in folded[last]:
            await r.leave(plan)
        await until(lambda: last not in {job.name for job in r.controller.jobs.registry.active()})
        assert await fold_nics(r, "nics", 17), "it has the slots of the last one"
        watchers = await watched(r, folded[latest])
        r.metadata = tokens.metadata("high")
        joining = asyncio.create_task(r.together(4, job="urgent"))
        assert isinstance(await watchers[0].next(), Halt)
        r.metadata = tokens.metadata("low")
        await asyncio.gather(*(r.call("Resume", resume(plan, stand_in="10.0.0.1:7000"))
                               for plan in folded[latest]))
        assert (await joining)[0].trees
        active = {job.name for job in r.controller.jobs.registry.active()}
        assert active == {"urgent", "nics", *folded} - {latest, last}


async def test_ranks_that_do_not_stop_keep_their_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other job does not wait for them without end."""
    monkeypatch.setattr(recovery, "PREEMPTION_TIMEOUT", 0.05)
    async with rig(tmp_path, **settings(tmp_path)) as r:
        folded = await fill(r, "low")
        r.metadata = tokens.metadata("high")
        assert not (await r.together(4, job="urgent"))[0].trees
        assert all(job.streams for job in r.controller.jobs.all() if job.name in folded)


async def test_nobody_takes_slots_of_an_equal(tmp_path: Path) -> None:
    """Nor of a higher priority: who came first keeps them."""
    async with rig(tmp_path, **settings(tmp_path)) as r:
        folded = await fill(r, "middle")
        watchers = await watched(r, folded[next(iter(folded))])
        for name in ("middle", "low"):
            r.metadata = tokens.metadata(name)
            assert not (await r.together(4, job=f"late-{name}"))[0].trees
        assert not watchers[0].has_heard
