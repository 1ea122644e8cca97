# SPDX-License-Identifier: Apache-2.0
"""`netfold bench machines`: folding with several ranks on each machine, beside rings and Tencent's scheme.

    folded        NetReduce's parallel scheme: shared memory in a machine, the switches between machines
                  (host/innet/parallel.py)
    hierarchical  Tencent's scheme: shared memory in a machine, a ring of the machines over TCP
    ring          a flat ring of all ranks over TCP
    folded alone  for comparison: one rank on each machine, which folds all of the tensor

A time is the median over rounds of the slowest rank's.  Bytes are the switches' counters for a host's link, as a
multiple of the tensor's size.  The last lines compare NetReduce's condition for being faster with what was measured.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from netfold.bench.ranks.machines import MachinesResult, MachinesTask
from netfold.disk import files
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Engine, bits_per_second
from netfold.topo.network import sandbox

if TYPE_CHECKING:
    from netfold.topo.network.net import Network

ALONE: Final = "folded alone"
WAYS: Final = ("folded", "hierarchical", "ring", ALONE)
SECONDS: Final = 400.0
"""Seconds for all ranks to end."""


def measure(network: Network, way: str, nbytes: int, members: int, rounds: int) -> tuple[float, float, MachinesResult]:
    """Time one scheme: (seconds, bytes on the busiest host's link over those of the tensor, rank 0's result)."""
    hosts = [host for host in network.fabric.hosts for _ in range(members)]
    task = MachinesTask(way, nbytes // 4, rounds)
    command = [sys.executable, "-m", "netfold.bench.ranks.machines", msgspec.json.encode(task).decode()]
    before = host_bytes(network)
    lines = network.launch(command, job=way.replace(" ", "-"), hosts=hosts).wait(within=SECONDS)
    busiest = max(after - was for after, was in zip(host_bytes(network), before, strict=True))
    results = [msgspec.json.decode(line[-1], type=MachinesResult) for line in lines]
    times = [max(result.seconds[turn] for result in results) for turn in range(rounds)]
    return statistics.median(times), busiest / (rounds + 1) / nbytes, results[0]


def host_bytes(network: Network) -> list[int]:
    """Bytes on the link of every host so far, in both directions."""
    names = {f"{host.name}:0" for host in network.fabric.hosts}
    links = [link for link in network.status().links if {link.a, link.b} & names]
    return [way.bytes for link in links for way in (link.a_to_b, link.b_to_a)]


def elements_of(sizes: str) -> list[int]:
    """Elements of int32 tensors of these sizes, which are MB separated by commas.  Raises ValueError."""
    try:
        elements = [int(float(size) * 1e6) // 4 for size in sizes.split(",")]
    except (ValueError, OverflowError):
        elements = []
    if not elements or min(elements) < 1:
        raise ValueError(f"--sizes {sizes}: expected MB by commas, as 1,8")
    return elements


def run(
    *, machines: int, members: int, rate: str, engine: Engine, sizes: str, rounds: int, json: Path | None
) -> None:
    """Measure in a sandbox, where the process starts anew, and print the table.

    sizes  MB, separated by commas
    json   file for the rows, or None
    Raises ValueError for what cannot be measured.
    """
    tensors = elements_of(sizes)
    if machines < 2 or members < 2 or rounds < 1:
        raise ValueError(f"--machines {machines} --members {members} --rounds {rounds}: expected 2 machines or more, "
                         "2 ranks or more on each, and a round")
    sandbox.enter()
    from netfold.host.innet import netreduce_conditions
    from netfold.host.selection import cost
    from netfold.host.selection.cost import LinkCost
    from netfold.topo.network.net import Network

    inter = bits_per_second(rate) / 8
    ranks = machines * members
    print(f"{machines} machines of {members} ranks, {rate} links, {engine}, {os.cpu_count()} cores, "
          f"median of {rounds} rounds")
    print(f"{'MB':>6} {'way':<14} {'ms':>9} {'model ms':>9} {'x M on a host link':>19}")
    rows, inside = [], 0.0
    fabric = leafspine(2, 2, machines, rate=rate, engine=engine, rundir=sandbox.rundir())
    with tempfile.TemporaryDirectory(dir=sandbox.rundir()) as logs, Network(fabric, logs=Path(logs)) as network:
        for nbytes, way in itertools.product([4 * elements for elements in tensors], WAYS):
            sharers = 1 if way == ALONE else members
            seconds, multiple, result = measure(network, way, nbytes, sharers, rounds)
            inside = result.inside or inside
            shared, across = LinkCost(0.0, 1e-9 / inside if inside else 0.0), LinkCost(0.0, 1 / inter)
            model = {
                "folded": cost.netreduce_parallel(nbytes, machines, members, shared, across),
                "hierarchical": cost.hierarchical(nbytes, machines, members, shared, across),
                "ring": cost.ring(nbytes, ranks, across),
                ALONE: cost.innet(nbytes, machines, across),
            }[way]
            took = f"{seconds * 1e3:>9.1f} {model * 1e3:>9.1f}"
            print(f"{nbytes / 1e6:>6g} {way:<14} {took} {multiple:>19.2f}", flush=True)
            rows.append({"nbytes": nbytes, "way": way, "seconds": seconds, "model": model, "multiple": multiple})
    ratio, needed = inside * 1e9 / inter, netreduce_conditions.ratio(ranks, members)
    print(f"shared memory {inside:.2f} GB/s, {ratio:.3g} times the link: more than {needed:.3g} suffices against the "
          f"ring ({'holds' if ratio > needed else 'fails'}); against Tencent's more than 2 machines "
          f"({'holds' if netreduce_conditions.beats_tencent(machines) else 'fails'})")
    if json is not None:
        document = {"ranks": ranks, "members": members, "rate": rate, "inside_gb_s": inside, "rows": rows}
        files.replace(json, msgspec.json.format(msgspec.json.encode(document)))

