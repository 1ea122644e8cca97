# SPDX-License-Identifier: Apache-2.0
"""What a fold hears from the controller and asks of it, without knowing how either is carried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from netfold.host.errors import NetFoldError
from netfold.wire.jobs import MissingContributions, Plan

Waits = dict[int, int]
"""Our queue pairs, and of each the PSN without a result that it waits for."""


@dataclass(frozen=True)
class FoldControl:
    """By default nobody is at the other end.

    job_error  what has ended the job, if anything
    suspect  says that repeats bring nothing; returns at once
    missing  asks for whom the switches wait
    resume   stands still until other trees are there; None: nobody tells us to halt
    """

    job_error: Callable[[], NetFoldError | None] = lambda: None
    suspect: Callable[[Waits], None] = lambda waits: None
    missing: Callable[[Waits], MissingContributions] = lambda waits: MissingContributions([], [])
    resume: Callable[[Waits], Plan] | None = None


NO_CONTROLLER: Final = FoldControl()
