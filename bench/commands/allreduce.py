# SPDX-License-Identifier: Apache-2.0
"""`netfold bench allreduce`: algorithms side by side over links of the same rate, with options like nccl-tests'.

Folding, and algorithms between the hosts, run on a leaf-spine fabric of P4 switches; gloo, and algorithms with @bridge
behind their name, on a plain kernel bridge with the same link rates.  Rounds are interleaved, and each begins with the
next algorithm: A B C, B C A.  A time is the median over rounds of the slowest rank's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from netfold.bench.harness.limits import Limit, limited_by, machine
from netfold.bench.harness.processors import cpu_seconds
from netfold.disk import files
from netfold.fabric.generate import leafspine, parse
from netfold.fabric.graph import Engine, Fabric, FabricError, bits_per_second
from netfold.host.collectives import ALLREDUCE
from netfold.host.collectives.tidalmesh import TIDALMESH
from netfold.host.innet.core import CREDITS_VARIABLE
from netfold.host.job_secret import draw
from netfold.host.operation.rail import folds
from netfold.host.operation.reduction import ReduceOp, Reduction
from netfold.topo.network import sandbox
from netfold.topo.processes.allreduce_rank import PlainPeers, RankSetup, Timing, TimingCommand, program
from netfold.wire import roce
from netfold.wire.jobs import LANE_BITS, Peer

if TYPE_CHECKING:  # Mininet may be absent, and is imported inside the sandbox
    from netfold.bench.harness.bridge import Bridge
    from netfold.bench.harness.workers import Workers

BRIDGE: Final = "@bridge"
UNSHAPED: Final = "none"
"""The rate of links that are not shaped, as options name it."""
ON_FABRIC: Final = ("fabric", "roce")
TYPES: Final[Mapping[str, str]] = {
    "float": "float32", "half": "float16", "bfloat16": "bfloat16", "double": "float64", "int32": "int32",
    "int64": "int64", "uint8": "uint8",
}
"""nccl-tests' names of datatypes -> ours."""
OPERATIONS: Final[Mapping[str, ReduceOp]] = {
    "sum": "sum", "prod": "product", "min": "min", "max": "max", "avg": "average",
}
"""nccl-tests' names of operations -> ours."""
FLOAT32_SUM: Final = Reduction("sum", "float32")
FACTOR: Final = 4
"""Default factor from one size to the next."""
READY_SECONDS: Final = 120.0
"""Seconds for all ranks to join; the first compilation of the native library on a slow machine takes long."""


@dataclass(frozen=True)
class AllreduceSpec:
    """Which sizes, reductions and algorithms to time, how often, and over which fabric."""

    sizes: tuple[int, ...]
    iterations: int
    warmup: int
    rounds: int
    check: bool
    ranks: int
    leaves: int
    spines: int
    engine: Engine
    rate: str | None
    """Rate of every link in tc's units; None: not shaped."""
    loss: float
    lane_bits: int
    path_mtu: int
    algorithms: tuple[str, ...]
    seed: int
    timeout: float
    credits: str = ""
    """Value of NETFOLD_CREDITS for the ranks on the fabric, such as "2x170K"; empty: they have the window alone."""
    topo: str = ""
    """Any other fabric than one of so many leaves and spines, as `netfold up --topo` has it; empty: those."""
    reduction: Reduction = FLOAT32_SUM

    def fabric(self) -> Fabric:
        """The fabric, with a host for each rank.  Raises FabricError."""
        if self.topo:
            return parse(self.topo, rate=self.rate, loss=self.loss, seed=self.seed, engine=self.engine,
                         path_mtu=self.path_mtu)
        return leafspine(self.leaves, self.spines, self.ranks, rate=self.rate, loss=self.loss, seed=self.seed,
                         engine=self.engine, path_mtu=self.path_mtu)


