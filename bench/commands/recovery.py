# SPDX-License-Identifier: Apache-2.0
"""`netfold bench recovery`: how long a running job pauses when a part of its trees fails, and its rate afterwards.

Ranks sum the same tensor over and over and check every sum.  After some seconds a fault is injected.  All processes
share this machine's clock, so that the operation that the fault interrupted is known.  Each round has its own fabric.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from netfold.bench.harness import rank_programs
from netfold.bench.options.faults import RECOVERY_FAULTS, RecoveryOptions
from netfold.bench.ranks.recovery import STARTED, RecoveryResult, RecoveryTask
from netfold.topo.network import sandbox
from netfold.topo.processes.failures import FabricFailed

if TYPE_CHECKING:  # Mininet may be absent, and is imported inside the sandbox
    from netfold.topo.network.net import Network

ELEMENTS: Final = 60_000
"""Elements of int32 that are summed."""
BEFORE: Final = 1.0
AFTER: Final = 3.0
"""Seconds of sums before the fault, and after it."""
SECONDS: Final = 120.0
"""Seconds for all ranks of a round."""


class Pause(msgspec.Struct, frozen=True):
    """One fault in one round.  Times are in seconds, rates in operations a second."""

    fault: str
    longest: float
    """The longest operation of any rank during which the fault, or a consequence of it, happened."""
    median: float
    """Median of all operations of all ranks."""
    before: float
    """Rate before the fault."""
    without: float
    """Rate from the end of the longest operation until the spine was started again, or to the end."""
    back: float
    """Rate in the last second where the spine was started again; else 0."""
    second: float
    """The longest operation after the spine was started again; else 0."""
    rounds: int


def run(options: RecoveryOptions) -> list[Pause]:
    """Measure in a sandbox, print a summary, and write all pauses.  Raises FabricFailed."""
    sandbox.enter()
    from netfold.fabric.generate import leafspine
    from netfold.topo.network.net import Network

    fabric = leafspine(2, 2, 4, rate=options.link_rate, engine=options.engine, rundir=sandbox.rundir())
    pauses: list[Pause] = []
    with tempfile.TemporaryDirectory(dir=sandbox.rundir()) as logs:
        for number in range(options.rounds):
            for fault in options.names("faults", RECOVERY_FAULTS):
                try:
                    with Network(fabric, logs=Path(logs)) as network:
                        pauses.append(_measure(network, fault))
                except FabricFailed as error:
                    raise type(error)(f"round {number + 1}, {RECOVERY_FAULTS[fault]}: {error}") from error
                print(f"round {number + 1}, {fault}: {pauses[-1].longest * 1e3:.0f} ms", file=sys.stderr)
    _show(pauses, options)
    options.write(pauses)
    return pauses


def _measure(network: Network, fault: str) -> Pause:
    from netfold.topo.faults.injector import FaultInjector

    do = FaultInjector(network)
    uplink = next(end for link in network.fabric.links for end in link.ends if str(link.b).startswith("spine1"))
    other = next(link.ends[1] for link in network.fabric.links if uplink in link.ends)

    def silence() -> None:
        for end in (uplink, other):
            do.blackhole(end.node, end.port)

    first: dict[str, Callable[[], None]] = {
        "spine": lambda: do.kill("spine1"),
        # a BMv2 whose interface was down receives nothing on any port
        "link": lambda: do.link_down(other.node, other.port),
        "silent": silence,
        "leaf": lambda: do.restart("leaf1"),
        "return": lambda: do.kill("spine1"),
    }
    phases = 2 if fault == "return" else 1
    work = RecoveryTask(ELEMENTS, BEFORE + phases * AFTER)
    command = rank_programs.command("recovery", work)
    ranks = network.launch(command, job=fault)
    results: list[RecoveryResult] = []
    began = injected = returned = 0.0
    for rank, line in ranks.lines(within=SECONDS):
        if line != STARTED:
            results.append(msgspec.json.decode(line, type=RecoveryResult))
        elif rank == 0:
            began = time.monotonic()
            time.sleep(BEFORE)  # part of the measurement, not a wait for an event
            injected = time.monotonic()
            first[fault]()
            if fault == "return":
                time.sleep(AFTER)
                returned = time.monotonic()
                do.start("spine1")
    return _pause(fault, results, began, injected, returned)


def _pause(fault: str, results: Sequence[RecoveryResult], began: float, injected: float, returned: float) -> Pause:
    hit, again = (
        max(((s, b + s) for one in results for b, s in zip(one.begins, one.seconds, strict=True)
             if low < b + s <= high), default=(0.0, low))
        for low, high in ((injected, returned or float("inf")), (returned or float("inf"), float("inf")))
    )
    ends = [b + s for b, s in zip(results[0].begins, results[0].seconds, strict=True)]

    def rate(low: float, high: float) -> float:
        return sum(low < end <= high for end in ends) / (high - low) if high > low else 0.0

    return Pause(
        fault, hit[0], statistics.median(s for one in results for s in one.seconds), rate(began, injected),
        rate(hit[1], returned or ends[-1]), rate(ends[-1] - 1, ends[-1]) if returned else 0.0, again[0],
        max(one.rounds for one in results),
    )


def _show(pauses: Sequence[Pause], options: RecoveryOptions) -> None:
    print(f"2 leaves, 2 spines, 4 ranks on {options.engine}, {options.rate} links, sums of {4 * ELEMENTS} bytes in a "
          f"row; {options.rounds} rounds. Longest operation on any rank:")
    for fault in options.names("faults", RECOVERY_FAULTS):
        some = [pause for pause in pauses if pause.fault == fault]
        longest = sorted(1e3 * pause.longest for pause in some)
        median = statistics.median(1e3 * pause.median for pause in some)
        rates = ", ".join(
            f"{statistics.median(values):.0f} {name}" for name, values in (
                ("before", [p.before for p in some]), ("without", [p.without for p in some]),
                ("back", [p.back for p in some]),
            ) if any(values)
        )
        print(f"  {RECOVERY_FAULTS[fault]}: median {statistics.median(longest):.0f} ms, {longest[0]:.0f} .. "
              f"{longest[-1]:.0f} ({median:.1f} ms is usual); operations a second: {rates}")
        if fault == "return":
            second = sorted(1e3 * pause.second for pause in some)
            print(f"    moved back: {statistics.median(second):.0f} ms, {second[0]:.0f} .. {second[-1]:.0f}")

