# SPDX-License-Identifier: Apache-2.0
"""`netfold bench simulator`: the packet simulator compared with a real fabric, with the same flows on the same paths,
and with the same folds (`simulated_folds`).

The real fabric has Mininet's shaped links, softswitches, and queue pairs between hosts.  Compared is the time at which
the last flow has arrived.  The rates must be low enough that the links, not this machine's processors, are the limit.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from netfold.bench.commands import simulated_folds
from netfold.bench.options.paths import CASES, SimulatorOptions
from netfold.bench.ranks.simulator import ReplayFlow, ReplayTask, ReplayTimes
from netfold.disk import files
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Fabric
from netfold.sim.engines.packet import PacketOutcome, Transport, simulate
from netfold.sim.engines.placement import SCHEMES, Placement, Scheme, place
from netfold.sim.engines.topology import Topology, of_fabric
from netfold.sim.workloads.workload import COLLECTIVES, Workload, ring_all_gather, shifted_all_to_all
from netfold.topo.network import sandbox
from netfold.wire import roce

if TYPE_CHECKING:
    from netfold.topo.network.net import Network

BAR: Final = 0.15
"""By which part of the real time the simulated one may differ."""
DELAY: Final = 50e-6
"""Seconds over one link: a packet's time between processes on an idle fabric, a few per cent of a flow's."""
FIRST_WINDOW: Final = 32
"""First window of host/native/rc_requester.c in packets, where its largest window is not smaller."""
HOSTS: Final = 8
NBYTES: Final = 4_000_000
"""Bytes on each rank, in the cases of flows."""
WINDOW: Final = 8
"""Packets of a queue pair in flight, in the cases of flows."""
SCHEME: Final = SCHEMES["ethereal"]
WORKLOADS: Final = {**COLLECTIVES, "shifted all-to-all": shifted_all_to_all, "all-gather": ring_all_gather}
ACK: Final = 10
"""Bytes of ACKs on a link for each packet: one ACK of 62 bytes answers about six, as counted on the fabric."""


class Case(NamedTuple):
    """One workload on one fabric."""

    workload: str
    spines: int


FLOWS: Final = (
    Case("all-to-all", 2), Case("shifted all-to-all", 2), Case("ring", 2), Case("all-gather", 2),
    Case("halving-doubling", 2), Case("all-to-all", 1), Case("halving-doubling", 1),
)
"""With 8 hosts, four on each leaf, two uplinks limit what crosses between leaves, and one uplink even more so."""


def queue_pairs(topology: Topology, workload: Workload, scheme: Scheme) -> Placement:
    """The scheme's placement, turned into one that queue pairs can carry.

    There are as many queue pairs between two hosts as uplinks, and a flow goes over all of them in equal parts.  Raises
    ValueError for a flow that is neither whole nor in as many pieces.
    """
    placed = place(topology, workload, scheme)
    lanes = topology.aggs
    count = np.bincount(placed.task, minlength=len(workload))[placed.task]
    if wrong := set(count.tolist()) - {1, lanes}:
        raise ValueError(f"a flow in {wrong.pop()} pieces: expected it whole, or over all {lanes} uplinks")
    of = np.repeat(np.arange(len(placed)), lanes // count)
    task = placed.task[of]
    lane = np.arange(len(task)) % lanes
    size = workload.size[task]
    return Placement(task, size * (lane + 1) // lanes - size * lane // lanes, placed.path[of], np.ones(len(task)))


def flows(fabric: Fabric, topology: Topology, workload: Workload, scheme: Scheme) -> tuple[list[ReplayFlow], list[int]]:
    """The workload in the form of `ReplayTask`: its flows, and all source ports.

    Raises ValueError for flows that cannot be replayed.
    """
    spines = [switch.name for switch in fabric.switches if switch.role == "spine"]
    ports = [roce.PATH_PORT + path for path in range(1, len(spines) + 1)]
    placed = queue_pairs(topology, workload, scheme)
    pieces: dict[int, list[int]] = defaultdict(list)
    for task, path in zip(placed.task.tolist(), placed.path.tolist(), strict=True):
        pieces[task].append(path)
    waits: dict[int, list[int]] = defaultdict(list)
    for before, after in workload.waits.tolist():
        waits[after].append(before)
    return [ReplayFlow(int(workload.source[task]), int(workload.destination[task]), int(workload.size[task]),
                       waits[task], [ports[path] for path in pieces[task]]) for task in range(len(workload))], ports


def real(
    network: Network, case: Case, workload: Workload, topology: Topology, window: int, rounds: int, folder: Path
) -> ReplayTimes:
    """Replay the workload on the fabric: when each round began, and when its last flow arrived.  Raises RankFailed."""
    todo, ports = flows(network.fabric, topology, workload, SCHEME)
    file = folder / f"{case.workload.replace(' ', '-')}-{case.spines}.json"
    files.replace(file, msgspec.json.encode(ReplayTask(todo, ports, window, rounds)))
    command = [sys.executable, "-m", "netfold.bench.ranks.simulator", str(file)]
    output = network.launch(command, job=file.stem).wait(within=240)
    times = [msgspec.json.decode(lines[-1], type=ReplayTimes) for lines in output]
    ends = [max(one.ends[turn] for one in times) for turn in range(rounds)]
    return ReplayTimes(times[0].begins, ends, sum(one.resent for one in times))


def simulated(topology: Topology, workload: Workload, window: int) -> PacketOutcome:
    """Simulate the workload with the packets, queue pairs and windows of the real transport.

    ACKs take bandwidth, so that they queue behind the data of the other direction as they do on the fabric.
    """
    packet = Transport(mtu=roce.PATH_MTU, header=58)
    in_flight = packet.round_trip(topology) * topology.host_rate / 8 / (packet.mtu + packet.header)
    transport = Transport(mtu=packet.mtu, header=packet.header, window=min(FIRST_WINDOW, window) / in_flight,
                          max_window=window / in_flight, ack=ACK, rto=1.0, jitter=0.0)
    return simulate(topology, workload, SCHEME, transport=transport, deadline=1e3,
                    placement=queue_pairs(topology, workload, SCHEME))


def run(options: SimulatorOptions) -> bool:
    """Compare in a sandbox, where the process starts anew, print the table, and return whether all cases meet the
    bar."""
    kinds = options.names("cases", CASES)
    sandbox.enter()
    rows = _flows(options.rate, options.rounds) if "flows" in kinds else []
    folds = simulated_folds.run(rate=options.rate, rounds=options.rounds, delay=DELAY) if "folds" in kinds else []
    met = True
    for kind, ratios, bar in (("flows", [float(str(row["ratio"])) for row in rows], BAR),
                              ("folds", [row.ratio for row in folds], simulated_folds.BAR)):
        if ratios:
            worst = max(abs(1 - ratio) for ratio in ratios)
            met &= worst <= bar
            print(f"{kind}: the simulator is off by at most {worst:.1%}; the bar is {bar:.0%}: "
                  f"{'met' if worst <= bar else 'missed'}")
    options.write({"rate": options.rate, "rows": rows, "folds": [row._asdict() for row in folds]})
    return met


def _flows(rate: str, rounds: int) -> list[dict[str, object]]:
    from netfold.topo.network.net import Network

    print(f"{HOSTS} hosts on 2 leaves, {rate} links, {NBYTES / 1e6:g} MB on each rank, "
          f"{os.cpu_count()} cores, median of {rounds} rounds")
    print(f"{'workload':<20} {'spines':>6} {'real ms':>9} {'min - max':>15} {'simulated ms':>12} {'sim/real':>9} "
          f"{'resent':>7}")
    rows: list[dict[str, object]] = []
    for spines in dict.fromkeys(case.spines for case in FLOWS):
        fabric = leafspine(2, spines, HOSTS, rate=rate, rundir=sandbox.rundir(), path_mtu=roce.PATH_MTU)
        topology = of_fabric(fabric, delay=DELAY)
        with tempfile.TemporaryDirectory(dir=sandbox.rundir()) as logs, Network(fabric, logs=Path(logs)) as network:
            for case in (case for case in FLOWS if case.spines == spines):
                workload = WORKLOADS[case.workload](range(topology.size), NBYTES)
                times = real(network, case, workload, topology, WINDOW, rounds, Path(logs))
                took = [end - begin for begin, end in zip(times.begins, times.ends, strict=True)]
                measured, model = statistics.median(took), simulated(topology, workload, WINDOW).time
                print(f"{case.workload:<20} {spines:>6} {measured * 1e3:>9.1f} {min(took) * 1e3:>7.1f}-"
                      f"{max(took) * 1e3:<7.1f} {model * 1e3:>12.1f} {model / measured:>9.3f} {times.resent:>7}",
                      flush=True)
                rows.append({**case._asdict(), "real": took, "simulated": model, "ratio": model / measured})
    return rows
