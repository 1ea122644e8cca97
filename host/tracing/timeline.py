# SPDX-License-Identifier: Apache-2.0
"""A rank's timeline, recorded on request in the trace event format of Perfetto (ui.perfetto.dev) and Chrome.

With $NETFOLD_TIMELINE=trace.json each rank writes trace.JOB.rankN.json when its communicator is closed, and `netfold
timeline merge` makes one file of them, with a process for each rank.  Its rows:

    operations   one span for each operation, with bytes, path, retransmissions, and milliseconds of each stage below
    queued       asynchronous operations between their call and their start
    packets      folding, from io.c: quantise (packets made of the tensor, ICRC included), send, wait, receive,
                 dequantise (results written to the tensor), retransmit (packets made, or sent, again),
                 ask (negative acknowledgements made, or sent, for results that are missing)
    messages     over TCP or queue pairs: send, wait, receive
    innet@a      with several rails: the chunks that this one carried; "innet@a packets", "tcp@b messages" as above

Without a timeline it costs a comparison for each packet burst.  Times are CLOCK_MONOTONIC, aligned between machines by
their wall clocks at the moment when the communicator is made.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from netfold.disk import files
from netfold.host.tracing.spans import SPANS, Span
from netfold.wire.flight import OperationRecord

VARIABLE: Final = "NETFOLD_TIMELINE"
MAX_EVENTS: Final = 1_000_000
"""Number of events that are kept; later ones are only counted."""
OPERATIONS, QUEUED, PACKETS, MESSAGES = "operations", "queued", "packets", "messages"
ROWS: Final = (OPERATIONS, QUEUED, PACKETS, MESSAGES)
STAGES: Final = (PACKETS, MESSAGES)
"""Rows whose spans are summed up as the stages of the operation under way."""

log = logging.getLogger("netfold")


def timeline_from_environment(job: str, rank: int, world: int) -> Timeline | None:
    """This rank's timeline where $NETFOLD_TIMELINE asks for one, else None."""
    where = os.environ.get(VARIABLE)
    if not where:
        return None
    path = Path(where)
    name = re.sub(r"[^A-Za-z0-9_-]", "_", job)
    return Timeline(job, rank, world, path.with_name(f"{path.stem}.{name}.rank{rank}{path.suffix or '.json'}"))


