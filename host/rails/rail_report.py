# SPDX-License-Identifier: Apache-2.0
"""The ranks' reports on their rails: a table of integers that is summed over all ranks; each rank fills its own rows.

    number of the call whose stripes it ends, or 0 | microseconds of the last split call | for each rail: chunks done |
            failed | epoch reopened with | picoseconds a byte | microseconds of latency by each of the last short calls
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from netfold.host.operation.rail import Flat
from netfold.host.rails.rail_set import RailSet
from netfold.host.rails.shares import WINDOW, Estimate, Figure
from netfold.host.rails.striping import Stripe

FIRST = 2
"""First column of the rails."""
SHORT = 4
"""First column of the latencies by a rail's short calls, the newest first; 0: none, or the rail failed in it."""
COLUMNS = SHORT + WINDOW


@dataclass(frozen=True)
class RailReport:
    """The conclusions from all ranks' rows, the same on every rank."""

    calls: list[int]
    """By rank: the number of the call whose stripes it ends (``cut.call_number``), or 0."""
    done: list[int]
    """By rail: chunks that every rank has done."""
    dead: dict[int, list[int]]
    """Failed rail -> the ranks on which it failed."""
    reopened: list[int]
    """Dead rails that are open again on all ranks."""
    figures: list[Figure]
    cut_call_seconds: float | None
    """Seconds of the last split call, on the rank that waited for no other; None if there was none."""


def encode(
    rank: int, world: int, rails: RailSet, stripes: Mapping[int, Stripe], estimates: Sequence[Estimate],
    figures: Sequence[Figure], cut_call_seconds: float | None = None, call: int = 0,
) -> Flat:
    """This rank's table, with the other ranks' rows zero.

    estimates  of the rails, as this rank measures them
    figures    of the rails, as all ranks know them
    cut_call_seconds  seconds of the last split call, where it has not been reported yet
    call       number of the call whose stripes have ended, or 0
    """
    rows = np.zeros((world, FIRST + len(rails) * COLUMNS), np.int32)
    rows[rank, :FIRST] = call, 0 if cut_call_seconds is None else _whole(cut_call_seconds * 1e6)
    for rail, (estimate, figure) in enumerate(zip(estimates, figures, strict=True)):
        bandwidth, first = estimate.bandwidth(), FIRST + rail * COLUMNS
        latencies = [_whole(seconds * 1e6) if seconds else 0 for seconds in estimate.latencies(figure.bandwidth)]
        row = (
            stripes[rail].done if rail in stripes else 0,
            rail in rails.broken,
            rails.epoch(rail),
            0 if bandwidth is None else _whole(1e12 / bandwidth),
            *latencies,
        )
        rows[rank, first : first + len(row)] = row
    return rows.reshape(-1)


def decode(total: Flat, world: int, live: Sequence[int], stripes: Mapping[int, Stripe]) -> RailReport:
    """The conclusions from the sum of all ranks' tables."""
    rows = total.reshape(world, -1)
    cut_call_seconds, table = rows[:, 1], rows[:, FIRST:].reshape(world, -1, COLUMNS)
    rails = table.shape[1]
    done = table[:, :, 0].min(axis=0).tolist()
    dead = {}
    for rail in live:
        wanted = len(stripes[rail].chunks) if rail in stripes else 0
        lost = (table[:, rail, 1] != 0) | (table[:, rail, 0] < wanted)
        if lost.any():
            dead[rail] = np.flatnonzero(lost).tolist()
    back = [rail for rail, marks in enumerate(table[:, :, 2].T) if marks[0] and (marks == marks[0]).all()]
    figures = [_figure(table[:, rail, SHORT:], table[:, rail, SHORT - 1]) for rail in range(rails)]
    seconds = int(cut_call_seconds.min()) / 1e6 if cut_call_seconds.all() else None
    return RailReport(rows[:, 0].tolist(), done, dead, back, figures, seconds)


def _figure(short: Flat, picoseconds: Flat) -> Figure:
    """All ranks' figures of a rail combined in integer arithmetic.

    The rate is the median of the ranks that know it.  The latency follows from the shortest duration of each call on
    any rank.  On the rank that came last a call contains no wait for others, and which rank that is differs from call
    to call, so a rank's own median may consist of waits alone.  It may be too short, though: over TCP, what the last
    rank needs may be there already when it comes, however long the others' answers took.  So the second longest of
    five calls counts, the longest being that of a rank that got no processor.

    short  microseconds by rank and call, 0 where unknown
    """
    known = np.sort(picoseconds[picoseconds > 0])
    never = np.iinfo(short.dtype).max
    calls = np.sort(np.where(short > 0, short, never).min(axis=0))
    calls = calls[calls < never]
    latency = int(calls[3 * calls.size // 4]) / 1e6 if calls.size else 0.0
    return Figure(latency, 1e12 / int(known[known.size // 2]) if known.size else None)


def _whole(value: float) -> int:
    return max(1, min(round(value), (1 << 31) - 1))
