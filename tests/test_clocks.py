# SPDX-License-Identifier: Apache-2.0
"""Wall clocks that jump: nothing is timed by them, and what they are read for survives a step."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from netfold.controller.switch.election import Candidacy, Elections, Superseded
from netfold.host.tracing.flight import Flight
from netfold.host.tracing.timeline import Timeline
from netfold.wire.jobs import Done, Leave
from support.control.jobs import rig
from support.control.leases import LEASE, Leases
from test_architecture import modules

YEAR = 366 * 86_400
READERS = {
    "netfold.cli.top": "the time of day of events, for people",
    "netfold.controller.operations.events": "when something happened, for people; none is timed by it",
    "netfold.controller.operations.history": "when a sample was taken, for charts; rates are by monotonic time",
    "netfold.controller.switch.election": "which of two controllers started last; a step back is made up for",
    "netfold.host.tracing.flight": "when its operations began, for people; durations are monotonic",
    "netfold.host.tracing.timeline": "aligns the ranks' monotonic clocks once, at the start",
    "netfold.topo.captures.capture": "when an interface's counts were read, as pcapng has it",
    "netfold.topo.captures.packet_sockets": "time stamps of packets where the kernel gives none, as pcapng has",
    "softswitch.p4runtime.digests": "DigestList.timestamp, as the specification has it",
    "softswitch.p4runtime.server": "IdleTimeoutNotification.timestamp, as the specification has it",
    "softswitch.thrift.management": "get_time_since_epoch_us is asked for just that",
    "softswitch.trace.bmv2": "the time of day at the beginning of BMv2's log lines, for people",
    "softswitch.trace.recording": "when a recording began, for people; its times are the switch's monotonic ones",
}
"""Modules that may read the wall clock, and what for."""
WALL = {"time", "time_ns", "localtime", "gmtime", "ctime", "strftime"}
LIKELY = re.compile(rf"\btime\s*\.\s*({'|'.join(sorted(WALL))})\b|\b(date|datetime)\s*\.|\bfrom\s+time\b")
"""A word that each source has which reads the clock; sources without one are not parsed."""


def reads_wall_clock(tree: ast.AST) -> Iterator[int]:
    """Lines that read it: time.time() and its like, datetime.now() and its like."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name, owner = node.attr, node.value.id
            today = owner in ("datetime", "date") and name in ("now", "utcnow", "today")
            if today or (owner == "time" and name in WALL):
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == "time" and {n.name for n in node.names} & WALL:
            yield node.lineno


def test_durations_are_never_measured_by_the_wall_clock() -> None:
    """Only the modules above read it; leases, time-outs, probes and dampers use clocks that never step."""
    texts = {name: path.read_text() for name, _, path in modules()}
    found = {name for name, text in texts.items() if LIKELY.search(text) and list(reads_wall_clock(ast.parse(text)))}
    assert found == READERS.keys()


def test_c_reads_the_wall_clock_for_captures_alone() -> None:
    """The time stamps of pcap files are those of the wall."""
    root = Path(__file__).resolve().parent.parent
    wall = re.compile(r"CLOCK_REALTIME|gettimeofday|\btime\((NULL|0|&)")
    rooms = ("cbuild/src", "host", "sim", "softswitch/src")
    sources = [path for room in rooms for path in (root / room).rglob("*.[ch]")]
    assert len(sources) > 40
    assert {path.name for path in sources if wall.search(path.read_text())} == {"pcap.c"}


def jumping(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the wall clock is a year ahead, a year behind or right, anew at each look of our code.

    gRPC sees the real one: it reads it at the start of a call, and turns the deadline into monotonic time at once.
    """
    real, real_ns, steps = time.time, time.time_ns, cycle((YEAR, -YEAR, 0))

    def step() -> int:
        return next(steps) if sys._getframe(2).f_globals["__name__"].startswith(("netfold.", "logging")) else 0

    monkeypatch.setattr(time, "time", lambda: real() + step())
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + step() * 10**9)


async def test_a_job_and_its_leases_outlive_steps_of_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that jumps by years at each look, ranks join, watch, keep their leases and leave."""
    async with rig(tmp_path, lease=LEASE, probe=0.05) as r:
        leases = Leases(monkeypatch)
        jumping(monkeypatch)
        plans = await r.together(2)
        for plan in plans:
            await r.watch(plan)
        leases.end()  # those who watch keep it
        await asyncio.sleep(0.2)  # a few probes
        (job,) = r.controller.jobs.registry.active()
        assert not job.lost
        assert not job.left
        await asyncio.gather(*(
            r.call("Leave", Leave(plan.job, plan.rank, plan.epoch, "", plan.rank_secret), Done) for plan in plans))
        assert not r.controller.jobs.registry.active()


def test_durations_in_records_are_those_of_a_steady_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flight recorder's and the timeline's spans are not negative, nor years."""
    flight, timeline = Flight("j", 0, 1, folder=tmp_path), Timeline("j", 0, 1, tmp_path / "t.json")
    jumping(monkeypatch)
    for number in range(1, 8):
        with flight.operation(number, "", "allreduce", "sum", "float32", 4), timeline.span("send"):
            pass
    for operation in flight.operations():
        assert 0 <= operation.end - operation.begin < 60
    begins = [operation.begin for operation in flight.operations()]
    assert begins == sorted(begins)
    timeline.write()
    spans = [event for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == 7
    assert all(0 <= span["dur"] < 60e6 for span in spans)


def test_a_controller_whose_clock_was_set_back_still_becomes_primary() -> None:
    """It looks for the election id of the one before it, and takes a higher one; the elder yields."""
    key, now = b"k" * 32, [YEAR * 1000 * 2]
    elections = Elections(key, 1, lambda: now[0])
    elder = Candidacy(elections)
    elder.claim(0)
    now[0] -= YEAR * 1000
    successor = Candidacy(elections)
    assert elections.above(0) < elder.number
    assert successor.claim(elder.number) > elder.number
    with pytest.raises(Superseded):
        elder.lost(successor.number, "another controller is primary")