class Timeline:
    """Collects the spans of one rank of a job, and writes them once."""

    def __init__(self, job: str, rank: int, world: int, path: Path) -> None:
        self.path = path
        self._job, self._rank, self._world = job, rank, world
        self._origin = time.monotonic_ns()
        self._epoch = time.time_ns()
        self._events: list[tuple[str, str, int, int, dict[str, Any] | None]] = []
        """Each event's row, name, begin and end in nanoseconds of CLOCK_MONOTONIC, and arguments."""
        self._stages: dict[str, int] = {}
        """Stage -> nanoseconds spent on it by the operation under way."""
        self._lost = 0
        self._lock = threading.Lock()

    # ---- recording ---------------------------------------------------------------------------------------------------
    def add(self, row: str, name: str, begin: int, end: int, arguments: dict[str, Any] | None = None) -> None:
        """Adds a span from ``begin`` to ``end``, in nanoseconds of CLOCK_MONOTONIC."""
        part, _, kind = row.rpartition(" ")
        if kind in STAGES:
            stage = f"{part} {name}".strip()
            self._stages[stage] = self._stages.get(stage, 0) + end - begin
        if len(self._events) < MAX_EVENTS:
            self._events.append((row, name, begin, end, arguments))
        else:
            self._lost += 1

    def is_joined(self) -> None:
        """Records that the ranks have joined: the spans of the joining belong to no operation."""
        self._stages = {}

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """A context whose duration is added to the row "messages"."""
        begin = time.monotonic_ns()
        try:
            yield
        finally:
            self.add(MESSAGES, name, begin, time.monotonic_ns())

    def operation(self, operation: OperationRecord, begin: int, end: int) -> None:
        """Adds one operation, as the flight recorder has recorded it."""
        arguments = {
            name: value
            for name in ("number", "group", "op", "dtype", "nbytes", "path", "state", "retransmissions", "error")
            if (value := getattr(operation, name)) not in ("", None)
        }
        if self._stages:
            arguments["stages_ms"] = {name: round(time / 1e6, 3) for name, time in self._stages.items()}
            self._stages = {}
        self.add(OPERATIONS, operation.name, begin, end, arguments)

    def spans(self, spans: Sequence[Span], lost: int) -> None:
        """Adds the native loop's spans, of which ``lost`` more were not recorded."""
        for span in spans:
            arguments = {"packets": span.packets} if span.packets else None
            self.add(PACKETS, SPANS[span.kind], span.begin, span.end, arguments)
        self.lose(lost)

    def lose(self, count: int) -> None:
        """Counts spans that were not kept."""
        self._lost += count

    def part(self, label: str) -> Timeline:
        """The same timeline with rows of its own, named after ``label``, for one of several rails that work at the same
        time."""
        return _Part(self, label)

    # ---- the file ----------------------------------------------------------------------------------------------------
    def write(self) -> None:
        """Writes the file; a second call does nothing.  A file that cannot be written is logged, never raised."""
        with self._lock:
            events, self._events = self._events, []
        if not events:
            return
        name = f"rank {self._rank} of {self._world}, {self._job} ({socket.gethostname()})"
        said: list[dict[str, Any]] = [
            _about(self._rank, None, "process_name", {"name": name}),
            _about(self._rank, None, "process_sort_index", {"sort_index": self._rank}),
        ]
        rows = [*ROWS, *sorted({row for row, *_ in events} - set(ROWS))]
        # A row is a thread.  To Perfetto thread 0 of process p is thread p, another row of ours: none has that number.
        tids = {row: number for number, row in enumerate(rows, start=1)}
        for row, number in tids.items():
            said.append(_about(self._rank, number, "thread_name", {"name": row}))
            said.append(_about(self._rank, number, "thread_sort_index", {"sort_index": number}))
        for number, (row, what, begin, end, arguments) in enumerate(sorted(events, key=lambda event: event[2])):
            span = {"name": what, "cat": row, "pid": self._rank, "tid": tids[row],
                    "ts": (begin - self._origin) / 1000}
            if row == QUEUED:  # these overlap, and spans of one row must not
                mine = {"id2": {"local": str(number)}}  # "id" would be one for all ranks of a merged file
                said.append(span | {"ph": "b"} | mine)
                said.append(span | {"ph": "e", "ts": (end - self._origin) / 1000} | mine)
            else:
                about = {"args": arguments} if arguments else {}
                said.append(span | {"ph": "X", "dur": (end - begin) / 1000} | about)
        said.sort(key=in_order)
        other = {"job": self._job, "rank": self._rank, "world": self._world, "epoch_ns": self._epoch,
                 "lost": self._lost}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.replace(
                self.path, json.dumps({"traceEvents": said, "displayTimeUnit": "ms", "otherData": other})
            )
        except OSError as error:
            log.warning("timeline: cannot write %s: %s", self.path, error)
            return
        if self._lost:
            log.warning("timeline: %s lacks %d spans beyond the first %d", self.path, self._lost, MAX_EVENTS)


class _Part(Timeline):
    """The rows of a timeline that belong to one label."""

    def __init__(self, whole: Timeline, label: str) -> None:
        self._whole, self._label = whole, label

    def add(self, row: str, name: str, begin: int, end: int, arguments: dict[str, Any] | None = None) -> None:
        self._whole.add(f"{self._label} {row}", name, begin, end, arguments)

    def lose(self, count: int) -> None:
        self._whole.lose(count)

    def write(self) -> None:
        """Does nothing: the whole timeline is written by its owner."""


def in_order(event: dict[str, Any]) -> tuple[bool, float]:
    """Sort key of a trace's events: metadata first, then by time."""
    return event["ph"] != "M", event["ts"]


def _about(pid: int, tid: int | None, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A metadata event, which names or orders processes and rows."""
    where = {"pid": pid} if tid is None else {"pid": pid, "tid": tid}
    return {"name": name, "ph": "M", "ts": 0, **where, "args": arguments}
