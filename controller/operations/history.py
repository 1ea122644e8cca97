# SPDX-License-Identifier: Apache-2.0
"""The traffic of a fabric over the last minutes, from statuses that were read for other purposes; it reads nothing
itself."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from netfold.controller.operations.rates import FabricRates, Rates
from netfold.wire.operator import JobStatus, Status

STEP: Final = 1.0
"""Seconds between two samples, while a viewer is looking."""
SHORTEST: Final = 0.8
"""Least seconds between two samples: statuses that follow faster make none, since their rates would be rough."""
GAP: Final = 10.0
"""Seconds without a status after which the next one begins anew: an average over a long time is nobody's rate now."""
SILENT: Final = 3.0
"""Seconds for which a job's rate stands while no rank of it reports anything new: reports come once a second, and late
where ranks or controller wait for a processor."""
LENGTH: Final = 300
"""Most samples: five minutes at STEP."""


@dataclass(frozen=True)
class Sample:
    """Rates of one moment, and what the jobs had reduced until then."""

    time: float
    """Unix seconds."""
    rates: FabricRates
    jobs: dict[str, float | None]
    """Payload bit/s of each rank by job, the mean of its ranks, of jobs that have not ended; None: not known, at first
    and while its trees are planned anew, when reports that were held up come at once."""


class _Reduced(NamedTuple):
    """The bytes that a job had reduced at the last change."""

    moment: float
    epoch: int
    round: int
    bytes: int
    bps: float | None = None


class History:
    """The last samples of one fabric.

    clock  monotonic seconds
    wall   unix seconds
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._rates = Rates()
        self._last: float | None = None
        self._reduced: dict[str, _Reduced] = {}
        self.samples: deque[Sample] = deque(maxlen=LENGTH)

    def note(self, status: Status) -> None:
        """Take the rates of a status that was just read, unless the last sample is younger than SHORTEST."""
        now = self._clock()
        if self._last is not None and now - self._last < SHORTEST:
            return
        if self._last is None or now - self._last > GAP:
            self._rates, self._reduced = Rates(), {}
        self._last = now
        jobs = {job.name: self._job(job, now) for job in status.jobs if job.state != "finished"}
        self._reduced = {name: reduced for name, reduced in self._reduced.items() if name in jobs}
        self.samples.append(Sample(self._wall(), self._rates.update(status), jobs))

    def _job(self, job: JobStatus, now: float) -> float | None:
        reduced = sum(report.bytes_reduced for report in job.reports)
        rounds = 0 if job.round is None else job.round.number
        before, here = self._reduced.get(job.name), _Reduced(now, job.epoch, rounds, reduced)
        if before is not None and here[1:3] == before[1:3] and reduced >= before.bytes:
            if reduced == before.bytes and now - before.moment < SILENT:
                return before.bps
            here = here._replace(bps=8 * (reduced - before.bytes) / (now - before.moment) / job.world)
        self._reduced[job.name] = here
        return here.bps
