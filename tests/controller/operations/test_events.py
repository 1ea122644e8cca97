# SPDX-License-Identifier: Apache-2.0
"""The log of what happened: bounded, numbered, and fed where things are decided."""

from __future__ import annotations

from pathlib import Path

from netfold.controller import client
from netfold.controller.operations.events import LENGTH, LONGEST, EventLog
from support.control.controller import until
from support.control.jobs import rig
from support.control.recovery import all_resume, lose


def test_the_log_is_bounded_and_numbers_have_no_gaps() -> None:
    """The oldest events make room; texts are cut; a number of another controller's brings all there are."""
    log = EventLog(wall=lambda: 7.0)
    for number in range(LENGTH + 10):
        log.note("up", f"s{number}", "x" * 10 * LONGEST)
    kept = log.since(0)
    assert [event.seq for event in kept] == list(range(11, LENGTH + 11))
    assert {len(event.text) for event in kept} == {LONGEST}
    assert {event.time for event in kept} == {7.0}
    assert [event.target for event in log.since(LENGTH + 9)] == [f"s{LENGTH + 9}"]
    assert log.since(LENGTH + 10) == []
    assert len(log.since(10 * LENGTH)) == LENGTH


async def test_a_fabrics_story_is_told_in_order(tmp_path: Path) -> None:
    """A job joins, its root dies, it is planned anew, the other spine is drained and used again, and ranks leave."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        root = plans[0].trees[0].name
        lose(r, root)
        await watcher.next()
        await all_resume(r, plans)
        other = next(s.name for s in r.fabric.switches if s.role == "spine" and s.name != root)
        await client.drain(r.fabric.jobs, "leaf1:3", True)
        await client.drain(r.fabric.jobs, "leaf1:3", False)
        watcher.die()
        await until(lambda: any(event.kind == "lost" for event in r.controller.events.since(0)))
        told = [event for event in await client.events(r.fabric.jobs) if event.kind not in ("link down", "link up")]
        assert [(event.kind, event.target) for event in told] == [
            ("joined", "j"), ("down", root), ("re-planned", "j"), ("drained", "leaf1:3"), ("undrained", "leaf1:3"),
            ("lost", "j")]
        assert f"folded at {root}" in told[0].text
        assert f"{root} is down; folds at {other} after " in told[2].text
        assert told[-1].text.startswith("rank 0 on h1: its connection")
        assert await client.events(r.fabric.jobs, told[-1].seq) == []
