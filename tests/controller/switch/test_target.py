# SPDX-License-Identifier: Apache-2.0
"""Targets, which hold switches to what they should have: against switches in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from netfold.controller.switch import tables
from netfold.controller.switch.election import Superseded
from netfold.controller.switch.entities import Entry, Multicast
from netfold.controller.switch.reconcile import Update
from netfold.controller.switch.switch import NotPrimary, SwitchError
from netfold.controller.switch.target import DISPUTE, RETRY, STEADY, Target
from support.control.controller import BOUND, MemorySession, MemorySwitch, until


async def no_wait(_: float) -> None:
    """Let retries follow each other without their pauses."""
    await asyncio.sleep(0)


def route(port: int, dst: int = 1) -> Entry:
    """An entry of the routing table, told apart by its numbers."""
    return Entry(tables.ROUTE, (("dst", (dst, 32)),), tables.FORWARD, (("port", port),))


async def test_a_failed_install_is_taken_back(tmp_path: Path) -> None:
    """The part is not desired any more, half-written entries go, other parts stay."""
    switch = MemorySwitch("s")
    target = Target("s", switch.connect, sleep=no_wait)
    target.preset({"fabric": [route(1)]})
    target.start()
    await target.wait_up(BOUND)
    switch.refuse = lambda update: isinstance(update.entity, Entry) and dict(update.entity.params)["port"] == 3
    with pytest.raises(SwitchError, match=r"port=3"):
        await target.install({"job": [route(2, 2), route(3, 3)]})
    assert list(switch.state.values()) == [route(1)]
    assert (await target.compare())[1] == []
    await target.install({"job": [route(2, 2)]})
    assert len(switch.state) == 2
    await target.uninstall(["job"])
    assert list(switch.state.values()) == [route(1)]
    await target.stop()


async def test_a_silent_switch_is_told_nothing_and_gets_what_it_lacks_when_it_answers() -> None:
    """A write under way ends with an error once the silence lasts, later parts are refused at once, and what is
    removed goes when it answers again; its session goes on, so that no job takes its slots for lost."""
    switch = MemorySwitch("s")
    target = Target("s", switch.connect, sleep=no_wait)
    target.preset({"fabric": [route(1)]})
    target.start()
    await target.wait_up(BOUND)
    await target.install({"old": [route(2, 2)]})
    switch.gate, switch.applies_before_gate = asyncio.Event(), True
    writing = asyncio.create_task(target.install({"new": [route(3, 3)]}))
    await until(lambda: len(switch.state) == 3)
    target.fall_silent("it does not answer")
    for _ in range(5):
        await asyncio.sleep(0)
    assert not writing.done()  # it may only be slow
    target.fall_silent("it does not answer")
    with pytest.raises(SwitchError, match="s: it does not answer"):
        await writing
    with pytest.raises(SwitchError, match="s: it does not answer"):
        await target.install({"newer": [route(4, 4)]})
    await target.uninstall(["old"])
    await target.replace({"fabric": [route(5)]})
    assert (target.is_up, target.is_heard, target.sessions) == (True, False, 1)
    switch.gate = None
    await target.resume()
    assert list(switch.state.values()) == [route(5)]
    assert (target.is_heard, target.sessions) == (True, 1)
    await target.stop()


async def test_removing_a_part_waits_for_nothing_but_what_is_under_way_with_that_part() -> None:
    """While one part is being written, and while it is being removed, another one is known not to be there; that part
    itself has gone from the switch when its removal ends, whoever asks for it."""
    switch = MemorySwitch("s")
    target = Target("s", switch.connect, sleep=no_wait)
    target.preset({"fabric": [route(1)]})
    target.start()
    await target.wait_up(BOUND)
    for work in (lambda: target.install({"job": [route(2, 2)]}), lambda: target.uninstall(["job"])):
        switch.gate = asyncio.Event()
        under_way = asyncio.create_task(work())
        await until(target.busy.locked)
        removals = [asyncio.create_task(target.uninstall([part])) for part in ("other", "job")]
        for _ in range(5):
            await asyncio.sleep(0)
        assert [removal.done() for removal in removals] == [True, False]
        switch.gate.set()
        await asyncio.gather(under_way, *removals)
        assert list(switch.state.values()) == [route(1)]
        await target.install({"job": [route(2, 2)]})
    await target.stop()


async def test_foreign_entries_are_removed_on_connecting() -> None:
    """Entries that are not desired are deleted; entries that differ are modified."""
    switch = MemorySwitch("s")
    switch.has_pipeline = True
    switch.state = {e.identity: e for e in (route(9, 1), route(9, 5), Multicast(4, ((1, 1),)))}
    target = Target("s", switch.connect, sleep=no_wait)
    target.preset({"fabric": [route(1, 1)]})
    target.start()
    await target.wait_up(BOUND)
    assert list(switch.state.values()) == [route(1, 1)]
    assert sorted(u.verb for u in switch.writes[0]) == ["delete", "delete", "modify"]
    await target.stop()


async def test_what_a_comparison_found_is_mended_with_the_next_write() -> None:
    """Somebody else's entry stays where a switch is only looked at, and goes with whatever is written there next."""
    switch = MemorySwitch("s")
    target = Target("s", switch.connect, sleep=no_wait)
    target.preset({"fabric": [route(1)]})
    target.start()
    await target.wait_up(BOUND)
    foreign = route(9, 9)
    switch.state[foreign.identity] = foreign
    _, lacking = await target.compare()
    assert [update.verb for update in lacking] == ["delete"]
    assert foreign.identity in switch.state
    await target.install({"job": [route(2, 2)]})
    assert list(switch.state.values()) == [route(1), route(2, 2)]
    await target.stop()


