# SPDX-License-Identifier: Apache-2.0
"""A short measurement of the links between ranks, for the cost model, and of the algorithms themselves.

The links take about 20 messages, of 8 MB or, on slow links, of what passes in half a second.  The algorithms are timed
at a few sizes, since no model knows what a step costs on this machine.

All ranks exchange at the same time, as they do in a collective, first with their neighbours in the ring and then with
ranks half the ring away: where these are slower, partners far apart share links.  Every rank ends with the same
figures, the worst of all ranks, and so makes the same choices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray

from netfold.host.collectives import recursive_doubling
from netfold.host.collectives.barrier import barrier
from netfold.host.collectives.flow import run
from netfold.host.collectives.hierarchical import first_pieces
from netfold.host.collectives.inner_step import InnerStep
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import Reduction
from netfold.host.selection.choice import TIMED
from netfold.host.selection.cost import LinkCost

ROUNDS = 9
TURNS = {4 << 10: (6, 4), 16 << 10: (6, 4), 64 << 10: (6, 4), 256 << 10: (3, 4)}
"""Bytes -> number of timings of an algorithm, and number of successive operations in each; other sizes use LONG_TURNS.
A rank that is scheduled late doubles the time of one small allreduce, and a single one of 256 KB may pass a shaped link
as a burst, faster than the link."""
LONG_TURNS = 3, 1
BUDGET_SECONDS = 0.3
"""Most seconds that one size is expected to take; on slow links fewer operations are timed."""
LARGE_BYTES = 1 << 20
"""Bytes of a long message: 8 ms at 1 Gb/s."""
SHORTEST_BYTES = 64 << 10
"""Bytes of a long message on slow links."""
MAX_SECONDS = 0.05
"""Most seconds that one allreduce of a timed size, or one long message, is expected to take; longer ones are left
out."""
TOTAL_SECONDS = 1.0
"""Seconds of timing after which no further size is timed."""
HOPELESS_FACTOR = 2.0
"""Algorithms that are expected to take longer than this multiple of the best expectation are not timed."""
REPEAT_FACTOR = 2
"""Factor on the number of turns when the fastest algorithm is timed again, if ``BUDGET_SECONDS`` permits it.  It shows
that the algorithm was not fast by luck: one that stalls once in thirty operations may have been quick in all the
others."""
CONTENTION_NOISE = 1.5
"""Contention below this counts as none: two timings of the same links differ by as much."""


@dataclass(frozen=True)
class Measured:
    """A rank's link, and the factor by which ranks half the ring apart are slower than neighbours."""

    link: LinkCost
    contention: float
    inside: LinkCost | None = None
    """The link between ranks of one machine, over shared memory; None if it was not measured."""
    timed: dict[str, dict[int, float]] = field(default_factory=dict)
    """Algorithm -> bytes -> seconds that an allreduce took."""


