# SPDX-License-Identifier: Apache-2.0
"""The demo's measurements on a running fabric: the training, then the same allreduce by each way over the same links.

Workers in namespaces are processes of their own for each of these.  A virtual machine takes many seconds to start
Python and import NetFold: a worker there is one process for all of it (turns.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from netfold.demo import report as reports
from netfold.demo import train, turns
from netfold.demo.report import AllreduceTime, NicTotals, Traffic, TreeTotals
from netfold.demo.train import LaneBits, TrainingResult, TrainingSpec
from netfold.topo.processes.allreduce_rank import RankSetup, Timing, TimingCommand, program
from netfold.topo.processes.failures import RankFailed

if TYPE_CHECKING:
    from rich.console import Console

    from netfold.topo.network.net import Network
    from netfold.topo.processes.ranks import Ranks
    from netfold.topo.rxe.counts import NicCounts
    from netfold.topo.rxe.hosts import Guests

Lines = Iterator[tuple[int, str]]
"""The ranks' output: rank and line."""

TRAIN_SECONDS: Final = 300.0
TIMING_SECONDS: Final = 60.0
MACHINE_SECONDS: Final = 900.0
"""For all of it in virtual machines, whose processors are emulated: it ends what hangs."""
TIMING_REPEATS: Final = 8
TIMING_WARMUP: Final = 2
MACHINE_WAYS: Final = ("verbs", "ring")
NAMES: Final = {"innet": "in the network", "verbs": "in the network", "ring": "ring over TCP", "gloo": "gloo"}


class DemoMeasurement(NamedTuple):
    """The measured traffic.

    trained  on all links, during the training
    folded   packets that the workers' own switches took into slots, during the training
    ring     on all links, during the timing of the ring; None: there was none
    """

    results: list[TrainingResult]
    trained: Traffic
    folded: int
    nics: list[NicTotals]
    trees: list[TreeTotals]
    times: list[AllreduceTime]
    ring: Traffic | None


