# SPDX-License-Identifier: Apache-2.0
"""Two leaves and a spine on real interfaces, and a cable that is pulled."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import msgspec
import pytest

from netfold.controller.controller import Controller
from netfold.controller.health.wiring import AskWiring, Cables
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Engine, Fabric
from netfold.rpc import rpc
from netfold.wire import operator
from support.sandboxes.processes import Switches, plug
from support.sandboxes.topo import ENGINES, in_sandbox

BOUND = 60.0
"""Seconds within which everything must happen."""
TRAVEL = 3.0
"""Seconds within which a probe must arrive; a later one counts as lost."""


def interface(end: str) -> str:
    """Name of the interface of a switch's port."""
    return end.replace(":", "-eth")


async def rounds(controller: Controller, number: int, *, pulled: str = "") -> set[str]:
    """Probes so many times, and asks once more what has arrived; each time waits until the probes over every link but
    the pulled one have, which later ones show.  Returns the links that are down."""
    liveness, links = controller.liveness, controller.fabric.links
    others = {n for n in liveness.links.probed if links[n].a != pulled}
    for _ in range(number):
        await liveness.check()
        await liveness.links_respond(others, TRAVEL)
    await liveness.check()
    return {links[n].a for n in liveness.links.down()}


async def wiring(controller: Controller, expected: list[tuple[str, str]]) -> Cables:
    """Asks where cables lead until the answer is complete, since a machine that stands still may miss a probe."""
    async with asyncio.timeout(BOUND):
        while True:
            cables = await rpc.call(controller.fabric.jobs, f"{operator.SERVICE}/Wiring", AskWiring(), Cables, BOUND)
            found = [(c.from_a, c.from_b) for c in cables.cables if c.asked]
            if found == expected:
                return cables
            both = zip([end for pair in found for end in pair], [end for pair in expected for end in pair], strict=True)
            assert all(seen in ("", end) for seen, end in both), f"expected {expected}, got {found}"


async def checks(controller: Controller) -> None:
    """Run all checks, one after the other."""
    misses = controller.fabric.misses
    assert await rounds(controller, 3 * misses) == set(), "links that work were found down"
    subprocess.run(["ip", "link", "set", "leaf2-eth2", "down"], check=True)
    assert await rounds(controller, misses, pulled="leaf2:2") == {"leaf2:2"}
    status = await controller.status()
    assert [link.a for link in status.links if not link.up] == ["leaf2:2"]
    await wiring(controller, [("spine1:1", "leaf1:2"), ("", "")])
    subprocess.run(["ip", "link", "set", "leaf2-eth2", "up"], check=True)
    async with asyncio.timeout(BOUND):
        while await rounds(controller, 1, pulled="leaf2:2"):
            await asyncio.sleep(0.05)  # a probe may be lost until the carrier is there


async def miswired(fabric: Fabric) -> None:
    """A controller whose file has the leaves' cables swapped."""
    ends = {"spine1:1": "spine1:2", "spine1:2": "spine1:1"}
    links = tuple(msgspec.structs.replace(link, b=ends.get(link.b, link.b)) for link in fabric.links)
    told = msgspec.structs.replace(fabric, links=links, jobs=f"{fabric.jobs}2")
    async with Controller(told, start_timeout=90) as controller:
        cables = await wiring(controller, [("spine1:1", "leaf2:2"), ("spine1:2", "leaf1:2")])
        assert {sentence for cable in cables.cables for sentence in cable.wrong} == {
            "leaf1:2: expected spine1:2, sees spine1:1", "spine1:2: expected leaf1:2, sees leaf2:2",
            "leaf2:2: expected spine1:1, sees spine1:2", "spine1:1: expected leaf2:2, sees leaf1:2",
        }
        assert not controller.liveness.links_down(), "nobody is judged by a question"


async def links(fabric: Fabric) -> None:
    """Starts one controller after the other, and runs all checks."""
    async with Controller(fabric, start_timeout=90) as controller:
        await checks(controller)
    await miswired(fabric)


@in_sandbox(timeout=200)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_pulled_cable_is_noticed(engine: Engine, tmp_path: Path) -> None:
    """Link probes go over real interfaces, stop with the cable, and come again with it; what they tell of where cables
    lead is so."""
    fabric = msgspec.structs.replace(leafspine(2, 1, 2, engine=engine, rundir=tmp_path, path_mtu=1024), probe=0)
    cables = [link.ends for link in fabric.links if link.b.startswith("spine")]
    plug(*((interface(str(a)), interface(str(b))) for a, b in cables))
    switches = Switches(fabric, tmp_path)
    for switch in fabric.switches:
        own = [end for ends in cables for end in ends if end.node == switch.name]
        switches.start(switch.name, *(f"{end.port}@{interface(str(end))}" for end in own))
    asyncio.run(links(fabric))
