# SPDX-License-Identifier: Apache-2.0
"""A controller that sees drops on the way from the switches' CPU ports judges no link by probes lost meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from netfold.controller.health import excuses
from netfold.controller.health.liveness import Liveness
from netfold.controller.switch import tables
from netfold.controller.switch.codec import Count
from support.control.cables import Cables, link_between
from support.control.jobs import Rig, rig


def lose(r: Rig, end: str) -> int:
    """Cut the link at an end of which probes get lost; its number."""
    leaf, spine = end.split(" - ")
    number = link_between(r.fabric, leaf, spine)
    Cables(r.fabric, r.switches).cut.add(number)
    return number


def over_rate(r: Rig, switch: str, port: int, packets: int) -> None:
    """A switch's meter has dropped so many packets of a port so far."""
    r.switches[switch].counters[tables.OVER_RATE] = {port: Count(packets, 0)}


async def rounds(r: Rig, number: int) -> Liveness:
    """So many regular probes of all links."""
    for _ in range(number):
        await r.controller.liveness.check()
    return r.controller.liveness


@pytest.mark.parametrize("where", ["meter", "stream"])
async def test_probes_lost_while_packets_are_dropped_judge_nobody(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However many they are, while the count at the end where they should arrive rises; the log says so.  Once it
    stands still, as many missing probes as ever take the link down."""
    async with rig(tmp_path) as r:
        number = lose(r, "leaf1 - spine1")
        link = r.fabric.links[number]
        for step in range(4 * r.fabric.misses):
            for end in link.ends:
                if where == "meter":
                    over_rate(r, end.node, end.port, 1000 * step)
                else:
                    r.switches[end.node].sessions[-1].packets_dropped = 1000 * step
            liveness = await rounds(r, 1)
            assert liveness.links_down() == {}, f"judged in round {step}"
        assert f"the link at {link.a} is not judged" in caplog.text
        assert number in (await rounds(r, r.fabric.misses + 1)).links_down()


async def test_what_was_dropped_before_excuses_nothing(tmp_path: Path) -> None:
    """A count that does not rise while probes are missing, however high it is, and what a meter dropped at another
    port."""
    async with rig(tmp_path) as r:
        number = lose(r, "leaf1 - spine1")
        link = r.fabric.links[number]
        for end in link.ends:
            over_rate(r, end.node, end.port, 177_000)
        for step in range(r.fabric.misses):
            assert r.controller.liveness.links_down() == {}
            over_rate(r, "leaf2", 3, 177_000 * step)
            await rounds(r, 1)
        assert number in r.controller.liveness.links_down()


async def test_a_link_that_is_down_stays_down_while_packets_are_dropped(tmp_path: Path) -> None:
    """Drops are no sign that it is up again: only a probe that arrives is."""
    async with rig(tmp_path) as r:
        number = lose(r, "leaf1 - spine1")
        await rounds(r, r.fabric.misses)
        for step in range(1, r.fabric.misses):
            for end in r.fabric.links[number].ends:
                over_rate(r, end.node, end.port, 1000 * step)
            assert number in (await rounds(r, 1)).links_down()


async def test_suspects_are_not_judged_while_packets_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probes of suspect links follow the same rule: the link is asked on until the drops end."""
    monkeypatch.setattr("netfold.controller.health.liveness.SUSPECT_INTERVAL", 0.001)
    async with rig(tmp_path) as r:
        number, dropped, asked = lose(r, "leaf1 - spine1"), 0, 0
        answers = link_between(r.fabric, "leaf1", "spine2")

        async def rising(session: object, name: str, index: int) -> int:
            nonlocal dropped, asked
            asked += 1
            dropped += 1000 * (asked < 40)
            return dropped

        monkeypatch.setattr(type(r.switches["leaf1"].sessions[-1]), "read_cell", rising)
        r.controller.liveness.suspect({number, answers})
        task = r.controller.liveness.suspect_task
        assert task is not None
        while asked < 40:
            assert r.controller.liveness.links_down() == {}
            await asyncio.sleep(0)
        await task
        assert list(r.controller.liveness.links_down()) == [number]


async def test_a_switch_that_hangs_is_not_excused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what it drops, if it does not answer: its links are judged as ever."""
    monkeypatch.setattr(excuses, "COUNT_TIMEOUT", 0.001)
    async with rig(tmp_path) as r:
        number = lose(r, "leaf1 - spine1")

        async def hangs(session: object, name: str, index: int) -> int:
            return await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(type(r.switches["leaf1"].sessions[-1]), "read_cell", hangs)
        assert number in (await rounds(r, r.fabric.misses)).links_down()