class AllreduceRow(msgspec.Struct, frozen=True):
    """One algorithm at one size.  Times are medians over rounds of the slowest rank's."""

    algorithm: str
    engine: str
    """The engine that carried it: softswitch, bmv2, or bridge."""
    ranks: int
    nbytes: int
    dtype: str
    op: str
    lane_bits: int
    """Width of the lanes where switches folded all of it, which the chooser may not do; else 32, a whole element's."""
    path_mtu: int
    """Payload bytes of a packet on the fabric."""
    seconds: float
    seconds_best: float
    seconds_worst: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    """2 (N-1)/N of ``algbw_bytes_per_s``, as nccl-tests has it: what links carry for an algorithm between N hosts."""
    rate: str
    """Rate of the links in tc's units; empty: not shaped."""
    link_fraction: float
    """Part of a link's rate that `least_bytes`, moved in this time, would take; 0 where links are not shaped, or not
    those of leaves and spines."""
    cpu_seconds: float
    """Processor time of all ranks for one operation; threads of the kernel are not charged to them."""
    switch_cpu_seconds: float
    """Processor time of all switch processes for one operation."""
    machine_busy: float
    """Share of all cores that were busy meanwhile; at 1 the processors are the bottleneck."""
    retransmissions: int
    wrong: int
    path: str
    credits: str
    """NETFOLD_CREDITS of the ranks on the fabric; empty: the window alone."""
    limited_by: Limit
    """The limit of this figure: the link or the processor, by the share of each that was used."""
    machine: str
    """Where it was measured."""