def measure(
    network: Network, guests: Guests | None, spec: TrainingSpec, console: Console, lines: Lines | None = None
) -> DemoMeasurement:
    """Train, and time allreduces.  Raises RankFailed, WrongData, SwitchFailed, GuestFailed.

    guests  the machines that are the workers' hosts; None: all hosts are, and are namespaces
    lines   of ranks in machines that were launched before, with what `machine_words` says; None: they are launched
    """
    nics = {} if guests is None else guests.nic_counts()
    workers = len(network.fabric.hosts if guests is None else guests.names)
    folded = _folded(network)
    start = reports.traffic(network.status().links)
    if guests is not None and lines is None:
        for turn in range(len(MACHINE_WAYS)):
            turns.file(network.share, turn).unlink(missing_ok=True)  # of an earlier run
        command = [sys.executable, "-m", turns.__name__, *machine_words(network, spec, workers)]
        lines = network.launch(command, job="digits").lines(within=MACHINE_SECONDS)
    try:
        results = train_ranks(network, spec, console, lines, workers)
    except RankFailed:
        network.check()  # a switch that has ended explains more than the time-out of a rank
        raise
    trained = reports.difference(start, reports.traffic(network.status().links))
    folded = _folded(network) - folded
    used = [] if guests is None else [
        _nic_totals(host, counts.since(nics[host]), result.packets_sent)
        for (host, counts), result in zip(guests.nic_counts().items(), results, strict=True)
    ]
    times, ring = _time_allreduces(network, results[0].gradient_bytes // 4, spec.lane_bits, console, lines, workers)
    return DemoMeasurement(results, trained, folded, used, _trees(results), times, ring)


def machine_words(network: Network, spec: TrainingSpec, workers: int) -> list[str]:
    """The arguments of `turns` for a rank in one of so many machines."""
    setup = RankSetup(workers, list(MACHINE_WAYS), spec.lane_bits, timeout=spec.timeout)
    commands = [_command(way, train.gradient_elements(spec)) for way in MACHINE_WAYS]
    return [str(network.share), *(msgspec.json.encode(word).decode() for word in (spec, setup, *commands))]


def _command(way: str, elements: int) -> TimingCommand:
    return TimingCommand(way, 4 * elements, TIMING_REPEATS, TIMING_WARMUP, check=False)


def launch(network: Network, spec: TrainingSpec) -> Ranks:
    """Start a training, a rank in each host."""
    command = [sys.executable, "-m", train.__name__, msgspec.json.encode(spec).decode()]
    return network.launch(command, job="digits")


def train_ranks(
    network: Network, spec: TrainingSpec, console: Console, lines: Lines | None, workers: int
) -> list[TrainingResult]:
    """Train with a progress bar and return the results of the ranks, in order.  Raises RankFailed."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    decoder = msgspec.json.Decoder(train.TrainingStep | TrainingResult)
    results: list[TrainingResult] = []
    goes_on = lines is not None  # the ranks do something else after the training
    if lines is None:
        lines = launch(network, spec).lines(within=TRAIN_SECONDS)
    columns = (
        TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"),
        TextColumn("loss {task.fields[loss]}"), TextColumn("{task.fields[pace]}"), TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=spec.steps, loss="-", pace="")
        for _, line in lines:
            event = decoder.decode(line)
            if isinstance(event, TrainingResult):
                results.append(event)
                if goes_on and len(results) == workers:
                    break
            else:
                pace = f"{event.seconds / event.step * 1e3:.0f} ms a step"
                progress.update(task, completed=event.step, loss=f"{event.loss:.4f}", pace=pace)
    return sorted(results, key=lambda result: result.rank)


def _time_allreduces(
    network: Network, elements: int, lane_bits: LaneBits, console: Console, lines: Lines | None, workers: int
) -> tuple[list[AllreduceTime], Traffic | None]:
    """Time the gradient's allreduce by each algorithm; also return the ring's bytes on all links, or None.

    lines  of ranks in machines; None: workers are namespaces, and have a process for each way
    """
    times: list[AllreduceTime] = []
    ring: Traffic | None = None
    ways = ("innet", "ring", "gloo") if lines is None else (*MACHINE_WAYS, "gloo")
    for turn, way in enumerate(ways):
        if (why := not_timed(way, machines=lines is not None)) is not None:
            times.append(AllreduceTime(NAMES[way], None, why))
            continue
        console.print(f"one allreduce at a time: {NAMES[way]}")
        before = reports.traffic(network.status().links)
        try:
            seconds = (_time_allreduce(network, way, elements, lane_bits) if lines is None
                       else _timed_in_machines(network, turn, lines, workers))
        except RankFailed as error:
            times.append(AllreduceTime(NAMES[way], None, f"failed, see logs: {str(error).splitlines()[0]}"))
            if lines is not None:  # the process that would time the rest has ended
                times += [AllreduceTime(NAMES[rest], None, not_timed(rest, machines=True) or "the one before it failed")
                          for rest in ways[turn + 1:]]
                break
            continue
        times.append(AllreduceTime(NAMES[way], seconds))
        if way == "ring":
            ring = reports.difference(before, reports.traffic(network.status().links))
    return times, ring


def not_timed(way: str, *, machines: bool) -> str | None:
    """Why an allreduce is not timed, in words, or None.

    way       the name of its algorithm
    machines  whether workers are virtual machines
    """
    if way != "gloo":
        return None
    if machines:
        return "not in virtual machines, where torch starts slowly"
    return "torch is not installed" if find_spec("torch") is None else None


def _time_allreduce(network: Network, way: str, elements: int, lane_bits: LaneBits) -> float:
    """Seconds of one allreduce on the slowest rank, the mean of several.  Raises RankFailed."""
    setup = RankSetup(len(network.fabric.hosts), [way], lane_bits, timeout=TIMING_SECONDS / 3)
    words = [msgspec.json.encode(word).decode() for word in (setup, _command(way, elements))]
    ranks = network.launch([*program(setup.algorithms), *words], job=f"timing-{way}")
    return max(msgspec.json.decode(lines[-1], type=Timing).seconds for lines in ranks.wait(TIMING_SECONDS))


def _timed_in_machines(network: Network, turn: int, lines: Lines, workers: int) -> float:
    """The same, by the ranks that have trained.  Raises RankFailed."""
    turns.file(network.share, turn).touch()
    took: list[float] = []
    for _, line in lines:
        if line != turns.READY:
            took.append(msgspec.json.decode(line, type=Timing).seconds)
            if len(took) == workers:
                break
    return max(took)


def _folded(network: Network) -> int:
    """Contributions of workers that their own switches have taken so far."""
    leaves = {switch.name for switch in network.fabric.switches if switch.role == "leaf"}
    return sum(switch.folded.first for switch in network.status().switches if switch.name in leaves)


def _nic_totals(host: str, counts: NicCounts, needed: int) -> NicTotals:
    return NicTotals(
        host, counts.data_sent, needed, counts.acknowledgements_sent, counts.acknowledgements_received,
        counts.naks_received, counts.rnr_received, counts.duplicates_received, counts.errors,
    )


def _trees(results: list[TrainingResult]) -> list[TreeTotals]:
    return [
        TreeTotals(
            root,
            sum(result.trees[root].bytes_reduced for result in results),
            sum(result.trees[root].packets_sent for result in results),
            sum(result.trees[root].retransmissions for result in results),
        )
        for root in results[0].trees
    ]
