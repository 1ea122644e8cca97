# SPDX-License-Identifier: Apache-2.0
"""What the ranks encode one another of their rails: a table of whole numbers, summed over all, a rank's rows its own.

    microseconds of the last cut call | for each rail: chunks done | broken | reopened as | latency, microseconds |
                                                       picoseconds a byte
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from netfold.host.operation.rail import Flat
from netfold.host.rails.rail_set import RailSet
from netfold.host.rails.shares import Estimate, Figure
from netfold.host.rails.striping import Stripe

COLUMNS = 5


@dataclass(frozen=True)
class RailReport:
    """What all ranks have agreed on."""

    done: list[int]
    """Chunks of each rail that every rank has."""
    dead: dict[int, list[int]]
    """Rails that failed, and the ranks that say so."""
    reopened: list[int]
    """Dead rails that are open on all ranks again."""
    figures: list[Figure]
    cut_call_seconds: float | None
    """Seconds of the last cut call, on the rank for which nobody was late; None where there was none."""


def encode(
    rank: int, world: int, rails: RailSet, ranges: Mapping[int, Stripe], estimates: Sequence[Estimate],
    cut_call_seconds: float | None = None,
) -> Flat:
    """This rank's part of the sum.

    cut_call_seconds  seconds of the last cut call that has not been told yet
    """
    rows = np.zeros((world, 1 + len(rails) * COLUMNS), np.int32)
    rows[rank, 0] = 0 if cut_call_seconds is None else _whole(cut_call_seconds * 1e6)
    for rail, estimate in enumerate(estimates):
        latency, bandwidth = estimate.latency(), estimate.bandwidth()
        rows[rank, 1 + rail * COLUMNS : 1 + (rail + 1) * COLUMNS] = (
            ranges[rail].done if rail in ranges else 0,
            rail in rails.broken,
            rails.epoch(rail),
            0 if latency is None else _whole(latency * 1e6),
            0 if bandwidth is None else _whole(1e12 / bandwidth),
        )
    return rows.reshape(-1)


def decode(total: Flat, world: int, live: Sequence[int], ranges: Mapping[int, Stripe]) -> RailReport:
    """What follows from all ranks' parts: the same on all of them."""
    rows = total.reshape(world, -1)
    cut_call_seconds, table = rows[:, 0], rows[:, 1:].reshape(world, -1, COLUMNS)
    rails = table.shape[1]
    done = table[:, :, 0].min(axis=0).tolist()
    dead = {}
    for rail in live:
        wanted = len(ranges[rail].chunks) if rail in ranges else 0
        lost = (table[:, rail, 1] != 0) | (table[:, rail, 0] < wanted)
        if lost.any():
            dead[rail] = np.flatnonzero(lost).tolist()
    back = [rail for rail, marks in enumerate(table[:, :, 2].T) if marks[0] and (marks == marks[0]).all()]
    figures = [_figure(table[:, rail, 3], table[:, rail, 4]) for rail in range(rails)]
    return RailReport(done, dead, back, figures, int(cut_call_seconds.min()) / 1e6 if cut_call_seconds.all() else None)


def _figure(latencies: Flat, picoseconds: Flat) -> Figure:
    """All ranks' figures of a rail in one, by whole numbers: the median rate of those who know, and the lowest latency,
    that of the rank for which nobody is late."""
    known = np.sort(picoseconds[picoseconds > 0])
    some = latencies[latencies > 0]
    latency = int(some.min()) / 1e6 if some.size else 0.0
    return Figure(latency, 1e12 / int(known[known.size // 2]) if known.size else None)


def _whole(value: float) -> int:
    return max(1, min(round(value), (1 << 31) - 1))
