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
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

import msgspec

from netfold.bench.commands.allreduce import READY_SECONDS, UNSHAPED
from netfold.bench.harness.processors import cpu_seconds
from netfold.bench.harness.training import (
    MODELS,
    NARROWS,
    ON_FABRIC,
    PLAIN,
    TrainRow,
    TrainSpec,
    Turn,
    check,
    draw,
    label,
    network_of,
    row_of,
    show,
)
from netfold.bench.ranks.train import PROBES
from netfold.bench.ranks.train_command import TrainCommand, TrainResult, Way
from netfold.disk import files
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Engine, FabricError, bits_per_second
from netfold.host.opening.planes import RAILS_VARIABLE
from netfold.topo.network import sandbox
from netfold.topo.processes.failures import FabricFailed
from netfold.wire.jobs import LANE_BITS
from netfold.wire.roce import LINK_MTUS

if TYPE_CHECKING:  # Mininet may be absent, and is imported inside the sandbox
    from netfold.bench.harness.workers import Workers

PORT: Final = 29600


def spec(
    *, model: str, backends: str, beside: str, lane_bits: str, ranks: int, topo: str, engine: Engine, rate: str,
    loss: float, rails: int, width: int, layers: int, layer_seconds: float, batch: int, bucket_mb: float,
    learning_rate: float, steps: int, warmup: int, rounds: int, path_mtu: int, seed: int, timeout: float,
    record: Path | None = None,
) -> TrainSpec:
    """Check the options of the command line.  Raises ValueError, which names the option."""
    if model not in MODELS:
        raise ValueError(f"--model {model}: expected one of {', '.join(MODELS)}")
    for option, value, least in (("--steps", steps, 1), ("--warmup", warmup, 1), ("--rounds", rounds, 1),
                                 ("--width", width, 0), ("--layers", layers, 1), ("--batch", batch, 0),
                                 ("--rails", rails, 1)):
        if value < least:
            raise ValueError(f"{option} {value}: expected {least} or more")
    if rails > 2:
        raise ValueError(f"--rails {rails}: expected 1 or 2")
    if model == "transformer" and width % 8:
        raise ValueError(f"--width {width}: expected a multiple of 8, for the transformer's heads")
    for option, positive in (("--bucket-mb", bucket_mb), ("--learning-rate", learning_rate), ("--timeout", timeout)):
        if not 0 < positive < math.inf:
            raise ValueError(f"{option} {positive:g}: expected more than 0, and a finite number")
    if not 0 <= layer_seconds < math.inf:
        raise ValueError(f"--layer-seconds {layer_seconds:g}: expected 0 or more, and a finite number")
    leaves, comma, spines = topo.partition(",")
    if not (comma and leaves.isdecimal() and spines.isdecimal() and int(leaves)):
        raise ValueError(f"--topo {topo}: expected LEAVES,SPINES, as 2,2")
    if ranks < 2 or ranks % int(leaves):
        raise ValueError(f"--ranks {ranks}: expected 2 or more, the same number on each of {leaves} leaves")
    try:
        if rate != UNSHAPED:
            bits_per_second(rate)
    except FabricError as error:
        raise ValueError(f"--rate: {error}, or {UNSHAPED}") from error
    widths = [int(bits) for bits in lane_bits.split(",") if bits.strip().isdecimal()]
    if not widths or len(widths) != lane_bits.count(",") + 1 or not set(widths) <= set(LANE_BITS):
        raise ValueError(f"--lane-bits {lane_bits}: expected some of {', '.join(map(str, LANE_BITS))}, by commas")
    asked: list[tuple[str, int]] = []
    for name in dict.fromkeys(name.strip() for name in backends.split(",") if name.strip()):
        way = name.removesuffix(ON_FABRIC)
        if way not in get_args(Way) or (way != name and way not in PLAIN):
            raise ValueError(f"--backends: no backend is called {name!r}; there are {', '.join(get_args(Way))}, and "
                             f"{ON_FABRIC} behind {' and '.join(PLAIN)}")
        if loss and name in PLAIN:
            raise ValueError(f"--loss {loss:g}: the plain bridge that {name} runs on loses nothing; give "
                             f"{name}{ON_FABRIC}")
        if rails > 1 and way in ("fsdp-gloo", "fsdp2-gloo", "hsdp-gloo") and name != way:
            raise ValueError(f"--rails {rails}: {name} would use one plane of the fabric; give {way}")
        if way.startswith("hsdp") and ranks % 2:
            raise ValueError(f"--ranks {ranks}: {name} has two replicas: expected an even number")
        asked += [(name, bits) for bits in widths] if way in NARROWS else [(name, 32)]
    if not asked:
        raise ValueError("--backends: expected at least one")
    if beside and (beside, 32) not in asked:
        raise ValueError(f"--beside {beside}: expected one of --backends, in 32-bit lanes: "
                         f"{', '.join(name for name, bits in asked if bits == 32) or 'none is'}")
    usual_width, usual_batch, _ = MODELS[model]
    return TrainSpec(
        model, tuple(dict.fromkeys(asked)), beside, ranks, int(leaves), int(spines), engine,
        None if rate == UNSHAPED else rate, loss, rails, width or usual_width, layers, layer_seconds,
        batch or usual_batch, bucket_mb, learning_rate, steps, warmup, rounds,
        path_mtu, seed, timeout, "" if record is None else str(record.resolve()),
    )


