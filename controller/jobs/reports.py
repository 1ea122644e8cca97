# SPDX-License-Identifier: Apache-2.0
"""Reports of ranks about themselves: numbers of operations, bytes and packets, when they leave and on request."""

from __future__ import annotations

from typing import Final

from msgspec import structs

from netfold.controller.jobs.job import Job
from netfold.wire.jobs import RankReport, Tell
from netfold.wire.operator import Totals
from netfold.wire.plan import Secret

TELL_SECONDS: Final = 0.9
"""Seconds between two questions to a rank about its progress, while a viewer is looking."""
TELL_RATE: Final = 128
"""Ranks of a job per second that are asked for it, on average."""
MAX_TOTAL: Final = 2**63 - 1
"""Upper bound of totals, whatever ranks report: a larger total would not fit a reader's counters."""


def record(job: Job, report: RankReport, totals: Totals, now: float) -> None:
    """Record a rank's report, and add what is new in it to the fabric's totals.

    now  in monotonic seconds
    """
    before = job.reports.get(report.rank)
    if before is not None and (report.operations, report.packets_sent) < (before.operations, before.packets_sent):
        return  # sent before that one, and arrived after it
    for name in ("operations", "bytes_reduced", "packets_sent", "retransmissions"):
        more = getattr(report, name) - (0 if before is None else getattr(before, name))
        setattr(totals, name, min(getattr(totals, name) + max(more, 0), MAX_TOTAL))
    if report.bytes_reduced > (0 if before is None else before.bytes_reduced):
        job.used = now
    job.reports[report.rank] = structs.replace(report, secret=Secret())  # `netfold status` shows it


def ask(job: Job, now: float) -> None:
    """Ask a running job's ranks how far they are: TELL_RATE ranks a second at most on average, and each once a second
    at most.

    now  in monotonic seconds
    """
    if job.state == "active" and now - job.asked >= max(TELL_SECONDS, job.world / TELL_RATE):
        job.asked = now
        job.broadcast(Tell())
