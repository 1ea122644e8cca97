# SPDX-License-Identifier: Apache-2.0
"""The requests of a fold to the controller, and the answers, as plain functions, so that a fold does not depend on
gRPC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from netfold.host.errors import NetFoldError
from netfold.wire.jobs import Connected, MissingContributions, OwnPairs
from netfold.wire.plan import Plan

Waits = dict[int, int]
"""Place of a stream in this rank's plan -> the lowest PSN sent on it that has no result."""


@dataclass(frozen=True)
class FoldControl:
    """The functions by which a fold talks to the controller; the defaults are those of a rank without one.

    job_error  returns what has ended the job, or None
    suspect    reports that retransmissions bring no result; returns at once
    missing    asks which ranks' contributions the switches wait for
    resume     waits until all ranks have halted and new trees are planned, and returns the new plan, by what this rank
               lacks, the last operation that it has begun, and where it would stand in for the switches
               (`wire.jobs.Resume`); None: nobody halts it
    connect    tells the queue pairs that an RC rank has made for a plan (`wire.jobs.Connect`), and waits until the
               switches know them; None in its answer's place: the trees have changed, and the rank is halted.  None:
               there is no controller
    broken     reports that queue pairs of an RC rank are in error, and which error, so that all ranks are halted and
               make them anew; returns at once
    """

    job_error: Callable[[], NetFoldError | None] = lambda: None
    suspect: Callable[[Waits], None] = lambda waits: None
    missing: Callable[[Waits], MissingContributions] = lambda waits: MissingContributions([], [])
    resume: Callable[[Waits, int, str], Plan] | None = None
    connect: Callable[[Plan, list[OwnPairs]], Connected | None] | None = None
    broken: Callable[[Waits, str], None] = lambda waits, why: None


NO_CONTROLLER: Final = FoldControl()
