# SPDX-License-Identifier: Apache-2.0
"""Measures a controller as its fabric grows, or a job: its start, its memory, the job's plan, planning anew after a
failure under that job, a round of probes, a look at its status, and how long its loop stands still meanwhile.

    python -m netfold.bench.growth.controller leafspine,32,16,128 64       # a job of 64 ranks; prints one row as JSON

The switches are in the controller's process and have no data plane (`bench.harness.memory_switch`): P4Runtime's
messages are made, and not sent.  Each fabric has a process of its own, since memory that was used once does not go
back.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from netfold.bench.harness.limits import machine
from netfold.bench.harness.memory_switch import MemorySwitch
from netfold.bench.harness.stalls import LongTurn, WatchedLoop
from netfold.controller import garbage
from netfold.controller.controller import Controller
from netfold.controller.switch import pipeline
from netfold.fabric import generate
from netfold.fabric.graph import End, Link, Switch
from netfold.wire.jobs import Join, Resume, Watch
from netfold.wire.plan import Plan

FABRICS: Final = (("leafspine,2,2,8", 8), ("leafspine,32,16,128", 64), ("leafspine,464,16,928", 64),
                  ("threetier,32,16,16,256,8192", 64), ("threetier,64,32,32,1024,65536", 64))
"""4, 48 and 480 switches, and fat trees of 32 and 64 ports, with 1,280 and 5,120; and ranks of the job, spread over the
hosts."""
JOBS: Final = (("leafspine,64,4,4096", 64), ("leafspine,64,4,4096", 512), ("leafspine,64,4,4096", 4096))
"""The same with one fabric and more and more ranks."""
QUICK: Final = FABRICS[:1]
STAGES: Final = ("start", "job", "link", "link back", "leaf link", "leaf link back", "spine", "spine back",
                 "status", "probes", "restart")
"""The stages whose longest turns of the loop are reported."""
SECONDS: Final = 900.0
"""Seconds for one fabric."""


class ControllerRow(msgspec.Struct, frozen=True):
    """The cost of one fabric's controller.  Times are seconds of the clock and of the processor."""

    fabric: str
    switches: int
    hosts: int
    machine: str
    entries: int
    """Entities on all switches together."""
    start: tuple[float, float]
    """Until all switches hold their entries."""
    mebibytes: float
    """Memory of the process once all switches are up, without what it had before; the switches' own is included."""
    peak_mebibytes: float
    ranks: int
    job: tuple[float, float]
    """Until all ranks have their plans, and the switches the job's entries."""
    answers: int
    """Bytes of all these plans, before they are compressed."""
    link: tuple[float, float]
    """Planning anew after a link of a spine went down, until all ranks of the job go on, if it folds over it."""
    link_updates: int
    leaf_link: tuple[float, float]
    """The same after a link of a leaf went down over which the job folds, and the link above came back."""
    leaf_link_updates: int
    spine: tuple[float, float]
    """The same after all links of a spine went down at which the job folds, and the links above came back."""
    spine_updates: int
    unchanged: tuple[float, float]
    """Planning anew where nothing has changed."""
    status: tuple[float, float]
    """One look at the status."""
    restart: tuple[float, float]
    """Until a second controller has read back what all switches hold, and the ranks of the running job have
    registered."""
    restart_updates: int
    """Updates that it then writes: none, if all entries are in place."""
    probes: tuple[float, float]
    """One round of probes of all links, and what arrives of the one before."""
    probes_sent: int
    stalls: dict[str, LongTurn]
    """The longest turn of the loop while each of these went on, in which nothing else could happen."""


