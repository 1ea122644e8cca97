# SPDX-License-Identifier: Apache-2.0
"""`netfold bench recovery`: how long a running job pauses when something of its trees goes away, and what comes after.

Ranks sum the same tensor in a row and check every sum.  After some seconds the disaster comes; all clocks are this
machine's, so that an operation of any rank can be told to be the one it hit.  Each round brings the fabric up anew.
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
import numpy as np
from numpy.typing import NDArray

from netfold.fabric.graph import Engine
from netfold.topo import sandbox
from netfold.topo.failures import FabricFailed

if TYPE_CHECKING:  # Mininet may be absent, and is imported inside the sandbox
    from netfold.topo.net import Network

Disaster = Literal["spine", "link", "silent", "leaf", "return"]
DISASTERS: Final[Mapping[Disaster, str]] = {
    "spine": "a spine is killed",
    "link": "a link between leaf and spine is cut",
    "silent": "a leaf's uplink swallows packets both ways, and both ends believe that it is up",
    "leaf": "a leaf is killed and started again",
    "return": "a spine is killed, and started again after some seconds",
}
BEFORE: Final = 1.0
"""Seconds of sums before the disaster."""
SECONDS: Final = 120.0
"""For all ranks of a round."""


@dataclass(frozen=True)
class RecoverySpec:
    """What to measure."""

    disasters: tuple[Disaster, ...]
    engine: Engine
    rate: str
    elements: int
    rounds: int
    after: float
    """Seconds of sums after it."""
    probe: float


class RecoveryWork(msgspec.Struct, frozen=True):
    """What a rank does."""

    elements: int
    seconds: float


class RecoveryTimes(msgspec.Struct, frozen=True):
    """Of one rank: when each operation began (CLOCK_MONOTONIC), and the seconds that it took."""

    begins: list[float]
    seconds: list[float]
    rounds: int
    """How often the trees were planned anew."""


class Pause(msgspec.Struct, frozen=True):
    """One disaster in one round.  Seconds; rates in operations a second."""

    disaster: Disaster
    longest: float
    """Operation of any rank that the disaster, or what followed from it, fell into."""
    median: float
    """Of all operations."""
    before: float
    """Rate until the disaster."""
    without: float
    """From the end of that operation until the spine was started again; else to the end."""
    back: float
    """In the last second, where something came back; else 0."""
    second: float
    """The longest operation after the spine was started again; else 0."""
    rounds: int


def rank(work: RecoveryWork) -> None:
    """One rank: prints "going", and its `RecoveryTimes` at the end.  Raises AssertionError for a wrong sum.  Rank 0
    says in the last element when the time is over, so that all end with the same operation."""
    import netfold

    with netfold.init(rail="innet", timeout=20.0) as comm:
        own = [np.random.default_rng([1, rank]).integers(-(2**20), 2**20, work.elements + 1, np.int32)
               for rank in range(comm.size)]
        expected: NDArray[np.int32] = np.stack(own).sum(axis=0, dtype=np.int32)
        source, out = own[comm.rank], np.empty(work.elements + 1, np.int32)
        comm.allreduce(source, out)
        print("going", flush=True)
        begins: list[float] = []
        seconds: list[float] = []
        end = time.monotonic() + work.seconds
        over = False
        while not over:
            source[-1] = comm.rank == 0 and time.monotonic() > end
            begins.append(time.monotonic())
            comm.allreduce(source, out)
            seconds.append(time.monotonic() - begins[-1])
            assert np.array_equal(out[:-1], expected[:-1]), f"operation {len(begins)}: a wrong sum"
            over = bool(out[-1])
        print(msgspec.json.encode(RecoveryTimes(begins, seconds, comm.plan.round)).decode(), flush=True)


def spec(
    *, disasters: str, engine: Engine, rate: str, elements: int, rounds: int, after: float, probe: float
) -> RecoverySpec:
    """From the command line's words.  Raises ValueError that names the option."""
    known = get_args(Disaster)
    for name in disasters.split(","):
        if name not in known:
            raise ValueError(f"--disasters {name}: expected some of {', '.join(known)}")
    for option, value in (("--elements", elements), ("--rounds", rounds), ("--after", after)):
        if value < 1:
            raise ValueError(f"{option} {value}: expected 1 or more")
    return RecoverySpec(tuple(disasters.split(",")), engine, rate, elements, rounds, after, probe)  # type: ignore[arg-type]


