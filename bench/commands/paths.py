# SPDX-License-Identifier: Apache-2.0
"""`netfold bench paths`: four ways to choose paths, side by side on the same links.

    pinned   Ethereal: the controller splits the flows of each step, and pins each piece by its source port
    ecmp     a hash of addresses and ports, one queue pair to each peer
    spray    the leaf picks a random uplink for each packet
    reps     the host picks a source port for each packet, from those of unmarked ACKs; the leaf hashes

Collectives run on real packets between namespaces.  Bytes are those that the switches count, times those of the
slowest rank.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, get_args

import msgspec

from netfold.bench.harness import rank_programs
from netfold.bench.options.paths import PathsOptions
from netfold.bench.ranks.paths import BREAK_LINK, RESTORE_LINK, Collective, Mode, PathsResult, PathsTask, Transport
from netfold.fabric.graph import End, Engine, PlannerName
from netfold.plots.charts import BarChart, PlotsMissing, Value, Whisker, bar_charts
from netfold.topo.network import sandbox
from netfold.wire import roce

MODES: Final[tuple[Mode, ...]] = get_args(Mode)
COLLECTIVES: Final[tuple[Collective, ...]] = get_args(Collective)
WINDOW: Final[dict[Engine, int]] = {"softswitch": 128, "bmv2": 64}
"""Packets in flight on a queue pair at most: 20 ms of a 50 Mb/s link, or what BMv2's queues hold."""
QUEUE: Final = 4_000_000
"""Bytes that a mended link's queue holds."""
SECONDS: Final = 600.0
"""Seconds for all ranks to end."""


class PathsRow(NamedTuple):
    """One collective in one mode, over all rounds.  Times in seconds."""

    collective: str
    mode: str
    failed: bool
    up: float
    """Bytes on the busiest uplink of a leaf over the mean of all such links, in the median round."""
    down: float
    """The same for these links in the other direction, to leaves."""
    seconds: float
    best: float
    worst: float
    stalled: float
    retransmitted: int
    queue_pairs: int


def main(options: PathsOptions) -> None:
    """Measure in a sandbox, print the table, and draw the figure.  Raises FabricFailed."""
    sandbox.enter()
    begin = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    results = run(options)
    options.write(results)
    rows = summary(results, options)
    title = (f"{options.ranks} ranks, {options.in_words}, {options.nbytes} bytes a rank over {options.transport}, "
             f"{options.planner}, {options.rounds} rounds")
    print(f"{title}, {time.monotonic() - begin:.0f} s\n{show(rows)}", end="")
    try:
        print(f"figures: {', '.join(map(str, draw(rows, title, options.out)))}")
    except PlotsMissing as error:
        print(f"no figures: {error}", file=sys.stderr)


def run(options: PathsOptions) -> list[PathsResult]:
    """Measure on a fabric inside this sandbox.  Raises FabricFailed."""
    from netfold.topo.network.net import Network

    fabric = msgspec.structs.replace(
        options.fabric(rundir=sandbox.rundir(), path_mtu=roce.PATH_MTU), probe=options.probe,
        planner=msgspec.convert(options.planner, PlannerName))
    task = PathsTask(
        msgspec.convert(options.names("modes", MODES), list[Mode]),
        msgspec.convert(options.names("collectives", COLLECTIVES, none=True), list[Collective]), options.rounds,
        options.bytes_of("nbytes"), options.fail_link is not None, WINDOW[options.engine],
        msgspec.convert(options.transport, Transport),
    )
    results: list[PathsResult] = []
    with Network(fabric, logs=options.out / "logs") as network:
        command = rank_programs.command("paths", task)
        for rank, line in network.launch(command, job="paths").lines(within=SECONDS):
            if line == BREAK_LINK:
                time.sleep(options.fail_link or 0.0)
                _cable(options, broken=True)
            elif line == RESTORE_LINK:
                _cable(options, broken=False)
            elif rank == 0:
                results.append(msgspec.json.decode(line, type=PathsResult))
                _print_progress(results[-1])
        network.check()
    return results