async def test_installing_on_a_dead_switch_says_why() -> None:
    """The error carries the switch's last problem; once it is back, it has its parts."""
    switch = MemorySwitch("s")
    switch.unreachable = True
    target = Target("s", switch.connect, sleep=no_wait)
    target.start()
    await until(lambda: "nobody answers" in target.problem)
    with pytest.raises(SwitchError, match="s is down: s: nobody answers"):
        await target.install({"job": [route(1)]})
    switch.unreachable = False
    await target.wait_up(BOUND)
    assert switch.state == {}
    await target.stop()


async def test_a_session_that_ends_during_a_failing_write_is_no_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody takes the switch in the middle of it: the next session writes what was wanted."""
    switch = MemorySwitch("s")
    target = Target("s", switch.connect, sleep=no_wait)
    target.start()
    await target.wait_up(BOUND)

    async def taken(_: list[Update]) -> None:
        if target.is_up:
            switch.unreachable = True
            switch.break_session()
            await until(lambda: not target.is_up)
        raise SwitchError("s: Write: the primary is another one")

    monkeypatch.setattr(switch.sessions[-1], "write", taken)
    await target.replace({"routes": [route(1)]})
    switch.unreachable = False
    await until(lambda: list(switch.state.values()) == [route(1)])
    await target.stop()


async def test_a_switch_that_keeps_failing_is_tried_ever_later() -> None:
    """Sessions that end soon after they began make the next attempts wait longer; one that lasts ends the series."""
    now, waits = 0.0, []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    switch = MemorySwitch("s")
    target = Target("s", switch.connect, sleep=sleep, clock=lambda: now)
    target.start()
    for lasts in (0.1, 0.1, 0.1, STEADY, 0.1):
        ended = target.sessions + 1
        await until(lambda: target.is_up and target.sessions == ended)  # noqa: B023
        now += lasts
        switch.break_session()
        await until(lambda: len(waits) == ended)  # noqa: B023
    assert waits == [RETRY[0], RETRY[1], RETRY[2], RETRY[0], RETRY[1]]
    await target.stop()


async def test_a_switch_taken_by_a_later_controller_of_the_fabric_is_let_go() -> None:
    """The target stops instead of fighting, says who has it, and tells its controller."""
    async def taken() -> None:
        raise Superseded("s: a later controller of this fabric, with election id 8")

    told: list[str] = []
    target = Target("s", taken, sleep=no_wait, on_superseded=told.append)  # type: ignore[arg-type]
    target.start()
    with pytest.raises(SwitchError, match="election id 8"):
        await target.wait_up(BOUND)
    assert not target.is_up
    assert told == [target.problem]
    await target.stop()


async def test_a_switch_taken_by_a_stranger_is_claimed_again_and_again() -> None:
    """Each time after a longer pause, saying who has it; a session that lasts ends the series. One that has gone is not
    waited for."""
    now, waits, taken, present = 0.0, [], 0, True
    switch = MemorySwitch("s")

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    async def connect() -> MemorySession:
        nonlocal taken
        if taken:
            taken -= 1
            assert target.problem
            raise NotPrimary("s: another client is primary, with election id 8", 8, present=present)
        return await switch.connect()

    target = Target("s", connect, sleep=sleep, clock=lambda: now)
    taken = len(DISPUTE) + 1
    target.start()
    await target.wait_up(BOUND)
    assert waits == [*DISPUTE, DISPUTE[-1]]
    for lasts, wait in ((DISPUTE[-1] - 1, DISPUTE[-1]), (DISPUTE[-1], DISPUTE[0])):
        waits.clear()
        taken = 1
        now += lasts
        switch.break_session("another client is primary")
        await until(lambda: len(waits) == 2 and target.is_up)
        assert waits == [RETRY[0], wait]
    waits.clear()
    taken, present = 1, False
    now += STEADY
    switch.break_session("another client was primary")
    await until(lambda: len(waits) == 2 and target.is_up)
    assert waits == [RETRY[0], RETRY[1]]
    await target.stop()