def measure(fabrics: Sequence[tuple[str, int]], echo: Callable[[str], None]) -> list[ControllerRow]:
    """A row for each fabric with its job.  Raises subprocess.SubprocessError."""
    rows = []
    for fabric, ranks in fabrics:
        done = subprocess.run([sys.executable, "-m", "netfold.bench.growth.controller", fabric, str(ranks)], check=True,
                              stdout=subprocess.PIPE, timeout=SECONDS)
        rows.append(row := msgspec.json.decode(done.stdout, type=ControllerRow))
        echo(f"{row.switches:>4} switches, {row.hosts:>5} hosts: {row.entries:>8} entries, {row.mebibytes:>7.0f} MiB "
             f"(peak {row.peak_mebibytes:.0f}); start {row.start[0]:.2f} s, a job's plan {row.job[0]:.2f} s "
             f"({row.ranks} ranks, {row.answers / 1e6:.1f} MB); anew after a spine's link {row.link[0]:.2f} s "
             f"({row.link_updates} updates), a leaf's {row.leaf_link[0]:.2f} s ({row.leaf_link_updates}), a spine "
             f"{row.spine[0]:.2f} s ({row.spine_updates}); a look {row.status[0]:.2f} s, a round of {row.probes_sent} "
             f"probes {row.probes[0]:.2f} s; a restart {row.restart[0]:.2f} s ({row.restart_updates})")
        for stage, stall in row.stalls.items():
            echo(f"     {stage}: the loop stood still for {stall}")
    return rows


async def _timed(stage: str, work: Callable[[], Awaitable[Any]]) -> tuple[float, float]:
    """Seconds of the clock and of the processor, in turns of their own."""
    _loop().stage = stage
    await asyncio.sleep(0)
    clock, processor = time.perf_counter(), time.process_time()
    await work()
    took = time.perf_counter() - clock, time.process_time() - processor
    _loop().stage = ""
    await asyncio.sleep(0)
    return took


def _loop() -> WatchedLoop:
    """The loop that runs this."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, WatchedLoop)
    return loop


def _mebibytes(field: str) -> float:
    """A field of /proc/self/status that is memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status: expected a line {field}")


