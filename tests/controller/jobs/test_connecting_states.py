# SPDX-License-Identifier: Apache-2.0
"""Ranks with NICs connect and recover whatever fails when: sequences drawn at random."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.controller import client
from netfold.wire.jobs import Connected, Halt
from netfold.wire.plan import Plan
from support.control.connecting import ALL_RC, MIXED, connect, empty, folding, join_all, nics, rc_entries, resuming
from support.control.controller import run, until
from support.control.jobs import Code, Rig, Watcher
from support.control.leases import LEASE
from support.control.recovery import lose, restart, streams

pytestmark = pytest.mark.usefixtures("quick_sessions")


class Member:
    """A rank that does what ranks do: it resumes when it is halted, and connects its queue pairs where it has any."""

    def __init__(self, r: Rig, plan: Plan, watcher: Watcher, numbers: Iterator[int]) -> None:
        self.plan = plan
        self._r, self._watcher, self._numbers = r, watcher, numbers
        self.task = asyncio.create_task(self._follow())
        self.idle = True

    async def _follow(self) -> None:
        while isinstance(event := await self._watcher.next(), Halt):
            self.idle = False
            while self.plan.round < event.round and not await self._go_on():
                pass
            self.idle = True

    async def _go_on(self) -> bool:
        """Resume, and connect; False: it is to resume once more."""
        plan = await self._r.call("Resume", resuming(self.plan))
        if plan.fold_address:
            try:
                answer = await connect(self._r, plan, next(self._numbers))
            except grpc.aio.AioRpcError as error:
                if error.code() is not Code.ABORTED:
                    raise
                return False
            assert len(answer.pairs) == 2 * len(plan.trees)
            plan = msgspec.structs.replace(plan, ticket=answer.ticket)
        self.plan = plan
        return True


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["spine1", "spine2"]), st.integers(0, 40)), max_size=5),
       st.sampled_from([ALL_RC, MIXED]))
def test_ranks_go_on_together_whatever_fails_when(faults: list[tuple[str, int]], kinds: list[str]) -> None:
    """Spines go down and come back while ranks halt, resume and connect: in the end all ranks have plans of one round,
    with the PSNs where all had stopped, over entries of its epoch alone, and nothing is held when they have left."""

    async def story(folder: Path) -> None:
        async with nics(folder, steady=0.02) as r:
            plans, _ = await folding(r, kinds)
            numbers = itertools.count(1000, 100)
            members = [Member(r, plan, await r.watch(plan), numbers) for plan in plans]
            down: set[str] = set()
            for name, turns in faults:
                if name in down:
                    restart(r, name)
                    down.remove(name)
                elif not down:  # one is left
                    await until(lambda: all(target.is_up for target in r.controller.targets.values()))
                    lose(r, name)
                    down.add(name)
                for _ in range(turns):
                    await asyncio.sleep(0)
            for name in down:
                restart(r, name)
            (job,) = r.controller.jobs.all()

            def settled() -> bool:
                for member in members:
                    if member.task.done():
                        member.task.result()
                rounds = {member.plan.round for member in members}
                return (all(target.is_up for target in r.controller.targets.values()) and not job.stands_still
                        and rounds == {job.rounds} and all(member.idle for member in members)
                        and {tree.root for tree in job.trees} == {"spine1", "spine2"})

            await until(settled)
            for member, plan in zip(members, plans, strict=True):
                assert [stream.psn for stream in streams(member.plan)] == [stream.psn for stream in streams(plan)]
            epochs = {entry["epoch"] for name in ("leaf1", "leaf2") for entry in rc_entries(r, name)}
            assert set(job.parts.values()) <= epochs
            await until(lambda: {entry["epoch"] for name in ("leaf1", "leaf2") for entry in rc_entries(r, name)}
                        == set(job.parts.values()))
            for member in members:
                member.task.cancel()
                await r.leave(member.plan)
            await empty(r)

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("netfold.controller.switch.target.RETRY", (0.01,))
        run(story(Path(folder)))


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["connect", "connect", "die", "leave", "drop", "refuse"]), st.integers(0, 2),
                          st.integers(0, 10)), max_size=5))
def test_a_first_step_ends_for_all_or_holds_nothing(steps: list[tuple[str, int, int]]) -> None:
    """Ranks connect, die, leave and are dropped in any order: nobody waits for ever, and either all fold, or all are
    told and no switch holds anything."""

    async def story(folder: Path) -> None:
        async with nics(folder, lease=LEASE) as r:
            joins = join_all(r, ["rc", "windowed", "rc"])
            plans = {rank: await joins[rank] for rank in (0, 2)}
            watchers = {rank: await r.watch(plan) for rank, plan in plans.items()}
            (job,) = r.controller.jobs.all()
            calls: list[asyncio.Task[Connected]] = []
            for what, rank, turns in [*steps, ("connect", 0, 0), ("connect", 2, 0)]:
                rank = 2 * (rank // 2)
                if what == "connect":
                    calls.append(connect(r, plans[rank]))
                elif what == "die":
                    watchers[rank].die()
                elif what == "leave":
                    calls.append(asyncio.create_task(r.leave(plans[rank], "because")))  # type: ignore[arg-type]
                elif what == "drop":
                    await client.drop(r.fabric.jobs, "j")
                else:
                    r.switches["leaf1"].refuse = lambda update: update.verb == "insert"
                for _ in range(turns):
                    await asyncio.sleep(0)
            found = await asyncio.gather(*calls, joins[1], return_exceptions=True)
            assert all(not isinstance(one, Exception) or isinstance(one, grpc.aio.AioRpcError) for one in found), found
            assert job.state != "connecting"
            assert await client.drop(r.fabric.jobs, "j") or job.state == "finished"
            await empty(r)

    with tempfile.TemporaryDirectory() as folder:
        run(story(Path(folder)))
