# SPDX-License-Identifier: Apache-2.0
"""`netfold bench ...`: a command for each benchmark in bench/commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from netfold.cli.common import CANNOT, FAILED, engine_of, fail
from netfold.cli.options import PathMtu
from netfold.fabric.assemble import PATH_MTU
from netfold.topo.processes.failures import FabricFailed

app = typer.Typer(no_args_is_help=True, help="Benchmarks: rounds are interleaved, figures are ratios within one run.")


@contextmanager
def _failing(name: str) -> Iterator[None]:
    """Errors of a benchmark end the command with a message and an exit status."""
    try:
        yield
    except ValueError as error:
        fail(CANNOT, f"bench {name}: {error}")
    except FabricFailed as error:
        fail(FAILED, f"bench {name}: {error}")


@app.command()
def allreduce(
    begin: Annotated[str, typer.Option("-b", "--begin", "--minbytes", help="Smallest tensor: bytes, or with K, M, G."
                                       )] = "1M",
    end: Annotated[str, typer.Option("-e", "--end", "--maxbytes", help="Largest tensor.")] = "16M",
    increment: Annotated[str | None, typer.Option("-i", "--stepbytes", help="Bytes from one size to the next, where no "
                                                  "factor is given.")] = None,
    factor: Annotated[int | None, typer.Option("-f", "--factor", "--stepfactor", help="From one size to the next; "
                                               "default: 4.")] = None,
    datatype: Annotated[str, typer.Option("-d", "--datatype", help="float, half, bfloat16, double, int32, int64, "
                                          "uint8.")] = "float",
    operation: Annotated[str, typer.Option("-o", "--op", help="sum, prod, min, max, avg.")] = "sum",
    iterations: Annotated[int, typer.Option("-n", "--iters", help="Timed operations in a round.")] = 3,
    warmup: Annotated[int, typer.Option("-w", "--warmup", "--warmup_iters", help="Operations before each round's timed "
                                        "ones.")] = 1,
    rounds: Annotated[int, typer.Option(help="Times that every algorithm has its turn; the median counts.")] = 3,
    check: Annotated[int, typer.Option("-c", "--check", help="1: compare results with the exact sum; 0: do not.")] = 1,
    ranks: Annotated[int, typer.Option(help="Ranks, one on each host.")] = 4,
    topo: Annotated[str, typer.Option("--topo", help="LEAVES,SPINES of the fabric; or what `netfold up --topo` "
                                         "takes, with as many hosts as ranks: mesh,2,4.")] = "2,2",
    switch: Annotated[str, typer.Option("--switch", help="softswitch, or bmv2.")] = "softswitch",
    rate: Annotated[str, typer.Option(help="Rate of all links, the bridge's too, in tc's units, or none.")] = "1gbit",
    loss: Annotated[float, typer.Option(help="Share of packets lost on every link of the fabric, each way.")] = 0.0,
    lane_bits: Annotated[int, typer.Option("--lane-bits", help="Bits of a lane in what is folded: 32, 16 or 8.")] = 32,
    path_mtu: Annotated[int, typer.Option("--path-mtu", help="Payload of a packet: 1024, or 4096 over jumbo links, "
                                          "the bridge's too.")] = PATH_MTU,
    algorithms: Annotated[
        str,
        typer.Option("--algorithms", "--algos",
                     help="By commas: innet, roce, auto, ring, halving_doubling, ... over the fabric, with @bridge "
                     "behind one of TCP's over a plain kernel bridge; gloo, always over the bridge."),
    ] = "innet,roce,ring,ring@bridge,halving_doubling@bridge,gloo",
    json: Annotated[Path | None, typer.Option("--rows", metavar="FILE", help="Write the rows here, as a list.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the data and the losses.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds for one operation.")] = 30.0,
) -> None:
    """Allreduce by several algorithms over links of one rate, in nccl-tests' manner.

    Everything runs in a sandbox on this machine: a fabric of P4 switches, and beside it a plain kernel
    bridge, the best case for algorithms that do not fold. Exit status 1 if a sum is wrong.
    """
    from netfold.bench.commands import allreduce as bench

    with _failing("allreduce"):
        spec = bench.spec(
            begin=begin, end=end, factor=factor, increment=increment, datatype=datatype, operation=operation,
            iterations=iterations, warmup=warmup, rounds=rounds,
            check=bool(check), ranks=ranks, topo=topo, engine=engine_of(switch), rate=rate, loss=loss,
            lane_bits=lane_bits, path_mtu=path_mtu, algorithms=algorithms, seed=seed, timeout=timeout,
        )
        rows = bench.run(spec, json)
    sys.exit(1 if any(row.wrong for row in rows) else 0)


@app.command(hidden=True)
def growth(
    what: Annotated[str, typer.Option(help="By commas: ranks, sizes, credits, path-mtu, controller, programs.")] =
    "ranks,sizes,credits,path-mtu,controller,programs",
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For rows and figures.")] = Path("build/bench-growth"),
    rate: Annotated[str, typer.Option(help="Rate of every link, in tc's units; none: not shaped.")] = "1gbit",
    rounds: Annotated[int, typer.Option(help="Times that every algorithm has its turn; the median counts.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Small points alone: see in seconds that it works.")] = False,
    draw: Annotated[bool, typer.Option("--draw", help="Measure nothing, draw what was measured before.")] = False,
) -> None:
    """The growth of costs, a figure each: with ranks, sizes, packets in flight and path MTU, fabrics and programs."""
    from netfold.bench.growth import figures as bench

    with _failing("growth"):
        right = bench.run(bench.named(what), out=out, rate=rate, rounds=rounds, quick=quick, draw=draw)
    sys.exit(0 if right else 1)


@app.command()
def collectives(
    ranks: Annotated[int, typer.Option(help="Hosts of the fabric, and ranks.")] = 8,
    collectives: Annotated[str, typer.Option(
        help="By commas: barrier, broadcast, reduce, reduce_scatter, all_gather, together."
    )] = "barrier,broadcast,reduce,reduce_scatter,all_gather,together",
    sizes: Annotated[str, typer.Option(help="Bytes of the whole tensor, by commas, with K or M.")] = "4K,4M",
    rate: Annotated[str, typer.Option(help="Rate of every link, in tc's units; none: not shaped.")] = "1gbit",
    loss: Annotated[float, typer.Option(help="Probability that a packet is lost on a link.")] = 0.0,
    switch: Annotated[str, typer.Option("--switch", help="softswitch, or bmv2.")] = "softswitch",
    iterations: Annotated[int, typer.Option("-n", "--iters", help="Timed operations in a round.")] = 5,
    rounds: Annotated[int, typer.Option(help="Times that every algorithm has its turn; the median counts.")] = 3,
    json: Annotated[Path | None, typer.Option("--rows", metavar="FILE", help="Write the rows here.")] = None,
) -> None:
    """Barriers, broadcasts, reduces, scattered sums and gathers: through the switches, over TCP, and gloo's."""
    from netfold.bench.commands import collectives as bench

    with _failing("collectives"):
        bench.run(ranks=ranks, rate=rate, engine=engine_of(switch), collectives=collectives, sizes=sizes,
                  rounds=rounds, iterations=iterations, loss=loss, json=json)


