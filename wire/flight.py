# SPDX-License-Identifier: Apache-2.0
"""The file that a rank's flight recorder writes (host/tracing/flight.py) and `netfold flight` reads: JSON, one file a
rank."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from netfold.wire.bounds import Count

MAX_RANKS: Final = 1 << 16
"""More than a job may have: a file that says more is damaged."""


class OperationRecord(msgspec.Struct):
    """One operation of a communicator or one of its groups."""

    number: Count
    """Number of the operation in its group, from 1, the same on all of its ranks; 0 for a message between two ranks."""
    group: str
    """Ranks of the group, as in "ranks 0, 2"; empty: all ranks of the job."""
    name: str
    """Kind of operation, such as allreduce or broadcast, or the name that the caller gave it."""
    op: str
    """Reduction, such as sum or max; empty where nothing is reduced."""
    dtype: str
    nbytes: Count
    """Bytes of the array that the caller passed."""
    path: str
    """The rail or algorithm that carried it; empty until that is known."""
    begin: float
    """Seconds since 1970."""
    end: float = 0.0
    state: str = "running"
    """One of running, done and failed."""
    retransmissions: Count = 0
    error: str = ""


class Dump(msgspec.Struct):
    """The content of one rank's file."""

    job: str
    rank: Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]
    world: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
    host: str
    pid: Count
    time: float
    """Seconds since 1970 at which the file was written."""
    why: str
    operations: list[OperationRecord]
    """The recorded operations, the oldest first."""
    threads: dict[str, list[str]]
    """Stack of every thread of the process, outermost call first; written on a signal only."""
