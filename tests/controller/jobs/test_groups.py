# SPDX-License-Identifier: Apache-2.0
"""Groups of a running job, as ranks join them over a real gRPC socket, with switches in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from netfold.controller.jobs import groups, recovery
from netfold.wire.jobs import Done, GroupOf, Halt, JobEndedEvent, RankLost, RankReport, Reform, Reformed, Tell
from netfold.wire.plan import Plan, Secret
from support.control.controller import BOUND, until
from support.control.jobs import Code, Rig, of, restarted, rig
from support.control.recovery import resume


async def group(r: Rig, plans: Sequence[Plan], members: Sequence[int], number: int = 1) -> list[Plan]:
    """All ranks of a group join it."""
    return list(await asyncio.gather(*(
        r.call("Join", of(plans, members, rank, number)) for rank in range(len(members)))))


async def test_groups_of_a_mesh_fold_beside_their_job(tmp_path: Path) -> None:
    """Each has a name, an epoch, secrets and trees of its own; all numbers of all ranks differ; the job goes on."""
    async with rig(tmp_path) as r:
        world = await r.together(4)
        first, second = await asyncio.gather(group(r, world, (0, 2)), group(r, world, (1, 3)))
        assert [(plan.job, plan.rank, plan.world) for plan in first] == [("j#0-2.1", 0, 2), ("j#0-2.1", 1, 2)]
        everyone = [*world, *first, *second]
        assert len({plan.epoch for plan in everyone}) == len({plan.secret.value for plan in everyone}) == 3
        assert len({plan.rank_secret.value for plan in everyone}) == 8
        assert all(plan.trees for plan in everyone)
        numbers = [s.qp for plan in everyone for tree in plan.trees for s in (tree.data, tree.agreement)]
        assert len(set(numbers)) == len(numbers)
        assert [job.name for job in r.controller.jobs.all()] == ["j", "j#0-2.1", "j#1-3.1"]
        for plan in everyone[::-1]:
            await r.leave(plan)
        assert r.base_only()
        assert set(r.controller.allocator.used().values()) == {0}


async def test_a_rank_joins_a_group_as_itself_alone(tmp_path: Path) -> None:
    """Without its secret of the job, as another rank of the group, from another address, or for others it is refused,
    and nobody waits for it."""
    async with rig(tmp_path) as r:
        world = await r.together(4)
        good = of(world, (0, 2), 0)
        assert good.group is not None
        for join, code, words in (
            (msgspec.structs.replace(good, group=msgspec.structs.replace(good.group, secret=Secret("0" * 64))),
             Code.PERMISSION_DENIED, "secret"),
            (msgspec.structs.replace(good, group=msgspec.structs.replace(good.group, rank=1)),
             Code.PERMISSION_DENIED, "secret"),
            (msgspec.structs.replace(good, rank=1), Code.PERMISSION_DENIED, "for itself alone"),
            (msgspec.structs.replace(good, address=r.fabric.hosts[1].address), Code.PERMISSION_DENIED, "address"),
            (msgspec.structs.replace(good, group=msgspec.structs.replace(good.group, members=[0, 4])),
             Code.INVALID_ARGUMENT, "members"),
            (msgspec.structs.replace(good, group=msgspec.structs.replace(good.group, members=[0, 0])),
             Code.INVALID_ARGUMENT, "members"),
            (msgspec.structs.replace(good, job="k"), Code.INVALID_ARGUMENT, "job"),
            (r.join(0, job="j#0-2.1"), Code.INVALID_ARGUMENT, "letters"),
        ):
            got = await r.refusal(join)
            assert got[0] is code, got
            assert words in got[1]
        assert r.waiting() == 0
        nested = await group(r, world, (0, 2))
        inner = GroupOf(nested[0].job, nested[0].epoch, 0, nested[0].rank_secret, [0, 1], 1)
        got = await r.refusal(msgspec.structs.replace(good, job=nested[0].job, group=inner))
        assert got[0] is Code.INVALID_ARGUMENT, got


async def test_the_secret_of_another_rank_proves_nothing(tmp_path: Path) -> None:
    """Nobody joins a group as a rank of the job by the secret that another rank of the job has."""
    async with rig(tmp_path) as r:
        world = await r.together(2)
        stolen = msgspec.structs.replace(of(world, (0, 1), 0).group, secret=Secret(world[1].rank_secret.value))
        got = await r.refusal(of(world, (0, 1), 0, group=stolen))
        assert got[0] is Code.PERMISSION_DENIED


async def test_two_machines_below_one_switch_gain_nothing(tmp_path: Path) -> None:
    """Both ranks hear why, and the switches hold nothing of them."""
    async with rig(tmp_path) as r:
        world = await r.together(4)
        before = dict(r.controller.allocator.used())
        answers = await asyncio.gather(*(r.refusal(of(world, (0, 1), rank)) for rank in (0, 1)))
        assert {code for code, _ in answers} == {Code.FAILED_PRECONDITION}
        assert all("h1 and h2 are below leaf1" in words for _, words in answers)
        assert [job.name for job in r.controller.jobs.all()] == ["j"]
        assert r.controller.allocator.used() == before


async def test_a_group_ends_with_its_job(tmp_path: Path) -> None:
    """When all ranks have left the job, or it is dropped, its groups' ranks are told, and the switches are cleared."""
    async with rig(tmp_path) as r:
        for drops in (False, True):
            world = await r.together(4)
            made = await group(r, world, (0, 2))
            watcher = await r.watch(made[0])
            if drops:
                await r.controller.jobs.drop("j")
            else:
                for plan in world:
                    await r.leave(plan)
            event = await watcher.next()
            assert isinstance(event, JobEndedEvent)
            assert "job 'j', of which it is a group, has ended" in event.why
            await until(r.base_only)
            assert set(r.controller.allocator.used().values()) == {0}


