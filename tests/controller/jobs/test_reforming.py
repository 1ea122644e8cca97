# SPDX-License-Identifier: Apache-2.0
"""Ranks that go on as a new incarnation of their job: without lost ones, with newcomers, and nobody by a lie."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from netfold.controller.jobs.job import Job
from netfold.wire import roce
from netfold.wire.jobs import EvictedEvent, RankLost, Reform, Reformed
from netfold.wire.plan import Change, Plan, Secret
from support.control.controller import BOUND, until
from support.control.jobs import Code, Rig, restarted, rig
from support.control.recovery import connections, streams


def asks(plan: Plan, finished: int = 0, **changes: Any) -> Reform:
    """The request of a rank that wants to go on."""
    request = Reform(plan.job, plan.rank, plan.epoch, f"10.0.0.1:{40 + plan.rank}", finished, timeout=BOUND,
                     secret=plan.rank_secret)
    return msgspec.structs.replace(request, **changes)


async def all_ask(r: Rig, plans: list[Plan], **changes: Any) -> list[Plan]:
    """Let these ranks ask at once; their next plans."""
    answers = await asyncio.gather(*(r.call("Reform", asks(plan, **changes), Reformed) for plan in plans))
    assert all(answer.plan is not None for answer in answers)
    return [answer.plan for answer in answers]


async def all_wait(r: Rig, plans: list[Plan], monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Let these ranks ask, and wait in vain for the others; their next plans.  Only once all of them have asked is most
    of the time over that they give the others."""
    asking = asyncio.create_task(all_ask(r, plans, timeout=BOUND + 0.1))
    (job,) = r.controller.jobs.all()
    await until(lambda: job.gathering is not None and len(job.gathering.asked) == len(plans))
    assert not job.lost
    monkeypatch.setattr(r.controller.jobs.reforming, "clock", lambda: time.monotonic() + BOUND)
    job.notify()
    return await asking


async def test_survivors_go_on_in_their_order_over_new_trees(tmp_path: Path) -> None:
    """They all learn who is gone and what each has finished; epoch, secrets and queue pairs are new, and nothing of the
    old ones stays on a switch."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watchers = [await r.watch(plan) for plan in plans]
        watchers[1].die()
        for rank in (0, 2, 3):
            lost = await watchers[rank].next()
            assert isinstance(lost, RankLost)
            assert lost.rank == 1
        said = [asks(plans[rank], finished) for rank, finished in ((0, 7), (2, 8), (3, 7))]
        answers = await asyncio.gather(*(r.call("Reform", request, Reformed) for request in said))
        after = [answer.plan for answer in answers]
        assert {plan.rank for plan in after} == {0, 1, 2}
        for plan, before in zip(after, (plans[0], plans[2], plans[3]), strict=True):
            assert plan.change == Change([0, 2, 3], [1], [7, 8, 7])
            assert (plan.world, plan.epoch, plan.secret) == (3, after[0].epoch, after[0].secret)
            assert [peer.tcp for peer in plan.peers] == ["10.0.0.1:40", "10.0.0.1:42", "10.0.0.1:43"]
            assert [peer.address for peer in plan.peers] == [plans[0].peers[k].address for k in (0, 2, 3)]
            assert plan.epoch != before.epoch
            assert not plan.secret.matches(before.secret)
            assert not plan.rank_secret.matches(before.rank_secret)
            assert len(plan.trees) == len(before.trees)
        old = {stream.qp >> roce.OPERATION_BITS for plan in plans for stream in streams(plan)}
        assert not any(connections(r, name) & old for name in r.switches)
        again = [await r.watch(plan) for plan in after]
        for rank in (0, 2, 3):
            watchers[rank].die()  # they watch the new incarnation, so that is no death
        again[2].die()
        for watcher in again[:2]:
            lost = await watcher.next()
            assert isinstance(lost, RankLost)
            assert lost.rank == 2
        for plan in after[:2]:
            await r.leave(plan)
        await until(lambda: set(r.controller.allocator.used().values()) == {0})
        assert r.base_only()


async def test_a_rank_that_dies_before_it_watches_again_is_lost_to_the_others(tmp_path: Path) -> None:
    """Its old stream breaks, and it has none in the new incarnation: no lease has to run out."""
    async with rig(tmp_path) as r:
        plans = await r.together(3)
        watchers = [await r.watch(plan) for plan in plans]
        after = await all_ask(r, plans)
        first = await r.watch(after[0])
        watchers[2].die()
        lost = await first.next()
        assert isinstance(lost, RankLost)
        assert lost.rank == 2


async def test_those_who_die_while_the_others_gather_are_not_waited_for(tmp_path: Path) -> None:
    """One that has asked, and one that has not: the last one that is left goes on alone."""
    async with rig(tmp_path) as r:
        plans = await r.together(3)
        watchers = [await r.watch(plan) for plan in plans]
        tasks = [asyncio.create_task(r.call("Reform", asks(plan), Reformed)) for plan in plans[:2]]
        (job,) = r.controller.jobs.all()
        await until(lambda: job.gathering is not None and len(job.gathering.asked) == 2)
        tasks[1].cancel()
        watchers[1].die()
        await until(lambda: 1 in job.lost)
        watchers[2].die()
        alone = (await tasks[0]).plan
        assert (alone.world, alone.change) == (1, Change([0], [1, 2], [0]))


async def test_a_rank_that_asks_no_more_is_waited_for_until_it_asks_again(tmp_path: Path) -> None:
    """What it has asked before it went away counts no more: the others do not go on with a rank that does not wait."""
    async with rig(tmp_path) as r:
        plans = await r.together(3)
        hasty = asyncio.create_task(r.call("Reform", asks(plans[2]), Reformed))
        (job,) = r.controller.jobs.all()
        await until(lambda: job.gathering is not None and 2 in job.gathering.asked)
        hasty.cancel()
        await until(lambda: job.gathering is not None and not job.gathering.asked)
        tasks = [asyncio.create_task(all_ask(r, [plan])) for plan in plans[:2]]
        await until(lambda: job.gathering is not None and job.gathering.asked.keys() == {0, 1})
        assert job.successor is None
        tasks.append(asyncio.create_task(all_ask(r, plans[2:])))
        assert [(plan.rank, plan.world) for (plan,) in await asyncio.gather(*tasks)] == [(0, 3), (1, 3), (2, 3)]


async def test_few_ranks_evict_nobody(tmp_path: Path) -> None:
    """Half of the ranks, whatever time-out they name, are refused with the names of those that have not asked."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watchers = [await r.watch(plan) for plan in plans]
        refusals = await asyncio.gather(*(r.refusal(asks(plan, timeout=0.01), "Reform") for plan in plans[:2]))
        for code, words in refusals:
            assert code is Code.DEADLINE_EXCEEDED
            assert "3" in words
            assert "no majority" in words
        (job,) = r.controller.jobs.all()
        assert (job.state, job.lost) == ("active", {})
        assert len(watchers) == 4


