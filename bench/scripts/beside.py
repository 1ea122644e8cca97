# SPDX-License-Identifier: Apache-2.0
"""Measures folds beside each other: two jobs at once on the same hosts, and new groups.

    python bench/scripts/beside.py                     # all, a minute or two
    python bench/scripts/beside.py --only jobs --rate 1gbit --mib 16 --calls 5
    python bench/scripts/beside.py --only groups,mesh --hosts 8 --group-count 64

jobs      each of two jobs with a rank on every host alone, then both at once: MiB of tensor a second and rank
idle      an allreduce of 4 KiB and of a large tensor beside a job on the same hosts that does nothing, and without it:
          what it costs that the kernel tells the jobs' packets apart
groups    a job's ranks make so many groups of half of them, one after the other; seconds from the first call until all
          have folded once
mesh      the controller plans so many groups of two ranks, which are all that one dimension of a mesh has: seconds from
          the first request until the last rank has its plan, and all switches their entries

Everything runs on a 2 x 2 fabric of softswitches in a sandbox, with links of one rate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from netfold.fabric.generate import leafspine
from netfold.rpc.channel import aio_channel
from netfold.topo.network import sandbox
from netfold.wire import roce
from netfold.wire.jobs import SERVICE, Done, GroupOf, Join, Leave
from netfold.wire.plan import Plan

ROUNDS = 6
SMALL = 2000
"""Calls of the smallest tensor that are timed."""

if TYPE_CHECKING:
    from netfold.fabric.graph import Fabric
    from netfold.topo.network.net import Network
    from netfold.topo.processes.ranks import Ranks


def main() -> None:
    """Measure what was asked for, in a sandbox; as a rank: do what a rank does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="jobs,idle,groups,mesh", help="some of %(default)s")
    parser.add_argument("--rate", default="1gbit", help="of each link")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--mib", type=int, default=16, help="of a tensor")
    parser.add_argument("--calls", type=int, default=5, help="timed ones")
    parser.add_argument("--group-count", type=int, default=64)
    parser.add_argument("--rank", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        from netfold.topo.processes.rank_program import run_rank

        run_rank({"sums": sums, "groups": groups, "waits": waits}[options.rank], options)
        return
    sandbox.enter()
    from mininet.log import setLogLevel

    from netfold.topo.network.net import Network

    setLogLevel("error")
    logs = Path(tempfile.mkdtemp(prefix="logs-", dir=sandbox.rundir()))
    fabric = leafspine(2, 2, options.hosts, rate=options.rate, rundir=sandbox.rundir())
    with Network(fabric, logs=logs) as network:
        measures = {"jobs": two_jobs, "idle": beside_idle, "groups": made, "mesh": mesh}
        for name in options.only.split(","):
            measures[name](network, options)


# ---- what is measured ------------------------------------------------------------------------------------------------
def launch(network: Network, options: argparse.Namespace, job: str, program: str, **how: Any) -> Ranks:
    """Start a job's ranks, which run this file."""
    command = [sys.executable, str(Path(__file__).resolve()), "--rank", program]
    for name in ("mib", "calls", "group_count"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    return network.launch(command, job=job, **how)


def results(ranks: Ranks) -> list[dict[str, Any]]:
    """The last line of each rank."""
    return [json.loads(lines[-1]) for lines in ranks.wait(within=300)]


def two_jobs(network: Network, options: argparse.Namespace) -> None:
    """Print the rate of a job alone, and of two at once."""
    (alone,) = (rate(results(launch(network, options, "alone", "sums")), options),)
    pair = [launch(network, options, name, "sums", env={"BESIDE": "2"}) for name in ("red", "blue")]
    both = [rate(results(ranks), options) for ranks in pair]
    print(f"jobs: one alone {alone:.1f} MiB/s, two at once {both[0]:.1f} and {both[1]:.1f}, together "
          f"{sum(both) / alone:.2f} of one", flush=True)


def beside_idle(network: Network, options: argparse.Namespace) -> None:
    """Print the time of small and large calls beside an idle job, and alone, by turns."""
    seconds: dict[tuple[int, bool], list[float]] = {}
    for turn in range(ROUNDS):
        for idle in (False, True) if turn % 2 else (True, False):
            over = network.logs / f"over{turn}{idle}"
            waiting = launch(network, options, "waits", "waits", env={"OVER": str(over)}) if idle else None
            for nbytes in (4 << 10, options.mib << 20):
                found = results(launch(network, options, "timed", "sums", env={"NBYTES": str(nbytes)}))
                assert all(one["rail"] == "innet" for one in found), found
                seconds.setdefault((nbytes, idle), []).append(max(statistics.median(one["seconds"]) for one in found))
            over.touch()
            if waiting is not None:
                results(waiting)
    for nbytes in (4 << 10, options.mib << 20):
        alone, beside = seconds[nbytes, False], seconds[nbytes, True]
        ratios = sorted(b / a for a, b in zip(alone, beside, strict=True))
        print(f"idle: {nbytes >> 10} KiB beside an idle job {1e3 * statistics.median(beside):.2f} ms, alone "
              f"{1e3 * statistics.median(alone):.2f}, ratio {statistics.median(ratios):.3f} ({ratios[0]:.2f}.."
              f"{ratios[-1]:.2f}) of {ROUNDS} rounds", flush=True)


def rate(found: list[dict[str, Any]], options: argparse.Namespace) -> float:
    """MiB a second of a job, by its slowest rank's median call."""
    assert all(one["rail"] == "innet" for one in found), found
    return float(options.mib / max(statistics.median(one["seconds"]) for one in found))


def made(network: Network, options: argparse.Namespace) -> None:
    """Print the time until groups have folded."""
    found = results(launch(network, options, "groups", "groups"))
    slowest = max(found, key=lambda one: float(one["seconds"]))
    print(f"groups: {options.group_count} made in {slowest['seconds']:.2f} s, {slowest['folded']} of "
          f"{slowest['mine']} of a rank's fold", flush=True)


def mesh(network: Network, options: argparse.Namespace) -> None:
    """Print the time until all groups of a dimension are planned."""
    seconds, refused = asyncio.run(planned(network.fabric, options.group_count))
    print(f"mesh: {options.group_count} groups planned at once in {seconds:.2f} s, {refused} refused", flush=True)


async def planned(fabric: Fabric, count: int) -> tuple[float, int]:
    """Seconds until all groups of a dimension are planned, and how many ranks were refused.  This process asks for all
    ranks: those of a group are on hosts half of the fabric apart."""
    hosts = [fabric.hosts[rank * len(fabric.hosts) // (2 * count)] for rank in range(2 * count)]
    async with aio_channel(fabric.jobs) as channel:
        call = channel.unary_unary(f"/{SERVICE}/Join", msgspec.json.encode, msgspec.json.Decoder(Plan).decode)

        def ports() -> Iterator[int]:
            """UDP ports, different ones at each host."""
            used = Counter[str]()
            for host in hosts:
                yield roce.UDP_PORTS[used[host.name]]
                used[host.name] += 1

        asked = [Join("mesh", 2 * count, rank, host.address, f"{host.address}:1", 0, udp_port=port, fold=False)
                 for rank, (host, port) in enumerate(zip(hosts, ports(), strict=True))]
        plans = await asyncio.gather(*(call(one) for one in asked))
        begin = time.perf_counter()
        groups = []
        for rank, (one, plan) in enumerate(zip(asked, plans, strict=True)):
            members = [rank % count, rank % count + count]
            group = GroupOf(plan.job, plan.epoch, rank, plan.rank_secret, members, 1)
            groups.append(call(msgspec.structs.replace(one, world=2, rank=rank // count, fold=True, group=group)))
        found = await asyncio.gather(*groups, return_exceptions=True)
        seconds = time.perf_counter() - begin
        leave = channel.unary_unary(f"/{SERVICE}/Leave", msgspec.json.encode, msgspec.json.Decoder(Done).decode)
        await asyncio.gather(*(leave(Leave(plan.job, plan.rank, plan.epoch, "the groups are planned", plan.rank_secret))
                               for plan in plans))
        return seconds, sum(isinstance(one, BaseException) for one in found)


# ---- ranks -----------------------------------------------------------------------------------------------------------
def sums(options: argparse.Namespace) -> None:
    """Timed allreduces; with BESIDE more before and after, so that two jobs are under way all the time."""
    import numpy as np

    import netfold

    nbytes = int(os.environ.get("NBYTES", options.mib << 20))
    calls = max(options.calls, min(SMALL, SMALL * (4 << 10) // nbytes))
    rest = calls if os.environ.get("BESIDE") else max(1, calls // 10)
    with netfold.init(rail="innet" if "NBYTES" in os.environ else "auto") as comm:
        data = np.ones(nbytes // 4, np.float32)
        seconds = []
        for number in range(rest + calls + (rest if os.environ.get("BESIDE") else 0)):
            data.fill(1)
            begin = time.perf_counter()
            comm.allreduce(data, data)
            if rest <= number < rest + calls:
                seconds.append(time.perf_counter() - begin)
            assert data[0] == data[-1] == comm.size
        print(json.dumps({"seconds": seconds, "rail": comm.rail}))


def waits(options: argparse.Namespace) -> None:
    """Folds once, and then waits until the others have been timed."""
    import numpy as np

    import netfold

    with netfold.init(rail="innet") as comm:
        comm.allreduce(np.ones(1 << 18, np.float32))
        while not Path(os.environ["OVER"]).exists():
            time.sleep(0.05)
        print(json.dumps({}))


def groups(options: argparse.Namespace) -> None:
    """Groups of each residue and each half, made anew until there are enough."""
    import numpy as np

    import netfold

    with netfold.init(rail="innet") as comm:
        size, rank = comm.size, comm.rank
        data = np.ones(1 << 15, np.float32)
        comm.allreduce(data)
        members = [place for place in range(size) if place % (size // 2) == rank % (size // 2)]
        mine = options.group_count // (size // 2)  # each is made at the same time as its neighbours, as in a mesh
        begin, folded, kept = time.perf_counter(), 0, []
        for _ in range(mine):
            kept.append(comm.group(members))
            assert kept[-1].allreduce(data)[0] == len(members)
            folded += "tree(s) for this group" in kept[-1].explain(data.nbytes)
        print(json.dumps({"seconds": time.perf_counter() - begin, "folded": folded, "mine": mine}))


if __name__ == "__main__":
    main()
