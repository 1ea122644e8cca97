# SPDX-License-Identifier: Apache-2.0
"""`netfold sim netreduce`: NetReduce's questions, packet by packet.

Machines of 8 GPUs with one network card each: a GPU is a host of the simulated fabric, a machine the leaf of its
GPUs, and above are switches of 16 machines each and, for more than 16, as many spines.  The switches fold, the machines
do not.  A hop is one link of half the latency alpha, so that a step inside a machine, two links, costs alpha.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from netfold.disk import files
from netfold.fabric.folding import trees
from netfold.plots.charts import LineChart, PlotsMissing, line_charts, spread
from netfold.sim.engines.atp import ATP, fold_at_server
from netfold.sim.engines.folding import FoldRules, SimulatedFold, beside, fold, shifted
from netfold.sim.engines.packet import PacketOutcome, SimulationError, Transport, simulate
from netfold.sim.engines.placement import SCHEMES
from netfold.sim.engines.topology import Topology
from netfold.sim.sweeps.kept import simulate_all
from netfold.sim.workloads.workload import Workload, double_binary_tree, halving_doubling, ring, ring_all_gather

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["WAYS", "AllreducePoint", "PlotsMissing", "bound", "crossover", "fabric", "point", "run"]

Job = tuple[Workload, list[SimulatedFold]]

MACHINE: Final = 8
"""GPUs of a machine, as in the paper."""
OUTSIDE: Final = 12.5e9
"""Bytes a second of a machine's card, as in the paper."""
RACK: Final = 16
"""Machines below one switch."""
TRANSPORT: Final = Transport(mtu=4096, jitter=0.0)
"""RoCEv2's largest path MTU for all schemes alike."""
INSIDE: Final = (15.75, 25.0, 32.0, 50.0, 100.0)
"""GB/s between the GPUs of a machine: PCIe 3 x16 to NVLink."""


@dataclass(frozen=True)
class AllreducePoint:
    """One simulated allreduce."""

    figure: str
    scheme: str
    gpus: int
    inside: float
    """Rate between the GPUs of a machine, in GB/s."""
    alpha: float
    """Latency of two links, in seconds."""
    size: int
    loss: float
    jobs: int
    seed: int
    """Seed of the losses; 1 without losses, since nothing else is drawn."""
    time: float
    """Seconds; inf if it did not end within 10 simulated seconds."""
    resent: int
    hops: int


