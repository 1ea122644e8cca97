# SPDX-License-Identifier: Apache-2.0
"""`netfold bench allreduce`: algorithms side by side over links of the same rate, with options like nccl-tests'.

Folding, and algorithms between the hosts, run on a leaf-spine fabric of P4 switches; gloo, and algorithms with @bridge
behind their name, on a plain kernel bridge with the same link rates.  Rounds are interleaved, and each begins with the
next algorithm: A B C, B C A.  A time is the median over rounds of the slowest rank's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from netfold.bench.harness.limits import Limit, limited_by, machine
from netfold.bench.harness.processors import cpu_seconds
from netfold.bench.options.sums import BRIDGE, OPERATIONS, TYPES, AllreduceOptions
from netfold.fabric.graph import bits_per_second
from netfold.host.collectives.tidalmesh import TIDALMESH
from netfold.host.innet.core import CREDITS_VARIABLE
from netfold.host.job_secret import draw
from netfold.host.operation.rail import folds
from netfold.host.operation.reduction import Reduction
from netfold.topo.network import sandbox
from netfold.topo.processes.allreduce_rank import PlainPeers, RankSetup, Timing, TimingCommand, program
from netfold.wire import roce
from netfold.wire.plan import Peer

if TYPE_CHECKING:  # Mininet may be absent, and is imported inside the sandbox
    from netfold.bench.harness.bridge import Bridge
    from netfold.bench.harness.workers import Workers
    from netfold.topo.network.net import Network

ON_FABRIC: Final = ("fabric", "roce")
READY_SECONDS: Final = 120.0
"""Seconds for all ranks to join; the first compilation of the native library on a slow machine takes long."""


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
    """Part of a link's rate that `least_bytes`, moved in this time, would take; 0 where links are not shaped, or the
    fabric's differ."""
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
    host_link: float = 0.0
    """Bytes on the busiest host's link in one direction, as switches count them, over those of the tensor; 0 on the
    bridge."""
    ranks_per_host: int = 1


def least_bytes(algorithm: str, ranks: int, nbytes: int, lane_bits: int) -> float:
    """Payload bytes that each host's link must carry in each direction.

    It is the tensor's size M where switches fold, and 2 (N-1)/N M for an algorithm between N hosts (Patarasuk and Yuan,
    "Bandwidth optimal all-reduce algorithms for clusters of workstations").
    """
    if algorithm == "innet":
        return nbytes * lane_bits / 32
    return 2 * (ranks - 1) / ranks * nbytes


def measurable(options: AllreduceOptions) -> AllreduceOptions:
    """The part of the request that can be measured here.  Standard error names each algorithm that is left out.
    Raises ValueError where none is left."""
    what = f"{options.reduction.op} of {options.reduction.element}"
    left = []
    for name in options.ways:
        if name == "gloo" and find_spec("torch") is None:
            why = "torch is not installed (pip install torch): no figures of gloo"
        elif name == "gloo" and options.reduction.op == "average":
            why = f"gloo has no {what}: no figures of it"
        elif name in ("innet", TIDALMESH) and not folds(options.reduction.op, options.reduction.element):
            why = f"switches do not fold a {what}: no figures of {name}"
        elif name == "roce" and options.ranks_per_host > 1:
            why = "queue pairs in software need an address for each rank: no figures of roce"
        else:
            left.append(name)
            continue
        print(f"netfold: {why}", file=sys.stderr)
    if not left:
        raise ValueError(f"--algorithms {options.algorithms}: none of them can be measured here")
    return dataclasses.replace(options, algorithms=",".join(left))


def main(options: AllreduceOptions) -> bool:
    """Measure, and return whether all sums were right.  Raises FabricFailed, ValueError."""
    return not any(row.wrong for row in run(options))