@app.command("osu-bcast")
def osu_bcast(
    ranks: Annotated[int, typer.Option(help="Hosts of the fabric, and ranks.")] = 8,
    sizes: Annotated[str, typer.Option(help="Bytes, by commas, with K or M.")] = "1K,4K,16K,64K,256K,1M",
    rate: Annotated[str, typer.Option(help="Rate of every link, in tc's units; none: not shaped.")] = "200mbit",
    switch: Annotated[str, typer.Option("--switch", help="softswitch, or bmv2.")] = "softswitch",
    iterations: Annotated[int, typer.Option("-n", "--iters", help="Timed broadcasts in a round.")] = 10,
    rounds: Annotated[int, typer.Option(help="Times that every way has its turn.")] = 3,
    json: Annotated[Path | None, typer.Option("--rows", metavar="FILE", help="Write the rows here.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Figure as SVG and data as CSV, as "
                                             "in papers/collectives.")] = None,
) -> None:
    """Broadcasts in osu_bcast's form: flat, binomial, chain, scatter-allgather, hierarchical, in the network, gloo."""
    from netfold.bench.commands import osu_bcast as bench

    with _failing("osu-bcast"):
        bench.run(ranks=ranks, rate=rate, engine=engine_of(switch), sizes=sizes, rounds=rounds,
                  iterations=iterations, json=json, out=out)


