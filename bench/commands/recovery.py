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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

import msgspec

from netfold.bench.ranks.recovery import STARTED, RecoveryResult, RecoveryTask
from netfold.disk import files
from netfold.fabric.graph import Engine
from netfold.topo.network import sandbox
from netfold.topo.processes.failures import FabricFailed

if TYPE_CHECKING:  # Mininet may be absent, and is imported inside the sandbox
    from netfold.topo.network.net import Network

Fault = Literal["spine", "link", "silent", "leaf", "return"]
FAULTS: Final[Mapping[Fault, str]] = {
    "spine": "a spine is killed",
    "link": "a link between leaf and spine goes down",
    "silent": "a leaf's uplink drops packets silently in both directions",
    "leaf": "a leaf is killed and started again",
    "return": "a spine is killed, and started again after some seconds",
}
BEFORE: Final = 1.0
"""Seconds of sums before the fault."""
SECONDS: Final = 120.0
"""Seconds for all ranks of a round."""


@dataclass(frozen=True)
class RecoverySpec:
    """Which faults to inject into which fabric, how often, and what the ranks sum meanwhile."""

    faults: tuple[Fault, ...]
    engine: Engine
    rate: str
    elements: int
    rounds: int
    after: float
    """Seconds of sums after the fault."""
    probe: float


class Pause(msgspec.Struct, frozen=True):
    """One fault in one round.  Times are in seconds, rates in operations a second."""

    fault: Fault
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


def spec(
    *, faults: str, engine: Engine, rate: str, elements: int, rounds: int, after: float, probe: float
) -> RecoverySpec:
    """Check the options of the command line.  Raises ValueError, which names the option."""
    known = get_args(Fault)
    for name in faults.split(","):
        if name not in known:
            raise ValueError(f"--faults {name}: expected some of {', '.join(known)}")
    for option, value in (("--elements", elements), ("--rounds", rounds), ("--after", after)):
        if value < 1:
            raise ValueError(f"{option} {value}: expected 1 or more")
    return RecoverySpec(tuple(faults.split(",")), engine, rate, elements, rounds, after, probe)  # type: ignore[arg-type]


def run(spec: RecoverySpec, file: Path | None = None) -> list[Pause]:
    """Measure in a sandbox, print a summary, and write all pauses to ``file`` as JSON.  Raises FabricFailed."""
    sandbox.enter()
    from netfold.fabric.generate import leafspine
    from netfold.topo.network.net import Network

    fabric = leafspine(2, 2, 4, rate=spec.rate, engine=spec.engine, rundir=sandbox.rundir())
    fabric = msgspec.structs.replace(fabric, probe=spec.probe)
    pauses: list[Pause] = []
    with tempfile.TemporaryDirectory(dir=sandbox.rundir()) as logs:
        for number in range(spec.rounds):
            for fault in spec.faults:
                try:
                    with Network(fabric, logs=Path(logs)) as network:
                        pauses.append(_measure(network, spec, fault))
                except FabricFailed as error:
                    raise type(error)(f"round {number + 1}, {FAULTS[fault]}: {error}") from error
                print(f"round {number + 1}, {fault}: {pauses[-1].longest * 1e3:.0f} ms", file=sys.stderr)
    _show(pauses, spec)
    if file is not None:
        files.replace(file, msgspec.json.format(msgspec.json.encode(pauses)))
    return pauses


def _measure(network: Network, spec: RecoverySpec, fault: Fault) -> Pause:
    from netfold.topo.faults.injector import FaultInjector

    do = FaultInjector(network)
    uplink = next(end for link in network.fabric.links for end in link.ends if str(link.b).startswith("spine1"))
    other = next(link.ends[1] for link in network.fabric.links if uplink in link.ends)

    def silence() -> None:
        for end in (uplink, other):
            do.blackhole(end.node, end.port)

    first: dict[Fault, Callable[[], None]] = {
        "spine": lambda: do.kill("spine1"),
        # a BMv2 whose interface was down receives nothing on any port
        "link": lambda: do.link_down(other.node, other.port),
        "silent": silence,
        "leaf": lambda: do.restart("leaf1"),
        "return": lambda: do.kill("spine1"),
    }
    phases = 2 if fault == "return" else 1
    work = RecoveryTask(spec.elements, BEFORE + phases * spec.after)
    command = [sys.executable, "-m", "netfold.bench.ranks.recovery", msgspec.json.encode(work).decode()]
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
                time.sleep(spec.after)
                returned = time.monotonic()
                do.start("spine1")
    return _pause(fault, results, began, injected, returned)


def _pause(fault: Fault, results: Sequence[RecoveryResult], began: float, injected: float, returned: float) -> Pause:
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


def _show(pauses: Sequence[Pause], spec: RecoverySpec) -> None:
    print(f"2 leaves, 2 spines, 4 ranks on {spec.engine}, {spec.rate} links, sums of {4 * spec.elements} bytes in a "
          f"row, probes every {spec.probe:g} s; {spec.rounds} rounds. Longest operation on any rank:")
    for fault in spec.faults:
        some = [pause for pause in pauses if pause.fault == fault]
        longest = sorted(1e3 * pause.longest for pause in some)
        median = statistics.median(1e3 * pause.median for pause in some)
        rates = ", ".join(
            f"{statistics.median(values):.0f} {name}" for name, values in (
                ("before", [p.before for p in some]), ("without", [p.without for p in some]),
                ("back", [p.back for p in some]),
            ) if any(values)
        )
        print(f"  {FAULTS[fault]}: median {statistics.median(longest):.0f} ms, {longest[0]:.0f} .. "
              f"{longest[-1]:.0f} ({median:.1f} ms is usual); operations a second: {rates}")
        if fault == "return":
            second = sorted(1e3 * pause.second for pause in some)
            print(f"    moved back: {statistics.median(second):.0f} ms, {second[0]:.0f} .. {second[-1]:.0f}")

