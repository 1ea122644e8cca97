# SPDX-License-Identifier: Apache-2.0
"""Merges the timelines of several ranks (host/tracing/timeline.py) into one trace with a process for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from netfold.disk import files
from netfold.wire.bounds import Count, Int32

MOST_BYTES: Final = 256 << 20
"""Bytes of a rank's timeline at most, which keeps a bounded number of events (host/tracing/timeline.py)."""


class _Event(msgspec.Struct, omit_defaults=True):
    """An event of the trace event format, with the fields that a rank writes."""

    name: str
    ph: str
    ts: float
    pid: Int32
    tid: Int32 | None = None
    dur: float | None = None
    cat: str | None = None
    args: dict[str, Any] | None = None
    id2: dict[str, str] | None = None


class _About(msgspec.Struct):
    """Whose timeline it is."""

    job: str
    rank: Int32
    epoch_ns: Count
    """Nanoseconds since 1970 at which the rank's clock was 0."""
    lost: Count = 0


class _Timeline(msgspec.Struct):
    """One rank's file."""

    traceEvents: list[_Event]
    otherData: _About


def merge(paths: Sequence[Path]) -> dict[str, Any]:
    """Merge the files of all ranks into one trace.  Raises ValueError for a file of another kind, and for no files."""
    if not paths:
        raise ValueError("no files: expected trace.JOB.rankN.json of each rank, as NETFOLD_TIMELINE=trace.json makes")
    traces = [_read(path) for path in paths]
    first = min(trace.otherData.epoch_ns for trace in traces)
    events: list[_Event] = []
    taken: set[int] = set()
    for trace in sorted(traces, key=lambda trace: (trace.otherData.job, trace.otherData.rank)):
        shift = (trace.otherData.epoch_ns - first) / 1000
        pid = trace.otherData.rank
        while pid in taken:  # another job's rank of that number
            pid += 10_000
        taken.add(pid)
        for event in trace.traceEvents:
            event.pid = pid
            if event.ph != "M":
                event.ts += shift
            elif event.name == "process_sort_index":
                event.args = {"sort_index": pid}
            events.append(event)
    events.sort(key=lambda event: (event.ph != "M", event.ts))
    lost = sum(trace.otherData.lost for trace in traces)
    merged = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"ranks": len(traces), "lost": lost}}
    built: dict[str, Any] = msgspec.to_builtins(merged)
    return built


def _read(path: Path) -> _Timeline:
    try:
        return msgspec.json.decode(files.read(path, MOST_BYTES), type=_Timeline)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"{path}: no rank's timeline ({error}): expected trace.JOB.rankN.json, as ranks with "
                         "NETFOLD_TIMELINE write it") from error
