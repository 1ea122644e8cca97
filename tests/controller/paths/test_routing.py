# SPDX-License-Identifier: Apache-2.0
"""Routes are planned anew where something that they follow from has changed, and only there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from netfold.controller.health.drains import Drains
from netfold.controller.paths.routing import Routing
from netfold.controller.paths.steering import Inputs, Steering
from netfold.controller.switch.entities import State
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Up
from netfold.wire.paths import tcp_ports
from support.control.controller import BOUND, run, until

FABRIC = leafspine(3, 2, 6)
UPLINKS = (3, 4)
"""Ports of leaf1."""
LINKS = [number for number, link in enumerate(FABRIC.links) if "spine" in link.a or "spine" in link.b]


class Switch:
    """A target that remembers what it was given, and how often."""

    def __init__(self) -> None:
        self.is_heard, self.held, self.writes = True, dict[str, State](), 0

    def preset(self, parts: Mapping[str, State]) -> None:
        self.held = _filled(parts)

    async def replace(self, parts: Mapping[str, State]) -> None:
        await asyncio.sleep(0)
        self.preset(parts)
        self.writes += 1


def _filled(parts: Mapping[str, State]) -> dict[str, State]:
    """The parts that have entities."""
    return {name: part for name, part in parts.items() if part}


class World:
    """A fabric whose links, switches, drains, modes and suspicions change."""

    def __init__(self) -> None:
        self.now, self.down = 0.0, set[int]()
        self.drains = Drains(FABRIC)
        self.steering = Steering(FABRIC, self.drains, clock=lambda: self.now)
        self.switches = {switch.name: Switch() for switch in FABRIC.switches}
        self.routing = Routing(self.steering, self.switches)  # type: ignore[arg-type]
        self.plans = 0
        plan = self.steering.plan

        def counted(given: Any) -> Any:
            self.plans += 1
            return plan(given)

        self.plan, self.steering.plan = plan, counted  # type: ignore[method-assign]

    @classmethod
    async def made(cls) -> World:
        """One whose switches hold their first entries."""
        world = cls()
        await world.routing.preset(world.steering.everything)
        world.plans = 0
        return world

    def wanted(self) -> Any:
        """The forwarding that a new plan would give the switches."""
        return self.steering.tables.all_parts(self.plan(self.steering.inputs(self.up())))

    def up(self) -> Up:
        """What is up."""
        whole = self.steering.everything
        away = {name for name, switch in self.switches.items() if not switch.is_heard}
        return Up(whole.nodes - away, whole.links - self.down)

    def change(self, what: str, number: int) -> None:
        """One of the things that routes follow from, or that they do not."""
        link = LINKS[number % len(LINKS)]
        switch = self.switches[f"spine{1 + number % 2}"]
        path = self.steering.whole.paths("leaf1", "leaf2")[number % 2]
        match what:
            case "link":
                self.down ^= {link}
            case "switch":
                switch.is_heard = not switch.is_heard
            case "drain":
                self.drains.mark("spine1", "spine1" not in self.drains)
            case "mode":
                self.steering.modes["leaf2"] = "spray" if number % 2 else "pinned"
            case "suspect":
                self.steering.suspect(path)
            case "clear":
                self.steering.clear_suspicion(path)
            case "probed":
                self.steering.probed(path, came=number % 4 < 2)
            case "time":
                self.now += number
            case "pin":
                source_port = sorted(self.steering.ports(self.steering.whole, "leaf1", "leaf2"))[number % 2]
                name = (source_port, *tcp_ports(source_port))[number % 3]
                self.steering.chosen["leaf1", "leaf2", name] = UPLINKS[(number + 1) % 2]


KINDS = ("link", "switch", "drain", "mode", "suspect", "clear", "probed", "time", "pin", "nothing")
CHANGES = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 7)), max_size=12)


@given(CHANGES)
def test_every_switch_that_is_up_holds_what_a_new_plan_would_give_it(changes: list[tuple[str, int]]) -> None:
    """After any changes, also of a switch that was away meanwhile; and looking again plans and writes nothing."""

    async def story() -> None:
        world = await World.made()
        for what, number in changes:
            world.change(what, number)
            await world.routing.update(world.up())
            wanted = world.wanted()
            for name, switch in world.switches.items():
                if switch.is_heard:
                    assert switch.held == _filled(wanted.get(name, {})), (name, what)
            before = world.plans, [switch.writes for switch in world.switches.values()]
            await world.routing.update(world.up())
            assert (world.plans, [switch.writes for switch in world.switches.values()]) == before

    run(story())


async def test_a_start_with_all_switches_up_plans_once() -> None:
    """The preset forwarding of all switches is not planned again at the first change."""
    world = await World.made()
    await world.routing.update(world.up())
    assert world.plans == 0


async def test_of_two_updates_at_once_the_later_one_counts() -> None:
    """An update that waits for a switch does not undo the one that was begun after it."""
    world = await World.made()
    world.down = {LINKS[0]}
    first = asyncio.create_task(world.routing.update(world.up()))
    await asyncio.sleep(0)
    world.down = {LINKS[1]}
    await asyncio.gather(first, world.routing.update(world.up()))
    wanted = world.wanted()
    assert all(switch.held == _filled(wanted[name]) for name, switch in world.switches.items())


async def test_planning_leaves_the_loop_to_others() -> None:
    """While a plan is made the loop runs: the plan waits for what only the loop does."""
    world = await World.made()
    loop, plan = asyncio.get_running_loop(), world.plan

    def waits(given: Inputs) -> Any:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(BOUND)
        return plan(given)

    world.steering.plan = waits  # type: ignore[method-assign]
    world.down = {LINKS[0]}
    await world.routing.update(world.up())
    assert world.switches["leaf1"].writes == 1


async def test_who_asks_and_goes_away_leaves_no_switch_behind() -> None:
    """An update whose caller is cancelled, as an operator's call may be, is written all the same."""
    world = await World.made()
    world.down = {LINKS[0]}
    asked = asyncio.create_task(world.routing.update(world.up()))
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await world.routing.update(world.up())
    wanted = world.wanted()
    await until(lambda: all(switch.held == _filled(wanted[name]) for name, switch in world.switches.items()))


async def test_a_switch_that_hangs_holds_up_no_other() -> None:
    """The next update reaches all others, though the last one still waits for this one; and it gets both in order."""
    world = await World.made()
    gate, hanging = asyncio.Event(), world.switches["leaf1"]
    replace, turn = hanging.replace, asyncio.Lock()

    async def hangs(parts: Mapping[str, State]) -> None:
        async with turn:
            await gate.wait()
            await replace(parts)

    hanging.replace = hangs  # type: ignore[method-assign]
    world.down = {LINKS[0]}
    first = asyncio.create_task(world.routing.update(world.up()))
    await until(lambda: world.switches["leaf2"].writes == 1)
    world.down = {LINKS[0], LINKS[-1]}
    second = asyncio.create_task(world.routing.update(world.up()))
    await until(lambda: world.switches["leaf2"].writes == 2)
    assert hanging.writes == 0
    gate.set()
    await asyncio.gather(first, second)
    assert hanging.held == _filled(world.wanted()["leaf1"])
