# SPDX-License-Identifier: Apache-2.0
"""`netfold bench soak`: sums without a break, each one checked, while faults of all kinds overlap.

Every round has a seed of its own, which draws the number of ranks on a host, what links do to packets, and a list of
faults that may overlap: switches killed, links down or dropping silently, ranks stopped.  All faults are undone before
the end, so that every rank must finish; a rank that does not, or a wrong sum, fails the round.
"""

from __future__ import annotations

import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from cbuild import files
from netfold.bench.ranks.soak import STARTED, SoakResult, SoakTask
from netfold.fabric.generate import Faults
from netfold.fabric.graph import Engine
from netfold.topo import sandbox
from netfold.topo.failures import FabricFailed

if TYPE_CHECKING:  # Mininet may be absent, and is imported inside the sandbox
    from netfold.topo.faults import FaultInjector
    from netfold.topo.net import Ranks

LEAVES, SPINES, HOSTS = 2, 2, 4
USUAL: Final[Mapping[Engine, tuple[str, int]]] = {"softswitch": ("1gbit", 200_000), "bmv2": ("50mbit", 8_000)}
"""Rate of links, and elements of the longest tensor."""
MOST: Final = SPINES + LEAVES + LEAVES * SPINES + HOSTS
"""Faults in a round at most: each hits a switch, a link or a rank of its own."""
STOPPED: Final = 3.0
"""Seconds that a rank is stopped."""
WITHIN: Final = 120.0
"""Seconds for all ranks of a round, whose faults take 30 at most."""
LINKS: Final[tuple[Faults, ...]] = (
    Faults(), Faults(loss=0.01), Faults(loss=0.01, duplicate=0.03, reorder=0.03), Faults(loss=0.03, corrupt=0.01),
)


@dataclass(frozen=True)
class SoakSpec:
    """The settings of one soak."""

    engine: Engine
    rate: str
    elements: int
    rounds: int
    faults_per_round: int
    seed: int
    logs: Path | None
    """Folder in which the logs of failed rounds are kept, each under its seed."""


class FaultStep(NamedTuple):
    """A fault, or the end of one: ``do`` is called ``at`` seconds after the ranks have begun."""

    at: float
    name: str
    do: Callable[[], None]


class SoakRound(msgspec.Struct, frozen=True):
    """One round; ``failed`` is the reason why it failed, or empty."""

    seed: int
    each: int
    faults: Faults
    steps: list[str]
    ranks: list[SoakResult]
    failed: str


class StepFailed(RuntimeError):
    """A fault could not be injected or undone."""


class StepRunner(threading.Thread):
    """A thread that takes each step when its time has come; the last one tells the ranks to end.

    done  receives a line for each step: its time and name
    """

    def __init__(self, steps: Sequence[FaultStep], done: list[str]) -> None:
        super().__init__(name="soak", daemon=True)
        self._steps, self._done = steps, done
        self._enough = threading.Event()
        self._failed: Exception | None = None

    def run(self) -> None:
        began = time.monotonic()
        for step in self._steps:
            if self._enough.wait(began + step.at - time.monotonic()):
                return
            self._done.append(f"{time.monotonic() - began:.2f} {step.name}")
            try:
                step.do()
            except Exception as error:
                self._failed = error
                return

    def stop(self) -> None:
        """Take no further step, because the ranks have ended or failed.  Raises StepFailed."""
        self._enough.set()
        if self.ident:
            self.join()
        if self._failed is not None:
            raise StepFailed(f"{self._done[-1]}: {self._failed!r}") from self._failed


def spec(
    *, engine: Engine, rate: str, elements: int, rounds: int, faults: int, seed: int, logs: Path | None
) -> SoakSpec:
    """Check the options of the command line; without a rate or elements, those of USUAL for the engine.

    Raises ValueError, which names the option.
    """
    for option, value, most in (("--rounds", rounds, 10**6), ("--faults", faults, MOST)):
        if not 1 <= value <= most:
            raise ValueError(f"{option} {value}: expected 1 .. {most}")
    if elements < 0:
        raise ValueError(f"--elements {elements}: expected 1 or more")
    usual_rate, usual = USUAL[engine]
    return SoakSpec(engine, rate or usual_rate, elements or usual, rounds, faults, seed, logs)


