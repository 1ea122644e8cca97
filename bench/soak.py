# SPDX-License-Identifier: Apache-2.0
"""`netfold bench soak`: sums without a break, each checked, while everything that may go wrong goes wrong at once.

Every round has a seed of its own, which draws the ranks on a host, what links do to packets, and a list of disasters,
some of them in the middle of others: switches killed, cables cut or swallowing, ranks that stand still.  All of it is
undone before the end, so that the ranks must come to it; one that does not, or whose sum is wrong, fails the round.
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
import numpy as np

from netfold.fabric.generate import Faults
from netfold.fabric.graph import Engine
from netfold.topo import sandbox
from netfold.topo.failures import FabricFailed

if TYPE_CHECKING:  # Mininet may be absent, and is imported inside the sandbox
    from netfold.topo.faults import Disasters
    from netfold.topo.net import Ranks

LEAVES, SPINES, HOSTS = 2, 2, 4
USUAL: Final[Mapping[Engine, tuple[str, int]]] = {"softswitch": ("1gbit", 200_000), "bmv2": ("50mbit", 8_000)}
"""Rate of links, and elements of the longest tensor."""
MOST: Final = SPINES + LEAVES + LEAVES * SPINES + HOSTS
"""Disasters in a round: each has a victim of its own."""
GOING: Final = "going"
"""A rank's first line."""
ROOM: Final = 1 << 20
"""Bytes of a queue that swallows no more."""
STOPPED: Final = 3.0
"""Seconds that a rank stands still."""
WITHIN: Final = 120.0
"""Seconds for all ranks of a round, whose steps take 30 at most."""
LINKS: Final[tuple[Faults, ...]] = (
    Faults(), Faults(loss=0.01), Faults(loss=0.01, duplicate=0.03, reorder=0.03), Faults(loss=0.03, corrupt=0.01),
)


@dataclass(frozen=True)
class SoakSpec:
    """What to do."""

    engine: Engine
    rate: str
    elements: int
    rounds: int
    disasters: int
    seed: int
    logs: Path | None
    """Folder that keeps the logs of failed rounds, each under its seed."""


class SoakStep(NamedTuple):
    """Something that is done so many seconds after the ranks have begun."""

    at: float
    name: str
    do: Callable[[], None]


class SoakWork(msgspec.Struct, frozen=True):
    """What a rank does: sums of up to so many elements, until there is a file of this name."""

    seed: int
    elements: int
    over: str


class SoakTimes(msgspec.Struct, frozen=True):
    """Of one rank."""

    operations: int
    longest: float
    rounds: int
    """How often the trees were planned anew."""
    retransmissions: int


class SoakRound(msgspec.Struct, frozen=True):
    """One round; ``failed`` is empty where all went well."""

    seed: int
    each: int
    faults: Faults
    steps: list[str]
    ranks: list[SoakTimes]
    failed: str


def rank(work: SoakWork) -> None:
    """One rank: prints its `SoakTimes` at the end.  Raises AssertionError for a wrong sum.  Rank 0 says in the last
    element when it is over, so that all end with the same operation."""
    import netfold

    with netfold.init(rail="innet", timeout=30.0) as comm:
        base = [np.random.default_rng([work.seed, rank]).integers(-(2**20), 2**20, work.elements, np.int32)
                for rank in range(comm.size)]
        sizes = np.random.default_rng([work.seed, comm.size])
        number, longest, over = 0, 0.0, False
        comm.allreduce(np.zeros(1, np.int32))
        print(GOING, flush=True)
        while not over:
            number += 1
            size = int(work.elements ** sizes.random())  # as often some as thousands
            # whole numbers whose sum is below 2^24: float32 has them exactly
            terms = [np.add(own[:size], number, dtype=np.int32) % 4096 for own in base]
            dtype = (np.int32, np.float32)[number % 2]
            array = np.append(terms[comm.rank], comm.rank == 0 and Path(work.over).exists()).astype(dtype)
            begin = time.monotonic()
            comm.allreduce(array, out=array)
            longest = max(longest, time.monotonic() - begin)
            wrong = np.count_nonzero(array[:-1] != np.sum(terms, axis=0))
            assert wrong == 0, f"operation {number}, {np.dtype(dtype)}: {wrong} of {size} sums are wrong"
            over = array[-1] > 0
        took = SoakTimes(number, longest, comm.plan.round, comm.stats().retransmissions)
        print(msgspec.json.encode(took).decode(), flush=True)


class StepFailed(RuntimeError):
    """What was to be done to the fabric could not be done."""


class Hand(threading.Thread):
    """Does the steps in their time.  The last one tells the ranks that it is over.

    done  gets what was done, and when
    """

    def __init__(self, steps: Sequence[SoakStep], done: list[str]) -> None:
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
        """No more of it: the ranks are through, or have failed.  Raises StepFailed."""
        self._enough.set()
        if self.ident:
            self.join()
        if self._failed is not None:
            raise StepFailed(f"{self._done[-1]}: {self._failed!r}") from self._failed