def _cable(options: PathsOptions, *, broken: bool) -> None:
    """Break or restore the first leaf's first uplink."""
    ends, _ = options.uplinks[0]
    if not options.silent:
        commands = [f"ip link set {ends[0].node}-eth{ends[0].port} {'down' if broken else 'up'}"]
    else:  # the queue behind the shaper (wiring.shaper) gets no room, or room again
        limit = 1 if broken else QUEUE
        commands = [f"tc qdisc replace dev {end.node}-eth{end.port} parent 1:1 handle 10: bfifo limit {limit}"
                    for end in ends]
    for command in commands:
        subprocess.run(command.split(), check=True, timeout=10)


def _print_progress(result: PathsResult) -> None:
    print(f"  round {result.round} {result.collective:17} {result.mode:7}{' link fails' if result.failed else ''} "
          f"{result.seconds:.2f} s", file=sys.stderr, flush=True)


def summary(results: Sequence[PathsResult], options: PathsOptions) -> list[PathsRow]:
    """One row for each collective and mode, in the order of measurement."""
    leaves, others = zip(*(ends for ends, _ in options.uplinks), strict=True)
    groups: dict[tuple[bool, str, str], list[PathsResult]] = {}
    for result in results:
        groups.setdefault((result.failed, result.collective, result.mode), []).append(result)
    rows = []
    for (failed, collective, mode), group in groups.items():
        times = [result.seconds for result in group]
        rows.append(PathsRow(
            collective, mode, failed, statistics.median(_imbalance(result, leaves) for result in group),
            statistics.median(_imbalance(result, others) for result in group), statistics.median(times), min(times),
            max(times), max(result.stalled for result in group), sum(result.retransmitted for result in group),
            max(result.queue_pairs for result in group),
        ))
    return sorted(rows, key=lambda row: (row.failed, COLLECTIVES.index(row.collective)))


def _imbalance(result: PathsResult, ends: Sequence[End]) -> float:
    """The most bytes that left one of these ends, over the mean of all of them; 0 if none left any."""
    loads = [result.uplinks[str(end)] for end in ends]
    return max(loads) / (statistics.mean(loads) or 1.0)


def show(rows: Sequence[PathsRow]) -> str:
    """The rows as a table of text."""
    text = (f"{'collective':<18} {'mode':<7} {'up max/mean':>11} {'down':>6} {'seconds':>8} {'min - max':>13} "
            f"{'stall ms':>8} {'resent':>7} {'QPs':>4}\n")
    for row in rows:
        name = row.collective + (" !" if row.failed else "")
        text += (f"{name:<18} {row.mode:<7} {row.up:>11.3f} {row.down:>6.3f} {row.seconds:>8.2f} "
                 f"{row.best:>6.2f}-{row.worst:<6.2f} {row.stalled * 1e3:>8.0f} {row.retransmitted:>7} "
                 f"{row.queue_pairs:>4}\n")
    return text + ("! a link of the first leaf broke in the middle\n" if any(row.failed for row in rows) else "")


def draw(rows: Sequence[PathsRow], title: str, folder: Path) -> list[Path]:
    """Draw the busiest uplink and the time of each collective as bars and return paths.svg and paths.pdf in ``folder``.

    Raises PlotsMissing where matplotlib is not installed.
    """
    charts = []
    for name, axis, base, value in (("How evenly uplinks are loaded", "busiest uplink / mean", 1.0, "up"),
                                    ("How long collectives take", "time, s", 0.0, "seconds")):
        groups: dict[str, dict[str, Value]] = {}
        for row in rows:
            group = row.collective.replace("_", " ") + (", a link fails" if row.failed else "")
            groups.setdefault(group, {})[row.mode] = (
                Whisker(row.seconds, row.best, row.worst) if value == "seconds" else row.up)
        charts.append(BarChart(name, groups, axis, base))
    return bar_charts(folder / "paths", f"What planned paths bring to collectives: {title}", charts)