def spec(
    *, begin: str, end: str, factor: int | None, iterations: int, warmup: int, rounds: int, check: bool, ranks: int,
    topo: str, engine: Engine, rate: str, loss: float, lane_bits: int, path_mtu: int, algorithms: str, seed: int,
    timeout: float, increment: str | None = None, datatype: str = "float", operation: str = "sum",
) -> AllreduceSpec:
    """Check the options of the command line.  Raises ValueError, which names the option."""
    reduction = _reduction(datatype, operation)
    first, last, width = size(begin, "-b"), size(end, "-e"), max(4, reduction.dtype.itemsize)
    if not width <= first <= last:
        raise ValueError(f"-b {begin} -e {end}: expected at least {width} bytes, and the end not below the beginning")
    step = 0 if increment is None else size(increment, "-i")
    if increment is not None and step < width:
        raise ValueError(f"-i {increment}: expected {width} bytes or more")
    multiply = factor if factor is not None else 1 if step else FACTOR
    for option, value, least in (("-f", multiply, 1 if step else 2), ("-n", iterations, 1), ("-w", warmup, 0),
                                 ("--rounds", rounds, 1)):
        if value < least:
            raise ValueError(f"{option} {value}: expected {least} or more")
    leaves, comma, spines = topo.partition(",")
    other = "" if topo[:1].isdecimal() else topo
    if other:
        leaves = spines = "1"
    elif not (comma and leaves.isdecimal() and spines.isdecimal() and int(leaves)):
        raise ValueError(f"--topo {topo}: expected LEAVES,SPINES, as 2,2, or what `netfold up --topo` takes")
    if ranks < 2 or ranks % int(leaves):
        raise ValueError(f"--ranks {ranks}: expected 2 or more, the same number on each of {leaves} leaves")
    if lane_bits not in LANE_BITS:
        raise ValueError(f"--lane-bits {lane_bits}: expected one of {', '.join(map(str, LANE_BITS))}")
    if path_mtu not in roce.PATH_MTUS:
        raise ValueError(f"--path-mtu {path_mtu}: expected one of {', '.join(map(str, roce.PATH_MTUS))}")
    if not 0 < timeout < math.inf:
        raise ValueError(f"--timeout {timeout:g}: expected seconds above 0, and a finite number")
    try:
        if rate != UNSHAPED:
            bits_per_second(rate)
    except FabricError as error:
        raise ValueError(f"--rate: {error}, or {UNSHAPED}") from error
    names = tuple(dict.fromkeys(name.strip() for name in algorithms.split(",") if name.strip()))
    known = {"innet", "roce", "auto", "gloo", TIDALMESH, *ALLREDUCE}
    for name in names:
        plain = name.removesuffix(BRIDGE)
        if plain not in known or (name != plain and plain in ("innet", "roce", TIDALMESH)):
            raise ValueError(f"--algorithms: no algorithm is called {name!r}; there are {', '.join(sorted(known))}, "
                             f"and {BRIDGE} behind those of TCP")
    if not names:
        raise ValueError("--algorithms: expected at least one")
    if lane_bits != 32 and (reduction.op not in ("sum", "average") or reduction.element == "int32"):
        raise ValueError(f"--lane-bits {lane_bits}: expected 32 for -d {datatype} -o {operation}; narrow lanes are for "
                         "sums and averages of floats")
    sizes = []
    while first <= last:
        sizes.append(first // width * width)
        first = first * multiply if multiply > 1 else first + step  # a factor goes before an increment, as there
    found = AllreduceSpec(tuple(sizes), iterations, warmup, rounds, check, ranks, int(leaves), int(spines), engine,
                          None if rate == UNSHAPED else rate, loss, lane_bits, path_mtu, names, seed, timeout,
                          topo=other, reduction=reduction)
    if other and (hosts := len(found.fabric().hosts)) != ranks:
        raise ValueError(f"--ranks {ranks}: expected as many as {topo} has hosts, {hosts}")
    return found


def _reduction(datatype: str, operation: str) -> Reduction:
    """The reduction that nccl-tests' names stand for.  Raises ValueError."""
    for option, name, known in (("-d", datatype, TYPES), ("-o", operation, OPERATIONS)):
        if name not in known:
            raise ValueError(f"{option} {name}: expected one of {', '.join(known)}")
    try:
        return Reduction(OPERATIONS[operation], TYPES[datatype])
    except TypeError as error:
        raise ValueError(f"-d {datatype} -o {operation}: {error}") from error


def size(text: str, option: str) -> int:
    """Parse a number of bytes, which may end in K, M or G for powers of 1024.  Raises ValueError."""
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    number = text[:-1] if scale > 1 else text
    if not number.isdecimal():
        raise ValueError(f"{option} {text}: expected bytes, or a number with K, M or G behind it")
    return int(number) * scale


def least_bytes(algorithm: str, ranks: int, nbytes: int, lane_bits: int) -> float:
    """Payload bytes that each host's link must carry in each direction.

    It is the tensor's size M where switches fold, and 2 (N-1)/N M for an algorithm between N hosts (Patarasuk and Yuan,
    "Bandwidth optimal all-reduce algorithms for clusters of workstations").
    """
    if algorithm == "innet":
        return nbytes * lane_bits / 32
    return 2 * (ranks - 1) / ranks * nbytes


def measurable(spec: AllreduceSpec) -> AllreduceSpec:
    """The part of the request that can be measured here.  Standard error names each algorithm that is left out.
    Raises ValueError where none is left."""
    what = f"{spec.reduction.op} of {spec.reduction.element}"
    left = []
    for name in spec.algorithms:
        if name == "gloo" and find_spec("torch") is None:
            why = "torch is not installed (pip install torch): no figures of gloo"
        elif name == "gloo" and spec.reduction.op == "average":
            why = f"gloo has no {what}: no figures of it"
        elif name in ("innet", TIDALMESH) and not folds(spec.reduction.op, spec.reduction.element):
            why = f"switches do not fold a {what}: no figures of {name}"
        else:
            left.append(name)
            continue
        print(f"netfold: {why}", file=sys.stderr)
    if not left:
        raise ValueError(f"--algorithms {','.join(spec.algorithms)}: none of them can be measured here")
    return dataclasses.replace(spec, algorithms=tuple(left))


def run(spec: AllreduceSpec, json: Path | None, echo: Callable[[str], None] = print) -> list[AllreduceRow]:
    """Measure in a sandbox, print a table, and write the rows to ``json``.  Raises FabricFailed, ValueError."""
    spec = measurable(spec)
    import mininet  # noqa: F401  # raises an error that says what to install, before anything is started

    sandbox.enter()
    from mininet.log import setLogLevel

    setLogLevel("error")
    with _start_workers(spec) as (workers, switches):
        return _measure(spec, workers, switches, json, echo)


@contextlib.contextmanager
def _start_workers(spec: AllreduceSpec) -> Iterator[tuple[dict[str, Workers], list[int]]]:
    """Start groups of ranks, by name (`_group_of`); also yields the process numbers of the switches."""
    from netfold.bench.harness.bridge import Bridge
    from netfold.bench.harness.workers import Workers
    from netfold.topo.network.net import Network, with_sockets_in
    from netfold.topo.processes.ranks import environment, in_namespaces

    logs = Path(tempfile.mkdtemp(prefix="logs-", dir=sandbox.rundir()))
    names: dict[str, list[str]] = {}
    for name in spec.algorithms:
        names.setdefault(_group_of(name), []).append(name.removesuffix(BRIDGE))
    workers: dict[str, Workers] = {}
    switches: list[int] = []
    with contextlib.ExitStack() as stack:
        here = [group_name for group_name in ON_FABRIC if group_name in names]
        if here:
            fabric = with_sockets_in(spec.fabric(), sandbox.rundir())
            network = stack.enter_context(Network(fabric, logs=logs))
            switches = [switch.child.pid for switch in network.switches if switch.child is not None]
            for ours in here:
                enters = [in_namespaces(network.mininet.get(host.name).pid) for host in fabric.hosts]
                envs = [{**environment(fabric, fabric.hosts, rank, job="bench"), CREDITS_VARIABLE: spec.credits}
                        for rank in range(spec.ranks)]
                workers[ours] = stack.enter_context(Workers(ours, _command(spec, names[ours]), enters, envs, logs))
        if names.keys() - set(ON_FABRIC):
            bridge = stack.enter_context(Bridge(spec.ranks, spec.rate, roce.LINK_MTUS[spec.path_mtu]))
            envs = [_environment(bridge, rank) for rank in range(spec.ranks)]
            for group_name in names.keys() - set(ON_FABRIC):
                command = _command(spec, names[group_name], controller=False)
                workers[group_name] = stack.enter_context(Workers(group_name, command, bridge.enters, envs, logs))
        if "bridge" in workers:
            peers = [msgspec.json.decode(line, type=Peer) for line in workers["bridge"].receive(READY_SECONDS)]
            workers["bridge"].send(msgspec.json.encode(PlainPeers(peers, draw())))
        for group in workers.values():
            group.receive(READY_SECONDS)
        yield workers, switches


def _measure(
    spec: AllreduceSpec, workers: Mapping[str, Workers], switches: Sequence[int], json: Path | None,
    echo: Callable[[str], None],
) -> list[AllreduceRow]:
    echo(
        f"# {spec.ranks} ranks; fabric {spec.topo or f'{spec.leaves} x {spec.spines}'}, {spec.engine}"
        + (f", losing {spec.loss:.1%} on each link" if spec.loss else "")
        + f"; links {spec.rate or 'not shaped'}; {spec.lane_bits}-bit lanes, path MTU {spec.path_mtu}; "
        f"medians of {spec.rounds} interleaved rounds of {spec.iterations}"
    )
    echo(f"# {'out-of-place':>88}")
    echo(f"#{'size':>12}{'count':>14}{'type':>10}{'redop':>8}{'root':>8}{'time':>9}{'algbw':>8}{'busbw':>8}"
         f"{'#wrong':>7}  {'algorithm':<24} {'best..worst':>19} {'link':>5} {'cpu s/GB':>8} {'switches':>8} "
         f"{'busy':>5} {'limit':<9} {'repeats':>7}")
    echo(f"#{'(B)':>12}{'(elements)':>14}{'':>26}{'(us)':>9}{'(GB/s)':>8}{'(GB/s)':>8}{'':>7}  {'':<24} {'(us)':>19}")
    rows: list[AllreduceRow] = []
    for nbytes in spec.sizes:
        turns: dict[str, list[tuple[list[Timing], float]]] = {name: [] for name in spec.algorithms}
        for number in range(spec.rounds):
            first = number % len(spec.algorithms)  # an algorithm is slower after a pause, or after a slow one
            for name in (*spec.algorithms[first:], *spec.algorithms[:first]):
                turn = TimingCommand(name.removesuffix(BRIDGE), nbytes, spec.iterations, spec.warmup,
                            spec.check and number == spec.rounds - 1)
                before = sum(map(cpu_seconds, switches))
                group = workers[_group_of(name)]
                group.send(msgspec.json.encode(turn))
                took = group.receive((spec.iterations + spec.warmup + 2) * spec.timeout)
                spent = (sum(map(cpu_seconds, switches)) - before) / (spec.iterations + spec.warmup)
                turns[name].append(([msgspec.json.decode(line, type=Timing) for line in took], spent))
        for name, rounds in turns.items():
            rows.append(_row(spec, name, nbytes, rounds))
        for row in rows[-len(turns):]:
            echo(_line(row, rows))
            if row.algorithm.startswith("auto"):
                echo(f"#   {row.path}")
        if json is not None:  # after each size, so that an interrupted run leaves results
            files.replace(json, msgspec.json.format(msgspec.json.encode(rows), indent=1))
    wrong = sum(row.wrong for row in rows)
    echo(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
    for name in spec.algorithms:
        mean = statistics.mean(row.busbw_bytes_per_s for row in rows if row.algorithm == name) / 1e9
        echo(f"# Avg bus bandwidth    : {mean:g} ({name})")
    return rows


def _row(spec: AllreduceSpec, name: str, nbytes: int, rounds: Sequence[tuple[Sequence[Timing], float]]) -> AllreduceRow:
    seconds = sorted(max(took.seconds for took in ranks) for ranks, _ in rounds)
    median = statistics.median(seconds)
    folded = all(took.folded for ranks, _ in rounds for took in ranks)  # what the chooser takes is its own affair
    # the switches fold halves as float32
    lanes = nbytes * 2 if folded and spec.reduction.dtype.itemsize == 2 else nbytes
    least = least_bytes("innet" if folded else name.removesuffix(BRIDGE), spec.ranks, lanes, spec.lane_bits)
    on_fabric = _group_of(name) in ON_FABRIC
    link = least * 8 / median / bits_per_second(spec.rate) if spec.rate and not spec.topo else 0.0
    busy = statistics.median(ranks[0].machine_busy for ranks, _ in rounds)
    return AllreduceRow(
        algorithm=name,
        engine=spec.engine if on_fabric else "bridge",
        ranks=spec.ranks,
        nbytes=nbytes,
        dtype=spec.reduction.element,
        op=spec.reduction.op,
        lane_bits=spec.lane_bits if folded else 32,
        path_mtu=spec.path_mtu,
        seconds=median,
        seconds_best=seconds[0],
        seconds_worst=seconds[-1],
        algbw_bytes_per_s=nbytes / median,
        busbw_bytes_per_s=nbytes / median * 2 * (spec.ranks - 1) / spec.ranks,
        rate=spec.rate or "",
        link_fraction=link,
        cpu_seconds=statistics.median(sum(took.cpu_seconds for took in ranks) for ranks, _ in rounds),
        switch_cpu_seconds=statistics.median(spent for _, spent in rounds) if on_fabric else 0.0,
        machine_busy=busy,
        retransmissions=sum(took.retransmissions for ranks, _ in rounds for took in ranks),
        wrong=sum(took.wrong for ranks, _ in rounds for took in ranks),
        path=rounds[-1][0][0].path,
        credits=spec.credits if on_fabric else "",
        limited_by=limited_by(link, busy),
        machine=machine(),
    )


def _line(row: AllreduceRow, rows: Sequence[AllreduceRow]) -> str:
    gloo = next((other for other in rows if other.nbytes == row.nbytes and other.algorithm == "gloo"), None)
    beside = f"  {gloo.seconds / row.seconds:.2f} x gloo" if gloo is not None and gloo is not row else ""
    spread = f"{row.seconds_best * 1e6:.1f}..{row.seconds_worst * 1e6:.1f}"
    gigabytes, element = row.nbytes / 1e9, Reduction("sum", row.dtype).dtype.itemsize
    dtype, op = (next(name for name, ours in known.items() if ours == has)
                 for known, has in ((TYPES, row.dtype), (OPERATIONS, row.op)))
    return (
        f" {row.nbytes:>12}{row.nbytes // element:>14}{dtype:>10}{op:>8}{-1:>8}{row.seconds * 1e6:>9.1f}"
        f"{row.algbw_bytes_per_s / 1e9:>8.3f}{row.busbw_bytes_per_s / 1e9:>8.3f}{row.wrong:>7}"
        f"  {row.algorithm:<24} {spread:>19} {row.link_fraction:>5.0%} {row.cpu_seconds / gigabytes:>8.1f} "
        f"{row.switch_cpu_seconds / gigabytes:>8.1f} {row.machine_busy:>5.0%} {row.limited_by:<9} "
        f"{row.retransmissions:>7}{beside}"
    )


def _group_of(name: str) -> str:
    """The group of ranks that runs an algorithm."""
    if name in ("gloo", "roce"):
        return name
    return "bridge" if name.endswith(BRIDGE) else "fabric"


def _command(spec: AllreduceSpec, algorithms: Sequence[str], *, controller: bool = True) -> list[str]:
    setup = RankSetup(spec.ranks, list(algorithms), spec.lane_bits, spec.seed, spec.timeout, controller,
                      spec.reduction.op, spec.reduction.element)
    return [*program(algorithms), msgspec.json.encode(setup).decode()]


def _environment(bridge: Bridge, rank: int) -> dict[str, str]:
    """The environment variables of a rank on the bridge, like `topo.processes.ranks.environment` on a fabric."""
    from netfold.topo.processes.ranks import SETTINGS

    return {
        "RANK": str(rank),
        "NETFOLD_ADDRESS": bridge.addresses[rank],
        "MASTER_ADDR": bridge.addresses[0],
        "MASTER_PORT": "29400",
        "GLOO_SOCKET_IFNAME": bridge.interface,
        **SETTINGS,
    }
