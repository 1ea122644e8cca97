# SPDX-License-Identifier: Apache-2.0
"""Switches and links that fail: routed around, kept out of new jobs, and taken back when they are back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from netfold.controller import client
from netfold.controller.switch import tables
from netfold.fabric.file import dumps, loads
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import FabricError
from support.control.cables import Cables, link_between
from support.control.controller import until
from support.control.jobs import Rig, rig
from support.control.ways import next_ports

FABRIC = leafspine(2, 2, 4)


@asynccontextmanager
async def cabled(folder: Path, **settings: Any) -> AsyncIterator[tuple[Rig, Cables]]:
    """A rig whose link probes a test sends itself."""
    async with rig(folder, **settings) as r:
        yield r, Cables(r.fabric, r.switches)


def ways(r: Rig, switch: str, host: str) -> set[int]:
    """Ports by which a switch reaches a host."""
    return next_ports(r.switches[switch].state, r.fabric.host(host).address)


async def test_a_cut_link_is_routed_around_and_taken_back(tmp_path: Path) -> None:
    """Both leaves leave the spine whose link to one of them is cut; new jobs get the other tree; all comes back."""
    async with cabled(tmp_path) as (r, cables):
        assert (ways(r, "leaf1", "h3"), ways(r, "leaf2", "h1")) == ({3, 4}, {3, 4})
        cables.cut.add(link_between(r.fabric, "leaf1", "spine1"))
        for _ in range(FABRIC.misses + 1):
            await r.controller.liveness.check()
        await until(lambda: ways(r, "leaf1", "h3") == {4})
        await until(lambda: ways(r, "leaf2", "h1") == {4})
        # spine1 still reaches leaf2's hosts, and leaf1's by way of leaf2
        assert ways(r, "spine1", "h3") == {2}
        status = await client.status(r.fabric.jobs)
        assert [(link.a, link.b) for link in status.links if not link.up] == [("leaf1:3", "spine1:1")]
        plans = await r.together(4)
        assert [tree.name for tree in plans[0].trees] == ["spine2"]
        for plan in plans:
            await r.leave(plan)

        cables.cut.clear()
        for _ in range(2):
            await r.controller.liveness.check()
        await until(lambda: ways(r, "leaf1", "h3") == ways(r, "leaf2", "h1") == {3, 4})
        assert [tree.name for tree in (await r.together(4))[0].trees] == ["spine1", "spine2"]


async def test_a_truer_reason_is_logged_and_told_when_it_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A link is first found silent, and then to carry short packets alone: log, events and status say so, once, and
    nothing is planned anew; when it is cut after its return, the reason is that its probes are lost."""
    lost, narrow = "its probes are lost", "short probes from leaf1:3 arrive at spine1:1"
    async with cabled(tmp_path) as (r, cables):
        number, plans = link_between(r.fabric, "leaf1", "spine1"), list[str]()

        def said() -> list[str]:
            return [one.getMessage().partition("leaf1:3 - spine1:1 is ")[2] for one in caplog.records
                    if "link leaf1:3 - spine1:1 is " in one.getMessage()]

        async def why() -> str:
            return next(link.problem for link in (await client.status(r.fabric.jobs)).links if not link.up)

        async def checks(count: int) -> None:
            for _ in range(count):
                await r.controller.liveness.check()

        cables.cut.add(number)
        await checks(FABRIC.misses + 1)
        await until(lambda: said() == [f"down: {lost}"])
        assert await why() == lost
        planned = r.controller.liveness.changed
        r.controller.liveness.changed = lambda: plans.append("again")  # type: ignore[method-assign]
        cables.cut.clear()
        cables.narrow.add(number)
        await checks(2 * FABRIC.misses + 4)
        assert len(said()) == 2, said()
        assert said()[1].startswith(f"still down: {narrow}"), said()
        assert (await why()).startswith(narrow)
        assert plans == []
        r.controller.liveness.changed = planned  # type: ignore[method-assign]
        events = [event for event in await client.events(r.fabric.jobs) if event.kind == "link down"]
        assert [event.text.partition(narrow)[0] for event in events] == [lost, "still: "]
        cables.narrow.clear()
        await checks(2)
        await until(lambda: said()[2:] == ["up"])
        cables.cut.add(number)
        await checks(FABRIC.misses + 1)
        await until(lambda: said()[3:] == [f"down: {lost}"])


