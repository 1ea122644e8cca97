# SPDX-License-Identifier: Apache-2.0
"""NetReduce's training times: steps of data parallel training, whose allreduces take as long as simulated ones.

A step as torch's DistributedDataParallel has it: forward, then backward layer by layer.  Gradients fill buckets in
backward order; a full bucket is allreduced while the layers before it are still computed, one bucket after the other.
The step ends when the last one has.  What the optimizer takes is left out, since it is the same for all.

Computing goes by one rate for all layers, that of a GPU of the paper's years; gradients are floats of 32 bits.  The
allreduces are packet by packet, of three sizes, with straight lines between and beyond.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from netfold.plots.charts import BarChart, LineChart, bar_charts, line_charts
from netfold.sim.engines.folding import fold
from netfold.sim.engines.topology import Topology
from netfold.sim.netreduce import points as netreduce
from netfold.sim.sweeps.kept import simulate_all
from netfold.sim.workloads.trained_nets import NETWORKS, TrainedNet
from netfold.sim.workloads.workload import double_binary_tree, halving_doubling, ring

GPU: Final = "V100"
FLOPS: Final = 0.5 * 15.7e12
"""Operations a second: half of what a V100 has at its best in 32-bit floats, a multiplication and an addition being
two."""
FIRST_BUCKET: Final = 1 << 20
BUCKET: Final = 25 << 20
"""Bytes of the first bucket and of all others, as DistributedDataParallel has them by default: a bucket ends with the
layer that fills it."""
BATCHES: Final = (4, 8, 16, 32, 64, 128)
"""Samples of each GPU: the fewer, the less there is to hide allreduces behind."""
PAPER: Final[Mapping[str, float]] = {"AlexNet": 1.45, "VGG-16": 1.202, "ResNet-50": 1.049}
"""NetReduce's rate over its baseline's, network by network, as notes that quote the paper give it.  The notes name no
networks: these three are our reading of them.  The paper's abstract has up to 1.7 for CNNs and 1.5 for transformers."""


@dataclass(frozen=True)
class GpuCluster:
    """Machines of equally many GPUs, with one card each."""

    machines: int
    gpus: int
    """GPUs of a machine: 8, whose cards have the rate `netreduce.OUTSIDE`, or 1."""
    inside: float = 0.0
    """GB/s between GPUs of a machine."""
    card: float = netreduce.OUTSIDE / 1e9
    """GB/s of a machine's card."""

    @property
    def name(self) -> str:
        """The cluster in words, for figures and what is printed."""
        if self.gpus == 1:
            return f"{self.machines} machines of 1 GPU, {self.card:g} GB/s"
        return (f"{self.machines * self.gpus} GPUs, {self.gpus} a machine, {self.inside:g} GB/s inside, {self.card:g} "
                "outside")

    @property
    def ways(self) -> tuple[str, ...]:
        """The allreduces that are compared: NetReduce's, the flat ring, and others."""
        return ("NR", "NR-credits", "FR", "HD", "DBT") if self.gpus == 1 else ("PN", "PN-credits", "FR", "TA")

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Bytes of the simulated allreduces: from 1, 4 and 16 packets of a ring's part on, time grows with bytes."""
        least = 4096 * max(64, self.machines * self.gpus)
        return least, 4 * least, 16 * least


CLUSTERS: Final = (*(GpuCluster(machines, 1, card=card) for card in (1.25, 12.5) for machines in (4, 8, 16)),
                   *(GpuCluster(machines, 8, 15.75) for machines in (4, 16)),
                   *(GpuCluster(machines, 8, 100.0) for machines in (4, 16, 128)))
DRAWN: Final = (GpuCluster(4, 1, card=1.25), GpuCluster(8, 1, card=1.25), GpuCluster(8, 1), GpuCluster(4, 8, 15.75),
                GpuCluster(4, 8, 100.0), GpuCluster(128, 8, 100.0))
"""The clusters of the figures."""


