#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several ranks a machine: folding once a machine beside rings and Tencent's scheme, on the same links.

    python -m netfold.bench.machines --machines 4 --members 2 --rate 200mbit

    folded        NetReduce's parallel scheme: shared memory inside, the switches across (host/parallel.py)
    hierarchical  Tencent's: shared memory inside, a ring of machines across, over TCP
    ring          a flat ring of all ranks over TCP
    folded alone  for comparison: one rank a machine, which folds all of it

A round's time is its slowest rank's, the median counts; bytes are the switches' counters for a
host's link, as a multiple of the tensor.  The last lines hold NetReduce's condition against what was measured.
Everything runs in namespaces of its own (needs root or user namespaces).
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

import msgspec
import numpy as np

from netfold.controller.fabric import Engine, bits_per_second, leafspine
from netfold.topo import sandbox

if TYPE_CHECKING:
    from netfold.topo.net import Network

ALONE: Final = "folded alone"
WAYS: Final = ("folded", "hierarchical", "ring", ALONE)
SECONDS: Final = 400.0
"""For all ranks."""


class Spec(msgspec.Struct, frozen=True):
    """What each rank runs."""

    way: str
    elements: int
    rounds: int


class Cell(msgspec.Struct, frozen=True):
    """One rank's times."""

    seconds: list[float]
    inside: float
    """GB/s of shared memory in the cost model's sense; 0 where ranks have a machine each."""


def rank(spec: Spec) -> None:
    """One rank: prints its `Cell`.  Raises AssertionError for a wrong sum."""
    import netfold

    with netfold.init(rail="innet", timeout=60.0) as comm:
        link = getattr(comm._fold, "_inside", None)
        algorithm = None if spec.way.startswith("folded") else spec.way
        source, out = np.full(spec.elements, comm.rank + 1, np.int32), np.empty(spec.elements, np.int32)
        seconds = []
        for _ in range(spec.rounds + 1):  # the first opens connections
            comm.barrier()
            begin = time.perf_counter()
            comm.allreduce(source, out, algorithm=algorithm)
            seconds.append(time.perf_counter() - begin)
            assert (out == comm.size * (comm.size + 1) // 2).all(), spec.way
        cell = Cell(seconds[1:], 1e-9 / link.beta if link else 0.0)
        print(msgspec.json.encode(cell).decode(), flush=True)


def measure(network: Network, way: str, nbytes: int, members: int, rounds: int) -> tuple[float, float, Cell]:
    """(seconds, multiples of the tensor on the busiest host's link, rank 0's cell) of one way."""
    hosts = [host for host in network.fabric.hosts for _ in range(members)]
    spec = Spec(way, nbytes // 4, rounds)
    command = [sys.executable, "-m", "netfold.bench.machines", "--rank", msgspec.json.encode(spec).decode()]
    before = host_bytes(network)
    lines = network.launch(command, job=way.replace(" ", "-"), hosts=hosts).wait(within=SECONDS)
    busiest = max(after - was for after, was in zip(host_bytes(network), before, strict=True))
    cells = [msgspec.json.decode(line[-1], type=Cell) for line in lines]
    times = [max(cell.seconds[turn] for cell in cells) for turn in range(rounds)]
    return statistics.median(times), busiest / (rounds + 1) / nbytes, cells[0]


def host_bytes(network: Network) -> list[int]:
    """Bytes on every host's link so far, each way."""
    names = {f"{host.name}:0" for host in network.fabric.hosts}
    links = [link for link in network.status().links if {link.a, link.b} & names]
    return [way.bytes for link in links for way in (link.a_to_b, link.b_to_a)]


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=4)
    parser.add_argument("--members", type=int, default=2, help="ranks of each")
    parser.add_argument("--rate", default="200mbit", help="of every link, as tc says it")
    parser.add_argument("--switch", choices=get_args(Engine), default="softswitch")
    parser.add_argument("--sizes", default="1,8", help="MB of the tensor, with commas")
    parser.add_argument("-n", "--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank(msgspec.json.decode(arguments.rank, type=Spec))
        return 0
    sandbox.enter()
    from netfold.host import cost, sufficient
    from netfold.host.cost import Link
    from netfold.topo.net import Network

    members, inter = arguments.members, bits_per_second(arguments.rate) / 8
    ranks = arguments.machines * members
    print(f"{arguments.machines} machines of {members} ranks, {arguments.rate} links, {arguments.switch}, "
          f"{os.cpu_count()} cores, median of {arguments.rounds} rounds")
    print(f"{'MB':>6} {'way':<14} {'ms':>9} {'model ms':>9} {'x M on a host link':>19}")
    rows, inside = [], 0.0
    sizes = [int(float(megabytes) * 1e6) // 4 * 4 for megabytes in arguments.sizes.split(",")]
    fabric = leafspine(2, 2, arguments.machines, rate=arguments.rate, engine=arguments.switch, rundir=sandbox.rundir())
    with tempfile.TemporaryDirectory() as logs, Network(fabric, logs=Path(logs)) as network:
        for nbytes, way in itertools.product(sizes, WAYS):
            sharers = 1 if way == ALONE else members
            seconds, multiple, cell = measure(network, way, nbytes, sharers, arguments.rounds)
            inside = cell.inside or inside
            shared, across = Link(0.0, 1e-9 / inside if inside else 0.0), Link(0.0, 1 / inter)
            model = {
                "folded": cost.netreduce_parallel(nbytes, arguments.machines, members, shared, across),
                "hierarchical": cost.hierarchical(nbytes, arguments.machines, members, shared, across),
                "ring": cost.ring(nbytes, ranks, across),
                ALONE: cost.innet(nbytes, arguments.machines, across),
            }[way]
            took = f"{seconds * 1e3:>9.1f} {model * 1e3:>9.1f}"
            print(f"{nbytes / 1e6:>6g} {way:<14} {took} {multiple:>19.2f}", flush=True)
            rows.append({"nbytes": nbytes, "way": way, "seconds": seconds, "model": model, "multiple": multiple})
    ratio, needed = inside * 1e9 / inter, sufficient.ratio(ranks, members)
    print(f"shared memory {inside:.2f} GB/s, {ratio:.3g} times the link: more than {needed:.3g} suffices against the "
          f"ring ({'holds' if ratio > needed else 'fails'}); against Tencent's more than 2 machines "
          f"({'holds' if sufficient.beats_tencent(arguments.machines) else 'fails'})")
    if arguments.json:
        document = {"ranks": ranks, "members": members, "rate": arguments.rate, "inside_gb_s": inside, "rows": rows}
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(document)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