def run(spec: RecoverySpec, file: Path | None = None) -> list[Pause]:
    """Measure in a sandbox, print, and write all pauses to ``file`` as JSON.  Raises FabricFailed."""
    sandbox.enter()
    from netfold.fabric.generate import leafspine
    from netfold.topo.net import Network

    fabric = leafspine(2, 2, 4, rate=spec.rate, engine=spec.engine, rundir=sandbox.rundir())
    fabric = msgspec.structs.replace(fabric, probe=spec.probe)
    pauses: list[Pause] = []
    with tempfile.TemporaryDirectory(dir=sandbox.rundir()) as logs:
        for number in range(spec.rounds):
            for disaster in spec.disasters:
                try:
                    with Network(fabric, logs=Path(logs)) as network:
                        pauses.append(_shoot(network, spec, disaster))
                except FabricFailed as error:
                    raise FabricFailed(f"round {number + 1}, {DISASTERS[disaster]}: {error}") from error
                print(f"round {number + 1}, {disaster}: {pauses[-1].longest * 1e3:.0f} ms", file=sys.stderr)
    _show(pauses, spec)
    if file is not None:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(pauses)))
    return pauses


def _shoot(network: Network, spec: RecoverySpec, disaster: Disaster) -> Pause:
    from netfold.topo.faults import Disasters

    do = Disasters(network)
    uplink = next(end for link in network.fabric.links for end in link.ends if str(link.b).startswith("spine1"))
    other = next(link.ends[1] for link in network.fabric.links if uplink in link.ends)

    def swallow() -> None:
        for end in (uplink, other):
            do.swallow(end.node, end.port)

    first: dict[Disaster, Callable[[], None]] = {
        "spine": lambda: do.kill("spine1"),
        "link": lambda: do.cut(other.node, other.port),  # a BMv2 whose interface was down is deaf on all ports
        "silent": swallow,
        "leaf": lambda: do.restart("leaf1"),
        "return": lambda: do.kill("spine1"),
    }
    halves = 2 if disaster == "return" else 1
    work = RecoveryWork(spec.elements, BEFORE + halves * spec.after)
    command = [sys.executable, "-m", "netfold.bench.recovery", msgspec.json.encode(work).decode()]
    ranks = network.launch(command, job=disaster)
    took: list[RecoveryTimes] = []
    began = struck = returned = 0.0
    for rank, line in ranks.lines(within=SECONDS):
        if line != "going":
            took.append(msgspec.json.decode(line, type=RecoveryTimes))
        elif rank == 0:
            began = time.monotonic()
            time.sleep(BEFORE)  # what is measured, not a wait for anything
            struck = time.monotonic()
            first[disaster]()
            if disaster == "return":
                time.sleep(spec.after)
                returned = time.monotonic()
                do.start("spine1")
    return _pause(disaster, took, began, struck, returned)


def _pause(disaster: Disaster, took: Sequence[RecoveryTimes], began: float, struck: float, returned: float) -> Pause:
    hit, again = (
        max(((s, b + s) for one in took for b, s in zip(one.begins, one.seconds, strict=True) if low < b + s <= high),
            default=(0.0, low))
        for low, high in ((struck, returned or float("inf")), (returned or float("inf"), float("inf")))
    )
    ends = [b + s for b, s in zip(took[0].begins, took[0].seconds, strict=True)]

    def rate(low: float, high: float) -> float:
        return sum(low < end <= high for end in ends) / (high - low) if high > low else 0.0

    return Pause(
        disaster, hit[0], statistics.median(s for one in took for s in one.seconds), rate(began, struck),
        rate(hit[1], returned or ends[-1]), rate(ends[-1] - 1, ends[-1]) if returned else 0.0, again[0],
        max(one.rounds for one in took),
    )


def _show(pauses: Sequence[Pause], spec: RecoverySpec) -> None:
    print(f"2 leaves, 2 spines, 4 ranks on {spec.engine}, {spec.rate} links, sums of {4 * spec.elements} bytes in a "
          f"row, probes every {spec.probe:g} s; {spec.rounds} rounds. Longest operation on any rank:")
    for disaster in spec.disasters:
        some = [pause for pause in pauses if pause.disaster == disaster]
        longest = sorted(1e3 * pause.longest for pause in some)
        median = statistics.median(1e3 * pause.median for pause in some)
        rates = ", ".join(
            f"{statistics.median(values):.0f} {name}" for name, values in (
                ("before", [p.before for p in some]), ("without", [p.without for p in some]),
                ("back", [p.back for p in some]),
            ) if any(values)
        )
        print(f"  {DISASTERS[disaster]}: median {statistics.median(longest):.0f} ms, {longest[0]:.0f} .. "
              f"{longest[-1]:.0f} ({median:.1f} ms is usual); operations a second: {rates}")
        if disaster == "return":
            second = sorted(1e3 * pause.second for pause in some)
            print(f"    moved back: {statistics.median(second):.0f} ms, {second[0]:.0f} .. {second[-1]:.0f}")


if __name__ == "__main__":
    rank(msgspec.json.decode(sys.argv[1], type=RecoveryWork))
