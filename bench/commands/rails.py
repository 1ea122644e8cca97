# SPDX-License-Identifier: Apache-2.0
"""`netfold bench rails`: one allreduce over several rails beside each rail alone, and a plane that fails in between.

A rail alone is the same rail with all calls pinned to it (``MultiRail.pin``), on the same sockets, hosts and links.
Turns are short and interleaved: rail a, rail b, both, and again; a turn's time is that of its slowest rank.  ``of
best`` is the time of both over that of the rail with the best median: the median over neighbouring turns, with its
quartiles.  (The faster rail of each single turn would be one that nobody can choose beforehand.)  ``of sum`` is the
rate over the sum of the single rails' rates.

Starts: seconds to join, and of the first sums; cold, hot, and hot with the measurements of an earlier run.

Shares: of each rail over the tensor's size, as the turns have moved them, and as each kind of start would cut before
its first sums and after them.  The threshold is the smallest tensor that is cut after them.

Processor time: of a rank's process for one sum, all threads, by each rail alone and by all; and of each rail's thread
while all carry a part.  Medians of turns of the mean over ranks.  Switches' is not counted.

Plane failures: after a part of a call's time, all host links of the last plane go down.  ``extra`` is what the call
took beyond t + (S - t R) / r, where t is the time of the failure, S the tensor's size, R the rate of all rails, and r
that of those left, both measured just before: what was moved until then counts, and the rest moves at the full rate of
what is left.

TCP in the hosts uses a congestion control that heeds only losses (``CONGESTION``): on a shaped link inside one machine,
with round trips of 30 microseconds behind queues of megabytes, BBR settles on windows of a few packets and leaves a
fifth of the link unused, which would make every other rail look better than it is.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from netfold.bench.commands import rails_death, rails_mptcp, rails_training
from netfold.bench.commands.allreduce import READY_SECONDS
from netfold.bench.commands.rails_figures import FIRST, write
from netfold.bench.commands.rails_report import MptcpRow, PlaneCut, RailsReport, RailsRow, RailTrainingRow, Started
from netfold.bench.options.paths import RailsOptions
from netfold.bench.ranks.mptcp import MptcpResult
from netfold.bench.ranks.rails import Announcement, OpenCommand, OpenResult, SumsCommand, SumsResult
from netfold.host.opening.planes import RAILS_VARIABLE
from netfold.host.rails.joining import STALL_VARIABLE
from netfold.host.rails.policy import Start
from netfold.host.selection.peers import ALGORITHM_VARIABLE
from netfold.topo.network import sandbox
from netfold.topo.processes.failures import FabricFailed

if TYPE_CHECKING:  # Mininet may be absent, and is imported inside the sandbox
    from netfold.bench.harness.workers import Workers
    from netfold.topo.network.planes import Planes

BACK_SECONDS = 30.0
"""Seconds in which a rail must be used again after its plane is back."""
LARGE = 16 << 20
"""Bytes of a tensor from which fewer calls warm up."""
STARTS: Sequence[tuple[str, Start, bool]] = (("cold", "cold", False), ("hot", "hot", False), ("known", "hot", True))
"""Kinds of starts: their names, the value of the setting, and whether measurements of an earlier run are there."""
CONGESTION = ("cubic", "reno")
"""Congestion controls for TCP in the hosts; the first one that the kernel allows is used."""
TURN, TURNS = 0.1, 10
"""Seconds of a turn where calls are short, and how many turns each rail then has in a round."""


def main(options: RailsOptions) -> bool:
    """Measure, and return whether all sums were right and all ranks trained alike."""
    report = run(options)
    wrong = [row.wrong for row in report.rows] + [cut.wrong for cut in report.cuts]
    wrong += [row.mptcp.wrong for row in report.rows if row.mptcp is not None]
    wrong += [call.wrong for call in report.death.calls] if report.death is not None else []
    return not any(wrong) and all(row.alike for row in report.training)


def run(options: RailsOptions, echo: Callable[[str], None] = print) -> RailsReport:
    """Measure in a sandbox, print tables, and write the report, all figures and their data.

    Raises FabricFailed, ValueError, PlotsMissing.
    """
    if options.mptcp:
        rails_mptcp.require()
    import mininet  # noqa: F401  # raises an error that says what to install, before anything is started

    sandbox.enter()
    from mininet.log import setLogLevel

    from netfold.topo.network.planes import Planes, on_plane

    setLogLevel("error")
    logs = Path(tempfile.mkdtemp(prefix="logs-", dir=sandbox.rundir()))
    folder = sandbox.rundir()
    fabrics = [on_plane(fabric, number) for number, fabric in enumerate(options.planes(rundir=folder))]
    with contextlib.ExitStack() as stack:
        planes = stack.enter_context(Planes(fabrics, logs=logs))
        congestion = _congestion(planes)
        echo(f"# TCP in the hosts: {congestion}, allreduce by {options.algorithm}")
        workers = stack.enter_context(_workers(options, planes, logs))
        starts = _starts(options, workers, folder, echo)
        with contextlib.ExitStack() as beside:
            multipath = None
            if options.mptcp:
                multipath = beside.enter_context(rails_mptcp.started(planes, logs, options.timeout))
            rows = _compare(options, workers, multipath, echo)
        parameters, trained = _train(options, workers, echo)
        cuts = [_cut(options, workers, planes, part, echo) for part in options.parts]
        death = None
        if options.series:
            nbytes = max(4, options.bytes_of("cut_bytes") // 16 * 4)
            death = rails_death.measure(workers, planes, nbytes, options.series, options.timeout, echo)
    result = RailsReport(options.rails, options.rates, options.ranks, options.engine, congestion, options.algorithm,
                         starts, rows, cuts, parameters, trained, death)
    options.write(result)
    if options.out is not None:
        for file in write(result, options.out):
            echo(f"# {file}")
    return result


def _train(
    options: RailsOptions, workers: Workers, echo: Callable[[str], None]
) -> tuple[int, list[RailTrainingRow]]:
    """Train where that is asked for and torch is installed; else a line says that nothing was trained."""
    if not options.train:
        return 0, []
    if find_spec("torch") is None:
        echo("# nothing is trained: torch is not installed (pip install torch)")
        return 0, []
    return rails_training.measure(
        rails_training.RailTrainingSpec(options.kinds, options.train, options.width, options.rounds, options.timeout),
        workers, echo,
    )


def _workers(options: RailsOptions, planes: Planes, logs: Path) -> Workers:
    from netfold.bench.harness.workers import Workers
    from netfold.topo.processes.ranks import environment, in_namespaces

    first = planes.networks[0]
    hosts = first.fabric.hosts
    envs = [
        {**environment(first.fabric, hosts, rank, job="bench"), **planes.environment(host),
         RAILS_VARIABLE: options.rails, ALGORITHM_VARIABLE: options.algorithm, STALL_VARIABLE: str(options.stall)}
        for rank, host in enumerate(hosts)
    ]
    program = "rails_and_torch" if options.train and find_spec("torch") else "rails"
    command = [sys.executable, "-m", f"netfold.bench.ranks.{program}", str(options.timeout)]
    enters = [in_namespaces(first.mininet.get(host.name).pid) for host in hosts]
    return Workers("rails", command, enters, envs, logs)


def _congestion(planes: Planes) -> str:
    """Set the first of CONGESTION that the kernel allows in all hosts, and return the congestion control in use."""
    network = planes.networks[0]
    pids = [network.mininet.get(host.name).pid for host in network.fabric.hosts]

    def at(pid: int, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["mnexec", "-a", str(pid), "sysctl", *command], capture_output=True, text=True, timeout=10, check=False
        )

    for name in CONGESTION:
        if all(at(pid, "-w", f"net.ipv4.tcp_congestion_control={name}").returncode == 0 for pid in pids):
            return name
    return at(pids[0], "-n", "net.ipv4.tcp_congestion_control").stdout.strip() or "unknown"


def _turn(options: RailsOptions, workers: Workers, turn: SumsCommand) -> list[SumsResult]:
    workers.send(turn)
    return workers.results(SumsResult, (turn.iterations + turn.warmup + 2) * options.timeout)


def _starts(options: RailsOptions, workers: Workers, folder: Path, echo: Callable[[str], None]) -> list[Started]:
    """Start in every way once a round, after one round that does not count; the last start stays."""
    nbytes = options.bytes_of("cut_bytes")
    begun: dict[str, list[list[OpenResult]]] = {name: [] for name, _, _ in STARTS}
    for number in range(options.rounds + 1):
        figures = str(folder / f"figures{number}")
        for name, start, known in STARTS:
            # the hot start leaves its measurements there for the next one
            file = figures if start == "hot" or known else ""
            workers.send(OpenCommand(f"bench-{name}{number}", start, file, nbytes, FIRST, options.sizes))
            results = workers.results(OpenResult, READY_SECONDS + (FIRST + 2) * options.timeout)
            if number:
                begun[name].append(results)
    for use in begun[STARTS[-1][0]][-1][0].uses:
        rate = "an unknown rate" if use.bandwidth is None else f"{use.bandwidth * 8 / 1e6:.1f} Mb/s"
        echo(f"# {use.name}: measured {use.latency * 1e3:.2f} ms + {rate}")
    starts = []
    for name, rounds in begun.items():
        join = statistics.median(max(rank.join for rank in ranks) for ranks in rounds)
        first = [statistics.median(max(rank.first[i] for rank in ranks) for ranks in rounds) for i in range(FIRST)]
        last = rounds[-1][0]
        starts.append(Started(name, join, first, last.before, last.after, last.threshold))
        echo(f"# {name} start: joined after {join * 1e3:.0f} ms; first sums of {nbytes} bytes, ms: "
             f"{' '.join(f'{seconds * 1e3:.0f}' for seconds in first)}; all {(join + sum(first)) * 1e3:.0f}; cut from "
             f"{'no size on' if last.threshold is None else f'{last.threshold} bytes on'}; shares "
             f"{' '.join(_percent(shares) for shares in last.before)}, then "
             f"{' '.join(_percent(shares) for shares in last.after)}")
    return starts


def _compare(options: RailsOptions, workers: Workers, multipath: Workers | None, echo: Callable[[str], None]
             ) -> list[RailsRow]:
    ways = [*range(len(options.rates)), None]
    places = len(ways) + (multipath is not None)
    echo(f"# {options.ranks} ranks; {options.in_words}; medians of interleaved turns, {options.rounds} rounds")
    head = " ".join(f"{name + ' ms':>14}" for name in options.kinds)
    echo(f"# {'bytes':>10} {head} {'together ms':>12} {'speed-up':>8} {'of sum':>7} {'of best':>19} {'turns':>5} "
         f"{'wrong':>5} {'shares':>11} {'cpu ms':>20}")
    rows = []
    for nbytes in options.sizes:
        calls = 4 if nbytes < LARGE else 2
        warm = [took for way in ways for took in _turn(options, workers, SumsCommand(nbytes, calls, rail=way))]
        slowest = max(took.seconds for took in warm)
        count = max(1, min(400, round(TURN / slowest)))
        times: list[list[float]] = []
        used: list[list[list[SumsResult]]] = []
        wrong = sum(took.wrong for took in warm)
        turns: list[list[MptcpResult]] = []
        for number in range(options.rounds * max(1, min(TURNS, round(TURN * TURNS / slowest / count)))):
            times.append([0.0] * len(ways))
            used.append([[]] * len(ways))
            for step in range(places):  # each comes at each place, so that it does not matter what ran before
                at = (number + step) % places
                if at == len(ways):
                    assert multipath is not None
                    turns.append(rails_mptcp.turn(multipath, nbytes, count, options.timeout))
                    continue
                took = _turn(options, workers, SumsCommand(nbytes, count, 1, ways[at]))
                wrong += sum(t.wrong for t in took)
                times[-1][at] = max(t.seconds for t in took)
                used[-1][at] = took
        beside = rails_mptcp.row([t[-1] for t in times], turns) if turns else None
        row = row_of(nbytes, times, wrong, warm[-1].path, used, beside)
        rows.append(row)
        singles = " ".join(f"{seconds * 1e3:>14.3f}" for seconds in row.single)
        spread = f"{row.of_best:.3f} ({row.quartiles[0]:.2f}-{row.quartiles[1]:.2f})"
        echo(f"  {row.nbytes:>10} {singles} {row.together * 1e3:>12.3f} {row.speedup:>8.2f} {row.of_sum:>7.0%} "
             f"{spread:>19} {row.turns:>5} {row.wrong:>5} {_percent(row.shares):>11} "
             f"{' '.join(f'{seconds * 1e3:.2f}' for seconds in row.processor):>20}")
        if beside is not None:
            echo(f"#     over Multipath TCP {beside.seconds * 1e3:.3f} ms; together is {beside.over:.3f} "
                 f"({beside.quartiles[0]:.2f}-{beside.quartiles[1]:.2f}) of that; subflows {1 + beside.subflows}, "
                 f"planes {_percent(beside.shares)}, wrong {beside.wrong}, cpu {beside.processor * 1e3:.2f} ms")
    return rows


def _percent(shares: Sequence[float]) -> str:
    return "/".join(f"{share:.0%}"[:-1] for share in shares)


def row_of(
    nbytes: int, times: Sequence[Sequence[float]], wrong: int, path: str,
    used: Sequence[Sequence[Sequence[SumsResult]]], mptcp: MptcpRow | None = None,
) -> RailsRow:
    """The row of one size, made of the turns: ``times`` has each way's seconds, and ``used`` each rank's results."""
    singles = [statistics.median(t[i] for t in times) for i in range(len(times[0]) - 1)]
    best = singles.index(min(singles))
    carried = [sum(turn[-1][0].carried[rail] for turn in used) for rail in range(len(singles))]
    ratios = [t[-1] / t[best] for t in times]
    low, _, high = statistics.quantiles(ratios, method="inclusive") if len(ratios) > 1 else ratios * 3
    return RailsRow(
        nbytes,
        singles,
        statistics.median(t[-1] for t in times),
        statistics.median(ratios),
        [low, high],
        statistics.median(1 / t[-1] / sum(1 / s for s in t[:-1]) for t in times),
        statistics.median(1 / ratio for ratio in ratios),
        len(times),
        wrong,
        path,
        [n / max(1, sum(carried)) for n in carried],
        [_processor([turn[way] for turn in used]) for way in range(len(times[0]))],
        [statistics.median(statistics.fmean(rank.rail_processor[rail] for rank in turn[-1]) for turn in used)
         for rail in range(len(singles))],
        mptcp,
    )


def _processor(turns: Sequence[Sequence[SumsResult]]) -> float:
    """Processor seconds of a rank for one sum: the median over turns of the mean over ranks."""
    return statistics.median(statistics.fmean(rank.processor for rank in ranks) for ranks in turns)


def _cut(options: RailsOptions, workers: Workers, planes: Planes, part: float, echo: Callable[[str], None]) -> PlaneCut:
    """Let the last plane fail after a part of a call, and measure what that costs; the other rails survive."""
    nbytes, last = options.bytes_of("cut_bytes"), len(options.rates) - 1
    whole = max(took.seconds for took in _turn(options, workers, SumsCommand(nbytes, 2, 2)))
    left = sum(nbytes / max(t.seconds for t in _turn(options, workers, SumsCommand(nbytes, 2, 1, rail)))
               for rail in range(last))
    workers.send(SumsCommand(nbytes, announce=True))
    begun = max(one.at for one in workers.results(Announcement, options.timeout))
    time.sleep(max(0.0, begun + part * whole - time.monotonic()))
    planes.cut(last)
    at = time.monotonic() - begun
    took = workers.results(SumsResult, 2 * options.timeout)
    seconds = max(t.begun + t.seconds for t in took) - begun
    ideal = at + max(0.0, nbytes - at * nbytes / whole) / left
    planes.cut(last, up=True)
    back = time.monotonic()
    while _turn(options, workers, SumsCommand(nbytes // 16))[0].states[last] != "up":
        if time.monotonic() > back + BACK_SECONDS:
            raise FabricFailed(f"the rail on the last plane was not used again within {BACK_SECONDS:g} s")
    cut = PlaneCut(at, seconds, ideal, seconds - ideal, sum(t.wrong for t in took), time.monotonic() - back)
    echo(f"# cut after {at * 1e3:.0f} of {whole * 1e3:.0f} ms ({nbytes} bytes): took {seconds * 1e3:.0f} ms, ideally "
         f"{ideal * 1e3:.0f}: {cut.extra * 1e3:.0f} ms extra, {cut.wrong} wrong; used again {cut.back:.1f} s after its "
         "return")
    return cut
