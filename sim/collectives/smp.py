# SPDX-License-Identifier: Apache-2.0
"""Patarasuk and Yuan's questions, simulated packet by packet with contention: `netfold sim smp`.

"Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009): butterflies contend for the network
interfaces of machines with several ranks, and above a size that grows with the number of nodes the ring wins; its order
must go through each machine, or switch, once.

A cluster is a two-tier fabric of the packet simulator: a machine is a leaf, its ranks' memory the links below it, its
network interface the one uplink, and the network's switch the one spine.  A rack of single-rank hosts under a switch
with one uplink is the same picture.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

from netfold.plots.charts import LineChart, PlotsMissing, line_charts, spread
from netfold.sim.engines.packet import Transport, simulate
from netfold.sim.engines.placement import SCHEMES
from netfold.sim.engines.topology import Topology
from netfold.sim.sweeps.kept import simulate_all
from netfold.sim.workloads.smp_workload import ALGORITHMS, SEEDED, MessageLatency, with_latency

DEADLINE: Final = 100.0
"""Simulated seconds after which an allreduce counts as never finished."""


@dataclass(frozen=True)
class Cluster:
    """A kind of cluster.

    words    what it is, for titles
    memory   bit/s of a rank's link inside its machine
    network  bit/s of a machine's network interface
    latency  what a message costs beside its bytes, in seconds
    """

    words: str
    memory: float
    network: float
    latency: MessageLatency


CLUSTERS: Final = {
    "gigabit": Cluster("machines on Ethernet of 1 Gb/s", 16e9, 1e9, MessageLatency(1e-6, 25e-6)),
    "infiniband": Cluster("machines on InfiniBand of 20 Gb/s", 32e9, 20e9, MessageLatency(1e-6, 4e-6)),
    "racks": Cluster("racks behind an uplink of 1 Gb/s", 1e9, 1e9, MessageLatency(25e-6, 25e-6)),
}
"""Ethernet of 1 Gb/s, and InfiniBand DDR of 20 Gb/s, as in the paper's two newer clusters, with rates of memory and
latencies that are usual for them; and racks of hosts behind an uplink no faster than one host's."""


@dataclass(frozen=True)
class SmpPoint:
    """One allreduce's simulated time in seconds; inf where it did not finish."""

    cluster: str
    machines: int
    cores: int
    algorithm: str
    size: int
    seed: int
    time: float


@dataclass(frozen=True)
class SmpSweep:
    """The simulations to run: every combination.  Raises ValueError for unknown names."""

    clusters: Sequence[str] = tuple(CLUSTERS)
    machines: Sequence[int] = (4, 8, 16, 32)
    cores: int = 4
    sizes: Sequence[int] = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
    algorithms: Sequence[str] = tuple(ALGORITHMS)
    seeds: Sequence[int] = (1, 2, 3)

    def __post_init__(self) -> None:
        for name, given, known in (("--clusters", self.clusters, CLUSTERS),
                                   ("--algorithms", self.algorithms, ALGORITHMS)):
            if unknown := [one for one in given if one not in known]:
                raise ValueError(f"{name} {unknown[0]}: expected some of {', '.join(known)}")
        if wrong := [n for n in self.machines if n < 2 or n & (n - 1)]:
            raise ValueError(f"--machines {wrong[0]}: expected powers of two from 2 on, which butterflies need")
        if self.cores < 1 or self.cores & (self.cores - 1):
            raise ValueError(f"--cores {self.cores}: expected a power of two")
        if not self.sizes or min(self.sizes) < 1 or not self.machines or not self.seeds:
            raise ValueError("expected a size of 1 byte or more, a number of machines and a seed at least")


def simulate_smp(cluster: str, machines: int, cores: int, algorithm: str, size: int, seed: int) -> SmpPoint:
    """Simulate one allreduce of ``size`` bytes."""
    kind = CLUSTERS[cluster]
    topology = Topology(hosts=cores, leaves=machines, aggs=1, host_rate=kind.memory, leaf_rate=kind.network,
                        delay=500e-9)
    workload = with_latency(ALGORITHMS[algorithm](machines, cores, size, seed), cores, kind.latency)
    outcome = simulate(topology, workload, SCHEMES["ecmp"], transport=Transport(mtu=8192, ecn=200_000, rto=0.2),
                       seed=seed, deadline=DEADLINE)
    return SmpPoint(cluster, machines, cores, algorithm, size, seed, inf if outcome.unfinished else outcome.time)