async def _measure(text: str, world: int, folder: Path) -> ControllerRow:
    fabric = generate.parse(text, rundir=folder)
    codec = pipeline.of_fabric(fabric).codec
    fabric = msgspec.structs.replace(fabric, probe=0, steady=0, lease=SECONDS)  # rounds are begun here
    switches = {switch.name: MemorySwitch(codec) for switch in fabric.switches}
    for a, b in (pair for link in fabric.links for pair in (link.ends, link.ends[::-1])):
        if {a.node, b.node} <= switches.keys():
            switches[a.node].cables[a.port] = switches[b.node], b.port
    gc.collect()
    before = _mebibytes("VmRSS")

    async def connect(switch: Switch) -> MemorySwitch:
        return await switches[switch.name].connect()

    def updates() -> int:
        return sum(switch.updates for switch in switches.values())

    def links_of(switch: str) -> list[Link]:
        return [link for link in fabric.links if switch in (end.node for end in link.ends)]

    def cable(links: Sequence[Link], *, up: bool) -> None:
        """Take links between switches up or down."""
        for end in (end for link in links for end in link.ends):
            down = switches[end.node].ports_down
            (down.discard if up else down.add)(end.port)

    def folding_link() -> Link:
        """A link by which a leaf sends sums of the job up."""
        leaf = fabric.leaf_of()[hosts[0].name]
        fold = next(fold for job in controller.jobs.all() for tree in job.trees for fold in tree.folds
                    if fold.switch == leaf and not fold.is_root)
        return next(link for link in fabric.links if End(leaf, fold.parent_port) in link.ends)

    controller = Controller(fabric, connect=connect, start_timeout=SECONDS)
    plans: list[Plan] = []

    async def join() -> None:
        plans.extend(await asyncio.gather(*(controller.jobs.join(
            Join("growth", world, rank, host.address, "10.0.0.1:1", fabric.path_mtu)
        ) for rank, host in enumerate(hosts))))

    async def replan() -> None:
        """Plan anew, with ranks that halt where they are told to."""
        await controller.replan()
        if any(job.stands_still for job in controller.jobs.all()):
            await resume()

    async def resume() -> None:
        """Let all ranks halt, and wait for their plans."""
        plans[:] = await asyncio.gather(*(controller.jobs.resume(Resume(
            plan.job, plan.rank, plan.epoch, dict.fromkeys(range(2 * len(plan.trees)), 0), SECONDS, plan.rank_secret
        )) for plan in plans))

    async def come_back() -> None:
        """Plan anew until the job is back in its place, where all has been cleaned up behind it."""
        await replan()
        while controller.jobs.is_changing:
            if any(job.stands_still and job.round is not None and job.round.halt_sent for job in controller.jobs.all()):
                await resume()
            await asyncio.sleep(0.001)

    async def begin_again() -> None:
        """Start, and have the ranks of the running job register."""
        await controller.start()
        await asyncio.gather(*(anext(rank) for rank in ranks))

    try:
        with garbage.kept_out():
            start = await _timed("start", controller.start)
        gc.collect()
        after, entries = _mebibytes("VmRSS"), sum(len(switch.state) for switch in switches.values())
        hosts = fabric.hosts[:: len(fabric.hosts) // world][:world]
        spines = [switch.name for switch in fabric.switches if switch.role == "spine"]

        await controller.replan()  # what the start has left to do comes before what is timed
        await asyncio.sleep(0)
        unchanged = await _timed("nothing changed", controller.replan)
        job = await _timed("job", join)
        answers = sum(len(msgspec.json.encode(plan)) for plan in plans)
        known = updates()
        cable(cut := links_of(spines[-1])[:1], up=False)
        link, link_updates = await _timed("link", replan), updates() - known
        cable(cut, up=True)
        await _timed("link back", come_back)
        known = updates()
        cable(cut := [folding_link()], up=False)
        leaf_link, leaf_link_updates = await _timed("leaf link", replan), updates() - known
        cable(cut, up=True)
        await _timed("leaf link back", come_back)
        known = updates()
        cable(cut := links_of(next(tree.root for job in controller.jobs.all() for tree in job.trees)), up=False)
        lost, spine_updates = await _timed("spine", replan), updates() - known
        cable(cut, up=True)
        await _timed("spine back", come_back)
        status = await _timed("status", controller.status)
        await _timed("probes", controller.liveness.check)
        sent = sum(len(switch.cables) for switch in switches.values())
        probes = await _timed("probes", controller.liveness.check)
        await controller.stop()

        known, controller = updates(), Controller(fabric, connect=connect, start_timeout=SECONDS)
        ranks = [controller.jobs.watch(Watch(plan.job, plan.rank, plan.epoch, plan.rank_secret, plan.ticket,
                                             plan.waits, plan.round, folds=True)) for plan in plans]
        with garbage.kept_out():
            restart, restart_updates = await _timed("restart", begin_again), updates() - known
    finally:
        await controller.stop()
    return ControllerRow(
        fabric=text, switches=len(fabric.switches), hosts=len(fabric.hosts), machine=machine(), entries=entries,
        start=start, mebibytes=after - before, peak_mebibytes=_mebibytes("VmHWM") - before, ranks=world, job=job,
        answers=answers,
        link=link, link_updates=link_updates, leaf_link=leaf_link, leaf_link_updates=leaf_link_updates,
        spine=lost, spine_updates=spine_updates, unchanged=unchanged, status=status, restart=restart,
        restart_updates=restart_updates, probes=probes, probes_sent=sent,
        stalls={stage: stall for stage, stall in _loop().longest.items() if stage in STAGES},
    )


def main() -> None:
    """Measure the fabric and the job that the command line names, and print their row."""
    logging.disable(logging.WARNING)  # of every link that is down or up again
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=WatchedLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, WatchedLoop)
        with loop.watched():
            row = runner.run(_measure(sys.argv[1], int(sys.argv[2]), Path(folder)))
    os.write(1, msgspec.json.encode(row) + b"\n")


if __name__ == "__main__":
    main()
