# SPDX-License-Identifier: Apache-2.0
"""Turns of the event loop, shared out among those that have much to compute."""

from __future__ import annotations

import asyncio

from netfold.controller.switch import tables
from netfold.controller.switch.entities import Entry
from netfold.controller.switch.reconcile import Update
from netfold.controller.switch.target import Target
from netfold.controller.switch.turns import Turns
from support.control.controller import BOUND, MemorySwitch, until


def routes(count: int, port: int) -> list[Entry]:
    """So many entries of the routing table."""
    return [Entry(tables.ROUTE, (("dst", (dst, 32)),), tables.FORWARD, (("port", port),)) for dst in range(count)]


class CountedSwitch(MemorySwitch):
    """Notes by its fabric's clock of turns when how many updates are written to it."""

    def __init__(self, name: str, turn: list[int], written: list[tuple[int, str, int]]) -> None:
        super().__init__(name)
        self._turn, self._written = turn, written
        self.refuse = self._note

    def _note(self, update: Update) -> bool:
        self._written.append((self._turn[0], self.name, 1))
        return False


async def counted(turn: list[int]) -> None:
    """Count the loop's turns."""
    while True:
        turn[0] += 1
        await asyncio.sleep(0)


async def test_many_switches_are_written_to_in_many_turns() -> None:
    """However many switches get new entries at once, one turn of the loop has at most two times what one may have:
    those that come anew, and those that have waited."""
    turn, written, turns = [0], list[tuple[int, str, int]](), Turns(8)
    switches = [CountedSwitch(f"s{n}", turn, written) for n in range(20)]
    targets = [Target(switch.name, switch.connect, turns=turns) for switch in switches]
    counting = asyncio.create_task(counted(turn))
    for target in targets:
        target.preset({"fabric": routes(20, 1)})
        target.start()
    for target in targets:
        await target.wait_up(BOUND)
    await asyncio.gather(*(target.replace({"fabric": routes(20, 2)}) for target in targets))
    counting.cancel()
    by_turn: dict[int, int] = {}
    for when, _, updates in written:
        by_turn[when] = by_turn.get(when, 0) + updates
    assert len(written) == 2 * 20 * 20
    assert max(by_turn.values()) <= 16
    assert all(switch.state[entry.identity] == entry for switch in switches for entry in routes(20, 2))
    for target in targets:
        await target.stop()


async def test_large_writes_go_in_batches() -> None:
    """600 updates are three requests, in order, as many in one as a turn may have."""
    switch = MemorySwitch("s")
    target = Target("s", switch.connect)
    target.preset({"fabric": routes(600, 1)})
    target.start()
    await target.wait_up(BOUND)
    assert [len(updates) for updates in switch.writes] == [256, 256, 88]
    assert [update.entity for updates in switch.writes for update in updates] == routes(600, 1)
    await target.stop()


async def test_entries_of_jobs_overtake_routes_also_on_a_switch_that_waits_with_routes() -> None:
    """A switch for which a job waits comes before others with their routes, and its own routes with it."""
    turn, written, turns = [0], list[tuple[int, str, int]](), Turns(8)
    switches = [CountedSwitch(f"s{n}", turn, written) for n in range(20)]
    targets = [Target(switch.name, switch.connect, turns=turns) for switch in switches]
    for target in targets:
        target.start()
    for target in targets:
        await target.wait_up(BOUND)
    routing = [asyncio.create_task(target.replace({"routes": routes(20, 1)})) for target in targets]
    await asyncio.sleep(0)
    await targets[-1].install({"job": [Entry(tables.ROUTE, (("dst", (99, 32)),), tables.FORWARD, (("port", 9),))]})
    assert len(switches[-1].state) == 21
    assert sum(bool(switch.state) for switch in switches[:-1]) <= 4, "those that had begun before"
    await asyncio.gather(*routing)
    assert all(len(switch.state) >= 20 for switch in switches)
    for target in targets:
        await target.stop()


async def test_one_that_is_cancelled_leaves_its_place_to_the_next() -> None:
    """Whoever waited behind it gets the turn."""
    turns, done = Turns(1), list[str]()

    async def work(name: str) -> None:
        await turns.wait(name, 1)
        done.append(name)

    tasks = [asyncio.create_task(work(name)) for name in "abc"]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await until(lambda: len(done) == 2)
    assert done == ["a", "c"]
