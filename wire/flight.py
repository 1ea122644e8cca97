# SPDX-License-Identifier: Apache-2.0
"""What a rank's flight recorder writes (host/tracing/flight.py), and `netfold flight` reads: one JSON file a rank."""

from __future__ import annotations

import msgspec


class OperationRecord(msgspec.Struct):
    """One operation of a communicator or one of its groups."""

    number: int
    """Counts its group's operations from 1, alike on all of its ranks; 0 for a message between two."""
    group: str
    """"ranks 0, 2", or empty: all ranks of the job."""
    name: str
    """allreduce, broadcast, ...; or what the caller calls it."""
    op: str
    """sum, max, ...; empty where nothing is reduced."""
    dtype: str
    nbytes: int
    """Of the array that was handed in."""
    path: str
    """What carried it; empty until that is known."""
    begin: float
    """Seconds since 1970."""
    end: float = 0.0
    state: str = "running"
    """running, done, failed."""
    retransmissions: int = 0
    error: str = ""


class Dump(msgspec.Struct):
    """One rank's file."""

    job: str
    rank: int
    world: int
    host: str
    pid: int
    time: float
    """Seconds since 1970 when it was written."""
    why: str
    operations: list[OperationRecord]
    """The oldest first."""
    threads: dict[str, list[str]]
    """What every thread of the process was doing, outermost call first; for a signal only."""