@app.command("parameter-server")
def parameter_server(
    ranks: Annotated[int, typer.Option(help="Hosts of the fabric, and ranks; even.")] = 4,
    nbytes: Annotated[str, typer.Option("--bytes", help="Size of all parameters, with K or M.")] = "4M",
    rate: Annotated[str, typer.Option(help="Rate of every link, in tc's units; none: not shaped.")] = "200mbit",
    switch: Annotated[str, typer.Option("--switch", help="softswitch, or bmv2.")] = "softswitch",
    steps: Annotated[int, typer.Option("-n", "--steps", help="Timed steps in a round.")] = 5,
    rounds: Annotated[int, typer.Option(help="Times that every way has its turn; the median counts.")] = 3,
    json: Annotated[Path | None, typer.Option("--rows", metavar="FILE", help="Write the rows here.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Figure as SVG and data as CSV, as "
                                             "in papers/collectives.")] = None,
) -> None:
    """Steps by servers that hold parameters and run Adam, beside allreduces and Adam on every rank."""
    from netfold.bench.commands import parameters as bench

    with _failing("parameter-server"):
        bench.run(ranks=ranks, rate=rate, engine=engine_of(switch), nbytes=nbytes, rounds=rounds, steps=steps,
                  json=json, out=out)


@app.command(hidden=True)
def machines(
    machines: Annotated[int, typer.Option(help="Hosts of the fabric.")] = 4,
    members: Annotated[int, typer.Option(help="Ranks on each.")] = 2,
    rate: Annotated[str, typer.Option(help="Rate of every link, in tc's units.")] = "200mbit",
    switch: Annotated[str, typer.Option("--switch", help="softswitch, or bmv2.")] = "softswitch",
    sizes: Annotated[str, typer.Option(help="MB of the tensor, by commas.")] = "1,8",
    rounds: Annotated[int, typer.Option("-n", "--rounds", help="The median counts.")] = 5,
    json: Annotated[Path | None, typer.Option("--rows", metavar="FILE", help="Write the rows here.")] = None,
) -> None:
    """Several ranks per machine, folded once per machine; compared with a flat ring and with Tencent's scheme."""
    from netfold.bench.commands import machines as bench

    with _failing("machines"):
        bench.run(machines=machines, members=members, rate=rate, engine=engine_of(switch), sizes=sizes, rounds=rounds,
                  json=json)


@app.command(hidden=True)
def simulator(
    hosts: Annotated[int, typer.Option(help="Hosts, on two leaves.")] = 8,
    rate: Annotated[str, typer.Option(help="Rate of every link, in tc's units.")] = "50mbit",
    size: Annotated[float, typer.Option(help="MB on each rank.")] = 4.0,
    window: Annotated[int, typer.Option(help="Packets of a queue pair, a power of two.")] = 8,
    rounds: Annotated[int, typer.Option("-n", "--rounds", help="The median counts.")] = 3,
    cases: Annotated[str, typer.Option(help="By commas: flows, folds (sums in the network).")] = "flows,folds",
    fold_sizes: Annotated[str, typer.Option(help="KiB that are folded, by commas.")] = "256,1024,4096",
    json: Annotated[Path | None, typer.Option("--rows", metavar="FILE", help="Write the rows here.")] = None,
) -> None:
    """The packet simulator against a real fabric: the same flows and folds; exit status 1 beyond 15 and 10 %."""
    from netfold.bench.commands import simulator as bench

    with _failing("simulator"):
        within = bench.run(hosts=hosts, rate=rate, size=size, window=window, rounds=rounds, json=json,
                           cases=cases, fold_sizes=fold_sizes)
    sys.exit(0 if within else 1)