@dataclass(frozen=True)
class TrainingRow:
    """A step of one network on one cluster by one allreduce."""

    network: str
    machines: int
    gpus: int
    """GPUs of each machine."""
    inside: float
    card: float
    scheme: str
    batch: int
    """Samples of each GPU."""
    compute: float
    """Seconds of forward and backward."""
    communication: float
    """Seconds of all allreduces, one after the other."""
    step: float
    over_ring: float
    """Ratio of its rate to the flat ring's."""
    paper: float | None
    """The paper's value for NetReduce (`PAPER`); None if there is none."""


@dataclass(frozen=True)
class BucketRow:
    """The simulated allreduce of one bucket's bytes on one cluster."""

    machines: int
    gpus: int
    """GPUs of each machine."""
    inside: float
    card: float
    scheme: str
    size: int
    seconds: float


def simulate_bucket(machines: int, gpus: int, inside: float, card: float, scheme: str, size: int) -> BucketRow:
    """Simulate one allreduce."""
    seconds = allreduce_seconds(GpuCluster(machines, gpus, inside, card), scheme, size)
    return BucketRow(machines, gpus, inside, card, scheme, size, seconds)


def allreduce_seconds(cluster: GpuCluster, scheme: str, nbytes: int, *, alpha: float = 1e-6) -> float:
    """Seconds of one allreduce of ``nbytes`` on each GPU.  alpha: seconds of two links."""
    if cluster.gpus > 1:
        topology = netreduce.fabric(cluster.machines * cluster.gpus, cluster.inside, alpha)
        job = netreduce.WAYS[scheme](topology, nbytes)
    else:
        topology = Topology(hosts=cluster.machines, leaves=1, aggs=1, host_rate=8e9 * cluster.card, delay=alpha / 2)
        hosts = range(cluster.machines)
        if scheme in netreduce.RULES:
            job = fold(topology, hosts, nbytes, machines=False)
        else:
            make = {"FR": ring, "HD": halving_doubling, "DBT": double_binary_tree}[scheme]
            job = make(hosts, nbytes), []
    outcome = netreduce.run_job(topology, job, rules=netreduce.RULES.get(scheme))
    return outcome.time


def between(sizes: Sequence[int], seconds: Sequence[float], nbytes: int) -> float:
    """Seconds of an allreduce of another size: on the line through the two simulated sizes around it, or beyond the
    last two; as long as the least below that."""
    if nbytes <= sizes[-1]:
        return float(np.interp(nbytes, sizes, seconds))
    slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
    return seconds[-1] + slope * (nbytes - sizes[-1])


def buckets(network: TrainedNet) -> list[tuple[int, int]]:
    """Buckets in the order in which they fill: bytes, and how many layers from the last one on must be through."""
    found: list[tuple[int, int]] = []
    held = 0
    for through, layer in enumerate(reversed(network.layers), 1):
        held += 4 * layer.parameters
        if held >= (BUCKET if found else FIRST_BUCKET) or through == len(network.layers):
            found.append((held, through))
            held = 0
    return found


def step(network: TrainedNet, sizes: Sequence[int], seconds: Sequence[float], *, batch: int, flops: float = FLOPS
         ) -> tuple[float, float, float]:
    """Seconds of forward and backward, of all allreduces, and of the whole step.

    sizes, seconds   simulated allreduces
    """
    forward = 2 * batch * network.macs / flops
    backward = np.cumsum([4 * batch * layer.macs / flops for layer in reversed(network.layers)])
    free = spent = 0.0
    for nbytes, through in buckets(network):
        took = between(sizes, seconds, nbytes)
        free = max(free, forward + float(backward[through - 1])) + took
        spent += took
    compute = forward + float(backward[-1])
    return compute, spent, max(compute, free)


def sweep(clusters: Sequence[GpuCluster]) -> Iterator[tuple[int, int, float, float, str, int]]:
    """The arguments of `simulate_bucket`."""
    return ((one.machines, one.gpus, one.inside, one.card, way, size)
            for one in clusters for way in one.ways for size in one.sizes)


