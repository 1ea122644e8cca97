# SPDX-License-Identifier: Apache-2.0
"""`netfold bench train`: training steps over several backends, on links of one rate.

The backends are gloo, netfold (both under DistributedDataParallel), hook (gloo, with NetFold's communication hook),
fsdp and fsdp-gloo (FullyShardedDataParallel over either), fsdp2 and fsdp2-gloo (fully_shard over either), hsdp and
hsdp-gloo (fully_shard over two replicas, each sharded over half of the ranks), fsdp2-prefetch and fsdp2-together (its
all-gathers under way while it computes backward, by themselves or joined by reduce-scatters), priority and
priority-arrival (PriorityOptimizer, first layers first or last layers first).  What NetFold carries runs on a
leaf-spine fabric of P4 switches.  gloo, fsdp-gloo, fsdp2-gloo and hsdp-gloo run on a plain kernel bridge with the same
link rates, which is the best case for them: no switch in software takes a core; with @fabric behind the name they run
on the fabric's hosts, whose TCP the switches forward.

Rounds are interleaved, and each begins with the next backend.  In every turn the ranks join anew and train the same
model from the same start on the same batches, so that ratios are of neighbouring turns, and losses can be compared with
those of a single process that trains on the whole batches.  A run whose losses differ from those by more than its
bound, or whose ranks end with unlike parameters, raises WrongData.

A step's time is split in two: compute is a step without communication, beside the other ranks', and wait is what the
real step takes longer than that.  reduce is all communication of a step by itself: what it is longer than wait was
hidden behind computing.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

from netfold.bench.commands.allreduce import READY_SECONDS
from netfold.bench.commands.train_report import TrainRow, Turn, check, draw, label, network_of, row_of, show
from netfold.bench.harness.processors import cpu_seconds
from netfold.bench.options.training import ON_FABRIC, TrainOptions
from netfold.bench.ranks.train_command import PROBES, TrainCommand, TrainResult, Way
from netfold.host.opening.planes import RAILS_VARIABLE
from netfold.topo.network import sandbox
from netfold.wire.roce import LINK_MTUS

if TYPE_CHECKING:  # Mininet may be absent, and is imported inside the sandbox
    from netfold.bench.harness.workers import Workers

ALONE: Final = "alone"
"""The group of the single process."""
PORT: Final = 29600
WARMUP: Final = 2
"""Steps of a round before those that are timed."""
LEARNING_RATE: Final = 0.05
"""The learning rate of SGD with a momentum of 0.9."""


def run(options: TrainOptions, echo: Callable[[str], None] = print) -> list[TrainRow]:
    """Measure in a sandbox, print a table, and write the rows and the figure.

    Raises WrongData, WorkerFailed, FabricFailed, ValueError.
    """
    if find_spec("torch") is None:
        raise ValueError("torch is not installed: pip install torch")
    newest = [name for name, _ in options.ways if name.startswith(("fsdp2", "hsdp"))]
    if newest and tuple(map(int, version("torch").split(".")[:2])) < (2, 6):
        raise ValueError(f"--backends {','.join(newest)}: torch {version('torch')} has no fully_shard: expected 2.6 or "
                         "later")
    if options.record is not None:
        options.record.mkdir(parents=True, exist_ok=True)
    import mininet  # noqa: F401  # raises an error that says what to install, before anything is started

    sandbox.enter()
    from mininet.log import setLogLevel

    setLogLevel("error")
    with _start_workers(options) as (workers, switches):
        rows = _measure(options, workers, switches, _alone(options, workers[ALONE]), echo)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        draw(rows, options.out / "train", echo)
    return rows


def _command(options: TrainOptions, way: Way, lane_bits: int, turn: int = 0, record: str = "") -> TrainCommand:
    return TrainCommand(
        way, options.model, options.width, options.batch, options.ranks, options.steps, WARMUP, options.seed, lane_bits,
        LEARNING_RATE, options.bucket_mb, PORT + turn, options.timeout, options.layers, options.layer_seconds,
        record,
    )


def _alone(options: TrainOptions, worker: Workers) -> TrainResult:
    """The result of a single process that trains on the same batches.  Raises WorkerFailed."""
    worker.send(_command(options, "gloo", 32))
    return worker.results(TrainResult, _patience(options))[0]


def _patience(options: TrainOptions) -> float:
    """Seconds for one turn of all ranks."""
    return READY_SECONDS + (options.steps + WARMUP + 2 * PROBES + 4) * options.timeout


@contextlib.contextmanager
def _start_workers(options: TrainOptions) -> Iterator[tuple[dict[str, Workers], list[int]]]:
    """Start the ranks on the fabric and on the bridge, and the single process, by name; also yields the process numbers
    of the switches."""
    from netfold.bench.harness.bridge import Bridge
    from netfold.bench.harness.workers import Workers
    from netfold.topo.network.planes import Planes, on_plane
    from netfold.topo.processes.ranks import SETTINGS, environment, in_namespaces

    logs = Path(tempfile.mkdtemp(prefix="logs-", dir=sandbox.rundir()))
    program = [sys.executable, "-m", "netfold.bench.ranks.train"]
    command = [*program, "rank"]
    needed = {network_of(name) for name, _ in options.ways}
    workers: dict[str, Workers] = {}
    switches: list[int] = []
    with contextlib.ExitStack() as stack:
        if "fabric" in needed:
            planes = options.planes(rundir=sandbox.rundir())
            if options.rails > 1:
                planes = [on_plane(fabric, number) for number, fabric in enumerate(planes)]
            running = stack.enter_context(Planes(planes, logs=logs))
            network = running.networks[0]
            switches = [switch.child.pid for one in running.networks for switch in one.switches
                        if switch.child is not None]
            hosts = network.fabric.hosts
            rails = {RAILS_VARIABLE: "+".join(f"innet@{'ab'[number]}" for number in range(options.rails))}
            envs = [
                {**environment(network.fabric, hosts, rank, job="train"),
                 **({**running.environment(host), **rails} if options.rails > 1 else {})}
                for rank, host in enumerate(hosts)
            ]
            enters = [in_namespaces(running.mininet.get(host.name).pid) for host in hosts]
            workers["fabric"] = stack.enter_context(Workers("fabric", command, enters, envs, logs))
        if "bridge" in needed:
            bridge = stack.enter_context(Bridge(options.ranks, options.link_rate, LINK_MTUS[options.path_mtu]))
            envs = [{
                "RANK": str(rank), "WORLD_SIZE": str(options.ranks), "MASTER_ADDR": bridge.addresses[0],
                "GLOO_SOCKET_IFNAME": bridge.interface, **SETTINGS,
            } for rank in range(options.ranks)]
            workers["bridge"] = stack.enter_context(Workers("bridge", command, bridge.enters, envs, logs))
        workers[ALONE] = stack.enter_context(Workers(ALONE, [*program, ALONE], [()], [SETTINGS], logs))
        for group in workers.values():
            group.receive(READY_SECONDS)
        yield workers, switches


def _measure(
    options: TrainOptions, workers: Mapping[str, Workers], switches: Sequence[int], alone: TrainResult,
    echo: Callable[[str], None],
) -> list[TrainRow]:
    turns: dict[tuple[str, int], list[Turn]] = {backend: [] for backend in options.ways}
    begun = 0
    for number in range(options.rounds):
        first = number % len(options.ways)
        for name, bits in (*options.ways[first:], *options.ways[:first]):
            begun += 1
            turns[name, bits].append(_turn(options, workers, switches, alone, name, bits, begun))
        steps = ", ".join(f"{label(*backend)} {some[-1].step * 1e3:.0f}" for backend, some in turns.items())
        print(f"round {number + 1} of {options.rounds}, load {os.getloadavg()[0]:.1f}: ms a step: {steps}",
              file=sys.stderr, flush=True)
    known = [options.beside] if options.beside else ["gloo", f"gloo{ON_FABRIC}"]
    beside = next((name for name in known if (name, 32) in turns), "")
    others = turns.get((beside, 32), [])
    rows = [row_of(options, name, bits, some, beside, others, alone) for (name, bits), some in turns.items()]
    options.write(rows)
    show(options, rows, echo)
    return rows


def _turn(
    options: TrainOptions, workers: Mapping[str, Workers], switches: Sequence[int], alone: TrainResult, name: str,
    bits: int, number: int,
) -> Turn:
    way = next(way for way in get_args(Way) if way == name.removesuffix(ON_FABRIC))
    group = workers[network_of(name)]
    before = sum(map(cpu_seconds, switches))
    record = str(options.record.resolve() / f"{name}-{bits}.json") if options.record is not None else ""
    group.send(_command(options, way, bits, number, record))
    results = group.results(TrainResult, _patience(options))
    done = options.steps + WARMUP + PROBES + 1
    spent = (sum(map(cpu_seconds, switches)) - before) / done if network_of(name) == "fabric" else 0.0
    return Turn(results, spent, check(label(name, bits), bits, results, alone))
