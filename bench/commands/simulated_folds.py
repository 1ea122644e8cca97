# SPDX-License-Identifier: Apache-2.0
"""Folding cases of `netfold bench simulator`: sums in the network, on a real fabric and in the packet simulator.

The real fabric has Mininet's shaped links and softswitches, which lose packets by their seed; ranks sum integers over
the rail "innet", one sum after the other.  Simulated is the same fold: trees by the controller's planner, and as many
slots as the controller gave.  Links have the delay of the other cases; no case has parameters of its own.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from netfold.bench.harness import rank_programs
from netfold.bench.ranks.loss import LossResult, LossTask
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Fabric
from netfold.sim.engines.folding import FoldRules, fold
from netfold.sim.engines.packet import Transport, simulate
from netfold.sim.engines.placement import SCHEMES
from netfold.sim.engines.topology import Topology, of_fabric
from netfold.topo.network import sandbox

if TYPE_CHECKING:  # Mininet may be absent, and is imported inside the sandbox
    from netfold.topo.network.net import Network

BAR: Final = 0.1
"""By which part of the real time the simulated one may differ."""
LOSS: Final = 0.01
"""Part of its packets that each link loses, each way, in the cases with loss."""
SEEDS: Final = 24
"""Simulated sums of a case with loss."""
WITHIN: Final = 240.0
"""Seconds for all sums of one case."""
HOSTS: Final = 8
SIZES: Final = (256 << 10, 1 << 20, 4 << 20)
"""Bytes of each rank's tensor."""
FABRICS: Final = {(1, 0): (2, 4, 8), (2, 1): (4, 8), (2, 2): (8,)}
"""(leaves, spines) -> numbers of ranks: one level; two levels under one spine; two levels and two trees."""


class FoldCase(NamedTuple):
    """Sums of one size by some ranks of a fabric of 8 hosts."""

    leaves: int
    spines: int
    ranks: int
    loss: float
    nbytes: int


class FoldRow(NamedTuple):
    """One case: seconds of a sum, measured and simulated."""

    leaves: int
    spines: int
    ranks: int
    loss: float
    nbytes: int
    real: list[float]
    """Each timed sum, the slowest rank's."""
    measured: float
    """The median of these."""
    simulated: float
    """With loss the median over seeds."""
    ratio: float
    again: float
    """Part of the ranks' packets that were sent again, on the fabric."""
    simulated_again: float
    timeouts: float
    """How often a time-out ran out in a sum on the fabric, all ranks together."""
    simulated_timeouts: float


class SimulatedSum(NamedTuple):
    """One simulated sum, or several of them with losses of their own."""

    seconds: float
    """The median."""
    again: float
    """Part of the packets that were sent again; the mean, and so are the time-outs of a sum."""
    timeouts: float


def members(case: FoldCase) -> list[int]:
    """The hosts of a case's ranks, by number: equally many on each leaf."""
    on = HOSTS // case.leaves
    return [leaf * on + i for leaf in range(case.leaves) for i in range(case.ranks // case.leaves)]


def simulated(fabric: Fabric, topology: Topology, case: FoldCase, slots: int) -> SimulatedSum:
    """Simulate a case's sum, with loss by several seeds.

    slots   of each tree at a switch, as the controller says
    """
    work, folds = fold(topology, members(case), case.nbytes, machines=False)
    rules = FoldRules(slots=slots << (len(folds[0].trees) - 1).bit_length())
    transport = Transport(mtu=fabric.path_mtu, header=58, jitter=0.0)
    found = []
    for seed in range(SEEDS if case.loss else 1):
        outcome = simulate(topology, work, SCHEMES["netfold"], folds=folds, rules=rules, loss=case.loss, seed=seed,
                           deadline=1e3, transport=transport)
        counts = outcome.counts
        found.append((outcome.time, counts["fold_resent"] / counts["fold_sent"], counts["fold_timeouts"]))
    means = np.mean(found, axis=0).tolist()
    return SimulatedSum(statistics.median(seconds for seconds, *_ in found), *means[1:])


def measure(network: Network, case: FoldCase, rounds: int) -> tuple[list[LossResult], int]:
    """Sum on the fabric; also returns the slots of each tree.  Raises RankFailed, WrongData."""
    job = f"fold{case.ranks}x{case.nbytes}"
    task, hosts = LossTask(case.nbytes // 4, rounds), [network.fabric.hosts[host] for host in members(case)]
    took = rank_programs.results(network, "loss", task, LossResult, job=job, within=WITHIN, hosts=hosts)
    (slots,) = (one.slots for one in network.status().jobs if one.name == job)
    return took, slots


def compared(case: FoldCase, took: Sequence[LossResult], model: SimulatedSum) -> FoldRow:
    """A row of what ranks measured and what was simulated."""
    slowest = [max(times) for times in zip(*(one.seconds for one in took), strict=True)]
    measured = statistics.median(slowest)
    return FoldRow(*case, slowest, measured, model.seconds, model.seconds / measured,
                   sum(one.retransmissions for one in took) / sum(one.packets for one in took), model.again,
                   sum(one.timeouts for one in took) / len(slowest), model.timeouts)


def run(*, rate: str, rounds: int, delay: float) -> list[FoldRow]:
    """Compare all cases in this sandbox, and print a row for each."""
    print(f"folds: {HOSTS} hosts, {rate} links, {rounds} sums of int32 each; losses are of each link, each way")
    print(f"{'ranks':>5} {'fabric':>12} {'loss':>5} {'KiB':>6} {'real ms':>9} {'min - max':>15} {'simulated ms':>12} "
          f"{'sim/real':>9} {'again':>13} {'time-outs':>10}")
    rows = []
    for row in _rows(rate, rounds, delay):
        print(f"{row.ranks:>5} {f'{row.leaves} x {row.spines}':>12} {row.loss:>5g} {row.nbytes >> 10:>6} "
              f"{row.measured * 1e3:>9.1f} {min(row.real) * 1e3:>7.1f}-{max(row.real) * 1e3:<7.1f} "
              f"{row.simulated * 1e3:>12.1f} {row.ratio:>9.3f} {row.again:>6.2%} {row.simulated_again:>6.2%} "
              f"{row.timeouts:>5.1f} {row.simulated_timeouts:>4.1f}", flush=True)
        rows.append(row)
    return rows


def _rows(rate: str, rounds: int, delay: float) -> Iterator[FoldRow]:
    from netfold.topo.network.net import Network

    for ((leaves, spines), numbers), loss in product(FABRICS.items(), (0.0, LOSS)):
        fabric = leafspine(leaves, spines, HOSTS, rate=rate, rundir=sandbox.rundir(), loss=loss, seed=1)
        topology = of_fabric(fabric, delay=delay)
        with tempfile.TemporaryDirectory(dir=sandbox.rundir()) as logs, Network(fabric, logs=Path(logs)) as network:
            for ranks, nbytes in product(numbers, SIZES):
                case = FoldCase(leaves, spines, ranks, loss, nbytes)
                took, slots = measure(network, case, rounds)
                yield compared(case, took, simulated(fabric, topology, case, slots))