@app.command()
def paths(
    topo: Annotated[str, typer.Option("--topo", help="LEAVES,SPINES,HOSTS of the fabric.")] = "4,4,16",
    rate: Annotated[str, typer.Option(help="Rate of every link, in tc's units.")] = "50mbit",
    switch: Annotated[str, typer.Option("--switch", help="softswitch, or bmv2.")] = "softswitch",
    nbytes: Annotated[int, typer.Option("--bytes", help="Bytes of every rank's array.")] = 2 << 20,
    rounds: Annotated[int, typer.Option(help="Times that every mode has its turn; the median counts.")] = 3,
    modes: Annotated[
        str | None, typer.Option(help="By commas: pinned, ecmp, spray, reps; default: all that the transport has.")
    ] = None,
    collectives: Annotated[
        str, typer.Option(help="By commas: all_to_all, halving_doubling, ring, all_gather.")
    ] = "all_to_all,halving_doubling,ring,all_gather",
    scope: Annotated[str, typer.Option(help="What the planner cuts together: flows of a leaf, or of a host.")] = "leaf",
    transport: Annotated[str, typer.Option(help="roce: queue pairs; or tcp, which has no reps.")] = "roce",
    planner: Annotated[str, typer.Option(help="fewest_pieces; or equal_split, the paper's.")] = "fewest_pieces",
    fail_link: Annotated[
        float | None, typer.Option("--fail-link", metavar="SECONDS", help="Break the first leaf's first uplink so long "
                                   "after an all-to-all has begun, in each mode and round.")
    ] = None,
    silent: Annotated[
        bool, typer.Option("--silent", help="With --fail-link: it swallows packets, and both ends think it is up.")
    ] = False,
    json: Annotated[Path | None, typer.Option("--rows", metavar="FILE", help="Write all measurements here.")] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For figures and logs.")] = Path("build/bench-paths"),
) -> None:
    """Collectives over planned paths, ECMP, spraying and REPS: bytes of every uplink, and completion times.

    Everything runs in a sandbox on this machine, on real packets; every element of every result is checked.
    """
    from netfold.bench.commands import paths as bench

    with _failing("paths"):
        spec = bench.spec(
            topo=topo, rate=rate, switch=engine_of(switch), nbytes=nbytes, rounds=rounds,
            modes=modes or ("pinned,ecmp,spray" if transport == "tcp" else "pinned,ecmp,spray,reps"),
            collectives=collectives, scope=scope, fail_after=fail_link, silent=silent, transport=transport,
            planner=planner,
        )
    raise typer.Exit(bench.main(spec, out, json))