async def test_a_rank_that_stands_still_is_evicted_by_most_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before its time; it is told so on its stream, when it asks, and when it registers again, and its request to
    leave moves nobody."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watchers = [await r.watch(plan) for plan in plans]
        after = await all_wait(r, plans[:3], monkeypatch)
        assert after[0].change == Change([0, 1, 2], [3], [0, 0, 0])
        told = await watchers[3].next()
        assert isinstance(told, EvictedEvent)
        assert "taken for dead" in told.why
        assert await watchers[3].next() is None
        code, words = await r.refusal(asks(plans[3]), "Reform")
        assert (code, "joining=True" in words) == (Code.ABORTED, True)
        code, _ = await r.refusal(asks(after[1], secret=plans[3].rank_secret), "Reform")
        assert code is Code.PERMISSION_DENIED
        with pytest.raises(AssertionError):
            await r.watch(plans[3])  # the first event is not Watching
        with pytest.raises(Exception, match="no such rank"):
            await r.leave(plans[3])


async def test_nobody_but_a_rank_asks_in_its_name(tmp_path: Path) -> None:
    """Another rank's secret, none, and that of the incarnation before are refused; so is who is no rank."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        for secret in (plans[1].rank_secret, Secret()):
            code, _ = await r.refusal(asks(plans[0], secret=secret), "Reform")
            assert code is Code.PERMISSION_DENIED
        code, _ = await r.refusal(asks(plans[0], rank=7), "Reform")
        assert code is Code.PERMISSION_DENIED
        after = await all_ask(r, plans)
        code, _ = await r.refusal(asks(after[0], secret=plans[0].rank_secret), "Reform")
        assert code is Code.PERMISSION_DENIED
        code, words = await r.refusal(asks(plans[0]), "Reform")
        assert (code, "no such rank" in words) == (Code.FAILED_PRECONDITION, True)


async def test_a_place_where_nobody_can_listen_is_refused_alone(tmp_path: Path) -> None:
    """It would stand in the plans of all others, which could not use them."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        code, words = await r.refusal(asks(plans[1], tcp="nowhere"), "Reform")
        assert (code, "ADDRESS:PORT" in words) == (Code.INVALID_ARGUMENT, True)
        assert len(await all_ask(r, plans)) == 2


