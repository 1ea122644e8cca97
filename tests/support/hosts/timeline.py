# SPDX-License-Identifier: Apache-2.0
"""A strict reader of the trace event format: what Perfetto and Chrome require of a file, and what they would have to
guess."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Event = dict[str, Any]
METADATA = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name",
            "thread_sort_index": "sort_index"}
"""Names of metadata events, and of their one argument."""


def read(path: Path) -> Event:
    """The file's object.  Fails for what only Python accepts as JSON: NaN, Infinity, and duplicate keys."""

    def no_constant(name: str) -> None:
        raise AssertionError(f"{path}: {name} is no JSON")

    def once(pairs: list[tuple[str, Any]]) -> Event:
        assert len({key for key, _ in pairs}) == len(pairs), f"{path}: a key comes twice: {pairs}"
        return dict(pairs)

    trace: Event = json.loads(path.read_text(), parse_constant=no_constant, object_pairs_hook=once)
    return trace


def rows(trace: Event) -> dict[tuple[int, str], list[Event]]:
    """Spans by process and row, in order of time; asynchronous ones get their "dur".  Fails where the format is
    violated.

    Every event has its keys with their types; metadata comes first, times never decrease; complete spans of one row
    follow each other; asynchronous ones begin and end once, under an id of their own within the process.
    """
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    names: dict[tuple[int, int], str] = {}
    processes: set[int] = set()
    found: dict[tuple[int, str], list[Event]] = defaultdict(list)
    open_: dict[tuple[int, str, str], Event] = {}
    ended: set[tuple[int, str, str]] = set()
    last, spans = 0.0, False
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str), event
        assert event["name"], event
        assert type(event["pid"]) is int, event
        assert type(event["ts"]) in (int, float), event
        assert event["ts"] >= 0, event
        phase = event["ph"]
        if phase == "M":
            assert not spans, f"a name after a span: {event}"
            argument = METADATA[event["name"]]
            assert set(event["args"]) == {argument}
            assert type(event["args"][argument]) is (str if argument == "name" else int)
            if event["name"] == "thread_name":
                assert event["tid"] > 0, "thread 0 is the process's own to Perfetto, whatever it is called"
                assert (event["pid"], event["tid"]) not in names, f"named twice: {event}"
                names[event["pid"], event["tid"]] = event["args"]["name"]
            if event["name"] == "process_name":
                assert event["pid"] not in processes, f"named twice: {event}"
                processes.add(event["pid"])
            continue
        spans = True
        assert event["ts"] >= last, f"time goes back: {event}"
        last = event["ts"]
        assert event["pid"] in processes
        row = names[event["pid"], event["tid"]]
        assert event["cat"] == row
        assert set(event) <= {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args", "id2"}
        assert isinstance(event.get("args", {}), dict)
        if phase == "X":
            assert type(event["dur"]) in (int, float)
            assert event["dur"] >= 0
            assert "id2" not in event
            found[event["pid"], row].append(event)
            continue
        assert phase in ("b", "e"), event
        assert "dur" not in event
        assert set(event["id2"]) == {"local"}
        identity = event["pid"], event["cat"], event["id2"]["local"]
        assert isinstance(identity[2], str)
        if phase == "b":
            assert identity not in open_, f"begun twice: {event}"
            assert identity not in ended, f"begun again: {event}"
            open_[identity] = event
        else:
            begin = open_.pop(identity)
            assert begin["name"] == event["name"]
            ended.add(identity)
            found[event["pid"], row].append({**begin, "dur": event["ts"] - begin["ts"]})
    assert not open_, f"never ended: {open_}"
    for (pid, row), events in found.items():
        if all(event["ph"] == "X" for event in events):
            for a, b in itertools.pairwise(events):
                assert a["ts"] + a["dur"] <= b["ts"] + 0.002, f"process {pid}, {row}: {a} overlaps {b}"
    return found