async def test_a_group_ends_where_its_job_goes_on_without_a_rank(tmp_path: Path) -> None:
    """The ranks that are left shrink the job: groups of the incarnation before end, and new ones can be made."""
    async with rig(tmp_path) as r:
        world = await r.together(4)
        watchers = [await r.watch(plan) for plan in world]
        made = await group(r, world, (0, 2))
        watches = await r.watch(made[0])
        watchers[3].die()
        await until(lambda: bool(r.controller.jobs.all()[0].lost))
        assert made[0].job in [job.name for job in r.controller.jobs.all()]  # all of its ranks are there
        asked = [r.call("Reform", Reform(p.job, p.rank, p.epoch, "10.0.0.1:2", 0, False, 5.0, p.rank_secret),
                        Reformed) for p in world[:3]]
        again = [answer.plan for answer in await asyncio.gather(*asked)]
        assert isinstance(await watches.next(), JobEndedEvent)
        assert (await group(r, again, (0, 2)))[0].job == "j#0-2.1"
        await r.refusal(of(world, (0, 2), 0))


async def test_ranks_that_are_there_make_groups_beside_one_that_has_left(tmp_path: Path) -> None:
    """A job of which a rank has left in order still has groups of the others; one with that rank is refused."""
    async with rig(tmp_path) as r:
        world = await r.together(4)
        await r.leave(world[3])
        assert all(plan.trees for plan in await group(r, world, (0, 2)))
        code, words = await r.refusal(of(world, (1, 3), 0))
        assert code is Code.FAILED_PRECONDITION
        assert "the ranks 3 of the job are gone" in words


async def test_a_lost_rank_of_a_group_is_told_to_the_group(tmp_path: Path) -> None:
    """The group's own Watch tells it, by the rank's number in the group; a group cannot go on by itself."""
    async with rig(tmp_path) as r:
        world = await r.together(4)
        made = await group(r, world, (0, 2))
        first, second = [await r.watch(plan) for plan in made]
        second.die()
        lost = await first.next()
        assert isinstance(lost, RankLost)
        assert (lost.rank, lost.host) == (1, "h3")
        plan = made[0]
        reform = Reform(plan.job, 0, plan.epoch, "10.0.0.1:2", 0, False, 1.0, plan.rank_secret)
        assert (await r.refusal(reform, "Reform"))[0] is Code.FAILED_PRECONDITION