def run(*, out: Path, short: bool, resume: bool = False) -> list[TrainingRow]:
    """Simulate, write training.csv and training.svg, and say the ratios.  ``short``: two small clusters, two networks.

    resume  take over the allreduces that an interrupted run has left in buckets.csv
    Raises ValueError where that file has others, PlotsMissing, and OSError where a file cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    clusters = (GpuCluster(4, 1, card=1.25), GpuCluster(4, 8, 100.0)) if short else CLUSTERS
    networks = [make() for name, make in NETWORKS.items() if not short or name in ("AlexNet", "ResNet-50")]
    simulated = simulate_all(out / "buckets.csv", BucketRow, simulate_bucket, [*sweep(clusters)], key=6, resume=resume,
                             jobs=1 if short else None)
    took = {(GpuCluster(one.machines, one.gpus, one.inside, one.card), one.scheme, one.size): one.seconds
            for one in simulated}
    rows = []
    for cluster, network in itertools.product(clusters, networks):
        seconds = {way: [took[cluster, way, size] for size in cluster.sizes] for way in cluster.ways}
        for batch in BATCHES:
            each = {way: step(network, cluster.sizes, seconds[way], batch=batch) for way in cluster.ways}
            rows += [TrainingRow(network.name, cluster.machines, cluster.gpus, cluster.inside, cluster.card, way, batch,
                                 *steps, each["FR"][2] / steps[2],
                                 PAPER.get(network.name) if way == cluster.ways[0] else None)
                     for way, steps in each.items()]
            if batch == network.batch:
                folded = cluster.ways[0]
                print(f"{cluster.name}: {network.name}, {batch} samples, compute {each['FR'][0] * 1e3:.1f} ms, ring "
                      f"{each['FR'][2] * 1e3:.1f}, {folded} {each[folded][2] * 1e3:.1f}: "
                      f"{each['FR'][2] / each[folded][2]:.3f} times the ring's rate", flush=True)
    netreduce.write_csv(out / "training.csv", rows)
    draw(rows, [cluster for cluster in DRAWN if cluster in clusters], networks, out)
    return rows


def draw(rows: Sequence[TrainingRow], drawn: Sequence[GpuCluster], networks: Sequence[TrainedNet], out: Path) -> None:
    """Write training.svg and training-batch.svg.  The paper's rates have a chart of their own: they are of its testbed,
    which none of the clusters here is.

    Raises PlotsMissing, and OSError where a file cannot be written.
    """
    title = f"Above 1, training on {GPU}s is faster than with the flat ring"
    bar_charts(out / "training", title, [
        *(BarChart(cluster.name, {network.name: {netreduce.LABELS[way]: rate for way, rate in
                                                 _one(rows, cluster, network, network.batch).items()}
                                  for network in networks}, "rate / the flat ring's") for cluster in drawn),
        BarChart("The paper's testbed, as notes quote it",
                 {name: {"the paper": rate} for name, rate in PAPER.items()}, "rate / the paper's baseline's")])
    line_charts(out / "training-batch", "With more samples to compute on, NetReduce brings less", [
        [LineChart(cluster.name, BATCHES,
                   {network.name: [_one(rows, cluster, network, batch)[cluster.ways[0]] for batch in BATCHES]
                    for network in networks}) for cluster in drawn[first:first + 3]]
        for first in range(0, len(drawn), 3)], x="samples of a GPU", y="rate / the flat ring's")


def _one(rows: Sequence[TrainingRow], cluster: GpuCluster, network: TrainedNet, batch: int) -> dict[str, float]:
    here = (cluster.machines, cluster.gpus, cluster.inside, cluster.card, network.name, batch)
    return {row.scheme: row.over_ring for row in rows
            if (row.machines, row.gpus, row.inside, row.card, row.network, row.batch) == here}