async def test_ranks_do_not_go_on_over_another_job_of_their_name(tmp_path: Path) -> None:
    """It was joined while no controller knew of theirs, and keeps what the switches hold for it."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        jobs = r.controller.jobs
        (job,) = jobs.all()
        other = Job(job.name, 2, "active")
        jobs.registry.named[job.name] = other
        jobs.registry.retire(job)
        task = asyncio.create_task(r.refusal(asks(plans[0]), "Reform"))
        await until(lambda: job.gathering is not None and bool(job.gathering.asked))
        for code, words in (await r.refusal(asks(plans[1]), "Reform"), await task):
            assert (code, "joined anew" in words) == (Code.FAILED_PRECONDITION, True)
        assert jobs.registry.named[job.name] is other
        assert job.successor is None


async def test_ranks_that_wait_are_let_in_when_all_grow(tmp_path: Path) -> None:
    """They come after the others, know what these have finished, and get the same epoch; where nobody waits, nothing
    changes; who contradicts the others is refused alone."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        nobody = await asyncio.gather(*(r.call("Reform", asks(plan, grows=True), Reformed) for plan in plans))
        assert [answer.plan for answer in nobody] == [None, None]
        mine = r.join(0, 1, joining=True, address=r.fabric.hosts[2].address, tcp="10.0.0.1:99")
        waits = asyncio.create_task(r.call("Join", mine))
        other = asyncio.create_task(r.refusal(msgspec.structs.replace(mine, lane_bits=8)))
        await until(lambda: sum(map(len, r.controller.jobs.reforming.newcomers.values())) == 2)
        after = await all_ask(r, plans, grows=True, finished=5)
        new = await waits
        assert [plan.rank for plan in (*after, new)] == [0, 1, 2]
        assert {plan.epoch for plan in (*after, new)} == {new.epoch}
        assert new.change == Change([0, 1, -1], [], [5, 5, 5])
        assert new.peers[2].tcp == "10.0.0.1:99"
        code, words = await other
        assert (code, "lane_bits" in words) == (Code.FAILED_PRECONDITION, True)


async def test_nobody_is_let_in_while_somebody_is_lost(tmp_path: Path) -> None:
    """The others may lack a result then; who waits goes on waiting, and is let in by the next one."""
    async with rig(tmp_path) as r:
        plans = await r.together(3)
        watchers = [await r.watch(plan) for plan in plans]
        waits = asyncio.create_task(r.call("Join", r.join(0, 1, joining=True, address=r.fabric.hosts[3].address)))
        await until(lambda: bool(r.controller.jobs.reforming.newcomers))
        watchers[0].die()
        await until(lambda: 0 in r.controller.jobs.all()[0].lost)
        after = await all_ask(r, plans[1:], grows=True)
        assert after[0].change == Change([1, 2], [0], [0, 0])
        assert not waits.done()
        grown = await all_ask(r, after, grows=True)
        assert (grown[0].world, (await waits).rank) == (3, 2)


async def test_a_rank_that_waits_in_vain_is_refused_by_name(tmp_path: Path) -> None:
    """Where there is no such job, or its ranks never grow; and where it says which rank it wants to be."""
    async with rig(tmp_path) as r:
        code, words = await r.refusal(r.join(0, 1, joining=True, timeout=0.01))
        assert (code, "grow()" in words) == (Code.DEADLINE_EXCEEDED, True)
        code, words = await r.refusal(r.join(1, 4, joining=True))
        assert (code, "expected 0 and 1" in words) == (Code.INVALID_ARGUMENT, True)
        assert r.controller.jobs.reforming.newcomers == {}


async def test_survivors_of_a_dead_controller_go_on_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It adopts their job by their tickets; the rank that died with it never registers, and is out when most of the
    others have waited for it."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        for plan in plans:
            await r.watch(plan)
    async with restarted(r) as again:
        for plan in plans[:3]:
            await again.watch(plan)
        after = await all_wait(again, plans[:3], monkeypatch)
        assert after[0].change == Change([0, 1, 2], [3], [0, 0, 0])
        assert len(after[0].trees) == len(plans[0].trees)
