# SPDX-License-Identifier: Apache-2.0
"""Times sums that hosts with an ordinary RDMA stack fold, beside `ib_write_bw` between the same hosts.

    python bench/scripts/verbs.py [--machines 2] [--bytes 4000000] [--rounds 4] [--losses 0,0.001,0.005,0.01]
                                  [--json FILE]

Machines with rdma_rxe under two leaves and a spine boot once.  In each round `ib_write_bw` writes between the first and
the last one, one way, and then with -b both ways at once; then all of them sum float32 tensors, each as large.  A host
sends and receives a tensor's bytes in a sum, so all are given as MiB/s of one direction.  Then each share of losses is
put on all links, both ways, and sums are timed again, with the packets that NICs say they have sent.  The processor
time is that of this machine: QEMUs, which emulate the hosts' processors, and switches.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from netfold.bench.harness.workers import Workers
from netfold.disk import files
from netfold.fabric.generate import leafspine
from netfold.topo.network import sandbox
from netfold.topo.network.net import Network
from netfold.topo.processes.allreduce_rank import RankSetup, Timing, TimingCommand
from netfold.topo.processes.ranks import environment
from netfold.topo.rxe.counts import RDMA_DEVICE
from netfold.topo.rxe.hosts import Guests
from netfold.topo.rxe.machine import Machine

SECONDS = 900.0
"""How long any answer may take; what hangs is ended then."""
TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20


def processor_seconds(pid: int) -> float:
    """User and system seconds that a process and those that it has started have used."""
    pids, used = [pid], 0.0
    while pids:
        one = pids.pop()
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        used += (int(fields[11]) + int(fields[12])) / TICKS
        pids += [int(child) for task in Path(f"/proc/{one}/task").iterdir()
                 for child in (task / "children").read_text().split()]
    return used


def written(machines: tuple[Machine, Machine], address: str, mtu: int, nbytes: int, *, both: bool) -> float:
    """MiB/s that an end of `ib_write_bw` writes, in messages of 512 KiB, alone or while the other end does as well."""
    command = f"ib_write_bw {'-b ' if both else ''}-d {RDMA_DEVICE} -m {mtu} -s 524288 -t 2 -n {max(5, nbytes >> 19)}"
    server = subprocess.Popen(machines[0].attach(["sh", "-c", command]), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        machines[0].execute("until ss -Hltn | grep -q :18515; do sleep 0.1; done", "waiting for the tool's server")
        said = machines[1].execute(f"{command} {address}", "ib_write_bw", SECONDS)
        server.communicate(timeout=SECONDS)
    finally:
        server.kill()
    row = re.search(r"^ 524288 +\d+ +\S+ +(\S+)", said, re.MULTILINE)
    if row is None:
        raise SystemExit(f"ib_write_bw says no bandwidth: {said}")
    return float(row[1]) / (2 if both else 1)  # it adds both directions (perftest, print_full_bw_report)


class MachineBench:
    """A network of machines and the workers in them."""

    def __init__(self, network: Network, guests: Guests, workers: Workers, command: TimingCommand) -> None:
        self.network, self.guests, self.workers, self.command = network, guests, workers, command

    def used(self) -> dict[str, float]:
        """Processor seconds of QEMUs and switches so far."""
        children = [switch.child for switch in self.network.switches if switch.child is not None]
        return {"machines": sum(processor_seconds(machine.pid) for machine in self.guests.machines.values()),
                "switches": sum(processor_seconds(child.pid) for child in children)}

    def fold(self) -> dict[str, Any]:
        """Time the sums once."""
        used, nics, began = self.used(), self.guests.nic_counts(), time.monotonic()
        self.workers.send(self.command)
        timings = self.workers.results(Timing, SECONDS)
        wall, after = time.monotonic() - began, self.guests.nic_counts()
        if any(timing.wrong for timing in timings):
            raise SystemExit(f"wrong sums: {timings}")
        if not all("verbs" in timing.path or RDMA_DEVICE in timing.path for timing in timings):
            raise SystemExit(f"not folded by the RDMA devices: {timings[0].path}")
        seconds = max(timing.seconds for timing in timings)
        counts = [now.since(nics[name]) for name, now in after.items()]
        return {"seconds": seconds, "mib_per_second": self.command.nbytes / MIB / seconds,
                "rank_processor_seconds": max(timing.cpu_seconds for timing in timings),
                "data_sent": [count.data_sent for count in counts],
                "naks": [count.naks_received for count in counts], "rnr": [count.rnr_received for count in counts],
                "share_of_wall": {name: (now - used[name]) / wall for name, now in self.used().items()}}

    def lose(self, share: float) -> None:
        """From now on each link loses this share of its packets, each way: a new controller writes it."""
        network = self.network
        network.end_controller(signal.SIGTERM)
        links = tuple(msgspec.structs.replace(link, loss=share) for link in network.fabric.links)
        network.fabric = msgspec.structs.replace(network.fabric, links=links)
        network.start_controller()


def main() -> None:
    parser = argparse.ArgumentParser(description="Times sums of hosts with rdma_rxe, and ib_write_bw beside them.")
    parser.add_argument("--machines", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--losses", default="0,0.001,0.005,0.01")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--logs", type=Path, help="folder for logs; default: removed at the end")
    a = parser.parse_args()
    if a.machines < 2 or a.rounds < 1 or a.bytes < 4 or a.bytes % 4:
        parser.error("expected two machines or more, one round or more, and bytes of whole float32 elements")
    losses = [float(word) for word in a.losses.split(",") if word]
    sandbox.enter()
    fabric = leafspine(2, 1, a.machines, rundir=sandbox.rundir(), rdma=True)
    fabric = msgspec.structs.replace(fabric, misses=70, lease=SECONDS, faults=True)
    guests = Guests([host.name for host in fabric.hosts])
    command = TimingCommand("verbs", a.bytes, iterations=2, warmup=1, check=True)
    setup = msgspec.json.encode(RankSetup(a.machines, ["verbs"], timeout=SECONDS)).decode()
    report: dict[str, Any] = {"rounds": [], "losses": {}}
    with (
        tempfile.TemporaryDirectory(dir=sandbox.rundir()) as folder,
        Network(fabric, logs=a.logs or Path(folder), guests=guests) as network,
        Workers(
            "verbs", [sys.executable, "-m", "netfold.topo.processes.allreduce_rank", setup],
            [guests.enter(host.name) for host in fabric.hosts],
            [environment(fabric, fabric.hosts, rank, job="bench") for rank in range(a.machines)], network.logs,
        ) as workers,
    ):
        report["boot_seconds"] = guests.boot_seconds
        print(f"booted in {max(guests.boot_seconds.values()):.0f} s", flush=True)
        workers.receive(SECONDS)
        ends = guests.machines[fabric.hosts[0].name], guests.machines[fabric.hosts[-1].name]
        bench = MachineBench(network, guests, workers, command)
        for number in range(a.rounds):
            alone, tool = (written(ends, fabric.hosts[0].address, fabric.path_mtu, a.bytes, both=both)
                           for both in (False, True))
            row = {"ib_write_bw": tool, "ib_write_bw_alone": alone, "load": os.getloadavg()[0], **bench.fold()}
            report["rounds"].append(row)
            print(f"round {number}: ib_write_bw {alone:.1f} MiB/s one way, {tool:.1f} each way at once, folded "
                  f"{row['mib_per_second']:.1f}, {row}", flush=True)
        for share in losses:
            bench.lose(share)
            rows = [bench.fold() for _ in range(max(1, a.rounds // 2))]
            report["losses"][share] = rows
            best = min(row["seconds"] for row in rows)
            print(f"{share:.1%} lost: {best:.2f} s, load {os.getloadavg()[0]:.1f}, {rows}",
                  flush=True)
    if a.json:
        files.replace(a.json, json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