def run(
    spec: TrainSpec, json: Path | None, figure: Path | None = None, echo: Callable[[str], None] = print
) -> list[TrainRow]:
    """Measure in a sandbox, print a table, write the rows to ``json``, and draw ``figure`` with .svg and .png.

    Raises WrongData, FabricFailed, ValueError.
    """
    if find_spec("torch") is None:
        raise ValueError("torch is not installed: pip install torch")
    newest = [name for name, _ in spec.backends if name.startswith(("fsdp2", "hsdp"))]
    if newest and tuple(map(int, version("torch").split(".")[:2])) < (2, 6):
        raise ValueError(f"--backends {','.join(newest)}: torch {version('torch')} has no fully_shard: expected 2.6 or "
                         "later")
    if spec.record:
        Path(spec.record).mkdir(parents=True, exist_ok=True)
    import mininet  # noqa: F401  # raises an error that says what to install, before anything is started

    sandbox.enter()
    from mininet.log import setLogLevel

    setLogLevel("error")
    alone = _alone(spec)
    with _start_workers(spec) as (workers, switches):
        rows = _measure(spec, workers, switches, alone, json, echo)
    if figure is not None:
        draw(rows, figure, echo)
    return rows


def _command(spec: TrainSpec, way: Way, lane_bits: int, turn: int = 0, record: str = "") -> TrainCommand:
    return TrainCommand(
        way, spec.model, spec.width, spec.batch, spec.ranks, spec.steps, spec.warmup, spec.seed, lane_bits,
        spec.learning_rate, spec.bucket_mb, PORT + turn, spec.timeout, spec.layers, spec.layer_seconds,
        record,
    )


