# SPDX-License-Identifier: Apache-2.0
"""One large job at a controller: processor seconds of its joins and leaves, the bytes of all answers, and memory.

    python bench/scripts/many_ranks.py [--fabric leafspine,64,4,4096] [--ranks 4096]

The ranks are calls within the controller's process, and its switches have no data plane
(`bench.harness.memory_switch`).  Ranks are dealt out to the hosts in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from netfold.bench.harness.limits import machine
from netfold.bench.harness.memory_switch import MemorySwitch
from netfold.controller.controller import Controller
from netfold.controller.switch import pipeline
from netfold.fabric import generate
from netfold.fabric.graph import Switch
from netfold.wire.jobs import MAX_WORLD, Event, Join, Leave, Plan, Settle, Settled, Watch
from netfold.wire.roce import UDP_PORT, UDP_PORTS

SECONDS = 900.0
"""Most seconds of a step."""


async def timed(what: str, work: Callable[[], Awaitable[Any]]) -> Any:
    """The result of a step, whose processor seconds are printed."""
    before = time.process_time()
    result = await work()
    resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    print(f"{what}: {time.process_time() - before:.2f} s of the processor, then {int(resident.split()[1]) >> 10} MiB")
    return result


async def measure(text: str, world: int, folder: Path) -> None:
    """Prints the figures of one job."""
    fabric = generate.parse(text, rundir=folder)
    codec = pipeline.of_fabric(fabric).codec
    fabric = msgspec.structs.replace(fabric, probe=0, steady=0, lease=SECONDS)
    switches = {switch.name: MemorySwitch(codec) for switch in fabric.switches}

    async def connect(switch: Switch) -> MemorySwitch:
        return await switches[switch.name].connect()

    def entries() -> int:
        return sum(len(switch.state) for switch in switches.values())

    def request(rank: int) -> Join:
        host, turn = fabric.hosts[rank % len(fabric.hosts)], rank // len(fabric.hosts)
        port = UDP_PORTS[turn - 1] if turn else UDP_PORT
        return Join("many", world, rank, host.address, f"{host.address}:{40000 + turn}", fabric.path_mtu, udp_port=port,
                    timeout=600)

    controller = Controller(fabric, connect=connect, start_timeout=SECONDS)
    jobs = controller.jobs

    async def watch(plan: Plan) -> AsyncGenerator[Event, None]:
        events = jobs.watch(Watch(plan.job, plan.rank, plan.epoch, plan.rank_secret, plan.ticket, plan.waits,
                                  plan.round, folds=plan.folds))
        await anext(events)
        return events

    async def leave(plan: Plan, events: AsyncGenerator[Event, None]) -> None:
        async def settle() -> None:
            async for event in events:
                if isinstance(event, Settle):
                    await jobs.settled(Settled(plan.job, plan.rank, plan.epoch, plan.rank_secret))

        settling = asyncio.create_task(settle())
        await jobs.leave(Leave(plan.job, plan.rank, plan.epoch, secret=plan.rank_secret))
        await settling

    async def all_leave() -> None:
        await asyncio.gather(*map(leave, plans, watches))

    await controller.start()
    try:
        before = entries()
        print(f"{machine()}; {len(switches)} switches, {len(fabric.hosts)} hosts, {before} entries")
        plans: list[Plan] = await timed(f"{world} ranks join", lambda: asyncio.gather(
            *(jobs.join(request(rank)) for rank in range(world))))
        sizes = [len(msgspec.json.encode(plan)) for plan in plans]
        print(f"answers: {sum(sizes) / 1e6:.1f} MB in all, {min(sizes)} to {max(sizes)} bytes; "
              f"{len(plans[0].trees)} trees, {entries() - before} entries {plans[0].reason}")
        watches = await timed("all watch", lambda: asyncio.gather(*map(watch, plans)))
        await timed("all leave", all_leave)
        print(f"left: {entries() - before} entries")
    finally:
        await controller.stop()


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fabric", default="leafspine,64,4,4096")
    parser.add_argument("--ranks", type=int, default=MAX_WORLD)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(options.fabric, options.ranks, Path(folder)))


if __name__ == "__main__":
    main()