@app.command()
def rails(
    rails_: Annotated[str, typer.Option("--rails", help="KIND@a+KIND@b: one a plane, in order.")] = "innet@a+tcp@b",
    rates: Annotated[str, typer.Option(help="Rates of the planes' links in order, in tc's units.")] = "100mbit,100mbit",
    begin: Annotated[str, typer.Option("-b", "--begin", help="Smallest tensor: bytes, or with K, M, G.")] = "4K",
    end: Annotated[str, typer.Option("-e", "--end", help="Largest tensor.")] = "64M",
    factor: Annotated[int, typer.Option("-f", "--factor", help="From one size to the next.")] = 4,
    rounds: Annotated[int, typer.Option(help="Times that every way has its turn; the median counts.")] = 3,
    ranks: Annotated[int, typer.Option(help="Ranks, one on each host.")] = 4,
    topo: Annotated[str, typer.Option("--topo", help="LEAVES,SPINES of each plane.")] = "1,0",
    switch: Annotated[str, typer.Option("--switch", help="softswitch, or bmv2.")] = "softswitch",
    cuts: Annotated[str, typer.Option(help="Parts of a call at which the last plane is cut.")] = "0.3,0.6,0.9",
    cut_bytes: Annotated[str, typer.Option("--cut-bytes", help="Tensor of those calls.")] = "16M",
    algorithm: Annotated[str, typer.Option(help="Between the hosts, on the rails tcp and roce.")] = "auto",
    json: Annotated[Path | None, typer.Option("--rows", metavar="FILE", help="Write the result here.")] = None,
    stall: Annotated[float, typer.Option(help="Seconds of silence after which a rail is dead; more on a busy "
                                         "machine.")] = 0.08,
    plot: Annotated[Path | None, typer.Option(metavar="STEM", help="Draw shares and processor time over the tensor's "
                                              "size: STEM.svg and STEM.pdf.")] = None,
    train: Annotated[int, typer.Option(help="Steps of a turn of training in Horovod's manner, over each rail, all and "
                                       "gloo; 0: none.")] = 4,
    width: Annotated[int, typer.Option(help="Width of the trained network's hidden layers.")] = 1024,
    series: Annotated[int, typer.Option(help="Sums, of a quarter of --cut-bytes, one after another while the last "
                                        "plane fails and comes back; 0: none.")] = 40,
    mptcp: Annotated[bool, typer.Option("--mptcp", help="Also measure Multipath TCP over all planes.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="All figures as SVG, their data as "
                                             "CSV, as in papers/nezha.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds without progress after which a call gives up.")] = 30.0,
) -> None:
    """One allreduce over several rails beside each rail alone: times, shares, processor time, starts, training, a
    plane cut in the middle of a call, and one that fails and comes back during a series of calls.

    Hosts have an interface on each plane. Exit status 1 if a sum is wrong, or if ranks end with different weights.
    """
    from netfold.bench.commands import rails as bench

    with _failing("rails"):
        spec = bench.spec(
            rails=rails_, rates=rates, begin=begin, end=end, factor=factor, rounds=rounds, ranks=ranks, topo=topo,
            engine=engine_of(switch), cuts=cuts, cut_bytes=cut_bytes, timeout=timeout, algorithm=algorithm,
            stall=stall, train=train, width=width, series=series, mptcp=mptcp,
        )
        result = bench.run(spec, json, plot=plot, out=out)
    wrong = [row.wrong for row in result.rows] + [cut.wrong for cut in result.cuts]
    wrong += [row.mptcp.wrong for row in result.rows if row.mptcp is not None]
    wrong += [call.wrong for call in result.death.calls] if result.death is not None else []
    sys.exit(1 if any(wrong) or not all(row.alike for row in result.training) else 0)


@app.command()
def loss(
    topo: Annotated[str, typer.Option("--topo", help="The fabric, as `netfold up --topo` has it.")] = "leafspine,2,1,4",
    switch: Annotated[str, typer.Option("--switch", help="softswitch, or bmv2.")] = "softswitch",
    rate: Annotated[str, typer.Option(help="Rate of every link, in tc's units.")] = "1gbit",
    nbytes: Annotated[int, typer.Option("--bytes", help="Length of the int32 tensor.")] = 8_000_000,
    operations: Annotated[int, typer.Option("-n", "--operations", help="Timed in a round, after one to warm up.")] = 5,
    rounds: Annotated[int, typer.Option(help="Times that every share has its turn, each with another seed.")] = 3,
    losses: Annotated[str, typer.Option(help="Shares lost on every link, each way.")] = "0.001,0.01,0.05,0.1",
    credits: Annotated[str, typer.Option(help="By commas, as 2x170K: in turn with the window alone.")] = "",
    path_mtu: PathMtu = PATH_MTU,
    json: Annotated[Path | None, typer.Option("--rows", metavar="FILE", help="Write the rows here, as a list.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the first round's losses; the next ones count up.")] = 0,
) -> None:
    """The cost of lost packets: time and bytes on links, relative to no losses, and the level that answered."""
    from netfold.bench.commands import loss as bench

    with _failing("loss"):
        bench.run(
            bench.spec(topo=topo, engine=engine_of(switch), rate=rate, nbytes=nbytes, operations=operations,
                       rounds=rounds, losses=losses, seed=seed, credits=credits, path_mtu=path_mtu), json,
        )