def _alone(spec: TrainSpec) -> TrainResult:
    """The result of a single process that trains on the same batches.  Raises FabricFailed."""
    command = msgspec.json.encode(_command(spec, "gloo", 32)).decode()
    done = subprocess.run(
        [sys.executable, "-m", "netfold.bench.ranks.train", "alone", command], capture_output=True, text=True,
        timeout=_patience(spec), check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise FabricFailed(f"the single process ended with status {done.returncode}:\n{done.stderr}")
    return msgspec.json.decode(done.stdout, type=TrainResult)


def _patience(spec: TrainSpec) -> float:
    """Seconds for one turn of all ranks."""
    return READY_SECONDS + (spec.steps + spec.warmup + 2 * PROBES + 4) * spec.timeout


@contextlib.contextmanager
def _start_workers(spec: TrainSpec) -> Iterator[tuple[dict[str, Workers], list[int]]]:
    """Start the ranks on the fabric and on the bridge, by name; also yields the process numbers of the switches."""
    from netfold.bench.harness.bridge import Bridge
    from netfold.bench.harness.workers import Workers
    from netfold.topo.network.planes import Planes, on_plane
    from netfold.topo.processes.ranks import SETTINGS, environment, in_namespaces

    logs = Path(tempfile.mkdtemp(prefix="logs-", dir=sandbox.rundir()))
    command = [sys.executable, "-m", "netfold.bench.ranks.train", "rank"]
    needed = {network_of(name) for name, _ in spec.backends}
    workers: dict[str, Workers] = {}
    switches: list[int] = []
    with contextlib.ExitStack() as stack:
        if "fabric" in needed:
            fabric = leafspine(
                spec.leaves, spec.spines, spec.ranks, rate=spec.rate, loss=spec.loss, seed=spec.seed,
                engine=spec.engine, path_mtu=spec.path_mtu, rundir=sandbox.rundir(),
            )
            planes = [fabric] if spec.rails == 1 else [on_plane(fabric, number) for number in range(spec.rails)]
            running = stack.enter_context(Planes(planes, logs=logs))
            network = running.networks[0]
            switches = [switch.child.pid for one in running.networks for switch in one.switches
                        if switch.child is not None]
            hosts = network.fabric.hosts
            rails = {RAILS_VARIABLE: "+".join(f"innet@{'ab'[number]}" for number in range(spec.rails))}
            envs = [
                {**environment(network.fabric, hosts, rank, job="train"),
                 **({**running.environment(host), **rails} if spec.rails > 1 else {})}
                for rank, host in enumerate(hosts)
            ]
            enters = [in_namespaces(running.mininet.get(host.name).pid) for host in hosts]
            workers["fabric"] = stack.enter_context(Workers("fabric", command, enters, envs, logs))
        if "bridge" in needed:
            bridge = stack.enter_context(Bridge(spec.ranks, spec.rate, LINK_MTUS[spec.path_mtu]))
            envs = [{
                "RANK": str(rank), "WORLD_SIZE": str(spec.ranks), "MASTER_ADDR": bridge.addresses[0],
                "GLOO_SOCKET_IFNAME": bridge.interface, **SETTINGS,
            } for rank in range(spec.ranks)]
            workers["bridge"] = stack.enter_context(Workers("bridge", command, bridge.enters, envs, logs))
        for group in workers.values():
            group.receive(READY_SECONDS)
        yield workers, switches


def _measure(
    spec: TrainSpec, workers: Mapping[str, Workers], switches: Sequence[int], alone: TrainResult, json: Path | None,
    echo: Callable[[str], None],
) -> list[TrainRow]:
    turns: dict[tuple[str, int], list[Turn]] = {backend: [] for backend in spec.backends}
    begun = 0
    for number in range(spec.rounds):
        first = number % len(spec.backends)
        for name, bits in (*spec.backends[first:], *spec.backends[:first]):
            begun += 1
            turns[name, bits].append(_turn(spec, workers, switches, alone, name, bits, begun))
        steps = ", ".join(f"{label(*backend)} {some[-1].step * 1e3:.0f}" for backend, some in turns.items())
        print(f"round {number + 1} of {spec.rounds}, load {os.getloadavg()[0]:.1f}: ms a step: {steps}",
              file=sys.stderr, flush=True)
    known = [spec.beside] if spec.beside else ["gloo", f"gloo{ON_FABRIC}"]
    beside = next((name for name in known if (name, 32) in turns), "")
    others = turns.get((beside, 32), [])
    rows = [row_of(spec, name, bits, some, beside, others, alone) for (name, bits), some in turns.items()]
    if json is not None:
        files.replace(json, msgspec.json.format(msgspec.json.encode(rows), indent=1))
    show(spec, rows, echo)
    return rows


def _turn(
    spec: TrainSpec, workers: Mapping[str, Workers], switches: Sequence[int], alone: TrainResult, name: str, bits: int,
    number: int,
) -> Turn:
    way = next(way for way in get_args(Way) if way == name.removesuffix(ON_FABRIC))
    group = workers[network_of(name)]
    before = sum(map(cpu_seconds, switches))
    record = str(Path(spec.record, f"{name}-{bits}.json")) if spec.record else ""
    group.send(msgspec.json.encode(_command(spec, way, bits, number, record)))
    lines = group.receive(_patience(spec))
    done = spec.steps + spec.warmup + PROBES + 1
    spent = (sum(map(cpu_seconds, switches)) - before) / done if network_of(name) == "fabric" else 0.0
    results = [msgspec.json.decode(line, type=TrainResult) for line in lines]
    return Turn(results, spent, check(label(name, bits), bits, results, alone))
