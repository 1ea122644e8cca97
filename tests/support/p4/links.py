# SPDX-License-Identifier: Apache-2.0
"""Two leaves and a spine on real interfaces, and a cable that is pulled; runs in a namespace of its own.

    unshare --net python tests/support/p4/links.py ENGINE FOLDER

Prints one JSON object for each check (`{"check": ..., "ok": true}`); any other end is a failure.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import msgspec

from netfold.controller.controller import Controller
from netfold.controller.health.wiring import AskWiring, Cables
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Engine, Fabric
from netfold.rpc import rpc
from netfold.wire import operator

BOUND = 60.0
"""Seconds within which everything must happen."""
TRAVEL = 3.0
"""Seconds within which a probe must arrive; a later one counts as lost."""


def interface(end: str) -> str:
    """Name of the interface of a switch's port."""
    return end.replace(":", "-eth")


def plug(fabric: Fabric) -> None:
    """Makes a veth pair for every link between switches."""
    for link in fabric.links:
        if link.b.startswith("spine"):
            a, b = interface(link.a), interface(link.b)
            subprocess.run(["ip", "link", "add", "name", a, "type", "veth", "peer", "name", b], check=True)
            for end in (a, b):
                Path(f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6").write_text("1")
                subprocess.run(["ip", "link", "set", end, "up"], check=True)


def command(engine: Engine, fabric: Fabric, name: str) -> list[str]:
    """The command line of a switch."""
    switch = fabric.switch(name)
    ends = [end for link in fabric.links if link.b.startswith("spine") for end in link.ends if end.node == name]
    ports = [word for end in ends for word in ("-i", f"{end.port}@{interface(str(end))}")]
    if engine == "bmv2":
        return ["simple_switch_grpc", "--no-p4", *ports, "--log-level", "off", "--device-id", str(switch.device_id),
                "--thrift-port", str(9090 + switch.device_id), "--", "--grpc-server-addr", switch.grpc, "--cpu-port",
                "510"]
    return [sys.executable, "-m", "softswitch", "--no-p4", *ports, "--device-id", str(switch.device_id),
            "--grpc-server-addr", switch.grpc, "--cpu-port", "510"]


async def rounds(controller: Controller, number: int, *, pulled: str = "") -> set[str]:
    """Probes so many times, and asks once more what has arrived; each time waits until the probes over every link but
    the pulled one have, which later ones show.  Returns the links that are down."""
    liveness, links = controller.liveness, controller.fabric.links
    others = {n for n in liveness._links.probed if links[n].a != pulled}
    for _ in range(number):
        await liveness.check()
        await liveness.links_respond(others, TRAVEL)
    await liveness.check()
    return {links[n].a for n in liveness._links.down()}


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


def done(check: str) -> None:
    """Reports a check that passed."""
    print(json.dumps({"check": check, "ok": True}), flush=True)


async def checks(controller: Controller) -> None:
    """Run all checks, one after the other."""
    misses = controller.fabric.misses
    assert await rounds(controller, 3 * misses) == set(), "links that work were found down"
    done("probes arrive over every link")
    subprocess.run(["ip", "link", "set", "leaf2-eth2", "down"], check=True)
    assert await rounds(controller, misses, pulled="leaf2:2") == {"leaf2:2"}
    status = await controller.status()
    assert [link.a for link in status.links if not link.up] == ["leaf2:2"]
    await wiring(controller, [("spine1:1", "leaf1:2"), ("", "")])
    done("a cable that is pulled is noticed")
    subprocess.run(["ip", "link", "set", "leaf2-eth2", "up"], check=True)
    async with asyncio.timeout(BOUND):
        while await rounds(controller, 1, pulled="leaf2:2"):
            await asyncio.sleep(0.05)  # a probe may be lost until the carrier is there
    done("a cable that is plugged in again is noticed")


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
    done("cables in the wrong ports are named")


async def main(engine: Engine, folder: Path) -> None:
    """Starts everything, runs all checks, and ends everything."""
    fabric = msgspec.structs.replace(leafspine(2, 1, 2, engine=engine, rundir=folder, path_mtu=1024), probe=0)
    plug(fabric)
    running = []
    try:
        with (folder / "switch.log").open("wb") as log:
            for switch in fabric.switches:
                running.append(subprocess.Popen(command(engine, fabric, switch.name), stdin=subprocess.DEVNULL,
                                                stdout=log, stderr=log))
        async with Controller(fabric, start_timeout=90) as controller:
            await checks(controller)
        await miswired(fabric)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)


if __name__ == "__main__":
    wanted: Engine = "bmv2" if sys.argv[1] == "bmv2" else "softswitch"
    asyncio.run(main(wanted, Path(sys.argv[2])))