def run(sweep: SmpSweep, out: Path, echo: Callable[[str], None] = print, *, resume: bool = False,
        jobs: int | None = None) -> list[SmpPoint]:
    """Simulate all of it, print what it says, and write smp.csv, and with matplotlib a figure of each cluster.

    A random order is simulated for every seed, and its median counts; the others for the first seed.
    resume   take over the rows that an interrupted run has left in smp.csv
    jobs     processes; None: as joblib is configured, else all cores
    Raises ValueError where that file has others, OSError where the folder cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    todo = [
        (cluster, machines, sweep.cores, algorithm, size, seed)
        for cluster in sweep.clusters for machines in sweep.machines for algorithm in sweep.algorithms
        for size in sweep.sizes for seed in (sweep.seeds if algorithm == SEEDED else sweep.seeds[:1])
    ]
    points = simulate_all(out / "smp.csv", SmpPoint, simulate_smp, todo, key=6, resume=resume, jobs=jobs, echo=echo)
    for line in verdicts(points):
        echo(line)
    echo(f"# {out / 'smp.csv'}; seeds {', '.join(map(str, sweep.seeds))}")
    for cluster in sweep.clusters:
        try:
            for file in draw([p for p in points if p.cluster == cluster], cluster, out):
                echo(f"# {file}")
        except PlotsMissing as missing:
            echo(f"# {missing}")
            break
    return points


def times(points: Sequence[SmpPoint]) -> dict[tuple[str, int, str, int], float]:
    """Median seconds over seeds, by cluster, machines, algorithm and size."""
    found: dict[tuple[str, int, str, int], list[float]] = {}
    for p in points:
        found.setdefault((p.cluster, p.machines, p.algorithm, p.size), []).append(p.time)
    return {key: statistics.median(values) for key, values in found.items()}


def threshold(found: dict[tuple[str, int, str, int], float], cluster: str, machines: int) -> int | None:
    """The smallest size in bytes from which on the ring is the fastest at all larger sizes; None: at none."""
    sizes = sorted({size for c, m, _, size in found if (c, m) == (cluster, machines)}, reverse=True)
    least = None
    for size in sizes:
        here = {a: t for (c, m, a, s), t in found.items() if (c, m, s) == (cluster, machines, size)}
        if "ring" not in here or here["ring"] > min(here.values()):
            break
        least = size
    return least


def verdicts(points: Sequence[SmpPoint]) -> list[str]:
    """The conclusions from the times: a line for each cluster and number of machines."""
    found, lines = times(points), []
    for cluster, machines in dict.fromkeys((p.cluster, p.machines) for p in points):
        sizes = sorted({p.size for p in points if (p.cluster, p.machines) == (cluster, machines)})
        for size in (sizes[0], sizes[-1])[: len(sizes)]:
            here = {a: t for (c, m, a, s), t in found.items() if (c, m, s) == (cluster, machines, size)}
            base = here.get("ring", min(here.values()))
            told = ", ".join(f"{name} {seconds / base:.2f}" for name, seconds in here.items())
            lines.append(f"{cluster}, {machines} machines, {size} bytes: time over the ring's {base * 1e3:.3f} ms: "
                         + told)
        least = threshold(found, cluster, machines)
        lines.append(f"{cluster}, {machines} machines: the ring is the fastest "
                     + ("at no size" if least is None else f"from {least} bytes on"))
    return lines


def draw(points: Sequence[SmpPoint], cluster: str, folder: Path) -> list[Path]:
    """Draw one cluster's times over size, a chart for each number of machines; return the SVG.  Raises PlotsMissing."""
    machines = sorted({p.machines for p in points})
    sizes = sorted({p.size for p in points})
    names = list(dict.fromkeys(p.algorithm for p in points))
    charts = [
        LineChart(f"{n} machines of {points[0].cores} ranks", [size / 1024 for size in sizes],
                  {name: [spread([p.time * 1e3 for p in points if (p.machines, p.algorithm, p.size) == (n, name, size)])
                          for size in sizes] for name in names})
        for n in machines
    ]
    return line_charts(folder / f"smp-{cluster}", f"How long a simulated allreduce takes, {CLUSTERS[cluster].words}",
                       [charts], x="tensor, KiB", y="time, ms")
