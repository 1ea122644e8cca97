# SPDX-License-Identifier: Apache-2.0
"""One rank of a training whose ranks die and come back: all bring the same weights to zero, by sums that are exact.

    python -m netfold.bench.ranks.survivor TASK     a JSON `SurvivorTask`; prints JSON `Reached` lines

Each rank adds something of its own in each step, so that every set of ranks has another sum, and each sum is checked
against what the ranks give that are there.  After each change of the ranks all take the weights of those that are
furthest (docs/host.md, "Ranks that die, and ranks that come").
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from netfold.host.api.communicator import Communicator
from netfold.host.api.enduring import LOSSES
from netfold.host.api.join_settings import RailName
from netfold.host.api.objects import share_state
from netfold.topo.processes.rank_program import check_data, print_message, run_rank

FIRST: Final = 1 << 20
"""The value of each weight at first."""
TELL: Final = 0.05
"""Seconds between two lines, where the ranks stay the same."""
BOUND: Final = 60.0
"""Seconds that a rank waits to be let in."""

Way = Literal["shrink", "by itself", "grow", "join"]
"""shrink: calls ``shrink`` when a rank is lost.  by itself: on_loss="shrink".  grow: as shrink, and lets others in
between two steps.  join: as grow, but comes while the others run."""


class SurvivorTask(msgspec.Struct, frozen=True):
    """The task of a rank, and its rail or rails, until the file ``enough`` exists."""

    way: Way
    rail: RailName
    enough: str
    elements: int = 20_000
    pause: float = 0.0
    """Seconds of computing in a step."""
    timeout: float = 10.0
    rails: str | None = None
    """Several rails, as ``Communicator.join`` takes them."""


class Reached(msgspec.Struct, frozen=True):
    """Where a rank is."""

    step: int
    world: int
    at: float
    """When it was there, by CLOCK_MONOTONIC."""
    loss: float
    """Mean of the weights' magnitudes."""
    checksum: int
    """CRC-32 of the weights, to compare ranks by."""
    rail: str
    path: str
    """The path of the last sum."""
    named: str = ""
    """Name of the error that told of the last lost rank."""
    named_at: float = 0.0
    ended: bool = False


class Training:
    """The weights of one rank, and the ranks that it sums with."""

    def __init__(self, comm: Communicator, task: SurvivorTask) -> None:
        self._comm = comm
        self._task = task
        self._state = np.full(task.elements + 1, FIRST, np.int64)
        self._state[-1] = 0  # the step that was last
        self._told, self._world = 0.0, 0
        self._named, self._named_at = "", 0.0

    def run(self, *, joins: bool) -> None:
        """Train until it is enough.  ``joins``: the others have the weights."""
        grows = self._task.way in ("grow", "join")
        over, changed = False, joins
        if joins:
            self._state[-1] = -1
        while not over:
            try:
                if changed:
                    _, self._state = share_state(self._comm, int(self._state[-1]), self._state)
                over = self._step(enough=Path(self._task.enough).exists())
                changed = grows and not over and bool(self._comm.grow())
            except LOSSES as error:
                self._named, self._named_at = str(error), time.monotonic()
                self._comm.shrink()
                over, changed = False, True
        self._tell(ended=True)

    def _step(self, *, enough: bool) -> bool:
        """One step.  Returns whether it is the last one: some rank has said that it is enough."""
        time.sleep(self._task.pause)
        weights, step = self._state[:-1], int(self._state[-1]) + 1
        before = _who(self._comm)
        own = before[self._comm.rank]
        gradient = np.append((weights // 16).astype(np.int32) + _part(step, own, weights.size), np.int32(enough))
        total = self._comm.allreduce(gradient, out=gradient)
        # a rank may have given its part before it was lost; then its part is in all ranks' sums
        after = _who(self._comm)
        ranks = after if np.array_equal(total[:-1], _sum(weights, step, after)) else before
        expected = _sum(weights, step, ranks)
        check_data(total[:-1], expected, rank=self._comm.rank, operation=f"sum of step {step}, {len(ranks)} ranks")
        weights -= expected // len(ranks)
        self._state[-1] = step
        self._tell()
        return bool(total[-1])

    def _tell(self, *, ended: bool = False) -> None:
        now, comm = time.monotonic(), self._comm
        if ended or comm.size != self._world or now > self._told + TELL:
            self._told, self._world = now, comm.size
            weights = self._state[:-1]
            print_message(Reached(int(self._state[-1]), comm.size, now, float(np.abs(weights).mean()),
                                  zlib.crc32(self._state.tobytes()), comm.rail, comm.flight()[-1].path, self._named,
                                  self._named_at, ended))


def _who(comm: Communicator) -> list[int]:
    """A number for each rank that it keeps, whatever ranks come and go: that of its address."""
    return [zlib.crc32(peer.address.encode()) % 997 for peer in comm.plan.peers]


def _part(step: int, who: int, size: int) -> NDArray[np.int32]:
    """The contribution of one rank to a step."""
    return (np.arange(size, dtype=np.int32) * (who + 3) + step * 7919) % 1009 - 504


def _sum(weights: NDArray[np.int64], step: int, ranks: list[int]) -> NDArray[np.int64]:
    """The sum of all that these ranks give."""
    total: NDArray[np.int64] = len(ranks) * (weights // 16) + sum(_part(step, who, weights.size) for who in ranks)
    return total


def rank(task: SurvivorTask) -> None:
    """Train until it is enough.  Raises WrongData."""
    job, joins = os.environ["NETFOLD_JOB"], task.way == "join"
    comm = (
        Communicator.join_running(job, rail=task.rail, rails=task.rails, timeout=task.timeout, join_timeout=BOUND)
        if joins else
        Communicator.join(job, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), rail=task.rail, rails=task.rails,
                          timeout=task.timeout, on_loss="shrink" if task.way == "by itself" else "raise")
    )
    with comm:
        Training(comm, task).run(joins=joins)


if __name__ == "__main__":
    run_rank(rank, msgspec.json.decode(sys.argv[1], type=SurvivorTask))
