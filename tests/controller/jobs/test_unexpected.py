# SPDX-License-Identifier: Apache-2.0
"""A bug while trees are planned anew: no job stands still for ever, and later failures are planned around."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from netfold.controller.jobs import plans as made_plans
from netfold.controller.jobs import recovery
from netfold.wire.jobs import Halt
from support.control.connecting import MIXED, connect, empty, folding, nics, refused, resuming
from support.control.controller import until
from support.control.jobs import Code, Rig, rig
from support.control.recovery import all_resume, lose, restart, resume

pytestmark = pytest.mark.usefixtures("quick_sessions", "cleaned_at_once")


@contextmanager
def failing_installs(r: Rig, name: str) -> Iterator[list[BaseException]]:
    """Entries of jobs that are written to a switch meanwhile raise what no switch raises; yields those raised."""
    raised: list[BaseException] = []

    async def install(_: Mapping[str, Any]) -> None:
        raised.append(KeyError("a bug"))
        raise raised[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(r.controller.targets[name], "install", install)
        yield raised


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The messages of the log that have a traceback."""
    return [record.getMessage() for record in caplog.records if record.exc_info]


async def test_a_bug_while_a_job_moves_back_leaves_it_where_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its ranks are not halted and it does not count as standing still, its status says why, and what fails later is
    planned around."""
    async with rig(tmp_path, steady=0.05) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        lose(r, "spine1")
        assert await watcher.next() == Halt(1, "spine1 is down")
        moved = await all_resume(r, plans)
        (job,) = r.controller.jobs.all()
        with failing_installs(r, "leaf1") as raised:
            restart(r, "spine1")
            await until(lambda: bool(raised) and not r.controller.jobs.is_changing)
            assert not job.stands_still
            assert job.stay_reason == ("spine1 is back, and its trees stay where they are: the controller failed: "
                                       "KeyError('a bug')")
            assert any("spine1 is back" in said for said in tracebacks(caplog))
            lose(r, "spine2")
            halt = await watcher.next()
            assert isinstance(halt, Halt)
            assert halt.why == "spine2 is down"
        after = await all_resume(r, moved)
        assert {tree.name for plan in after for tree in plan.trees} == {"spine1"}


async def test_a_bug_while_ranks_are_halted_ends_as_where_there_are_no_trees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ranks that can do so go on over TCP, with the reason; one traceback is logged, however often it is tried."""
    monkeypatch.setattr(recovery, "FALLBACK_WAIT", 0.01)
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        (job,) = r.controller.jobs.all()
        with failing_installs(r, "leaf1") as raised:
            lose(r, "spine1")
            assert await watcher.next() == Halt(1, "spine1 is down")
            await until(lambda: bool(raised))
            resumes = [asyncio.ensure_future(r.call("Resume", resume(plans[0], stand_in="10.0.0.1:7000")))]
            await until(lambda: len(raised) > 1)  # what a rank says is a reason to try again
            resumes += [asyncio.ensure_future(r.call("Resume", resume(plan, stand_in="10.0.0.1:7000")))
                        for plan in plans[1:]]
            after = await asyncio.gather(*resumes)
        assert len(tracebacks(caplog)) == 1
        assert all("the controller failed: KeyError('a bug')" in plan.reason for plan in after)
        assert (job.fell_back, job.stands_still) == (True, False)


@pytest.mark.parametrize("late", [False, True])
async def test_a_bug_in_the_making_of_plans_refuses_them_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, late: bool
) -> None:
    """Halted ranks, and one that asks again after that, hear at once that there are no plans; the job counts as broken,
    and not as standing still, and its name can be joined anew."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        lose(r, "spine1")
        await watcher.next()
        (job,) = r.controller.jobs.all()
        with monkeypatch.context() as bug:
            bug.setattr(made_plans, "make", _fails)
            refused = await asyncio.gather(*(r.refusal(resume(plan), "Resume") for plan in plans))
        if late:
            refused.append(await r.refusal(resume(plans[0]), "Resume"))
        for code, words in refused:
            assert code is Code.FAILED_PRECONDITION
            assert "spine1 is down, and the controller failed: KeyError('a bug'); join anew" in words
        assert (job.state, job.stands_still) == ("broken", False)
        assert tracebacks(caplog) == [f"round 1 of {job} failed"]
        for plan in plans:
            await r.leave(plan, "no trees")
        assert len(await r.together(4)) == 4


async def test_a_bug_while_queue_pairs_connect_refuses_ranks_of_both_kinds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that wait for the switches to know their queue pairs, and those that wait for their plans."""
    async with nics(tmp_path) as r:
        plans, _ = await folding(r, MIXED)
        watcher = await r.watch(plans[0])
        (job,) = r.controller.jobs.all()
        lose(r, "spine1")
        assert await watcher.next() == Halt(1, "spine1 is down")
        resumes = [asyncio.create_task(r.call("Resume", resuming(plan))) for plan in plans]
        with failing_installs(r, "leaf1"):
            calls = [connect(r, await resumes[rank]) for rank in (1, 3)]
            refusals = [await refused(waiting) for waiting in (*calls, resumes[0], resumes[2])]
        for code, words in refusals:
            assert (code, "the controller failed: KeyError('a bug')" in words) == (Code.FAILED_PRECONDITION, True)
        assert (job.state, job.stands_still) == ("broken", False)
        assert tracebacks(caplog) == [f"round 1 of {job} failed"]
        for plan in plans:
            await r.leave(plan, "no trees")
        await empty(r)


def _fails(*_: object) -> list[Any]:
    raise KeyError("a bug")