@app.command()
def recovery(
    faults: Annotated[str, typer.Option(help="By commas: spine, link, silent, leaf, return.")] = "spine,link,leaf",
    switch: Annotated[str, typer.Option("--switch", help="softswitch, or bmv2.")] = "softswitch",
    rate: Annotated[str, typer.Option(help="Rate of every link, in tc's units.")] = "1gbit",
    elements: Annotated[int, typer.Option(help="Length of the int32 tensor.")] = 60_000,
    rounds: Annotated[int, typer.Option("-n", "--rounds", help="Rounds of each fault, on a fabric of its own.")] = 5,
    after: Annotated[float, typer.Option(help="Seconds of sums after a fault.")] = 3.0,
    probe: Annotated[float, typer.Option(help="Seconds between probes of a link, as the fabric's file has it.")] = 0.5,
    json: Annotated[Path | None, typer.Option("--rows", metavar="FILE", help="Write all pauses here.")] = None,
) -> None:
    """How long running sums pause when a spine, a link or a leaf fails, and when a spine comes back."""
    from netfold.bench.commands import recovery as bench

    with _failing("recovery"):
        bench.run(
            bench.spec(faults=faults, engine=engine_of(switch), rate=rate, elements=elements, rounds=rounds,
                       after=after, probe=probe), json,
        )


@app.command(hidden=True)
def soak(
    switch: Annotated[str, typer.Option("--switch", help="softswitch, or bmv2.")] = "softswitch",
    rate: Annotated[str, typer.Option(help="Rate of every link, in tc's units; default: 1gbit, of BMv2 50mbit.")] = "",
    elements: Annotated[int, typer.Option(help="Elements of the longest tensor; default: 200000, of BMv2 8000.")] = 0,
    rounds: Annotated[int, typer.Option("-n", "--rounds", help="Each on a fabric and with a seed of its own.")] = 10,
    seconds: Annotated[float, typer.Option(help="Begin no round after so many seconds; 0: run all rounds.")] = 0,
    faults: Annotated[str, typer.Option(help="By commas: spine, leaf, cut, silent, stop, controller, standby, spoof, "
                                        "flood, mesh, service, disk; default: all.")] = "",
    per_round: Annotated[int, typer.Option("--per-round", help="Faults in a round.")] = 6,
    json: Annotated[Path | None, typer.Option("--rows", metavar="FILE", help="Write all rounds here.")] = None,
    logs: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Keep the logs of failed rounds here.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the first round; the next ones count up.")] = 0,
) -> None:
    """Run checked sums while switches, links, ranks, controllers and disks fail and an outsider attacks, several at a
    time: no sum may be wrong, and none may hang.

    Exit status 1 if a round failed; its seed repeats it.
    """
    from netfold.bench.commands import soak as bench

    with _failing("soak"):
        results = bench.run(
            bench.spec(engine=engine_of(switch), rate=rate, elements=elements, rounds=rounds, seconds=seconds,
                       faults=faults, per_round=per_round, seed=seed, logs=logs), json,
        )
    if any(result.failed for result in results):
        fail(FAILED, "bench soak: some rounds failed")