def measure(mesh: Mesh, *, clock: Callable[[], float] = time.perf_counter) -> Measured:
    """Measures the links.  All ranks call it together, inside an operation.  Needs two ranks or more."""
    small, large = np.zeros(8, np.uint8), np.zeros(SHORTEST_BYTES, np.uint8)
    near, far = 1, max(1, mesh.size // 2)

    def exchange(data: Flat, distance: int) -> float:
        into = np.empty_like(data)
        run(mesh, barrier(mesh))
        begin = clock()
        after, before = (mesh.rank + distance) % mesh.size, (mesh.rank - distance) % mesh.size
        mesh.wait([mesh.send(after, data), mesh.receive(before, into)])
        return clock() - begin

    exchange(small, near)  # opens the connections
    exchange(small, far)
    # Medians: a step of a collective waits for a rank that is scheduled late as often as these exchanges do.
    alpha = median(exchange(small, near) for _ in range(ROUNDS))
    while (
        large.size < LARGE_BYTES
    ):  # by what a message takes, not by a rate: a shaped link lets short ones pass as a burst
        took = np.array([exchange(large, near)])
        run(mesh, recursive_doubling.allreduce(mesh, took, Reduction("max", "float64")))
        if took[0] > MAX_SECONDS / 2:
            break
        large = np.zeros(2 * large.size, np.uint8)
    long = median(exchange(large, near) for _ in range(3))
    across = median(exchange(large, far) for _ in range(3))
    block = np.zeros(LARGE_BYTES // 4, np.float32)
    begin = clock()
    np.add(block, block, out=block)
    gamma = (clock() - begin) / block.nbytes
    # A clock too coarse for the short message must not make a link look infinitely fast.
    figures = np.array([alpha, max(long - alpha, long / 2) / large.size, gamma, across / long if long else 1.0])
    run(mesh, recursive_doubling.allreduce(mesh, figures, Reduction("max", "float64")))
    alpha, beta, gamma, ratio = figures.tolist()
    return Measured(LinkCost(alpha, beta, gamma), ratio if ratio > CONTENTION_NOISE else 1.0)


def measure_inside(
    mesh: Mesh, local: Mesh, rows: InnerStep, *, parts: int, clock: Callable[[], float] = time.perf_counter,
    memory: Flat | None = None,
) -> LinkCost:
    """The cost of the inner step as a link of the model: 2 (m-1) alpha + 2 (m-1)/m n beta is what reduce-scatter and
    all-gather of n bytes take, barriers, copies and adding included, on the machine where they take the longest.  All
    ranks of ``mesh`` call it together, inside an operation.

    parts   pieces of a window, which the first ranks of each machine reduce
    memory  float32 of a window, where the inner step cannot take any
    """
    reduction = Reduction("sum", "float32")

    def both(nbytes: int) -> float:
        data = np.zeros(nbytes // 4, np.float32) if memory is None else memory[: nbytes // 4]
        pieces = first_pieces(data.size, parts, local.size)
        run(local, barrier(local))
        begin = clock()
        run(local, rows.reduce_scatter(data, data, reduction, pieces))
        run(local, rows.all_gather(data, pieces))
        return clock() - begin

    large = min(LARGE_BYTES, rows.row)
    both(large)  # touches the pages
    short = median(both(8) for _ in range(ROUNDS))
    long = median(both(large) for _ in range(3))
    steps = 2 * (local.size - 1)
    figures = np.zeros(2)  # of a rank that is alone on its machine
    if steps:
        figures[:] = short / steps, max(long - short, long / 2) / large * local.size / steps
    run(mesh, recursive_doubling.allreduce(mesh, figures, Reduction("max", "float64")))
    alpha, beta = figures.tolist()
    return LinkCost(alpha, beta)


def time_algorithms(
    mesh: Mesh,
    algorithms: Mapping[str, Callable[[Flat], None]],
    predict: Callable[[int], Mapping[str, float]],
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[int, float]]:
    """Times these algorithms at those sizes of ``choice.TIMED`` that do not take long (``Measured.timed``).  All ranks
    call it together, inside an operation, with the same predictions.

    algorithms  each sums an array of float32 over all ranks, in place
    predict     seconds for so many bytes, by algorithm; at each size corrected by what the algorithm took at the one
                before, or by the median

    At each size all algorithms take turns, except hopeless ones; then the fastest runs on alone (``REPEAT_FACTOR``),
    until the fastest is one that has.
    """
    timed: dict[str, dict[int, float]] = {name: {} for name in algorithms}
    corrections: dict[str, float] = {}
    spent = 0.0
    for nbytes in TIMED:
        model = predict(nbytes)
        usual = median(corrections.values()) if corrections else 1.0
        expected = {name: model[name] * corrections.get(name, usual) for name in algorithms if name in model}
        best = min(expected.values())
        if best > MAX_SECONDS or spent > TOTAL_SECONDS:
            break
        names = [name for name, seconds in expected.items() if seconds <= HOPELESS_FACTOR * best]
        turns, in_a_row = TURNS.get(nbytes, LONG_TURNS)
        once = sum(expected[name] for name in names)
        while (1 + turns) * in_a_row * once > BUDGET_SECONDS and (turns > 2 or in_a_row > 1):
            turns, in_a_row = (turns, in_a_row - 1) if in_a_row > 1 else (turns - 1, 1)
        data = np.zeros(nbytes // 4, np.float32)
        taken = _race(mesh, [algorithms[name] for name in names], data, 1 + turns, in_a_row, clock)
        took = float(taken.sum()) * in_a_row
        figures = dict(zip(names, taken[1:].T, strict=True))
        seen: set[str] = set()
        while (leader := min(names, key=lambda name: (_typical(figures[name]), name))) not in seen:
            seen.add(leader)
            if took + REPEAT_FACTOR * turns * in_a_row * _typical(figures[leader]) > BUDGET_SECONDS:
                break
            more = _race(mesh, [algorithms[leader]], data, REPEAT_FACTOR * turns, in_a_row, clock)[:, 0]
            took += float(more.sum()) * in_a_row
            figures[leader] = np.concatenate([figures[leader], more])
        spent += took
        for name in names:
            timed[name][nbytes] = seconds = _typical(figures[name])
            corrections[name] = seconds / model[name] if model[name] else 1.0
    return {name: figures for name, figures in timed.items() if figures}


def _race(
    mesh: Mesh,
    algorithms: Sequence[Callable[[Flat], None]],
    data: Flat,
    turns: int,
    in_a_row: int,
    clock: Callable[[], float],
) -> NDArray[np.float64]:
    """Seconds of one operation, (turns, algorithms), the same on all ranks: a turn takes as long as its slowest rank.

    The algorithms take turns, so that what slows the machine down for a while slows all of them.
    """
    taken = np.empty((turns, len(algorithms)))
    for turn in taken:
        for place, algorithm in enumerate(algorithms):
            run(mesh, barrier(mesh))
            begin = clock()
            for _ in range(in_a_row):
                algorithm(data)
            turn[place] = (clock() - begin) / in_a_row
    run(mesh, recursive_doubling.allreduce(mesh, taken.reshape(-1), Reduction("max", "float64")))
    return taken


def _typical(turns: NDArray[np.float64]) -> float:
    """The mean of all turns but the slowest.  What makes some turns slow, such as a connection that waits for an
    acknowledgement, belongs to the algorithm and counts for what it costs; in a single turn it may be something else.
    """
    return float(turns.mean() if len(turns) < 3 else np.sort(turns)[:-1].mean())