def fabric(gpus: int, inside: float, alpha: float, *, spare: int = 0) -> Topology:
    """The fabric of so many GPUs.  inside: GB/s; spare: machines more in each rack.

    Raises ValueError for a number that fills no machines or racks.
    """
    machines, left = divmod(gpus, MACHINE)
    racks = -(-machines // RACK)
    if left or machines < 2 or machines % racks:
        raise ValueError(f"{gpus} GPUs: expected machines of {MACHINE}, at least 2, and racks of {RACK} machines "
                         "where there are more")
    return Topology(hosts=MACHINE, leaves=machines // racks + spare, aggs=1, pods=racks, cores=RACK if racks > 1 else 0,
                    host_rate=8e9 * inside, leaf_rate=8 * OUTSIDE, core_rate=8 * OUTSIDE, delay=alpha / 2)


def together(jobs: Sequence[Job]) -> Job:
    """All jobs at the same time."""
    whole = jobs[0]
    for job in jobs[1:]:
        whole = beside(whole, job)
    return whole


def inside_machines(topology: Topology, size: int, spare: int = 0) -> Job:
    """A reduce-scatter, or an all-gather, over the ring inside each machine: both move the same bytes."""
    return together([(ring_all_gather(range(first, first + MACHINE), size), [])
                     for first in working(topology, spare)])


def working(topology: Topology, spare: int = 0) -> list[int]:
    """The first GPU of each machine but for the last ``spare`` of each rack."""
    return [MACHINE * machine for machine in range(topology.leaves * topology.pods)
            if machine % topology.leaves < topology.leaves - spare]


def rails(topology: Topology, make: Callable[[list[int]], Job], spare: int = 0) -> Job:
    """GPU i of each machine with GPU i of all others, for each i at the same time."""
    return together([make([first + i for first in working(topology, spare)]) for i in range(MACHINE)])


def then(first: Job, second: Job) -> Job:
    """One after the other."""
    work = first[0].then(second[0])
    return work, [*first[1], *shifted(second[1], len(first[0]) + 1)]


def parallel_netreduce(topology: Topology, size: int, *, most: int = trees.MOST_TREES) -> Job:
    """PN: reduce-scatter inside, a fold of each GPU's piece, over ``most`` trees at the most, all-gather inside."""
    part = -(-size // MACHINE)
    folds = rails(topology, lambda hosts: fold(topology, hosts, part, machines=True, most=most))
    return then(then(inside_machines(topology, size), folds), inside_machines(topology, size))


def netreduce(topology: Topology, size: int) -> Job:
    """NR: all of a machine's sum on one GPU, which alone folds: reduce-scatter and gather there, and back."""
    def gather(back: bool) -> Job:
        part = -(-size // MACHINE)
        ends = [(first + i, first) for first in range(0, topology.size, MACHINE) for i in range(1, MACHINE)]
        source, to = np.array([end[::-1] if back else end for end in ends], np.int64).T
        none = np.zeros(len(ends), np.int64)
        return Workload(source, to, np.full(len(ends), part), np.zeros(len(ends)), none,
                        np.zeros((0, 2), np.int64)), []

    inside = inside_machines(topology, size)
    folded = fold(topology, range(0, topology.size, MACHINE), size, machines=True)
    return then(then(then(inside, gather(False)), folded), then(gather(True), inside))


def parallel_atp(topology: Topology, size: int) -> Job:
    """ATP in parallel NetReduce's place.  The last machine of the first rack serves: GPU i's piece has the end of that
    machine's link that GPU i would have."""
    part, server = -(-size // MACHINE), MACHINE * (topology.leaves - 1)
    folds = rails(topology, lambda hosts: fold_at_server(topology, hosts, server + hosts[0], part, machines=True), 1)
    inside = inside_machines(topology, size, 1)
    return then(then(inside, folds), inside)


def tencent(topology: Topology, size: int) -> Job:
    """TA: reduce-scatter inside, a ring over the machines for each piece, all-gather inside."""
    part = -(-size // MACHINE)
    rings = rails(topology, lambda hosts: (ring(hosts, part), []))
    return then(then(inside_machines(topology, size), rings), inside_machines(topology, size))


def nearest_first(topology: Topology, size: int) -> Job:
    """HD: halving-doubling whose first, largest exchanges are inside machines."""
    machines = topology.size // MACHINE
    return halving_doubling([machine * MACHINE + gpu for gpu in range(MACHINE) for machine in range(machines)],
                            size), []


WAYS: Final[dict[str, Callable[[Topology, int], Job]]] = {
    "PN": parallel_netreduce,
    "PN-credits": parallel_netreduce,
    "NR": netreduce,
    "NR-credits": netreduce,
    "SML": partial(parallel_netreduce, most=1),
    "ATP": parallel_atp,
    "FR": lambda topology, size: (ring(range(topology.size), size), []),
    "TA": tencent,
    "HD": nearest_first,
    "DBT": lambda topology, size: (double_binary_tree(range(topology.size), size), []),
}
"""Parallel NetReduce, NetReduce over one GPU of each machine, SwitchML and ATP in parallel NetReduce's place, flat
ring, Tencent's hierarchy, halving-doubling, double binary tree."""
OURS: Final = FoldRules(slots=2048)
"""1,024 packets of each stream in flight, 4 MiB: more than any link here holds."""
PAPERS: Final = FoldRules(slots=256, message=42, credits=2)
"""The paper's flow control: 2 messages of 170 packets of 1 KB in flight, so 42 packets of 4,096 bytes a message."""
SWITCHML: Final = FoldRules(protocol="switchml", slots=512, payload=128, header=52, timeout=1e-3)
"""SwitchML's numbers, each by the section of the paper (NSDI 2021; its text was not at hand) or the file of its
authors' code (p4lang/p4app-switchML at commit b5c74a04).

slots     section 3.6: 512 for 100 Gb/s, 128 for 10 Gb/s; so has ChenYuHo/SwitchML-omnetpp (/omnetpp.ini, num_slots)
payload   32 elements in the paper; /dev_root/p4/headers.p4, data_h, of which the code can put two or eight in a packet
header    52 of 180 bytes: Ethernet, IPv4, UDP, switchml_h and exponents_h of /dev_root/p4/headers.p4
timeout   the paper's evaluation of losses: 1 ms.  The code has 10 ms (/dev_root/client_lib/src/configs/timeouts.cfg)
"""
RULES: Final[dict[str, FoldRules]] = {"PN": OURS, "NR": OURS, "PN-credits": PAPERS, "NR-credits": PAPERS,
                                      "SML": SWITCHML, "ATP": ATP}
"""The flow control of each way that folds."""
SPARE: Final = {"ATP": 1}
"""Machines more in each rack, of ways that need servers."""
CREDITED: Final = ("PN", "PN-credits")
"""The ways whose crossovers with the flat ring are measured."""
SEEDS: Final = (1, 2, 3)
"""Seeds of the losses."""
LABELS: Final[dict[str, str]] = {
    "PN": "parallel NetReduce, our window", "PN-credits": "parallel NetReduce, the paper's credits",
    "NR": "NetReduce, our window", "NR-credits": "NetReduce, the paper's credits", "SML": "SwitchML", "ATP": "ATP",
    "FR": "flat ring",
    "TA": "Tencent's hierarchy", "HD": "halving-doubling", "DBT": "double binary tree"}
"""The ways as figures name them."""


@dataclass(frozen=True)
class Crossover:
    """Where parallel NetReduce and the flat ring take equally long."""

    gpus: int
    scheme: str
    size: int
    alpha: float
    measured: float
    """The ratio of bandwidths inside to outside, by bisection to 0.016."""
    condition: float
    """The ratio at which the condition of `bound` is met."""


def bound(gpus: int) -> float:
    """The ratio of bandwidths inside to outside above which PN beats the flat ring by bandwidth alone."""
    return 2 * gpus * (MACHINE - 1) / (MACHINE * (gpus - 2))


def run_job(topology: Topology, job: Job, *, loss: float = 0.0, rules: FoldRules | None = None, seed: int = 1
            ) -> PacketOutcome:
    """Simulate one job with planned paths.  Raises SimulationError where a sum is wrong."""
    out = simulate(topology, job[0], SCHEMES["netfold"], transport=TRANSPORT, folds=job[1], loss=loss, rules=rules,
                   seed=seed, deadline=10.0)
    if out.counts["fold_wrong"]:
        raise SimulationError(f"{out.counts['fold_wrong']} sums are wrong: {out.counts['fold_aliased']} packets met "
                              f"another's sum in their slot, at {loss:g} lost and seed {seed}; simulate a longer "
                              "time-out or fewer slots")
    return out


def point(figure: str, scheme: str, gpus: int, inside: float, alpha: float, size: int, loss: float = 0.0,
          jobs: int = 1, seed: int = 1) -> AllreducePoint:
    """Simulate one allreduce, or ``jobs`` of them at the same time over the same machines."""
    topology = fabric(gpus, inside, alpha, spare=SPARE.get(scheme, 0))
    job = together([WAYS[scheme](topology, size)] * jobs)
    out = run_job(topology, job, loss=loss, rules=RULES.get(scheme), seed=seed)
    c = out.counts
    return AllreducePoint(figure, scheme, gpus, inside, alpha, size, loss, jobs, seed,
                          np.inf if out.unfinished else out.time, c["resent"] + c["fold_resent"], c["hops"])


def crossover(gpus: int, scheme: str, size: int, alpha: float) -> Crossover:
    """Simulate until the ratio of bandwidths at which ``scheme`` and the flat ring take equally long is known."""
    low, high = 1.0, 3.0
    for _ in range(7):
        middle = (low + high) / 2
        inside = middle * OUTSIDE / 1e9
        pn, fr = (point("", way, gpus, inside, alpha, size).time for way in (scheme, "FR"))
        low, high = (low, middle) if pn < fr else (middle, high)
    return Crossover(gpus, scheme, size, alpha, (low + high) / 2, bound(gpus))


def sweep(*, short: bool) -> Iterator[tuple[str, str, int, float, float, int, float, int, int]]:
    """The arguments of `point` for all figures; ``short``: few GPUs, and few bytes, in seconds."""
    size, middle = (1 << 20, 32) if short else (8 << 20, 64)
    for inside in (15.75, 100.0):
        for gpus in (32, 64) if short else (32, 64, 128, 256, 512, 1024):
            yield from (("gpus", way, gpus, inside, 1e-6, size, 0.0, 1, 1) for way in WAYS)
    for inside in INSIDE:
        yield from (("inside", way, middle, inside, 1e-6, size, 0.0, 1, 1) for way in WAYS)
    for alpha in (1e-7, 1e-5) if short else (1e-7, 1e-6, 1e-5, 3e-5, 1e-4):
        yield from (("latency", way, middle, 100.0, alpha, size, 0.0, 1, 1) for way in WAYS)
    for loss in (0.0, 1e-3) if short else (0.0, 1e-5, 1e-4, 1e-3):
        yield from (("loss", way, 32, 100.0, 1e-6, size, loss, 1, seed) for way in WAYS
                    for seed in (SEEDS if loss else SEEDS[:1]))
    for jobs in (1, 2) if short else (1, 2, 4):
        yield from (("jobs", way, 32, 100.0, 1e-6, size, 0.0, jobs, 1)
                    for way in ("PN", "PN-credits", "SML", "ATP", "FR", "TA"))


def run(*, out: Path, short: bool, resume: bool = False) -> list[AllreducePoint]:
    """Simulate all points, write points.csv, crossover.csv, netreduce.svg and crossover.svg there, and say the ratios.

    resume  take over the rows that an interrupted run has left in points.csv and crossover.csv
    Raises ValueError where these files have others, PlotsMissing, and OSError where a file cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    points = simulate_all(out / "points.csv", AllreducePoint, point, list(sweep(short=short)), key=9, resume=resume,
                          jobs=1 if short else None)
    counts = (32, 64) if short else (32, 64, 128, 256)
    size = (1 if short else 8) << 20
    found = simulate_all(out / "crossover.csv", Crossover, crossover,
                         [(gpus, way, size, 1e-7) for gpus in counts for way in CREDITED], key=4, resume=resume,
                         jobs=1 if short else None)
    for one in found:
        print(f"{LABELS[one.scheme]} passes the flat ring at {one.gpus} GPUs where inside / outside is "
              f"{one.measured:.3f}; by bandwidth alone {one.condition:.3f}")
    draw(points, out)
    draw_crossover(found, out)
    return points


def draw(points: Sequence[AllreducePoint], folder: Path) -> list[Path]:
    """Draw all points and return the files, netreduce.svg and netreduce.pdf.  Raises PlotsMissing, OSError."""
    return line_charts(folder / "netreduce", f"How long an allreduce of {points[0].size >> 20} MiB takes, 8 GPUs a "
                       "machine with one card of 12.5 GB/s", _charts(points), y="time, ms")


def draw_crossover(found: Sequence[Crossover], folder: Path) -> list[Path]:
    """Draw them over GPUs, and the condition, and return the files, crossover.svg and crossover.pdf.

    Raises PlotsMissing, OSError.
    """
    measured = {way: [one for one in found if one.scheme == way] for way in CREDITED}
    counts = [one.gpus for one in measured[CREDITED[0]]]
    return line_charts(
        folder / "crossover", "Above these ratios of bandwidths, parallel NetReduce passes the flat ring",
        [[LineChart("0.1 µs a step", counts, {
            **{LABELS[way]: [one.measured for one in ones] for way, ones in measured.items()},
            "sufficient condition": [bound(gpus) for gpus in counts]})]],
        x="GPUs", y="bandwidth inside / outside")


def _charts(points: Sequence[AllreducePoint]) -> list[list[LineChart]]:
    def line(title: str, x: str, attribute: str, scale: float, chosen: Sequence[AllreducePoint], *, words: bool = False
             ) -> LineChart:
        ticks = sorted({getattr(p, attribute) for p in chosen})
        values: dict[tuple[str, float], list[float]] = {}
        for p in chosen:
            values.setdefault((p.scheme, getattr(p, attribute)), []).append(p.time * 1e3)
        return LineChart(title, [f"{tick * scale:g}" for tick in ticks] if words else [tick * scale for tick in ticks],
                         {LABELS[way]: [spread(values[way, tick]) if (way, tick) in values else None for tick in ticks]
                          for way in dict.fromkeys(p.scheme for p in chosen)}, x=x)

    of = {name: [p for p in points if p.figure == name] for name in ("gpus", "inside", "latency", "loss", "jobs")}
    by_inside = [line(f"By GPUs, {inside:g} GB/s inside", "GPUs", "gpus", 1,
                      [p for p in of["gpus"] if p.inside == inside])
                 for inside in sorted({p.inside for p in of["gpus"]})]
    return [[*by_inside, line("By bandwidth inside a machine", "bandwidth inside, GB/s", "inside", 1, of["inside"])],
            [line("By latency", "a step inside a machine, µs", "alpha", 1e6, of["latency"]),
             line(f"By loss, seeds {SEEDS[0]} to {SEEDS[-1]}", "packets lost, %", "loss", 100, of["loss"], words=True),
             line("By allreduces at once", "allreduces", "jobs", 1, of["jobs"])]]


def write_csv(path: Path, rows: Sequence[DataclassInstance]) -> None:
    """Write rows of one dataclass, with its names as the head.  Raises OSError."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(rows[0])])
    writer.writerows(astuple(row) for row in rows)
    files.replace(path, text.getvalue().encode())
