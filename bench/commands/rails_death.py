# SPDX-License-Identifier: Apache-2.0
"""`netfold bench rails`, its series: sums over all rails while the last plane fails and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from netfold.bench.commands.rails_report import DeathCall, RailDeath
from netfold.bench.ranks.rail_series import SeriesCommand, SeriesResult

if TYPE_CHECKING:
    from netfold.bench.harness.workers import Workers
    from netfold.topo.network.planes import Planes

BEFORE, WITHOUT = 0.25, 0.5
"""The plane fails after this part of the time that all calls would take over all rails, and is mended after so much
more."""
PROBE: Final = 3
"""Calls that tell beforehand how long one takes."""


def measure(
    workers: Workers, planes: Planes, nbytes: int, calls: int, timeout: float, echo: Callable[[str], None]
) -> RailDeath:
    """Make the series.  Raises WorkerFailed."""
    last = len(planes.networks) - 1
    workers.send(SeriesCommand(nbytes, PROBE))
    whole = max(call.seconds for call in workers.results(SeriesResult, (PROBE + 1) * timeout)[0].calls[1:])
    workers.send(SeriesCommand(nbytes, calls))
    time.sleep(BEFORE * calls * whole)
    planes.cut(last)
    cut = time.monotonic()
    time.sleep(WITHOUT * calls * whole)
    planes.cut(last, up=True)
    back = time.monotonic()
    results = workers.results(SeriesResult, (calls + 1) * timeout)
    death = death_of(nbytes, cut, back, results)
    longest = max(death.calls, key=lambda call: call.took)
    used = [call for call in death.calls if call.at > death.back and call.carried[last]]
    echo(f"# {calls} sums of {nbytes} bytes; last plane cut at {death.cut:.2f} s and mended at {death.back:.2f}: the "
         f"longest call took {longest.took * 1e3:.0f} ms, the first one {death.calls[0].took * 1e3:.0f}; "
         f"{sum(call.wrong for call in death.calls)} wrong elements; the rail carries again "
         + (f"{used[0].at - death.back:.2f} s after that" if used else "not before the end"))
    return death


def death_of(nbytes: int, cut: float, back: float, results: Sequence[SeriesResult]) -> RailDeath:
    """The series as all ranks together saw it; a call lasts from the first rank's start to the last one's end.

    cut, back  seconds of CLOCK_MONOTONIC
    """
    zero = min(rank.calls[0].begun for rank in results)
    calls = []
    for same in zip(*(rank.calls for rank in results), strict=True):
        begun = min(call.begun for call in same)
        end = max(call.begun + call.seconds for call in same)
        calls.append(DeathCall(begun - zero, end - begun, same[0].carried, sum(call.wrong for call in same)))
    return RailDeath(nbytes, cut - zero, back - zero, calls)
