# SPDX-License-Identifier: Apache-2.0
"""Targets, which hold switches to what they should have: against switches in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from netfold.controller.switch import tables
from netfold.controller.switch.entities import Entry, Multicast
from netfold.controller.switch.switch import NotPrimary, SwitchError
from netfold.controller.switch.target import RETRY, STEADY, Target
from support.controller import BOUND, MemorySwitch, run, until


async def no_wait(_: float) -> None:
    """Let retries follow each other without their pauses."""
    await asyncio.sleep(0)


def route(port: int, dst: int = 1) -> Entry:
    """An entry of the routing table, told apart by its numbers."""
    return Entry(tables.ROUTE, (("dst", (dst, 32)),), tables.FORWARD, (("port", port),))


def test_a_failed_install_is_taken_back(tmp_path: Path) -> None:
    """The part is not desired any more, half-written entries go, other parts stay."""

    async def story() -> None:
        switch = MemorySwitch("s")
        target = Target("s", switch.connect, sleep=no_wait)
        target.preset("fabric", [route(1)])
        target.start()
        await target.wait_up(BOUND)
        switch.refuse = lambda update: isinstance(update.entity, Entry) and dict(update.entity.params)["port"] == 3
        with pytest.raises(SwitchError, match=r"port=3"):
            await target.install("job", [route(2, 2), route(3, 3)])
        assert list(switch.state.values()) == [route(1)]
        assert (await target.compare())[1] == []
        await target.install("job", [route(2, 2)])
        assert len(switch.state) == 2
        await target.uninstall("job")
        assert list(switch.state.values()) == [route(1)]
        await target.stop()

    run(story())


def test_foreign_entries_are_removed_on_connecting() -> None:
    """What the switch holds and nobody wants goes; what is wanted otherwise is modified."""

    async def story() -> None:
        switch = MemorySwitch("s")
        switch.has_pipeline = True
        switch.state = {e.identity: e for e in (route(9, 1), route(9, 5), Multicast(4, ((1, 1),)))}
        target = Target("s", switch.connect, sleep=no_wait)
        target.preset("fabric", [route(1, 1)])
        target.start()
        await target.wait_up(BOUND)
        assert list(switch.state.values()) == [route(1, 1)]
        assert sorted(u.verb for u in switch.writes[0]) == ["delete", "delete", "modify"]
        await target.stop()

    run(story())


def test_what_a_comparison_found_is_mended_with_the_next_write() -> None:
    """Somebody else's entry stays where a switch is only looked at, and goes with whatever is written there next."""

    async def story() -> None:
        switch = MemorySwitch("s")
        target = Target("s", switch.connect, sleep=no_wait)
        target.preset("fabric", [route(1)])
        target.start()
        await target.wait_up(BOUND)
        foreign = route(9, 9)
        switch.state[foreign.identity] = foreign
        _, lacking = await target.compare()
        assert [update.verb for update in lacking] == ["delete"]
        assert foreign.identity in switch.state
        await target.install("job", [route(2, 2)])
        assert list(switch.state.values()) == [route(1), route(2, 2)]
        await target.stop()

    run(story())


def test_installing_on_a_dead_switch_says_why() -> None:
    """The error carries the switch's last problem; once it is back, it has its parts."""

    async def story() -> None:
        switch = MemorySwitch("s")
        switch.unreachable = True
        target = Target("s", switch.connect, sleep=no_wait)
        target.start()
        await until(lambda: "nobody answers" in target.problem)
        with pytest.raises(SwitchError, match="s is down: s: nobody answers"):
            await target.install("job", [route(1)])
        switch.unreachable = False
        await target.wait_up(BOUND)
        assert switch.state == {}
        await target.stop()

    run(story())


def test_a_switch_that_keeps_failing_is_tried_ever_later() -> None:
    """Sessions that end soon after they began make the next attempts wait longer; one that lasts ends the series."""

    async def story() -> None:
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

    run(story())


def test_a_switch_taken_by_another_controller_is_let_go() -> None:
    """The target stops instead of fighting, and says who has it."""

    async def story() -> None:
        async def taken() -> None:
            raise NotPrimary("s: another controller is primary, with election id 8")

        target = Target("s", taken, sleep=no_wait)  # type: ignore[arg-type]
        target.start()
        with pytest.raises(SwitchError, match="election id 8"):
            await target.wait_up(BOUND)
        assert not target.is_up
        await target.stop()

    run(story())
