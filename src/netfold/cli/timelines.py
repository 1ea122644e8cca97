# SPDX-License-Identifier: Apache-2.0
"""Merges the timelines of several ranks (host/tracing/timeline.py) into one trace with a process for each rank."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def merge(paths: Sequence[Path]) -> dict[str, Any]:
    """Merge the files of all ranks into one trace.  Raises ValueError for a file of another kind, and for no files."""
    if not paths:
        raise ValueError("no files: expected trace.JOB.rankN.json of each rank, as NETFOLD_TIMELINE=trace.json makes")
    traces = [_read(path) for path in paths]
    first = min(trace["otherData"]["epoch_ns"] for trace in traces)
    events: list[dict[str, Any]] = []
    taken: set[int] = set()
    for trace in sorted(traces, key=lambda trace: (trace["otherData"]["job"], trace["otherData"]["rank"])):
        shift = (trace["otherData"]["epoch_ns"] - first) / 1000
        pid = trace["otherData"]["rank"]
        while pid in taken:  # another job's rank of that number
            pid += 10_000
        taken.add(pid)
        for event in trace["traceEvents"]:
            event["pid"] = pid
            if event["ph"] != "M":
                event["ts"] += shift
            elif event["name"] == "process_sort_index":
                event["args"]["sort_index"] = pid
            events.append(event)
    events.sort(key=lambda event: (event["ph"] != "M", event["ts"]))
    lost = sum(trace["otherData"].get("lost", 0) for trace in traces)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"ranks": len(traces), "lost": lost}}


def _read(path: Path) -> dict[str, Any]:
    try:
        trace = json.loads(path.read_text())
        if not (isinstance(trace["traceEvents"], list) and isinstance(trace["otherData"]["epoch_ns"], int)
                and isinstance(trace["otherData"]["rank"], int) and isinstance(trace["otherData"]["job"], str)):
            raise TypeError("fields of other types")
        return dict(trace)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: no rank's timeline ({error!r}): expected trace.JOB.rankN.json, as ranks with "
                         "NETFOLD_TIMELINE write it") from error