async def test_a_rank_that_dies_ends_no_group_of_others_that_gathers(tmp_path: Path) -> None:
    """A group waits for its last rank although a rank of the job that is no member of it is lost."""
    async with rig(tmp_path) as r:
        world = await r.together(4)
        watchers = [await r.watch(plan) for plan in world]
        first = asyncio.create_task(r.call("Join", of(world, (0, 2), 0)))
        await until(lambda: r.waiting() == 1)
        watchers[3].die()
        assert isinstance(await watchers[0].next(), RankLost)
        second = await r.call("Join", of(world, (0, 2), 1))
        assert [plan.job for plan in (await first, second)] == ["j#0-2.1"] * 2


async def test_an_idle_group_makes_room_for_another(tmp_path: Path, monkeypatch: Any) -> None:
    """Where slots run out, a group whose ranks report nothing new for a while is halted and goes on over TCP, and the
    next one folds; a busy one keeps its slots, and the next one is refused with the reason."""
    monkeypatch.setattr(recovery, "PREEMPTION_TIMEOUT", BOUND)
    monkeypatch.setattr(groups, "IDLE_SECONDS", 1000.0)
    async with rig(tmp_path) as r:
        world = await r.together(4)
        made = await group(r, world, (0, 2))
        watchers = [await r.watch(plan) for plan in made]
        for slots in r.controller.allocator.slots.values():  # nothing is free beside them
            while slots.used < 16384:
                slots.allocate(128)

        async def report_after_idling(operations: int) -> None:
            (job,) = (job for job in r.controller.jobs.all() if job.name == made[0].job)
            job.used -= 2000
            for plan in made:
                await r.call("Report", RankReport(plan.job, plan.rank, plan.epoch, operations, operations << 20,
                                                  operations, 0, secret=plan.rank_secret), Done)

        codes = await asyncio.gather(*(r.refusal(of(world, (1, 3), rank)) for rank in (0, 1)))
        assert {code for code, _ in codes} == {Code.RESOURCE_EXHAUSTED}, codes
        assert "slots" in codes[0][1]
        assert all([isinstance(await watcher.next(), Tell) for watcher in watchers])
        await report_after_idling(1)
        codes = await asyncio.gather(*(r.refusal(of(world, (1, 3), rank, 2)) for rank in (0, 1)))
        assert {code for code, _ in codes} == {Code.RESOURCE_EXHAUSTED}, codes  # it was busy until now
        await report_after_idling(1)  # nothing new
        joins = [asyncio.create_task(r.call("Join", of(world, (1, 3), rank, 3))) for rank in (0, 1)]
        halt = await watchers[0].next()
        while isinstance(halt, Tell):
            halt = await watchers[0].next()
        assert isinstance(halt, Halt)
        assert "was idle" in halt.why
        after = await asyncio.gather(*(
            r.call("Resume", resume(plan, begun=3, stand_in=f"10.0.0.{plan.rank}:7000")) for plan in made
        ))
        said = {(plan.stand_in, plan.folds_until, plan.reason) for plan in after}
        assert said == {("10.0.0.0:7000", 3, halt.why)}
        plans = [await join for join in joins]
        assert all(plan.trees for plan in plans)
        assert [job.name for job in r.controller.jobs.registry.active()] == ["j", "j#1-3.3"]


async def test_groups_are_adopted_with_their_job(tmp_path: Path) -> None:
    """A controller that is started anew goes on with a group whose ranks register, and knows of which job it is."""
    async with rig(tmp_path) as r:
        world = await r.together(4)
        made = await group(r, world, (0, 2))
        await r.controller.__aexit__(None, None, None)
        async with restarted(r) as again:
            watches = [await again.watch(plan) for plan in made]
            watches += [await again.watch(plan) for plan in world]
            assert [job.name for job in again.controller.jobs.all()] == ["j", "j#0-2.1"]
            await again.controller.jobs.drop("j")
            assert isinstance(await watches[0].next(), JobEndedEvent)