@app.command()
def train(
    model: Annotated[str, typer.Option(help="cnn, or transformer.")] = "cnn",
    backends: Annotated[
        str,
        typer.Option(help="By commas: netfold, hook, fsdp, fsdp2, fsdp2-prefetch, fsdp2-together, hsdp, priority, "
                     "priority-arrival; gloo, fsdp-gloo, fsdp2-gloo and hsdp-gloo over a plain kernel bridge, with "
                     "@fabric behind them over the fabric."),
    ] = "gloo,netfold,hook,priority",
    beside: Annotated[str, typer.Option(help="The backend that ratios are to; default: gloo, or gloo@fabric.")] = "",
    lane_bits: Annotated[str, typer.Option("--lane-bits", help="Lanes of netfold, hook and priority.")] = "32",
    ranks: Annotated[int, typer.Option(help="Ranks, one on each host.")] = 4,
    topo: Annotated[str, typer.Option("--topo", help="LEAVES,SPINES of the fabric.")] = "2,2",
    switch: Annotated[str, typer.Option("--switch", help="softswitch, or bmv2.")] = "softswitch",
    rate: Annotated[str, typer.Option(help="Rate of all links, the bridge's too, in tc's units, or none.")] = "100mbit",
    loss: Annotated[float, typer.Option(help="Share of packets lost on every link of the fabric, each way.")] = 0.0,
    rails_: Annotated[int, typer.Option("--rails", help="Planes of the fabric, each with links of this rate.")] = 1,
    width: Annotated[int, typer.Option(help="Width; default: 1024 of the cnn, 256 of the transformer.")] = 0,
    layers: Annotated[int, typer.Option(help="Layers of the model that are so wide.")] = 2,
    layer_seconds: Annotated[
        float, typer.Option("--layer-seconds", help="Sleep of each layer forward, and again backward, as if an "
                                                    "accelerator computed it."),
    ] = 0.0,
    batch: Annotated[int, typer.Option(help="Samples of a rank in a step; default: 8 images, or 2 texts.")] = 0,
    bucket_mb: Annotated[float, typer.Option("--bucket-mb", help="DistributedDataParallel's bucket_cap_mb.")] = 25.0,
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="SGD's, with a momentum of 0.9.")] = 0.05,
    steps: Annotated[int, typer.Option(help="Timed steps of a round.")] = 10,
    warmup: Annotated[int, typer.Option("-w", "--warmup", help="Steps of a round before those.")] = 2,
    rounds: Annotated[int, typer.Option(help="Times that every backend has its turn; the median counts.")] = 3,
    path_mtu: PathMtu = PATH_MTU,
    json: Annotated[Path | None, typer.Option("--rows", metavar="FILE", help="Write the rows here, as a list.")] = None,
    figure: Annotated[Path | None, typer.Option(metavar="STEM", help="Draw STEM.svg and STEM.pdf.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of model, data and losses.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds for one step.")] = 60.0,
    record: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Record each backend's timed steps of the last "
                                                "round here, as BACKEND-BITS.rankN.json, for `netfold what-if`.")]
    = None,
) -> None:
    """Training steps over several backends and links of one rate, beside gloo's and a single process's losses.

    Everything runs in a sandbox on this machine, on generated data. Exit status 1 if losses are not those of a
    single process, within the bound of the lanes.
    """
    from netfold.bench.commands import train as bench

    with _failing("train"):
        spec = bench.spec(
            model=model, backends=backends, beside=beside, lane_bits=lane_bits, ranks=ranks, topo=topo,
            engine=engine_of(switch), rate=rate, loss=loss, rails=rails_, width=width, layers=layers,
            layer_seconds=layer_seconds, batch=batch, bucket_mb=bucket_mb, learning_rate=learning_rate, steps=steps,
            warmup=warmup, rounds=rounds, path_mtu=path_mtu, seed=seed, timeout=timeout,
            record=record,
        )
        bench.run(spec, json, figure)