async def test_a_port_that_goes_down_is_routed_around_at_once(tmp_path: Path) -> None:
    """Without a single probe: the switch's word is enough, at either end; it is taken back as fast."""
    async with rig(tmp_path) as r:
        for switch, port in (("leaf1", 3), ("spine1", 1)):
            assert (ways(r, "leaf1", "h3"), ways(r, "leaf2", "h1")) == ({3, 4}, {3, 4})
            r.switches[switch].port(port, up=False)
            await until(lambda: ways(r, "leaf1", "h3") == ways(r, "leaf2", "h1") == {4})
            status = await client.status(r.fabric.jobs)
            assert [(link.a, link.b) for link in status.links if not link.up] == [("leaf1:3", "spine1:1")]
            r.switches[switch].port(port, up=True)
            await until(lambda: ways(r, "leaf1", "h3") == ways(r, "leaf2", "h1") == {3, 4})


async def test_a_lost_switch_is_routed_around_and_taken_back(tmp_path: Path) -> None:
    """Its session is enough; when it is back it gets what was planned meanwhile."""
    async with cabled(tmp_path) as (r, _):
        spine = r.switches["spine1"]
        spine.unreachable = True
        spine.break_session()
        await until(lambda: ways(r, "leaf1", "h3") == ways(r, "leaf2", "h1") == {4})
        assert ways(r, "leaf1", "h1") == {1}
        status = await client.status(r.fabric.jobs)
        assert {link.b for link in status.links if not link.up} == {"spine1:1", "spine1:2"}
        spine.unreachable = False
        await until(lambda: ways(r, "leaf1", "h3") == ways(r, "leaf2", "h1") == {3, 4})


async def test_a_running_jobs_entries_stay_when_routes_change(tmp_path: Path) -> None:
    """Only routes are replaced; what folds goes on folding until all ranks have halted for the entries beside it."""
    async with cabled(tmp_path) as (r, cables):
        await r.together(4)

        def folding() -> dict[str, set[Any]]:
            return {name: {key for key in s.state if key[0] in (tables.CONNECTION, tables.REPLICA)}
                    for name, s in r.switches.items()}

        before = folding()
        cables.cut.add(link_between(r.fabric, "leaf2", "spine2"))
        for _ in range(FABRIC.misses + 1):
            await r.controller.liveness.check()
        await until(lambda: ways(r, "leaf2", "h1") == {3})
        after = folding()
        assert all(before[name] <= after[name] for name in before)


async def test_links_are_probed_in_the_background(tmp_path: Path) -> None:
    """At the fabric's interval, without anybody asking: a cut link goes down on its own."""
    async with rig(tmp_path, probe=0.01) as r:
        cables = Cables(r.fabric, r.switches)
        cables.cut.add(link_between(r.fabric, "leaf1", "spine1"))
        await until(lambda: ways(r, "leaf1", "h3") == {4})
        cables.cut.clear()
        await until(lambda: ways(r, "leaf1", "h3") == {3, 4})


async def test_nothing_is_written_while_all_is_well(tmp_path: Path) -> None:
    """Rounds of probes that all arrive change no entry."""
    async with cabled(tmp_path) as (r, _):
        writes = {name: len(s.writes) for name, s in r.switches.items()}
        for _ in range(3 * FABRIC.misses):
            await r.controller.liveness.check()
        await r.controller.replan()
        assert {name: len(s.writes) for name, s in r.switches.items()} == writes


async def test_a_switch_that_refuses_a_new_route_is_mended(tmp_path: Path) -> None:
    """The failed write is read back and tried again; where that fails as well, with a new session."""
    async with cabled(tmp_path) as (r, cables):
        leaf = r.switches["leaf1"]
        refusals = iter([True, True])
        leaf.refuse = lambda update: next(refusals, False)
        cables.cut.add(link_between(r.fabric, "leaf1", "spine1"))
        for _ in range(FABRIC.misses + 1):
            await r.controller.liveness.check()
        await until(lambda: ways(r, "leaf1", "h3") == {4})


@pytest.mark.parametrize("probe", [-1.0, 0.001, 61.0])
def test_impossible_intervals_are_refused(probe: float) -> None:
    """The check of the fabric's file says which intervals there may be."""
    text = dumps(msgspec.structs.replace(FABRIC, probe=probe))
    with pytest.raises(FabricError, match=r"fabric\.probe: expected 0 \(off\) or 0\.01\.\.60 seconds"):
        loads(text)