def run(options: AllreduceOptions, echo: Callable[[str], None] = print) -> list[AllreduceRow]:
    """Measure in a sandbox, print a table, and write the rows.  Raises FabricFailed, ValueError."""
    options = measurable(options)
    import mininet  # noqa: F401  # raises an error that says what to install, before anything is started

    sandbox.enter()
    from mininet.log import setLogLevel

    setLogLevel("error")
    with _start_workers(options) as (workers, network):
        return _measure(options, workers, network, echo)


@contextlib.contextmanager
def _start_workers(options: AllreduceOptions) -> Iterator[tuple[dict[str, Workers], Network | None]]:
    """Start groups of ranks, by name (`_group_of`); also yields the fabric, where there is one."""
    from netfold.bench.harness.bridge import Bridge
    from netfold.bench.harness.workers import Workers
    from netfold.topo.network.net import Network
    from netfold.topo.network.startup import with_sockets_in
    from netfold.topo.processes.ranks import environment, in_namespaces

    logs = Path(tempfile.mkdtemp(prefix="logs-", dir=sandbox.rundir()))
    names: dict[str, list[str]] = {}
    for name in options.ways:
        names.setdefault(_group_of(name), []).append(name.removesuffix(BRIDGE))
    workers: dict[str, Workers] = {}
    network: Network | None = None
    with contextlib.ExitStack() as stack:
        here = [group_name for group_name in ON_FABRIC if group_name in names]
        if here:
            fabric = with_sockets_in(options.fabric(), sandbox.rundir())
            network = stack.enter_context(Network(fabric, logs=logs))
            hosts = [host for host in fabric.hosts for _ in range(options.ranks_per_host)]
            enters = [in_namespaces(network.mininet.get(host.name).pid) for host in hosts]
            envs = [{**environment(fabric, hosts, rank, job="bench"), CREDITS_VARIABLE: options.credits}
                    for rank in range(options.ranks)]
            for ours in here:
                workers[ours] = stack.enter_context(Workers(ours, _command(options, names[ours]), enters, envs, logs))
        if names.keys() - set(ON_FABRIC):
            each = options.ranks_per_host
            bridge = stack.enter_context(
                Bridge(options.ranks // each, options.link_rate, roce.LINK_MTUS[options.path_mtu]))
            entered = [bridge.enters[rank // each] for rank in range(options.ranks)]
            envs = [_environment(bridge, rank, rank // each) for rank in range(options.ranks)]
            for group_name in names.keys() - set(ON_FABRIC):
                command = _command(options, names[group_name], controller=False)
                workers[group_name] = stack.enter_context(Workers(group_name, command, entered, envs, logs))
        if "bridge" in workers:
            peers = workers["bridge"].results(Peer, READY_SECONDS)
            workers["bridge"].send(PlainPeers(peers, draw()))
        for group in workers.values():
            group.receive(READY_SECONDS)
        yield workers, network


def _measure(
    options: AllreduceOptions, workers: Mapping[str, Workers], network: Network | None, echo: Callable[[str], None],
) -> list[AllreduceRow]:
    echo(
        f"# {options.ranks} ranks; fabric {options.in_words}"
        + (f", losing {options.loss:.1%} on each" if options.loss else "")
        + f"; {options.lane_bits}-bit lanes, path MTU {options.path_mtu}; "
        f"medians of {options.rounds} interleaved rounds of {options.iterations}"
    )
    echo(f"# {'out-of-place':>88}")
    echo(f"#{'size':>12}{'count':>14}{'type':>10}{'redop':>8}{'root':>8}{'time':>9}{'algbw':>8}{'busbw':>8}"
         f"{'#wrong':>7}  {'algorithm':<24} {'best..worst':>19} {'link':>5} {'x size':>6} {'cpu s/GB':>8} "
         f"{'switches':>8} {'busy':>5} {'limit':<9} {'repeats':>7}")
    echo(f"#{'(B)':>12}{'(elements)':>14}{'':>26}{'(us)':>9}{'(GB/s)':>8}{'(GB/s)':>8}{'':>7}  {'':<24} {'(us)':>19}")
    rows: list[AllreduceRow] = []
    for nbytes in options.sizes:
        turns: dict[str, list[AllreduceTurn]] = {name: [] for name in options.ways}
        for number in range(options.rounds):
            first = number % len(options.ways)  # an algorithm is slower after a pause, or after a slow one
            for name in (*options.ways[first:], *options.ways[:first]):
                turn = TimingCommand(name.removesuffix(BRIDGE), nbytes, options.iterations, options.warmup,
                            bool(options.check) and number == options.rounds - 1)
                group, on_fabric = workers[_group_of(name)], network if _group_of(name) in ON_FABRIC else None
                moved, spent = _host_bytes(on_fabric), _switch_seconds(on_fabric)  # counting takes processor time, too
                group.send(turn)
                took = group.results(Timing, (options.iterations + options.warmup + 2) * options.timeout)
                calls = options.iterations + options.warmup
                turns[name].append(AllreduceTurn(
                    took,
                    (_switch_seconds(on_fabric) - spent) / calls,
                    max(map(operator.sub, _host_bytes(on_fabric), moved), default=0) / calls / nbytes,
                ))
        for name, rounds in turns.items():
            rows.append(row_of(options, name, nbytes, rounds))
        for row in rows[-len(turns):]:
            echo(line_of(row, rows))
            if row.algorithm.startswith("auto"):
                echo(f"#   {row.path}")
        options.write(rows)  # after each size, so that an interrupted run leaves results
    wrong = sum(row.wrong for row in rows)
    echo(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
    for name in options.ways:
        mean = statistics.mean(row.busbw_bytes_per_s for row in rows if row.algorithm == name) / 1e9
        echo(f"# Avg bus bandwidth    : {mean:g} ({name})")
    return rows


class AllreduceTurn(NamedTuple):
    """One algorithm's turn in a round: what the ranks measured, and of one operation the processor seconds of all
    switches, and the bytes on the busiest host's link over those of the tensor."""

    ranks: Sequence[Timing]
    switch_seconds: float
    host_link: float


def _switch_seconds(network: Network | None) -> float:
    """Processor seconds of all switch processes so far."""
    switches = network.switches if network is not None else ()
    return sum(cpu_seconds(switch.child.pid) for switch in switches if switch.child is not None)


def _host_bytes(network: Network | None) -> list[int]:
    """Bytes on the link of every host so far, in each direction, as switches count them."""
    if network is None:
        return []
    hosts = {host.name for host in network.fabric.hosts}
    return [way.bytes for link in network.status().links if {link.a.partition(":")[0], link.b.partition(":")[0]} & hosts
            for way in (link.a_to_b, link.b_to_a)]


def row_of(options: AllreduceOptions, name: str, nbytes: int, rounds: Sequence[AllreduceTurn]) -> AllreduceRow:
    """The row of one algorithm at one size, made of its rounds."""
    seconds = sorted(max(took.seconds for took in turn.ranks) for turn in rounds)
    median = statistics.median(seconds)
    every = [took for turn in rounds for took in turn.ranks]
    folded = all(took.folded for took in every)  # what the chooser takes is its own affair
    # the switches fold halves as float32
    lanes = nbytes * 2 if folded and options.reduction.dtype.itemsize == 2 else nbytes
    plain = name.removesuffix(BRIDGE)
    members = options.ranks // options.ranks_per_host if plain == "hierarchical" else options.ranks
    least = least_bytes("innet" if folded else plain, members, lanes, options.lane_bits)
    on_fabric = _group_of(name) in ON_FABRIC
    shaped = options.link_rate is not None and (not on_fabric or _links_are_alike(options))
    link = least * 8 / median / bits_per_second(options.rate) if shaped else 0.0
    busy = statistics.median(turn.ranks[0].machine_busy for turn in rounds)
    return AllreduceRow(
        algorithm=name,
        engine=options.engine if on_fabric else "bridge",
        ranks=options.ranks,
        nbytes=nbytes,
        dtype=options.reduction.element,
        op=options.reduction.op,
        lane_bits=options.lane_bits if folded else 32,
        path_mtu=options.path_mtu,
        seconds=median,
        seconds_best=seconds[0],
        seconds_worst=seconds[-1],
        algbw_bytes_per_s=nbytes / median,
        busbw_bytes_per_s=nbytes / median * 2 * (options.ranks - 1) / options.ranks,
        rate=options.link_rate or "",
        link_fraction=link,
        host_link=statistics.median(turn.host_link for turn in rounds),
        ranks_per_host=options.ranks_per_host,
        cpu_seconds=statistics.median(sum(took.cpu_seconds for took in turn.ranks) for turn in rounds),
        switch_cpu_seconds=statistics.median(turn.switch_seconds for turn in rounds),
        machine_busy=busy,
        retransmissions=sum(took.retransmissions for took in every),
        wrong=sum(took.wrong for took in every),
        path=rounds[-1].ranks[0].path,
        credits=options.credits if on_fabric else "",
        limited_by=limited_by(link, busy),
        machine=machine(),
    )


def _links_are_alike(options: AllreduceOptions) -> bool:
    """True if all links of the fabric have the rate of --rate: only then do `least_bytes` say how busy they are."""
    return {bits_per_second(link.rate or options.rate) for link in options.fabric().links} == {
        bits_per_second(options.rate)}


def line_of(row: AllreduceRow, rows: Sequence[AllreduceRow]) -> str:
    """A row as it is printed, beside those before it."""
    gloo = next((other for other in rows if other.nbytes == row.nbytes and other.algorithm == "gloo"), None)
    beside = f"  {gloo.seconds / row.seconds:.2f} x gloo" if gloo is not None and gloo is not row else ""
    spread = f"{row.seconds_best * 1e6:.1f}..{row.seconds_worst * 1e6:.1f}"
    gigabytes, element = row.nbytes / 1e9, Reduction("sum", row.dtype).dtype.itemsize
    dtype, op = (next(name for name, ours in known.items() if ours == has)
                 for known, has in ((TYPES, row.dtype), (OPERATIONS, row.op)))
    return (
        f" {row.nbytes:>12}{row.nbytes // element:>14}{dtype:>10}{op:>8}{-1:>8}{row.seconds * 1e6:>9.1f}"
        f"{row.algbw_bytes_per_s / 1e9:>8.3f}{row.busbw_bytes_per_s / 1e9:>8.3f}{row.wrong:>7}"
        f"  {row.algorithm:<24} {spread:>19} {row.link_fraction:>5.0%} {row.host_link:>6.2f} "
        f"{row.cpu_seconds / gigabytes:>8.1f} {row.switch_cpu_seconds / gigabytes:>8.1f} {row.machine_busy:>5.0%} "
        f"{row.limited_by:<9} {row.retransmissions:>7}{beside}"
    )


def _group_of(name: str) -> str:
    """The group of ranks that runs an algorithm."""
    if name in ("gloo", "roce"):
        return name
    return "bridge" if name.endswith(BRIDGE) else "fabric"


def _command(options: AllreduceOptions, algorithms: Sequence[str], *, controller: bool = True) -> list[str]:
    setup = RankSetup(options.ranks, list(algorithms), options.lane_bits, options.seed, options.timeout, controller,
                      options.reduction.op, options.reduction.element)
    return [*program(algorithms), msgspec.json.encode(setup).decode()]


def _environment(bridge: Bridge, rank: int, host: int) -> dict[str, str]:
    """The environment variables of a rank on the bridge, like `topo.processes.ranks.environment` on a fabric."""
    from netfold.topo.processes.ranks import SETTINGS

    return {
        "RANK": str(rank),
        "NETFOLD_ADDRESS": bridge.addresses[host],
        "MASTER_ADDR": bridge.addresses[0],
        "MASTER_PORT": "29400",
        "GLOO_SOCKET_IFNAME": bridge.interface,
        **SETTINGS,
    }
