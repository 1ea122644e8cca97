# SPDX-License-Identifier: Apache-2.0
"""Files of flight recorders and timelines that are cut off, of another kind, or have numbers that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from netfold.cli.app import app
from netfold.cli.common import FAILED
from netfold.wire.flight import Dump, OperationRecord

RECORD = OperationRecord(3, "", "allreduce", "sum", "float32", 4096, "innet", 100.0, 100.5, "done")
FLIGHT: dict[str, Any] = msgspec.to_builtins(Dump("j", 0, 2, "h1", 77, 101.0, "asked", [RECORD], {}))
EVENT = {"name": "allreduce", "ph": "X", "ts": 1.0, "dur": 2.0, "pid": 0, "tid": 1}
TIMELINE: dict[str, Any] = {"traceEvents": [EVENT],
                            "otherData": {"job": "j", "rank": 0, "world": 2, "epoch_ns": 10**18, "lost": 0}}


def event(**changes: Any) -> bytes:
    return json.dumps({**TIMELINE, "traceEvents": [{**EVENT, **changes}]}).encode()


def about(**changes: Any) -> bytes:
    return json.dumps({**TIMELINE, "otherData": {**TIMELINE["otherData"], **changes}}).encode()


def flight(**changes: Any) -> bytes:
    return json.dumps({**FLIGHT, **changes}).encode()


BROKEN = {"empty": b"", "cut off": json.dumps(FLIGHT).encode()[:-40], "no text": b"\xff\xfe\x00\x81",
          "another kind": b"[1, 2]", "deep nest": b"[" * 100_000, "zeros": bytes(4096)}
TIMELINES = {**BROKEN, "events are no list": b'{"traceEvents": 3, "otherData": {}}', "an event is a number":
             json.dumps({**TIMELINE, "traceEvents": [3]}).encode(), "an event without a time":
             json.dumps({**TIMELINE, "traceEvents": [{"name": "x", "ph": "X", "pid": 0}]}).encode(),
             "time is text": event(ts="soon"), "kind is a number": event(ph=7), "arguments are a list": event(args=[1]),
             "a huge process": event(pid=10**30), "a huge epoch": about(epoch_ns=10**30),
             "a huge rank": about(rank=10**30), "lost is text": about(lost="many"), "a negative count": about(lost=-1)}
FLIGHTS = {**BROKEN, "a world that no loop could count": flight(world=10**30), "a rank below 0": flight(rank=-1),
           "operations are text": flight(operations="none"), "a huge number": flight(
               operations=[{**FLIGHT["operations"][0], "number": 10**30}])}


@pytest.mark.parametrize("name", TIMELINES)
def test_a_damaged_timeline_is_named(name: str, tmp_path: Path) -> None:
    """Status 1, one paragraph with the file; what was merged before is untouched."""
    bad, good, out = tmp_path / "bad.json", tmp_path / "good.json", tmp_path / "trace.json"
    good.write_text(json.dumps(TIMELINE))
    bad.write_bytes(TIMELINES[name])
    assert CliRunner().invoke(app, ["timeline", "merge", str(good), "-o", str(out)]).exit_code == 0
    before = out.read_bytes()
    result = CliRunner().invoke(app, ["timeline", "merge", str(good), str(bad), "-o", str(out)])
    assert result.exit_code == FAILED, result.output
    assert f"{bad}: no rank's timeline" in result.output
    assert out.read_bytes() == before


@pytest.mark.parametrize("name", FLIGHTS)
def test_a_damaged_flight_recorder_is_named(name: str, tmp_path: Path) -> None:
    """Status 1, one paragraph with the file; nothing counts to 10^30."""
    (tmp_path / "a.rank0.json").write_bytes(flight())
    (tmp_path / "a.rank1.json").write_bytes(FLIGHTS[name])
    result = CliRunner().invoke(app, ["flight", str(tmp_path)])
    assert result.exit_code == FAILED, result.output
    assert "a.rank1.json: no file of a flight recorder" in result.output