def schedule(rng: random.Random, do: FaultInjector, ranks: Ranks, faults_per_round: int, over: Path) -> list[FaultStep]:
    """Draw ``faults`` faults and the end of each, which may be after the start of the next one.

    No switch, link or rank is hit twice.  A second after the last step the file ``over`` tells the ranks to end.
    """
    kinds = ["spine", "leaf", "cut", "silent", "stop"]
    uplinks = [end for link in do.network.fabric.links for end in link.ends if end.node.startswith("spine")]
    spines = [f"spine{n + 1}" for n in range(SPINES)]
    leaves = [f"leaf{n + 1}" for n in range(LEAVES)]
    stopped = list(range(len(ranks.processes)))
    for victims in (uplinks, spines, leaves, stopped):
        rng.shuffle(victims)
    steps: list[FaultStep] = []
    now = 0.5
    for _ in range(faults_per_round):
        kind = rng.choice(kinds)
        lasts = rng.uniform(0.1, 3.0)
        if kind == "leaf":
            name = leaves.pop()
            steps += [FaultStep(now, f"{name} killed and started", partial(do.restart, name))]
        elif kind == "spine":
            name = spines.pop()
            steps += [FaultStep(now, f"{name} killed", partial(do.kill, name)),
                      FaultStep(now + lasts, f"{name} started", partial(do.start, name))]
        elif kind == "stop":
            rank = stopped.pop()
            send = ranks.processes[rank].send_signal
            steps += [FaultStep(now, f"rank {rank} stopped", partial(send, signal.SIGSTOP)),
                      FaultStep(now + STOPPED, f"rank {rank} goes on", partial(send, signal.SIGCONT))]
        else:
            node, port = end = uplinks.pop()
            begin, undo = ((do.link_down, do.link_up) if kind == "cut" else
                           (do.blackhole, do.end_blackhole))
            steps += [FaultStep(now, f"{end} {kind}", partial(begin, node, port)),
                      FaultStep(now + lasts, f"{end} as before", partial(undo, node, port))]
        kinds = [kind for kind, left in (("spine", spines), ("leaf", leaves), ("cut", uplinks), ("silent", uplinks),
                                         ("stop", stopped)) if left]
        now += rng.choice([0.0, 0.02, 0.3, 2.0])
    steps.sort(key=lambda step: step.at)
    return [*steps, FaultStep(steps[-1].at + 1, "over", over.touch)]


def run(spec: SoakSpec, file: Path | None = None) -> list[SoakRound]:
    """Run all rounds in a sandbox, print a line for each, and write them to ``file`` as JSON.

    The next rounds run also after one has failed.
    """
    sandbox.enter()
    results = []
    for number in range(spec.rounds):
        results.append(_round(spec, spec.seed + number))
        print(_line(results[-1]), flush=True)
    failed = sum(bool(result.failed) for result in results)
    operations = sum(result.ranks[0].operations for result in results if result.ranks)
    print(f"{spec.engine}: {len(results)} rounds, {sum(len(r.steps) for r in results)} steps, {operations} sums on "
          f"every rank; {failed} rounds failed")
    if file is not None:
        files.replace(file, msgspec.json.format(msgspec.json.encode(results)))
    return results


def _round(spec: SoakSpec, seed: int) -> SoakRound:
    from netfold.fabric.generate import leafspine
    from netfold.topo.faults import FaultInjector
    from netfold.topo.net import Network

    rng = random.Random(seed)
    each, faults = rng.choice([1, 1, 2]), rng.choice(LINKS)
    fabric = leafspine(LEAVES, SPINES, HOSTS, rate=spec.rate, engine=spec.engine, rundir=sandbox.rundir(), seed=seed,
                       **faults)
    fabric = msgspec.structs.replace(fabric, steady=rng.choice([0.3, 2.0]))
    done: list[str] = []
    took: list[SoakResult] = []
    failed = ""
    with tempfile.TemporaryDirectory(dir=sandbox.rundir()) as folder:
        over = Path(folder) / "over"
        work = SoakTask(seed, spec.elements, str(over))
        command = [sys.executable, "-m", "netfold.bench.ranks.soak", msgspec.json.encode(work).decode()]
        try:
            with Network(fabric, logs=Path(folder) / "logs") as network:
                ranks = network.launch(command, job="soak", hosts=[h for h in fabric.hosts for _ in range(each)])
                steps = schedule(rng, FaultInjector(network), ranks, spec.faults_per_round, over)
                runner = StepRunner(steps, done)
                try:
                    for _, line in ranks.lines(within=WITHIN):
                        if line != STARTED:
                            took.append(msgspec.json.decode(line, type=SoakResult))
                        elif not runner.ident:
                            runner.start()
                finally:
                    runner.stop()
        except (FabricFailed, StepFailed) as error:
            failed = str(error)
            if spec.logs is not None:
                shutil.copytree(Path(folder) / "logs", spec.logs / str(seed), dirs_exist_ok=True)
    return SoakRound(seed, each, faults, done, took, failed)


def _line(result: SoakRound) -> str:
    what = f"seed {result.seed}, {result.each} ranks a host, {dict(result.faults)}: {'; '.join(result.steps)}: "
    if result.failed:
        return f"{what}FAILED: {result.failed}"
    return (f"{what}{result.ranks[0].operations} sums, longest {max(took.longest for took in result.ranks):.2f} s, "
            f"{max(took.rounds for took in result.ranks)} times over other trees, "
            f"{sum(took.retransmissions for took in result.ranks)} packets again")