def spec(
    *, engine: Engine, rate: str, elements: int, rounds: int, disasters: int, seed: int, logs: Path | None
) -> SoakSpec:
    """From the command line's words; no rate and no elements: what suits the engine.  Raises ValueError that names the
    option."""
    for option, value, most in (("--rounds", rounds, 10**6), ("--disasters", disasters, MOST)):
        if not 1 <= value <= most:
            raise ValueError(f"{option} {value}: expected 1 .. {most}")
    if elements < 0:
        raise ValueError(f"--elements {elements}: expected 1 or more")
    usual_rate, usual = USUAL[engine]
    return SoakSpec(engine, rate or usual_rate, elements or usual, rounds, disasters, seed, logs)


def schedule(rng: random.Random, do: Disasters, ranks: Ranks, disasters: int, over: Path) -> list[SoakStep]:
    """So many disasters and the end of each; others may begin before that.  Nothing is hit twice.  A second after the
    last, the ranks may end: there is the file ``over``."""
    kinds = ["spine", "leaf", "cut", "silent", "stop"]
    uplinks = [end for link in do.network.fabric.links for end in link.ends if end.node.startswith("spine")]
    spines = [f"spine{n + 1}" for n in range(SPINES)]
    leaves = [f"leaf{n + 1}" for n in range(LEAVES)]
    stopped = list(range(len(ranks.processes)))
    for victims in (uplinks, spines, leaves, stopped):
        rng.shuffle(victims)
    steps: list[SoakStep] = []
    now = 0.5
    for _ in range(disasters):
        kind = rng.choice(kinds)
        lasts = rng.uniform(0.1, 3.0)
        if kind == "leaf":
            name = leaves.pop()
            steps += [SoakStep(now, f"{name} killed and started", partial(do.restart, name))]
        elif kind == "spine":
            name = spines.pop()
            steps += [SoakStep(now, f"{name} killed", partial(do.kill, name)),
                      SoakStep(now + lasts, f"{name} started", partial(do.start, name))]
        elif kind == "stop":
            rank = stopped.pop()
            send = ranks.processes[rank].send_signal
            steps += [SoakStep(now, f"rank {rank} stopped", partial(send, signal.SIGSTOP)),
                      SoakStep(now + STOPPED, f"rank {rank} goes on", partial(send, signal.SIGCONT))]
        else:
            node, port = end = uplinks.pop()
            begin, undo = ((do.cut, do.mend) if kind == "cut" else
                           (do.swallow, partial(do.swallow, limit=ROOM)))
            steps += [SoakStep(now, f"{end} {kind}", partial(begin, node, port)),
                      SoakStep(now + lasts, f"{end} as before", partial(undo, node, port))]
        kinds = [kind for kind, left in (("spine", spines), ("leaf", leaves), ("cut", uplinks), ("silent", uplinks),
                                         ("stop", stopped)) if left]
        now += rng.choice([0.0, 0.02, 0.3, 2.0])
    steps.sort(key=lambda step: step.at)
    return [*steps, SoakStep(steps[-1].at + 1, "over", over.touch)]


def run(spec: SoakSpec, file: Path | None = None) -> list[SoakRound]:
    """All rounds in a sandbox; prints one line each, and writes them to ``file`` as JSON.  A failed round does not keep
    the next ones from being run."""
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
        file.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    return results


def _round(spec: SoakSpec, seed: int) -> SoakRound:
    from netfold.fabric.generate import leafspine
    from netfold.topo.faults import Disasters
    from netfold.topo.net import Network

    rng = random.Random(seed)
    each, faults = rng.choice([1, 1, 2]), rng.choice(LINKS)
    fabric = leafspine(LEAVES, SPINES, HOSTS, rate=spec.rate, engine=spec.engine, rundir=sandbox.rundir(), seed=seed,
                       **faults)
    fabric = msgspec.structs.replace(fabric, steady=rng.choice([0.3, 2.0]))
    done: list[str] = []
    took: list[SoakTimes] = []
    failed = ""
    with tempfile.TemporaryDirectory(dir=sandbox.rundir()) as folder:
        over = Path(folder) / "over"
        work = SoakWork(seed, spec.elements, str(over))
        command = [sys.executable, "-m", "netfold.bench.soak", msgspec.json.encode(work).decode()]
        try:
            with Network(fabric, logs=Path(folder) / "logs") as network:
                ranks = network.launch(command, job="soak", hosts=[h for h in fabric.hosts for _ in range(each)])
                steps = schedule(rng, Disasters(network), ranks, spec.disasters, over)
                hand = Hand(steps, done)
                try:
                    for _, line in ranks.lines(within=WITHIN):
                        if line != GOING:
                            took.append(msgspec.json.decode(line, type=SoakTimes))
                        elif not hand.ident:
                            hand.start()
                finally:
                    hand.stop()
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


if __name__ == "__main__":
    rank(msgspec.json.decode(sys.argv[1], type=SoakWork))
